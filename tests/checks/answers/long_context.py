"""Answers to the exercises on long context: correct answers in several styles, wrong ones with their message."""

import math

import numpy as np
import torch

from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.checks import long_context as check


def count_new_angles(
    n_trained,
    n,
    base,
    d_head,
    factor,
    *,
    power=2.0,
    turn=2 * math.pi,
    slow=True,
    at=None,
    both=False,
    pairs=lambda d: range(d // 2),
):
    speeds = [base ** (-power * i / d_head) for i in pairs(d_head)]
    by = factor if slow else 1.0
    seen = n_trained if at is None else at(n_trained, n, factor)
    return sum((seen * w < turn or both) and n * w / by > n_trained * w for w in speeds)


def by_tensor(n_trained, n, base, d_head, factor):
    speeds = torch.tensor(float(base)) ** (-torch.arange(0, d_head, 2) / d_head)
    return ((n_trained * speeds < 2 * torch.pi) & torch.tensor(n / factor > n_trained)).sum()


def by_library(n_trained, n, base, d_head, factor):
    speeds = RotaryEmbedding(d_head, base=base).frequencies(torch.arange(1))
    return int((n_trained * speeds < 2 * math.pi).sum()) if n > factor * n_trained else 0


def by_numpy(n_trained, n, base, d_head, factor):
    if n <= n_trained * factor:
        return 0
    return np.sum(2 * np.pi / base ** (-np.arange(0, d_head, 2) / d_head) > n_trained)


def first_fresh(n_trained, base, d_head):
    fresh = [i for i in range(d_head // 2) if n_trained * base ** (-2 * i / d_head) < 2 * math.pi]
    return fresh[0] if fresh else None


def ntk(n_trained, n, base, d_head, *, shift=0, width=-2, guard=True, double=2.0, inverse=False):
    i = first_fresh(n_trained, base, d_head)
    if (n <= n_trained or i is None) and guard:
        return 1.0
    i = (d_head // 2 - 1 if i is None else i) + shift
    stretch = n_trained / n if inverse else n / n_trained
    return stretch ** ((d_head + width) / (double * i))


def ntk_by_search(n_trained, n, base, d_head):
    factor = 1.0
    for i in range(d_head // 2):
        if n > n_trained and n_trained * base ** (-2 * i / d_head) < 2 * math.pi:
            factor = max(factor, (n / n_trained) ** ((d_head - 2) / 2 / i))
    return factor


def ntk_by_logarithms(n_trained, n, base, d_head):
    i = first_fresh(n_trained, base, d_head)
    if i is None or n < n_trained:
        return 1
    return math.exp(math.log(n / n_trained) * (d_head / 2 - 1) / i)


def ntk_by_tensor(n_trained, n, base, d_head):
    i = torch.arange(d_head // 2, dtype=torch.float64)
    fresh = i[n_trained * base ** (-2 * i / d_head) < 2 * torch.pi]
    if not len(fresh) or n <= n_trained:
        return torch.tensor(1.0)
    return torch.tensor(n / n_trained, dtype=torch.float64) ** ((d_head - 2) / (2 * fresh.min()))


def ntk_of(n_trained, n, base, d_head, condition):
    """The factor for the first pair that meets another condition."""
    found = [i for i in range(d_head // 2) if condition(i, n_trained, n, base ** (-2 * i / d_head))]
    return (n / n_trained) ** ((d_head - 2) / (2 * found[0])) if found and n > n_trained else 1.0


def new_base(n_trained, n, base, d_head):
    return base * ntk(n_trained, n, base, d_head) ** (d_head / (d_head - 2))


def same(tokens, n_scored, n_given):
    return tokens[:, -n_given - 1 : -1], tokens[:, -n_scored:]


def same_by_indices(tokens, n_scored, n_given):
    end = tokens.shape[1]
    return tokens[:, torch.arange(end - 1 - n_given, end - 1)], tokens[:, torch.arange(end - n_scored, end)]


def same_by_rows(tokens, n_scored, n_given):
    rows = [(row[-n_given - 1 :][:-1], row[-n_scored:]) for row in tokens]
    return torch.stack([row for row, _ in rows]), torch.stack([row for _, row in rows])


def same_by_narrow(tokens, n_scored, n_given):
    end = tokens.shape[1]
    return [tokens.narrow(1, end - 1 - n_given, n_given), tokens.narrow(1, end - n_scored, n_scored).float()]


RIGHT = {
    check.count_new_angles: [count_new_angles, by_tensor, by_library, by_numpy],
    check.ntk_factor: [ntk, ntk_by_search, ntk_by_logarithms, ntk_by_tensor],
    check.same_targets: [same, same_by_indices, same_by_rows, same_by_narrow],
}

WRONG = {
    check.count_new_angles: [
        (lambda *a: count_new_angles(*a, both=True), "completed a full turn in training has no new angles"),
        (lambda a, b, c, d, e: d // 2 - count_new_angles(a, b, c, d, e), "you count the pairs without new angles"),
        (lambda *a: count_new_angles(*a, power=1.0), "base to the -2i/d"),
        (lambda *a: count_new_angles(*a, turn=math.pi), "a full turn is 2 pi"),
        (lambda *a: count_new_angles(*a, turn=1.0), "2 pi radians, not 1"),
        (lambda *a: count_new_angles(*a, at=lambda trained, n, factor: n), "in training, not in the longer text"),
        (
            lambda *a: count_new_angles(*a, at=lambda trained, n, factor: trained / factor),
            "were not divided by the factor",
        ),
        (lambda *a: 2 * count_new_angles(*a), "count pairs"),
        (lambda *a: count_new_angles(*a, pairs=lambda d: range(d)), "count pairs"),
        (lambda *a: count_new_angles(*a, pairs=lambda d: range(1, d // 2 + 1)), "numbered from 0"),
        (lambda *a: count_new_angles(*a, slow=False), "with this factor, no pair"),
        (
            lambda a, b, c, d, e: count_new_angles(a, b + (b == e * a), c, d, e),
            "no pair turns further than it did in training",
        ),
        (lambda *a: count_new_angles(*a) + 0.5, ", wanted "),
        (lambda *a: count_new_angles(*a) / 2, ", wanted "),
        (lambda *a: None, "did you forget to return"),
        (lambda *a: [count_new_angles(*a)], "must be a number, got list"),
    ],
    check.ntk_factor: [
        (lambda a, b, c, d: b / a, "enough only for the slowest pair"),
        (lambda *a: ntk(*a, shift=-1), "number the pairs from 0"),
        (lambda *a: ntk(*a, shift=1), "the first pair with new angles determines"),
        (lambda *a: ntk(*a, width=0), "not 2i/d"),
        (
            lambda a, b, c, d: 1 / ntk(a, b, c, d) if b < a else (b / a) ** (1 / math.log(ntk(a, b, c, d), b / a)),
            "solve for f",
        ),
        (new_base, "you return the new base"),
        (lambda *a: ntk(*a, double=1.0), "the exponent of pair i is"),
        (lambda *a: ntk(*a, inverse=True), "not n_trained / n"),
        (lambda *a: ntk(*a, guard=False), "no frequency has to change, return 1"),
        (lambda *a: ntk_of(*a, lambda i, t, n, w: t * w < 2 * math.pi <= n * w), "even if it completes no turn in the"),
        (lambda *a: ntk_of(*a, lambda i, t, n, w: n * w < 2 * math.pi), "in training, not in the longer text"),
        (lambda *a: 2 * ntk(*a), ", wanted "),
        (lambda *a: ntk(*a) + 1, ", wanted "),
        (lambda *a: str(ntk(*a)), "must be a number, got str"),
    ],
    check.same_targets: [
        (lambda t, s, n: (t[:, -n:], t[:, -s:]), "is a target and must not be an input"),
        (lambda t, s, n: (t[:, :n], t[:, -s:]), "you return the first tokens"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, -s - 1 : -1]), "the targets are the next tokens"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, -n : -n + s]), "return the last ones"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, :s]), "not at its start"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, 1 : s + 1]), "not at its start"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, -n:]), "targets must have shape"),
        (lambda t, s, n: (t[:, :-1], t[:, -s:]), "inputs "),
        (lambda t, s, n: (t[:, -n:-1], t[:, -s:]), "inputs must have shape"),
        (lambda t, s, n: (t[:, -n - 1 : -1] + 1, t[:, -s:]), "wrong values"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, -s:].flip(1)), "wrong values"),
        (lambda t, s, n: t[:, -s:], "got one Tensor"),
        (lambda t, s, n: (t[:, -n - 1 : -1], t[:, -s:].squeeze()), "targets must have shape"),
        (lambda t, s, n: (t[:, -max(n, s + 1) - 1 : -1], t[:, -s:]), "inputs must have shape"),
    ],
}


