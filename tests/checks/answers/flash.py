"""Answers to the exercises on FlashAttention: correct answers in several styles, wrong ones with their message."""

import math

import numpy as np
import torch

from lessons_lib.attention.attention import attention
from lessons_lib.attention.softmax import log_sum_exp, merge_attention
from lessons_lib.checks import flash as check

# --- correct answers --------------------------------------------------------------------------------------------------


def part(q, keys, values, scale=None):
    scores = q @ keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


def by_merging(q, pieces):
    pieces = iter(pieces)
    result = part(q, *next(pieces))
    for keys, values in pieces:
        result = merge_attention(*result, *part(q, keys, values))
    return result


def online(q, pieces, *, shrink_total=True, shrink_sum=True, scale=None, peak_of=torch.maximum):
    """The frame that right and wrong online softmaxes share."""
    peak, total, summed = torch.full_like(q[:, :1], -math.inf), 0.0, 0.0
    for keys, values in pieces:
        scores = q @ keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        new_peak = peak_of(peak, scores.amax(-1, keepdim=True))
        shrink, weights = (peak - new_peak).exp(), (scores - new_peak).exp()
        total = total * (shrink if shrink_total else 1) + weights.sum(-1, keepdim=True)
        summed = summed * (shrink if shrink_sum else 1) + weights @ values
        peak = new_peak
    return summed / total, (peak + total.log())[:, 0]


def causal_traffic(n, d, block_q, block_k):
    moved = 0
    for start in range(0, n, block_q):
        rows = range(start, min(start + block_q, n))
        moved += len(rows) * (2 * d + 1)
        for first in range(0, n, block_k):
            if first <= rows[-1]:
                moved += 2 * d * len(range(first, min(first + block_k, n)))
    return moved


def merge_backward(out_a, lse_a, out_b, lse_b, grad_out, grad_lse):
    share = torch.sigmoid(lse_a - lse_b)
    difference = ((out_a - out_b) * grad_out).sum(-1) * share * (1 - share)
    share_out = share[..., None] * grad_out
    return share_out, difference + share * grad_lse, grad_out - share_out, (1 - share) * grad_lse - difference


RIGHT = {
    check.attend_stream: [by_merging, online, lambda q, pieces: list(online(q, pieces))],
    check.causal_traffic: [causal_traffic, lambda *sizes: float(causal_traffic(*sizes))],
    check.merge_backward: [merge_backward],
}

# --- wrong answers ----------------------------------------------------------------------------------------------------

WRONG = {}


def keeps_references(q, pieces):
    k, v = (torch.cat(tensors) for tensors in zip(*list(pieces), strict=True))
    return attention(q, k, v), log_sum_exp(q @ k.mT / math.sqrt(q.shape[-1]))


def without_peak(q, pieces):
    total = summed = 0.0
    for keys, values in pieces:
        weights = (q @ keys.mT / math.sqrt(q.shape[-1])).exp()
        total, summed = total + weights.sum(-1, keepdim=True), summed + weights @ values
    return summed / total, total.log()[:, 0]


def plain_mean(q, pieces):
    parts = [part(q, *piece) for piece in pieces]
    return torch.stack([out for out, _ in parts]).mean(0), parts[0][1]


def with_lse(change):
    def answer(q, pieces):
        kept = [(keys.clone(), values.clone()) for keys, values in pieces]
        out, lse = by_merging(q, kept)
        peak = torch.cat([(q @ keys.mT).amax(-1, keepdim=True) for keys, _ in kept], dim=-1).amax(-1)
        return out, change(lse, peak / math.sqrt(q.shape[-1]))

    return answer


WRONG[check.attend_stream] = [
    (keeps_references, "after you requested the next one"),
    (without_peak, "subtract the largest score so far"),
    (plain_mean, "averaged with equal weights"),
    (lambda q, pieces: online(q, pieces, scale=1.0), "not divided by sqrt"),
    (lambda q, pieces: online(q, pieces, shrink_total=False), "the running sum of exponentials must be rescaled too"),
    (lambda q, pieces: online(q, pieces, shrink_sum=False), "the running sum of values must be rescaled too"),
    (
        lambda q, pieces: online(q, pieces, shrink_total=False, shrink_sum=False),
        "both running sums must be rescaled",
    ),
    (lambda q, pieces: [part(q, *piece) for piece in pieces][-1], "only the last piece"),
    (lambda q, pieces: part(q, *next(iter(pieces))), "only the first piece"),
    (with_lse(lambda lse, peak: lse - peak), "must be added back"),
    (with_lse(lambda lse, peak: peak), "the logarithm of the sum of exponentials is missing"),
    (with_lse(lambda lse, peak: lse / math.log(2)), "natural logarithm"),
    (with_lse(lambda lse, peak: lse[:, None]), "lse must have shape"),
    (lambda q, pieces: by_merging(q, pieces)[0], "return the pair"),
]


