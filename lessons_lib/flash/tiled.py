r"""FlashAttention in PyTorch: tile by tile, exact, and never an ``n x m`` matrix in memory.

The forward pass visits the keys block by block and keeps, for each query, three running things: the largest score so
far, the sum of exponentials relative to it, and the values averaged with them. The backward pass recomputes each tile
of weights from the log-sum-exp that the forward pass left, :math:`P = e^{S - \ell}`, so that only ``n`` numbers a head
are kept for it [1]_ [2]_. What the softmax's derivative needs from a whole row is one number too,

.. math:: \delta_i = \sum_j P_{ij}\, \bar P_{ij} - \bar\ell_i = \bar o_i \cdot o_i - \bar\ell_i.

A cap's derivative is :math:`1 - (s / c)^2`, between a score and its product. A sink is a key whose value is zero: it
takes :math:`e^{z - \ell_i}` of row :math:`i`, and its gradient is :math:`-\sum_i e^{z - \ell_i}\, \delta_i`.

For speed the tiles are worked on in place, in two buffers that stay in the cache; a few heads go side by side through
batched matrix products; a rule says which tiles to visit, and in which of these something is hidden; and exponentials
are powers of two, :math:`e^s = 2^{s \log_2 e}`, which PyTorch computes in half the time on a CPU, so inside a tile
scores and log-sum-exps are in bits. Where the lengths of queries and keys keep every score small, the running maximum
stays at zero and costs nothing.

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
.. [2] Dao, *FlashAttention-2*, 2023. arXiv:2307.08691.
"""

import math
from collections.abc import Iterator
from copy import copy
from itertools import product

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lessons_lib.flash.inputs import lengths_of
from lessons_lib.flash.scores import Scores
from lessons_lib.rules import Rule, Seen, tiles
from lessons_lib.shapes import at_least_single

# 256 x 256 float32 scores are 256 KiB a head: larger tiles leave the second-level cache, smaller ones pay for Python.
BLOCK = 256
TILE = 4 * BLOCK * BLOCK  # scores of so many heads are worked on at once
SMALL = 30.0  # bits: the exponentials of such scores, their sums and products stay far from both ends of float32
LOG2_E, LN_2 = math.log2(math.e), math.log(2)


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores, cache_lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable. Arguments are those of ``flash_attention``, already checked."""
    m = key.shape[2]
    lengths = [m] * len(key) if cache_lengths is None else lengths_of(cache_lengths, m)
    return TiledAttention.apply(query, key, value, scores.slopes, scores.sinks, rule, scores, lengths)


class TiledAttention(torch.autograd.Function):
    """``apply(query, key, value, slopes, sinks, rule, scores, lengths)`` returns ``(out, lse)``; both carry gradients.

    Sequence ``b`` has the first ``lengths[b]`` keys.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slopes: Tensor | None,
        sinks: Tensor | None,
        rule: Rule,
        scores: Scores,
        lengths: list[int],
    ) -> tuple[Tensor, Tensor]:
        """Attend in each sequence by its own rule."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        lse = torch.empty(query.shape[:-1], dtype=_wide(query), device=query.device)
        queries, outs, lses = (_by_key_head(x, key) for x in (query, out, lse[..., None]))
        scorer = _Scorer(scores._replace(slopes=slopes, sinks=sinks), key)
        rules = [rule.of_sequence(b) for b in range(len(key))]
        for b, g in _parts(queries):
            keys = key[b, g, : lengths[b]], value[b, g, : lengths[b]]
            _attend(queries[b, g], *keys, outs[b, g], lses[b, g], rules[b], scorer.of_heads(g))
        ctx.save_for_backward(query, key, value, slopes, sinks, out, lse)
        ctx.rule, ctx.scores, ctx.lengths = rule, scores._replace(slopes=None, sinks=None), lengths
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights tile by tile and collect the gradients."""
        query, key, value, slopes, sinks, out, lse = ctx.saved_tensors
        grad_query, grad_key, grad_value = (
            torch.zeros(x.shape, dtype=_wide(x), device=x.device) for x in (query, key, value)
        )
        queries, outs, lses, grad_outs, grad_lses, grad_queries = (
            _by_key_head(x, key) for x in (query, out, lse[..., None], grad_out, grad_lse[..., None], grad_query)
        )
        scorer = _Scorer(ctx.scores._replace(slopes=slopes, sinks=sinks), key, ctx.needs_input_grad[3:5])
        rules = [ctx.rule.of_sequence(b) for b in range(len(key))]
        for b, g in _parts(queries):
            m = ctx.lengths[b]
            rows = queries[b, g], outs[b, g], lses[b, g], grad_outs[b, g], grad_lses[b, g]
            keys = key[b, g, :m], value[b, g, :m]
            grads = grad_queries[b, g], grad_key[b, g, :m], grad_value[b, g, :m]
            _carry_back(*rows, *keys, *grads, rules[b], scorer.of_heads(g))
        grads = (grad.to(query.dtype) for grad in (grad_query, grad_key, grad_value))
        return *grads, *scorer.gradients(), None, None, None


