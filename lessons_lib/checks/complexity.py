"""Checks of the exercises on the complexity of attention."""

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
        h, gated, causal = g * group, case % 2 == 0, case % 3 == 1
        where = f"d={d}, h={h}, g={g}, d_k={d_k}, d_ff={d_ff}, gated={gated}, causal={causal}"
        got = ask("crossing", answer, d, h, g, d_k, d_ff, gated, causal, where=where)
        once = 2.0 if causal else 1.0

        def at(attention: int, feedforward: int, pairs: int = h * d_k, factor: float = once) -> float:
            return factor * (attention + feedforward) / (2 * pairs)

        in_attention, after = 2 * d * (h + g) * d_k, (3 if gated else 2) * d * d_ff
        compare_number(
            "crossing",
            got,
            at(in_attention, after),
            {
                "a causal kernel computes half of the pairs, so the crossing moves to twice the length": [
                    at(in_attention, after, factor=once / 2) if causal else math.nan,
                    at(in_attention, after, factor=once / 4) if causal else math.nan,
                ],
                "each weight costs two FLOPs for each token": at(in_attention, after, factor=once / 2),
                "you return twice the length: only a causal kernel computes half of the pairs, and each pair "
                "costs two products, a score and a weighted value": at(in_attention, after, factor=2 * once),
                "a gated layer has three matrices, an ordinary layer two": at(in_attention, (5 * d * d_ff) - after),
                "keys and values have g heads, not h": at(4 * d * h * d_k, after),
                "queries and outputs have h heads; only keys and values have g": at(4 * d * g * d_k, after),
                "every query head has its own pairs, even if heads share keys": at(in_attention, after, g * d_k),
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
def smallest_batch_size(
    answer: Callable[[float, float, float, float, float], int], *, seed: int = 0, cases: int = 8
) -> None:
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
            f"weight_bytes={weights:.4g}, cache_bytes={kept:.4g}, flops={flops:.4g}, "
            f"flops_per_second={r_flops:.4g}, bytes_per_second={r_bytes:.4g}"
        )
        got = ask("smallest_batch_size", answer, weights, kept, flops, r_flops, r_bytes, where=where)
        per_text = flops / r_flops - kept / r_bytes
        right = 0 if never else wanted
        exact = weights / r_bytes / per_text if per_text else -1.0
        without_cache = weights / r_bytes * r_flops / flops
        together = (weights + kept) / r_bytes * r_flops / flops
        mistakes = {
            "each text has its own KV cache, and the caches of all texts are loaded": [
                math.ceil(without_cache),
                without_cache,
                math.floor(without_cache),
                math.ceil(together),
                together,
            ],
        }
        if never:
            mistakes |= {
                "loading a text's KV cache takes at least as long as its arithmetic: no batch size is enough, "
                "return 0": [
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
                "the batch size is an integer: round up": exact,
                "with this batch size arithmetic still takes less time than loading: round up": wanted - 1,
                "a batch with one text fewer is already enough": wanted + 1,
                "some batch size is enough here, so the result is not 0": 0,
                "divide by the rates: FLOPs by FLOPs per second, bytes by bytes per second": [
                    math.ceil(weights * r_bytes / (flops * r_flops - kept * r_bytes)),
                ],
            }
        compare_number("smallest_batch_size", got, right, mistakes, where=where)


@check
def compose(answer: Callable[[Step, Step], Step], *, seed: int = 0, cases: int = 5) -> None:
    """Check the composition of two steps of a linear recurrence with matrices."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        d, n, m = (torch.randperm(5, generator=generator)[:3] + 2).tolist()
        leading = [(n,), (), (n, m), (1,), (n, 1)][case % 5]
        d = 1 if case % 5 == 4 else d
        a_1, a_2 = (normal(*leading, d, d, generator=generator) for _ in range(2))
        b_1, b_2 = (normal(*leading, d, generator=generator) for _ in range(2))
        where = f"A {(*leading, d, d)}, b {(*leading, d)}"
        got = ask("compose", answer, (a_1, b_1), (a_2, b_2), where=where, returns="the pair (A, b)", parts=2)

        def times(a: Tensor, b: Tensor) -> Tensor:
            return (a @ b[..., None])[..., 0]

        compare(
            "A",
            got[0],
            a_2 @ a_1,
            {
                "the second step is applied to the result of the first step: its matrix is the left factor": a_1 @ a_2,
                "use the matrix product, not the product of the entries": a_2 * a_1,
                "composing two steps multiplies the matrices; it does not add them": a_1 + a_2,
                "you return the transpose": (a_2 @ a_1).mT,
            },
            where=where,
        )
        compare(
            "b",
            got[1],
            times(a_2, b_1) + b_2,
            {
                "the b of the first step is multiplied by the matrix of the second step": b_1 + b_2,
                "multiply the b of the first step by the matrix of the second step, and no other b by a matrix": [
                    times(a_1, b_1) + b_2,
                    times(a_1, b_2) + b_1,
                ],
                "the b of the second step is added after its matrix is applied": [
                    times(a_2, b_1 + b_2),
                    times(a_2, b_2) + b_1,
                ],
                "the b of the second step is missing": times(a_2, b_1),
                "the matrix multiplies the vector from the left: A b, not b A": times(a_2.mT, b_1) + b_2,
            },
            where=where,
        )
