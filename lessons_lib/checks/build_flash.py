"""Checks of the assignment of Part III: exact attention in tiles, in stages."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.attention.attention import attention, attention_vjp
from lessons_lib.attention.masks import causal
from lessons_lib.attention.softmax import log_sum_exp
from lessons_lib.checks import ask, check, compare, is_finite, normal, parts_to_compare, without_autograd
from lessons_lib.checks.flash import with_low_scores

State = tuple[Tensor, Tensor, Tensor]
Tile = tuple[int, int, bool]
NO_KEY_YET = "a row without visible keys has peak -inf, and -inf - (-inf) is NaN: subtract 0 there"

# --- one block, and one step of the online softmax ------------------------------------------------------------------


@check
def one_block(
    answer: Callable[[Tensor, Tensor], State], *, seed: int = 0, cases: int = 4, only: str | None = None
) -> None:
    """Check the softmax state of a single block of keys: ``peak``, ``total`` and ``summed``, or ``only`` one."""
    compared = parts_to_compare(("peak", "total", "summed"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, some, d = (2 + torch.randperm(6, generator=generator)[:3]).tolist()
        n, some = {2: (1, some), 3: (n, 1)}.get(case % 4, (n, some))
        scores, values = normal(n, some, generator=generator), normal(some, d, generator=generator)
        hidden = torch.rand(n, some, generator=generator) < 0.5
        hidden[:, 0] = False
        row_0, where = torch.arange(n)[:, None] == 0, f"n={n}, {some} keys, d={d}"
        for given, kind in (
            (scores, "scores near 0"),
            (scores + 3000 * (1 + torch.arange(n)[:, None]), "scores in the thousands"),
            (scores - 2000, "scores near -2000"),
            (scores.masked_fill(hidden, -torch.inf), "some keys hidden"),
            (scores.masked_fill(row_0, -torch.inf), "row 0 without visible keys"),
        ):
            _check_state(answer, given, values, compared, f"{kind}, {where}")


def _check_state(
    answer: Callable[[Tensor, Tensor], State],
    scores: Tensor,
    values: Tensor,
    compared: list[tuple[int, str]],
    where: str,
) -> None:
    got = ask("one_block", answer, scores, values, where=where, returns="peak, total, summed", parts=3)
    peak, total, summed = wanted = _state(scores, values)
    seen = scores.isfinite()
    plain, empty = scores.exp(), total == 0
    by_zero = total.masked_fill(empty, 1.0)
    mistakes = (
        {
            "each query has a peak of its own": scores.amax().expand_as(peak),
            "a row without visible keys has peak -inf": [peak.masked_fill(empty, 0.0), peak.masked_fill(empty, -1e9)],
            "peak is the largest score, not the smallest": scores.amin(dim=-1),
            "peak is the largest score, not the largest absolute value": scores.abs().amax(dim=-1),
        },
        {
            "the exponentials must be relative to the peak of their row": [
                plain.sum(dim=-1),
                (scores - peak.max()).exp().sum(dim=-1),
            ],
            "do not divide yet: the total is not 1": total / by_zero,
            "total is the sum itself; the logarithm comes at the end": [total.log(), peak + total.log()],
            "total is the sum of the exponentials, not the number of keys": [
                seen.sum(dim=-1).double(),
                torch.full_like(total, scores.shape[-1]),
            ],
            "a row without visible keys has total 0": total.masked_fill(empty, scores.shape[-1]),
            "total is a sum, not a mean": total / scores.shape[-1],
        },
        {
            "the exponentials must be relative to the peak of their row": [
                plain @ values,
                (scores - peak.max()).exp() @ values,
            ],
            "do not divide yet: divide once, after the last block": summed / by_zero[:, None],
            "the values are weighted by the exponentials": [
                seen.double() @ values,
                values.sum(dim=0).expand_as(summed),
                scores.masked_fill(~seen, 0.0) @ values,
            ],
            "a row without visible keys has summed 0": torch.where(empty[:, None], values.sum(dim=0), summed),
        },
    )
    cause = (
        "-inf - (-inf) is NaN: subtract 0 in a row without visible keys" if "row 0" in where else "take exp of s - peak"
    )
    for i, name in compared:
        assert name == "peak" or is_finite(got[i]), f"{name} is not finite: {cause} ({where})"
        compare(name, got[i], wanted[i], mistakes[i], where=where, scores=scores)


@check
def update(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], State],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check an update of the online softmax: at the start, midway, and with hidden keys.

    It compares ``peak``, ``total`` and ``summed``, or ``only`` one.
    """
    compared = parts_to_compare(("peak", "total", "summed"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n, some, more, d = (2 + torch.randperm(6, generator=generator)[:4]).tolist()
        n, more = {2: (1, more), 3: (n, 1)}.get(case % 4, (n, more))
        before, scores = normal(n, some, generator=generator), normal(n, more, generator=generator)
        v_before, v = normal(some, d, generator=generator), normal(more, d, generator=generator)
        nothing = before.new_full((n, some), -torch.inf)
        hidden = scores.masked_fill(torch.arange(n)[:, None] == 0, -torch.inf)
        where = f"n={n}, {more} new keys, d={d}"
        known, high = _state(before, v_before), _state(before + 2000, v_before)
        start = _state(nothing, v_before)
        for state, new, when in (
            (known, scores + 1, "midway"),
            (known, scores + 2000, "scores 2000 higher than before"),
            (high, scores, "scores 2000 lower than before"),
            (start, scores, "at the start"),
            (start, hidden, "row 0 without visible keys"),
        ):
            _check_update(answer, state, new, v, compared, f"{when}, {where}")


def _check_update(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], State],
    state: State,
    scores: Tensor,
    values: Tensor,
    compared: list[tuple[int, str]],
    where: str,
) -> None:
    peak, total, summed = state
    got = ask("update", answer, *state, scores, values, where=where, returns="peak, total, summed", parts=3)
    highest = torch.maximum(peak, scores.amax(dim=-1))
    seen = highest.isfinite()
    shift = highest.masked_fill(~seen, 0.0)
    weights, shrink = (scores - shift[:, None]).exp(), (peak - shift).exp()
    grow = shrink.reciprocal()
    added, brought = weights.sum(dim=-1), weights @ values
    wrong_peak = {"peak is the largest score so far, not only of the new keys": scores.amax(dim=-1)}
    for i, name in compared:
        if name == "peak":
            compare("peak", got[0], highest, wrong_peak, where=where)
            continue
        assert is_finite(got[i]), f"{name} is not finite: {NO_KEY_YET} ({where})"
        old, new, one, inverse = (
            (total, added, shrink, grow) if name == "total" else (summed, brought, shrink[:, None], grow[:, None])
        )
        mistakes = {
            "the old sum is relative to the old peak, so it must shrink": old + new,
            "the old sum shrinks by exp(old peak - new peak); this is the inverse factor": inverse * old + new,
            "the old sum is lost": new,
            "the new keys are ignored": one * old,
            "the weights of the new keys are relative to the new peak, too": one * old
            + ((scores - scores.amax(dim=-1, keepdim=True)).exp() @ (values if name == "summed" else _ones(scores))),
        }
        compare(name, got[i], one * old + new, mistakes, where=where, scores=highest)