def _attend(query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, rule: Rule, scorer: "_Scorer") -> None:
    """Fill ``out`` and ``lse`` of one sequence: rows over ``(g, h / g, n, …)``, keys and values over ``(g, m, d)``."""
    tile = _Buffer(query)
    lengths = torch.linalg.vector_norm(key, dim=-1, dtype=_wide(key)) if scorer.may_be_small else None
    for rows, places in _blocks(query, key):
        q = _stacked(query, rows) * scorer.factor
        average = torch.zeros_like(q)
        total = q.new_zeros(*q.shape[:2], 1)
        peak = torch.full_like(total, torch.finfo(q.dtype).min)  # finite: exp(-inf - peak) is 0 before any key is seen
        visits = list(tiles(rule, places, key.shape[1], BLOCK))
        small = lengths is not None and _are_small(q, lengths, visits)
        if small:  # no maximum has to be taken off
            peak.zero_()
        if scorer.sinks is not None:  # a key without a value, seen first
            sinks = scorer.sinks_beside(q)
            peak = torch.maximum(peak, sinks)
            total += (sinks - peak).exp2()
        for keys, seen in visits:
            scores = scorer.bits(q, _stacked(key, keys), places, keys, out=tile)
            if seen is Seen.SOME:
                scorer.hide(scores, rule, places, keys)
            if not small:
                new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
                scores.sub_(new_peak)
                shrink = peak.sub_(new_peak).exp2_()
                total.mul_(shrink)
                average.mul_(shrink)
                peak = new_peak
            weights = scores.exp2_()
            total.add_(weights.sum(dim=-1, keepdim=True))
            average.baddbmm_(weights, _stacked(value, keys))
        average /= total.masked_fill(total == 0, 1.0)
        _rows(out, rows).copy_(average.view_as(_rows(out, rows)))
        _rows(lse, rows).copy_((LN_2 * (peak + total.log2())).view_as(_rows(lse, rows)))


def _carry_back(
    query: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    key: Tensor,
    value: Tensor,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    rule: Rule,
    scorer: "_Scorer",
) -> None:
    """Add one sequence's gradients to ``grad_query``, ``grad_key`` and ``grad_value``; shapes as :func:`_attend`."""
    weight_tile, score_tile = _Buffer(query), _Buffer(query)
    steepness_tile = None if scorer.softcap is None else _Buffer(query)
    for rows, places in _blocks(query, key):
        q, grad_o = _stacked(query, rows) * scorer.factor, _stacked(grad_out, rows)
        bits = LOG2_E * _stacked(lse, rows)
        minus_bits = -bits.masked_fill(bits == -torch.inf, torch.inf)  # a row that saw no key has no weights
        minus_delta = _stacked(grad_lse, rows) - (grad_o * _stacked(out, rows)).sum(dim=-1, keepdim=True)
        grad_q = torch.zeros_like(q)
        scorer.teach_sinks(minus_bits, minus_delta)
        for keys, seen in tiles(rule, places, key.shape[1], BLOCK):
            k, v = _stacked(key, keys), _stacked(value, keys)
            scores = scorer.bits(q, k, places, keys, minus_bits, out=weight_tile, steepness=steepness_tile)
            if seen is Seen.SOME:
                scorer.hide(scores, rule, places, keys)
            weights = scores.exp2_()
            _rows(grad_value, keys).baddbmm_(weights.mT, grad_o)
            grad_scores = torch.baddbmm(minus_delta, grad_o, v.mT, out=score_tile.over(q, keys)).mul_(weights)
            scorer.teach_slopes(grad_scores, places, keys)
            if steepness_tile is not None:
                grad_scores.mul_(steepness_tile.over(q, keys))
            _rows(grad_key, keys).baddbmm_(grad_scores.mT, q, alpha=scorer.scale / scorer.factor)
            grad_q.baddbmm_(grad_scores, k, alpha=scorer.scale)
        _rows(grad_query, rows).copy_(grad_q.view_as(_rows(grad_query, rows)))


