"""Checks of the exercises on modern architectures."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from lessons_lib.checks import ask, check, compare, compare_number, is_finite, normal, parts_to_compare


@check
def balance_loss(answer: Callable[[Tensor, int], float], *, seed: int = 0, cases: int = 5) -> None:
    """Check the load-balancing loss of a routing."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n_experts, n = (torch.randperm(6, generator=generator)[:2] + torch.tensor([4, 11])).tolist()
        k = int(torch.randint(2, n_experts - 1, (), generator=generator))
        k = {2: 1, 3: n_experts}.get(case % 5, k)
        logits = 2 * normal(n, n_experts, generator=generator)
        logits[:, -1] -= 20.0 if case % 5 == 1 else 0.0  # no token chooses the last expert
        p = logits.softmax(-1)
        where = f"{n} tokens, {n_experts} experts, k={k}" + ", no token chooses the last expert" * (case % 5 == 1)
        got = ask("balance_loss", answer, p, k, where=where)
        choices = torch.zeros_like(p).scatter(-1, p.topk(k, dim=-1).indices, 1.0)
        firsts = torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1.0)
        f, mean = choices.mean(0) / k, p.mean(0)
        right = (n_experts * (f * mean).sum()).item()
        compare_number(
            "balance_loss",
            got,
            right,
            {
                "f is a share of all n k choices: each token makes k choices": k * right,
                "the factor E, the number of experts, is missing": right / n_experts,
                "P is a mean over the tokens, not a sum": n * right,
                "f is a share, not a count": n * k * right,
                "the factor is the number of experts, not k": right * k / n_experts,
                "f is the share of the choices: this result squares the mean probabilities": (
                    n_experts * (mean * mean).sum()
                ).item(),
                "P is the mean probability: this result squares the shares": (n_experts * (f * f).sum()).item(),
                "each token makes k choices, not one": (n_experts * (firsts.mean(0) * mean).sum()).item(),
                "P is the mean over all tokens, also over those that did not choose the expert": (
                    n_experts * (f * (p * choices).mean(0)).sum()
                ).item(),
                "P is the mean of the given probabilities, not of probabilities renormalised over the chosen experts": (
                    n_experts * (f * (p * choices / (p * choices).sum(-1, keepdim=True)).mean(0)).sum()
                ).item(),
                "sum the products f_i P_i over the experts, then multiply by E": (
                    f.sum() * mean.sum() * n_experts
                ).item(),
            },
            where=where,
        )


