"""Correct and wrong answers to the exercises on training dynamics, the wrong ones with their message."""

import math

import numpy as np
import torch

from lessons_lib.checks import dynamics as check

# --- correct answers --------------------------------------------------------------------------------------------------


def spread(x):
    apart = x - x.mean(-2, keepdim=True)
    return (apart.square().sum((-2, -1)) / x.square().sum((-2, -1))).sqrt()


def schedule(step, n_warmup, n_steps, floor):
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = min(1.0, (step - n_warmup) / (n_steps - n_warmup))
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def normalised_entropy(weights):
    rows = torch.special.entr(weights).sum(-1)
    visible = torch.arange(1, weights.shape[-1] + 1, dtype=weights.dtype)
    return (rows[:, 1:] / visible[1:].log()).mean(-1)


RIGHT = {
    check.spread: [
        spread,
        lambda x: (x - x.mean(-2, keepdim=True)).flatten(-2).norm(dim=-1) / x.flatten(-2).norm(dim=-1),
    ],
    check.schedule: [schedule, lambda *x: torch.tensor(schedule(*x))],
    check.normalised_entropy: [
        normalised_entropy,
        lambda weights: torch.stack([normalised_entropy(w[None])[0] for w in weights]).float(),
    ],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def frobenius(x):
    return torch.linalg.matrix_norm(x)


def in_place(x):
    x -= x.mean(-2, keepdim=True)
    return frobenius(x)


WRONG[check.spread] = [
    (lambda x: frobenius(x - x.mean(-1, keepdim=True)) / frobenius(x), "over the tokens, axis -2"),
    (lambda x: frobenius(x - x.flatten(0, -2).mean(0)) / frobenius(x), "its own mean token"),
    (lambda x: spread(x) ** 2, "a root is missing"),
    (lambda x: frobenius(x - x.mean(-2, keepdim=True)), "divide by the norm of X"),
    (
        lambda x: frobenius(x.mean(-2, keepdim=True).expand_as(x)) / frobenius(x),
        "all tokens have in common, not the token spread",
    ),
    (
        lambda x: torch.linalg.matrix_norm(x - x.mean(-2, keepdim=True), 2) / torch.linalg.matrix_norm(x, 2),
        "largest singular value",
    ),
    (in_place, "changed its argument"),
    (lambda x: 1 - spread(x), "wrong values"),
    (lambda x: spread(x)[..., None], "must have shape"),
]


def variant(*, clamp=True, late=False, begin=None, floor=lambda f, c: f + (1 - f) * c, raised=False):
    """A schedule with one part replaced."""

    def answer(step, n_warmup, n_steps, low):
        if step < n_warmup:
            up = (step + (not late)) / n_warmup
            return low + (1 - low) * up if raised else up
        start = n_warmup if begin is None else begin
        progress = (step - start) / (n_steps - start)
        return floor(low, (1 + math.cos(math.pi * (min(1.0, progress) if clamp else progress))) / 2)

    return answer


WRONG[check.schedule] = [
    (variant(clamp=False), "increases again"),
    (variant(late=True), "learning rate is 0 at step 0"),
    (variant(begin=0), "begins when the warm-up ends"),
    (variant(floor=lambda f, c: c), "the floor is missing"),
    (variant(floor=lambda f, c: f + c), "added to the cosine"),
    (variant(floor=max), "clips the cosine"),
    (variant(raised=True), "must not change the warm-up"),
    (lambda *x: 1.0, "is 1, wanted 0"),
    (lambda step, n_warmup, *rest: schedule(step, n_warmup, *rest) if n_warmup else 1.0, "is 1, wanted 0.9"),
]


def rows_of(weights):
    return torch.special.entr(weights).sum(-1)


def largest(weights):
    return torch.arange(1, weights.shape[-1] + 1, dtype=weights.dtype).log()


def without_hidden_keys(weights):
    rows = -torch.where(torch.ones_like(weights).tril() > 0, weights * weights.log(), 0.0).sum(-1)
    return (rows[:, 1:] / largest(weights)[1:]).mean(-1)


WRONG[check.normalised_entropy] = [
    (without_hidden_keys, "holds NaN"),
    (lambda w: -(w * w.log()).sum(-1)[:, 1:].mean(-1), "holds NaN"),
    (lambda w: (rows_of(w) / largest(w)).mean(-1), "holds NaN"),
    (lambda w: rows_of(w)[:, 1:].mean(-1), "in nats"),
    (lambda w: rows_of(w)[:, 1:].mean(-1) / math.log(w.shape[-1]), "not by log n"),
    (lambda w: (rows_of(w) / largest(w).clamp_min(1e-9)).mean(-1), "leave it out"),
    (lambda w: rows_of(w).sum(-1) / largest(w).sum(), "divide row by row before the mean"),
    (lambda w: normalised_entropy(w).mean().expand(len(w)), "one number per head"),
    (lambda w: normalised_entropy(w.mean(0, keepdim=True)).expand(len(w)), "before any average over heads"),
    (lambda w: normalised_entropy(w).mean(), "must have shape"),
    (lambda w: normalised_entropy(w).tolist(), "must be a tensor, got list"),
    (lambda w: 1 - normalised_entropy(w), "wrong values"),
]


# --- more answers -----------------------------------------------------------------------------------------------------


def by_pythagoras(x):
    """The common part and the difference part are orthogonal."""
    common = x.shape[-2] * x.mean(-2).square().sum(-1) / x.square().sum((-2, -1))
    return (1 - common).sqrt()


def by_centring(x):
    n = x.shape[-2]
    return frobenius((torch.eye(n, dtype=x.dtype) - 1 / n) @ x) / frobenius(x)


def schedule_as_a_table(step, n_warmup, n_steps, floor):
    up = [(s + 1) / n_warmup for s in range(n_warmup)]
    turn = torch.linspace(0, torch.pi, n_steps - n_warmup + 1, dtype=torch.float64)
    down = (floor + (1 - floor) * turn.cos().add(1).div(2)).tolist()
    return (up + down)[min(step, n_steps)]


def between(first, last):
    """A cosine that begins and ends at other steps, computed from those of the exercise."""

    def answer(step, n_warmup, n_steps, floor):
        if step < n_warmup:
            return (step + 1) / n_warmup
        begin, end = first(n_warmup), last(n_warmup, n_steps)
        return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, (step - begin) / (end - begin)))) / 2

    return answer


