"""The book's drawings: what its formulas do, by the kit of :mod:`lessons_lib.sketch`.

Each is one call in a cell of its own, with the caption in the cell's metadata as a plot has it; the words for those who
do not see it come with the drawing. Query, key, value and output have the colours that plots and explorers give them.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Num
from torch import Tensor

from lessons_lib.sketch import Sketch
from lessons_lib.softmax import softmax


def attention_steps() -> Sketch:
    r"""From ``x`` to queries, keys and values, to scores, to weights, to the output, each with its shape.

    Vaswani et al., *Attention Is All You Need*, 2017, equation 1.
    """
    d = Sketch(
        402,
        252,
        alt="From x, of shape n by d_model, three arrows W_Q, W_K and W_V lead to the queries Q, n by d_k, the keys K, "
        "m by d_k, and the values V, m by d_v. Q and K give the scores S, n by m: Q times K transposed, divided by the "
        "square root of d_k. A softmax of each row makes them the weights A, n by m. The weights times the values are "
        "the output O, n by d_v.",
    )
    x = d.matrix(24, 95, 42, 62, "$X$", rows="$n$", columns="$d_model$")
    q = d.matrix(134, 24, 28, 52, "$Q$", rows="$n$", columns="$d_k$", role="query")
    k = d.matrix(134, 102, 28, 62, "$K$", rows="$m$", columns="$d_k$", role="key")
    v = d.matrix(134, 186, 34, 62, "$V$", rows="$m$", columns="$d_v$", role="value")
    for of, name, at in ((q, "$W_Q$", (80, 76)), (k, "$W_K$", (94, 119)), (v, "$W_V$", (78, 178))):
        d.arrow(x.right, (of.left[0] - 14, of.left[1]))
        d.text(at, name, small=True)
    s = d.matrix(226, 50, 62, 52, "$S$", rows="$n$", columns="$m$")
    a = d.matrix(338, 50, 62, 52, "$A$", columns="$m$")
    o = d.matrix(352, 190, 34, 52, "$O$", rows="$n$", columns="$d_v$", role="output")
    d.arrow(q.right, (s.x - 14, s.y + 14), role="query")
    d.arrow(k.right, (s.x - 8, s.y + s.height - 6), role="key")
    d.arrow(s.right, a.left)
    d.text((313, 63), "softmax", small=True)
    d.text((s.bottom[0], 120), r"$QK^\top/\sqrt d_k$", small=True)
    d.arrow(v.right, (o.left[0] - 14, v.right[1]), "$AV$", role="value")
    d.arrow(a.bottom, (o.top[0], o.top[1] - 15))
    return d


def shadow(query: Sequence[float], key: Sequence[float]) -> Sketch:
    r"""A dot product as a length times a shadow: :math:`q \cdot k = \lVert q\rVert\,\lVert k\rVert \cos\theta`.

    The shadow is the part of the key that lies along the query; it is negative where it falls behind the origin.

    Raises:
        ValueError: if one is not a vector of the plane, or has no length.
    """
    for name, vector in (("query", query), ("key", key)):
        if len(vector) != 2 or not math.hypot(*vector):
            raise ValueError(f"{name} must have two entries that are not both zero, got {vector!r}")
    length, product = math.hypot(*query), query[0] * key[0] + query[1] * key[1]
    cast = product / length
    foot = (cast * query[0] / length, cast * query[1] / length)
    points = [(0.0, 0.0), tuple(query), tuple(key), foot]
    left, bottom = (min(p[i] for p in points) for i in (0, 1))
    right, top = (max(p[i] for p in points) for i in (0, 1))
    scale = min(270 / max(right - left, 1e-9), 150 / max(top - bottom, 1e-9))
    margin = (402 - scale * (right - left)) / 2
    height = scale * (top - bottom) + 96

    def place(p: Sequence[float]) -> tuple[float, float]:
        return margin + scale * (p[0] - left), 28 + scale * (top - p[1])

    degrees = math.degrees(math.acos(max(-1.0, min(1.0, cast / math.hypot(*key)))))
    d = Sketch(
        402,
        height,
        alt=f"Two arrows from one point: a query of length {length:.3g} and a key of length {math.hypot(*key):.3g}, "
        f"{degrees:.0f} degrees apart. The key's shadow on the query's line has the length {cast:.3g}; times the "
        f"query's length it is the dot product, {product:.3g}.",
    )
    origin, q, k, f = place((0, 0)), place(query), place(key), place(foot)
    d.path(f"M{k[0]:.1f} {k[1]:.1f}L{f[0]:.1f} {f[1]:.1f}", dashed=True)
    if cast < 0:
        d.path(f"M{origin[0]:.1f} {origin[1]:.1f}L{f[0]:.1f} {f[1]:.1f}", dashed=True)
    ux, uy = query[0] / length, -query[1] / length  # along the query, on the page
    side = 1.0 if (k[0] - f[0]) * -uy + (k[1] - f[1]) * ux < 0 else -1.0  # away from the key
    off = (-uy * side * 7, ux * side * 7)
    d.path(f"M{origin[0] + off[0]:.1f} {origin[1] + off[1]:.1f}l{f[0] - origin[0]:.1f} {f[1] - origin[1]:.1f}",
           role="key", thick=True)  # fmt: skip
    d.arrow(origin, q, role="query", gap=0)
    d.arrow(origin, k, role="key", gap=0)
    d.text((q[0] + 12 * ux, q[1] + 12 * uy), "$q$")
    d.text((k[0], k[1] - 13), "$k$")
    factor = f"{cast:.3g}" if cast >= 0 else f"({cast:.3g})"
    d.text((201, height - 38), rf"shadow of $k$ on $q$: $\|k\| cos \theta = {cast:.3g}$")
    d.text((201, height - 14), rf"$q \cdot k = \|q\| \|k\| cos \theta = {length:.3g} \cdot {factor} = {product:.3g}$")
    return d


def masked_softmax(
    scores: Num[Tensor, "n m"],
    mask: Bool[Tensor, "n m"],
    *,
    query_labels: Sequence[str] = (),
    key_labels: Sequence[str] = (),
) -> Sketch:
    """A table of scores with the hidden ones covered, then the weights: the mask comes before the softmax.

    Args:
        scores: at most six by six of them, to be read as numbers.
        mask: True where the query may attend to the key.
        query_labels: names of the rows, or none.
        key_labels: names of the columns, or none.

    Raises:
        ValueError: if there are more than six rows or columns, or the mask or a label does not fit.
    """
    if scores.ndim != 2 or not all(0 < size <= 6 for size in scores.shape):
        raise ValueError(f"scores must have from 1 to 6 rows and columns, got shape {tuple(scores.shape)}")
    if mask.shape != scores.shape:
        raise ValueError(f"mask must have the shape of scores {tuple(scores.shape)}, got {tuple(mask.shape)}")
    n, m = scores.shape
    for name, labels, size in (("query_labels", query_labels, n), ("key_labels", key_labels, m)):
        if labels and len(labels) != size:
            raise ValueError(f"{name} must name all {size}, got {len(labels)} names")
    weights, may = softmax(scores.double(), mask).tolist(), mask.tolist()
    cell, margin = (min(46.0, 138 / m), 26.0), 8.0 * max(map(len, query_labels or [""])) + 4
    room = margin + 2 * m * cell[0] + 62
    seen = "; ".join(
        f"row {query_labels[i] if query_labels else i + 1} sees {sum(row)} of {m}" for i, row in enumerate(may)
    )
    d = Sketch(
        room + 2,
        n * cell[1] + 62,
        alt=f"A table of scores, {n} queries by {m} keys, in which forbidden squares are hatched: {seen}. An arrow "
        "named softmax leads to the table of weights: each row sums to one over the squares that it sees, the "
        "forbidden ones are zero.",
    )
    rows = zip(scores.tolist(), may, strict=True)
    shown = [[f"${x:.3g}$" if see else "" for x, see in zip(row, seen, strict=True)] for row, seen in rows]
    hidden = [[not see for see in row] for row in may]
    left = d.table(margin, 38, cell, shown, hidden=hidden)
    right = d.table(margin + m * cell[0] + 60, 38, cell, [[f"{p:.2f}" if p else "0" for p in row] for row in weights],
                    role="query", shades=[[0.6 * p for p in row] for row in weights])  # fmt: skip
    d.arrow(left.right, right.left, gap=5)
    d.text(((left.right[0] + right.left[0]) / 2, left.right[1] - 12), "softmax", small=True)
    for j, name in enumerate(key_labels):
        for table in (left, right):
            d.text((table.x + (j + 0.5) * cell[0], 27), name, small=True)
    for i, name in enumerate(query_labels):
        d.text((margin - 6, 38 + (i + 0.5) * cell[1]), name, anchor="end", small=True)
    d.text((left.top[0], 8), r"scores, $n \times m$")
    d.text((right.top[0], 8), r"weights, $n \times m$")
    d.text((left.bottom[0], left.bottom[1] + 14), "hatched: not seen", small=True)
    return d


def permissions(masks: Mapping[str, Bool[Tensor, "n m"]]) -> Sketch:
    """Masks side by side: a square for each pair of a query and a key, filled where the query may attend to the key.

    Args:
        masks: one to six of them by their names, True = may attend; at most twelve queries and twelve keys each.

    Raises:
        ValueError: if there are no masks or more than six, or one is not a Boolean table of that size.
    """
    if not 1 <= len(masks) <= 6:
        raise ValueError(f"masks must be between 1 and 6, got {len(masks)}")
    for name, mask in masks.items():
        if mask.dtype != torch.bool or mask.ndim != 2 or not all(1 <= size <= 12 for size in mask.shape):
            raise ValueError(
                f"mask {name!r} must be a Boolean table of 1 to 12 rows and columns, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}"
            )
    in_a_row = min(3, len(masks))
    panel, (tallest, widest) = 402 / in_a_row, (max(mask.shape[axis] for mask in masks.values()) for axis in (0, 1))
    cell = min(15.0, (panel - 16) / widest)
    height = 30 + tallest * cell
    told = (
        f"{name}, {'; '.join(f'query {i} sees {_places(row)}' for i, row in enumerate(mask.tolist()))}"
        for name, mask in masks.items()
    )
    d = Sketch(
        402,
        -(-len(masks) // in_a_row) * height,
        alt=f"Tables of queries by keys, filled where the query may attend to the key. {'. '.join(told)}.",
    )
    for place, (name, mask) in enumerate(masks.items()):
        n, m = mask.shape
        middle, top = (place % in_a_row + 0.5) * panel, place // in_a_row * height
        d.text((middle, top + 10), name)
        shades = (0.7 * mask.double()).tolist()
        d.table(middle - m * cell / 2, top + 21, (cell, cell), [[""] * m] * n, role="query", shades=shades)
    return d


def _places(row: Sequence[bool]) -> str:
    """Which places of a row are true, neighbours together: ``"0 to 2, 5"``."""
    seen = [j for j, may in enumerate(row) if may]
    firsts = [j for j in seen if j - 1 not in seen]
    lasts = [j for j in seen if j + 1 not in seen]
    return ", ".join(f"{a} to {b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True)) or "none"


def recurrence_and_lookup(words: Sequence[str] = ("the", "cat", "that", "slept", "ran")) -> Sketch:
    """One state handed from word to word, against a last word that looks at all the others itself.

    Raises:
        ValueError: if there are not between two and six words.
    """
    n = len(words)
    if not 2 <= n <= 6:
        raise ValueError(f"words must be between 2 and 6, got {n}")
    step, last = 400 / n, n - 1
    d = Sketch(
        402,
        262,
        alt=f"Above, recurrence: {n} words, each read by a state, and each state handed on to the next; what the first "
        f"word said reaches the last state through {last} arrows. Below, look-up: the last word has an arrow to every "
        "word, so that each is one arrow away.",
    )
    middles = [1 + step * (i + 0.5) for i in range(n)]
    d.text((1, 8), f"recurrence: {last} steps from the first word to the last", anchor="start")
    states = [d.circle((x, 52), 15, f"$h_{i + 1}$", role="value") for i, x in enumerate(middles)]
    for i, x in enumerate(middles):
        d.text((x, 106), words[i])
        d.arrow((x, 97), states[i].bottom)
        if i:
            d.arrow(states[i - 1].right, states[i].left)
    d.text((1, 140), "look-up: one step from any word", anchor="start")
    for i, x in enumerate(middles):
        d.text((x, 240), words[i])
        if i < last:
            d.arrow((middles[last], 228), (x, 228), bend=44 + 76 * (last - i) / last, role="query")
    loop = middles[last]
    d.path(f"M{loop + 5:.1f} 228C{loop + 22:.1f} 200 {loop - 22:.1f} 200 {loop - 4:.1f} 226", role="query")
    return d


def split_heads(n_heads: int = 4) -> Sketch:
    """A matrix of queries cut into slices, one for each head; the outputs are laid side by side and mixed.

    Raises:
        ValueError: if there are not between two and six heads.
    """
    if not 2 <= n_heads <= 6:
        raise ValueError(f"n_heads must be between 2 and 6, got {n_heads}")
    d = Sketch(
        402,
        64 + 36 * n_heads,
        alt=f"A matrix of shape n by h times d_k is cut into {n_heads} slices of shape n by d_k, one for each head. "
        "Each head attends by itself and gives a slice of shape n by d_v; the slices side by side are a matrix of "
        "shape n by h times d_v, which W_O mixes into n by d_model.",
    )
    middle, tall, width = 36 + 18.0 * n_heads, 54.0, 72 / n_heads
    whole = d.matrix(
        18, middle - tall / 2, 72, tall, rows="$n$", columns=r"$h \cdot d_k$", role="query", grid=(1, n_heads)
    )
    joined = d.matrix(246, middle - tall / 2, 72, tall, columns=r"$h \cdot d_v$", role="output", grid=(1, n_heads))
    end = d.matrix(356, middle - tall / 2, 42, tall, columns="$d_model$")
    for i in range(n_heads):
        y = 36 + 36 * i
        head = d.box(130, y + 4, 72, 26, f"head {i + 1}")
        d.arrow((whole.x + (i + 0.5) * width, whole.y + tall / 2), head.left, role="query", gap=2)
        d.arrow(head.right, (joined.x + (i + 0.5) * width, joined.y + tall / 2), role="output", gap=2)
    d.arrow(joined.right, end.left)
    d.text(((joined.right[0] + end.left[0]) / 2, middle - 12), "$W_O$", small=True)
    return d


def grouped_heads(n_heads: int = 8, n_kv_heads: Sequence[int] = (8, 2, 1)) -> Sketch:
    """Which query heads share which keys and values: multi-head, grouped and multi-query attention side by side.

    Consecutive query heads share a pair. Ainslie et al., *GQA*, 2023, figure 2.

    Raises:
        ValueError: if a number of key/value heads does not divide ``n_heads``, or the panels are not one to three.
    """
    if not 1 <= len(n_kv_heads) <= 3 or not 1 <= n_heads <= 8:
        raise ValueError(f"one to three panels of at most 8 heads fit, got {len(n_kv_heads)} of {n_heads}")
    for g in n_kv_heads:
        if g < 1 or n_heads % g:
            raise ValueError(f"n_kv_heads must divide n_heads {n_heads}, got {g}")
    told = "; ".join(f"with {g} key and value heads, {n_heads // g} query heads share each" for g in n_kv_heads)
    d = Sketch(
        402, 158, alt=f"{len(n_kv_heads)} panels of {n_heads} query heads in a row, keys and values below: {told}."
    )
    panel = 402 / len(n_kv_heads)
    for i, g in enumerate(n_kv_heads):
        left, step = i * panel + 4, (panel - 10) / n_heads
        name = "multi-head" if g == n_heads else "multi-query" if g == 1 else "grouped"
        d.text((left + (panel - 10) / 2, 9), name)
        queries = [d.box(left + j * step + 1, 28, step - 3, 24, role="query") for j in range(n_heads)]
        for j in range(g):
            size = n_heads // g
            middle = left + (j + 0.5) * size * step - 0.5
            wide = min(size * step - 3, 30.0)
            key = d.box(middle - wide / 2, 92, wide, 18, role="key")
            d.box(middle - wide / 2, 112, wide, 18, role="value")
            for query in queries[j * size : (j + 1) * size]:
                (x0, y0), (x1, y1) = query.bottom, key.top
                d.path(f"M{x0:.1f} {y0}L{x1:.1f} {y1}")
        d.text((left + (panel - 10) / 2, 145), f"$g = {g}$")
    return d


def rotated_pair(positions: Sequence[int] = (0, 1, 2), *, angle: float = 50.0, start: float = 20.0) -> Sketch:
    """Two entries of a query as an arrow, turned by the same ``angle`` (degrees) for each position.

    Su et al., *RoFormer*, 2021, section 3.

    Raises:
        ValueError: if there are not between one and four positions.
    """
    if not 1 <= len(positions) <= 4:
        raise ValueError(f"positions must be between 1 and 4, got {len(positions)}")
    d = Sketch(
        402,
        236,
        alt=f"A circle with the first entry of a pair to the right and the second upwards, and the same arrow at "
        f"positions {', '.join(map(str, positions))}: for each position it is turned {angle:g} degrees further, and "
        "its length stays.",
    )
    middle, radius = (201.0, 118.0), 84.0
    d.circle(middle, radius)
    d.arrow((middle[0] - 100, middle[1]), (middle[0] + 106, middle[1]), gap=0)
    d.arrow((middle[0], middle[1] + 100), (middle[0], middle[1] - 104), gap=0)
    d.text((middle[0] + 124, middle[1]), "$x_1$")
    d.text((middle[0] - 14, middle[1] - 104), "$x_2$")
    for p in positions:
        turned = math.radians(start + p * angle)
        along = math.cos(turned), -math.sin(turned)
        d.arrow(middle, (middle[0] + radius * along[0], middle[1] + radius * along[1]), role="query", gap=0)
        anchor = "start" if along[0] > 0.2 else "end" if along[0] < -0.2 else "middle"
        d.text((middle[0] + (radius + 10) * along[0], middle[1] + (radius + 14) * along[1]), f"position ${p}$",
               anchor=anchor)  # fmt: skip
    return d


def two_memories(fast: str = "small and fast", slow: str = "large and slow") -> Sketch:
    """The two memories of a GPU: tiles go up to where the arithmetic is, and only the output comes down.

    Args:
        fast: words for the memory on the chip, a size for instance.
        slow: words for the memory beside it.
    """
    d = Sketch(
        402,
        214,
        alt=f"Above, the chip with its own memory, {fast}: a tile of Q, a tile of K and V, running maxima and sums, "
        f"and the arithmetic. Below, the main memory, {slow}: Q, K, V and O. Tiles of Q, K and V go up; O comes down.",
    )
    chip = d.box(41, 24, 320, 64)
    memory = d.box(1, 130, 400, 60)
    d.text((201, 10), f"on the chip: {fast}")
    d.text((201, 204), f"main memory: {slow}")
    for i, (name, role) in enumerate((("Q", "query"), ("K", "key"), ("V", "value"))):
        tile = d.matrix(60 + 56 * i, chip.y + 17, 40, 30, f"${name}_{'ijj'[i]}$", role=role)
        whole = d.matrix(24 + 88 * i, memory.y + 13, 70, 34, f"${name}$", role=role)
        d.arrow(whole.top, tile.bottom, role=role)
    d.text((284, chip.middle[1] - 9), "scores, softmax,", small=True)
    d.text((284, chip.middle[1] + 9), "running sums", small=True)
    out = d.matrix(308, memory.y + 13, 70, 34, "$O$", role="output")
    d.arrow((out.top[0], chip.middle[1] + 20), out.top, role="output")
    return d


def running_softmax(scores: Sequence[float] = (1, 2, 0.5, 1.5, 3, 0), tile: int = 2) -> Sketch:
    r"""A row of scores in tiles, and under each tile what is kept of the row so far: :math:`\mu`, :math:`z`, :math:`u`.

    On the arrow from one to the next stands the factor :math:`c = e^{\mu - \mu'}`. Milakov and Gimelshein, *Online
    normalizer calculation for softmax*, 2018, algorithm 3.

    Args:
        scores: the row, two to four tiles of it, at most eight numbers.
        tile: scores in a tile.

    Raises:
        ValueError: if the row is not two to four whole tiles, or longer.
    """
    n = len(scores) // tile if tile >= 1 and len(scores) % tile == 0 and len(scores) <= 8 else 0
    if not 2 <= n <= 4:
        raise ValueError(f"scores must be at most 8, in two to four whole tiles, got {len(scores)} in tiles of {tile}")
    step, wide = 402 / n, min(92.0, 402 / n - 40)
    peak, total, told = -math.inf, 0.0, []
    states: list[tuple[float, float, float]] = []
    for i in range(n):
        own = scores[i * tile : (i + 1) * tile]
        top = max(peak, *own)
        shrink = math.exp(peak - top)
        total = total * shrink + sum(math.exp(x - top) for x in own)
        peak = top
        states.append((peak, total, shrink))
        told.append(f"{', '.join(f'{x:g}' for x in own)}: maximum {peak:g}, z {total:.2f}")
    factors = ", ".join(f"{shrink:.2f}" for _, _, shrink in states[1:])
    d = Sketch(
        402,
        176,
        alt=f"A row of {len(scores)} scores in {n} tiles. Under each tile a box with what is kept after it: the "
        f"maximum, z and u. {'; '.join(told)}. From box to box an arrow with the factor c: {factors}. An arrow leads "
        "from the last box to the output, u divided by z.",
    )
    boxes = []
    for i, (mu, z, _) in enumerate(states):
        left = i * step + 4
        row = [f"${x:.2g}$" for x in scores[i * tile : (i + 1) * tile]]
        cells = d.table(left, 20, (wide / tile, 24), [row], role="query", shades=[[0.3] * tile])
        d.text((cells.top[0], 8), f"tile {i + 1}", small=True)
        box = d.box(left, 72, wide, 62)
        d.arrow(cells.bottom, box.top)
        for j, said in enumerate((f"$μ = {mu:.3g}$", f"$z = {z:.2f}$", "$u$")):
            d.text((box.middle[0], box.y + 13 + 18 * j), said, small=True)
        boxes.append(box)
    for (one, other), (_, _, shrink) in zip(pairwise(boxes), states[1:], strict=True):
        y = one.y + 40  # the factor stands below the arrow, beside the short u and not beside z
        d.arrow((one.right[0], y), (other.left[0], y), f"\u00d7{shrink:.2f}", gap=2, below=True)
    last = boxes[-1]
    d.arrow(last.bottom, (last.bottom[0], 160), role="output", gap=1)
    d.text((last.bottom[0], 168), r"$o = u/z$", small=True)
    return d


# What stays on the chip while the other side passes by; whether each row or column has a program of its own; and words.
_WALKS = {
    "forward, 2022": ("key", False, "one program, column by column", "sums go out and in at each tile"),
    "forward, 2023": ("query", True, "a program for each row", "its output goes out once"),
    "backward, 2023": ("key", True, "a program for each column", "adds to the queries' gradients"),
    "keys and values, here": ("key", True, "a program for each column", "its gradients go out once"),
    "queries, here": ("query", True, "a program for each row", "its gradients go out once"),
}


def tile_walks(*names: str) -> Sketch:
    """In which order kernels visit the tiles of scores: by rows or by columns, in one program or in many.

    A row is a block of queries, a column a tile of keys and values. Dao et al., *FlashAttention*, 2022, algorithm 1;
    Dao, *FlashAttention-2*, 2023, figure 2; *here* are the kernels of ``lessons_lib/flash/triton_kernels.py``.

    Args:
        names: one to four of ``"forward, 2022"``, ``"forward, 2023"``, ``"backward, 2023"``, ``"keys and values,
            here"`` and ``"queries, here"``.

    Raises:
        ValueError: if there are none, more than four, or one is another.
    """
    if not 1 <= len(names) <= 4 or not set(names) <= set(_WALKS):
        raise ValueError(f"names must be one to four of {', '.join(map(repr, _WALKS))}, got {names}")
    size, cell, rows = 4, 24.0, -(-len(names) // 2)
    told = []
    for name in names:
        stays, apart, who, what = _WALKS[name]
        told.append(f"{name}: the arrows run along the {'columns' if stays == 'key' else 'rows'}; {who}, {what}")
    d = Sketch(
        402,
        186 * rows,
        alt="Squares of four by four tiles, a row for each block of queries and a column for each tile of keys and "
        f"values. {'. '.join(told)}.",
    )
    for place, name in enumerate(names):
        stays, apart, who, what = _WALKS[name]
        alone = len(names) % 2 and place == len(names) - 1
        left, top = (100.5 if alone else place % 2 * 201.0), 186.0 * (place // 2)
        x, y = left + 52, top + 44
        shades = [[0.4 if (i if stays == "query" else j) % 2 == 0 or not apart else 0.1 for j in range(size)]
                  for i in range(size)]  # fmt: skip
        d.text((left + 100, top + 8), name)
        d.table(x, y, (cell, cell), [[""] * size] * size, role=stays, shades=shades)
        for i in range(size):
            d.matrix(x - 20, y + i * cell + 3, 14, cell - 6, role="query")
            d.matrix(x + i * cell + 3, y - 20, cell - 6, 14, role="key")
            at = (i + 0.5) * cell
            if stays == "query":
                d.arrow((x, y + at), (x + size * cell, y + at), role="query")
            else:
                d.arrow((x + at, y), (x + at, y + size * cell), role="key")
        d.text((x - 36, y + size * cell / 2), "$Q$", small=True)
        d.text((x + size * cell + 20, y - 13), "$K, V$", small=True)
        d.text((left + 100, y + size * cell + 14), who, small=True)
        d.text((left + 100, y + size * cell + 29), what, small=True)
    return d


def gpu_levels(
    *,
    registers: str = "256 KiB",
    shared: str = "228 KiB",
    cache: str = "50 MiB",
    memory: str = "80 GiB",
    multiprocessors: int = 132,
) -> Sketch:
    """Where a program lives: a grid of them, handed to multiprocessors, over the levels of memory.

    The sizes are an H100's: Shah et al., *FlashAttention-3*, 2024, table 1, and footnote 5 for the multiprocessors.
    """
    d = Sketch(
        402,
        266,
        alt="On the left a column of numbered programs, the grid. An arrow leads from the first of them to one of "
        f"{multiprocessors} multiprocessors; two are drawn. In each a row of warps, with registers, {registers}, for "
        f"scores and running sums, above shared memory, {shared}, for tiles of K and V. Below both a cache for all, "
        f"{cache}, and at the bottom main memory, {memory}, with Q, K, V and O.",
    )
    d.text((30, 8), "grid", small=True)
    programs = [d.box(8, 22 + 27.0 * i, 44, 21, f"{i}") for i in range(4)]
    d.text((30, 140), "\u22ee")
    for i, left in enumerate((82.0, 246.0)):
        chip = d.box(left, 22, 155, 142)
        d.text((chip.top[0], 9), "multiprocessor" if i == 0 else f"one of {multiprocessors}", small=True)
        for w in range(4):
            d.matrix(left + 10 + 35 * w, 32, 30, 20, "", role="query")
        d.text((chip.top[0], 63), "warps; registers,", small=True)
        d.text((chip.top[0], 79), f"{registers}: scores, sums", small=True)
        inner = d.matrix(left + 8, 96, 139, 60, role="key")
        d.text((inner.middle[0], 116), f"shared, {shared}:", small=True)
        d.text((inner.middle[0], 135), "tiles of $K$, $V$", small=True)
        d.arrow((chip.bottom[0] - 8, 184), (chip.bottom[0] - 8, 164), gap=1)
        d.arrow((chip.bottom[0] + 8, 164), (chip.bottom[0] + 8, 184), role="output", gap=1)
    d.arrow(programs[0].right, (82, programs[0].right[1]), gap=2)
    d.box(82, 184, 319, 26, f"cache of all, {cache}")
    d.arrow((233, 232), (233, 210), gap=1)
    d.arrow((249, 210), (249, 232), role="output", gap=1)
    d.box(82, 232, 319, 30, f"main memory, {memory}: $Q$, $K$, $V$, $O$")
    return d


def ping_pong(share: float = 0.5) -> Sketch:
    """Products and exponentials in turns, and two groups of warps that take turns at the products.

    Shah et al., *FlashAttention-3*, 2024, figure 1.

    Args:
        share: how long a tile's exponentials take, in times of its products.

    Raises:
        ValueError: unless ``share`` is between 0.2 and 1; beyond 1 products would wait for exponentials.
    """
    if not 0.2 <= share <= 1:
        raise ValueError(f"share must be between 0.2 and 1, got {share}")
    unit, left, height = 318 / (4 + share), 80.0, 24.0
    alone = math.floor((4 + share + 1e-9) / (1 + share))
    d = Sketch(
        402,
        188,
        alt="Three rows of bars against time. In the first, one group takes turns: products, then exponentials, "
        f"{share:.2g} times as long, {alone} times. Below are two groups: while the first takes exponentials the "
        f"second multiplies, and the other way round: four bars of products in the time of {alone} in the first row.",
    )

    def bars(y: float, name: str, start: float, stop: float, step: float) -> None:
        d.text((1, y + height / 2), name, anchor="start", small=True)
        at = start
        while at + 1 + share <= stop + 1e-9:
            d.box(left + at * unit, y, unit, height, "products", role="query")
            d.box(left + (at + 1) * unit, y, share * unit, height, "exp" if share > 0.4 else "", role="value")
            at += step

    d.text((left, 8), "in turns", anchor="start")
    bars(20, "one group", 0, 4 + share, 1 + share)
    d.text((left, 74), "ping-pong", anchor="start")
    bars(86, "group 1", 0, 4 + share, 2)
    bars(118, "group 2", 1, 4 + share, 2)
    d.arrow((left, 162), (398, 162), gap=0)
    d.text((left, 176), "time", anchor="start", small=True)
    return d


def residual_stream() -> Sketch:
    """One word's vector through a block: attention and feed-forward read it through a norm and add to it.

    Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021, section "High-Level Architecture".
    """
    d = Sketch(
        402,
        222,
        alt="A thick line from left to right is the vector of one word, from its embedding to the output matrix. "
        "Twice a branch leaves it, goes up through a norm and a layer, and comes back into a plus sign on the line: "
        "first attention, to which arrows also lead from the same line of the other words, dashed at the top; then "
        "the feed-forward layer, which sees this word alone.",
    )
    line, others = 196.0, 34.0
    d.text((1, 10), "the other words' streams", anchor="start", small=True)
    d.path(f"M1 {others}H401", dashed=True)
    d.path(f"M1 {line}H138M158 {line}H328M348 {line}H401", thick=True)
    d.text((1, line + 16), "embedding", anchor="start", small=True)
    d.text((401, line + 16), "output matrix", anchor="end", small=True)
    for left, name, role in ((38.0, "attention", "query"), (228.0, "feed-forward", "value")):
        norm = d.box(left, 134, 46, 26, "norm")
        layer = d.box(left, 76, 132, 30, name, role=role)
        plus = d.circle((left + 110, line), 10, "+")
        d.arrow((norm.middle[0], line), norm.bottom, gap=1)
        d.arrow(norm.top, (norm.top[0], layer.y + layer.height))
        d.arrow((plus.middle[0], layer.y + layer.height), plus.top, role=role)
        d.text((plus.middle[0] + 8, 142), "adds", anchor="start", small=True)
    for x in (64.0, 104.0, 144.0):
        d.arrow((x, others), (x, 76), role="key")
    d.text((160, 56), "keys and values", anchor="start", small=True)
    return d


def encoder_and_decoder() -> Sketch:
    """A block of the 2017 encoder beside one of its decoder, which looks at what the encoder has made of the source.

    Vaswani et al., *Attention Is All You Need*, 2017, figure 1.
    """
    d = Sketch(
        402,
        252,
        alt="Two columns. On the left the encoder's block, from the source upwards: self-attention in which every word "
        "sees every word, then a feed-forward layer. On the right the decoder's block, from the target upwards: "
        "self-attention with the causal mask, then cross-attention, then a feed-forward layer. An arrow from the "
        "encoder's top to the cross-attention carries keys and values; the queries come from the target.",
    )
    wide = 138.0
    columns = (
        (16.0, "source", ("self-attention", "feed-forward")),
        (246.0, "target", ("self-attention, causal", "cross-attention", "feed-forward")),
    )
    tops = []
    for left, name, layers in columns:
        middle = left + wide / 2
        d.text((middle, 242), name)
        below = (middle, 233.0)
        boxes = []
        for i, layer in enumerate(layers):
            box = d.box(left, 184 - 66 * i, wide, 30, layer, role="value" if layer == "feed-forward" else "query")
            d.arrow(below, box.bottom, role="query" if layer == "cross-attention" else "")
            below, boxes = box.top, [*boxes, box]
        tops.append(boxes)
        if name == "target":
            d.arrow(below, (middle, 18))
    encoded, cross = tops[0][-1], tops[1][1]
    d.text((encoded.middle[0], 88), "the source, encoded", small=True)
    d.arrow(encoded.top, (encoded.middle[0], 98), gap=1)
    d.path(f"M{encoded.middle[0] + 66:.0f} 88H200V{cross.middle[1]:.0f}H228", role="key")
    d.arrow((222, cross.middle[1]), cross.left, role="key", gap=2)
    d.text((204, 76), "keys, values", small=True)
    d.text((cross.middle[0] + 8, cross.y + 47), "queries", anchor="start", small=True)
    d.text((315, 8), "next word", small=True)
    return d


def induction_circuit(words: Sequence[str] = ("the", "cat", "sat", "the", "cat")) -> Sketch:
    """Two layers that say what followed: a note at each word of who stood before it, and a last word that looks it up.

    Raises:
        ValueError: unless there are five words, the last of which is the second.
    """
    if len(words) != 5 or words[4] != words[1]:
        raise ValueError(f"words must be five, the last one the second again, got {tuple(words)}")
    d = Sketch(
        402,
        236,
        alt=f"Five words in a row, {', '.join(words)}. In layer 1 each word gets a note of the word before it: the "
        f"third word, {words[2]}, has the note {words[1]}. In layer 2 an arrow leads from the last word, {words[4]}, "
        f"to the note at {words[2]}, since note and word agree; what is there, {words[2]}, is the next word.",
    )
    wide, left = 62.0, 44.0
    middles = [left + 36 + 72 * i for i in range(len(words))]
    d.text((1, 211), "stream", anchor="start", small=True)
    d.text((1, 133), "layer 1", anchor="start", small=True)
    d.text((1, 20), "layer 2", anchor="start", small=True)
    for i, (x, word) in enumerate(zip(middles, words, strict=True)):
        box = d.box(x - wide / 2, 197, wide, 28, word, role="value" if i == 2 else "query" if i == 4 else "")
        if i:
            note = d.box(x - wide / 2, 118, wide, 30, f"after {words[i - 1]}", role="key" if i == 2 else "")
            d.arrow((middles[i - 1] + 8, 197), (x - 10, 148), role="key" if i == 2 else "")
            d.path(f"M{x} {box.y}V{note.y + note.height}", fine=True)
    d.path(f"M{middles[4]} 118V64H{middles[2] + 9}", role="query")
    d.arrow((middles[2] + 9, 64), (middles[2] + 9, 118), role="query")
    d.text(((middles[2] + middles[4]) / 2 + 6, 52), f"who stands after {words[4]}?", small=True)
    d.arrow((middles[2] - 12, 118), (middles[2] - 12, 34), role="value")
    d.text((middles[2] - 12, 20), words[2])
    return d


def experts() -> Sketch:
    """A word's vector, a router that weighs four experts, and the two that answer.

    Shazeer et al., *Outrageously Large Neural Networks*, 2017, figure 1.
    """
    d = Sketch(
        402,
        196,
        alt="On the left a word's vector. An arrow leads down from it to the router, whose four probabilities are "
        "bars, two of them tall. Of four experts in a column those two get the vector by an arrow each; the other two "
        "are dashed, and no arrow leads to them. The two answers meet in a plus sign on the right.",
    )
    word = d.matrix(4, 40, 26, 60, "$x$", role="query")
    router = d.box(4, 140, 66, 28, "router", role="key")
    d.arrow(word.bottom, (word.middle[0], router.y))
    plus = d.circle((352, word.middle[1]), 11, "+")
    for i, p in enumerate((0.08, 0.55, 0.05, 0.32)):
        left, top, chosen = 120.0, 6 + 38.0 * i, p > 0.3
        if chosen:
            box = d.box(left, top, 92, 28, f"expert {i + 1}", role="value")
            d.arrow(word.right, box.left, role="query")
            d.arrow(box.right, (plus.left[0] + 4, plus.middle[1] + (4 if i > 1 else -4)), f"$w_{i + 1}$", role="value")
        else:
            d.path(f"M{left} {top}h92v28h-92z", dashed=True)
            d.text((left + 46, top + 14), f"expert {i + 1}")
        d.matrix(120 + 24.0 * i, 192 - 40 * p, 16, 40 * p, role="key" if chosen else "")
    d.arrow(router.right, (118, router.middle[1] + 20), role="key")
    d.text((224, 180), "probabilities $p$", anchor="start", small=True)
    d.arrow(plus.right, (398, plus.middle[1]), role="value")
    return d


def drafted(kept: Sequence[bool] = (True, True, False, False), words: Sequence[str] = ()) -> Sketch:
    """Four drafted words that the large model judges in one call: kept up to the first refusal, redrawn there.

    Leviathan et al., *Fast Inference from Transformers via Speculative Decoding*, 2022, figure 1.
    """
    words = words or ("sat", "on", "a", "mat")
    n_kept = list(kept).index(False) if False in kept else len(kept)
    d = Sketch(
        402,
        150,
        alt=f"Three rows. In the first the small model has drafted {', '.join(words)} one after the other. In the "
        f"second the large model judges them all in one call: the first {n_kept} are kept, the next is refused. In the "
        f"third stands what is written: the first {n_kept}, and a word of the large model's own.",
    )
    for y, name in ((26, "drafted"), (72, "judged"), (118, "written")):
        d.text((66, y), name, anchor="end", small=True)
    d.text((95, 72), "one call", small=True)
    for i, word in enumerate(words):
        x = 124 + 70.0 * i
        top = d.box(x, 12, 56, 28, word, role="query")
        if i:
            d.arrow((x - 14, 26), top.left, gap=1)
        verdict = "kept" if i < n_kept else "refused" if i == n_kept else "dropped"
        d.text((x + 28, 72), verdict, small=True)
        d.arrow(top.bottom, (x + 28, 64), gap=2)
        if i <= n_kept:
            below = d.box(x, 104, 56, 28, word if i < n_kept else "the", role="query" if i < n_kept else "output")
            d.arrow((x + 28, 80), below.top, gap=2)
    return d


def work_of_a_block(lengths: Sequence[float] = (1, 2, 6)) -> Sketch:
    """The FLOPs of a block as areas: ``n`` high, and for each token ``2 d``, ``4 d`` and ``n`` wide, times ``4 d``.

    Args:
        lengths: of the texts, in widths ``d`` of the stream.

    Raises:
        ValueError: if there is no length, or one is not positive or greater than 12.
    """
    if not lengths or min(lengths) <= 0 or max(lengths) > 12:
        raise ValueError(f"lengths must be positive and at most 12, one at least, got {list(lengths)}")
    told = ", ".join(f"{n:g}" for n in lengths)
    unit, left, gap = min(24.0, 330 / (6 + max(lengths))), 62.0, 22.0
    d = Sketch(
        402,
        30 + sum(n * unit + gap for n in lengths),
        alt=f"For texts of {told} times d tokens a rectangle each, as high as the text is long. It is divided into "
        "projections, 2 d wide, the feed-forward layer, 4 d wide, and pairs, as wide as the text is long: so the part "
        "for pairs is a square, and at six times d it is as large as the two others together.",
    )
    y = 26.0
    d.text((left + 2 * unit - 3, 8), "projections", anchor="end", small=True)
    d.text((left + 4 * unit, 8), "feed-forward", small=True)
    d.text((left + 6 * unit + 4, 8), "pairs", anchor="start", small=True)
    for n in lengths:
        times = "" if n == 1 else f"{n:g} "
        d.text((left - 8, y + n * unit / 2), f"$n = {times}d$", anchor="end", small=True)
        for x, width, role in ((0, 2, "query"), (2, 4, "value"), (6, n, "key")):
            d.box(left + x * unit, y, width * unit, n * unit, role=role)
        y += n * unit + gap
    for x, width in ((0, 2), (2, 4), (6, lengths[-1])):
        times = "" if width == 1 else f"{width:g} "
        d.text((left + (x + width / 2) * unit, y - gap + 10), f"${times}d$", small=True)
    return d


def scan_rounds(n: int = 8) -> Sketch:
    """A linear recurrence in rounds: each step is joined with the one 1, 2, 4, … before, which stands for as many.

    Hillis and Steele, *Data Parallel Algorithms*, 1986.

    Args:
        n: steps, a power of two.

    Raises:
        ValueError: if ``n`` is none of 2, 4, 8, 16.
    """
    if n not in (2, 4, 8, 16):
        raise ValueError(f"n must be 2, 4, 8 or 16, got {n}")
    rounds = n.bit_length() - 1
    d = Sketch(
        402,
        46 + 62 * rounds,
        alt=f"A row of {n} circles, the steps. Below it {rounds} more rows. Into each circle of the next row goes the "
        f"circle above it, and, if there is one, one further left: 1 place in the first round, then twice as far. "
        f"After {rounds} rounds each circle stands for all steps up to it.",
    )
    left, right = 66.0, 384.0
    places = [left + (right - left) * i / (n - 1) for i in range(n)]
    rows = [20.0 + 62 * r for r in range(rounds + 1)]
    for r in range(rounds):
        for i in range(n):
            d.arrow((places[i], rows[r]), (places[i], rows[r + 1]), gap=11)
            if i >= 2**r:
                d.arrow((places[i - 2**r], rows[r]), (places[i], rows[r + 1]), gap=13, role="query")
        d.text((1, (rows[r] + rows[r + 1]) / 2), f"round {r + 1}", anchor="start", small=True)
    for r, y in enumerate(rows):
        for i, x in enumerate(places):
            d.circle((x, y), 9, role="output" if i < 2**r else "")
    d.text((1, rows[0]), "steps", anchor="start", small=True)
    d.text((1, rows[-1]), "states", anchor="start", small=True)
    d.text(((left + right) / 2, rows[-1] + 20), "filled: stands for all steps from the first", small=True)
    return d


def two_orders() -> Sketch:
    """One product of three matrices in two orders: by way of the table of pairs, and by way of a small state."""
    d = Sketch(
        402,
        150,
        alt="Two rows. Above: a tall narrow matrix of queries times a flat one of keys gives a large square, every "
        "query by every key, which then meets the tall matrix of values. Below: the flat matrix of keys times the "
        "tall one of values gives a small square, which the queries then read. Both give the same tall output.",
    )
    for y, square in ((16, True), (92, False)):
        high, flat = 50, 14
        q = d.matrix(24, y, flat, high, rows="$n$", role="query")
        k = d.matrix(66, y + 18, high, flat, role="key")
        v = d.matrix(142, y, flat, high, role="value")
        d.text((32 + 20, y + 25), r"$\times$")
        d.text((129, y + 25), r"$\times$")
        pair = (q.x, k.x + k.width) if square else (k.x, v.x + v.width)
        d.path(f"M{pair[0]} {y + high + 5}H{pair[1]}")
        d.text((172, y + 25), "=")
        side = high if square else flat
        first = d.matrix(190 if square else 236, y + (high - side) / 2, side, side)
        other = d.matrix(266 if square else 198, y, flat, high, role="value" if square else "query")
        d.text(((first.x + first.width + other.x) / 2, y + 25) if square else (224, y + 25), r"$\times$")
        d.text((294, y + 25), "=")
        d.matrix(312, y, flat, high, role="output")
        d.text((336, y + 25), "pairs first" if square else "keys first", anchor="start", small=True)
        d.text((first.middle[0], first.y - 9), r"$n \times n$" if square else r"$r \times d_v$", small=True)
    return d


def ring_of_devices() -> Sketch:
    """Ring attention on three devices: queries stay, keys and values go round, and each turn another block is met.

    Liu et al., *Ring Attention with Blockwise Transformers*, 2023. arXiv:2310.01889.
    """
    d = Sketch(
        402,
        214,
        alt="Three boxes in a row are devices. Each keeps its own queries, 1, 2 and 3. Below stand the keys and values "
        "that it attends to in each of three turns: device 1 those of 1, then 3, then 2; device 2 those of 2, 1, 3; "
        "device 3 those of 3, 2, 1. Arrows lead from each device's block to the next device's in the turn below, and "
        "from the last one back to the first.",
    )
    width, height, tops = 84.0, 30.0, (66.0, 116.0, 166.0)
    lefts = (66.0, 186.0, 306.0)
    d.text((1, 34), "stays", anchor="start", small=True)
    for turn, top in enumerate(tops):
        d.text((1, top + height / 2), f"turn {turn + 1}", anchor="start", small=True)
    blocks = []
    for turn, top in enumerate(tops):
        names = [(rank - turn) % 3 + 1 for rank in range(3)]
        blocks.append(
            [d.box(x, top, width, height, f"K, V {n}", role="key") for x, n in zip(lefts, names, strict=True)]
        )
    for rank, left in enumerate(lefts):
        d.text((left + width / 2, 10), f"device {rank + 1}", small=True)
        d.box(left, 20, width, height, f"Q {rank + 1}", role="query")
    for above, below in pairwise(blocks):
        for rank in range(2):
            d.arrow(above[rank].bottom, below[rank + 1].top, gap=2)
        d.path(f"M{above[2].bottom[0]} {above[2].bottom[1]}v9H{below[0].top[0]}v10", dashed=True)
    return d


def two_towers() -> Sketch:
    """A picture and its caption, each read by a tower of its own; two vectors meet in a product.

    Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, 2021. arXiv:2103.00020.
    """
    d = Sketch(
        402,
        206,
        alt="Two columns. On the left a picture goes up into an image tower, on the right a caption into a text tower; "
        "in each there is self-attention. Each tower gives one vector of length one, u and v. The two arrows meet at "
        "the top in one product, the cosine of u and v, times a scale. No arrow leads from one tower to the other.",
    )
    middle = 201.0
    for left, name, given, vector, role in (
        (28.0, "image tower", "picture", "u, length 1", "query"),
        (244.0, "text tower", "a three left of a seven", "v, length 1", "key"),
    ):
        tower = d.box(left, 104, 130, 50, role=role)
        d.text((tower.middle[0], 121), name)
        d.text((tower.middle[0], 138), "self-attention", small=True)
        d.text((tower.middle[0], 192), given)
        d.arrow((tower.middle[0], 184), tower.bottom)
        side = -1 if left < middle else 1
        d.arrow(tower.top, (middle + 52 * side, 40), role=role)
        d.text((middle + 92 * side, 66), vector, anchor="end" if side < 0 else "start", small=True)
    d.box(middle - 50, 12, 100, 34, "scale · (u · v)", role="value")
    return d


def spot_and_mark(spot: tuple[float, float] = (4.6, 5.2)) -> Sketch:
    """A window in eight by eight patches, a soft spot at ``spot`` (patches from the left, from above), a corner mark.

    Raises:
        ValueError: if the spot's centre is not in the window.
    """
    if not all(0 <= place <= 8 for place in spot):
        raise ValueError(f"spot must be within 0 .. 8 patches from the left and from above, got {spot}")
    d = Sketch(
        402,
        190,
        alt="A square window divided into eight by eight patches. A soft round spot lies inside it, over parts of "
        "several patches: it makes the window sick. In the top left corner a small square, the mark, covers part of "
        "one patch: it only goes along with being sick.",
    )
    left, top, patch = 30.0, 14.0, 20.0
    d.matrix(left, top, 8 * patch, 8 * patch, grid=(8, 8))
    centre = left + spot[0] * patch, top + spot[1] * patch
    for radius in (22.0, 14.0, 7.0):
        d.circle(centre, radius, role="key")
    mark = d.box(left + 1, top + 1, 14, 14, role="query")
    d.text((236, 22), "mark: goes along", anchor="start", small=True)
    d.text((236, 36), "with being sick, 9 in 10", anchor="start", small=True)
    d.arrow((230, 26), (mark.right[0] + 4, mark.right[1] + 4), role="query")
    beside = max(centre[1], 64)  # below the words on the mark
    d.text((236, beside - 7), "spot: makes it sick", anchor="start", small=True)
    d.text((236, beside + 7), "one bit is told", anchor="start", small=True)
    d.arrow((230, beside), (centre[0] + 22, centre[1]), role="key")
    return d
