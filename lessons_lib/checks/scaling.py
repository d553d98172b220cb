"""Checks of the exercises on scaling."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention_vjp, attention_weights
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import (
    ask,
    check,
    compare,
    compare_number,
    is_finite,
    parts_to_compare,
    with_row_offsets,
    without_autograd,
)


@check
def right_scale(answer: Callable[[int, float, float], float | Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the scale with which the scores of queries and keys of given variances have variance one."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        d_k = 1 if case % 5 == 4 else int(torch.randint(2, 2000, (), generator=generator))
        var_q, var_k = (torch.rand(2, generator=generator, dtype=torch.float64) * 8 + 0.25).tolist()
        where = f"d_k={d_k}, var_q={var_q:.3g}, var_k={var_k:.3g}"
        spread = math.sqrt(d_k * var_q * var_k)
        mistakes = {
            "the square root is missing: a factor s multiplies the variance by s²": 1 / spread**2,
            "this is the standard deviation of the scores; the factor is the inverse of the standard deviation": spread,
            "var_q and var_k are ignored: this factor is right only for unit variances": 1 / math.sqrt(d_k),
            "multiply the variances of q and k; do not add them": 1 / math.sqrt(d_k * (var_q + var_k)),
            "take the square root of d_k too": 1 / (d_k * math.sqrt(var_q * var_k)),
            "take the square root of var_q and var_k too: they are variances, not standard deviations": 1
            / (math.sqrt(d_k) * var_q * var_k),
        }
        got = ask("right_scale", answer, d_k, var_q, var_k, where=where)
        compare_number("right_scale", got, 1 / spread, mistakes, where=where)


@check
def stable_softmax(answer: Callable[[Tensor, float], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check a softmax with temperature over the last axis, for small scores and for scores that overflow ``exp``."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m = torch.randint(2, 8, (3,), generator=generator).tolist()
        n = 1 if case % 4 == 3 else n
        shape = [(b, n, m + n), (n, m + n), (m + n,), (n, 1)][case % 4]
        temperature = float(torch.rand((), generator=generator, dtype=torch.float64)) * 2 + 0.25
        scores = torch.randn(shape, generator=generator, dtype=torch.float64)
        _check_softmax(answer, scores, temperature, "scores near 0")
        _check_softmax(answer, scores + 5000, temperature, "scores near 5000")
        _check_softmax(answer, with_row_offsets(scores, 5000.0), temperature, "rows from -5000 to 5000")
        for raised, kind in with_one_outlier(scores, 1000 * temperature, generator):
            _check_softmax(answer, raised, temperature, kind)


def _check_softmax(answer: Callable[[Tensor, float], Tensor], scores: Tensor, temperature: float, kind: str) -> None:
    where = f"{kind}, shape {tuple(scores.shape)}, temperature {temperature:.3g}"
    got = ask("stable_softmax", answer, scores, temperature, where=where)
    cause = "subtract the maximum of each row" + subtraction_hint(kind)
    assert is_finite(got), f"exp overflowed or underflowed: {cause} ({where})"
    s = scores / temperature
    mistakes = {
        "the temperature is ignored": softmax(scores),
        "divide the scores by the temperature; do not multiply them by it": softmax(scores * temperature),
        "divide the scores by the temperature before the softmax, not the weights after it": softmax(scores)
        / temperature,
    } | denominator_mistakes(s)
    compare("stable_softmax", got, softmax(s), mistakes, where=where, scores=s)


def with_one_outlier(scores: Tensor, step: float, generator: torch.Generator) -> list[tuple[Tensor, str]]:
    """Return the scores with one score of each row far below the others, and with one far above the others.

    If the minimum is subtracted instead of the maximum, a step of 1000 overflows ``exp``. A quarter of it does not, so
    subtracting the mean of four or more scores passes the first case and needs the second.
    """
    m = scores.shape[-1]
    chosen = torch.arange(m) == m - 1 - int(torch.randint(max(1, m - 1), (), generator=generator))  # not the first
    below, above = scores.masked_fill(chosen, -step), scores.masked_fill(chosen, 5 * step)
    return [(below, "one score of a row far below the others"), (above, "one score of a row far above the others")]


def subtraction_hint(kind: str) -> str:
    """Return the part of a message that names the value subtracted instead of the maximum, for scores of this kind."""
    if kind.startswith("one score of a row"):
        return ", not its minimum" if "below" in kind else ", not its mean and not its first entry"
    return ", not of the whole tensor" if kind.startswith(("rows", "one long")) else " first"


def denominator_mistakes(scores: Tensor) -> dict[str, Tensor]:
    """Return the softmax with a wrong denominator, and without one."""
    of_queries = (
        {} if scores.dim() < 2 else {"the sum runs over the last axis, the keys of each query": softmax(scores.mT).mT}
    )
    return of_queries | {
        "the sum runs over each row, not over the whole tensor": softmax(scores.flatten()).view(scores.shape),
        "the weights are not divided by their sum": (scores - scores.amax(dim=-1, keepdim=True)).exp(),
    }


@check
def attention_backward(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check the gradients of scaled attention with respect to queries, keys and values, or ``only`` one."""
    compared = sorted(parts_to_compare(("grad_q", "grad_k", "grad_v"), only), key=lambda part: "vqk".index(part[1][-1]))
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, m, d_k, d_v = (torch.randperm(7, generator=generator)[:5] + 2).tolist()
        b, n, m = {2: (b, 1, m), 3: (1, n, 1)}.get(case % 4, (b, n, m))
        leading = [(), (b,), (b, 2), (b,)][case % 4]
        q, k, v, grad_out = (
            torch.randn(*leading, rows, width, generator=generator, dtype=torch.float64)
            for rows, width in ((n, d_k), (m, d_k), (m, d_v), (n, d_v))
        )
        where = f"n={n}, m={m}, d_k={d_k}, d_v={d_v}, leading axes {leading}"
        with without_autograd():
            returns = "three gradients, grad_q, grad_k, grad_v"
            got = ask("attention_backward", answer, q, k, v, grad_out, where=where, returns=returns, parts=3)
        wanted = attention_vjp(q, k, v, grad_out)[:3]
        mistakes = _backward_mistakes(q, k, v, grad_out)
        shapes, swapped = ([tuple(getattr(x, "shape", ())) for x in gradients] for gradients in (wanted, got))
        assert shapes == swapped or sorted(shapes) != sorted(swapped), (
            f"the gradients must be in the order grad_q, grad_k, grad_v, with shapes {shapes}, got {swapped} ({where})"
        )
        for i, name in compared:
            compare(name, got[i], wanted[i], {why: wrong[i] for why, wrong in mistakes.items()}, where=where)


