"""Correct and wrong answers to the assignment of Part III, the wrong ones with the message they must get."""

import math

import torch

from lessons_lib.attention.attention import attention, attention_vjp
from lessons_lib.attention.masks import bidirectional, causal
from lessons_lib.attention.softmax import log_sum_exp, merge_attention
from lessons_lib.checks import build_flash as check

# --- correct answers --------------------------------------------------------------------------------------------------


def update(peak, total, summed, scores, values):
    """By the merge of two log-sum-exps, and back."""
    new_peak = torch.maximum(peak, scores.amax(-1))
    relative = new_peak.masked_fill(new_peak.isneginf(), 0.0)
    out, lse = merge_attention(
        summed / total.masked_fill(total == 0, 1.0)[:, None],
        peak + total.log(),
        scores.softmax(-1).nan_to_num() @ values,
        scores.logsumexp(-1),
    )
    total = (lse - relative).exp()
    return new_peak, total, out * total[:, None]


def tiled(q, k, v, block):
    parts = [
        (attention(q, keys, values), log_sum_exp(q @ keys.mT / math.sqrt(q.shape[-1])))
        for keys, values in zip(k.split(block), v.split(block), strict=True)
    ]
    out, lse = parts[0]
    for part in parts[1:]:
        out, lse = merge_attention(out, lse, *part)
    return out


def causal_tiles(n, m, block_q, block_k):
    mask = causal(n, m)
    cut = [(i, j, mask[i : i + block_q, j : j + block_k]) for j in range(0, m, block_k) for i in range(0, n, block_q)]
    return [[i, j, bool(tile.all())] for i, j, tile in cut if tile.any()]


def flash(q, k, v, block_q, block_k, *, mask=None, scale=None, tiles=causal_tiles, spare=True):
    """Block of queries by block of queries, over the keys up to the last visible tile; with one thing to be wrong."""
    n, m = len(q), len(k)
    mask = causal(n, m) if mask is None else mask
    out, lse = q.new_zeros(n, v.shape[1]), q.new_zeros(n)
    for i in range(0, n, block_q):
        stop = max(j for first, j, _ in tiles(n, m, block_q, block_k) if first == i) + block_k if spare else m
        rows, seen = slice(i, i + block_q), slice(0, stop)
        out[rows] = attention(q[rows], k[seen], v[seen], mask[rows, seen], scale=scale)
        lse[rows] = log_sum_exp(q[rows] @ k[seen].T / math.sqrt(q.shape[1]), mask[rows, seen])
    return out, lse


def flash_backward(q, k, v, out, lse, grad_out, block_q, block_k):
    """Block of queries by block of queries, over the keys up to the last visible tile."""
    n, m = len(q), len(k)
    grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
    for i in range(0, n, block_q):
        stop = max(j for first, j, _ in causal_tiles(n, m, block_q, block_k) if first == i) + block_k
        rows, seen = slice(i, i + block_q), slice(0, stop)
        grads = attention_vjp(q[rows], k[seen], v[seen], grad_out[rows], causal(n, m)[rows, seen])
        grad_q[rows] = grads[0]
        grad_k[seen] += grads[1]
        grad_v[seen] += grads[2]
    return grad_q, grad_k, grad_v


