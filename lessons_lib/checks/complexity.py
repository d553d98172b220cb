"""Checks of the exercises on the cost of attention."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.checks import ask, check, compare, compare_number, normal

Step = tuple[Tensor, Tensor]


@check
def crossing(answer: Callable[[int, int, int, int, int, bool, bool], float], *, seed: int = 0, cases: int = 6) -> None:
    """Check the length at which scores and averages cost as much as the weight matrices, for a block of given sizes."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        g, group = (torch.randperm(7, generator=generator)[:2] + 3).tolist()
        d_k, d, d_ff = (torch.randperm(99, generator=generator)[:3] + 9).tolist()
        h, gated, skips = g * group, case % 2 == 0, case % 3 == 1
        where = f"d={d}, h={h}, g={g}, d_k={d_k}, d_ff={d_ff}, gated={gated}, skips={skips}"
        got = ask("crossing", answer, d, h, g, d_k, d_ff, gated, skips, where=where)
        once = 2.0 if skips else 1.0

        def at(attention: int, feedforward: int, pairs: int = h * d_k, factor: float = once) -> float:
            return factor * (attention + feedforward) / (2 * pairs)

        in_attention, after = 2 * d * (h + g) * d_k, (3 if gated else 2) * d * d_ff
        compare_number(
            "crossing",
            got,
            at(in_attention, after),
            {
                "a kernel that skips does half of the pairs: the crossing moves to twice the length": [
                    at(in_attention, after, factor=once / 2) if skips else math.nan,
                    at(in_attention, after, factor=once / 4) if skips else math.nan,
                ],
                "each weight costs two FLOPs for each token, too": at(in_attention, after, factor=once / 2),
                "that is twice the length: only a kernel that skips does half of the pairs, and each pair costs two "
                "products, a score and a share of the average": at(in_attention, after, factor=2 * once),
                "a gated layer has three matrices, another two": at(in_attention, (5 * d * d_ff) - after),
                "keys and values have g heads, not h": at(4 * d * h * d_k, after),
                "queries and outputs have h heads; only keys and values have g": at(4 * d * g * d_k, after),
                "every query head has its pairs, also where keys are shared": at(in_attention, after, g * d_k),
                "the heads need not add up to d: the pairs cost h d_k, not d": at(in_attention, after, d),
                "the heads need not add up to d: the matrices are d by h d_k and d by g d_k": [
                    at(2 * d * d + 2 * d * g * d_k, after),
                    at(4 * d * d, after),
                ],
                "the feed-forward layer is missing": at(in_attention, 0),
                "the matrices of attention are missing": at(0, after),
                "attention has four matrices, W_O among them": at(in_attention - d * h * d_k, after),
            },
            where=where,
        )