# --- values on paper --------------------------------------------------------------------------------------------------

# By the name of the answer: correct values, and wrong values of single parts, with their message.
RIGHT_VALUES = {
    "ring": [
        lambda: {"bytes": 469_762_048, "bytes_factor": 2, "flops_factor": 4, "tokens": 2500, "enough": True},
        lambda: {"bytes": 4.7e8, "bytes_factor": 2.0, "flops_factor": 4.0, "tokens": 2188, "enough": 16_384 > 2500},
        lambda: {"bytes": 448 * 2**20, "bytes_factor": 2, "flops_factor": 2**2, "tokens": 1e4 / 4, "enough": True},
    ]
}
WRONG_VALUES = {
    "ring": [
        ("bytes", 448, "bytes is given in MiB: expected it in bytes"),
        ("bytes", 470, "bytes is given in MB: expected it in bytes"),
        ("bytes", 0.4375, "bytes is given in GiB: expected it in bytes"),
        ("bytes", 0.47, "bytes is given in GB: expected it in bytes"),
        ("bytes", 512 * 2**20, "passes on R - 1 blocks, not R"),
        ("bytes", 224 * 2**20, "sends keys and values, two bytes a number"),
        ("bytes", 112 * 2**20, "sends keys and values, two bytes a number"),
        ("bytes", 4 * 448 * 2**20, "the key/value heads are sent"),
        ("bytes", 8 * 448 * 2**20, "the question is about one device"),
        ("bytes", 5e8, "bytes = 500000000 bytes is not the correct value"),
        ("bytes_factor", 4, "bytes_factor = 4 is not the correct value"),
        ("flops_factor", 2, "each of twice as many queries attends to twice as many keys"),
        ("tokens", 10_000, "divide 10 000 by 4"),
        ("tokens", 8750, "4 query heads share each key/value head"),
        ("tokens", 5000, "each pair costs two products"),
        ("enough", False, "enough = False is not the correct value"),
        ("enough", 1, "enough = 1: expected True or False"),
    ]
}
