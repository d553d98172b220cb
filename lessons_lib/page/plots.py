"""Five kinds of plots, which take tensors and return Matplotlib ``Axes``.

A plot has no title, because the page shows a caption, and no function here calls ``show``. Colours are those of
:mod:`lessons_lib.page.palette`; curves and bars also differ in marker and hatching, for print in black and white. Up to
four curves are labelled at the line instead of in a legend. A figure has the size of a phone's screen, so that its text
stays legible there; the book enlarges it to the width of the column. ``THEME`` holds the Matplotlib settings that all
plots share. ``FONTS`` are those for text, which this module sets when it is imported, since Matplotlib reads them at
many later moments: the font of the book's figures, Inter, if its package ``fontpkg-inter`` is installed.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Bool, Num
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.patches import Polygon, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from torch import Tensor

from lessons_lib.page.labels import label_lines
from lessons_lib.page.language import font, gettext, language, mark
from lessons_lib.page.palette import COLOURS

THEME: dict[Any, Any] = {
    "figure.figsize": (4.4, 2.7),
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.35",
    "axes.axisbelow": True,
    "xtick.color": "0.35",
    "ytick.color": "0.35",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "grid.color": "0.88",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
}
# Without a font for the book's language the browser writes the text, in a font of the reader's.
WRITTEN: dict[Any, Any] = {"svg.fonttype": "none", "mathtext.fontset": "dejavusans"}
FONTS: dict[Any, Any] = {"font.family": "DejaVu Sans", "mathtext.fontset": "cm"}  # formulas as on the page
if (inter := find_spec("fontpkg_inter")) and inter.submodule_search_locations:
    fontManager.addfont(Path(inter.submodule_search_locations[0], "files", "Inter[opsz,wght].ttf"))
    FONTS["font.family"] = "Inter"
if language() != "en":
    if (other := font()) is not None:
        fontManager.addfont(other)  # first in the list: words beside a formula take no other
        FONTS["font.family"] = [FontProperties(fname=other).get_name(), FONTS["font.family"]]
    else:
        FONTS |= WRITTEN | {"font.family": [FONTS["font.family"], "sans-serif"]}
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
plt.rcParams.update(FONTS)

KEY, QUERY, WEIGHT = mark("key"), mark("query"), mark("weight")  # labels that the functions have by default
FIRST, SECOND = mark("first entry"), mark("second entry")
AT_THE_LINE = 4  # more curves than these are labelled in a legend
LETTERS = 32  # column labels with more letters than these together are slanted

_MARKERS = "os^Dv*x"
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++")


def heatmap(
    weights: Num[Tensor, "n m"],
    *,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    mask: Bool[Tensor, "n m"] | None = None,
    xlabel: str = KEY,
    ylabel: str = QUERY,
    unit: str = WEIGHT,
    levels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a heatmap of a matrix, one row per query; masked cells are hatched.

    The colour scale of attention weights starts at zero. Values of both signs, such as scores, get two colours that
    meet at zero. With ``levels`` the values are categories 0, 1, …, each with a darker shade than the one before.

    Args:
        weights: the matrix.
        query_labels: names of the rows, top to bottom.
        key_labels: names of the columns.
        mask: True where the query may attend to the key.
        xlabel: what the columns are.
        ylabel: what the rows are.
        unit: what the colour means, written beside the colour bar.
        levels: names of the categories 0, 1, ….
        ax: where to draw; a new figure when omitted.

    Raises:
        ValueError: if the matrix is empty or not finite where it is not masked, the labels or the mask do not fit it,
            or a value has no name in ``levels``.
    """
    values = _finite("weights", weights if mask is None else weights.masked_fill(~_fitting(mask, weights), 0.0), axes=2)
    _check_labels("query_labels", query_labels, values.shape[0])
    _check_labels("key_labels", key_labels, values.shape[1])
    if levels is not None and not np.isin(values, range(len(levels))).all():
        raise ValueError(f"weights must be whole numbers from 0 to {len(levels) - 1} to have a name in levels")
    signed = bool((values < 0).any())
    largest = float(np.abs(values).max()) or 1.0

    ax = _axes(ax)
    if levels is None:
        image = ax.imshow(values, cmap="RdBu_r" if signed else "Blues", vmin=-largest if signed else 0.0, vmax=largest)
    else:
        shades = ListedColormap(plt.get_cmap("Blues")(np.linspace(0, 1, len(levels))))
        image = ax.imshow(values, cmap=shades, vmin=-0.5, vmax=len(levels) - 0.5)
    if mask is not None:
        for row, column in (~mask).nonzero().tolist():
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="0.9", edgecolor="0.6", hatch="///"))
    _name_ticks(ax.xaxis, key_labels)
    _name_ticks(ax.yaxis, query_labels)
    ax.set(xlabel=gettext(xlabel), ylabel=gettext(ylabel))
    bar = ax.figure.colorbar(image, ax=ax, label=gettext(unit), shrink=0.9)
    if levels is not None:
        bar.set_ticks(range(len(levels)), labels=[gettext(level) for level in levels])
        bar.ax.tick_params(length=0)
    return ax


