"""Checks of the exercises on attention patterns and circuits."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from lessons_lib.checks import ask, check, compare, compare_number, normal

Edit = Callable[[Tensor], Tensor]
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


# --- interventions ----------------------------------------------------------------------------------------------------


@check
def ablation_effect(
    answer: Callable[[Tensor, Tensor, list[Tensor], int], float], *, seed: int = 0, cases: int = 5
) -> None:
    """Check the effect of the mean ablation of one head on the loss."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        given, where = _ablation_case(case, generator)
        got = ask("ablation_effect", answer, *given, where=where)
        before, wanted, mistakes = _ablation_and_mistakes(*given)
        # The effect is a difference of two losses, and in single precision each of them has an error.
        compare_number("ablation_effect", got, wanted, mistakes, where=where, least=10 * max(1.0, before))


def _ablation_case(case: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor, list[Tensor], int], str]:
    """Return texts, targets, weights and a head, and a description; all mistakes differ in the first case."""
    while True:
        n_texts, n, d, h, d_head, vocab = (torch.randperm(6, generator=generator) + 2).tolist()
        n_texts, n, h = {2: (1, n, h), 3: (n_texts, 1, 1)}.get(case % 5, (n_texts, n, h))
        weights = _two_layers(h, d, d_head, vocab, generator)
        x = normal(n_texts, n, d, generator=generator)
        targets = torch.randint(vocab, (n_texts, n), generator=generator)
        head = int(torch.randint(h, (), generator=generator))
        _, wanted, mistakes = _ablation_and_mistakes(x, targets, weights, head)
        of_this_sign = wanted > 0 if case % 5 == 0 else wanted < 0
        if case % 5 > 1 or (h > 2 and of_this_sign and _all_differ(wanted, mistakes, pairs=case % 5 == 0)):
            where = f"{n_texts} texts, n={n}, d={d}, h={h}, d_head={d_head}, V={vocab}, head={head}"
            return (x, targets, weights, head), where


def _all_differ(wanted: float, mistakes: Mapping[str, float | list[float]], *, pairs: bool) -> bool:
    """Return whether every mistake differs from the correct number, and from every other mistake if ``pairs``."""
    made = [wrong for ways in mistakes.values() for wrong in (ways if isinstance(ways, list) else [ways])]
    others = [wrong for wrong in made if not math.isnan(wrong)]
    return all(abs(wrong - wanted) > 1e-3 for wrong in others) and not (
        pairs and any(abs(one - other) < 1e-4 for one, other in combinations(others, 2))
    )


def _ablation_and_mistakes(
    x: Tensor, targets: Tensor, weights: list[Tensor], head: int
) -> tuple[float, float, dict[str, float | list[float]]]:
    """Return the loss without ablation, the effect of the ablation, and the effect with each mistake."""
    n_texts, h = len(x), len(weights[0])

    def loss(edit: Edit = lambda z: z, *, of: slice = slice(None), reduction: str = "mean") -> float:
        logits, wanted = _run(x, weights, edit)[:, of], targets[:, of]
        return cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction=reduction).item()

    def with_head(change: Edit, number: int | slice = head) -> Edit:
        def edit(z: Tensor) -> Tensor:
            z = z.clone()
            z[:, number] = change(z)[:, number]
            return z

        return edit

    def mean(z: Tensor) -> Tensor:
        return z.mean(0, keepdim=True).expand_as(z)

    def effect(edit: Edit) -> float:
        return loss(edit) - before

    def other_axis(z: Tensor) -> Tensor:
        z = z.clone()
        z[head] = z[head].mean(0)
        return z

    before = loss()
    ablate = with_head(mean)
    wanted = effect(ablate)
    last, total = slice(-1, None), "sum"
    mistakes: dict[str, float | list[float]] = {
        "replace the output by its mean over the texts, not by zero": effect(with_head(torch.zeros_like)),
        "the mean is over the texts, at each position separately": [
            effect(with_head(lambda z: z.mean(-2, keepdim=True).expand_as(z))),
            effect(with_head(lambda z: z.mean((0, -2), keepdim=True).expand_as(z))),
        ],
        "the mean is over the texts, not over the entries of the head's output": effect(
            with_head(lambda z: z.mean(-1, keepdim=True).expand_as(z))
        ),
        "the mean is over the texts, not over the heads": effect(
            with_head(lambda z: z.mean(1, keepdim=True).expand_as(z))
        ),
        "each entry of the head's output has its own mean": effect(
            with_head(lambda z: torch.full_like(z, z[:, head].mean().item()))
        ),
        "only one head is ablated: the other heads keep their outputs": effect(with_head(mean, slice(None))),
        "this is the effect of ablating all the other heads": effect(
            lambda z: torch.where(_is_head(z, head), z, mean(z))
        ),
        "do not take the absolute value: an ablation may lower the loss": abs(wanted) if wanted < 0 else float("nan"),
        "the effect is the loss with the ablation minus the loss without": -wanted,
        "subtract the loss without the ablation": before + wanted,
        "return the effect of the ablation on the loss, not the loss itself": before,
        "the loss is a mean over all positions, not that of the last position": (loss(ablate, of=last) - loss(of=last)),
        "the loss is a mean over all texts and positions, not a sum": (
            loss(ablate, reduction=total) - loss(reduction=total)
        ),
        "the effect is a difference of two losses, not a quotient": [(before + wanted) / before, wanted / before],
        "replace the output by its mean, not by the output on another text": [
            effect(with_head(lambda z, by=by: z.roll(by, 0))) for by in (1, -1)
        ],
    }
    if h > 1:
        mistakes["the heads are counted from 0"] = effect(with_head(mean, head - 1))
    if head < n_texts:
        mistakes["axis 0 of z contains the texts, axis 1 the heads"] = effect(other_axis)
    return before, wanted, mistakes


