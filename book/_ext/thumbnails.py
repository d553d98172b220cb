"""Small SVG drawings for the cards of chapters and explorers, by one function each.

They use the palette's four colours for query, key, value and output, and the text colour of the page, so that they fit
the light and the dark theme. Shapes that represent numbers are computed. A chapter or explorer without a drawing here
has a card without one.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets.birth import birth_record
from lessons_lib.page.widgets.budget import PRESETS, parts
from lessons_lib.page.widgets.cost import CostExplorer
from lessons_lib.page.widgets.drawing import element
from lessons_lib.page.widgets.gpt import GPTExplorer
from lessons_lib.page.widgets.merges import to_bytes, word_tokens
from lessons_lib.page.widgets.patches import PatchesExplorer
from lessons_lib.page.widgets.reader import PatternExplorer
from lessons_lib.page.widgets.routing import EXPERTS, RoutingExplorer
from lessons_lib.page.widgets.stretch import StretchExplorer
from lessons_lib.training.datasets import load

WIDTH, HEIGHT = 160, 90
QUERY, KEY, VALUE, OUTPUT, INK = (f"var(--{name})" for name in ("query", "key", "value", "output", "ink"))


def thumbnail(name: str) -> str:
    """Return the SVG of a chapter or an explorer, hidden from screen readers, or an empty string if there is none."""
    if name not in DRAWINGS:
        return ""
    return element("svg", DRAWINGS[name](), viewBox=f"0 0 {WIDTH} {HEIGHT}", aria_hidden="true", focusable="false")


def why_attention() -> str:
    """Draw information of the first word that fades in a chain of words, and the last word's attention to each."""
    places = [18 + 25 * i for i in range(6)]
    chain = _line([(places[0], 66), (places[-1], 66)], INK, 1.5)
    words = [_dot(x, 66, 7, VALUE, 0.6**i) for i, x in enumerate(places)]
    grounds = [_dot(x, 66, 7, "var(--plate)") for x in places]
    arcs = [_arc(x, places[-1], 56, 22 + 0.38 * (places[-1] - x), VALUE, 2) for x in places[:-1]]
    ring = element("circle", cx=places[-1], cy=66, r=8, fill="none", stroke=QUERY, stroke_width=2.5)
    return "".join([chain, *grounds, *words, *arcs, ring])


def retrieval() -> str:
    """Draw four keys on a circle, and a query between two of them."""
    winds = [(80, 12), (113, 45), (80, 78), (47, 45)]
    circle = element("circle", cx=80, cy=45, r=33, fill="none", stroke=INK, stroke_opacity=0.3)
    return circle + "".join(_dot(x, y, 6, KEY) for x, y in winds) + _arrow(80, 45, 101, 67, QUERY)


def steps() -> str:
    """Draw the scores of three keys, and below them their softmax."""
    scores = torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64)
    parts = []
    for j, (score, weight) in enumerate(zip(scores.tolist(), softmax(scores).tolist(), strict=True)):
        parts.append(_rectangle(44 + 28 * j, 36 - 9 * score, 16, 9 * score + 1, KEY))
        parts.append(_rectangle(44 + 28 * j, 82 - 36 * weight, 16, 36 * weight + 1, QUERY))
    return "".join(parts) + _line([(36, 37), (124, 37)], INK, 1) + _line([(36, 83), (124, 83)], INK, 1)


def information() -> str:
    """Draw the softmax of the same five scores at three temperatures."""
    scores = torch.tensor([2.0, 1.5, 0.5, 0.0, -1.0], dtype=torch.float64)
    bars = []
    for i, temperature in enumerate((0.2, 1.0, 5.0)):
        for j, weight in enumerate(softmax(scores, temperature=temperature).tolist()):
            bars.append(_rectangle(12 + 50 * i + 8 * j, 80 - 70 * weight, 6, 70 * weight, QUERY))
    return "".join(bars) + _line([(8, 80), (152, 80)], INK, 1)


def geometry() -> str:
    """Draw a query, a long key at a large angle, and a short key."""
    turn = f"M{50 + 24:g} 70A24 24 0 0 0 {50 + 24 * math.cos(0.9):.4g} {70 - 24 * math.sin(0.9):.4g}"
    angle = element("path", d=turn, fill="none", stroke=INK, stroke_opacity=0.4, stroke_width=1.5)
    plane = element("path", d="M50 70L112 2L160 2L160 88L34 88Z", fill=KEY, fill_opacity=0.1)
    return plane + angle + _arrow(50, 70, 138, 70, KEY) + _arrow(50, 70, 50, 42, KEY) + _arrow(50, 70, 92, 17, QUERY)