def _backward_mistakes(q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return the three gradients with each likely mistake."""
    d_k, grad_a = q.shape[-1], grad_out @ v.mT
    root = 1 / math.sqrt(d_k)
    a, unscaled, by_width = (attention_weights(q, k, scale=scale) for scale in (root, 1.0, 1 / d_k))

    def jacobian(a: Tensor, over: int = -1) -> Tensor:
        return a * (grad_a - (a * grad_a).sum(over, keepdim=True))

    def back(a: Tensor, grad_s: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        return scale * grad_s @ k, scale * grad_s.mT @ q, a.mT @ grad_out

    grad_q, grad_k, grad_v = back(a, jacobian(a), root)
    return {
        "the scores are not divided by sqrt(d_k) before the softmax": back(unscaled, jacobian(unscaled), 1.0),
        "the scores are divided by d_k instead of sqrt(d_k)": back(by_width, jacobian(by_width), 1 / d_k),
        "the softmax Jacobian is missing between the weights and the scores": back(a, grad_a, root),
        "the off-diagonal part of the softmax Jacobian is missing: a higher score lowers the other weights": back(
            a, a * (1 - a) * grad_a, root
        ),
        "the row sum of A * dA is not subtracted": back(a, a * grad_a, root),
        "subtract the average of dA weighted by A, not the plain mean of dA": back(
            a, a * (grad_a - grad_a.mean(dim=-1, keepdim=True)), root
        ),
        "the sum of A * dA runs over the keys of each query, the last axis": back(a, jacobian(a, over=-2), root),
        "the factor 1/sqrt(d_k) of the scores is missing in this gradient": back(a, jacobian(a), 1.0),
        "the factor of this gradient is the factor of the forward pass, 1/sqrt(d_k), not 1/d_k": back(
            a, jacobian(a), 1 / d_k
        ),
        "this gradient has no factor 1/sqrt(d_k): only the scores are scaled": (
            grad_q,
            grad_k,
            root * grad_v,
        ),
    }
