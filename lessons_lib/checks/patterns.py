"""Checks of the exercises on attention patterns and circuits."""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal

Score = Callable[[Tensor, Tensor, Tensor], Tensor]


@check
def pattern_score(answer: Score, *, seed: int = 0, cases: int = 5) -> None:
    """Check the share of weight on a pattern's targets above the chance level."""
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
                "chance is missing: take away what a head without preference gives to the targets": [
                    on[has].mean().item(),
                    on.mean().item(),
                    (on[has].sum() / (1 - chance)[has].sum()).item(),
                ],
                "divide by what there could be beyond chance, the sum of 1 - u": [
                    (on - chance)[has].mean().item(),
                    (on - chance)[has].sum().item(),
                    (on - chance).mean().item(),
                ],
                "a row without targets must not count in the lower sum either": (
                    (on - chance).sum() / (1 - chance).sum()
                ).item(),
                "it is one sum over another, not a mean of the rows' own quotients": (
                    ((on - chance) / (1 - chance))[has & (chance < 1)].mean().item()
                ),
                "a target that may not be seen is none": [
                    ((on - of_all)[target.any(-1)].sum() / (1 - of_all)[target.any(-1)].sum()).item(),
                    ((on - of_all)[has].sum() / (1 - of_all)[has].sum()).item(),
                ],
                "chance counts the keys that the query may see, not all": (
                    ((on - wanted.sum(-1) / n)[has].sum() / (1 - wanted.sum(-1) / n)[has].sum()).item()
                ),
                "do not cut the score off at zero": 0.0 if right < 0 else float("nan"),
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
                "the keys are made from the stream after layer 1, which holds e too: the layer adds": (
                    e @ w_qk @ (before @ w_ov).T
                ),
                "the first layer's note is missing in the keys": e @ w_qk @ e.T,
                "the queries are made from the embeddings alone": stream @ w_qk @ stream.T,
                "the notes belong in the keys, not in the queries": stream @ w_qk @ e.T,
                "rows are queries, columns keys: it came out transposed": right.T,
                "a row stands to the left of its matrix: q W_QK k^T, not with W_QK transposed": e @ w_qk.T @ stream.T,
                "a row stands to the left of its matrix: e W_OV, not with W_OV transposed": (
                    e @ w_qk @ (e + before @ w_ov.T).T
                ),
                "the note is of the token before, not of the one after": [
                    e @ w_qk @ (e + after @ w_ov).T,
                    e @ w_qk @ (e + e.roll(-1, 0) @ w_ov).T,
                ],
                "the first token looks at itself, not at the last": e @ w_qk @ (e + e.roll(1, 0) @ w_ov).T,
                "the first token looks at itself, not at nothing": e @ w_qk @ (e + none_first @ w_ov).T,
                "W_OV is missing: the note is the earlier embedding times W_OV": e @ w_qk @ (e + before).T,
                "no scaling was asked for": right / d**0.5,
                "roll moves all numbers as one long row, if it is not told the axis: dims=0": (
                    e @ w_qk @ (e + e.roll(1) @ w_ov).T
                ),
                "return the scores: no softmax was asked for": right.softmax(-1),
                "nothing is hidden here: no mask": [right.tril(), right.masked_fill(~past, -torch.inf)],
            },
            where=where,
        )


@check
def other_weights(answer: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check other weights with the same average of the values, one of them zero."""
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
        assert float((w - a).abs().max()) > 1e-6, f"these are the weights that were given; others are wanted ({where})"
        assert float(w.min()) >= -1e-9, f"no weight may be negative, got {float(w.min()):.2g} ({where})"
        total = float(w.sum())
        assert abs(total - 1) < rounding, f"the weights must sum to one, got {total:.6g}: sum of delta zero ({where})"
        off = float((w @ v - a @ v).abs().max())
        assert off < 10 * rounding, f"the average of the values changed, by up to {off:.2g} ({where})"
        assert float(w.min()) <= 1e-9, f"no weight is zero, the smallest is {float(w.min()):.2g}: go farther ({where})"
