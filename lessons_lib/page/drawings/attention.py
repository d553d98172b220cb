"""The drawings of the part on attention."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Num
from torch import Tensor

from lessons_lib.attention.rules.ranges import true_ranges
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import Sketch


def recurrence_and_lookup(words: Sequence[str] = ("the", "cat", "that", "slept", "ran")) -> Sketch:
    """Draw recurrence, a state passed from word to word, above attention, in which the last word reads every word.

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


def attention_steps() -> Sketch:
    r"""Draw the steps of attention with shapes: ``x``, queries, keys and values, scores, weights, output.

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
    for matrix, name, at in ((q, "$W_Q$", (80, 76)), (k, "$W_K$", (94, 119)), (v, "$W_V$", (78, 178))):
        d.arrow(x.right, (matrix.left[0] - 14, matrix.left[1]))
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


def dot_product(query: Sequence[float], key: Sequence[float]) -> Sketch:
    r"""Draw a dot product as a projection: :math:`q \cdot k = \lVert q\rVert\,\lVert k\rVert \cos\theta`.

    The projection of the key onto the query is negative where it points away from the query.

    Raises:
        ValueError: if the query or the key does not have two entries, or is zero.
    """
    for name, vector in (("query", query), ("key", key)):
        if len(vector) != 2 or not math.hypot(*vector):
            raise ValueError(f"{name} must have two entries that are not both zero, got {vector!r}")
    length, product = math.hypot(*query), query[0] * key[0] + query[1] * key[1]
    projection = product / length
    foot = (projection * query[0] / length, projection * query[1] / length)
    points = [(0.0, 0.0), tuple(query), tuple(key), foot]
    left, bottom = (min(p[i] for p in points) for i in (0, 1))
    right, top = (max(p[i] for p in points) for i in (0, 1))
    scale = min(270 / max(right - left, 1e-9), 150 / max(top - bottom, 1e-9))
    margin = (402 - scale * (right - left)) / 2
    height = scale * (top - bottom) + 96

    def to_page(p: Sequence[float]) -> tuple[float, float]:
        return margin + scale * (p[0] - left), 28 + scale * (top - p[1])

    degrees = math.degrees(math.acos(max(-1.0, min(1.0, projection / math.hypot(*key)))))
    d = Sketch(
        402,
        height,
        alt=f"Two arrows from one point: a query of length {length:.3g} and a key of length {math.hypot(*key):.3g}, "
        f"{degrees:.0f} degrees apart. The key's shadow on the query's line has the length {projection:.3g}; times the "
        f"query's length it is the dot product, {product:.3g}.",
    )
    origin, q, k, f = to_page((0, 0)), to_page(query), to_page(key), to_page(foot)
    d.line([k, f], dashed=True)
    if projection < 0:
        d.line([origin, f], dashed=True)
    ux, uy = query[0] / length, -query[1] / length  # along the query, on the page
    side = 1.0 if (k[0] - f[0]) * -uy + (k[1] - f[1]) * ux < 0 else -1.0  # away from the key
    off = (-uy * side * 7, ux * side * 7)
    d.path(f"M{origin[0] + off[0]:.1f} {origin[1] + off[1]:.1f}l{f[0] - origin[0]:.1f} {f[1] - origin[1]:.1f}",
           role="key", thick=True)  # fmt: skip
    d.arrow(origin, q, role="query", gap=0)
    d.arrow(origin, k, role="key", gap=0)
    d.text((q[0] + 12 * ux, q[1] + 12 * uy), "$q$")
    d.text((k[0], k[1] - 13), "$k$")
    factor = f"{projection:.3g}" if projection >= 0 else f"({projection:.3g})"
    d.text((201, height - 38), rf"shadow of $k$ on $q$: $\|k\| cos \theta = {projection:.3g}$")
    d.text((201, height - 14), rf"$q \cdot k = \|q\| \|k\| cos \theta = {length:.3g} \cdot {factor} = {product:.3g}$")
    return d


def random_sums(width: int = 256, n_sums: int = 12, *, seed: int = 8) -> Sketch:
    r"""Draw dot products as running sums of their terms, with :math:`\pm\sqrt d` around them.

    Each path adds the terms :math:`q_i k_i` of two vectors of independent standard normal entries.

    Raises:
        ValueError: if ``width`` or ``n_sums`` is less than 2.
    """
    if min(width, n_sums) < 2:
        raise ValueError(f"width and n_sums must be at least 2, got {width} and {n_sums}")
    rng = torch.Generator().manual_seed(seed)
    sums = torch.randn(2, n_sums, width, generator=rng, dtype=torch.float32).prod(0).cumsum(-1)
    root = math.sqrt(width)
    inside = int((sums[:, -1].abs() <= root).sum())
    d = Sketch(
        402,
        214,
        alt=f"{n_sums} paths start at zero and add one term of a dot product at a time. They spread like the square "
        f"root of the number of terms, drawn as a dashed curve on both sides: after {width} terms {inside} of "
        f"{n_sums} lie within {root:.3g} of zero. If all terms were 1, the sum would be {width}.",
    )
    left, right, middle, reach = 42.0, 314.0, 104.0, 86.0
    scale = reach / max(2.6 * root, float(sums.abs().max()))

    def point(step: float, value: float) -> tuple[float, float]:
        return left + (right - left) * step / width, middle - scale * value

    stride = max(1, width // 64)
    for path in sums.tolist():
        points = [point(0, 0), *(point(i + 1, path[i]) for i in range(stride - 1, width, stride))]
        d.line(points, role="key", fine=True)
    for sign in (1, -1):
        edge = [point(width * t * t, sign * root * t) for t in (i / 32 for i in range(33))]
        d.line(edge, dashed=True)
        label = f"$\\sqrt d = {root:.3g}$" if sign > 0 else f"$-\\sqrt d = -{root:.3g}$"
        d.text((right + 5, middle - sign * scale * root), label, anchor="start", small=True)
    d.path(f"M{left} {middle}H{right}", fine=True)
    d.arrow((left, 14), (left, 6), gap=0)
    d.path(f"M{left} 14V194")
    d.text((left - 6, middle), "0", anchor="end", small=True)
    d.text((left + 6, 10), f"sum so far (all terms 1: {width}, far above)", anchor="start", small=True)
    d.text((left, 205), "0", small=True)
    d.text((right, 205), f"{width}", small=True)
    d.text(((left + right) / 2, 205), "number of terms added", small=True)
    return d


def scores_to_weights(scores: Sequence[float], *, factor: float) -> Sketch:
    """Draw two or three scores and their weights, and below them the same scores multiplied by ``factor``.

    Raises:
        ValueError: if there are not 2 or 3 scores, a score is negative, all are zero, or ``factor`` is at most 1.
    """
    if not 2 <= len(scores) <= 3 or min(scores) < 0 or not max(scores) or factor <= 1:
        raise ValueError(
            f"scores must be 2 or 3, none negative and not all zero, and factor above 1, got {scores!r} and {factor}"
        )
    rows = [torch.tensor([times * score for score in scores], dtype=torch.float64) for times in (1.0, factor)]
    weights = [softmax(row).tolist() for row in rows]
    described = "; ".join(
        f"scores {', '.join(f'{s:.3g}' for s in row.tolist())} give weights {', '.join(f'{w:.3f}' for w in weight)}"
        for row, weight in zip(rows, weights, strict=True)
    )
    d = Sketch(402, 236, alt=f"Two rows, each with scores on a line and their softmax as bars: {described}.")
    scale = 150 / (factor * max(scores))
    for i, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        base = 88.0 + 116 * i
        d.text((16, base - 74), ("scores", f"scores \u00d7 {factor:.3g}")[i], anchor="start")
        d.path(f"M16 {base}H{28 + scale * factor * max(scores):.1f}", fine=True)
        for s in row.tolist():
            d.circle((22 + scale * s, base), 6, role="key")
            d.text((22 + scale * s, base + 18), f"{s:.3g}", small=True)
        first, second = sorted(row.tolist())[-1:-3:-1]
        top = base - 24
        d.path(f"M{22 + scale * second:.1f} {top + 6}V{top}H{22 + scale * first:.1f}V{top + 6}")
        d.text((22 + scale * (first + second) / 2, top - 10), f"lead {first - second:.3g}", small=True)
        d.arrow((200, base - 18), (246, base - 18), "softmax")
        d.text((258, base - 74), "weights", anchor="start")
        d.path(f"M256 {base}H392", fine=True)
        step = 130 / len(scores)
        for j, w in enumerate(weight):
            x, height = 260 + j * step, max(0.8, 52 * w)
            d.matrix(x, base - height, 0.55 * step, height, role="value")
            d.text((x + 0.275 * step, base - height - 9), f"{100 * w:.2g}%", small=True)
        best, next_best = sorted(weight)[-1:-3:-1]
        d.text((324, base + 18), f"ratio of the best two: {best / next_best:.2g}", small=True)
    return d


def masked_softmax(
    scores: Num[Tensor, "n m"],
    mask: Bool[Tensor, "n m"],
    *,
    query_labels: Sequence[str] = (),
    key_labels: Sequence[str] = (),
) -> Sketch:
    """Draw a table of scores with the masked ones hatched, and the table of attention weights after the softmax.

    Args:
        scores: at most 6 x 6, written as numbers.
        mask: True where the query may attend to the key.
        query_labels: names of the rows, or none.
        key_labels: names of the columns, or none.

    Raises:
        ValueError: if there are more than six rows or columns, the mask has another shape, or the labels are not as
            many as the rows or columns.
    """
    if scores.ndim != 2 or not all(0 < size <= 6 for size in scores.shape):
        raise ValueError(f"scores must have from 1 to 6 rows and columns, got shape {tuple(scores.shape)}")
    if mask.shape != scores.shape:
        raise ValueError(f"mask must have the shape of scores {tuple(scores.shape)}, got {tuple(mask.shape)}")
    n, m = scores.shape
    for name, labels, size in (("query_labels", query_labels, n), ("key_labels", key_labels, m)):
        if labels and len(labels) != size:
            raise ValueError(f"{name} must name all {size}, got {len(labels)} names")
    weights, allowed = softmax(scores.double(), mask).tolist(), mask.tolist()
    cell, margin = (min(46.0, 138 / m), 26.0), 8.0 * max(map(len, query_labels or [""])) + 4
    room = margin + 2 * m * cell[0] + 62
    coverage = "; ".join(
        f"row {query_labels[i] if query_labels else i + 1} sees {sum(row)} of {m}" for i, row in enumerate(allowed)
    )
    d = Sketch(
        room + 2,
        n * cell[1] + 62,
        alt=f"A table of scores, {n} queries by {m} keys, in which forbidden squares are hatched: {coverage}. An arrow "
        "named softmax leads to the table of weights: each row sums to one over the squares that it sees, the "
        "forbidden ones are zero.",
    )
    rows = zip(scores.tolist(), allowed, strict=True)
    shown = [[f"${x:.3g}$" if ok else "" for x, ok in zip(row, row_mask, strict=True)] for row, row_mask in rows]
    hidden = [[not ok for ok in row] for row in allowed]
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


def masks(masks: Mapping[str, Bool[Tensor, "n m"]]) -> Sketch:
    """Draw masks side by side: a square for each query and key, filled where the query may attend to the key.

    Args:
        masks: one to six masks by their names, True = may attend; at most twelve queries and twelve keys each.

    Raises:
        ValueError: if there are no masks or more than six, or a mask is not a Boolean matrix of that size.
    """
    if not 1 <= len(masks) <= 6:
        raise ValueError(f"masks must be between 1 and 6, got {len(masks)}")
    for name, mask in masks.items():
        if mask.dtype != torch.bool or mask.ndim != 2 or not all(1 <= size <= 12 for size in mask.shape):
            raise ValueError(
                f"mask {name!r} must be a Boolean table of 1 to 12 rows and columns, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}"
            )
    per_row = min(3, len(masks))
    panel, (tallest, widest) = 402 / per_row, (max(mask.shape[axis] for mask in masks.values()) for axis in (0, 1))
    cell = min(15.0, (panel - 16) / widest)
    height = 30 + tallest * cell
    seen = {
        name: (gettext(f"query {i} sees {_ranges(row)}") for i, row in enumerate(mask.tolist()))
        for name, mask in masks.items()
    }
    notes = (f"{gettext(name)}, {'; '.join(rows)}" for name, rows in seen.items())
    d = Sketch(
        402,
        -(-len(masks) // per_row) * height,
        alt=f"Tables of queries by keys, filled where the query may attend to the key. {'. '.join(notes)}.",
    )
    for index, (name, mask) in enumerate(masks.items()):
        n, m = mask.shape
        middle, top = (index % per_row + 0.5) * panel, index // per_row * height
        d.text((middle, top + 10), name)
        shades = (0.7 * mask.double()).tolist()
        d.table(middle - m * cell / 2, top + 21, (cell, cell), [[""] * m] * n, role="query", shades=shades)
    return d


def _ranges(row: Sequence[bool]) -> str:
    """Return the indices of the true entries in words, neighbours as a range: ``"0 to 2, 5"``."""
    spans = true_ranges(np.array(row))
    return ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans) or "none"


def split_heads(n_heads: int = 4) -> Sketch:
    """Draw how queries are split into one slice for each head, and how head outputs are concatenated and projected.

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
        "shape n by h times d_v, which W_O projects to n by d_model.",
    )
    middle, tall, width = 36 + 18.0 * n_heads, 54.0, 72 / n_heads
    whole = d.matrix(
        18, middle - tall / 2, 72, tall, rows="$n$", columns=r"$h \cdot d_k$", role="query", grid=(1, n_heads)
    )
    concat = d.matrix(246, middle - tall / 2, 72, tall, columns=r"$h \cdot d_v$", role="output", grid=(1, n_heads))
    end = d.matrix(356, middle - tall / 2, 42, tall, columns="$d_model$")
    for i in range(n_heads):
        y = 36 + 36 * i
        head = d.box(130, y + 4, 72, 26, f"head {i + 1}")
        d.arrow((whole.x + (i + 0.5) * width, whole.y + tall / 2), head.left, role="query", gap=2)
        d.arrow(head.right, (concat.x + (i + 0.5) * width, concat.y + tall / 2), role="output", gap=2)
    d.arrow(concat.right, end.left)
    d.text(((concat.right[0] + end.left[0]) / 2, middle - 12), "$W_O$", small=True)
    return d


