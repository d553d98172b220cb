"""Checks of the exercises on sparse and linear attention."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal


@check
def linear_attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check linear attention from given features."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, m, r, d_v = (torch.randperm(6, generator=generator)[:4] + 2).tolist()
        n, m = {3: (1, m), 4: (n, 1)}.get(case % 5, (n, m))
        a, b = (normal(rows, r, generator=generator).exp() for rows in (n, m))
        v = normal(m, d_v, generator=generator)
        where = f"phi_q {(n, r)}, phi_k {(m, r)}, v {(m, d_v)}"
        got = ask("linear_attention", answer, a, b, v, where=where)
        weights = a @ b.T
        summed = weights @ v
        total = weights.sum(-1, keepdim=True)
        lengths = a.norm(dim=-1, keepdim=True) * b.norm(dim=-1)
        compare(
            "the output",
            got,
            summed / total,
            {
                "divide by the sum of the weights": summed,
                "divide by the sum of the weights, not by the number of keys": summed / m,
                "you divide by one sum for all queries; each query has its own sum": summed / weights.sum(),
                "you divide by the mean of all sums; each query has its own sum": summed / total.mean(),
                "the weights sum to one over the keys of a query, not over the queries of a key": (
                    weights / weights.sum(0)
                )
                @ v,
                "do not use softmax: the weights are proportional to the products of features": weights.softmax(-1) @ v,
                "divide by the sum of the weights, not by its square root": summed / total.sqrt(),
                "do not use cosines: the features are not normalised": [
                    (weights / lengths) @ v / (weights / lengths).sum(-1, keepdim=True),
                    (weights / lengths) @ v,
                ],
                "you return the plain average of the values; the query is not used": v.mean(0).expand(n, d_v),
                "sum the weights over the keys, not the features of the query": summed / a.sum(-1, keepdim=True),
            },
            where=where,
        )


@check
def delta_update(
    answer: Callable[[Tensor, Tensor, Tensor, float, float], Tensor], *, seed: int = 0, cases: int = 5
) -> None:
    """Check one write to the state with decay and the delta rule."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        d_k, d_v = (torch.randperm(5, generator=generator)[:2] + 2).tolist()
        d_k, d_v = {3: (1, d_v), 4: (d_k, 1)}.get(case % 5, (d_k, d_v))
        state = normal(d_k, d_v, generator=generator)
        key, value = normal(d_k, generator=generator), normal(d_v, generator=generator)
        beta, decay = (0.2 + 0.6 * torch.rand(2, generator=generator, dtype=torch.float64)).tolist()
        where = f"state {(d_k, d_v)}, beta={beta:.2f}, decay={decay:.2f}"
        got = ask("delta_update", answer, state, key, value, beta, decay, where=where)
        decayed, unit = decay * state, key / key.norm()

        def written(old: Tensor, u: Tensor, k: Tensor = key, beta: float = beta) -> Tensor:
            return old + beta * torch.outer(k, u)

        missing = value - decayed.T @ key
        compare(
            "the state",
            got,
            written(decayed, missing),
            {
                "compare the value with what the decayed state returns, not the old state": written(
                    decayed, value - state.T @ key
                ),
                "multiply the state by decay first": [
                    written(state, value - state.T @ key),
                    written(state, missing),
                ],
                "decay multiplies the old state, not the new pair": decay * written(state, value - state.T @ key),
                "write the difference, not the value": [written(decayed, value), written(decayed, value, beta=1.0)],
                "the difference is multiplied by beta": written(decayed, missing, beta=1.0),
                "multiply the recalled value by beta too": decayed + torch.outer(key, beta * value - decayed.T @ key),
                "multiply the given value by beta too": decayed + torch.outer(key, value - beta * (decayed.T @ key)),
                "the difference is the value minus the recalled value": written(decayed, -missing),
                "the recalled value is subtracted, not added": written(decayed, value + decayed.T @ key),
                "the key is not normalised": [
                    written(decayed, value - decayed.T @ unit, unit),
                    written(decayed, missing, unit),
                    written(decayed, value - decayed.T @ unit),
                ],
                "the old state is missing": written(torch.zeros_like(state), missing),
            },
            where=where,
        )


@check
def count_pairs(answer: Callable[[int, int, int], int], *, seed: int = 0, cases: int = 8) -> None:
    """Check the number of query-key pairs of a causal window with global tokens at the start."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    for case in range(cases):
        n = draw(20, 60)
        w, g = draw(3, 8), draw(2, 6)
        if case % 4 == 1:
            g = 0
        if case % 4 == 2:
            w = n + draw(1, 9)
        if case % 4 == 3:
            w, g = draw(5, n // 2), n + draw(1, 5) if case % 8 == 3 else draw(n // 2, n)
        if case % 8 in (4, 5):
            n, w = (n, 1) if case % 8 == 4 else (1, w)
        where = f"n={n}, w={w}, g={g}"
        got = ask("count_pairs", answer, n, w, g, where=where)
        i = torch.arange(n)
        past = i[:, None] >= i
        near = past & (i[:, None] - i < w)
        first = i < g

        def total(mask: Tensor) -> int:
            return int(mask.sum())

        def in_closed_form(s: int, n: int = n) -> int:
            return s * (s + 1) // 2 + (n - s) * s

        compare_number(
            "count_pairs",
            got,
            total(past & (near | first)),
            {
                "a pair that both rules allow counts once": total(near) + total(past & first),
                "the mask is causal, also for the first g tokens": [
                    total(near | first),
                    total(near | first | first[:, None]),
                    total((i[:, None] - i).abs() < w) + 2 * n * g,
                    total(((i[:, None] - i).abs() < w) | first),
                ],
                "each token also attends to the first g tokens": total(near) if g else -1,
                "each token also attends to its window": total(past & first),
                "one token too many or too few: w counts the token itself, and only the first g tokens are global": [
                    total(past & ((i[:, None] - i <= w) | first)),
                    total(past & ((i[:, None] - i < w - 1) | first)),
                ],
                "no token attends to more tokens than there are up to it: limit the sum w + g to n": [
                    in_closed_form(w + g),
                    in_closed_form(min(w, n) + g),
                    in_closed_form(w + min(g, n)),
                ],
                "each token attends to itself": total((past & (near | first)) & (i[:, None] != i)),
                "the first tokens of the text have fewer tokens before them": [n * w, n * (w + g)],
                "you count all causal pairs; most of them are masked": total(past) if w + g < n else -1,
                "you count all pairs, including future keys": n * n,
            },
            where=where,
        )
