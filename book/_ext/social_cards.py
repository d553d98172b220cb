"""The picture that a chat program shows beside a link to a page: title, question, and a plot of the chapter.

A page that is not a chapter has attention weights instead: nine words to nine words as a matrix, and again as arcs
between words. The same page always gives the same bytes.

A picture with Chinese text needs a font of the system. Without one it is not drawn, and ``tools/build_language.py``
takes the picture of the English site.
"""

import io
import textwrap
from functools import cache
from pathlib import Path

import chinese_font
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Rectangle
from PIL import Image
from plot_svg import draw_plot, size

from lessons_lib.attention.softmax import softmax as attention_softmax
from lessons_lib.page.palette import KEY, QUERY

WIDTH, HEIGHT = 1200, 630  # the size that Open Graph recommends
INK, QUIET = "#1b1f24", "#57606a"
WORDS, CELL, LEFT, TOP = 9, 44, 752, 178  # of the matrix, in pixels
ARCS_FROM = 0.45  # the least square root of a weight, relative to the largest, that has an arc
COLOURS = 96  # in the file: shades of two colours, and of grey
LINES = ((16, 42), (19, 36), (22, 31), (26, 26))  # characters in a line, and the font size at which they fit
PLOT_WIDTH, PLOT_HEIGHT = 620, 500
NARROW = ((13, 36), (15, 31), (18, 26), (21, 22))  # beside a plot


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of each row."""
    return attention_softmax(torch.as_tensor(scores, dtype=torch.float64)).numpy()


I, J = np.indices((WORDS, WORDS))  # noqa: E741
NOISE = np.random.default_rng(7).normal(size=(WORDS, WORDS))
WEIGHTS = softmax(1.8 * NOISE + np.where(J <= I, 0.0, -np.inf))

# The plot on a chapter's picture, by the last part of the chapter's path: one that can be read at half its size, with
# few lines that are labelled. A chapter that is not here has its first plot.
PLOTS = {
    "why-attention": "fig-why-gradient-again",
    "information": "fig-information-counts",
    "geometry": "fig-geometry-angles",
    "scaling": "fig-entropy",
    "matrix": "fig-matrix-depth",
    "masks": "fig-masks-forgotten",
    "multi-head": "fig-rank",
    "positions": "fig-positions-length",
    "dynamics": "fig-dynamics-depth",
    "block": "fig-block-bends",
    "train-gpt": "fig-train-gpt-over",
    "patterns": "fig-patterns-six",
    "modern": "fig-modern-collapse",
    "complexity": "fig-complexity-share",
    "sparse-and-linear": "fig-sparse-and-linear-hold",
    "flash": "fig-traffic",
    "long-context": "fig-long-break",
    "vision-and-language": "fig-dates-attention",
    "sequences-graphs-decisions": "fig-applied-sea",
}


def draw_card(subject: str, question: str, below: str, plot: str = "") -> bytes:
    """Return a PNG of ``WIDTH`` by ``HEIGHT``; ``plot`` is an SVG of Matplotlib, drawn in place of the weights.

    It is empty if the text is Chinese and the machine has no font for it.
    """
    families = ["DejaVu Sans"]
    if chinese_font.is_chinese(subject + question + below):
        if not chinese_font.font():
            return b""
        families.append(chinese_font.font())  # for what the first one lacks
    figure, axes = _sheet(WIDTH, HEIGHT)

    points, lines = _wrapped(question, *((NARROW, 5) if plot else (LINES, 4)))
    say = {"family": families, "va": "center_baseline", "parse_math": False}
    axes.text(64, 92, subject, size=19, color=QUERY, weight="bold", **say)
    step = 1.75 * points  # in pixels
    top = 325 - step * (len(lines) - 1) / 2
    for i, line in enumerate(lines):
        axes.text(64, top + i * step, line, size=points, color=INK, weight="bold", **say)
    axes.text(64, 552, below, size=16, color=QUIET, **say)

    image = Image.fromarray(np.minimum(_background(weights=not plot), _pixels(figure)))  # both on white
    if plot:
        drawn = _plot(plot)
        image.paste(drawn, (WIDTH - 36 - drawn.width, (HEIGHT - drawn.height) // 2))
    written = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(written, "PNG", compress_level=8)  # 9 takes twice as long
    return written.getvalue()


def _sheet(wide: int, high: int) -> tuple[Figure, Axes]:
    """Return a figure of so many pixels, and axes over all of it that count pixels from the top left."""
    figure = Figure(figsize=(wide / 100, high / 100), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, wide), ylim=(high, 0))
    axes.set_axis_off()
    return figure, axes


def _pixels(figure: Figure) -> np.ndarray:
    """Return the pixels of a figure: rows, columns, and red, green and blue."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@cache