def grouped_query_attention(n_heads: int = 8, n_kv_heads: Sequence[int] = (8, 2, 1)) -> Sketch:
    """Draw which query heads share keys and values in multi-head, grouped-query and multi-query attention.

    Consecutive query heads share a key/value head. Ainslie et al., *GQA*, 2023, figure 2.

    Raises:
        ValueError: if a number of key/value heads does not divide ``n_heads``, there are not one to three panels, or
            ``n_heads`` is not from 1 to 8.
    """
    if not 1 <= len(n_kv_heads) <= 3 or not 1 <= n_heads <= 8:
        raise ValueError(f"one to three panels of at most 8 heads fit, got {len(n_kv_heads)} of {n_heads}")
    for g in n_kv_heads:
        if g < 1 or n_heads % g:
            raise ValueError(f"n_kv_heads must divide n_heads {n_heads}, got {g}")
    notes = "; ".join(f"with {g} key and value heads, {n_heads // g} query heads share each" for g in n_kv_heads)
    d = Sketch(
        402,
        158,
        alt=f"{len(n_kv_heads)} panels of {n_heads} query heads in a row, keys and values below: {notes}.",
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
                d.line([query.bottom, key.top])
        d.text((left + (panel - 10) / 2, 145), f"$g = {g}$")
    return d


def rotated_pair(positions: Sequence[int] = (0, 1, 2), *, angle: float = 50.0, start: float = 20.0) -> Sketch:
    """Draw two entries of a query as an arrow that rotary embeddings turn by ``angle`` degrees for each position.

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
