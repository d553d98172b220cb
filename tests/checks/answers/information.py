"""Answers to the exercises on information theory: correct answers in any style, wrong answers with their messages."""

import math

import numpy as np
import torch

from lessons_lib.checks import information as check

# --- right answers ----------------------------------------------------------------------------------------------------


def entropy_from_scores(scores, temperature):
    s = scores / temperature
    return s.logsumexp(-1) - (s.softmax(-1) * s).sum(-1)


def by_special_function(scores, temperature):
    return torch.special.entr((scores / temperature).softmax(-1)).sum(-1)


def count_at(scores, temperature):
    return by_special_function(scores, temperature).exp()


def bisect(scores, wanted, measure=count_at, steps=60):
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(scores, math.exp(middle)) < wanted else (low, middle)
    return math.exp(low)


def query_key_information(a):
    h = torch.special.entr
    return h(a.mean(-2)).sum(-1) - h(a).sum(-1).mean(-1)


def by_divergence(a):
    average = a.mean(-2, keepdim=True)
    return torch.where(a > 0, a * (a / average).log(), 0.0).sum((-1, -2)) / a.shape[-2]


RIGHT = {
    check.entropy_from_scores: [entropy_from_scores, by_special_function],
    check.temperature_for: [bisect, lambda scores, count: torch.tensor(bisect(scores, count))],
    check.query_key_information: [query_key_information, by_divergence, lambda a: query_key_information(a).float()],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def plain_logarithm(scores, temperature):
    p = (scores / temperature).softmax(-1)
    return -(p * p.log()).sum(-1)


def with_a_crumb(scores, temperature):
    p = (scores / temperature).softmax(-1)
    return -(p * (p + 1e-8).log()).sum(-1)


def without_shift(scores, temperature):
    s = scores / temperature
    return s.exp().sum(-1).log() - (s.softmax(-1) * s).sum(-1)


def undivided_average(scores, temperature):
    s = scores / temperature
    return s.logsumexp(-1) - (s.softmax(-1) * scores).sum(-1)


WRONG[check.entropy_from_scores] = [
    (plain_logarithm, "rounds to zero has no logarithm"),
    (with_a_crumb, "small number inside the logarithm"),
    (without_shift, "use log_sum_exp"),
    (undivided_average, "divided by the temperature too"),
    (lambda s, t: (s / t).logsumexp(-1), "log-sum-exp alone"),
    (lambda s, t: by_special_function(s, t) / math.log(2), "in bits"),
    (lambda s, t: -by_special_function(s, t), "never negative"),
    (lambda s, t: by_special_function(s, t).exp(), "effective count"),
    (lambda s, t: by_special_function(s, 1), "temperature is ignored"),
    (lambda s, t: by_special_function(s, 1 / t), "do not multiply them"),
    (lambda s, t: by_special_function(s, 1) / t, "before the softmax"),
    (lambda s, t: by_special_function(s, t)[None], "must have shape"),
    (lambda s, t: by_special_function(s, t) * 1.1, "wrong values"),
]


def entropy_where_it_can_be_the_count(scores, count):
    reachable = count < math.log(len(scores))
    return bisect(scores, count, by_special_function if reachable else count_at)


WRONG[check.temperature_for] = [
    (lambda s, c: 1 / bisect(s, c), "this is 1/T"),
    (lambda s, c: math.log(bisect(s, c)), "logarithm of T"),
    (entropy_where_it_can_be_the_count, "exponential of the entropy should equal count", 20),  # few cases are such
    (lambda s, c: bisect(s, math.log(c) * math.log(2), by_special_function), "entropy in bits"),
    (lambda s, c: bisect(s, c, steps=12), "not close enough"),
    (lambda s, c: 1e-3, "below the target"),
    (lambda s, c: 1e3, "above the target"),
    (lambda s, c: 0.0, "positive and finite, got 0"),
    (lambda s, c: -1.0, "positive and finite, got -1"),
    (lambda s, c: math.inf, "positive and finite, got inf"),
    (lambda s, c: math.nan, "positive and finite, got nan"),
    (lambda s, c: s / c, "must be a number; a tensor must have shape"),
]


def zero_times_log_zero(a):
    average = a.mean(-2)
    return -(average * average.log()).sum(-1) + (a * a.log()).sum(-1).mean(-1)


def one_average_for_all(a):
    h = torch.special.entr
    return h(a.flatten(end_dim=-2).mean(0)).sum(-1) - h(a).sum(-1).mean(-1)


def backwards(a):
    average = a.mean(-2, keepdim=True)
    return (average * (average / a).log()).sum(-1).mean(-1)


def over_the_keys(a):
    h = torch.special.entr
    return h(a.mean(-1)).sum(-1) - h(a).sum(-2).mean(-1)


WRONG[check.query_key_information] = [
    (zero_times_log_zero, "0 log 0 is zero"),
    (one_average_for_all, "its own average row"),
    (backwards, "arguments of the divergence are swapped"),
    (over_the_keys, "over the queries"),
    (lambda a: torch.special.entr(a.mean(-2)).sum(-1), "this is the entropy of the average row"),
    (lambda a: torch.special.entr(a).sum(-1).mean(-1), "this is the average entropy of the rows"),
    (lambda a: -query_key_information(a), "the sign"),
    (lambda a: query_key_information(a) / math.log(2), "in bits"),
    (lambda a: query_key_information(a) * a.shape[-2], "sum over the queries"),
    (
        lambda a: torch.special.entr(a.mean(-2)).sum(-1) - torch.special.entr(a).sum((-1, -2)),
        "do not add them",
    ),
    (lambda a: query_key_information(a) ** 2, "wrong values"),
    (lambda a: torch.special.entr(a).sum(-1), "must have shape"),
    (lambda a: query_key_information(a).tolist(), "must be a tensor"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def by_grids(scores, count):
    """The nearest of a hundred temperatures, and again between its neighbours."""
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(6):
        grid = torch.linspace(low, high, 100, dtype=scores.dtype)
        counts = count_at(scores, grid.exp()[:, None])
        at = int((counts - count).abs().argmin())
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, 99)])
    return math.exp((low + high) / 2)