def _is_head(z: Tensor, head: int) -> Tensor:
    return (torch.arange(z.shape[1]) == head)[:, None, None]


@check
def patch_recovery(
    answer: Callable[[Tensor, Tensor, list[Tensor], int, int, int, int], float], *, seed: int = 0, cases: int = 5
) -> None:
    """Check the recovery of the logit difference by patching one head at one position."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        clean, corrupted, weights, site, tokens, where = _patch_case(case, generator)
        got = ask("patch_recovery", answer, clean, corrupted, weights, *site, *tokens, where=where)
        wanted, mistakes, scale = _recovery_and_mistakes(clean, corrupted, weights, *site, *tokens)
        compare_number("patch_recovery", got, wanted, mistakes, where=where, least=scale)


def _patch_case(
    case: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[Tensor], tuple[int, int], tuple[int, int], str]:
    """Return two texts, weights, the head and position, the tokens right and wrong, and a description.

    All mistakes differ in the first case. The logit differences of the two texts differ clearly.
    """
    while True:
        n, d, h, d_head, vocab = (torch.randperm(5, generator=generator) + torch.tensor([4, 3, 2, 2, 3])).tolist()
        n, h = {2: (1, h), 3: (n, 1)}.get(case % 5, (n, h))
        weights = _two_layers(h, d, d_head, vocab, generator)
        clean = normal(n, d, generator=generator)
        changed = int(torch.randint(1, max(2, n - 2), (), generator=generator)) if n > 1 else 0
        corrupted = clean.index_put((torch.tensor(changed),), normal(d, generator=generator))
        head = int(torch.randint(h, (), generator=generator))
        position = int(torch.randint(changed, max(changed + 1, n - 1), (), generator=generator))
        position = {3: n - 1, 4: changed - 1}.get(case % 5, position)  # the last, and one before the changed word
        right, wrong = torch.randperm(vocab, generator=generator)[:2].tolist()
        site, tokens = (head, position), (right, wrong)
        wanted, mistakes, scale = _recovery_and_mistakes(clean, corrupted, weights, *site, *tokens)
        inside, first = 0 < wanted < 1, case % 5 == 0
        if scale < 30 and (case % 5 > 1 or (inside == first and _all_differ(wanted, mistakes, pairs=first))):
            where = f"n={n}, d={d}, h={h}, d_head={d_head}, V={vocab}, head={head}, position={position}"
            return clean, corrupted, weights, site, tokens, where


def _recovery_and_mistakes(
    clean: Tensor, corrupted: Tensor, weights: list[Tensor], head: int, position: int, right: int, wrong: int
) -> tuple[float, dict[str, float | list[float]], float]:
    """Return the recovery, the result with each mistake, and the size of the terms of the recovery."""
    z, z_corrupted = (_attend(text, *weights[:3]) for text in (clean, corrupted))
    h, everything = len(z), slice(None)

    def patched(of: int | slice, at: int | slice) -> Tensor:
        return _patched(corrupted, weights, z, of, at)

    def difference(logits: Tensor) -> float:
        return float(logits[-1, right] - logits[-1, wrong])

    def recovery(logits: Tensor, measure: Callable[[Tensor], Tensor | float] = difference) -> float:
        apart = float(measure(intact) - measure(broken))  # of probabilities that round to one it is zero
        return float(measure(logits) - measure(broken)) / apart if apart else float("nan")

    intact, broken, here = _run(clean, weights), _run(corrupted, weights), patched(head, position)
    delta_clean, delta_corrupted, delta = difference(intact), difference(broken), difference(here)
    gap, wanted = delta_clean - delta_corrupted, recovery(here)
    noised = _patched(clean, weights, z_corrupted, head, position)
    mistakes: dict[str, float | list[float]] = {
        "divide by the difference between the clean and the corrupted run": [
            delta - delta_corrupted,
            delta / delta_clean,
            (delta - delta_corrupted) / delta_clean,
            (delta - delta_corrupted) / delta_corrupted,
        ],
        "subtract the logit difference of the corrupted run": [delta, delta / gap],
        "this is the share that is not recovered": 1 - wanted,
        "the denominator is clean minus corrupted": -wanted,
        "patch the corrupted run with the clean output, not the clean run with the corrupted output": [
            recovery(noised),
            1 - recovery(noised),
        ],
        "patch one position only": recovery(patched(head, everything)),
        "patch one head only": [
            recovery(patched(everything, position)),
            recovery(patched(everything, everything)),
        ],
        "use the logits, not the probabilities": recovery(here, lambda y: difference(y.softmax(-1))),
        "the logit difference needs the token wrong too": recovery(here, lambda y: y[-1, right]),
        "do not clip the recovery": min(1.0, max(0.0, wanted)) if not 0 <= wanted <= 1 else float("nan"),
    }
    if len(clean) > 1:
        mistakes["the logit difference is taken at the last position"] = [
            recovery(here, lambda y: y[position, right] - y[position, wrong]),
            recovery(here, lambda y: y[:, right].mean() - y[:, wrong].mean()),
        ]
    if h > 1:
        mistakes["the heads are counted from 0"] = recovery(patched(head - 1, position))
    return wanted, mistakes, 10 * max(1.0, float(broken.abs().max()), float(intact.abs().max())) / abs(gap)


def _patched(x: Tensor, weights: list[Tensor], source: Tensor, head: int | slice, position: int | slice) -> Tensor:
    """Return the logits for x if one head's output at one position comes from ``source``."""

    def edit(z: Tensor) -> Tensor:
        z = z.clone()
        z[head, position] = source[head, position]
        return z

    return _run(x, weights, edit)