def _state(scores: Tensor, values: Tensor) -> State:
    """Return the state of the online softmax after these keys."""
    peak = scores.amax(dim=-1)
    weights = (scores - peak.masked_fill(peak.isneginf(), 0.0)[:, None]).exp()
    return peak, weights.sum(dim=-1), weights @ values


def _ones(scores: Tensor) -> Tensor:
    return scores.new_ones(scores.shape[-1])


# --- the forward pass -----------------------------------------------------------------------------------------------


@check
def tiled(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor], *, seed: int = 0, cases: int = 4) -> None:
    """Check attention over all keys, computed block by block."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        q, k, v, _, block = _random_case(case, generator)
        where = f"n={len(q)}, m={len(k)}, block={block}"
        late = "subtract the running peak from every score before exp"
        _check_tiled(answer, q, k, v, block, late, f"scores near 0, {where}")
        _check_tiled(answer, 3000 * q, k, v, block, late, f"scores in the thousands, {where}")
        early = "before the first block the peak is -inf, not 0"
        _check_tiled(answer, *with_low_scores(q, k), v, block, early, f"scores near -2000, {where}")


def _check_tiled(
    answer: Callable[[Tensor, Tensor, Tensor, int], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int,
    cause: str,
    where: str,
) -> None:
    got = ask("tiled", answer, q, k, v, block, where=where)
    assert is_finite(got), f"tiled is not finite: {cause} ({where})"
    parts = list(zip(k.split(block), v.split(block), strict=True))
    whole = len(k) // block * block
    mistakes = {
        "the scores are not divided by sqrt(d_k)": attention(q, k, v, scale=1.0),
        "the last, shorter block is missing": attention(q, k[:whole], v[:whole]) if whole else torch.zeros_like(q[:0]),
        "only the last block counts": attention(q, *parts[-1]),
        "the blocks are averaged with equal weights": torch.stack([attention(q, *part) for part in parts]).mean(dim=0),
    }
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    compare("tiled", got, attention(q, k, v), mistakes, where=where, scores=scores)


@check
def causal_tiles(answer: Callable[[int, int, int, int], list[Tile]], *, seed: int = 0, cases: int = 6) -> None:
    """Check which tiles a causal kernel visits, and which of them need a mask."""
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        n = int(torch.randint(9, 20, (), generator=generator))
        m = n + (int(torch.randint(1, 12, (), generator=generator)) if case else 0)
        block_q, block_k = (2 + torch.randperm(5, generator=generator)[:2]).tolist()
        if case % 6 == 3:  # one tile
            block_q, block_k = n + 1, m + 2
        if case % 6 == 4:  # a tile is one pair
            block_q, block_k = 1, 1
        n = 1 if case % 6 == 5 else n
        where = f"n={n}, m={m}, block_q={block_q}, block_k={block_k}"
        tiles = [
            (i, j, causal(n, m)[i : i + block_q, j : j + block_k])
            for i in range(0, n, block_q)
            for j in range(0, m, block_k)
        ]
        first = causal(m)[:n]
        wanted = [(i, j, bool(tile.all())) for i, j, tile in tiles if tile.any()]
        mistakes = {
            "skip a tile without visible pairs": [(i, j, bool(tile.all())) for i, j, tile in tiles],
            "visit a partly visible tile, with a mask": [(i, j, True) for i, j, tile in tiles if tile.all()],
            "a tile with a hidden pair needs a mask": [(i, j, True) for i, j, _ in wanted],
            "a tile without a hidden pair needs no mask": [(i, j, False) for i, j, _ in wanted],
            "the third entry is True where every pair is visible": [(i, j, not whole) for i, j, whole in wanted],
            "the queries are the last n of the m positions, not the first": [
                (i, j, bool(first[i : i + block_q, j : j + block_k].all()))
                for i, j, _ in tiles
                if first[i : i + block_q, j : j + block_k].any()
            ],
            "the first two entries are the first query and the first key, not numbers of tiles": [
                (i // block_q, j // block_k, whole) for i, j, whole in wanted
            ],
            "the last, shorter block of queries is missing": [tile for tile in wanted if tile[0] + block_q <= n],
            "the last, shorter block of keys is missing": [tile for tile in wanted if tile[1] + block_k <= m],
        }
        got = ask("causal_tiles", answer, n, m, block_q, block_k, where=where)
        listed = isinstance(got, (list, tuple)) and all(isinstance(t, (list, tuple)) and len(t) == 3 for t in got)
        assert listed, f"return a list of triples (first query, first key, full) ({where})"
        found = sorted((int(i), int(j), bool(whole)) for i, j, whole in got)
        for sentence, wrong in mistakes.items():
            assert sorted(wrong) == wanted or found != sorted(wrong), f"causal_tiles is wrong: {sentence} ({where})"
        odd = sorted(set(found) ^ set(wanted)) or "a tile that is listed twice"
        assert found == wanted, f"causal_tiles is wrong, for example for {str(odd)[:60]} ({where})"


@check
def flash(
    answer: Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor]],
    *,
    seed: int = 0,
    cases: int = 4,
    only: str | None = None,
) -> None:
    """Check causal attention in tiles and its log-sum-exp, ``out``, ``lse`` or both, and that hidden tiles are skipped.

    An answer that computes hidden tiles fails ``out``.
    """
    compared = parts_to_compare(("out", "lse"), only)
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        q, k, v, block_q, block_k = _random_case(case, generator)
        n, m = len(q), len(k)
        where = f"n={n}, m={m}, block_q={block_q}, block_k={block_k}"
        got = ask("flash", answer, q, k, v, block_q, block_k, where=where, returns="out, lse", parts=2)
        mask, first = causal(n, m), causal(m)[:n]
        rounded = torch.stack([mask[i // block_q * block_q :][:block_q].any(dim=0) for i in range(n)])
        touched = torch.stack([rounded[i, torch.arange(m) // block_k * block_k] for i in range(n)])
        inside = torch.stack([mask[i // block_q * block_q] for i in range(n)])
        mistakes = {
            "no mask hides later positions": None,
            "the queries are the last n of the m positions, not the first": first,
            "a tile on the diagonal needs the mask": touched,
            "every query of a block has its own position": inside,
        }
        outs = {why: attention(q, k, v, hidden) for why, hidden in mistakes.items()}
        outs["the scores are not divided by sqrt(d_k)"] = attention(q, k, v, mask, scale=1.0)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        lse, peak = log_sum_exp(scores, mask), scores.masked_fill(~mask, -torch.inf).amax(dim=-1)
        lses = {
            "the peak must be added back": lse - peak,
            "this is the peak; the logarithm of the total is missing": peak,
            "this is the total; its logarithm and the peak are missing": (lse - peak).exp(),
            "use the natural logarithm": lse / math.log(2),
            "the mask applies to the log-sum-exp too": log_sum_exp(scores),
        }
        for i, name in compared:
            compare(name, got[i], (attention(q, k, v, mask), lse)[i], (outs, lses)[i], where=where)
        if (0, "out") in compared:
            _check_hidden_tiles_skipped(answer, q, k, v, block_q, block_k, where)
        _check_low_scores(answer, *with_low_scores(q, k), v, block_q, block_k, compared, f"scores near -2000, {where}")


def _check_hidden_tiles_skipped(
    answer: Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_q: int,
    block_k: int,
    where: str,
) -> None:
    """Put NaN into tiles hidden from the first block of queries: 0 * NaN is NaN and shows that a tile was used."""
    spoilt = _with_nan_in_hidden_tiles(v, len(q), block_q, block_k)
    out, _ = ask("flash", answer, q, k, spoilt, block_q, block_k, where=where, returns="out, lse", parts=2)
    untouched = bool(out[:block_q].isfinite().all())
    assert untouched, f"a fully hidden tile was multiplied by zeros; skip it ({where})"


def _check_low_scores(
    answer: Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_q: int,
    block_k: int,
    compared: list[tuple[int, str]],
    where: str,
) -> None:
    """Check scores so low that the sum of weights underflows to 0 if the peak starts at 0."""
    got = ask("flash", answer, q, k, v, block_q, block_k, where=where, returns="out, lse", parts=2)
    mask = causal(len(q), len(k))
    wanted = attention(q, k, v, mask), log_sum_exp(q @ k.mT / math.sqrt(q.shape[-1]), mask)
    for i, name in compared:
        assert is_finite(got[i]), f"{name} is not finite: before the first tile the peak is -inf, not 0 ({where})"
        compare(name, got[i], wanted[i], {}, where=where, scores=2000.0)


def _with_nan_in_hidden_tiles(rows: Tensor, n: int, block_q: int, block_k: int) -> Tensor:
    """Return keys or values with NaN in every tile that is fully hidden from the first block of queries."""
    spoilt = rows.clone()
    spoilt[_keys_hidden_from_first_block(n, len(rows), block_q, block_k)] = torch.nan
    return spoilt


def _keys_hidden_from_first_block(n: int, m: int, block_q: int, block_k: int) -> slice:
    """Return the slice of keys in tiles that are fully hidden from the first block of queries."""
    last_seen = min(block_q, n) - 1 + m - n
    return slice((last_seen // block_k + 1) * block_k, None)


# --- the backward pass ----------------------------------------------------------------------------------------------


@check
def flash_backward(
    answer: Callable[..., tuple[Tensor, Tensor, Tensor]], *, seed: int = 0, cases: int = 4, only: str | None = None
) -> None:
    """Check the gradients of causal attention, recomputed tile by tile from the log-sum-exp, or ``only`` one."""
    compared = sorted(parts_to_compare(("grad_q", "grad_k", "grad_v"), only), key=lambda part: "vqk".index(part[1][-1]))
    generator = torch.Generator().manual_seed(seed)
    for case in range(cases):
        q, k, v, block_q, block_k = _random_case(case, generator)
        grad_out = normal(len(q), v.shape[-1], generator=generator)
        where = f"n={len(q)}, m={len(k)}, block_q={block_q}, block_k={block_k}"
        mask, scale = causal(len(q), len(k)), 1 / math.sqrt(q.shape[-1])
        lse = log_sum_exp(scale * q @ k.mT, mask)
        out = attention(q, k, v, mask)
        returns = "grad_q, grad_k, grad_v"
        with without_autograd():
            given = q, k, v, out, lse, grad_out, block_q, block_k
            got = ask("flash_backward", answer, *given, where=where, returns=returns, parts=3)
        p = (scale * q @ k.mT - lse[:, None]).exp()
        seen, grad_p, delta = p * mask, grad_out @ v.mT, (grad_out * out).sum(dim=-1, keepdim=True)

        def back(weights: Tensor, grad_s: Tensor, scale: float, go: Tensor = grad_out, q: Tensor = q, k: Tensor = k):
            return scale * grad_s @ k, scale * grad_s.mT @ q, weights.mT @ go

        own = (seen * grad_p).sum(dim=-1, keepdim=True)
        start = slice(0, block_k)
        one_tile = (seen * grad_p)[:, start].sum(dim=-1, keepdim=True)
        mistakes = {
            "delta, the sum of grad_out * out over a row, is not subtracted": back(seen, seen * grad_p, scale),
            "the scores are scaled, so this gradient must be scaled too": back(seen, seen * (grad_p - delta), 1.0),
            "the softmax Jacobian is missing between the weights and the scores": back(seen, grad_p * mask, scale),
            "a hidden pair has weight 0 in the backward pass too": back(p, p * (grad_p - delta), scale),
            "delta is a sum over all keys of a row, not over one tile": back(seen, seen * (grad_p - one_tile), scale),
            "delta is subtracted, not added": back(seen, seen * (grad_p + own), scale),
        }
        wanted = attention_vjp(q, k, v, grad_out, mask)[:3]
        for i, name in compared:
            compare(name, got[i], wanted[i], {why: wrong[i] for why, wrong in mistakes.items()}, where=where)
        unseen, block = _keys_hidden_from_first_block(len(q), len(k), block_q, block_k), slice(block_q)
        for i, name in compared:
            given = [x.clone() for x in (q, k, v, out, lse, grad_out)]
            for spoilt in given[1:3] if name == "grad_q" else (given[0], *given[3:]):
                spoilt[unseen if name == "grad_q" else block] = torch.nan
            with without_autograd():
                got = ask("flash_backward", answer, *given, block_q, block_k, where=where, returns=returns, parts=3)
            untouched = got[i][block if name == "grad_q" else unseen].isfinite().all()
            assert untouched, f"for {name} a fully hidden tile was multiplied by zeros; skip it ({where})"


# --- parts ----------------------------------------------------------------------------------------------------------


def _random_case(case: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """Draw queries, keys and values of one head, no more queries than keys, and two block sizes.

    The block sizes do not divide their axes, except in two of four cases: in one they do, in one they are larger.
    """
    d_k, d_v, block_q, block_k = (3 + torch.randperm(4, generator=generator)).tolist()
    n, m = 2 * block_q + 1, 3 * block_k + 2
    n = 1 if case % 4 == 1 else min(n, m - 1)
    if case % 4 == 2:
        n, m = block_q, block_q * block_k
    if case % 4 == 3:
        n, block_q, block_k = m, m + 2, m + 3
    q, k, v = (normal(*shape, generator=generator) for shape in ((n, d_k), (m, d_k), (m, d_v)))
    return q, k, v, block_q, block_k
