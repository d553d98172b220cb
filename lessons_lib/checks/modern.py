"""Checks of the exercises on what changed since 2017."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal, parts_in


@check
def balance_loss(answer: Callable[[Tensor, int], float], *, seed: int = 0, cases: int = 5) -> None:
    """Check the balance loss of a routing."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        n_experts, n = (torch.randperm(6, generator=generator)[:2] + torch.tensor([4, 11])).tolist()
        k = int(torch.randint(2, n_experts - 1, (), generator=generator))
        p = (2 * normal(n, n_experts, generator=generator)).softmax(-1)
        where = f"{n} words, {n_experts} experts, k={k}"
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
                "f counts choices, of which each word makes k": k * right,
                "the factor E, the number of experts, is missing": right / n_experts,
                "P is a mean over the words, not a sum": n * right,
                "f is a share, not a count": n * k * right,
                "the factor is the number of experts, not k": right * k / n_experts,
                "f counts choices; this squares the mean probabilities": (n_experts * (mean * mean).sum()).item(),
                "P is the mean probability; this squares the shares": (n_experts * (f * f).sum()).item(),
                "each word makes k choices, not one": (n_experts * (firsts.mean(0) * mean).sum()).item(),
                "P is the mean over all words, chosen or not": (n_experts * (f * (p * choices).mean(0)).sum()).item(),
                "P is made of the probabilities as they are, not divided by the sum of the chosen ones": (
                    n_experts * (f * (p * choices / (p * choices).sum(-1, keepdim=True)).mean(0)).sum()
                ).item(),
                "sum f times P over the experts, then multiply by E": (f.sum() * mean.sum() * n_experts).item(),
            },
            where=where,
        )


@check
def words_per_call(answer: Callable[[float, int], float], *, seed: int = 0, cases: int = 8) -> None:
    """Check how many words a call of the large model yields."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        alpha = float(torch.rand((), generator=generator, dtype=torch.float64)) * 0.7 + 0.15
        k = int(torch.randint(3, 12, (), generator=generator))
        if case == 2:
            alpha = 1.0
        elif case == 3:
            alpha = 0.0
        elif case == 4:
            k = 0
        where = f"alpha={alpha:.3g}, k={k}"
        got = ask("words_per_call", answer, alpha, k, where=where)
        right = math.fsum(alpha**j for j in range(k + 1))
        compare_number(
            "words_per_call",
            got,
            right,
            {
                "the large model adds a word of its own": right - 1,
                "all k may be kept, and then there are k + 1 words": right - alpha**k,
                "the words are kept from the first on: a word counts only if all before it were kept": 1 + k * alpha,
                "a word counts only if all before it were kept, and the large model adds one of its own": k * alpha,
                "only k words are drafted: the sum ends": 1 / (1 - alpha) if alpha < 1 else 0.0,
                "a power stands for each number of kept words; this is the chance that all are kept": (
                    alpha**k if alpha < 1 else math.nan
                ),
                "this is as if one refused word spoilt them all": 1 + k * alpha**k,
                "a word is kept with probability alpha, not refused": math.fsum((1 - alpha) ** j for j in range(k + 1)),
                "there are k + 1 terms, from the power 0 on": right + alpha ** (k + 1),
            },
            where=where,
        )


@check
def best_draft(answer: Callable[[float, float, int], int], *, seed: int = 0, cases: int = 10) -> None:
    """Check how many words to draft."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        alpha, share = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        alpha, c = 0.55 + 0.43 * alpha, (0.02, 0.1, 0.3)[case % 3] * (0.5 + share)
        most = int(torch.randint(18, 30, (), generator=generator))
        if case == 4:
            alpha, c = 0.2 + alpha / 10, 0.9  # drafting does not pay
        elif case == 5:
            alpha, c, most = 0.98, 0.01, 4  # the end of the range
        where = f"alpha={alpha:.3g}, c={c:.3g}, most={most}"
        got = ask("best_draft", answer, alpha, c, most, where=where)

        def best(gain: Callable[[int], float], first: int = 0, most: int = most) -> int:
            return max(range(first, most + 1), key=gain)

        def words(k: int, alpha: float = alpha) -> float:
            return math.fsum(alpha**j for j in range(k + 1))

        right = best(lambda k, c=c: words(k) / (1 + k * c))
        compare_number(
            "best_draft",
            got,
            right,
            {
                "the drafts take time too": best(words),
                "to draft nothing is allowed": best(lambda k, c=c: words(k) / (1 + k * c), 1),
                "the large model takes time too: a round takes 1 + k c": best(
                    lambda k, c=c: words(k) / (k * c) if k else 0.0
                ),
                "the large model's own word counts too": best(lambda k, c=c: (words(k) - 1) / (1 + k * c)),
                "a round takes the time of k calls of the small model, not of one": best(
                    lambda k, c=c: words(k) / (1 + c)
                ),
                "words for each unit of time are a quotient, not a difference": best(
                    lambda k, c=c: words(k) - 1 - k * c
                ),
                "the range ends at most, itself included": best(
                    lambda k, c=c: words(k) / (1 + k * c), 0, max(0, most - 1)
                ),
                "return the number of words to draft, not the gain": [
                    words(right) / (1 + right * c),
                    words(right),
                ],
            },
            where=where,
        )