def scaling() -> str:
    """Draw distributions of scores that widen with the width of a head, and one divided by its root."""
    curves = [_bell(spread, KEY, 0.35 + 0.25 * i) for i, spread in enumerate((36, 22, 14))]
    return "".join(curves) + _bell(9, QUERY, 1) + _line([(8, 80), (152, 80)], INK, 1)


def matrix() -> str:
    """Draw powers of a row-stochastic matrix, whose rows become equal."""
    n = 5
    scores = [[2 * math.sin(3.1 * i + 1.7 * j * j) for j in range(n)] for i in range(n)]
    once = softmax(torch.tensor(scores, dtype=torch.float64))
    shown = [torch.linalg.matrix_power(once, steps).tolist() for steps in (1, 2, 8)]
    return "".join(
        _table(9 + 50 * i, 24, 8.4, [[a / 0.6 for a in row] for row in table]) for i, table in enumerate(shown)
    )


def walk() -> str:
    """Draw a random walk over words, with one layer for each row."""
    steps = [(5, 0), (2, 1), (3, 2), (0, 3)]
    spots = [_dot(22 + 23 * c, 12 + 22 * r, 3, INK, 0.3) for r, c in product(range(4), range(6))]
    path = [(22 + 23 * c, 12 + 22 * r) for c, r in steps]
    return "".join(spots) + _line(path, VALUE, 2.5) + "".join(_dot(x, y, 5, QUERY) for x, y in path)


def masks() -> str:
    """Draw a causal mask, and a sliding window with one global token."""
    causal = [[0.9 * (c <= r) for c in range(8)] for r in range(8)]
    window = [[0.9 * (r - 3 < c <= r or c == 0) for c in range(8)] for r in range(8)]
    return _table(10, 12, 8.2, causal) + _table(86, 12, 8.2, window)


def multi_head() -> str:
    """Draw a vector split into four heads with different patterns, and their concatenation."""
    before = [[float(c == max(r - 1, 0)) for c in range(4)] for r in range(4)]
    itself = [[float(c == r) for c in range(4)] for r in range(4)]
    first = [[float(c == 0) for c in range(4)] for r in range(4)]
    spread = [[(c <= r) / (r + 1) for c in range(4)] for r in range(4)]
    parts = [_rectangle(12, 6, 136, 7, INK, 0.4), _rectangle(12, 78, 136, 7, OUTPUT)]
    for i, table in enumerate((before, itself, first, spread)):
        middle = 27.5 + 35 * i
        parts += [_line([(middle, 15), (middle, 26)], INK, 1), _table(middle - 14.5, 30, 7.4, table)]
        parts.append(_line([(middle, 64), (middle, 75)], INK, 1))
    return "".join(parts)


def positions() -> str:
    """Draw four rotation frequencies as clocks, with hands for a query at position 20 and a key at position 12."""
    parts = []
    for i in range(4):
        x, speed = 24 + 37.5 * i, 10 ** (-i / 2)
        parts.append(
            element("circle", cx=x, cy=45, r=16, fill="none", stroke=INK, stroke_opacity=0.35, stroke_width=1.5)
        )
        for place, colour in ((12, KEY), (20, QUERY)):
            turn = place * speed
            parts.append(_line([(x, 45), (x + 14 * math.cos(turn), 45 - 14 * math.sin(turn))], colour, 3))
    return "".join(parts)


def dynamics() -> str:
    """Draw the losses of two runs, one of which diverges."""
    held = [(12 + 2.0 * i, 74 - 60 * math.exp(-i / 22)) for i in range(69)]
    broken = [(x, y - 5 - max(0.0, i - 30) ** 1.8 / 3) for i, (x, y) in enumerate(held[:44])]
    return _line([(8, 8), (8, 82), (152, 82)], INK, 1) + _line(broken, KEY, 2.5) + _line(held, QUERY, 2.5)


