"""Answers to the exercises on how training breaks: right ones in any style, wrong ones with what they must be told."""

import math

import torch

from lessons_lib.checks import dynamics as check

# --- right answers ----------------------------------------------------------------------------------------------------


def spread(x):
    apart = x - x.mean(-2, keepdim=True)
    return (apart.square().sum((-2, -1)) / x.square().sum((-2, -1))).sqrt()


def schedule(step, n_warmup, n_steps, floor):
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = min(1.0, (step - n_warmup) / (n_steps - n_warmup))
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def fair_entropy(weights):
    rows = torch.special.entr(weights).sum(-1)
    visible = torch.arange(1, weights.shape[-1] + 1, dtype=weights.dtype)
    return (rows[:, 1:] / visible[1:].log()).mean(-1)


RIGHT = {
    check.spread: [
        spread,
        lambda x: (x - x.mean(-2, keepdim=True)).flatten(-2).norm(dim=-1) / x.flatten(-2).norm(dim=-1),
    ],
    check.schedule: [schedule, lambda *x: torch.tensor(schedule(*x))],
    check.fair_entropy: [
        fair_entropy,
        lambda weights: torch.stack([fair_entropy(w[None])[0] for w in weights]).float(),
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
    (lambda x: frobenius(x - x.flatten(0, -2).mean(0)) / frobenius(x), "a mean token of its own"),
    (lambda x: spread(x) ** 2, "a root is missing"),
    (lambda x: frobenius(x - x.mean(-2, keepdim=True)), "not divided by the length of X"),
    (lambda x: frobenius(x.mean(-2, keepdim=True).expand_as(x)) / frobenius(x), "all tokens have in common"),
    (
        lambda x: torch.linalg.matrix_norm(x - x.mean(-2, keepdim=True), 2) / torch.linalg.matrix_norm(x, 2),
        "largest singular value",
    ),
    (in_place, "changed its argument"),
    (lambda x: 1 - spread(x), "wrong values"),
    (lambda x: spread(x)[..., None], "must have shape"),
]


def variant(*, clamp=True, late=False, begin=None, floor=lambda f, c: f + (1 - f) * c, raised=False):
    """A schedule with one ingredient replaced."""

    def answer(step, n_warmup, n_steps, low):
        if step < n_warmup:
            up = (step + (not late)) / n_warmup
            return low + (1 - low) * up if raised else up
        start = n_warmup if begin is None else begin
        progress = (step - start) / (n_steps - start)
        return floor(low, (1 + math.cos(math.pi * (min(1.0, progress) if clamp else progress))) / 2)

    return answer


WRONG[check.schedule] = [
    (variant(clamp=False), "rises again"),
    (variant(late=True), "step 0 has the rate 0"),
    (variant(begin=0), "begins when the warm-up ends"),
    (variant(floor=lambda f, c: c), "floor is not there"),
    (variant(floor=lambda f, c: f + c), "added to the whole cosine"),
    (variant(floor=max), "cuts the cosine off"),
    (variant(raised=True), "the ramp too is raised"),
    (lambda *x: 1.0, "wrong values"),
    (lambda step, n_warmup, *rest: schedule(step, n_warmup, *rest) if n_warmup else 1.0, "wrong values"),
]


def rows_of(weights):
    return torch.special.entr(weights).sum(-1)


def largest(weights):
    return torch.arange(1, weights.shape[-1] + 1, dtype=weights.dtype).log()


def without_hidden_keys(weights):
    rows = -torch.where(torch.ones_like(weights).tril() > 0, weights * weights.log(), 0.0).sum(-1)
    return (rows[:, 1:] / largest(weights)[1:]).mean(-1)


WRONG[check.fair_entropy] = [
    (without_hidden_keys, "holds NaN"),
    (lambda w: -(w * w.log()).sum(-1)[:, 1:].mean(-1), "holds NaN"),
    (lambda w: (rows_of(w) / largest(w)).mean(-1), "holds NaN"),
    (lambda w: rows_of(w)[:, 1:].mean(-1), "in nats"),
    (lambda w: rows_of(w)[:, 1:].mean(-1) / math.log(w.shape[-1]), "not by log n"),
    (lambda w: (rows_of(w) / largest(w).clamp_min(1e-9)).mean(-1), "leave it out"),
    (lambda w: rows_of(w).sum(-1) / largest(w).sum(), "row by row"),
    (lambda w: fair_entropy(w).mean().expand(len(w)), "heads are to be told apart"),
    (lambda w: fair_entropy(w.mean(0, keepdim=True)).expand(len(w)), "averaged before the entropy"),
    (lambda w: fair_entropy(w).mean(), "must have shape"),
    (lambda w: fair_entropy(w).tolist(), "must be a tensor, got list"),
    (lambda w: 1 - fair_entropy(w), "wrong values"),
]
