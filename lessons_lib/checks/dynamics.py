"""Checks of the exercises on training dynamics."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.analysis.diagnostics import attention_entropy, token_spread
from lessons_lib.analysis.information import entropy
from lessons_lib.attention.masks import causal
from lessons_lib.attention.softmax import softmax
from lessons_lib.checks import ask, check, compare, number
from lessons_lib.checks.information import EPSILONS
from lessons_lib.training.loop import warmup_cosine


@check
def spread(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 5) -> None:
    """Check the token spread, for any number of leading axes."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        b, h, n, d = (torch.randperm(7, generator=generator)[:4] + 2).tolist()
        leading = [(), (b,), (b, h), (1,), (1, b)][case % 5]
        n, d = {3: (n, 1), 4: (1, d)}.get(case % 5, (n, d))
        common = torch.randn(*leading, 1, d, generator=generator, dtype=torch.float64) * 2
        x = common + torch.randn(*leading, n, d, generator=generator, dtype=torch.float64)
        where = f"shape {tuple(x.shape)}"
        got = ask("spread", answer, x, where=where)
        length = torch.linalg.matrix_norm(x)

        def share(centred: Tensor, length: Tensor = length) -> Tensor:
            return torch.linalg.matrix_norm(centred) / length

        over_tokens, over_entries = x.mean(-2, keepdim=True), x.mean(-1, keepdim=True)
        everything = x.flatten(0, -2).mean(0) if leading else over_tokens
        mistakes = {
            "the mean is over the tokens, axis -2, not over the entries of each token": share(x - over_entries),
            "each sequence has its own mean token: do not average over the leading axes": share(x - everything),
            "both norms are roots of sums of squares: a root is missing": share(x - over_tokens).square(),
            "a norm adds the squares: a standard deviation divides their sum by n or by n - 1": [
                x.std(-2, unbiased=unbiased).norm(dim=-1) / length * root
                for unbiased in (True, False)
                for root in ((1.0, math.sqrt(n)) if unbiased else (1.0,))
                if n > 1
            ],
            "divide by the norm of X": torch.linalg.matrix_norm(x - over_tokens),
            "this is the share that all tokens have in common, not the token spread": share(over_tokens.expand_as(x)),
            "this is the spectral norm, the largest singular value: use the root of the sum of all squares": (
                torch.linalg.matrix_norm(x - over_tokens, 2) / torch.linalg.matrix_norm(x, 2)
            ),
        }
        compare("spread", got, token_spread(x), mistakes, where=where)