@check
def ask_latent(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check absorbed queries, outputs, or both."""
    compared = parts_in(("absorbed", "outputs"), only)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        h, d, m, width, d_v = (torch.randperm(7, generator=generator)[:5] + 2).tolist()
        q, c = normal(h, d, generator=generator), normal(m, width, generator=generator)
        w_uk, w_uv = normal(h, d, width, generator=generator), normal(h, d_v, width, generator=generator)
        where = f"h={h}, d={d}, m={m}, d_c={width}, d_v={d_v}"
        returns = "the pair (absorbed queries, outputs)"
        got = ask("ask_latent", answer, q, c, w_uk, w_uv, where=where, returns=returns, parts=2)
        carried = torch.einsum("hd,hdc->hc", q, w_uk)
        scores = carried @ c.T

        def mixed(weights: Tensor, of: Tensor = w_uv, c: Tensor = c) -> Tensor:
            return torch.einsum("hm,mc,hvc->hv", weights, c, of)

        wanted = carried, mixed((scores / math.sqrt(d)).softmax(-1))
        mistakes = (
            {
                "the queries are carried over as they are; the root belongs to the scores": carried / math.sqrt(d),
                "each head has a matrix of its own": torch.einsum("hd,dc->hc", q, w_uk[0]),
                "each head carries its own query over": torch.einsum("d,hdc->hc", q[0], w_uk),
                "each head's query meets its own matrix, not all of them": torch.einsum("hd,gdc->hc", q, w_uk),
                "carry the query over by the keys' matrix alone": carried.softmax(-1),
            },
            {
                "the scores are divided by the root of d": mixed(scores.softmax(-1)),
                "divide by the root of d, the width of a query, not of d_c": mixed(
                    (scores / math.sqrt(width)).softmax(-1)
                ),
                "divide by the root of d, not by d": mixed((scores / d).softmax(-1)),
                "the softmax runs over the words, not over the heads": mixed((scores / math.sqrt(d)).softmax(0)),
                "the weights come out of a softmax": mixed(scores / math.sqrt(d)),
                "the weights are not all alike": mixed(torch.full_like(scores, 1 / m)),
                "a softmax makes the weights sum to one: do not divide by the number of words": wanted[1] / m,
                "each head has a matrix of its own for the values": torch.einsum(
                    "hm,mc,vc->hv", (scores / math.sqrt(d)).softmax(-1), c, w_uv[0]
                ),
            },
        )
        for i, name in compared:
            compare(name, got[i], wanted[i], mistakes[i], where=where)
