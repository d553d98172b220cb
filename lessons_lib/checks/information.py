"""Checks of the exercises on information theory."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.analysis.information import effective_count, entropy, mutual_information
from lessons_lib.attention.softmax import log_sum_exp, softmax
from lessons_lib.checks import ask, check, compare, number, with_row_offsets

EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)  # small numbers that a wrong answer may add to a weight before its logarithm


@check
def entropy_from_scores(answer: Callable[[Tensor, float], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the entropy of softmax(scores / temperature), also where weights round to zero."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m = (torch.randperm(6, generator=generator)[:3] + 2).tolist()
        n, m = {3: (n, 1), 4: (1, m)}.get(case % 5, (n, m))
        shape = ((m,), (n, m), (b, n, m))[case % 3]
        temperature = float(torch.rand((), generator=generator, dtype=torch.float64)) * 2 + 1.25
        temperature = 1 / temperature if case % 2 else temperature
        scores = torch.randn(shape, generator=generator, dtype=torch.float64)
        _check_entropy(answer, scores, temperature, "scores near 0")
        _check_entropy(answer, 2000 * scores, temperature, "scores thousands apart")
        _check_entropy(answer, with_row_offsets(scores, 5000.0), temperature, "rows thousands apart")


def _check_entropy(answer: Callable[[Tensor, float], Tensor], scores: Tensor, temperature: float, kind: str) -> None:
    where = f"{kind}, shape {tuple(scores.shape)}, temperature {temperature:.3g}"
    got = ask("entropy_from_scores", answer, scores, temperature, where=where)
    p, s = softmax(scores, temperature=temperature), scores / temperature
    wanted = entropy(p)
    assert not (isinstance(got, Tensor) and got.shape == wanted.shape and bool(got.isnan().any())), (
        f"entropy_from_scores holds NaN: a weight that rounds to zero has no logarithm; avoid logarithms of weights, "
        f"or set 0 log 0 to zero ({where})"
    )
    assert not (isinstance(got, Tensor) and bool(got.isinf().any())), (
        f"entropy_from_scores is infinite: exp overflowed or underflowed; use log_sum_exp ({where})"
    )
    average = (p * scores).sum(dim=-1)
    mistakes = {
        "the result is in bits; use natural logarithms": wanted / math.log(2),
        "the sign is wrong: an entropy is never negative": -wanted,
        "this is the effective count; its logarithm is the entropy": wanted.exp(),
        "the temperature is ignored": entropy(softmax(scores)),
        "divide the scores by the temperature; do not multiply them by it": entropy(softmax(scores * temperature)),
        "divide the scores by the temperature before the softmax, not the entropy after it": entropy(softmax(scores))
        / temperature,
        "the expected score must be divided by the temperature too": log_sum_exp(s) - average,
        "this is the log-sum-exp alone; subtract the expected score over the temperature": log_sum_exp(s),
        "a small number inside the logarithm changes the result; leave it out": [
            -(p * (p + eps).log()).sum(dim=-1) for eps in EPSILONS
        ],
    }
    compare("entropy_from_scores", got, wanted, mistakes, where=where, scores=s)


@check
def temperature_for(answer: Callable[[Tensor, float], float | Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the temperature at which a row of scores has a given effective count, up to 0.001 keys.

    The temperature is between 0.0015 and 750: some scores lie close together, and some lie far apart.
    """
    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < cases:
        m = int(torch.randint(2 if done else 4, 40, (), generator=generator))
        scores = 3 * torch.randn(m, generator=generator, dtype=torch.float64)
        temperature = 0.05 * 1000 ** float(torch.rand((), generator=generator, dtype=torch.float64))
        size = {2: 0.015, 3: 150.0}.get(done % 5, 1.0)
        scores, temperature = size * scores, size * temperature
        count = float(_effective_count_at(scores, temperature))
        in_range = 0.0015 < temperature < 750
        in_tail = size == 1.0 or temperature < 0.0095 or temperature > 105
        if in_range and in_tail and 1.05 < count < 0.95 * m:  # where the count determines the temperature
            _check_temperature(answer, scores, count)
            done += 1