def with_crumbs(eps):
    def answer(a):
        average = a.mean(-2)
        return (a * (a + eps).log()).sum(-1).mean(-1) - (average * (average + eps).log()).sum(-1)

    return answer


def by_joint(a):
    joint = a / a.shape[-2]
    apart = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
    return (torch.xlogy(joint, joint) - torch.xlogy(joint, apart)).sum((-1, -2))


RIGHT[check.entropy_from_scores] += [
    lambda s, t: -((s / t).softmax(-1) * (s / t).log_softmax(-1)).sum(-1),
    lambda s, t: torch.distributions.Categorical(logits=s / t).entropy(),
]
RIGHT[check.temperature_for] += [by_grids, lambda s, c: np.float32(bisect(s, c))]
RIGHT[check.query_key_information] += [by_joint]
WRONG[check.entropy_from_scores] += [
    (lambda s, t: (s / t).softmax(-1).square().sum(-1).log().neg(), "wrong values"),
    (lambda s, t: by_special_function(s, t).mean(), "must have shape|wrong values"),
]
WRONG[check.temperature_for] += [(lambda s, c: str(bisect(s, c)), "must be a number, got str")]
WRONG[check.query_key_information] += [
    (with_crumbs(1e-8), "a small number inside the logarithm"),
    (with_crumbs(1e-4), "a small number inside the logarithm"),
    (lambda a: query_key_information(a.mT), "over the queries, the axis before"),
    (lambda a: query_key_information(a).mean(), "must have shape|wrong values"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def shifted_entropy(peak):
    """Subtracts something else than the largest score of each row."""

    def answer(scores, temperature):
        s = scores / temperature
        lse = peak(s) + (s - peak(s)).exp().sum(-1, keepdim=True).log()
        return lse[..., 0] - ((s - lse).exp() * s).sum(-1)

    return answer


def bisect_between(low, high):
    def answer(scores, count):
        below, above = math.log(low), math.log(high)
        for _ in range(60):
            middle = (below + above) / 2
            below, above = (middle, above) if count_at(scores, math.exp(middle)) < count else (below, middle)
        return math.exp(below)

    return answer


WRONG[check.entropy_from_scores] += [
    (shifted_entropy(lambda s: s.amax(-1, keepdim=True).clamp_min(0)), "entropy_from_scores "),
    (shifted_entropy(lambda s: s.amax()), "entropy_from_scores "),
    (shifted_entropy(lambda s: s.reshape(-1, s.shape[-1])[0].max()), "entropy_from_scores |exp overflowed"),
    (lambda s, t: entropy_from_scores(s, max(t, 1.0)), "the temperature is ignored"),
]
WRONG[check.temperature_for] += [
    (bisect_between(0.05, 50), "temperature_for is "),
    (bisect_between(0.01, 100), "temperature_for is "),
]