def _background(weights: bool) -> np.ndarray:
    """Return what all pictures share, with or without the attention weights."""
    figure, axes = _sheet(WIDTH, HEIGHT)
    axes.add_patch(Rectangle((0, 0), 14, HEIGHT, color=QUERY, linewidth=0))
    if weights:
        _weights(axes, WEIGHTS)
    return _pixels(figure)


@cache
def _plot(svg: str) -> Image.Image:
    """Return a picture of the plot, as large as there is room for it; several pages have the same."""
    scale = min(PLOT_WIDTH / size(svg)[0], PLOT_HEIGHT / size(svg)[1])
    wide, high = (round(scale * length) for length in size(svg))
    figure, axes = _sheet(wide, high)
    draw_plot(axes, svg, 0, 0, wide)
    return Image.fromarray(_pixels(figure))


def _wrapped(text: str, fits: tuple[tuple[int, int], ...], most: int) -> tuple[int, list[str]]:
    """Return the largest font size at which the text needs at most so many lines, and the lines."""
    if chinese_font.is_chinese(text):
        found = [(points, chinese_font.lines(text, broad)) for broad, points in fits]
        return next((each for each in found if len(each[1]) <= most), found[-1])
    for broad, points in fits:
        lines = textwrap.wrap(text, broad, break_on_hyphens=False, break_long_words=False)
        if len(lines) <= most and max(map(len, lines)) <= broad:
            return points, lines
    broad, points = fits[-1]
    return points, textwrap.wrap(text, broad, break_on_hyphens=False)


def write_card(path: Path, picture: bytes) -> None:
    """Write a picture, unless it could not be drawn."""
    if picture:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)


def _weights(axes, weights: np.ndarray) -> None:
    """Draw the matrix, and above its columns an arc for each large weight."""
    shares = np.sqrt(weights / weights.max())
    for i, j in np.ndindex(shares.shape):
        place = LEFT + j * CELL, TOP + i * CELL
        shade = blend(QUERY, 0.05 + 0.95 * shares[i, j])
        axes.add_patch(Rectangle(place, CELL - 4, CELL - 4, facecolor=shade, linewidth=0))
    middles = [LEFT + (j + 0.5) * CELL - 2 for j in range(WORDS)]
    for i, j in sorted(np.ndindex(shares.shape), key=lambda place: shares[place]):
        if i == j or shares[i, j] < ARCS_FROM:
            continue
        share = (shares[i, j] - ARCS_FROM) / (1 - ARCS_FROM)
        broad = abs(middles[i] - middles[j])
        size = broad, 2 * (20 + 100 * broad / (WORDS * CELL))
        pen = {"color": blend(KEY, 0.35 + 0.65 * share), "linewidth": 1 + 2.5 * share}
        axes.add_patch(Arc(((middles[i] + middles[j]) / 2, TOP - 14), *size, theta1=180, theta2=360, **pen))
    axes.plot(middles, [TOP - 12] * WORDS, "o", color=KEY, markersize=6)


def blend(colour: str, share: float) -> np.ndarray:
    """Return the colour mixed with white; ``share`` is the share of the colour."""
    return 1 - share * (1 - np.array(to_rgb(colour)))