def _two_layers(h: int, d: int, d_head: int, vocab: int, generator: torch.Generator) -> list[Tensor]:
    """Draw the weights of the model in the notebook's ``run``: two attention layers and the unembedding."""
    layers = []
    for _ in range(2):
        layers += [normal(h, d, d_head, generator=generator) / d**0.5 for _ in range(3)]
        layers += [normal(h, d_head, d, generator=generator) / d_head**0.5]
    return [*layers, normal(d, vocab, generator=generator) / d**0.5]


def _attend(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    q, k, v = (x.unsqueeze(-3) @ w for w in (w_q, w_k, w_v))
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def _run(x: Tensor, weights: Sequence[Tensor], edit: Edit = lambda z: z) -> Tensor:
    """Return the logits of the model in the notebook's ``run``."""
    x = x + (edit(_attend(x, *weights[:3])) @ weights[3]).sum(-3)
    x = x + (_attend(x, *weights[4:7]) @ weights[7]).sum(-3)
    return x @ weights[8]


# --- circuits ---------------------------------------------------------------------------------------------------------


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
    for case in range(cases):
        d = int(torch.randint(1, 7, (), generator=generator))
        m = d + 2 + (0 if case % 4 == 1 else int(torch.randint(0, 9, (), generator=generator)))
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
