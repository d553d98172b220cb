"""Answers to the exercises on positions: right ones in any style, wrong ones with what they must be told."""

import torch

from lessons_lib.checks import positions as check

# --- right answers ----------------------------------------------------------------------------------------------------


def rotate(x, at, base, *, rate=lambda pair, d: -2 * pair / d, sign=1):
    d = x.shape[-1]
    angles = sign * at[:, None] * base ** rate(torch.arange(d // 2, dtype=torch.float64), d)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).flatten(-2)


def rotate_as_complex_numbers(x, at, base):
    d = x.shape[-1]
    angles = at[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


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
    angles = at[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def overwriting(x, at, base):
    d, x = x.shape[-1], x.clone()
    angles = at[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
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
    (half_split, "the paper's are neighbours"),
    (lambda x, at, base: rotate(x, at, base, sign=-1), "turns backwards"),
    (lambda x, at, base: rotate(x, torch.arange(x.shape[-2]), base), "positions are ignored"),
    (lambda x, at, base: rotate(x, at, base, rate=lambda i, d: -i / d), "exponent is -2i/d with i the number"),
    (lambda x, at, base: rotate(x, at, base, rate=lambda i, d: 2 * i / d), "rates fall with i"),
    (lambda x, at, base: rotate(x, at, 10_000.0), "the base is ignored"),
    (overwriting, "as it was, not as it is after turning"),
    (not_woven, "side by side"),
    (in_place, "changed its argument"),
    (lambda x, at, base: x, "wrong values"),
    (lambda x, at, base: rotate(x, at, base)[..., :2], "must have shape|wrong values"),
]


WRONG[check.alibi] = [
    (lambda h, n, m: -alibi(h, n, m), "the bias is not positive"),
    (lambda h, n, m: alibi(h, n, m, queries=torch.arange), "the last n of the m positions, not the first"),
    (lambda h, n, m: alibi(h, n, m, first=0), "the first slope is"),
    (lambda h, n, m: alibi(h, n, m, distance=lambda x: x), "the distance has no sign"),
    (lambda h, n, m: alibi(h, n, m).flip(0), "heads are in reverse"),
    (lambda h, n, m: alibi(8, n, m).repeat(2, 1, 1)[:h], "did you leave H out"),
    (lambda h, n, m: alibi(h, n, m)[:1].expand(h, n, m) * 2 ** (8 / h), "a slope of its own"),
    (lambda h, n, m: alibi(h, n, m) ** 2, "wrong values"),
    (lambda h, n, m: alibi(h, m, m), "must have shape"),
]


WRONG[check.stretched_base] = [
    (lambda b, d, f: b * f, "slowed by less than the factor"),
    (lambda b, d, f: b * f ** ((d - 2) / d), "the power is the inverse"),
    (lambda b, d, f: b * f ** (d / (d - 1)), "the slowest pair is i = d/2 - 1"),
    (lambda b, d, f: b * f ** (d / (d - 4)), "the exponent of the last is"),
    (lambda b, d, f: b / f ** (d / (d - 2)), "a smaller one quicker"),
    (lambda b, d, f: f ** (d / (d - 2)), "return the base itself"),
    (lambda b, d, f: b, "wrong values"),
]