def bars(
    heights: Num[Tensor, "m"] | Mapping[str, Num[Tensor, "m"]],
    *,
    labels: Sequence[str] | None = None,
    xlabel: str = KEY,
    ylabel: str = WEIGHT,
    ax: Axes | None = None,
) -> Axes:
    """Draw a bar for each key; the entries of a mapping are drawn side by side, with a legend.

    Args:
        heights: the bars, or several sets of them by name.
        labels: names of the keys; 0, 1, … when omitted.
        xlabel: what the bars are.
        ylabel: what their height is.
        ax: where to draw; a new figure when omitted.

    Raises:
        ValueError: if there is no bar, a height is not finite, or the sets or labels differ in length.
    """
    sets = {name: _finite(f"heights[{name!r}]", row, axes=1) for name, row in _named(heights, "heights").items()}
    n_bars = _one_length("heights", sets)
    _check_labels("labels", labels, n_bars)
    width = 0.8 / len(sets)

    ax = _axes(ax)
    for i, (name, row) in enumerate(sets.items()):
        where = np.arange(n_bars) + (i - (len(sets) - 1) / 2) * width
        ax.bar(where, row, width, label=gettext(name), color=_pick(COLOURS, i), hatch=_pick(_HATCHES, i), ec="white")
    _name_ticks(ax.xaxis, labels)
    ax.set(xlabel=gettext(xlabel), ylabel=gettext(ylabel))
    ax.grid(axis="y")
    return _legend(ax, sets)