# --- parts ----------------------------------------------------------------------------------------------------------


class _Scorer:
    """Computes tiles of scores, hides what a rule hides in them, and collects what they teach the slopes and the sinks.

    Scores are in bits: divided by the logarithm of two. Slopes and sinks are laid out over ``(g, h / g, 1, 1)``.
    """

    heads = slice(None)

    def __init__(self, scores: Scores, key: Tensor, teach: tuple[bool, ...] = (False, False)) -> None:
        self.given, self.scale, self.softcap = scores, scores.scale, scores.softcap
        self.may_be_small = scores.plain and key.device.type == "cpu"  # a GPU would be waited for
        self.factor = self.scale * LOG2_E if self.softcap is None else self.scale / self.softcap  # of the queries
        self.slopes, self.sinks = (
            None if x is None else LOG2_E * x.detach().to(_wide(key)).view(key.shape[1], -1, 1, 1)
            for x in (scores.slopes, scores.sinks)
        )
        self.grad_slopes, self.grad_sinks = (
            torch.zeros_like(x[..., 0, 0]) if wanted and x is not None else None
            for x, wanted in zip((self.slopes, self.sinks), teach, strict=True)
        )
        self.bounds: dict[tuple, Tensor] = {}

    def of_heads(self, heads: slice) -> "_Scorer":
        """The same for some of the key heads; what it collects is collected here."""
        part = copy(self)
        part.heads = heads
        for name in ("slopes", "sinks", "grad_slopes", "grad_sinks"):
            given = getattr(self, name)
            setattr(part, name, None if given is None else given[heads])
        return part

    def bits(
        self,
        q: Tensor,
        k: Tensor,
        places: range,
        keys: range,
        start: Tensor | None = None,
        *,
        out: "_Buffer",
        steepness: "_Buffer | None" = None,
    ) -> Tensor:
        """Fill a tile with ``start`` plus the scores, and ``steepness`` with the derivative of the cap."""
        tile = out.over(q, keys)
        if start is not None and self.softcap is None:
            torch.baddbmm(start, q, k.mT, out=tile)
        else:
            torch.bmm(q, k.mT, out=tile)
        if self.softcap is not None:
            tile.tanh_()
            if steepness is not None:
                torch.addcmul(tile.new_ones(()), tile, tile, value=-1, out=steepness.over(q, keys))
            tile.mul_(self.softcap * LOG2_E)
            if start is not None:
                tile.add_(start)
        if self.slopes is not None:
            tile.unflatten(1, (-1, len(places))).addcmul_(self.slopes, _distances(tile, places, keys), value=-1)
        return tile

    def hide(self, tile: Tensor, rule: Rule, places: range, keys: range) -> None:
        """Set to ``-inf`` what the rule hides: the smaller of a score and a bound is faster than filling by a mask."""
        alike = (rule, len(places), len(keys), keys.start - places.start)
        bound = self.bounds.get(alike) if rule.is_relative else None
        if bound is None:
            seen = rule.tile(places, keys, device=tile.device)
            bound = torch.full(seen.shape, torch.inf, dtype=tile.dtype, device=tile.device)
            bound.masked_fill_(~seen, -torch.inf)
            if rule.is_relative:
                self.bounds[alike] = bound
        if bound.ndim > 2:  # a table for each query head
            bound = bound.unflatten(0, (-1, tile.shape[1] // len(places)))[self.heads]
        each = tile.unflatten(1, (-1, len(places)))
        torch.minimum(each, bound, out=each)

    def sinks_beside(self, q: Tensor) -> Tensor:
        """Each head's sink for each of its rows, stacked as the queries are."""
        assert self.sinks is not None
        g, group = self.sinks.shape[:2]
        return self.sinks.expand(g, group, q.shape[1] // group, 1).reshape(g, -1, 1)

    def teach_slopes(self, grad_scores: Tensor, places: range, keys: range) -> None:
        if self.grad_slopes is not None:
            each = grad_scores.unflatten(1, (-1, len(places))).flatten(2)
            self.grad_slopes -= each @ _distances(grad_scores, places, keys).flatten()

    def teach_sinks(self, minus_bits: Tensor, minus_delta: Tensor) -> None:
        if self.grad_sinks is not None:
            each = (self.sinks_beside(minus_bits) + minus_bits).exp2() * minus_delta
            self.grad_sinks += each.unflatten(1, (self.grad_sinks.shape[1], -1)).sum(dim=(2, 3))

    def gradients(self) -> Iterator[Tensor | None]:
        """What the slopes and the sinks have learnt, in their own types."""
        for given, grad in ((self.given.slopes, self.grad_slopes), (self.given.sinks, self.grad_sinks)):
            yield None if given is None or grad is None else grad.flatten().to(given.dtype)


class _Buffer:
    """Memory for one tile of scores of all heads, used again for each tile."""

    def __init__(self, query: Tensor) -> None:
        g, group, n, _ = query.shape
        self.memory = torch.empty(g * group * min(n, BLOCK) * BLOCK, dtype=_wide(query), device=query.device)

    def over(self, q: Tensor, keys: range) -> Tensor:
        g, n_rows, _ = q.shape
        return self.memory[: g * n_rows * len(keys)].view(g, n_rows, len(keys))


def _blocks(query: Tensor, key: Tensor) -> Iterator[tuple[range, range]]:
    """Blocks of queries: their rows, and the positions at which these stand among the keys."""
    n, before = query.shape[2], key.shape[1] - query.shape[2]
    for start in range(0, n, BLOCK):
        rows = range(start, min(start + BLOCK, n))
        yield rows, range(rows.start + before, rows.stop + before)


def _parts(queries: Tensor) -> Iterator[tuple[int, slice]]:
    """Each sequence in turn, and in it as many key/value heads at once as fill a tile."""
    b, g, group, n, _ = queries.shape
    size = max(1, TILE // (group * min(n, BLOCK) * BLOCK))
    yield from product(range(b), (slice(start, start + size) for start in range(0, g, size)))


def _are_small(q: Tensor, lengths: Tensor, visits: list[tuple[range, Seen]]) -> bool:
    r"""Whether the lengths alone keep all scores small: :math:`|q \cdot k| \le |q|\, |k|`.

    Numbers that cannot be read here (a graph being compiled, a tensor without data) are taken for large.
    """
    if not visits or torch.compiler.is_compiling() or type(q) is not Tensor:
        return False
    longest = lengths[:, visits[0][0].start : visits[-1][0].stop].amax()
    return bool(q.norm(dim=-1).amax() * longest < SMALL)


def _by_key_head(tensor: Tensor, key: Tensor) -> Tensor:
    """View ``(b, h, n, …)`` as ``(b, g, h / g, n, …)``: the query heads that share a key/value head side by side."""
    return tensor.unflatten(1, (key.shape[1], -1))


def _rows(tensor: Tensor, rows: range) -> Tensor:
    return tensor[..., rows.start : rows.stop, :]


def _stacked(tensor: Tensor, rows: range) -> Tensor:
    """The block of rows as one matrix per key/value head: the query heads that share it lie below one another."""
    return at_least_single(_rows(tensor, rows)).reshape(len(tensor), -1, tensor.shape[-1])


def _distances(tile: Tensor, places: range, keys: range) -> Tensor:
    """How far each place is from each key, in the type of the tile."""
    first, second = (torch.arange(x.start, x.stop, dtype=tile.dtype, device=tile.device) for x in (places, keys))
    return (first[:, None] - second).abs_()


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