def collapse() -> str:
    """Draw nine tokens that converge to the same vector."""
    ways = [
        [(14 + 2.2 * i, 45 + 9 * k * math.exp(-i / 14)) for i in range(0, 61, 4)]
        for k in (-4, -3, -2, -1, 0, 1, 2, 3, 4)
    ]
    return "".join(_line(way, VALUE, 1.8) for way in ways)


def block() -> str:
    """Draw a residual stream to which attention and a feed-forward layer add."""
    parts = [_line([(8, 67), (152, 67)], INK, 1.5)]
    for x, colour, thick in ((30, QUERY, 5), (92, VALUE, 8)):
        parts += [
            _line([(x, 67), (x, 40)], INK, 1.5),
            _rectangle(x - 8, 18, 44, 22, colour),
            _line([(x + 28, 40), (x + 28, 64)], colour, 2.5),
            _rectangle(x + 28, 67 - thick / 2, 124 - x, thick, colour),
        ]
    return "".join(parts)


def patterns() -> str:
    """Draw an attention map with weight on the first token, the previous token, and a repeated passage."""
    n = 8
    weights = [[0.15 * (j <= i) for j in range(n)] for i in range(n)]
    for i in range(n):
        weights[i][0] = 0.45
        if i:
            weights[i][i - 1] = 0.7
        if i >= 4:
            weights[i][i - 3] = 1.0
    return _table(40, 5, 10, weights, QUERY)


def train_gpt() -> str:
    """Draw a loss that falls below the losses of n-gram models, towards the entropy."""
    falling = [(14 + 2 * i, 12 + 66 * (1 - 0.5 ** (i / 9))) for i in range(67)]
    lines = [_line([(14, y), (148, y)], colour, 1) for y, colour in ((44, KEY), (60, KEY), (80, INK))]
    return "".join(lines) + _line(falling, QUERY, 2.5)


def modern() -> str:
    """Draw a token that is routed to two of four experts, whose outputs are added."""
    parts = [_rectangle(10, 33, 10, 24, QUERY), element("circle", cx=140, cy=45, r=7, fill=OUTPUT)]
    for i, weight in enumerate((0.0, 3.5, 0.0, 2.0)):
        y = 8 + 20 * i
        if weight:
            parts += [_line([(20, 45), (62, y + 7)], QUERY, weight), _line([(98, y + 7), (133, 45)], VALUE, weight)]
        parts.append(_rectangle(62, y, 36, 14, VALUE if weight else INK, 1 if weight else 0.15))
    return "".join(parts)


def budget() -> str:
    """Draw the parameters of GPT-2 small as areas: embedding, attention, feed-forward layers."""
    of = parts(PRESETS["GPT-2 small"])
    total, x, drawn = sum(of.values()), 12.0, []
    for column, colours in (
        (("embedding",), (OUTPUT,)),
        (("queries", "keys"), (QUERY, KEY)),
        (("feedforward",), (VALUE,)),
    ):
        width, y = 136 * sum(of[name] for name in column) / total, 10.0
        for name, colour in zip(column, colours, strict=True):
            height = 70 * 136 * of[name] / total / width
            drawn.append(_rectangle(x, y, width - 1.5, height - 1.5, colour, 0.7))
            y += height
        x += width
    return "".join(drawn)


def complexity() -> str:
    """Draw the cost of a block for three sequence lengths: products with weights, and the square of pairs."""
    parts, x = [], 10.0
    for n in (1, 2, 3):
        high, wide = 21.0 * n, 2.4
        parts += [
            _rectangle(x, 80 - high, 6 * wide, high, VALUE, 0.7),
            _rectangle(x + 6 * wide + 1, 80 - high, 14 * n, high, KEY, 0.9),
        ]
        x += 6 * wide + 14 * n + 9
    return "".join(parts) + _line([(6, 80), (154, 80)], INK, 1)


def sparse_and_linear() -> str:
    """Draw a causal window with one global key, and the small state of linear attention."""
    n, side = 9, 8.4
    cells = [
        _rectangle(10 + side * j, 7 + side * i, side - 1, side - 1, KEY if j else QUERY, 0.9 if i - j < 3 else 0.6)
        for i, j in product(range(n), range(n))
        if j <= i and (i - j < 3 or j == 0)
    ]
    state = [
        _rectangle(114 + 10 * j, 30 + 10 * i, 9, 9, VALUE, 0.35 + 0.2 * ((2 * i + 3 * j) % 4))
        for i, j in product(range(3), range(3))
    ]
    return "".join([*cells, *state]) + _arrow(92, 45, 108, 45, INK)