@check
def enough_texts(answer: Callable[[float, float, float, float, float], int], *, seed: int = 0, cases: int = 8) -> None:
    """Check the batch size in decoding from which a device is limited by arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        wanted = int(torch.randint(3, 400, (), generator=generator))
        wanted = {3: 10_000 + 100 * wanted, 4: 1}.get(case % 10, wanted)
        never = case % 3 == 2
        part = 0.2 + 0.6 * float(torch.rand((), generator=generator, dtype=torch.float64))
        weights, r_bytes, r_flops = (torch.rand(3, generator=generator, dtype=torch.float64) * 90 + 10).tolist()
        weights, r_bytes, r_flops = round(weights) * 1e8, round(r_bytes) * 1e10, round(r_flops) * 1e13
        # seconds of arithmetic for each text, minus the seconds to load its KV cache
        gained = weights / r_bytes / (wanted - part)
        fetched = gained * (0.3 + float(torch.rand((), generator=generator, dtype=torch.float64)))
        if case % 5 == 1 and not never:  # both times are equal, and powers of two are exact
            wanted = 2 ** (2 + case % 6)
            weights, r_bytes, r_flops = 2.0**34, 2.0**41, 2.0**50
            gained = weights / r_bytes / wanted
            fetched = gained / 2
        added = -0.2 * fetched if never else gained
        if never and case % 2:  # both times of a text are equal, so loading the weights always takes longer
            weights, r_bytes, r_flops = 2.0**34, 2.0**41, 2.0**50
            fetched, added = weights / r_bytes / 64, 0.0
        kept, flops = fetched * r_bytes, (fetched + added) * r_flops
        where = (
            f"weights={weights:.4g}, kept={kept:.4g}, flops={flops:.4g}, r_flops={r_flops:.4g}, r_bytes={r_bytes:.4g}"
        )
        got = ask("enough_texts", answer, weights, kept, flops, r_flops, r_bytes, where=where)
        per_text = flops / r_flops - kept / r_bytes
        right = 0 if never else wanted
        exact = weights / r_bytes / per_text if per_text else -1.0
        without_cache = weights / r_bytes * r_flops / flops
        together = (weights + kept) / r_bytes * r_flops / flops
        mistakes = {
            "each text brings keys and values of its own, and those of every text are fetched": [
                math.ceil(without_cache),
                without_cache,
                math.floor(without_cache),
                math.ceil(together),
                together,
            ],
        }
        if never:
            mistakes |= {
                "fetching a text's keys and values takes longer than its arithmetic: no number is enough, return 0": [
                    math.ceil(exact),
                    exact,
                    math.floor(exact),
                    abs(exact),
                    math.ceil(abs(exact)),
                    1,
                    -1,
                ],
            }
        else:
            mistakes |= {
                "the number of texts is whole: round up": exact,
                "with this number arithmetic is still the shorter: round up": wanted - 1,
                "with one text fewer arithmetic takes as long already": wanted + 1,
                "there is such a number": 0,
                "a rate divides: FLOPs by FLOPs a second, bytes by bytes a second": [
                    math.ceil(weights * r_bytes / (flops * r_flops - kept * r_bytes)),
                ],
            }
        compare_number("enough_texts", got, right, mistakes, where=where)


@check
def join(answer: Callable[[Step, Step], Step], *, seed: int = 0, cases: int = 5) -> None:
    """Check the composition of two steps of a linear recurrence with matrices."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        d, n, m = (torch.randperm(5, generator=generator)[:3] + 2).tolist()
        leading = [(n,), (), (n, m), (1,), (n, 1)][case % 5]
        d = 1 if case % 5 == 4 else d
        a_1, a_2 = (normal(*leading, d, d, generator=generator) for _ in range(2))
        b_1, b_2 = (normal(*leading, d, generator=generator) for _ in range(2))
        where = f"A {(*leading, d, d)}, b {(*leading, d)}"
        got = ask("join", answer, (a_1, b_1), (a_2, b_2), where=where, returns="the pair (A, b)", parts=2)

        def times(a: Tensor, b: Tensor) -> Tensor:
            return (a @ b[..., None])[..., 0]

        compare(
            "A",
            got[0],
            a_2 @ a_1,
            {
                "the second step is applied to the first's result: its matrix stands on the left": a_1 @ a_2,
                "matrices are multiplied, not their entries": a_2 * a_1,
                "one after the other multiplies the matrices; it does not add them": a_1 + a_2,
                "that is the transpose": (a_2 @ a_1).mT,
            },
            where=where,
        )
        compare(
            "b",
            got[1],
            times(a_2, b_1) + b_2,
            {
                "what the first step adds goes through the second's matrix": b_1 + b_2,
                "it is the second's matrix that what the first step adds goes through": [
                    times(a_1, b_1) + b_2,
                    times(a_1, b_2) + b_1,
                ],
                "what the second step adds comes after its matrix": [
                    times(a_2, b_1 + b_2),
                    times(a_2, b_2) + b_1,
                ],
                "what the second step adds is missing": times(a_2, b_1),
                "a matrix meets a vector from the left: A b, not b A": times(a_2.mT, b_1) + b_2,
            },
            where=where,
        )