def _check_temperature(answer: Callable[[Tensor, float], float | Tensor], scores: Tensor, count: float) -> None:
    where = f"{len(scores)} scores, count={count:.4g}"
    got = ask("temperature_for", answer, scores, count, where=where)
    one = got.reshape(()) if isinstance(got, Tensor) and got.numel() == 1 else got
    t = float(number("temperature_for", one, where))
    if _has_effective_count(t, scores, count):
        return
    mistakes = {
        "this is 1/T": _has_effective_count(1 / t if t else 0.0, scores, count),
        "this is the logarithm of T": _has_effective_count(math.exp(t) if abs(t) < 50 else 0.0, scores, count),
        "at this temperature the entropy equals count; the exponential of the entropy should equal count": _is_valid(t)
        and abs(float(entropy(softmax(scores, temperature=t))) - count) < 1e-3,
        "at this temperature the entropy in bits equals ln(count); use the same base for both logarithms": _is_valid(t)
        and abs(float(entropy(softmax(scores, temperature=t))) / math.log(2) - math.log(count)) < 1e-3,
    }
    for sentence, made in mistakes.items():
        assert not made, f"temperature_for is wrong: {sentence} ({where})"
    assert _is_valid(t), f"temperature_for must be positive and finite, got {t:.3g} ({where})"
    reached = float(_effective_count_at(scores, t))
    assert abs(reached - count) > 0.05, (
        f"temperature_for is close but not close enough: at T={t:.6g} the effective count is {reached:.4f}; "
        f"use more iterations ({where})"
    )
    side = "above" if reached > count else "below"
    raise AssertionError(
        f"temperature_for is wrong: at T={t:.3g} the effective count is {reached:.3g}, {side} the target; "
        f"the effective count grows with the temperature ({where})"
    )


def _is_valid(temperature: float) -> bool:
    return 1e-6 < temperature < 1e9


def _has_effective_count(temperature: float, scores: Tensor, count: float) -> bool:
    return _is_valid(temperature) and abs(float(_effective_count_at(scores, temperature)) - count) < 1e-3


def _effective_count_at(scores: Tensor, temperature: float) -> Tensor:
    return effective_count(softmax(scores, temperature=temperature))


@check
def query_key_information(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the mutual information of a uniformly drawn query and a key drawn from its row of weights."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, h, n, m = (torch.randperm(6, generator=generator)[:4] + 2).tolist()
        n, m = {2: (1, m), 3: (n, 1)}.get(case % 4, (n, m))
        leading = ((b,), (), (b, h))[case % 3]
        scores = 2 * torch.randn(*leading, n, m, generator=generator, dtype=torch.float64)
        a = softmax(scores)
        hidden = scores < scores.amax(dim=-1, keepdim=True) - 2
        _check_information(answer, a, f"n={n}, m={m}, leading axes {leading}")
        _check_information(answer, softmax(scores, ~hidden), f"n={n}, m={m}, leading axes {leading}, some weights zero")


def _check_information(answer: Callable[[Tensor], Tensor], a: Tensor, where: str) -> None:
    n = a.shape[-2]
    got = ask("query_key_information", answer, a, where=where)
    wanted = mutual_information(a / n)
    assert not (isinstance(got, Tensor) and got.shape == wanted.shape and bool(got.isnan().any())), (
        f"query_key_information holds NaN: 0 log 0 is zero here ({where})"
    )
    mean = a.mean(dim=-2)
    of_average, averaged = entropy(mean), entropy(a).mean(dim=-1)
    mistakes = {
        "this is the entropy of the average row; subtract the average entropy of the rows": of_average,
        "this is the average entropy of the rows; subtract it from the entropy of the average row": averaged,
        "the sign is wrong: the entropy of the average row is at least the average entropy of the rows": -wanted,
        "the result is in bits; use natural logarithms": wanted / math.log(2),
        "average the entropies of the rows; do not add them": of_average - n * averaged,
        "this is the sum over the queries; each query is drawn with probability 1/n": n * wanted,
        "every matrix has its own average row; do not average over leading axes": entropy(
            a.flatten(end_dim=-2).mean(dim=0)
        )
        - averaged,
        "average over the queries, the axis before the last, not over the keys": _swapped_axes(a),
        "the arguments of the divergence are swapped: use D(row || average row)": _reverse_divergence(a),
        "a small number inside the logarithm changes the result; leave it out": [
            (a * (a + eps).log()).sum(dim=-1).mean(dim=-1) - (mean * (mean + eps).log()).sum(dim=-1) for eps in EPSILONS
        ],
    }
    compare("query_key_information", got, wanted, mistakes, where=where)


def _swapped_axes(a: Tensor) -> Tensor:
    """Return the result if the two axes of the matrix are swapped: rows averaged over their keys."""
    per_row, plogp = a.mean(dim=-1), torch.special.entr(a)
    return torch.special.entr(per_row).sum(dim=-1) - plogp.sum(dim=-2).mean(dim=-1)


def _reverse_divergence(a: Tensor) -> Tensor:
    average = a.mean(dim=-2, keepdim=True)
    terms = torch.where(average > 0, average * (average.log() - a.log()), 0.0)
    return terms.sum(dim=-1).mean(dim=-1)
