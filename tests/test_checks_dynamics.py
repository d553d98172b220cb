"""The checks on how training breaks accept what is right, in any style, and name the mistake in what is wrong."""

import math

import pytest
import torch

from lessons_lib.checks import dynamics

# --- right answers --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (dynamics.spread, spread),
        (
            dynamics.spread,
            lambda x: (x - x.mean(-2, keepdim=True)).flatten(-2).norm(dim=-1) / x.flatten(-2).norm(dim=-1),
        ),
        (dynamics.schedule, schedule),
        (dynamics.schedule, lambda *x: torch.tensor(schedule(*x))),
        (dynamics.fair_entropy, fair_entropy),
        (dynamics.fair_entropy, lambda weights: torch.stack([fair_entropy(w[None])[0] for w in weights]).float()),
    ],
)
def test_right_answers_pass(check, answer, seed):
    check(answer, seed=seed, cases=6)


@pytest.mark.parametrize("check", [dynamics.spread, dynamics.schedule, dynamics.fair_entropy])
def test_stubs_fail(check, stub):
    with pytest.raises(NotImplementedError):
        check(stub)


@pytest.mark.usefixtures("either_precision")
def test_checks_do_not_depend_on_the_default_precision():
    dynamics.spread(spread)
    dynamics.schedule(schedule)
    dynamics.fair_entropy(fair_entropy)


# --- wrong answers --------------------------------------------------------------------------------------------------


def frobenius(x):
    return torch.linalg.matrix_norm(x)


def in_place(x):
    x -= x.mean(-2, keepdim=True)
    return frobenius(x)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
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
        (lambda x: None, "did you forget to return"),
    ],
)
def test_wrong_spreads_are_named(wrong, says):
    with pytest.raises(AssertionError, match=says):
        dynamics.spread(wrong)


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


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (variant(clamp=False), "rises again"),
        (variant(late=True), "step 0 has the rate 0"),
        (variant(begin=0), "begins when the warm-up ends"),
        (variant(floor=lambda f, c: c), "floor is not there"),
        (variant(floor=lambda f, c: f + c), "added to the whole cosine"),
        (variant(floor=max), "cuts the cosine off"),
        (variant(raised=True), "the ramp too is raised"),
        (lambda *x: 1.0, "wrong values"),
        (lambda *x: None, "did you forget to return"),
    ],
)
def test_wrong_schedules_are_named(wrong, says):
    with pytest.raises(AssertionError, match=says):
        dynamics.schedule(wrong)


def rows_of(weights):
    return torch.special.entr(weights).sum(-1)


def largest(weights):
    return torch.arange(1, weights.shape[-1] + 1, dtype=weights.dtype).log()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
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
        (lambda w: None, "did you forget to return"),
    ],
)
def test_wrong_entropies_are_named(wrong, says):
    with pytest.raises(AssertionError, match=says):
        dynamics.fair_entropy(wrong)
