"""Answers to the exercises on the complexity of attention: correct in several styles, and wrong with their message."""

import math
from fractions import Fraction

import numpy as np
import torch

from lessons_lib.checks import complexity as check

# --- correct answers --------------------------------------------------------------------------------------------------


def crossing(d, h, g, d_k, d_ff, gated, causal):
    weights = 2 * d * (h + g) * d_k + (3 if gated else 2) * d * d_ff
    return weights * (2 if causal else 1) / (2 * h * d_k)


def by_search(d, h, g, d_k, d_ff, gated, causal):
    """Both counts for a text of one token, which grow by one factor of n and by two."""
    matrices = [(d, h * d_k), (h * d_k, d), (d, g * d_k), (d, g * d_k), (d, d_ff), (d_ff, d), *[(d, d_ff)] * gated]
    with_weights = sum(2 * a * b for a, b in matrices)
    between = sum(2 * 2 * d_k for _ in range(h)) / (1 + causal)
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if between * middle < with_weights else (low, middle)
    return high


def smallest_batch_size(weights, kept, flops, r_flops, r_bytes):
    gained = flops / r_flops - kept / r_bytes
    return math.ceil(weights / r_bytes / gained) if gained > 0 else 0


def one_by_one(weights, kept, flops, r_flops, r_bytes):
    for texts in range(1, 100_000):
        if texts * flops / r_flops >= (weights + texts * kept) / r_bytes:
            return texts
    return 0


def by_intensity(weights, kept, flops, r_flops, r_bytes):
    needed = r_flops / r_bytes
    missing = flops - needed * kept
    return 0 if missing <= 0 else -int(-needed * weights // missing)


def compose(first, second):
    (a, b), (c, d) = first, second
    return c @ a, torch.einsum("...ij,...j->...i", c, b) + d


def as_one_matrix(first, second):
    """A step is a matrix with one more row and column, and steps are multiplied."""

    def bordered(a, b):
        d = b.shape[-1]
        last = torch.zeros(*b.shape[:-1], 1, d + 1, dtype=b.dtype)
        last[..., -1] = 1
        return torch.cat([torch.cat([a, b[..., None]], -1), last], -2)

    both = bordered(*second) @ bordered(*first)
    return both[..., :-1, :-1], both[..., :-1, -1]


def by_trying(first, second):
    """The map of zero is what is added, the map of each unit vector a column."""
    (a, b), (c, d) = first, second

    def both(h):
        inside = (a @ h[..., None])[..., 0] + b
        return (c @ inside[..., None])[..., 0] + d

    added = both(torch.zeros_like(b))
    columns = [both(torch.zeros_like(b).index_fill(-1, torch.tensor([j]), 1)) - added for j in range(b.shape[-1])]
    return [torch.stack(columns, -1), added]


RIGHT = {
    check.crossing: [
        crossing,
        by_search,
        lambda *given: torch.tensor(crossing(*given)),
        lambda *given: torch.tensor(crossing(*given), dtype=torch.float64),
    ],
    check.smallest_batch_size: [
        smallest_batch_size,
        one_by_one,
        by_intensity,
        lambda *given: float(smallest_batch_size(*given)),
        lambda *given: torch.tensor(smallest_batch_size(*given)),
    ],
    check.compose: [
        compose,
        as_one_matrix,
        by_trying,
        lambda *given: [part.float() for part in compose(*given)],
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}

WRONG[check.crossing] = [
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, False), "so the crossing moves to twice"),
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, False) / (1 + causal), "to twice the length"),
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, True), "only a causal kernel"),
    (
        lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, not gated, causal),
        "three matrices, an ordinary layer two",
    ),
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, h, w, f, gated, causal), "g heads, not h"),
    (
        lambda d, h, g, w, f, gated, causal: crossing(d, g, g, w, f, gated, causal) * g / h,
        "only keys and values have g",
    ),
    (
        lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, causal) * h / g,
        "every query head has its own pairs",
    ),
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, causal) * h * w / d, "cost h d_k, not d"),
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, 0, gated, causal), "feed-forward layer is missing"),
    (
        lambda d, h, g, w, f, gated, causal: (2 + gated) * d * f * (1 + causal) / (2 * h * w),
        "the matrices of attention are missing",
    ),
    (
        lambda d, h, g, w, f, gated, causal: (
            (2 * d * d + 2 * d * g * w + (2 + gated) * d * f) * (1 + causal) / (2 * h * w)
        ),
        "the matrices are d by h d_k",
    ),
    (
        lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, causal) - (1 + causal) * d / 2,
        "W_O among them",
    ),
    (lambda d, h, g, w, f, gated, causal: 2 * crossing(d, h, g, w, f, gated, causal), "you return twice the length"),
    (lambda d, h, g, w, f, gated, causal: crossing(d, h, g, w, f, gated, causal) / 2, "two FLOPs for each token"),
    (lambda d, h, g, w, f, gated, causal: 6 * d, "crossing is "),
    (lambda *given: [crossing(*given)], "must be a number, got list"),
    (lambda *given: torch.tensor([crossing(*given)]), "a tensor must have shape"),
]