def row_by_row(weights):
    heads = []
    for head in weights:
        shares = [
            sum(-p * math.log(p) for p in head[i, : i + 1].tolist() if p) / math.log(i + 1) for i in range(1, len(head))
        ]
        heads.append(sum(shares) / len(shares))
    return torch.tensor(heads)


def with_single_logarithms(weights):
    n = weights.shape[-1]
    return (rows_of(weights)[:, 1:] / torch.arange(2, n + 1, dtype=torch.float32).log()).mean(-1)


def by_the_number_above_zero(weights):
    return (rows_of(weights) / (weights > 0).sum(-1).log())[:, 1:].nan_to_num().mean(-1)


RIGHT[check.spread] += [by_pythagoras, by_centring, lambda x: spread(x.float())]
RIGHT[check.schedule] += [schedule_as_a_table, lambda *x: np.float32(schedule(*x))]
RIGHT[check.normalised_entropy] += [row_by_row, with_single_logarithms]
WRONG[check.spread] += [
    (lambda x: x.std(-2).norm(dim=-1) * x.shape[-2] ** 0.5 / frobenius(x), "a standard deviation divides"),
    (lambda x: x.std(-2).norm(dim=-1) / frobenius(x), "a standard deviation divides"),
    (lambda x: frobenius(x - x[..., :1, :]) / frobenius(x), "wrong values"),
]
WRONG[check.schedule] += [
    (between(lambda w: w, lambda w, n: n - 1), "not one step before"),
    (between(lambda w: max(0, w - 1), lambda w, n: n), "at step n_warmup, not one step before"),
    (between(lambda w: w, lambda w, n: n + w), "n_steps includes the warm-up"),
    (lambda *x: torch.tensor([schedule(*x)]), r"must have shape \(\), got \(1,\)"),
    (lambda *x: str(schedule(*x)), "must be a number, got str"),
    (lambda step, w, n, f: schedule(min(step, n - 1), w, n, f), "is 0.[0-9]+, wanted 0.[0-9]+, at [0-9]+"),
]
WRONG[check.normalised_entropy] += [
    (lambda w: (-(w * (w + 1e-6).log()).sum(-1)[:, 1:] / largest(w)[1:]).mean(-1), "inside the logarithm"),
    (by_the_number_above_zero, "including keys of weight 0"),
    (lambda w: (rows_of(w) / largest(w).clamp_min(1e-9))[:, 2:].mean(-1), "wrong values"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def by_the_standard_deviation(x):
    """Right for two tokens or more: the variance of one token is 0 / 0."""
    return x.std(-2).norm(dim=-1) * (x.shape[-2] - 1) ** 0.5 / frobenius(x)


def between_two_points(step, n_warmup, n_steps, floor):
    """Goes from 1 / w to 1 in w - 1 steps, which are none if w is 1."""
    if step < n_warmup:
        return 1 / n_warmup + (1 - 1 / n_warmup) * step / (n_warmup - 1)
    return schedule(step, n_warmup, n_steps, floor)


WRONG[check.spread] += [
    (by_the_standard_deviation, "NaN|degrees of freedom"),
    (lambda x: spread(x).squeeze(), "must have shape"),
]
WRONG[check.schedule] += [(between_two_points, "division by zero")]
WRONG[check.normalised_entropy] += [
    (lambda w: normalised_entropy(w).squeeze(), "must have shape"),
    (lambda w: normalised_entropy(w) if w.shape[1] > 2 else torch.ones(len(w)), "wrong values"),
]