def sequences_graphs_decisions() -> str:
    """Draw a node and its neighbours, with edges as wide as its weights, and a series with its forecast."""
    centre = (42.0, 46.0)
    ends = [(14.0, 20.0), (70.0, 16.0), (78.0, 52.0), (56.0, 78.0), (16.0, 72.0)]
    edges = [_line([centre, end], KEY, width) for end, width in zip(ends, (1, 5, 1.5, 3, 1), strict=True)]
    known = [(94 + 4.0 * i, 46 - 22 * math.sin(0.9 * i)) for i in range(9)]
    forecast = [(126 + 4.0 * i, 46 - 22 * math.sin(0.9 * (8 + i))) for i in range(7)]
    return "".join([
        *edges, *(_dot(x, y, 5, VALUE) for x, y in ends), _dot(*centre, 7, QUERY), _line(known, INK, 1.8),
        _line(forecast, OUTPUT, 2.6),
    ])  # fmt: skip


def cost() -> str:
    """Draw the decoding time of Llama 3 8B for batch sizes 1, 64 and 256: arithmetic above, memory traffic below."""
    bars = []
    for i, texts in enumerate((1, 64, 256)):
        took = CostExplorer(texts=texts).seconds()
        y, scale = 10 + 26 * i, 136 / 14.6e-3
        bars += [
            _rectangle(12, y, max(1.5, scale * (took["matrices"] + took["pairs"])), 8, VALUE, 0.8),
            _rectangle(12, y + 10, scale * took["weights"], 8, OUTPUT, 0.8),
            _rectangle(12 + scale * took["weights"], y + 10, scale * took["caches"], 8, QUERY, 0.8),
        ]
    return _line([(10, 6), (10, 84)], INK, 1.5) + "".join(bars)


def flash() -> str:
    """Draw a matrix in tiles, of which one is being computed."""
    parts = []
    for i in range(4):
        parts += [
            _rectangle(38, 20 + 17 * i, 6, 15, QUERY, 1 if i == 2 else 0.25),
            _rectangle(50 + 17 * i, 8, 15, 6, KEY, 1 if i == 1 else 0.25),
        ]
    tiles = [[1.0 if (i, j) == (2, 1) else 0.3 * (4 * i + j < 9) for j in range(4)] for i in range(4)]
    return "".join(parts) + _table(50, 20, 17, tiles, VALUE)


def long_context() -> str:
    """Draw five rotation frequencies as clocks: the angles seen in training, and the angle in a longer text."""
    parts = []
    for i, (shown, angle) in enumerate(((360, 250), (360, 80), (150, 330), (60, 200), (25, 95))):
        x, y, r = (30, 80, 130, 55, 105)[i], (26, 26, 26, 66, 66)[i], 17
        parts.append(element("circle", cx=x, cy=y, r=r, fill=INK, fill_opacity=0.08))
        ends = [(x + r * math.sin(math.radians(a)), y - r * math.cos(math.radians(a))) for a in range(0, shown + 1, 5)]
        path = "M" + "L".join(f"{px:.4g} {py:.4g}" for px, py in [(x, y), *ends]) + "Z"
        parts.append(element("path", d=path, fill=KEY, fill_opacity=0.5))
        hand = x + r * math.sin(math.radians(angle)), y - r * math.cos(math.radians(angle))
        parts.append(_line([(x, y), hand], QUERY if shown >= angle else VALUE, 2.5))
    return "".join(parts)


