"""The picture that a chat program shows beside a link to a page: title, question, and attention weights.

The weights of nine words to nine words are drawn as a matrix and again as arcs between words. Each chapter has a matrix
that illustrates its subject. The same page always gives the same bytes.
"""

import io
import textwrap
from collections.abc import Callable

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Rectangle
from PIL import Image

from lessons_lib.attention.softmax import softmax as attention_softmax
from lessons_lib.page.palette import KEY, QUERY

WIDTH, HEIGHT = 1200, 630  # the size that Open Graph recommends
INK, QUIET = "#1b1f24", "#57606a"
WORDS, CELL, LEFT, TOP = 9, 44, 752, 178  # of the matrix, in pixels
ARCS_FROM = 0.45  # the least square root of a weight, relative to the largest, that has an arc
COLOURS = 96  # in the file: shades of two colours, and of grey
LINES = ((16, 42), (19, 36), (22, 31), (26, 26))  # characters in a line, and the font size at which they fit


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax of each row."""
    return attention_softmax(torch.as_tensor(scores, dtype=torch.float64)).numpy()


I, J = np.indices((WORDS, WORDS))  # noqa: E741
CAUSAL = np.where(J <= I, 0.0, -np.inf)
NOISE = np.random.default_rng(7).normal(size=(WORDS, WORDS))
FEW = softmax(2.2 * NOISE)  # each word attends to few words
STEPS = softmax(np.where((I + 1) % WORDS == J, 5, 0) + np.where((I + 4) % WORDS == J, 4, 0))
GRAPH = (abs(I - J) % (WORDS - 1) <= 1) | ((I + J) % 5 == 0)  # a ring with further edges

# By the last part of a chapter's path; a chapter that is not here gets ``ANY``.
ANY = softmax(1.8 * NOISE + CAUSAL)
WEIGHTS: dict[str, Callable[[], np.ndarray]] = {
    "why-attention": lambda: np.where(I == WORDS - 1, softmax(NOISE), 0.002),  # the last word attends to all words
    "information": lambda: softmax(np.sort(NOISE[0])[::-1] / 3.0 ** (I / 2 - 2)),  # rising entropy
    "geometry": lambda: softmax(4 * np.cos(2 * np.pi * (I - J) / WORDS)),  # by angle
    "scaling": lambda: softmax(np.where(I < WORDS // 2, 9, 1) * NOISE),  # without and with division by the root
    "matrix": lambda: STEPS,  # the steps of a random walk
    "masks": lambda: softmax(0.5 * NOISE + np.where((J <= I) & ((I - J < 4) | (J == 0)), 0, -np.inf)),
    "multi-head": lambda: 0.85 * ((I - J == 2) * 0.9 + (I - J == 5) * 0.9) + 0.004,  # two heads
    "positions": lambda: softmax(2.2 * np.cos((I - J) * 1.1) - 0.25 * abs(I - J)),  # by distance
    "dynamics": lambda: np.stack([np.linalg.matrix_power(FEW, i + 1)[0] for i in range(WORDS)]),  # layer by layer
    "block": lambda: softmax(CAUSAL + NOISE + 2.5 * (I == J)),  # mostly itself
    "train-gpt": lambda: softmax(CAUSAL + 0.5 * I * NOISE),  # sharper from row to row
    "patterns": lambda: softmax(0.3 * NOISE + CAUSAL + 3 * (I - J == 1) + 2 * (J == 0)),  # previous token, and a sink
    "modern": lambda: softmax(2 * NOISE[I, J // 3 * 3] + CAUSAL),  # keys in groups of three
    "complexity": lambda: np.where(J <= I, 0.1 + 0.8 * I / WORDS, 0.004),  # each word attends to one word more
    "sparse-and-linear": lambda: softmax(np.where((abs(I - J) < 2) | (J == 0) | (I == 0), NOISE, -np.inf)),
    "flash": lambda: softmax(NOISE) * (0.35 + ((I // 3 + J // 3) % 2)),  # by tiles
    "long-context": lambda: softmax(CAUSAL - 0.6 * (I - J)),  # less weight with distance
    "vision-and-language": lambda: softmax(-1.5 * (abs(I // 3 - J // 3) + abs(I % 3 - J % 3))),  # nine patches
    "sequences-graphs-decisions": lambda: softmax(np.where(GRAPH, NOISE, -np.inf)),  # neighbours in a graph
}


def draw_card(subject: str, question: str, below: str, name: str = "") -> bytes:
    """Return a PNG of ``WIDTH`` by ``HEIGHT``; ``name`` is the chapter whose matrix is drawn."""
    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.set_axis_off()
    axes.add_patch(Rectangle((0, 0), 14, HEIGHT, color=QUERY, linewidth=0))
    _weights(axes, WEIGHTS.get(name, lambda: ANY)())

    broad, size = next(
        (fit for fit in LINES if len(textwrap.wrap(question, fit[0], break_on_hyphens=False)) <= 4), LINES[-1]
    )
    say = {"family": "DejaVu Sans", "va": "center_baseline", "parse_math": False}
    axes.text(64, 92, subject, size=19, color=QUERY, weight="bold", **say)
    lines = textwrap.wrap(question, broad, break_on_hyphens=False)
    step = 1.75 * size  # in pixels
    top = 325 - step * (len(lines) - 1) / 2
    for i, line in enumerate(lines):
        axes.text(64, top + i * step, line, size=size, color=INK, weight="bold", **say)
    axes.text(64, 552, below, size=16, color=QUIET, **say)

    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    written = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


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
