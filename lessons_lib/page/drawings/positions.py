"""The drawings of the chapter on positions: what a causal average contains, a rotated pair, penalties on distance."""

import math
from collections.abc import Sequence

import torch

from lessons_lib.attention.masks import causal
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.language import gettext
from lessons_lib.page.sketch import Sketch


def causal_averages(first: Sequence[str], second: Sequence[str]) -> Sketch:
    """Draw which words each word averages over in one causal layer, for two orders of the same words.

    Raises:
        ValueError: if there are not 2 to 4 different words, or the second order does not have the words of the first.
    """
    if not 2 <= len(set(first)) == len(first) <= 4 or sorted(first) != sorted(second):
        raise ValueError(f"expected two orders of the same 2 to 4 different words, got {first!r} and {second!r}")
    n, label = len(first), 50.0
    cell = ((400 - 2 * label - 16) / (2 * n), 26.0)
    sets = [[[word in order[: i + 1] for word in first] for i in range(n)] for order in (first, second)]
    told = "; ".join(
        gettext(f"in the order {' '.join(order)}, ")
        + ", ".join(gettext(f"{word} averages over {' '.join(order[: i + 1])}") for i, word in enumerate(order))
        for order in (first, second)
    )
    same = [word for i, word in enumerate(first) if second[i] == word and sets[0][i] == sets[1][i]]
    d = Sketch(
        402,
        44 + n * cell[1],
        alt=f"Two tables, one for each order of the words, with a row for each word and a column for each word that it "
        f"averages over: {told}. The same row at the same position in both orders: {', '.join(same) or 'none'}.",
    )
    for index, (order, rows) in enumerate(zip((first, second), sets, strict=True)):
        left = label + index * (label + n * cell[0] + 16)
        shades = [[0.6 * shown for shown in row] for row in rows]
        d.table(left, 38, cell, [[""] * n] * n, role="query", shades=shades)
        for i, word in enumerate(order):
            d.text((left - 6, 38 + (i + 0.5) * cell[1]), word, anchor="end", small=True)
        for j, word in enumerate(first):
            d.text((left + (j + 0.5) * cell[0], 27), word, small=True)
        d.text((left + n * cell[0] / 2, 9), "averages over", small=True)
    return d


def same_distance(query: int = 3, key: int = 1, *, later: int = 4, angle: float = 40.0) -> Sketch:
    """Draw one pair of entries of a query and of a key, rotated by their positions, and both again ``later`` positions.

    Su et al., *RoFormer*, 2021, section 3. Both vectors point to the right at position 0.

    Raises:
        ValueError: if query and key have the same position, or ``later`` is not positive.
    """
    if query == key or later <= 0:
        raise ValueError(
            f"query and key must have different positions, and later must be positive, got {query}, {key} and {later}"
        )
    between = angle * (query - key)
    panels = [(query, key), (query + later, key + later)]
    told = "; ".join(
        f"at positions {q} and {k} the query has turned by {angle * q:g} degrees and the key by {angle * k:g}"
        for q, k in panels
    )
    d = Sketch(
        402,
        226,
        alt=f"Two circles, each with a query and a key as arrows from the centre: {told}. In both circles the angle "
        f"from the key to the query is {between:g} degrees.",
    )
    radius = 74.0
    for index, (q, k) in enumerate(panels):
        x, y = 101.0 + 200 * index, 98.0
        d.circle((x, y), radius)
        for name, role, position in (("$q$", "query", q), ("$k$", "key", k)):
            turned = math.radians(angle * position)
            along = math.cos(turned), -math.sin(turned)
            d.arrow((x, y), (x + radius * along[0], y + radius * along[1]), role=role, gap=0)
            d.text((x + (radius + 13) * along[0], y + (radius + 13) * along[1]), name)
        steps = [math.radians(angle * k + between * i / 12) for i in range(13)]
        d.line(((x + 26 * math.cos(a), y - 26 * math.sin(a)) for a in steps), dashed=True)
        d.text((x, 200), f"query at {q}, key at {k}")
        d.text((x, 218), f"angle between them: {abs(between):g}°", small=True)
    return d


def alibi_penalties(n: int = 5, slope: float = 0.5) -> Sketch:
    """Draw ALiBi's penalties for one head under a causal mask, and the weights that equal scores get with them.

    Press et al., *Train Short, Test Long*, 2022, figure 3.

    Raises:
        ValueError: if ``n`` is not from 2 to 5, or the slope is not positive.
    """
    if not 2 <= n <= 5 or slope <= 0:
        raise ValueError(f"n must be from 2 to 5 and slope positive, got {n} and {slope}")
    place = torch.arange(n)
    penalties = -slope * (place[:, None] - place).abs().double()
    mask = causal(n)
    weights = softmax(penalties, mask).tolist()
    cell = (150 / n, 26.0)
    last = ", ".join(f"{penalty:g}" for penalty in penalties[-1].tolist())
    shares = ", ".join(f"{weight:.2f}" for weight in weights[-1])
    d = Sketch(
        402,
        60 + n * cell[1],
        alt=f"A table of penalties, {n} queries by {n} keys, in which later keys are hatched. Each step back costs "
        f"{slope:g}: the last row holds {last}. An arrow named softmax leads to a table of weights for equal scores; "
        f"its last row holds {shares}, so that each step back multiplies a weight by {math.exp(-slope):.2f}.",
    )
    allowed = mask.tolist()
    entries = [
        [f"${x:g}$" if ok else "" for x, ok in zip(row, row_mask, strict=True)]
        for row, row_mask in zip((penalties + 0.0).tolist(), allowed, strict=True)
    ]
    left = d.table(8, 28, cell, entries, hidden=[[not ok for ok in row] for row in allowed])
    right = d.table(8 + 150 + 86, 28, cell, [[f"{p:.2f}" if p else "0" for p in row] for row in weights],
                    role="query", shades=[[0.7 * p for p in row] for row in weights])  # fmt: skip
    d.arrow(left.right, right.left, gap=5)
    d.text(((left.right[0] + right.left[0]) / 2, left.right[1] - 12), "softmax", small=True)
    d.text((left.top[0], 11), f"penalties, slope ${slope:g}$")
    d.text((right.top[0], 11), "weights, equal scores")
    d.text((left.bottom[0], left.bottom[1] + 16), "row: query, column: key", small=True)
    d.text((right.bottom[0], right.bottom[1] + 16), f"each step back: \u00d7 {math.exp(-slope):.2f}", small=True)
    return d