def vision_and_language() -> str:
    """Draw a digit in patches of two by two pixels, and the summary token, which attends to four of them."""
    image = load("digits").values[0] / 16
    parts, middles = [], {}
    for r, c in product(range(8), range(8)):
        x, y = 70 + 8 * c + 5 * (c // 2), 5 + 8 * r + 5 * (r // 2)
        parts.append(_rectangle(x, y, 8, 8, INK, 0.06 + 0.7 * image[r, c].item()))
        middles[r // 2, c // 2] = x, y
    looks = [_line([(26, 45), middles[place]], KEY, 2) for place in ((0, 1), (1, 1), (2, 2), (3, 1))]
    return "".join([*parts, *looks, _dot(26, 45, 8, QUERY)])


def gpt() -> str:
    """Draw a model's next-word probabilities, and below each bar the grammar's probability."""
    explorer = GPTExplorer("the king", query=1)
    p, exact = explorer.next_word(), explorer.grammar()
    bars = []
    for i, word in enumerate(p.argsort(descending=True)[:5].tolist()):
        bars.append(_rectangle(24, 6 + 17 * i, 190 * p[word].sqrt().item(), 6, QUERY))
        bars.append(_rectangle(24, 13 + 17 * i, 190 * exact[word].sqrt().item(), 4, KEY))
    return _line([(22, 4), (22, 88)], INK, 1.5) + "".join(bars)


def merges() -> str:
    """Draw the tokens of one word after more and more merges, each as long as its letters."""
    parts = []
    for row, n_merges in enumerate((0, 30, 100, 300)):
        x = 15.0
        for token in word_tokens(" independence", n_merges):
            width = 10.0 * len(to_bytes(token))
            parts.append(_rectangle(x, 8 + 20 * row, width - 2, 14, OUTPUT if row == 3 else VALUE))
            x += width
    return "".join(parts)


def birth() -> str:
    """Draw the accuracy of three runs during training, and the induction score in the first."""
    curves, parts = birth_record()["curves"], [_line([(12, 8), (12, 82), (152, 82)], INK, 1)]
    for seed, measure, colour, width in (
        ("2", "accuracy", QUERY, 1.2),
        ("1", "accuracy", QUERY, 1.2),
        ("0", "induction", KEY, 2.5),
        ("0", "accuracy", QUERY, 2.5),
    ):
        points = curves[seed][measure][::2]
        parts.append(
            _line([(12 + 140 * i / (len(points) - 1), 82 - 70 * y) for i, y in enumerate(points)], colour, width)
        )
    return "".join(parts)


def reader() -> str:
    """Draw the attention maps of eight heads, four of each layer."""
    parts = []
    for i, rows in enumerate(PatternExplorer().weights().tolist()):
        left, top = 8 + 38 * (i % 4), 8 + 40 * (i // 4)
        parts += [
            _rectangle(left + 6 * j, top + 6 * row, 5, 5, (QUERY, KEY)[i // 4], max(0.12, weight))
            for row, weights in enumerate(rows)
            for j, weight in enumerate(weights[: row + 1])
        ]
    return "".join(parts)


def routing() -> str:
    """Draw the words of a story, routed to eight experts that were trained without balancing."""
    experts = RoutingExplorer("none", story=4, words=9).routing().experts[:, 0].tolist()
    tokens = [experts.count(expert) for expert in range(EXPERTS)]
    favourite = tokens.index(max(tokens))
    drawn = []
    for i, expert in enumerate(experts):
        colour = KEY if expert == favourite else QUERY
        y, door = 10 + 9 * i, 10 + 10 * expert
        drawn += [_line([(42, y), (110, door)], colour, 1.5), _rectangle(22, y - 3, 18, 6, colour)]
    doors = [
        _rectangle(112, 6 + 10 * expert, 8 + 5 * many, 8, KEY if expert == favourite else QUERY, 1 if many else 0.25)
        for expert, many in enumerate(tokens)
    ]
    return "".join([*drawn, *doors])


def stretch() -> str:
    """Draw, for eight frequencies on a logarithmic scale, the angle seen in training, and the unseen part above it."""
    bars = []
    for i, clock in enumerate(StretchExplorer().clocks()):
        seen, reach = (72 + 11 * math.log2(angle / (2 * math.pi)) / 1.6 for angle in (clock.seen, clock.reach))
        x, top = 14 + 17.0 * i, min(reach, 72.0)
        bars.append(_rectangle(x, 84 - 0.8 * seen, 13, 0.8 * seen, QUERY, 0.5))
        if clock.is_new:
            bars.append(_rectangle(x, 84 - 0.8 * top, 13, 0.8 * (top - seen), KEY))
    return _line([(8, 84), (152, 84)], INK, 1) + "".join(bars)


def patches() -> str:
    """Draw a digit in sixteen patches, and the three patches with the largest weights for a query in head 2.1."""
    explorer, query = PatchesExplorer(size=2), 11
    place = [8.5 * i + 4 * (i // 2) for i in range(8)]
    corner = [(40 + place[2 * (i % 4)], 5 + place[2 * (i // 4)]) for i in range(16)]
    parts = [
        _rectangle(40 + place[c], 5 + place[r], 8, 8, INK, 0.08 + 0.92 * ink)
        for r, row in enumerate(explorer.image().tolist())
        for c, ink in enumerate(row)
    ]
    x, y = corner[query]
    for i in explorer.weights()[4, 1 + query, 1:].topk(3).indices.tolist():
        parts.append(_line([(x + 8, y + 8), (corner[i][0] + 8, corner[i][1] + 8)], KEY, 2))
        parts.append(_dot(corner[i][0] + 8, corner[i][1] + 8, 4, KEY))
    ring = {"fill": "none", "stroke": QUERY, "stroke_width": 2.5}
    return "".join(parts) + element("rect", x=x - 1, y=y - 1, width=18.5, height=18.5, rx=2, **ring)


DRAWINGS: dict[str, Callable[[], str]] = {
    "why-attention": why_attention,
    "information": information,
    "geometry": geometry,
    "scaling": scaling,
    "matrix": matrix,
    "masks": masks,
    "multi-head": multi_head,
    "positions": positions,
    "dynamics": dynamics,
    "block": block,
    "patterns": patterns,
    "modern": modern,
    "budget": budget,
    "train-gpt": train_gpt,
    "complexity": complexity,
    "sparse-and-linear": sparse_and_linear,
    "sequences-graphs-decisions": sequences_graphs_decisions,
    "cost": cost,
    "flash": flash,
    "long-context": long_context,
    "vision-and-language": vision_and_language,
    "steps": steps,
    "retrieval": retrieval,
    "walk": walk,
    "collapse": collapse,
    "gpt": gpt,
    "merges": merges,
    "birth": birth,
    "reader": reader,
    "routing": routing,
    "stretch": stretch,
    "patches": patches,
}


def _dot(x: float, y: float, r: float, colour: str, opacity: float = 1) -> str:
    return element("circle", cx=x, cy=y, r=r, fill=colour, fill_opacity=opacity)


def _rectangle(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> str:
    return element("rect", x=x, y=y, width=width, height=height, rx=1, fill=colour, fill_opacity=opacity)


def _table(left: float, top: float, side: float, weights: list[list[float]], colour: str = QUERY) -> str:
    """Draw a matrix of weights from 0 to 1, with a light background for empty cells."""
    places: dict[float, str] = {}
    for r, row in enumerate(weights):
        for c, weight in enumerate(row):
            cell = f"M{left + side * c:.4g} {top + side * r:.4g}h{side - 1:.3g}v{side - 1:.3g}h{1 - side:.3g}z"
            for opacity in {0.0, round(min(1.0, weight), 1)}:
                places[opacity] = places.get(opacity, "") + cell
    ground = element("path", d=places.pop(0.0), fill=INK, fill_opacity=0.08)
    return ground + "".join(element("path", d=d, fill=colour, fill_opacity=weight) for weight, d in places.items())


def _line(points: Sequence[tuple[float, float]], colour: str, width: float) -> str:
    path = "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in points)
    return element("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_linejoin="round")


def _arc(start: float, end: float, base: float, tall: float, colour: str, width: float) -> str:
    path = f"M{start} {base}C{start} {base - tall:.4g} {end} {base - tall:.4g} {end} {base}"
    return element("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_linecap="round")


def _arrow(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    length = math.hypot(to_x - x, to_y - y)
    ux, uy = (to_x - x) / length, (to_y - y) / length
    tip = f"M{to_x} {to_y}L{to_x - 10 * ux - 5 * uy:.4g} {to_y - 10 * uy + 5 * ux:.4g}"
    tip += f"L{to_x - 10 * ux + 5 * uy:.4g} {to_y - 10 * uy - 5 * ux:.4g}Z"
    return _line([(x, y), (to_x - 8 * ux, to_y - 8 * uy)], colour, 3) + element("path", d=tip, fill=colour)


def _bell(spread: float, colour: str, opacity: float) -> str:
    """Draw a normal density, with the same area for every spread."""
    points = [(80 + 2 * i, 80 - 620 / spread * math.exp(-((2 * i / spread) ** 2) / 2)) for i in range(-36, 37)]
    path = "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in points)
    return element("path", d=path, fill="none", stroke=colour, stroke_width=2.5, stroke_opacity=opacity)