RIGHT = {
    check.update: [update],
    check.tiled: [tiled],
    check.causal_tiles: [causal_tiles],
    check.flash: [flash],
    check.flash_backward: [flash_backward],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def updating(*, shrink_total=1, shrink_summed=1, own_peak=False, forget=False, ignore=False, naive=False, piece=False):
    """Make an update with one thing wrong; a power of 0 does not shrink, of -1 grows."""

    def answer(peak, total, summed, scores, values):
        highest = scores.amax(-1) if own_peak else torch.maximum(peak, scores.amax(-1))
        subtract = highest if naive else highest.masked_fill(highest.isneginf(), 0.0)
        weights = (scores - (scores.amax(-1) if piece else subtract)[:, None]).exp()
        by = (peak - subtract).exp() * (0 if forget else 1)
        added, brought = (0, 0) if ignore else (weights.sum(-1), weights @ values)
        return highest, total * by**shrink_total + added, summed * by[:, None] ** shrink_summed + brought

    return answer


def by_averages(peak, total, summed, scores, values):
    """Keeps averages on the way, which rows without keys do not have."""
    average = summed / total[:, None]
    new_peak, new_total, new_summed = update(peak, total, summed, scores, values)
    return new_peak, new_total, new_summed - summed + average * total[:, None]


RIGHT[check.update].append(updating())
WRONG[check.update] = [
    (updating(own_peak=True), "peak is wrong: peak is the largest score so far"),
    (updating(shrink_total=0), "total is wrong: the old sum is relative to the old peak"),
    (updating(shrink_summed=0), "summed is wrong: the old sum is relative to the old peak"),
    (updating(shrink_total=-1), "total is wrong: .*this is the inverse"),
    (updating(shrink_summed=-1), "summed is wrong: .*this is the inverse"),
    (updating(forget=True), "the old sum is lost"),
    (updating(ignore=True), "the new keys are ignored"),
    (updating(piece=True), "relative to the new peak, too"),
    (updating(naive=True), "subtract 0 there"),
    (by_averages, "is not finite: .*at the start"),
    (lambda *given: update(*given)[:2], "return peak, total, summed, got 2"),
    (lambda *given: update(*given)[0], "got one Tensor"),
    (lambda *given: (*update(*given)[:2], 2 * update(*given)[2]), "wrong values"),
]


def without_peak(q, k, v, block):
    weights = (q @ k.T / math.sqrt(q.shape[1])).exp()
    return weights @ v / weights.sum(-1, keepdim=True)


def averaged(q, k, v, block):
    parts = zip(k.split(block), v.split(block), strict=True)
    return torch.stack([attention(q, *part) for part in parts]).mean(0)


def cut_off(q, k, v, block):
    whole = len(k) // block * block
    return attention(q, k[:whole], v[:whole])


WRONG[check.tiled] = [
    (without_peak, "subtract the running peak"),
    (averaged, "with equal weights"),
    (cut_off, "the last, shorter block is missing"),
    (lambda q, k, v, block: attention(q, k.split(block)[-1], v.split(block)[-1]), "only the last block"),
    (lambda q, k, v, block: attention(q, k, v, scale=1.0), "not divided by sqrt"),
    (lambda q, k, v, block: attention(q, k, v) + 1, "wrong values"),
    (lambda q, k, v, block: attention(q, k, v)[:block], "must have shape"),
]


def cutting(mask=causal, keep=lambda tile: tile.any(), whole=lambda tile: bool(tile.all())):
    """Make a list of tiles with one thing wrong."""

    def answer(n, m, block_q, block_k):
        allowed = mask(n, m)
        found = []
        for i in range(0, n, block_q):
            for j in range(0, m, block_k):
                tile = allowed[i : i + block_q, j : j + block_k]
                found += [(i, j, whole(tile))] if keep(tile) else []
        return found

    return answer


RIGHT[check.causal_tiles].append(cutting())
WRONG[check.causal_tiles] = [
    (cutting(keep=lambda tile: True), "skip a tile without visible pairs"),
    (cutting(keep=lambda tile: tile.all()), "visit a partly visible tile"),
    (cutting(whole=lambda tile: True), "with a hidden pair needs a mask"),
    (cutting(whole=lambda tile: False), "without a hidden pair needs no mask"),
    (cutting(whole=lambda tile: not tile.all()), "the third entry is True"),
    (cutting(mask=lambda n, m: bidirectional(n, m).tril()), "the last n of the m positions"),
    (lambda n, m, a, b: [(i // a, j // b, whole) for i, j, whole in causal_tiles(n, m, a, b)], "numbers of tiles"),
    (
        lambda n, m, a, b: [tile for tile in causal_tiles(n, m, a, b) if tile[0] + a <= n],
        "shorter block of queries is missing",
    ),
    (
        lambda n, m, a, b: [tile for tile in causal_tiles(n, m, a, b) if tile[1] + b <= m],
        "shorter block of keys is missing",
    ),
    (lambda *given: causal_tiles(*given)[1:], "for example for \\[\\(0, 0"),
    (lambda *given: causal_tiles(*given) * 2, "listed twice"),
    (lambda *given: [tile[:2] for tile in causal_tiles(*given)], "a list of triples"),
    (lambda *given: 7, "a list of triples"),
]


def with_tiles_unmasked(q, k, v, block_q, block_k):
    mask = torch.zeros(len(q), len(k), dtype=torch.bool)
    for i, j, _ in causal_tiles(len(q), len(k), block_q, block_k):
        mask[i : i + block_q, j : j + block_k] = True
    return flash(q, k, v, block_q, block_k, mask=mask)


def with_one_place_a_block(q, k, v, block_q, block_k):
    mask = causal(len(q), len(k))[torch.arange(len(q)) // block_q * block_q]
    return flash(q, k, v, block_q, block_k, mask=mask)


def with_lse(change):
    """Make an answer whose log-sum-exps are changed, given them and the peaks."""

    def answer(q, k, v, block_q, block_k):
        out, lse = flash(q, k, v, block_q, block_k)
        scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(~causal(len(q), len(k)), -torch.inf)
        return out, change(lse, scores.amax(-1))

    return answer


WRONG[check.flash] = [
    (lambda q, k, v, *_: flash(q, k, v, *_, mask=bidirectional(len(q), len(k)), spare=False), "hides later positions"),
    (lambda q, k, v, *_: flash(q, k, v, *_, mask=bidirectional(len(q), len(k)).tril()), "the last n of the m"),
    (lambda *given: flash(*given, scale=1.0), "not divided by sqrt"),
    (with_tiles_unmasked, "on the diagonal needs the mask"),
    (with_one_place_a_block, "has its own position"),
    (lambda *given: flash(*given, spare=False), "multiplied by zeros; skip it"),
    (with_lse(lambda lse, peak: lse - peak), "the peak must be added back"),
    (with_lse(lambda lse, peak: peak), "this is the peak"),
    (with_lse(lambda lse, peak: (lse - peak).exp()), "this is the total"),
    (with_lse(lambda lse, peak: lse / math.log(2)), "natural logarithm"),
    (
        lambda q, k, v, *_: (flash(q, k, v, *_)[0], log_sum_exp(q @ k.T / math.sqrt(q.shape[1]))),
        "applies to the log-sum-exp too",
    ),
    (with_lse(lambda lse, peak: lse[:, None]), "must have shape"),
    (lambda *given: flash(*given)[0], "return out, lse, got one Tensor"),
    (lambda *given: (2 * flash(*given)[0], flash(*given)[1]), "wrong values"),
]


def carrying(*, delta=1.0, scale=True, jacobian=True, mask=True, tile=False):
    """Make a backward pass with one thing wrong."""

    def answer(q, k, v, out, lse, grad_out, block_q, block_k):
        root = q.shape[1] ** -0.5
        p = (root * q @ k.T - lse[:, None]).exp()
        p = p * causal(len(q), len(k)) if mask else p
        grad_p = grad_out @ v.T
        first = slice(0, block_k) if tile else slice(None)
        row = (p * grad_p)[:, first].sum(-1) if tile else (grad_out * out).sum(-1)
        grad_s = p * (grad_p - delta * row[:, None]) if jacobian else grad_p * causal(len(q), len(k))
        by = root if scale else 1.0
        return by * grad_s @ k, by * grad_s.T @ q, p.T @ grad_out

    return answer


WRONG[check.flash_backward] = [
    (carrying(delta=0.0), "is not subtracted"),
    (carrying(delta=-1.0), "delta is subtracted, not added"),
    (carrying(scale=False), "so this gradient must be scaled too"),
    (carrying(jacobian=False), "the softmax Jacobian is missing"),
    (carrying(mask=False), "a hidden pair has weight 0"),
    (carrying(tile=True), "a sum over all keys of a row"),
    (lambda *given: flash_backward(*given)[:2], "got 2 things"),
    (lambda *given: flash_backward(*given)[::-1], "must have shape"),
    (lambda *given: tuple(2 * grad for grad in flash_backward(*given)), "wrong values"),
]


# --- further ones -----------------------------------------------------------------------------------------------------


def update_with_where(peak, total, summed, scores, values):
    both = torch.cat([peak[:, None], scores], dim=1)
    new = both.amax(1)
    weights = torch.where(both == -torch.inf, 0.0, (both - new[:, None]).exp().nan_to_num())
    old, rest = weights[:, 0], weights[:, 1:]
    return new, old * total + rest.sum(1), old[:, None] * summed + torch.einsum("nm,md->nd", rest, values)


def update_key_by_key(peak, total, summed, scores, values):
    for column, value in zip(scores.unbind(1), values, strict=True):
        peak, total, summed = updating()(peak, total, summed, column[:, None], value[None])
    return [peak, total, summed]


def running(q, k, v, block, *, start=-math.inf):
    """The online softmax over blocks of keys."""
    peak, total, summed = torch.full((len(q),), start, dtype=q.dtype), 0.0, 0.0
    for keys, values in zip(k.split(block), v.split(block), strict=True):
        scores = q @ keys.T * q.shape[1] ** -0.5
        new = torch.maximum(peak, scores.amax(1))
        weights, shrink = (scores - new[:, None]).exp(), (peak - new).exp()
        total, summed, peak = shrink * total + weights.sum(1), shrink[:, None] * summed + weights @ values, new
    return summed / total[:, None]


def query_by_query(q, k, v, block):
    return torch.cat([running(row[None], k, v, block) for row in q])


def tiles_by_corners(n, m, block_q, block_k):
    """A tile is visible if its lower left corner is, and whole if its upper right one is."""
    found = []
    for i in range(0, n, block_q):
        for j in range(0, m, block_k):
            last_query, last_key = min(i + block_q, n) - 1 + m - n, min(j + block_k, m) - 1
            if j <= last_query:
                found.append((i, j, last_key <= i + m - n))
    return found


def flash_in_tiles(q, k, v, block_q, block_k, *, start=-math.inf, diagonal=0):
    n, m = len(q), len(k)
    outs, lses = [], []
    for i in range(0, n, block_q):
        rows = q[i : i + block_q]
        at = torch.arange(i, i + len(rows))[:, None] + m - n + diagonal
        peak, total, summed = q.new_full((len(rows), 1), start), 0.0, 0.0
        for j in range(0, int(at.max()) + 1, block_k):
            keys = k[j : j + block_k]
            scores = rows @ keys.T / math.sqrt(q.shape[1])
            scores = scores.masked_fill(torch.arange(j, j + len(keys)) > at, -torch.inf)
            new = torch.maximum(peak, scores.amax(1, keepdim=True))
            weights, shrink = (scores - new).exp(), (peak - new).exp()
            total = total * shrink + weights.sum(1, keepdim=True)
            summed, peak = summed * shrink + weights @ v[j : j + block_k], new
        outs.append(summed / total)
        lses.append((peak + total.log())[:, 0])
    return torch.cat(outs), torch.cat(lses)


def backward_in_tiles(q, k, v, out, lse, grad_out, block_q, block_k, *, tiles=causal_tiles):
    n, m, root = len(q), len(k), q.shape[1] ** -0.5
    delta = (grad_out * out).sum(1, keepdim=True)
    grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for i, j, whole in tiles(n, m, block_q, block_k):
        a, b = slice(i, i + block_q), slice(j, j + block_k)
        p = (root * q[a] @ k[b].T - lse[a, None]).exp()
        p = p if whole else p.masked_fill(~causal(n, m)[a, b], 0.0)
        grad_s = root * p * (grad_out[a] @ v[b].T - delta[a])
        grads[0][a] += grad_s @ k[b]
        grads[1][b] += grad_s.T @ q[a]
        grads[2][b] += p.T @ grad_out[a]
    return grads


def every_tile(n, m, block_q, block_k):
    return [(i, j, False) for i in range(0, n, block_q) for j in range(0, m, block_k)]


def from_keys_to_queries(*given):
    """Tile by tile in the other order."""
    return backward_in_tiles(*given, tiles=lambda *sizes: sorted(causal_tiles(*sizes), key=lambda tile: -tile[1]))


RIGHT[check.update] += [update_with_where, update_key_by_key]
RIGHT[check.tiled] += [running, query_by_query, lambda q, k, v, block: running(q, k, v, 1).float()]
RIGHT[check.causal_tiles] += [tiles_by_corners, lambda *sizes: tuple(tiles_by_corners(*sizes)[::-1])]
RIGHT[check.flash] += [
    flash_in_tiles,
    lambda *given: list(flash_in_tiles(*given)),
    lambda q, k, v, a, b: flash_in_tiles(q, k, v, 1, b),
]
RIGHT[check.flash_backward] += [
    backward_in_tiles,
    from_keys_to_queries,
    lambda *x: list(backward_in_tiles(*x[:6], 1, x[7])),
]
WRONG[check.tiled] += [
    (lambda *given: running(*given, start=0.0), "before the first block the peak is -inf, not 0"),
    (lambda q, k, v, block: running(q, k[block:], v[block:], block), "wrong values"),
    (lambda q, k, v, block: running(q, k, v, block).half(), "single precision|wrong values"),
    (lambda q, k, v, block: list(running(q, k, v, block)), "must be a tensor, got list"),
]
WRONG[check.flash] += [
    (lambda *given: flash_in_tiles(*given, start=0.0), "before the first tile the peak is -inf, not 0"),
    (lambda *given: flash_in_tiles(*given, diagonal=-1), "wrong values|NaN"),
]
WRONG[check.flash_backward] += [
    (carrying(), "multiplied by zeros; skip it"),
    (lambda *given: backward_in_tiles(*given, tiles=every_tile), "multiplied by zeros; skip it"),
    (lambda *x: backward_in_tiles(*x[:3], 0 * x[3], *x[4:]), "is not subtracted"),
    (lambda *x: backward_in_tiles(x[1][: len(x[0])], *x[1:]), "wrong values"),
]
WRONG[check.update] += [
    (lambda p, t, s, scores, v: updating()(p, t, s, scores / 2, v), "peak has the right shape|wrong")
]


# --- one block --------------------------------------------------------------------------------------------------------


def one_block(scores, values, *, peak_of=lambda s: s.amax(1), shift=lambda s, peak: peak, weigh=torch.exp):
    """Peak, total and summed; with one thing to be wrong."""
    peak = peak_of(scores)
    shifted = shift(scores, peak)
    e = weigh(scores - shifted.masked_fill(shifted.isneginf(), 0.0)[:, None])
    return peak, e.sum(1), e @ values


def row_by_row(scores, values):
    peaks, totals, sums = [], [], []
    for row in scores:
        peak = row.max()
        seen = row > -torch.inf
        weights = (row[seen] - peak).exp()
        peaks.append(peak)
        totals.append(weights.sum())
        sums.append(weights @ values[seen])
    return torch.stack(peaks), torch.stack(totals), torch.stack(sums)


def from_the_start(scores, values):
    """By the update of the next exercise."""
    start = scores.new_full(scores.shape[:1], -math.inf), scores.new_zeros(len(scores)), values.new_zeros(1)
    return updating()(start[0], start[1], start[2].expand(len(scores), values.shape[1]), scores, values)


def by_softmax(scores, values):
    peak, p = scores.max(dim=1).values, scores.softmax(1).nan_to_num()
    total = (scores.logsumexp(1) - peak).exp().nan_to_num()
    return [peak, total, total[:, None] * (p @ values)]


def changed(part, change):
    """The right answer with one part changed, given the scores, the values and that part."""

    def answer(scores, values):
        parts = list(one_block(scores, values))
        parts[part] = change(scores, values, parts[part])
        return tuple(parts)

    return answer


def no_key(scores):
    return scores.isneginf().all(1)


RIGHT[check.one_block] = [one_block, row_by_row, from_the_start, by_softmax]
WRONG[check.one_block] = [
    (changed(0, lambda s, v, peak: s.max().expand_as(peak)), "each query has a peak of its own"),
    (changed(0, lambda s, v, peak: peak.nan_to_num(neginf=0.0)), "a row without visible keys has peak -inf"),
    (changed(0, lambda s, v, peak: peak.masked_fill(no_key(s), -1e9)), "a row without visible keys has peak -inf"),
    (changed(0, lambda s, v, peak: s.amin(1)), "not the smallest"),
    (changed(0, lambda s, v, peak: s.abs().amax(1)), "not the largest absolute value"),
    (changed(0, lambda s, v, peak: s.amax(0)), "peak must have shape"),
    (changed(1, lambda s, v, total: s.exp().sum(1)), "total is not finite: take exp of s - peak|relative to the peak"),
    (changed(1, lambda s, v, total: (s - 1).exp().sum(1)), "wrong values"),
    (lambda s, v: one_block(s, v, shift=lambda s, peak: s.max().expand_as(peak)), "relative to the peak of their row"),
    (changed(2, lambda s, v, _: (s - s.max()).exp() @ v), "summed is wrong: the exponentials must be relative"),
    (changed(1, lambda s, v, total: total / total.masked_fill(total == 0, 1.0)), "the total is not 1"),
    (changed(1, lambda s, v, total: total.log()), "the logarithm comes at the end"),
    (changed(1, lambda s, v, total: s.logsumexp(1)), "the logarithm comes at the end"),
    (changed(1, lambda s, v, total: (~s.isneginf()).sum(1).double()), "not the number of keys"),
    (
        changed(1, lambda s, v, total: total.masked_fill(no_key(s), s.shape[1])),
        "a row without visible keys has total 0",
    ),
    (changed(1, lambda s, v, total: total / s.shape[1]), "total is a sum, not a mean"),
    (changed(2, lambda s, v, _: s.softmax(1).nan_to_num() @ v), "do not divide yet"),
    (changed(2, lambda s, v, _: (~s.isneginf()).double() @ v), "the values are weighted by the exponentials"),
    (changed(2, lambda s, v, _: s.masked_fill(s.isneginf(), 0.0) @ v), "the values are weighted by the exponentials"),
    (changed(2, lambda s, v, x: torch.where(no_key(s)[:, None], v.sum(0), x)), "has summed 0"),
    (lambda s, v: one_block(s, v, peak_of=lambda s: s.amax(1) + 1), "peak has the right shape and wrong values"),
    (
        lambda s, v: (s.amax(1), (s - s.amax(1)[:, None]).exp().sum(1), one_block(s, v)[2]),
        "total is not finite: .*subtract 0",
    ),
    (lambda s, v: one_block(s, v)[:2], "return peak, total, summed, got 2"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def with_an_empty_block(answer):
    """Takes one block of keys more if the blocks divide the keys."""

    def wrong(q, k, v, block):
        peak, total, summed = torch.full((len(q),), -math.inf, dtype=q.dtype), 0.0, 0.0
        for i in range(len(k) // block + 1):
            rows = slice(i * block, (i + 1) * block)
            scores = q @ k[rows].T * q.shape[1] ** -0.5
            new = torch.maximum(peak, scores.amax(1))
            weights, shrink = (scores - new[:, None]).exp(), (peak - new).exp()
            total, summed, peak = shrink * total + weights.sum(1), shrink[:, None] * summed + weights @ v[rows], new
        return summed / total[:, None]

    return wrong


def squeezed(answer):
    return lambda *given: tuple(part.squeeze() for part in answer(*given))


def unless(condition, answer, other):
    """An answer that is right unless the sizes fulfil a condition."""
    return lambda *given: other(*given) if condition(*given) else answer(*given)


WRONG[check.one_block] += [(squeezed(one_block), "must have shape")]
WRONG[check.update] += [(squeezed(update_with_where), "must have shape")]
WRONG[check.tiled] += [
    (with_an_empty_block(running), "dim|size|empty"),
    (unless(lambda q, k, v, block: block > len(k), running, without_peak), "not finite"),
    (lambda *given: running(*given).squeeze(), "must have shape"),
]
WRONG[check.causal_tiles] += [
    (
        lambda n, m, a, b: [(i, j, whole) for i, j, whole in causal_tiles(n, m, a, b) if i + a <= n or a < n],
        "causal_tiles",
    ),
    (lambda n, m, a, b: [(i, j, whole and b > 1) for i, j, whole in causal_tiles(n, m, a, b)], "causal_tiles"),
    (lambda n, m, a, b: causal_tiles(n, m, min(a, n - 1), b), "causal_tiles|zero"),
]
WRONG[check.flash] += [
    (lambda q, k, v, a, b: flash(q, k, v, min(a, len(q) - 1), b), "zero"),
    (lambda q, k, v, a, b: flash(q, k, v, a, b) if len(q) < len(k) else flash(k, q, v, a, b), "wrong"),
]
WRONG[check.flash_backward] += [
    (lambda *x: flash_backward(*x[:6], min(x[6], len(x[0]) - 1), x[7]), "zero"),
]
