"""Correct and wrong answers to the exercises on positions, the wrong ones with their message."""

import math

import numpy as np
import torch

from lessons_lib.checks import positions as check

# --- correct answers --------------------------------------------------------------------------------------------------


def rotate(x, at, base, *, rate=lambda pair, d: -2 * pair / d, sign=1):
    d = x.shape[-1]
    angles = (sign * at[:, None] * base ** rate(torch.arange(d // 2, dtype=torch.float64), d)).to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).flatten(-2)


def rotate_as_complex_numbers(x, at, base):
    d = x.shape[-1]
    angles = at[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def alibi(n_heads, n, m, *, first=1, queries=None, distance=torch.abs):
    heads = torch.arange(first, first + n_heads)
    at = torch.arange(m - n, m) if queries is None else queries(n)
    return -(2.0 ** (-8 * heads / n_heads))[:, None, None] * distance(at[:, None] - torch.arange(m))


def alibi_by_loops(n_heads, n, m):
    rows = [
        [[-(2 ** (-8 * h / n_heads)) * abs(i - j) for j in range(m)] for i in range(m - n, m)] for h in _heads(n_heads)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _heads(n_heads):
    return range(1, n_heads + 1)


def stretched_base(base, d, factor):
    return base * factor ** (d / (d - 2))


RIGHT = {
    check.rotate: [rotate, rotate_as_complex_numbers],
    check.alibi: [alibi, alibi_by_loops],
    check.stretched_base: [stretched_base, lambda b, d, f: (torch.tensor(b) ** ((d - 2) / d) * f) ** (d / (d - 2))],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def half_split(x, at, base):
    d = x.shape[-1]
    angles = (at[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def overwriting(x, at, base):
    d, x = x.shape[-1], x.clone()
    angles = (at[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)).to(x.dtype)
    x[..., 0::2] = x[..., 0::2] * angles.cos() - x[..., 1::2] * angles.sin()
    x[..., 1::2] = x[..., 0::2] * angles.sin() + x[..., 1::2] * angles.cos()
    return x


def in_place(x, at, base):
    x.copy_(rotate(x, at, base))
    return x


def not_woven(x, at, base):
    turned = rotate(x, at, base)
    return torch.cat([turned[..., 0::2], turned[..., 1::2]], -1)


WRONG[check.rotate] = [
    (half_split, "pair the neighbours"),
    (lambda x, at, base: rotate(x, at, base, sign=-1), "it turns backwards"),
    (lambda x, at, base: rotate(x, torch.arange(x.shape[-2]), base), "positions are ignored"),
    (lambda x, at, base: rotate(x, at, base, rate=lambda i, d: -i / d), "exponent is -2i/d, where i is the number"),
    (lambda x, at, base: rotate(x, at, base, rate=lambda i, d: 2 * i / d), "frequencies decrease with i"),
    (lambda x, at, base: rotate(x, at, 10_000.0), "the base is ignored"),
    (overwriting, "before the rotation, not as it is after turning"),
    (not_woven, "must be neighbours in the result"),
    (in_place, "changed its argument"),
    (lambda x, at, base: x, "wrong values"),
    (lambda x, at, base: rotate(x, at, base)[..., :2], "must have shape|wrong values"),
]


WRONG[check.alibi] = [
    (lambda h, n, m: -alibi(h, n, m), "the bias is not positive"),
    (lambda h, n, m: alibi(h, n, m, queries=torch.arange), "the last n of the m positions, not the first"),
    (lambda h, n, m: alibi(h, n, m, first=0), "the first slope is"),
    (lambda h, n, m: alibi(h, n, m, distance=lambda x: x), "the distance is an absolute value"),
    (lambda h, n, m: alibi(h, n, m).flip(0), "heads are in reverse order"),
    (lambda h, n, m: alibi(8, n, m).repeat(2, 1, 1)[:h], "the number of heads h is missing"),
    (lambda h, n, m: alibi(h, n, m)[:1].expand(h, n, m) * 2 ** (8 / h), "its own slope"),
    (lambda h, n, m: alibi(h, n, m) ** 2, "wrong values"),
    (lambda h, n, m: alibi(h, m, m), "must have shape"),
]


WRONG[check.stretched_base] = [
    (lambda b, d, f: b * f, "slows by less than the factor"),
    (lambda b, d, f: b * f ** ((d - 2) / d), "must be the inverse"),
    (lambda b, d, f: b * f ** (d / (d - 1)), "the slowest pair is i = d/2 - 1"),
    (lambda b, d, f: b * f ** (d / (d - 4)), "the exponent of the last is"),
    (lambda b, d, f: b / f ** (d / (d - 2)), "a smaller base faster"),
    (lambda b, d, f: f ** (d / (d - 2)), "return the new base"),
    (lambda b, d, f: b, "is [0-9.e+]+, wanted [0-9.e+]+ "),
]


# --- more answers -----------------------------------------------------------------------------------------------------


def rotate_by_matrices(x, at, base):
    """Each row times its own matrix of rotations."""
    d, rows = x.shape[-1], []
    for t in at.tolist():
        blocks = []
        for i in range(d // 2):
            c, s = math.cos(t * base ** (-2 * i / d)), math.sin(t * base ** (-2 * i / d))
            blocks.append(torch.tensor([[c, -s], [s, c]], dtype=x.dtype))
        rows.append(torch.block_diag(*blocks))
    return torch.einsum("...nd,ned->...ne", x, torch.stack(rows))


def rotate_with_a_swap(x, at, base):
    rates = torch.exp(-math.log(base) * torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    angles = (at.double()[:, None] * rates).repeat_interleave(2, dim=-1)
    swapped = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return (x * angles.cos() + swapped * angles.sin()).to(x.dtype)


def rotate_with_single_angles(x, at, base):
    angles = at[:, None] * base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1])
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).flatten(-2)


def slopes_in_turn(n_heads, n, m):
    slope = 2 ** (-8 / n_heads)
    away = (torch.arange(m)[None] - torch.arange(m)[m - n :, None]).abs().double()
    return torch.stack([-(slope**h) * away for h in range(1, n_heads + 1)])


RIGHT[check.rotate] += [rotate_by_matrices, rotate_with_a_swap]
RIGHT[check.alibi] += [slopes_in_turn, lambda *sizes: alibi(*sizes).float()]
RIGHT[check.stretched_base] += [
    lambda b, d, f: np.exp(np.log(b) + d * np.log(f) / (d - 2)),
    lambda b, d, f: torch.tensor(b * f ** (1 / (1 - 2 / d))),
]
WRONG[check.rotate] += [
    (rotate_with_single_angles, "was a part computed in single precision"),
    (lambda x, at, base: rotate(x, at, base).double().float(), "must return the type of x, torch.float64"),
    (lambda x, at, base: rotate(x.double(), at, base), "must return the type of x, torch.float32, got torch.float64"),
    (lambda x, at, base: rotate(x, at + 1, base), "wrong values"),
]
WRONG[check.alibi] += [
    (lambda h, n, m: alibi(h, n, m).cumsum(0), "wrong values"),
    (lambda h, n, m: alibi(h, n, m).masked_fill(torch.ones(n, m).triu(m - n + 1) > 0, -torch.inf), "wrong values"),
]
WRONG[check.stretched_base] += [
    (lambda b, d, f: b * f ** (d / (d - 2)) + f, "is [0-9.e+]+, wanted [0-9.e+]+"),
    (lambda b, d, f: b + f ** (d / (d - 2)), "is [0-9.e+]+, wanted [0-9.e+]+"),
    (lambda b, d, f: None, "did you forget to return"),
    (lambda b, d, f: [b * f], "must be a number, got list"),
]


# --- the wavelengths of RoPE ------------------------------------------------------------------------------------------


def wavelengths(d, base, *, turn=2 * math.pi, power=2.0, first=0, below=0):
    return turn * base ** (power * torch.arange(first, first + d // 2, dtype=torch.float64) / (d - below))


def one_pair_after_the_other(d, base):
    lengths, rate = [], 1.0
    for _ in range(d // 2):
        lengths.append(2 * math.pi / rate)
        rate *= base ** (-2 / d)
    return torch.tensor(lengths, dtype=torch.float64)


RIGHT[check.wavelengths] = [
    wavelengths,
    one_pair_after_the_other,
    lambda d, base: 2 * torch.pi / base ** (-torch.arange(0, d, 2) / d),
    lambda d, base: torch.from_numpy(2 * np.pi * np.exp(np.linspace(0, 1, d // 2, endpoint=False) * np.log(base))),
]
WRONG[check.wavelengths] = [
    (lambda d, base: wavelengths(d, base, turn=1, power=-2.0), "this is the angle per token"),
    (lambda d, base: 1 / wavelengths(d, base), "number of turns per token"),
    (lambda d, base: wavelengths(d, base, turn=1), "number of tokens for an angle of 1"),
    (lambda d, base: wavelengths(d, base, turn=math.pi), "2 pi radians, not pi"),
    (lambda d, base: wavelengths(d, base, turn=360), "not in degrees"),
    (lambda d, base: wavelengths(d, base, power=-2.0), "the exponent is -2i/d, with a minus"),
    (lambda d, base: wavelengths(d, base, power=1.0), "not -i/d"),
    (lambda d, base: wavelengths(d, base, first=1), "so the first has frequency 1"),
    (lambda d, base: wavelengths(d, base, below=2), "not by d - 2"),
    (lambda d, base: wavelengths(d, base).flip(0), "pair 0, the fastest, comes first"),
    (lambda d, base: wavelengths(d, 10_000.0), "the base is ignored"),
    (lambda d, base: wavelengths(d, base).repeat_interleave(2), "d/2 pairs, so return [3-8] numbers, not d"),
    (lambda d, base: wavelengths(d, base).round(), "do not round"),
    (lambda d, base: wavelengths(d, base).ceil().long(), "do not round"),
    (lambda d, base: wavelengths(d, base).cumsum(0), "wrong values"),
    (lambda d, base: wavelengths(d, base).tolist(), "must be a tensor, got list"),
    (lambda d, base: wavelengths(d, base)[:-1], "must have shape"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def with_one_leading_axis_at_most(x, at, base):
    turned = rotate(x if x.dim() < 4 else x[0], at, base)
    return turned if x.dim() < 4 else turned[None]


WRONG[check.rotate] += [(with_one_leading_axis_at_most, "must have shape")]
