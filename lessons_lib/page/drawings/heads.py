"""The drawings of the chapter on multi-head attention."""

import math
from collections.abc import Sequence

import torch

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.sketch import Sketch


def one_and_two_heads(tokens: Sequence[str] = ("cat", "mat"), weights: Sequence[float] = (0.6, 0.4)) -> Sketch:
    """Draw what one head returns of two tokens, a weighted average, above what two heads return, two values.

    Args:
        tokens: the two tokens that are read.
        weights: attention weights of the one head on them. The two heads give all weight to one token each.

    Raises:
        ValueError: if there are not two tokens and two weights, or the weights are not positive with sum 1.
    """
    if len(tokens) != 2 or len(weights) != 2:
        raise ValueError(f"tokens and weights must be two each, got {len(tokens)} and {len(weights)}")
    if min(weights) <= 0 or abs(sum(weights) - 1) > 1e-6:
        raise ValueError(f"weights must be positive and sum to 1, got {list(weights)}")
    (first, second), (a, b) = tokens, (f"{weight:.3g}" for weight in weights)
    d = Sketch(
        402,
        250,
        alt=f"Above, one head: the values of {first} and {second} are multiplied by {a} and {b} and added to one "
        f"vector. Below, two heads: the first gives all its weight to {first} and the second to {second}, so that "
        "two vectors are returned side by side.",
    )
    for top, title in ((0.0, "one head: one weighted average"), (130.0, "two heads: two vectors, side by side")):
        d.text((1, top + 9), title, anchor="start")
        values = [d.box(16, top + 30 + 44 * i, 96, 28, f"value of {token}", role="value") for i, token in
                  enumerate(tokens)]  # fmt: skip
        if not top:
            box = d.box(226, 52, 166, 28, f"{a} \u00b7 {first} + {b} \u00b7 {second}", role="output")
            for value, weight, y in zip(values, (a, b), (60.0, 72.0), strict=True):
                d.arrow(value.right, (box.x, y), role="value")
                d.text((162, value.right[1] + (-4 if y == 60 else 6)), f"\u00d7 {weight}", small=True)
        else:
            halves = [d.box(226 + 83 * i, top + 52, 83, 28, token, role="output") for i, token in enumerate(tokens)]
            above, below = halves[0].top, halves[1].bottom
            for i, (value, (x, y)) in enumerate(zip(values, (above, below), strict=True)):
                side = value.right[1]
                d.path(f"M{value.right[0] + 3:.1f} {side}H{x:.1f}", role="value")
                d.arrow((x, side), (x, y), role="value", gap=0)
                d.text((162, side + (-9, 10)[i]), f"head {i + 1}: \u00d7 1", small=True)
    return d