@check
def swiglu(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check a gated feed-forward layer with SiLU."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, n, d, d_ff = (torch.randperm(6, generator=generator)[:4] + 3).tolist()
        d, d_ff = {2: (1, d_ff), 3: (d, 1)}.get(case % 5, (d, d_ff))
        leading = {1: (n,), 2: (b, n, 2), 4: (1,)}.get(case % 5, (b, n))
        x, scale = normal(*leading, d, generator=generator), 3000.0 if case % 5 == 1 else 1.0
        w_gate, w_up = scale * normal(d, d_ff, generator=generator), normal(d, d_ff, generator=generator)
        w_down = normal(d_ff, d, generator=generator) / scale
        where = f"x {tuple(x.shape)}, d_ff={d_ff}" + ", a large gate" * (case % 5 == 1)
        got = ask("swiglu", answer, x, w_gate, w_up, w_down, where=where)
        assert is_finite(got), f"swiglu is not finite: e^z / (1 + e^z) overflows for a large z ({where})"
        gate, up = x @ w_gate, x @ w_up
        compare(
            "swiglu",
            got,
            (silu(gate) * up) @ w_down,
            {
                "the activation belongs to the gate, not to the other product": (gate * silu(up)) @ w_down,
                "the activation is missing": (gate * up) @ w_down,
                "the activation is applied to the gate alone, not to the product": silu(gate * up) @ w_down,
                "only the gate has an activation": (silu(gate) * silu(up)) @ w_down,
                "silu(z) is z times the sigmoid of z, not the sigmoid alone": (gate.sigmoid() * up) @ w_down,
                "the activation is SiLU, not GELU": (gelu(gate) * up) @ w_down,
                "the activation is SiLU, not ReLU": (gate.relu() * up) @ w_down,
                "gate and up are multiplied, not added": (silu(gate) + up) @ w_down,
                "the product with x W_up is missing: this layer has no gate": silu(gate) @ w_down,
                "the gate is missing: it multiplies x W_up": [up @ w_down, silu(up) @ w_down],
                "the feed-forward layer does not add its input: the residual connection is outside": (
                    x + (silu(gate) * up) @ w_down
                ),
                "the last product is with W_down, without an activation": silu((silu(gate) * up) @ w_down),
            },
            where=where,
        )


@check
def gated_width(answer: Callable[[int, int], int], *, seed: int = 0, cases: int = 8) -> None:
    """Check the width of a gated layer that has at most as many weights as an ungated one."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        multiple = int(torch.randint(5, 40, (), generator=generator)) if case != 2 else 1
        quotient, rest = (int(torch.randint(low, high, (), generator=generator)) for low, high in ((7, 40), (1, 3)))
        d_ff = (3 * multiple * quotient + (2 if case % 2 else 2 * multiple - rest)) // 2
        d_ff = 3 * multiple * quotient if case in (3, 4) else d_ff  # the weights are equal
        where = f"d_ff={d_ff}, multiple={multiple}"
        got = ask("gated_width", answer, d_ff, multiple, where=where)
        right = 2 * d_ff // (3 * multiple) * multiple
        above = -(-2 * d_ff // (3 * multiple)) * multiple
        compare_number(
            "gated_width",
            got,
            right,
            {
                "at most as many weights: round down, not up": above,
                "the width must be a multiple": [2 * d_ff // 3, -(-2 * d_ff // 3), round(2 * d_ff / 3), 2 * d_ff / 3],
                "return the width, not the number of multiples": right // multiple,
                "SwiGLU has three matrices, the ungated layer two": [
                    d_ff // multiple * multiple,
                    d_ff // 2 // multiple * multiple,
                    d_ff // 3 // multiple * multiple,
                    3 * d_ff // 2 // multiple * multiple,
                ],
                "d_ff is the width of the ungated layer, not d": 8 * d_ff // (3 * multiple) * multiple,
                "as many weights are allowed: the width may be equal to two thirds of d_ff": (
                    (2 * d_ff - 1) // (3 * multiple) * multiple
                ),
            },
            where=where,
        )


@check
def tokens_per_call(answer: Callable[[float, int], float], *, seed: int = 0, cases: int = 8) -> None:
    """Check the expected number of tokens per call of the large model in speculative decoding."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        alpha = float(torch.rand((), generator=generator, dtype=torch.float64)) * 0.7 + 0.15
        k = int(torch.randint(3, 12, (), generator=generator))
        if case == 2:
            alpha = 1.0
        elif case == 3:
            alpha = 0.0
        elif case in (4, 5):
            k = case - 4
        where = f"alpha={alpha:.3g}, k={k}"
        got = ask("tokens_per_call", answer, alpha, k, where=where)
        right = math.fsum(alpha**j for j in range(k + 1))
        compare_number(
            "tokens_per_call",
            got,
            right,
            {
                "the large model adds a token of its own": right - 1,
                "all k tokens may be accepted, and then there are k + 1 tokens": right - alpha**k,
                "a drafted token counts only if all drafted tokens before it were accepted": 1 + k * alpha,
                "a drafted token counts only if all before it were accepted, and the large model adds a token": k
                * alpha,
                "only k tokens are drafted: the sum is finite": 1 / (1 - alpha) if alpha < 1 else 0.0,
                "this is the probability that all k tokens are accepted: the mean is a sum of several powers": (
                    alpha**k if alpha < 1 else math.nan
                ),
                "a rejected token does not discard the accepted tokens before it": 1 + k * alpha**k,
                "a token is accepted with probability alpha, not rejected": math.fsum(
                    (1 - alpha) ** j for j in range(k + 1)
                ),
                "there are k + 1 terms, from the power 0 on": right + alpha ** (k + 1),
            },
            where=where,
        )


@check
def best_draft(answer: Callable[[float, float, int], int], *, seed: int = 0, cases: int = 10) -> None:
    """Check the best number of tokens to draft, also if none may be drafted."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        alpha, c, most, right, mistakes = _draft_case(case, generator)
        where = f"alpha={alpha:.3g}, c={c:.3g}, most={most}"
        got = ask("best_draft", answer, alpha, c, most, where=where)
        compare_number("best_draft", got, right, mistakes, where=where)


def _draft_case(case: int, generator: torch.Generator) -> tuple[float, float, int, int, dict[str, int | list[float]]]:
    """Return the cost of a draft, the best number and the number with each mistake; all differ in the first case."""
    while True:
        alpha, share = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        alpha, c = 0.55 + 0.43 * alpha, (0.3, 0.1, 0.02)[case % 3] * (0.5 + share)
        most = int(torch.randint(18, 30, (), generator=generator))
        special = {
            4: (0.2 + alpha / 10, 0.9, most),  # drafting does not pay
            5: (0.98, 0.01, 4),  # the best number is the largest allowed
            6: (0.5, 0.5, most),  # one drafted token is as good as none
            7: (1.0, c, most),
            8: (0.0, c, most),
            9: (alpha, c, 0),
        }
        alpha, c, most = special.get(case, (alpha, c, most))
        right, mistakes = _best_draft_and_mistakes(alpha, c, most)
        gains = sorted(_mean_tokens(alpha, k) / (1 + k * c) for k in range(most + 1))
        apart = len(gains) < 2 or gains[-1] - gains[-2] > 1e-5  # the same choice in single precision
        by_itself = [made for made in mistakes.values() if isinstance(made, int) and made != right]
        told_apart = len(set(by_itself)) == len(by_itself) == len(mistakes) - 4
        if case in special or (apart and (case or told_apart)):
            return alpha, c, most, right, mistakes


def _mean_tokens(alpha: float, k: int) -> float:
    return math.fsum(alpha**j for j in range(k + 1))


def _best_draft_and_mistakes(alpha: float, c: float, most: int) -> tuple[int, dict[str, int | list[float]]]:
    """Return the best number of tokens to draft, and the number with each mistake."""

    def best(gain: Callable[[float, int], float], drafts: Sequence[int] = range(most + 1)) -> int:
        return max(drafts, key=lambda k: gain(_mean_tokens(alpha, k), k))

    def rate(tokens: float, k: int) -> float:
        return tokens / (1 + k * c)

    right = best(rate)
    return right, {
        "the calls of the small model take time too": best(lambda tokens, k: tokens),
        "if two numbers are equally good, return the smaller one": best(rate, range(most, -1, -1)),
        "k = 0 is allowed": best(rate, range(min(1, most), most + 1)),
        "the call of the large model takes time too: a round takes 1 + k c": best(
            lambda tokens, k: tokens / (k * c) if k and c else 0.0
        ),
        "the large model's own token counts too": best(lambda tokens, k: rate(tokens - 1, k)),
        "tokens per unit of time are a quotient, not a difference": best(lambda tokens, k: tokens - 1 - k * c),
        "k tokens take k calls of the small model, not k + 1: a round takes 1 + k c": best(
            lambda tokens, k: tokens / (1 + (k + 1) * c)
        ),
        "the range includes most": best(rate, range(max(1, most))),
        "return the number of tokens to draft, not the tokens or the tokens per unit of time": [
            rate(_mean_tokens(alpha, right), right),
            _mean_tokens(alpha, right),
        ],
    }


@check
def latent_attention(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check multi-head latent attention: the absorbed queries, the outputs, or both."""
    compared = parts_to_compare(("absorbed", "outputs"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        h, d, m, width, d_v = (torch.randperm(7, generator=generator)[:5] + 2).tolist()
        h, m = {2: (1, m), 3: (h, 1)}.get(case % 4, (h, m))
        q, c = normal(h, d, generator=generator), normal(m, width, generator=generator)
        w_uk, w_uv = normal(h, d, width, generator=generator), normal(h, d_v, width, generator=generator)
        where = f"h={h}, d={d}, m={m}, d_c={width}, d_v={d_v}"
        returns = "the pair (absorbed queries, outputs)"
        got = ask("latent_attention", answer, q, c, w_uk, w_uv, where=where, returns=returns, parts=2)
        carried = torch.einsum("hd,hdc->hc", q, w_uk)
        scores = carried @ c.T

        def mixed(weights: Tensor, of: Tensor = w_uv, c: Tensor = c) -> Tensor:
            return torch.einsum("hm,mc,hvc->hv", weights, c, of)

        wanted = carried, mixed((scores / math.sqrt(d)).softmax(-1))
        mistakes = (
            {
                "divide the scores by the root of d, not the absorbed queries": carried / math.sqrt(d),
                "each head has its own key matrix": torch.einsum("hd,dc->hc", q, w_uk[0]),
                "each head has its own query": torch.einsum("d,hdc->hc", q[0], w_uk),
                "multiply each head's query with the matrix of this head only": torch.einsum("hd,gdc->hc", q, w_uk),
                "the absorbed queries are linear in the queries, without a softmax": carried.softmax(-1),
            },
            {
                "the scores must be divided by the root of d": mixed(scores.softmax(-1)),
                "divide by the root of d, the width of a query, not of d_c": mixed(
                    (scores / math.sqrt(width)).softmax(-1)
                ),
                "divide by the root of d, not of the number of heads": mixed((scores / math.sqrt(h)).softmax(-1)),
                "divide by the root of d, not by d": mixed((scores / d).softmax(-1)),
                "the softmax runs over the tokens, not over the heads": mixed((scores / math.sqrt(d)).softmax(0)),
                "the attention weights need a softmax": mixed(scores / math.sqrt(d)),
                "the attention weights must not be uniform": mixed(torch.full_like(scores, 1 / m)),
                "the softmax already makes the weights sum to one: do not divide by the number of tokens": wanted[1]
                / m,
                "each head has its own value matrix": torch.einsum(
                    "hm,mc,vc->hv", (scores / math.sqrt(d)).softmax(-1), c, w_uv[0]
                ),
            },
        )
        for i, name in compared:
            compare(name, got[i], wanted[i], mistakes[i], where=where)
