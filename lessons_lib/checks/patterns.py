"""Checks of the exercises on attention patterns and circuits."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal

Score = Callable[[Tensor, Tensor, Tensor], Tensor]


@check
def pattern_score(answer: Score, *, seed: int = 0, cases: int = 5) -> None:
    """Check the normalised weight above chance on a pattern's targets."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = int(torch.randint(5, 12, (), generator=generator))
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        visible = causal if case % 2 == 0 else causal | (torch.rand(n, n, generator=generator) < 0.4)
        target = torch.rand(n, n, generator=generator) < 0.3
        target[n - 1, 0], target[1, n - 1], visible[1, n - 1] = True, True, False  # a visible and a hidden target
        target[2], visible[2, 0] = False, True  # a row without targets
        scores = normal(n, n, generator=generator) + (2 if case % 3 else -2) * target  # clearly above or below chance
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        where = f"n={n}, {'causal' if case % 2 == 0 else 'another mask'}"
        got = ask("pattern_score", answer, weights, target, visible, where=where)
        wanted, n_seen = (target & visible).double(), visible.double().sum(-1)
        has = wanted.sum(-1) > 0
        chance, on = wanted.sum(-1) / n_seen, (weights * wanted).sum(-1)
        of_all = target.double().sum(-1) / n_seen
        right = ((on - chance)[has].sum() / (1 - chance)[has].sum()).item()
        compare_number(
            "pattern_score",
            got,
            right,
            {
                "subtract the chance level, the weight that a uniform head gives to the targets": [
                    on[has].mean().item(),
                    on.mean().item(),
                    (on[has].sum() / (1 - chance)[has].sum()).item(),
                ],
                "divide by the largest possible weight above chance, the sum of 1 - u": [
                    (on - chance)[has].mean().item(),
                    (on - chance)[has].sum().item(),
                    (on - chance).mean().item(),
                ],
                "leave rows without targets out of the denominator too": (
                    (on - chance).sum() / (1 - chance).sum()
                ).item(),
                "the score is a quotient of two sums, not a mean of the rows' quotients": (
                    ((on - chance) / (1 - chance))[has & (chance < 1)].mean().item()
                ),
                "a target that the query may not attend to does not count": [
                    ((on - of_all)[target.any(-1)].sum() / (1 - of_all)[target.any(-1)].sum()).item(),
                    ((on - of_all)[has].sum() / (1 - of_all)[has].sum()).item(),
                ],
                "the chance level is computed over the keys that the query may attend to, not over all keys": (
                    ((on - wanted.sum(-1) / n)[has].sum() / (1 - wanted.sum(-1) / n)[has].sum()).item()
                ),
                "do not clip the score at zero": 0.0 if right < 0 else float("nan"),
            },
            where=where,
            least=1.0,
        )


@check
def circuit_scores(answer: Score, *, seed: int = 0, cases: int = 4) -> None:
    """Check the scores of the second layer of an induction circuit."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, d = (torch.randperm(7, generator=generator)[:2] + 3).tolist()
        n = 1 if case % 4 == 3 else n
        e = normal(n, d, generator=generator)
        w_ov, w_qk = normal(2, d, d, generator=generator).unbind()
        where = f"n={n}, d={d}"
        got = ask("circuit_scores", answer, e, w_ov, w_qk, where=where)
        before = torch.cat([e[:1], e[:-1]])
        stream = e + before @ w_ov
        after = torch.cat([e[1:], e[-1:]])
        none_first = before.clone()
        none_first[0] = 0
        right, past = e @ w_qk @ stream.T, torch.ones(n, n, dtype=torch.bool).tril()
        compare(
            "circuit_scores",
            got,
            right,
            {
                "the keys are made from the stream after layer 1, which also contains e: the layer adds its output": (
                    e @ w_qk @ (before @ w_ov).T
                ),
                "the output of layer 1 is missing in the keys": e @ w_qk @ e.T,
                "the queries are made from the embeddings alone": stream @ w_qk @ stream.T,
                "the output of layer 1 belongs in the keys, not in the queries": stream @ w_qk @ e.T,
                "the scores are transposed: rows are queries, columns are keys": right.T,
                "a row stands to the left of its matrix: q W_QK k^T, not with W_QK transposed": e @ w_qk.T @ stream.T,
                "a row stands to the left of its matrix: e W_OV, not with W_OV transposed": (
                    e @ w_qk @ (e + before @ w_ov.T).T
                ),
                "layer 1 attends to the previous token, not to the next one": [
                    e @ w_qk @ (e + after @ w_ov).T,
                    e @ w_qk @ (e + e.roll(-1, 0) @ w_ov).T,
                ],
                "the first token attends to itself, not to the last token": e @ w_qk @ (e + e.roll(1, 0) @ w_ov).T,
                "the first token attends to itself, not to nothing": e @ w_qk @ (e + none_first @ w_ov).T,
                "W_OV is missing: layer 1 adds the previous embedding times W_OV": e @ w_qk @ (e + before).T,
                "do not scale the scores": right / d**0.5,
                "without dims=0, roll shifts the flattened tensor": (e @ w_qk @ (e + e.roll(1) @ w_ov).T),
                "return the scores, without a softmax": right.softmax(-1),
                "do not apply a mask": [right.tril(), right.masked_fill(~past, -torch.inf)],
            },
            where=where,
        )


@check
def other_weights(answer: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check different weights with the same average of the values, at least one of them zero."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        d = int(torch.randint(1, 7, (), generator=generator))
        m = d + 2 + int(torch.randint(0, 9, (), generator=generator))
        a = normal(m, generator=generator).softmax(-1)
        v = normal(m, d, generator=generator)
        where = f"m={m}, d={d}"
        got = ask("other_weights", answer, a, v, where=where)
        assert isinstance(got, Tensor), f"other_weights must be a tensor, got {type(got).__name__}"
        assert got.shape == a.shape, f"other_weights must have shape {tuple(a.shape)}, got {tuple(got.shape)} ({where})"
        assert got.is_floating_point(), f"other_weights must be floating point, got {got.dtype} ({where})"
        rounding = 1e-8 if got.dtype == torch.float64 else 1e-4
        w = got.detach().double()
        assert bool(w.isfinite().all()), f"other_weights holds a NaN or an infinity ({where})"
        assert float((w - a).abs().max()) > 1e-6, f"these are the given weights: return different ones ({where})"
        assert float(w.min()) >= -1e-9, f"no weight may be negative, got {float(w.min()):.2g} ({where})"
        total = float(w.sum())
        assert abs(total - 1) < rounding, (
            f"the weights must sum to one, got {total:.6g}: the entries of delta must sum to zero ({where})"
        )
        off = float((w @ v - a @ v).abs().max())
        assert off < 10 * rounding, f"the weighted average of the values changed by up to {off:.2g} ({where})"
        assert float(w.min()) <= 1e-9, (
            f"no weight is zero, the smallest is {float(w.min()):.2g}: move farther along delta ({where})"
        )