def keys_on_circle(n_keys: int = 8, target: int = 1, lengths: Sequence[float] = (3.0, 30.0)) -> Sketch:
    r"""Draw keys on a circle and a query that points at one of them, with its weights for two lengths of the query.

    The score of a key at angle :math:`\theta` from the query is the query's length times :math:`\cos\theta`.

    Raises:
        ValueError: if there are not 3 to 10 keys, ``target`` is not one of them, or there are not two positive lengths.
    """
    if not 3 <= n_keys <= 10 or not 0 <= target < n_keys:
        raise ValueError(f"n_keys must be from 3 to 10 and target one of them, got {n_keys} and {target}")
    if len(lengths) != 2 or min(lengths) <= 0:
        raise ValueError(f"lengths must be two positive numbers, got {list(lengths)}")
    angles = [2 * math.pi * j / n_keys for j in range(n_keys)]
    cosines = torch.tensor([math.cos(angle - angles[target]) for angle in angles], dtype=torch.float64)
    weights = [softmax(length * cosines).tolist() for length in lengths]
    shares = [f"{100 * row[target]:.0f}%" for row in weights]
    d = Sketch(
        402,
        220,
        alt=f"{n_keys} keys, numbered from 0, on a circle, and a query that points at key {target}. On the right its "
        f"weights as bars: a query of length {lengths[0]:.3g} gives key {target} {shares[0]}, one of length "
        f"{lengths[1]:.3g} gives it {shares[1]}.",
    )
    middle, radius = (96.0, 104.0), 66.0
    d.path(
        f"M{middle[0] - radius} {middle[1]}a{radius} {radius} 0 1 0 {2 * radius} 0"
        f"a{radius} {radius} 0 1 0 {-2 * radius} 0",
        fine=True,
    )
    for j, angle in enumerate(angles):
        x, y = math.cos(angle), -math.sin(angle)
        d.circle((middle[0] + radius * x, middle[1] + radius * y), 5, role="key")
        d.text((middle[0] + (radius + 16) * x, middle[1] + (radius + 16) * y), f"{j}", small=True)
    x, y = math.cos(angles[target]), -math.sin(angles[target])
    d.arrow(middle, (middle[0] + (radius - 8) * x, middle[1] + (radius - 8) * y), role="query", gap=0)
    d.text((middle[0] + 0.45 * radius * x - 12 * y, middle[1] + 0.45 * radius * y + 12 * x), "$q$")
    d.text((middle[0], 208), "keys in the plane", small=True)
    step = 168.0 / n_keys
    for i, (row, length) in enumerate(zip(weights, lengths, strict=True)):
        base = 84.0 + 108 * i
        d.text((224, base - 74), f"weights, query of length {length:.3g}", anchor="start", small=True)
        d.path(f"M224 {base}H396", fine=True)
        for j, weight in enumerate(row):
            height = max(0.8, 46 * weight)
            left = 226 + j * step
            d.matrix(left, base - height, 0.7 * step, height, role="query")
            d.text((left + 0.35 * step, base + 10), f"{j}", small=True)
            if j == target:
                d.text((left + 0.35 * step, base - height - 9), shares[i], small=True)
    return d


def relay_and_direct_route(
    words: Sequence[str] = ("the", "queen", "that", "these", "dogs", "follow"), source: int = 1, relay: int = 2
) -> Sketch:
    """Draw two routes from one word to the last: through a relay, in two layers, and directly.

    Args:
        words: 3 to 7 words.
        source: position of the word that is read.
        relay: position of the word that reads it in layer 1 and is read in layer 2.

    Raises:
        ValueError: if there are not 3 to 7 words, or not ``source < relay < last``.
    """
    n, last = len(words), len(words) - 1
    if not 3 <= n <= 7:
        raise ValueError(f"words must be from 3 to 7, got {n}")
    if not 0 <= source < relay < last:
        raise ValueError(f"source and relay must be in order before the last word, got {source} and {relay} of {n}")
    d = Sketch(
        402,
        186,
        alt=f"The words {' '.join(words)} in a row. A relay in two steps: in layer 1 {words[relay]} reads "
        f"{words[source]}, in layer 2 {words[last]} reads {words[relay]}. A direct route: {words[last]} reads "
        f"{words[source]} itself.",
    )
    step, y = 402 / n, 100.0
    at = [step * (i + 0.5) for i in range(n)]
    for x, word in zip(at, words, strict=True):
        d.text((x, y), word)
    d.arrow((at[source], y - 12), (at[relay], y - 12), bend=-52, role="value")
    d.arrow((at[relay], y - 12), (at[last], y - 12), bend=-84, role="value")
    d.text(((at[source] + at[relay]) / 2, y - 50), "layer 1", small=True)
    d.text(((at[relay] + at[last]) / 2, y - 66), "layer 2", small=True)
    d.text((1, 9), "relay, in two layers", anchor="start")
    d.arrow((at[source], y + 12), (at[last], y + 12), bend=88, role="query")
    d.text(((at[source] + at[last]) / 2, y + 70), "direct", small=True)
    return d
