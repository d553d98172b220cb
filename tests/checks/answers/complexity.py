"""Answers to the exercises on what attention costs: right ones in any style, wrong ones with what they must be told."""

import math

import torch

from lessons_lib.checks import complexity as check

# --- right answers ----------------------------------------------------------------------------------------------------


def crossing(d, h, g, d_k, d_ff, gated, skips):
    weights = 2 * d * (h + g) * d_k + (3 if gated else 2) * d * d_ff
    return weights * (2 if skips else 1) / (2 * h * d_k)


def by_search(d, h, g, d_k, d_ff, gated, skips):
    """Both counts for a text of one token, which grow by one factor of n and by two."""
    matrices = [(d, h * d_k), (h * d_k, d), (d, g * d_k), (d, g * d_k), (d, d_ff), (d_ff, d), *[(d, d_ff)] * gated]
    with_weights = sum(2 * a * b for a, b in matrices)
    between = sum(2 * 2 * d_k for _ in range(h)) / (1 + skips)
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if between * middle < with_weights else (low, middle)
    return high


def enough_texts(weights, kept, flops, r_flops, r_bytes):
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


def join(first, second):
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
    check.enough_texts: [
        enough_texts,
        one_by_one,
        by_intensity,
        lambda *given: float(enough_texts(*given)),
        lambda *given: torch.tensor(enough_texts(*given)),
    ],
    check.join: [
        join,
        as_one_matrix,
        by_trying,
        lambda *given: [part.float() for part in join(*given)],
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}

WRONG[check.crossing] = [
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, False), "moves to twice the length"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, False) / (1 + skips), "to twice the length"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, True), "only a kernel that skips"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, not gated, skips), "three matrices, another two"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, h, w, f, gated, skips), "g heads, not h"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, g, g, w, f, gated, skips) * g / h, "only keys and values have g"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, skips) * h / g, "every query head"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, skips) * h * w / d, "cost h d_k, not d"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, 0, gated, skips), "feed-forward layer is missing"),
    (
        lambda d, h, g, w, f, gated, skips: (2 + gated) * d * f * (1 + skips) / (2 * h * w),
        "the matrices of attention are missing",
    ),
    (
        lambda d, h, g, w, f, gated, skips: (
            (2 * d * d + 2 * d * g * w + (2 + gated) * d * f) * (1 + skips) / (2 * h * w)
        ),
        "the matrices are d by h d_k",
    ),
    (
        lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, skips) - (1 + skips) * d / 2,
        "W_O among them",
    ),
    (lambda d, h, g, w, f, gated, skips: 2 * crossing(d, h, g, w, f, gated, skips), "that is twice the length"),
    (lambda d, h, g, w, f, gated, skips: crossing(d, h, g, w, f, gated, skips) / 2, "two FLOPs for each token"),
    (lambda d, h, g, w, f, gated, skips: 6 * d, "crossing is "),
    (lambda *given: [crossing(*given)], "must be a number, got list"),
    (lambda *given: torch.tensor([crossing(*given)]), "a tensor must have shape"),
]

WRONG[check.enough_texts] = [
    (lambda w, k, f, rf, rb: math.ceil(w / rb * rf / f), "keys and values of its own"),
    (lambda w, k, f, rf, rb: w / rb * rf / f, "keys and values of its own"),
    (lambda w, k, f, rf, rb: math.ceil((w + k) / rb * rf / f), "those of every text are fetched"),
    (lambda w, k, f, rf, rb: math.ceil(w / rb / (f / rf - k / rb)), "no number is enough"),
    (lambda w, k, f, rf, rb: math.ceil(w / rb / abs(f / rf - k / rb)), "no number is enough"),
    (lambda *given: max(1, enough_texts(*given)), "no number is enough"),
    (
        lambda w, k, f, rf, rb: 0 if f / rf < k / rb else math.ceil(w / rb / max(f / rf - k / rb, 1e-30)),
        "enough_texts is ",
    ),
    (lambda *given: enough_texts(*given) or math.inf, "wanted 0"),
    (lambda w, k, f, rf, rb: max(0.0, w / rb / (f / rf - k / rb)), "the number of texts is whole"),
    (lambda w, k, f, rf, rb: max(0, math.floor(w / rb / (f / rf - k / rb))), "arithmetic is still the shorter"),
    (lambda w, k, f, rf, rb: max(0, math.floor(w / rb / (f / rf - k / rb)) + 2), "with one text fewer"),
    (lambda w, k, f, rf, rb: max(0, math.floor(w / rb / (f / rf - k / rb)) + 1), "with one text fewer"),
    (lambda *given: 0, "there is such a number"),
    (lambda *given: enough_texts(*given) if enough_texts(*given) <= 1000 else 0, "there is such a number"),
    (lambda *given: max(2, enough_texts(*given)) if enough_texts(*given) else 0, "with one text fewer"),
    (lambda w, k, f, rf, rb: math.ceil(w * rb / (f * rf - k * rb)), "a rate divides"),
    (lambda w, k, f, rf, rb: 64, "enough_texts is 64, wanted "),
    (lambda *given: None, "enough_texts"),
    (lambda *given: str(enough_texts(*given)), "must be a number, got str"),
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


WRONG[check.join] = [
    (pair(lambda a, b, c, d: a @ c, right_vector), "stands on the left"),
    (lambda first, second: join(second, first), "stands on the left"),
    (pair(lambda a, b, c, d: a * c, right_vector), "not their entries"),
    (pair(lambda a, b, c, d: a + c, right_vector), "does not add them"),
    (pair(lambda a, b, c, d: (c @ a).mT, right_vector), "the transpose"),
    (pair(right_matrix, lambda a, b, c, d: b + d), "goes through the second's matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(a, b) + d), "it is the second's matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(a, d) + b), "it is the second's matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(c, b + d)), "comes after its matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(c, d) + b), "comes after its matrix"),
    (pair(right_matrix, lambda a, b, c, d: times(c, b)), "is missing"),
    (pair(right_matrix, lambda a, b, c, d: times(c.mT, b) + d), "A b, not b A"),
    (pair(right_matrix, lambda a, b, c, d: right_vector(a, b, c, d)[..., None]), "must have shape"),
    (lambda first, second: join(first, second)[0], "pair"),
    (without_axes_of_one, "must have shape"),
    (lambda first, second: None, "did you forget to return"),
]