WRONG[check.smallest_batch_size] = [
    (lambda w, k, f, rf, rb: math.ceil(w / rb * rf / f), "each text has its own KV cache"),
    (lambda w, k, f, rf, rb: w / rb * rf / f, "each text has its own KV cache"),
    (lambda w, k, f, rf, rb: math.ceil((w + k) / rb * rf / f), "the caches of all texts are loaded"),
    (lambda w, k, f, rf, rb: math.ceil(w / rb / (f / rf - k / rb)), "no batch size is enough"),
    (lambda w, k, f, rf, rb: math.ceil(w / rb / abs(f / rf - k / rb)), "no batch size is enough"),
    (lambda *given: max(1, smallest_batch_size(*given)), "no batch size is enough"),
    (
        lambda w, k, f, rf, rb: 0 if f / rf < k / rb else math.ceil(w / rb / max(f / rf - k / rb, 1e-30)),
        "smallest_batch_size is ",
    ),
    (lambda *given: smallest_batch_size(*given) or math.inf, "wanted 0"),
    (lambda w, k, f, rf, rb: max(0.0, w / rb / (f / rf - k / rb)), "the batch size is an integer"),
    (lambda w, k, f, rf, rb: max(0, math.floor(w / rb / (f / rf - k / rb))), "arithmetic still takes less time"),
    (
        lambda w, k, f, rf, rb: max(0, math.floor(w / rb / (f / rf - k / rb)) + 2),
        "with one text fewer is already enough",
    ),
    (
        lambda w, k, f, rf, rb: max(0, math.floor(w / rb / (f / rf - k / rb)) + 1),
        "with one text fewer is already enough",
    ),
    (lambda *given: 0, "some batch size is enough"),
    (
        lambda *given: smallest_batch_size(*given) if smallest_batch_size(*given) <= 1000 else 0,
        "some batch size is enough",
    ),
    (
        lambda *given: max(2, smallest_batch_size(*given)) if smallest_batch_size(*given) else 0,
        "with one text fewer is already enough",
    ),
    (lambda w, k, f, rf, rb: math.ceil(w * rb / (f * rf - k * rb)), "divide by the rates"),
    (lambda w, k, f, rf, rb: 64, "smallest_batch_size is 64, wanted "),
    (lambda *given: None, "smallest_batch_size"),
    (lambda *given: str(smallest_batch_size(*given)), "must be a number, got str"),
]


def pair(matrix, vector):
    """A way to answer by two functions of both steps."""
    return lambda first, second: (matrix(*first, *second), vector(*first, *second))


def times(a, b):
    return (a @ b[..., None])[..., 0]


def right_matrix(a, b, c, d):
    return c @ a


def right_vector(a, b, c, d):
    return times(c, b) + d


def without_axes_of_one(first, second):
    (a, b), (c, d) = first, second
    return c @ a, (c @ b[..., None]).squeeze() + d


WRONG[check.compose] = [
    (pair(lambda a, b, c, d: a @ c, right_vector), "is the left factor"),
    (lambda first, second: compose(second, first), "is the left factor"),
    (pair(lambda a, b, c, d: a * c, right_vector), "not the product of the entries"),
    (pair(lambda a, b, c, d: a + c, right_vector), "does not add them"),
    (pair(lambda a, b, c, d: (c @ a).mT, right_vector), "the transpose"),
    (pair(right_matrix, lambda a, b, c, d: b + d), "the b of the first step is multiplied"),
    (pair(right_matrix, lambda a, b, c, d: times(a, b) + d), "and no other b by a matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(a, d) + b), "and no other b by a matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(c, b + d)), "after its matrix is applied"),
    (pair(right_matrix, lambda a, b, c, d: times(c, d) + b), "after its matrix is applied"),
    (pair(right_matrix, lambda a, b, c, d: times(c, b)), "the b of the second step is missing"),
    (pair(right_matrix, lambda a, b, c, d: times(c.mT, b) + d), "A b, not b A"),
    (pair(right_matrix, lambda a, b, c, d: right_vector(a, b, c, d)[..., None]), "must have shape"),
    (lambda first, second: compose(first, second)[0], "pair"),
    (without_axes_of_one, "must have shape"),
    (lambda first, second: None, "did you forget to return"),
]


# --- values on paper --------------------------------------------------------------------------------------------------

# By the name of the answer: correct values, and wrong values of single parts, with their message.
RIGHT_VALUES = {
    "crossings": [
        lambda: {"a": 6, "b": 6.5, "c": 13, "window": 6.5},
        lambda: {"a": 6.03, "b": 6.46, "c": 12.9, "window": 6.55, "more": None},
        lambda: {"a": torch.tensor(6.0), "b": np.float32(6.5), "c": Fraction(13), "window": torch.tensor(13) / 2},
    ]
}
WRONG_VALUES = {
    "crossings": [
        ("a", 12, "divide the weights by 2 h d_k"),
        ("a", (4 + 16 / 3) / 2, "SwiGLU has three matrices"),
        ("a", 4, "count the four matrices of attention too"),
        ("a", 6.1, "a = 6.1 d is not the correct value"),
        ("a", "6 d", "a must be a number, not text: leave out the unit, d"),
        ("a", None, "a is missing"),
        ("a", (6,), r"a = \(6,\) d: expected a number"),
        ("a", True, "a = True d: expected a number"),
        ("a", float("nan"), "a must be finite"),
        ("b", 13, "divide the weights by 2 h d_k"),
        ("b", 7.25, "W_K and W_V have a quarter"),
        ("b", 5.75, "W_Q and W_O keep all"),
        ("b", 26, "do not change the number of pairs"),
        ("c", 6.5, "the crossing is at twice the length"),
        ("c", 12, "changes the block of"),
        ("window", 13, "so nothing is halved"),
        ("window", 6, "changes the block of"),
    ]
}
