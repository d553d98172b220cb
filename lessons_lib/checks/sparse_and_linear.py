"""Checks of the exercises on sparse and linear attention."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal


@check
def keys_first(answer: Callable[[Tensor, Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check linear attention from given features."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, m, r, d_v = (torch.randperm(6, generator=generator)[:4] + 2).tolist()
        n, m = {3: (1, m), 4: (n, 1)}.get(case % 5, (n, m))
        a, b = (normal(rows, r, generator=generator).exp() for rows in (n, m))
        v = normal(m, d_v, generator=generator)
        where = f"a {(n, r)}, b {(m, r)}, v {(m, d_v)}"
        got = ask("keys_first", answer, a, b, v, where=where)
        weights = a @ b.T
        summed = weights @ v
        total = weights.sum(-1, keepdim=True)
        lengths = a.norm(dim=-1, keepdim=True) * b.norm(dim=-1)
        compare(
            "the output",
            got,
            summed / total,
            {
                "the sum of the weights is not divided out": summed,
                "divide by the sum of the weights, not by the number of keys": summed / m,
                "one sum for all queries: each query has its own": summed / weights.sum(),
                "the mean of all sums: each query has its own": summed / total.mean(),
                "the weights of a query sum to one, not those of a key": (weights / weights.sum(0)) @ v,
                "no softmax: the products of features are the weights": weights.softmax(-1) @ v,
                "divide by the sum of the weights, not by its root": summed / total.sqrt(),
                "no cosine: the features are taken as they are": [
                    (weights / lengths) @ v / (weights / lengths).sum(-1, keepdim=True),
                    (weights / lengths) @ v,
                ],
                "that is the plain average: the query is not used": v.mean(0).expand(n, d_v),
                "the sum goes over keys, not over features": summed / a.sum(-1, keepdim=True),
            },
            where=where,
        )


@check
def write(answer: Callable[[Tensor, Tensor, Tensor, float, float], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check one write to the state with decay and the delta rule."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        d_k, d_v = (torch.randperm(5, generator=generator)[:2] + 2).tolist()
        d_k, d_v = {3: (1, d_v), 4: (d_k, 1)}.get(case % 5, (d_k, d_v))
        state = normal(d_k, d_v, generator=generator)
        key, value = normal(d_k, generator=generator), normal(d_v, generator=generator)
        beta, decay = (0.2 + 0.6 * torch.rand(2, generator=generator, dtype=torch.float64)).tolist()
        where = f"state {(d_k, d_v)}, beta={beta:.2f}, decay={decay:.2f}"
        got = ask("write", answer, state, key, value, beta, decay, where=where)
        faded, unit = decay * state, key / key.norm()

        def written(old: Tensor, u: Tensor, k: Tensor = key, beta: float = beta) -> Tensor:
            return old + beta * torch.outer(k, u)

        missing = value - faded.T @ key
        compare(
            "the state",
            got,
            written(faded, missing),
            {
                "compare with what the state says after it has faded": written(faded, value - state.T @ key),
                "the state fades first": [
                    written(state, value - state.T @ key),
                    written(state, missing),
                ],
                "the whole state fades, not what is written": decay * written(state, value - state.T @ key),
                "write the difference, not the value": [written(faded, value), written(faded, value, beta=1.0)],
                "only the share beta of the difference is written": written(faded, missing, beta=1.0),
                "beta is missing on what is taken away": faded + torch.outer(key, beta * value - faded.T @ key),
                "beta is missing on what is added": faded + torch.outer(key, value - beta * (faded.T @ key)),
                "write the difference, value less what is recalled": written(faded, -missing),
                "what is recalled is taken away, not added": written(faded, value + faded.T @ key),
                "the key is not normalised": [
                    written(faded, value - faded.T @ unit, unit),
                    written(faded, missing, unit),
                    written(faded, value - faded.T @ unit),
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

        def total(seen: Tensor) -> int:
            return int(seen.sum())

        def in_closed_form(s: int, n: int = n) -> int:
            return s * (s + 1) // 2 + (n - s) * s

        compare_number(
            "count_pairs",
            got,
            total(past & (near | first)),
            {
                "a pair that two rules allow counts once": total(near) + total(past & first),
                "the future is hidden, also for the first words": [
                    total(near | first),
                    total(near | first | first[:, None]),
                    total((i[:, None] - i).abs() < w) + 2 * n * g,
                    total(((i[:, None] - i).abs() < w) | first),
                ],
                "the first g words are seen besides the window": total(near) if g else -1,
                "the window is seen besides the first g words": total(past & first),
                "one word too many or too few: w counts the word itself, and the first g words are no more than g": [
                    total(past & ((i[:, None] - i <= w) | first)),
                    total(past & ((i[:, None] - i < w - 1) | first)),
                ],
                "no word sees more words than there are up to it: cut w + g off at n, not one of them or neither": [
                    in_closed_form(w + g),
                    in_closed_form(min(w, n) + g),
                    in_closed_form(w + min(g, n)),
                ],
                "a word sees itself": total((past & (near | first)) & (i[:, None] != i)),
                "the first words of the text have fewer before them": [n * w, n * (w + g)],
                "these are all pairs up to each word: most of them are not seen": total(past) if w + g < n else -1,
                "these are all pairs, the future among them": n * n,
            },
            where=where,
        )