def traffic(*, keys=None, blocks=None, fixed=lambda n, d: 2 * n * d + n, per_key=lambda d: 2 * d):
    """A count with one ingredient replaced."""

    def answer(n, d, block_q, block_k):
        spans = [(start, min(start + block_q, n)) for start in range(0, n, block_q)]
        spans = spans if blocks is None else blocks(spans, block_q)
        count = keys or (lambda start, stop, n, block_k: min(math.ceil(stop / block_k) * block_k, n))
        return sum(count(start, stop, n, block_k) for start, stop in spans) * per_key(d) + fixed(n, d)

    return answer


def queries_again(n, d, block_q, block_k):
    """Loads the queries once more for every tile but the first."""
    rows = [(min(start + block_q, n) - start, min(start + block_q, n)) for start in range(0, n, block_q)]
    return causal_traffic(n, d, block_q, block_k) + sum(size * d * (math.ceil(s / block_k) - 1) for size, s in rows)


WRONG[check.causal_traffic] = [
    (traffic(keys=lambda start, stop, n, b: n), "whose keys are all masked are skipped"),
    (traffic(keys=lambda start, stop, n, b: start // b * b), "tiles on the diagonal are loaded too"),
    (traffic(keys=lambda start, stop, n, b: stop), "a tile is loaded whole"),
    (traffic(keys=lambda start, stop, n, b: math.ceil(stop / b) * b), "ends at n, so it may be shorter"),
    (traffic(blocks=lambda spans, b: [s for s in spans if s[1] - s[0] == b]), "the last block of queries counts too"),
    (traffic(per_key=lambda d: d), "values are loaded as well"),
    (traffic(fixed=lambda n, d: 2 * n * d), "one log-sum-exp for each query"),
    (traffic(fixed=lambda n, d: n * d + n), "the output is stored too"),
    (traffic(fixed=lambda n, d: 2 * n * d + n + 2 * n * n), "no score leaves the fast memory"),
    (traffic(keys=lambda start, stop, n, b: n / 2), "half of all tiles is not exact"),
    (queries_again, "the queries of a block are loaded once"),
    (lambda *sizes: 7, "is 7, wanted [0-9]{4}"),
]


def variant(*, own=1.0, from_lse=1.0, swapped=False, shared=True, weighed=True, shares=None):
    """A backward pass through the merge with one ingredient replaced."""

    def answer(out_a, lse_a, out_b, lse_b, grad_out, grad_lse):
        share_a = torch.sigmoid(lse_a - lse_b) if shares is None else shares(lse_a, lse_b)
        share_b = 1 - share_a
        out = share_a[..., None] * out_a + share_b[..., None] * out_b
        grads = []
        for one, share in ((out_a, share_b if swapped else share_a), (out_b, share_a if swapped else share_b)):
            to_lse = (grad_out * (one - own * out)).sum(-1) + from_lse * grad_lse
            grads += [share[..., None] * grad_out if shared else grad_out, share * to_lse if weighed else to_lse]
        return tuple(grads)

    return answer


def own_share_alone(out_a, lse_a, out_b, lse_b, grad_out, grad_lse):
    grads = []
    for out, share in ((out_a, torch.sigmoid(lse_a - lse_b)), (out_b, torch.sigmoid(lse_b - lse_a))):
        to_lse = share * (1 - share) * (grad_out * out).sum(-1) + share * grad_lse
        grads += [share[..., None] * grad_out, to_lse]
    return tuple(grads)


WRONG[check.merge_backward] = [
    (variant(own=0.0), "subtract the merged output"),
    (variant(from_lse=0.0), "must reach the log-sum-exps of both parts"),
    (variant(swapped=True), "are swapped"),
    (variant(shared=False), "the gradient of a part's output by"),
    (variant(weighed=False), "the gradient of a part's log-sum-exp by"),
    (variant(shares=lambda a, b: a.exp() / (a.exp() + b.exp())), "depend only on the difference"),
    (own_share_alone, "the other merge weight changes too"),
    (lambda *x: merge_backward(*x)[:2], "return four gradients"),
    (lambda *x: merge_backward(*x)[::-1], "must have shape"),
]


# --- further answers --------------------------------------------------------------------------------------------------


def copied_and_joined(q, pieces):
    keys, values = zip(*((k.clone(), v.clone()) for k, v in pieces), strict=True)
    scores = q @ torch.cat(keys).mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ torch.cat(values), scores.logsumexp(-1)


def key_by_key(q, pieces):
    """A running average and a running log-sum-exp, one key at a time."""
    out, lse = None, torch.full_like(q[:, 0], -math.inf)
    for keys, values in pieces:
        for key, value in zip(keys, values, strict=True):
            score = q @ key / math.sqrt(q.shape[-1])
            total = torch.logaddexp(lse, score)
            share = (score - total).exp()[:, None]
            out = share * value + (0.0 if out is None else (1 - share) * out)
            lse = total
    return out, lse


def from_zero(q, pieces):
    """The online softmax, except that the peak before the first piece is 0."""
    peak, total, summed = torch.zeros_like(q[:, :1]), 0.0, 0.0
    for keys, values in pieces:
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        new = torch.maximum(peak, scores.amax(-1, keepdim=True))
        total = total * (peak - new).exp() + (scores - new).exp().sum(-1, keepdim=True)
        summed, peak = summed * (peak - new).exp() + (scores - new).exp() @ values, new
    return summed / total, (peak + total.log())[:, 0]


def pairs_of_tiles(n, d, block_q, block_k, *, diagonal=True):
    loaded = 0
    for i in range(-(-n // block_q)):
        for j in range(-(-n // block_k)):
            last = min((i + 1) * block_q, n) - 1
            width = min(block_k, n - j * block_k)
            whole = j * block_k + width - 1 <= i * block_q
            loaded += 2 * width * d * (j * block_k <= last and (diagonal or whole))
    return loaded + n * (2 * d + 1)


def merging_by_softmax(out_a, lse_a, out_b, lse_b, grad_out, grad_lse, *, through_shares=True):
    shares = torch.stack([lse_a, lse_b], -1).softmax(-1)
    outs = torch.stack([out_a, out_b], -2)
    to_shares = (outs * grad_out[..., None, :]).sum(-1) * through_shares
    to_lses = shares * (to_shares - (shares * to_shares).sum(-1, keepdim=True) + grad_lse[..., None])
    to_outs = shares[..., None] * grad_out[..., None, :]
    return to_outs[..., 0, :], to_lses[..., 0], to_outs[..., 1, :], to_lses[..., 1]


RIGHT[check.attend_stream] += [
    copied_and_joined,
    key_by_key,
    lambda q, pieces: online(q, pieces, peak_of=lambda old, new: torch.where(new > old, new, old)),
]
RIGHT[check.causal_traffic] += [pairs_of_tiles, lambda *sizes: np.int64(causal_traffic(*sizes))]
RIGHT[check.merge_backward] += [
    merging_by_softmax,
    lambda *given: list(merge_backward(*given)),
    variant(),
]
WRONG[check.attend_stream] += [
    (from_zero, "start the running maximum at -inf, not at 0"),
    (lambda q, pieces: online(q, pieces, peak_of=lambda old, new: new), "wrong values|not finite"),
]
WRONG[check.causal_traffic] += [
    (
        lambda *sizes: pairs_of_tiles(*sizes, diagonal=False),
        "only the later queries of a block|tiles on the diagonal|wanted",
    ),
    (lambda *sizes: causal_traffic(*sizes) + 1, "is [0-9]+, wanted [0-9]+ "),
    (lambda n, d, a, b: causal_traffic(n, d, b, a), "is [0-9]+, wanted [0-9]+ "),
    (traffic(keys=lambda start, stop, n, b: (start + 1) // b * b), "only the later queries of a block attend"),
]
WRONG[check.merge_backward] += [
    (lambda *given: merging_by_softmax(*given, through_shares=False), "so they are not constants"),
    (lambda *given: tuple(x.flip(0) for x in merge_backward(*given)), "wrong values"),
]


# --- the lower bound on the time --------------------------------------------------------------------------------------


def minimum_seconds(n, d, rate, bandwidth, *, flops=4, of_pairs=2, of_width=1, numbers=4, size=2, matrix=0, join=max):
    """The roofline, with one thing to be wrong."""
    return join(flops * n**of_pairs * d**of_width / rate, (size * numbers * n * d + matrix * n * n) / bandwidth)


def by_intensity(n, d, rate, bandwidth):
    """The machine does at most its rate, and at most what its bandwidth feeds."""
    flops, moved = 4 * n**2 * d, 8 * n * d
    return flops / min(rate, bandwidth * flops / moved)


def by_counting(n, d, rate, bandwidth):
    scores = averages = 2 * n * n * d
    arrays = {"q": n * d, "k": n * d, "v": n * d, "out": n * d}
    slower = (scores + averages) / rate > 2 * sum(arrays.values()) / bandwidth
    return (scores + averages) / rate if slower else 2 * sum(arrays.values()) / bandwidth


RIGHT[check.minimum_seconds] = [
    minimum_seconds,
    by_intensity,
    by_counting,
    lambda n, d, r, b: torch.maximum(torch.tensor(4 * n * n * d / r), torch.tensor(8 * n * d / b)),
    lambda n, d, r, b: np.float32(minimum_seconds(n, d, r, b)),
]
WRONG[check.minimum_seconds] = [
    (lambda *x: minimum_seconds(*x, join=min), "you return the faster one"),
    (lambda *x: minimum_seconds(*x, join=lambda a, b: a), "you return the faster one"),
    (lambda *x: minimum_seconds(*x, join=lambda a, b: b), "you return the faster one"),
    (lambda *x: minimum_seconds(*x, join=lambda a, b: a + b), "so their times are not added"),
    (lambda *x: minimum_seconds(*x, flops=2), "a multiplication and an addition"),
    (lambda *x: minimum_seconds(*x, flops=1), "there are two matrix products"),
    (lambda *x: minimum_seconds(*x, size=1), "each number takes two bytes"),
    (lambda *x: minimum_seconds(*x, size=4), "each number takes two bytes"),
    (lambda *x: minimum_seconds(*x, numbers=3), "queries, keys, values and outputs are all moved"),
    (lambda *x: minimum_seconds(*x, numbers=1), "queries, keys, values and outputs are all moved"),
    (lambda *x: minimum_seconds(*x, matrix=2), "never leaves the fast memory"),
    (lambda *x: minimum_seconds(*x, matrix=4), "never leaves the fast memory"),
    (lambda *x: minimum_seconds(*x, of_pairs=1), "both products run over all"),
    (lambda *x: minimum_seconds(*x, of_width=0), "a score takes d multiplications"),
    (lambda *x: 1 / minimum_seconds(*x), "the FLOPs divided by the FLOPs per second"),
    (lambda n, d, r, b: max(r / (4 * n * n * d), b / (8 * n * d)), "the FLOPs divided by the FLOPs per second"),
    (lambda *x: 1000 * minimum_seconds(*x), "minimum_seconds is [0-9.e-]+, wanted [0-9.e-]+ "),
    (lambda n, d, r, b: minimum_seconds(n, d, b, r), "minimum_seconds is"),
    (lambda *x: str(minimum_seconds(*x)), "must be a number, got str"),
]


# --- wrong at a limit of what the text allows -------------------------------------------------------------------------


def with_an_empty_block(n, d, block_q, block_k):
    """Has one block too many if the blocks divide the queries."""
    blocks = [min((i + 1) * block_q, n) for i in range(n // block_q + 1)]
    return 2 * n * d + n + 2 * d * sum(min(math.ceil(stop / block_k) * block_k, n) for stop in blocks)


def by_a_quotient(out_a, lse_a, out_b, lse_b, grad_out, grad_lse):
    """The merge weight as e^x / (1 + e^x), which overflows if the log-sum-exps are far apart."""
    share = (lse_a - lse_b).exp() / (1 + (lse_a - lse_b).exp())
    difference = ((out_a - out_b) * grad_out).sum(-1) * share * (1 - share)
    share_out = share[..., None] * grad_out
    return share_out, difference + share * grad_lse, grad_out - share_out, (1 - share) * grad_lse - difference


WRONG[check.causal_traffic] += [
    (with_an_empty_block, "causal_traffic is "),
    (lambda n, d, a, b: causal_traffic(n, d, min(a, n - 1), b), "causal_traffic is "),
    (lambda n, d, a, b: causal_traffic(n, d, a, max(b, 2)), "causal_traffic is "),
]
WRONG[check.merge_backward] += [(by_a_quotient, "exp overflowed")]