def lines(
    x: Num[Tensor, "points"],
    curves: Num[Tensor, "points"] | Mapping[str, Num[Tensor, "points"]],
    *,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
    logy: bool = False,
    marks: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw curves over the same points, with markers at all points or at evenly chosen ones.

    Up to four curves, and the marks with them, are labelled at the line where there is room when the figure is drawn;
    more curves get a legend.

    Args:
        x: the points.
        curves: the values there, or several sets of them by name.
        xlabel: what ``x`` is, with its unit.
        ylabel: what the values are, with their unit.
        logx: use a logarithmic axis for ``x``.
        logy: use a logarithmic axis for the values.
        marks: vertical dashed lines, by name.
        ax: where to draw; a new figure when omitted.

    Raises:
        ValueError: if there is no point, a value is not finite, a value on a logarithmic axis is not positive, or a
            curve does not have the length of ``x``.
    """
    points = _finite("x", x, axes=1)
    sets = {name: _finite(f"curves[{name!r}]", y, axes=1) for name, y in _named(curves, "curves").items()}
    if _one_length("curves", sets) != len(points):
        raise ValueError(f"curves must have one value for each of the {len(points)} points of x, got {_lengths(sets)}")
    for is_log, name, values in [(logx, "x", points), *((logy, f"curves[{key!r}]", y) for key, y in sets.items())]:
        if is_log and not bool((values > 0).all()):
            raise ValueError(f"{name} must be positive on a logarithmic axis, got {float(values.min())}")

    ax = _axes(ax)
    every = -(-len(points) // 24)
    for i, (name, y) in enumerate(sets.items()):
        look = {"color": _pick(COLOURS, i), "marker": _pick(_MARKERS, i), "markevery": (i * every // len(sets), every)}
        ax.plot(points, y, label=gettext(name), linewidth=1.3, markersize=3.5, **look)
    for i, (name, where) in enumerate((marks or {}).items()):
        ax.axvline(where, label=gettext(name), color="0.4", linestyle=("--", ":", "-.")[i % 3], linewidth=1)
    ax.set(xlabel=gettext(xlabel), ylabel=gettext(ylabel))
    ax.set(xscale="log" if logx else "linear", yscale="log" if logy else "linear")
    if logx:
        _logarithmic_ticks(ax.xaxis, points)
    if logy:
        _logarithmic_ticks(ax.yaxis, np.concatenate(list(sets.values())))
    ax.grid(visible=True)
    if len(sets) > AT_THE_LINE:
        return _legend(ax, sets)
    return label_lines(ax)


def histogram(
    samples: Num[Tensor, "draws"] | Mapping[str, Num[Tensor, "_"]],
    *,
    xlabel: str,
    bins: int = 60,
    density_curve: Callable[[Tensor], Tensor] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a histogram of samples as a density: the area under each histogram is one.

    Args:
        samples: the samples, or several sets of them by name; all share the same bins.
        xlabel: what was sampled, with its unit.
        bins: number of bins.
        density_curve: a density to compare with, drawn as a line over the range of the samples.
        ax: where to draw; a new figure when omitted.

    Raises:
        ValueError: if a set is empty or not finite, or ``bins`` is less than 1.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    sets = {name: _finite(f"samples[{name!r}]", draws, axes=1) for name, draws in _named(samples, "samples").items()}
    together = np.concatenate(list(sets.values()))
    low, high = float(together.min()), float(together.max())

    ax = _axes(ax)
    for i, (name, draws) in enumerate(sets.items()):
        ax.hist(
            draws, bins=bins, range=(low, high), density=True, label=gettext(name), color=_pick(COLOURS, i), alpha=0.6
        )
    if density_curve is not None:
        x = torch.linspace(low, high, 200, dtype=torch.float64)
        ax.plot(x.numpy(), density_curve(x).numpy(), color="black", linewidth=1.5)
    ax.set(xlabel=gettext(xlabel), ylabel=gettext("density"))
    return _legend(ax, sets)


def plane(
    points: Mapping[str, Num[Tensor, "_ 2"]],
    *,
    outline: Num[Tensor, "corners 2"] | None = None,
    cells: Callable[[Tensor], Tensor] | None = None,
    xlabel: str = FIRST,
    ylabel: str = SECOND,
    ax: Axes | None = None,
) -> Axes:
    """Draw sets of points in the plane; a set of at most seven is numbered from 1.

    Args:
        points: the points, by the name of the set.
        outline: corners of a polygon, in order.
        cells: a function from points ``(p, 2)`` to attention weights ``(p, m)`` over at most seven keys; each point of
            the background has the colours of the keys, mixed by its weights.
        xlabel: what the first entry is.
        ylabel: what the second entry is.
        ax: where to draw; a new figure when omitted.

    Raises:
        ValueError: if there is no set, or a set is empty, not finite, or not in the plane.
    """
    sets = {name: _finite(f"points[{name!r}]", xy, axes=2) for name, xy in _named(points, "points").items()}
    for name, xy in sets.items():
        if xy.shape[1] != 2:
            raise ValueError(f"points[{name!r}] must have two coordinates each, got {xy.shape[1]}")
    reach = 1.2 * max(float(np.abs(xy).max()) for xy in sets.values()) or 1.0

    ax = _axes(ax)
    if cells is not None:
        side = (torch.arange(160) + 0.5) / 80 * reach - reach
        weights = cells(torch.cartesian_prod(side, side)).detach().double().numpy()
        mixed = weights @ np.array([to_rgb(_pick(COLOURS, j)) for j in range(weights.shape[1])])
        image = mixed.reshape(160, 160, 3).swapaxes(0, 1)
        ax.imshow(image, origin="lower", extent=(-reach, reach, -reach, reach), alpha=0.45)
    if outline is not None:
        ax.add_patch(Polygon(_finite("outline", outline, axes=2), facecolor="0.93", edgecolor="0.4"))
    for i, (name, xy) in enumerate(sets.items()):
        few = len(xy) <= len(COLOURS)
        colours = [_pick(COLOURS, j) for j in range(len(xy))] if few else "0.3"
        look = {"s": 36, "zorder": 3} if few else {"s": 5, "zorder": 2}
        ax.scatter(*xy.T, label=gettext(name), c=colours, marker=_pick(_MARKERS, i), linewidths=0, **look)
        halo = [withStroke(linewidth=2, foreground="white")]
        for j, (x, y) in enumerate(xy if few else ()):
            ax.annotate(str(j + 1), (x, y), xytext=(5, 4), textcoords="offset points", path_effects=halo, zorder=4)
    ax.set(xlabel=gettext(xlabel), ylabel=gettext(ylabel))
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return _legend(ax, sets)


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    figure = plt.figure(figsize=THEME["figure.figsize"], layout="constrained")  # before the theme: a notebook's backend
    with plt.rc_context(THEME):  # sets itself up at the first figure, and leaving a context would undo that
        return figure.subplots()


def _legend(ax: Axes, named: Mapping[str, object]) -> Axes:
    if any(named):
        ax.legend(frameon=False)
    return ax


def _named(values: Tensor | Mapping[str, Tensor], argument: str) -> Mapping[str, Tensor]:
    if isinstance(values, Tensor):
        return {"": values}
    if not values:
        raise ValueError(f"{argument} must hold at least one set, got none")
    return values


def _finite(argument: str, values: Tensor, *, axes: int) -> np.ndarray:
    values = values.detach().cpu()
    if values.ndim != axes or values.numel() == 0:
        raise ValueError(f"{argument} must have {axes} axes and at least one value, got shape {tuple(values.shape)}")
    if not bool(values.isfinite().all()):
        raise ValueError(f"{argument} must be finite, got {int((~values.isfinite()).sum())} values that are not")
    return values.double().numpy()


def _fitting(mask: Tensor, weights: Tensor) -> Tensor:
    if mask.shape != weights.shape:
        raise ValueError(f"mask must have the shape of weights {tuple(weights.shape)}, got {tuple(mask.shape)}")
    return mask


def _lengths(sets: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {name: len(values) for name, values in sets.items()}


def _one_length(argument: str, sets: Mapping[str, np.ndarray]) -> int:
    if len(set(_lengths(sets).values())) > 1:
        raise ValueError(f"{argument} must all have the same length, got {_lengths(sets)}")
    return len(next(iter(sets.values())))


def _check_labels(argument: str, labels: Sequence[str] | None, wanted: int) -> None:
    if labels is not None and len(labels) != wanted:
        raise ValueError(f"{argument} must name all {wanted}, got {len(labels)} names")


def _name_ticks(axis: Axis, labels: Sequence[str] | None) -> None:
    if labels is None:
        axis.set_major_locator(MaxNLocator(integer=True))
        return
    labels = [gettext(label) for label in labels]
    longest = max(map(len, labels))
    slanted = isinstance(axis, XAxis) and len(labels) * (longest + 1) > LETTERS
    look = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axis.set_ticks(range(len(labels)), labels, **look)


def _logarithmic_ticks(axis: Axis, values: np.ndarray) -> None:
    """Label 1, 2, 5, 10 … if the axis shows less than three decades, else powers of ten."""
    if values.max() < 1000 * values.min():
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _pick(choices: Sequence[str], i: int) -> str:
    return choices[i % len(choices)]
