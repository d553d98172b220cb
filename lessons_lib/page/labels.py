"""Label curves at the line instead of in a legend."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.typing import ColorType

AMBIGUOUS = 100  # cost of a position that is almost as near to another line


def label_lines(ax: Axes) -> Axes:
    """Write the label of each line of ``ax`` beside the line, in its colour, without crossing other lines or labels.

    A label takes the position that is close to its own line and far from all others; two rounds, so that the first
    label takes the last one into account. If curves are too close for that, the labels are written to the right of the
    axes at the heights where the curves end; if the ends are too close as well, in a legend. Positions are computed
    when the figure is drawn, so later changes of the axes are respected.
    """
    named = [line for line in ax.get_lines() if not str(line.get_label() or "_").startswith("_")]
    placing = _Placing(ax, {line: _label(ax, line) for line in named})
    ax.add_artist(placing)
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    if placing.crowded and placing.ends_apart:
        placing.move_to_the_ends()
    elif placing.crowded:
        placing.give_way_to_a_legend()
    return ax


class _Placing(Artist):
    """An invisible artist that places the labels when it is drawn, which is before the labels are drawn."""

    def __init__(self, ax: Axes, labels: Mapping[Line2D, Text]) -> None:
        super().__init__()
        self.on, self.labels, self.crowded, self.ends_apart, self.at_end = ax, labels, False, True, []
        self.set_zorder(-1)
        self.set_in_layout(False)

    def move_to_the_ends(self) -> None:
        """Label curves at their ends; vertical lines, which end at the top, keep their labels beside them."""
        self.at_end = [line for line in self.labels if np.ptp(np.asarray(line.get_xdata(), dtype=float)) > 0]
        for i, line in enumerate(self.at_end):
            self.labels[line].set(position=(1.02, 0.5), ha="left", in_layout=True, gid=f"text_end_{i}")

    def give_way_to_a_legend(self) -> None:
        """Replace the labels by a legend."""
        self.remove()
        for label in self.labels.values():
            label.remove()
        self.on.legend(frameon=False)

    def draw(self, renderer) -> None:
        within = np.array(self.on.bbox.extents)
        paths = {line: _dots(line, within) for line in self.on.get_lines()}
        high = max((label.get_window_extent(renderer).height for label in self.labels.values()), default=0)
        ends = {line: dots[dots[:, 0].argmax(), 1] for line, dots in paths.items() if line in self.labels and len(dots)}
        curves = [y for line, y in ends.items() if np.ptp(np.asarray(line.get_xdata(), dtype=float)) > 0]
        self.ends_apart = bool((np.diff(sorted(curves)) > 0.15 * high).all())
        at_end = [line for line in self.at_end if line in ends]
        for line, y in zip(at_end, _apart([ends[line] for line in at_end], 1.1 * high), strict=True):
            self.labels[line].set_y((y - within[1]) / (within[3] - within[1]))
        beside = [line for line in self.labels if line not in self.at_end]
        taken: dict[Line2D, tuple[np.ndarray, np.ndarray]] = {}
        for line in [*beside, *beside]:
            extent = self.labels[line].get_window_extent(renderer)
            size = np.array([extent.width, extent.height])
            places = _places(paths[line], size, within, gap=0.35 * extent.height)
            if not len(places):
                continue
            rest = [dots for other, dots in paths.items() if other is not line and len(dots)]
            boxes = [box for other, box in taken.items() if other is not line]
            cost = _cost(places, size, paths[line], rest, boxes)
            best = places[cost.argmin()]
            self.crowded = self.crowded or bool(cost.min() > AMBIGUOUS / 2)
            taken[line] = best, size
            x, y = self.on.transAxes.inverted().transform(best)
            self.labels[line].set_position((float(x), float(y)))


def _apart(heights: Sequence[float], least: float) -> np.ndarray:
    """Move heights as little as possible until neighbours are ``least`` apart."""
    order = np.argsort(heights, kind="stable")
    moved = np.asarray(heights, dtype=float)[order]
    for _ in range(100):
        for i in range(len(moved) - 1):
            lack = max(0.0, least - (moved[i + 1] - moved[i])) / 2
            moved[i : i + 2] += [-lack, lack]
    return moved[np.argsort(order)]


def _label(ax: Axes, line: Line2D) -> Text:
    as_paths = mpl.rcParams["svg.fonttype"] == "path"  # a halo turns text into paths
    halo = [withStroke(linewidth=2.5, foreground="white")] if as_paths else []
    look = {"ha": "center", "va": "center", "color": _ink(line.get_color()), "path_effects": halo, "zorder": 4}
    return ax.text(0.5, 0.5, str(line.get_label()), transform=ax.transAxes, in_layout=False, **look)


def _ink(colour: ColorType) -> tuple[float, ...]:
    """Darken a colour until its contrast with white is at least 4.5 to 1, as WCAG requires for text."""
    rgb = np.array(to_rgb(colour))
    while np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722] > 0.183:
        rgb = 0.97 * rgb
    return tuple(rgb.tolist())


def _dots(line: Line2D, within: np.ndarray) -> np.ndarray:
    """Return points of a line on the canvas, at most three units apart, that lie within the axes."""
    corners = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
    steps = np.maximum(1, np.ceil(np.linalg.norm(np.diff(corners, axis=0), axis=1) / 3)).astype(int)
    pieces = [np.linspace(a, b, k, endpoint=False) for a, b, k in zip(corners[:-1], corners[1:], steps, strict=True)]
    dots = np.concatenate([*pieces, corners[-1:]])
    return dots[((dots >= within[:2] - 1) & (dots <= within[2:] + 1)).all(axis=1)]


def _places(dots: np.ndarray, size: np.ndarray, within: np.ndarray, gap: float) -> np.ndarray:
    """Return the centres of boxes of this size that lie around the points and inside the axes."""
    around = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y])
    places = (dots[:: max(1, len(dots) // 40), None] + around * (size / 2 + gap)).reshape(-1, 2)
    fits = (places >= within[:2] + size / 2) & (places <= within[2:] - size / 2)
    return places[fits.all(axis=1)]


def _cost(
    places: np.ndarray,
    size: np.ndarray,
    own: np.ndarray,
    rest: Sequence[np.ndarray],
    boxes: Sequence[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Return the cost of each position: highest on a line or label, then if another line is nearer than its own."""

    def distance(dots: np.ndarray) -> np.ndarray:
        beyond = np.maximum(np.abs(places[:, None] - dots) - size / 2, 0)
        return np.linalg.norm(beyond, axis=-1).min(axis=1)

    near, far = distance(own), distance(np.concatenate(rest)) if rest else np.full(len(places), np.inf)
    cost = near - np.minimum(far, 3 * size[1]) + 1000 * ((near < 1) + 1.0 * (far < 1)) + AMBIGUOUS * (far < 1.5 * near)
    for middle, extent in boxes:
        cost += 2000 * (np.abs(places - middle) < (size + extent) / 2 + 1).all(axis=1)
    return cost