@check
def schedule(answer: Callable[[int, int, int, float], float | Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check a learning-rate schedule of warm-up, cosine decay and a minimum, at every step and after the end."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n_warmup = int(torch.randint(2, 20, (), generator=generator))
        n_warmup = {2: 1, 3: 0}.get(case % 4, n_warmup)
        n_steps = n_warmup + int(torch.randint(20, 60, (), generator=generator))
        floor = float(torch.rand((), generator=generator, dtype=torch.float64)) * 0.3 + 0.05
        steps = range(n_steps + 20)
        where = f"n_warmup={n_warmup}, n_steps={n_steps}, floor={floor:.3g}, steps 0 to {n_steps + 19}"
        got = [ask("schedule", answer, step, n_warmup, n_steps, floor, where=where) for step in steps]
        wanted = [warmup_cosine(s, n_warmup=n_warmup, n_steps=n_steps, final_share=floor) for s in steps]

        def wave(progress: float) -> float:
            return (1 + math.cos(math.pi * progress)) / 2

        def cosine(step: int, n_warmup: int = n_warmup, n_steps: int = n_steps) -> float:
            return wave(min(1.0, (step - n_warmup) / (n_steps - n_warmup)))

        def ramp(step: int, n_warmup: int = n_warmup) -> float:
            return (step + 1) / n_warmup

        def curve(
            up: Callable[[int], float], down: Callable[[int], float], n_warmup: int = n_warmup, steps: range = steps
        ) -> Tensor:
            return torch.tensor([up(s) if s < n_warmup else down(s) for s in steps], dtype=torch.float64)

        def to_floor(share: float, floor: float = floor) -> float:
            return floor + (1 - floor) * share

        def unclamped(step: int, n_warmup: int = n_warmup, n_steps: int = n_steps) -> float:
            return wave((step - n_warmup) / (n_steps - n_warmup))

        def from_zero(step: int, n_steps: int = n_steps) -> float:
            return wave(min(1.0, step / n_steps))

        def late(step: int, n_warmup: int = n_warmup) -> float:
            return step / n_warmup

        def down(step: int) -> float:
            return to_floor(cosine(step))

        def ending(step: int, later: int, n_warmup: int = n_warmup, n_steps: int = n_steps) -> float:
            return wave(min(1.0, (step - n_warmup) / (n_steps + later - n_warmup)))

        def beginning(step: int, n_warmup: int = n_warmup, n_steps: int = n_steps) -> float:
            return wave(min(1.0, (step - n_warmup + 1) / (n_steps - n_warmup + 1)))

        right = torch.tensor(wanted, dtype=torch.float64)
        mistakes = {
            "after n_steps the cosine increases again: limit the progress to 1": curve(
                ramp, lambda s: to_floor(unclamped(s))
            ),
            "the learning rate is 0 at step 0: the first step of the warm-up has 1 / n_warmup": curve(late, down),
            "the cosine begins when the warm-up ends, not at step 0": curve(ramp, lambda s: to_floor(from_zero(s))),
            "the floor is missing": curve(ramp, cosine),
            "the floor is added to the cosine, so the peak is above 1": curve(ramp, lambda s, f=floor: f + cosine(s)),
            "the floor clips the cosine: the cosine must end at the floor": curve(
                ramp, lambda s, f=floor: max(f, cosine(s))
            ),
            "the floor must not change the warm-up, which starts at 1 / n_warmup": curve(
                lambda s: to_floor(ramp(s)), down
            ),
            "the cosine reaches the floor at n_steps, not one step before": curve(
                ramp, lambda s: to_floor(ending(s, -1))
            ),
            "the cosine begins at step n_warmup, not one step before": curve(ramp, lambda s: to_floor(beginning(s))),
            "n_steps includes the warm-up": curve(ramp, lambda s, w=n_warmup: to_floor(ending(s, w))),
        }
        given = [number("schedule", share, where) for share in got]
        compare("schedule", torch.tensor(given, dtype=torch.float64), right, mistakes, where=where, of_numbers=True)


@check
def normalised_entropy(answer: Callable[[Tensor], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check the entropy of causal heads relative to the maximum, over the rows with at least two visible keys."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        h, n = (torch.randperm(7, generator=generator)[:2] + 3).tolist()
        h, n = {2: (1, n), 3: (h, 2)}.get(case % 4, (h, n))
        scores = torch.randn(h, n, n, generator=generator, dtype=torch.float64) * 2
        weights = softmax(scores, causal(n))
        weights[-1] = _with_one_key_removed(weights[-1], generator)
        where = f"{h} heads, {n} tokens, weights of 0 in one head"
        if case == 0:
            weights[0] = torch.eye(n, dtype=torch.float64)  # a head with one-hot rows
            where += ", of 0 and 1 in another"
        got = ask("normalised_entropy", answer, weights, where=where)
        assert not (isinstance(got, Tensor) and bool(got.isnan().any())), (
            f"normalised_entropy holds NaN: 0 log 0 counts as 0, the largest entropy of the first row is 0 ({where})"
        )
        rows, most = entropy(weights), torch.arange(1, n + 1, dtype=torch.float64).log()
        mistakes = {
            "this is the entropy in nats: divide each row by the largest entropy that it can have": rows[:, 1:].mean(
                -1
            ),
            "a causal row has only the keys up to its own position: divide by the log of their number, not by log n": (
                (rows[:, 1:] / most[-1]).mean(-1)
            ),
            "divide by the log of the number of visible keys, including keys of weight 0": (
                (rows / (weights > 0).double().sum(-1).log().clamp_min(1e-9))[:, 1:].mean(-1)
            ),
            "a small number inside the logarithm changes the result: remove it": [
                (-(weights * (weights + eps).log()).sum(-1) / most.clamp_min(1e-9))[:, 1:].mean(-1) for eps in EPSILONS
            ],
            "the first row has only one key: leave it out of the mean": (rows / most.clamp_min(1e-9)).mean(-1),
            "divide row by row before the mean: a quotient of two means is another number": (rows.sum(-1) / most.sum()),
            "return one number per head, not a mean over the heads": (rows[:, 1:] / most[1:]).mean().expand(h),
            "compute the entropy of each head before any average over heads": (
                (entropy(weights.mean(0))[1:] / most[1:]).mean().expand(h)
            ),
        }
        compare("normalised_entropy", got, attention_entropy(weights[None], causal(n)), mistakes, where=where)


def _with_one_key_removed(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Return the causal weights with one visible key removed from each row of three or more."""
    n = len(weights)
    taken = torch.stack([torch.randint(max(1, row), (), generator=generator) for row in range(n)])
    kept = weights * ((torch.arange(n) != taken[:, None]) | (torch.arange(n)[:, None] < 2))
    return kept / kept.sum(dim=-1, keepdim=True)
