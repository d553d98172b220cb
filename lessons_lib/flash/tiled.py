r"""FlashAttention in PyTorch, optimised: exact, tile by tile, and without an ``n x m`` matrix in memory.

The algorithm is that of :mod:`lessons_lib.flash.reference`, which should be read first. This file adds score
modifications, caches of different lengths, half precision, and the following optimisations [1]_ [2]_:

* Tiles are computed in place, in two buffers that stay in the processor's cache. Several heads share one batched
  matrix product.
* A rule selects the tiles to visit and says which of these need a mask.
* Exponentials are powers of two, :math:`e^s = 2^{s \log_2 e}`, which PyTorch computes in half the time on an AMD
  processor. Scores and log-sum-exps inside a tile are therefore in bits (:class:`ScoreUnit`).
* If the norms of queries and keys bound every score by a small number, no maximum is subtracted. Such scores are in
  nats on an Intel processor: its library is the fastest there as long as no exponential underflows, and up to a
  hundred times slower otherwise.
* Weights below the smallest normal number become zero. Products with subnormal numbers would take hundreds of times
  as long.

The softmax's derivative needs one number from each whole row,

.. math:: \delta_i = \sum_j P_{ij}\, \bar P_{ij} - \bar\ell_i = \bar o_i \cdot o_i - \bar\ell_i.

The derivative of a capped score :math:`s` with respect to the score before the cap is :math:`1 - (s / c)^2`. A sink is
a key whose value is zero: it receives the weight :math:`e^{z - \ell_i}` in row :math:`i`, and its gradient is
:math:`-\sum_i e^{z - \ell_i}\, \delta_i`.

Words in this file: a *row* is one query of one head; the query heads of a group share a key/value head, and their rows
lie in one matrix; a *position* is that of a query among the keys.

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
.. [2] Dao, *FlashAttention-2*, 2023. arXiv:2307.08691.
"""

import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.attention.rules import Coverage, Rule, tiles
from lessons_lib.flash.score_mods import Scores
from lessons_lib.flash.validation import read_lengths
from lessons_lib.foundations.derivatives import check_backward_only, first_derivatives_only
from lessons_lib.foundations.validation import promote_half

_NAME_IN_ERRORS = "flash_attention with backend='tiled'"
# Tall tiles are the fastest. Where a rule hides pairs, half of a tile on the diagonal is wasted: there tiles are lower.
ROWS, MASKED_ROWS, KEYS = 1024, 256, 256
# Scores computed at once, of one head or of several; half as many in the backward pass, which holds their gradients
# too: 1 MiB of float32, which stays in the second-level cache.
TILE_SCORES = ROWS * KEYS
# In nats. The exponentials of such scores, their sums and quotients stay far from both ends of float32's range.
MAX_SMALL_SCORE = 30.0


class ScoreUnit(NamedTuple):
    """The unit of the scores in a tile: nats, with ``exp`` and ``log``, or bits, with ``exp2`` and ``log2``."""

    per_nat: float  # units in one nat
    exp_: Callable[[Tensor], Tensor]  # from scores in units to weights, in place
    log: Callable[[Tensor], Tensor]  # from sums of weights to units


def _exp2_without_subnormals_(bits: Tensor) -> Tensor:
    """Compute powers of two in place; results below the smallest normal number become zero."""
    return torch.threshold_(bits, math.log2(torch.finfo(bits.dtype).tiny), -torch.inf).exp2_()


NATS = ScoreUnit(1.0, Tensor.exp_, Tensor.log)
BITS = ScoreUnit(math.log2(math.e), Tensor.exp2_, Tensor.log2)
UNIT_OF_ANY_SCORES = BITS._replace(exp_=_exp2_without_subnormals_)


def _exp_runs_in_mkl_on_intel() -> bool:
    """Return whether Intel's library computes exponentials here, on a processor made by Intel."""
    if not torch.backends.mkl.is_available():
        return False
    cpus = Path("/proc/cpuinfo")  # elsewhere platform.processor() is called, which may start a process
    first = cpus.read_bytes()[:200] if cpus.exists() else platform.processor().encode()
    return b"GenuineIntel" in first


UNIT_OF_SMALL_SCORES = NATS if _exp_runs_in_mkl_on_intel() else BITS


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores, cache_lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable once. Arguments are those of ``flash_attention``, already checked.

    Raises:
        NotImplementedError: in forward mode, and inside a transform of ``torch.func``.
    """
    check_backward_only(_NAME_IN_ERRORS, query, key, value, scores.alibi_slopes, scores.sinks)
    m = key.shape[2]
    lengths = [m] * len(key) if cache_lengths is None else read_lengths(cache_lengths, m)
    return TiledAttention.apply(query, key, value, scores.alibi_slopes, scores.sinks, rule, scores, lengths)


class TiledAttention(torch.autograd.Function):
    """``apply(query, key, value, alibi_slopes, sinks, rule, scores, lengths)`` returns ``(out, lse)``.

    Both results carry gradients. Sequence ``b`` has the first ``lengths[b]`` keys.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alibi_slopes: Tensor | None,
        sinks: Tensor | None,
        rule: Rule,
        scores: Scores,
        lengths: list[int],
    ) -> tuple[Tensor, Tensor]:
        """Compute attention in each sequence under the sequence's own rule."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        lse = torch.empty(query.shape[:-1], dtype=_accumulation_dtype(query), device=query.device)
        queries, outs, lses = (_by_key_head(x, key) for x in (query, out, lse[..., None]))
        scorer = _Scorer.for_all_heads(scores._replace(alibi_slopes=alibi_slopes, sinks=sinks), key)
        rules = [rule.for_sequence(b) for b in range(len(key))]
        bounds = [_score_bound(queries[b], key[b, :, :m], rules[b], scores.scale) for b, m in enumerate(lengths)]
        small = [scores.plain and bound < MAX_SMALL_SCORE for bound in bounds]
        may_have_nan = [not bound < torch.inf for bound in bounds]
        for b, g in _head_blocks(queries, key, rule, TILE_SCORES):
            q, k, v = queries[b, g], key[b, g, : lengths[b]], value[b, g, : lengths[b]]
            _forward(q, k, v, outs[b, g], lses[b, g], rules[b], scorer.for_heads(g, small[b], may_have_nan[b]))
        ctx.save_for_backward(query, key, value, alibi_slopes, sinks, out, lse)
        ctx.rule, ctx.scores, ctx.lengths = rule, scores._replace(alibi_slopes=None, sinks=None), lengths
        ctx.small, ctx.may_have_nan = small, may_have_nan
        return out, lse

    @staticmethod
    @first_derivatives_only(_NAME_IN_ERRORS)
    def backward(ctx, saved: tuple[Any, ...], grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights tile by tile and accumulate the gradients."""
        query, key, value, alibi_slopes, sinks, out, lse = saved
        grad_query, grad_key, grad_value = (
            torch.empty(x.shape, dtype=_accumulation_dtype(x), device=x.device) for x in (query, key, value)
        )
        lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # the weights of a row without keys become zero
        queries, outs, lses, grad_outs, grad_lses, grad_queries = (
            _by_key_head(x, key) for x in (query, out, lse[..., None], grad_out, grad_lse[..., None], grad_query)
        )
        scores = ctx.scores._replace(alibi_slopes=alibi_slopes, sinks=sinks)
        scorer = _Scorer.for_all_heads(scores, key, ctx.needs_input_grad[3:5])
        rules = [ctx.rule.for_sequence(b) for b in range(len(key))]
        for b, m in enumerate(ctx.lengths):
            grad_key[b, :, m:], grad_value[b, :, m:] = 0, 0
        for b, g in _head_blocks(queries, key, ctx.rule, TILE_SCORES // 2):
            m = ctx.lengths[b]
            rows = queries[b, g], outs[b, g], lses[b, g], grad_outs[b, g], grad_lses[b, g]
            keys = key[b, g, :m], value[b, g, :m]
            grads = grad_queries[b, g], grad_key[b, g, :m], grad_value[b, g, :m]
            _backward(*rows, *keys, *grads, rules[b], scorer.for_heads(g, ctx.small[b], ctx.may_have_nan[b]))
        grads = (grad.to(query.dtype) for grad in (grad_query, grad_key, grad_value))
        grad_slopes, grad_sinks = (
            None if x is None or grad is None else grad.flatten().to(x.dtype)
            for x, grad in ((alibi_slopes, scorer.grad_slopes), (sinks, scorer.grad_sinks))
        )
        return *grads, grad_slopes, grad_sinks, None, None, None


def _forward(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, rule: Rule, scorer: "_Scorer"
) -> None:
    """Fill ``out`` and ``lse`` of one sequence.

    Queries and results are over ``(g, h / g, n, …)``, keys and values over ``(g, m, d)``.
    """
    unit, small = scorer.unit, scorer.small
    queries = _flatten_group(query)
    row_sums = torch.zeros_like(queries[..., :1])
    # The initial maximum is finite, so that exp(-inf - maximum) is 0 as long as a row has had no key.
    row_maxima = torch.full_like(row_sums, 0.0 if small else torch.finfo(row_sums.dtype).min)
    if scorer.sinks is not None:  # a sink counts as the first key of each row, without a value
        sinks = scorer.sinks.expand(-1, query.shape[2], -1, -1).reshape(row_maxima.shape)
        row_maxima = torch.maximum(row_maxima, sinks)
        row_sums += unit.exp_(sinks - row_maxima)
    size = _tile_size(rule, query, key, TILE_SCORES)
    buffer, kv_block = _Buffer(query, size), _kv_blocks(key, value)
    for rows, positions, block in _query_blocks(query, key, size):
        q, row_sum, row_max = (x[:, rows] for x in (queries, row_sums, row_maxima))
        average = q.new_zeros(q.shape)
        for keys, coverage in tiles(rule, positions, key.shape[1], size.keys):
            k, v = kv_block(keys)
            scores = scorer.scores(q, k, positions, keys, scorer.product_scale, out=buffer)
            if not small:
                if coverage is Coverage.PARTIAL:
                    scorer.mask_(scores, rule, positions, keys)
                new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))
                scores.sub_(new_max)
                shrink = unit.exp_(row_max.sub_(new_max))
                row_sum.mul_(shrink)
                average.mul_(shrink)
                row_max.copy_(new_max)
            weights = unit.exp_(scores)
            if small and coverage is Coverage.PARTIAL:
                scorer.mask_(weights, rule, positions, keys)
            row_sum.add_(weights.sum(dim=-1, keepdim=True))
            average.baddbmm_(weights, v)
        row_sum = row_sum.clamp_min(torch.finfo(row_sum.dtype).tiny)
        torch.div(_split_rows(average, positions), _split_rows(row_sum, positions), out=_block_of(out, block))
    _unflatten_group((row_maxima + unit.log(row_sums)) / unit.per_nat, lse)


def _backward(
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
    """Fill ``grad_query``, ``grad_key`` and ``grad_value`` of one sequence; shapes as :func:`_forward`."""
    unit, small = scorer.unit, scorer.small
    row_lse = unit.per_nat * _flatten_group(lse)
    queries, grads_out = _flatten_group(query), _flatten_group(grad_out)
    delta = (grads_out * _flatten_group(out)).sum(dim=-1, keepdim=True) - _flatten_group(grad_lse)
    scorer.accumulate_sink_grad(row_lse, delta)
    # A number that is subtracted from a whole row of a product is appended to the left factor, and a one to the right
    # factor, so that the product subtracts it. The log-sum-exp is not subtracted from small scores: their exponentials
    # are the weights up to one factor a row, and the gradients of the row are multiplied by that factor instead.
    grads_out = torch.cat([grads_out, -delta], dim=-1)
    product_scale, prescale = (scorer.product_scale, 1.0) if small else (1.0, scorer.product_scale)
    if small:
        grads_out *= unit.exp_(-row_lse)
    else:
        queries = torch.cat([queries * prescale, -row_lse], dim=-1)
    size = _tile_size(rule, query, key, TILE_SCORES // 2)
    weight_buffer, score_buffer = _Buffer(query, size), _Buffer(query, size)
    cap_grad_buffer = None if scorer.softcap is None else _Buffer(query, size)
    kv_block = _kv_blocks(key, key if small else _with_ones(key), _with_ones(value), grad_key, grad_value)
    if size.is_masked:
        grad_key.zero_()
        grad_value.zero_()
    for rows, positions, block in _query_blocks(query, key, size):
        # Without a mask the first block of queries meets every key, and its product overwrites the empty gradients.
        beta = float(size.is_masked or block.start > 0)
        q_and_lse, grad_o_and_delta = queries[:, rows], grads_out[:, rows]
        q, grad_o = (x[..., : key.shape[-1]] for x in (q_and_lse, grad_o_and_delta))
        grad_q = q.new_zeros(q.shape)
        for keys, coverage in tiles(rule, positions, key.shape[1], size.keys):
            k, k_and_one, v_and_one, grad_k, grad_v = kv_block(keys)
            if cap_grad_buffer is None:
                scores = scorer.scores(q_and_lse, k_and_one, positions, keys, product_scale, out=weight_buffer)
            else:
                scores = scorer.scores(q, k, positions, keys, out=weight_buffer, cap_grad=cap_grad_buffer)
                scores.add_(q_and_lse[..., -1:])
            if coverage is Coverage.PARTIAL and not small:
                scorer.mask_(scores, rule, positions, keys)
            weights = unit.exp_(scores)
            if coverage is Coverage.PARTIAL and small:
                scorer.mask_(weights, rule, positions, keys)
            torch.baddbmm(grad_v, weights.mT, grad_o, beta=beta, out=grad_v)
            grad_scores = torch.bmm(grad_o_and_delta, v_and_one.mT, out=score_buffer.tile(q, keys)).mul_(weights)
            scorer.accumulate_slope_grad(grad_scores, positions, keys)
            if cap_grad_buffer is not None:
                grad_scores.mul_(cap_grad_buffer.tile(q, keys))
            left, right = q, k
            if scorer.may_have_nan and coverage is Coverage.PARTIAL:
                # A hidden score has no gradient. Zero times NaN would be NaN, so NaN is replaced in both factors.
                scorer.fill_hidden_(grad_scores, rule, positions, keys, 0.0)
                left, right = (x.nan_to_num(0.0, 0.0, 0.0) for x in (q, k))
            torch.baddbmm(grad_k, grad_scores.mT, left, beta=beta, alpha=scorer.scale / prescale, out=grad_k)
            grad_q.baddbmm_(grad_scores, right, alpha=scorer.scale)
        _block_of(grad_query, block).copy_(_split_rows(grad_q, positions))


# --- parts ----------------------------------------------------------------------------------------------------------


@dataclass
class _Scorer:
    """Computes and masks the tiles of scores of some heads, and accumulates the gradients of slopes and sinks.

    Slopes, sinks and their gradients have one entry for each query head, over ``(g, h / g)`` (gradients) or
    ``(g, 1, h / g, 1)`` (values): these axes are those of a tile as :func:`_split_rows` views it.
    """

    scale: float  # of the products of queries and keys
    softcap: float | None  # in nats
    alibi_slopes: Tensor | None  # in bits
    sinks: Tensor | None  # in bits
    grad_slopes: Tensor | None  # accumulated here; None if this gradient is not needed
    grad_sinks: Tensor | None  # accumulated here; None if this gradient is not needed
    heads: slice = field(default_factory=lambda: slice(None))  # the key/value heads of these tiles
    unit: ScoreUnit = UNIT_OF_ANY_SCORES  # of the scores in a tile
    small: bool = False  # whether every score is at most MAX_SMALL_SCORE: no maximum is subtracted
    may_have_nan: bool = True  # whether a product of a query and a key may be NaN or infinite
    masks: dict[tuple, Tensor] = field(default_factory=dict)  # of tiles that are alike, shared by all heads

    @classmethod
    def for_all_heads(cls, scores: Scores, key: Tensor, wants_grad: tuple[bool, ...] = (False, False)) -> "_Scorer":
        """Return the scorer of all heads; ``wants_grad`` is for the slopes and for the sinks."""
        slopes, sinks = (None if x is None else _in_bits(x, key) for x in (scores.alibi_slopes, scores.sinks))
        grad_slopes, grad_sinks = (
            torch.zeros_like(x[:, 0, :, 0]) if wanted and x is not None else None
            for x, wanted in zip((slopes, sinks), wants_grad, strict=True)
        )
        return cls(scores.scale, scores.softcap, slopes, sinks, grad_slopes, grad_sinks)

    def for_heads(self, heads: slice, small: bool, may_have_nan: bool) -> "_Scorer":
        """Return the scorer of some key/value heads; its gradients are views of the gradients of all heads."""
        of_heads = (self.alibi_slopes, self.sinks, self.grad_slopes, self.grad_sinks)
        slopes, sinks, grad_slopes, grad_sinks = (None if x is None else x[heads] for x in of_heads)
        unit = UNIT_OF_SMALL_SCORES if small else UNIT_OF_ANY_SCORES
        settings = heads, unit, small, may_have_nan, self.masks
        return _Scorer(self.scale, self.softcap, slopes, sinks, grad_slopes, grad_sinks, *settings)

    @property
    def product_scale(self) -> float:
        """The factor of a product ``q · k`` that gives the score in units, or the argument of the cap's ``tanh``."""
        return self.scale * self.unit.per_nat if self.softcap is None else self.scale / self.softcap

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        positions: range,
        keys: range,
        product_scale: float = 1.0,
        *,
        out: "_Buffer",
        cap_grad: "_Buffer | None" = None,
    ) -> Tensor:
        """Fill a tile with the scores, and ``cap_grad`` with the derivative of the cap."""
        tile = out.tile(q, keys)
        torch.baddbmm(tile, q, k.mT, beta=0, alpha=product_scale, out=tile)
        if self.softcap is not None:
            tile.tanh_()
            if cap_grad is not None:
                torch.addcmul(tile.new_ones(()), tile, tile, value=-1, out=cap_grad.tile(q, keys))
            tile.mul_(self.softcap * self.unit.per_nat)
        if self.alibi_slopes is not None:
            _split_rows(tile, positions).addcmul_(self.alibi_slopes, _distances(tile, positions, keys), value=-1)
        return tile

    def mask_(self, tile: Tensor, rule: Rule, positions: range, keys: range) -> None:
        """Hide what the rule hides: in the weights of small scores, and in other scores before the exponential.

        Weights are multiplied by 1 or 0. Of a score the minimum with ``inf`` or ``-inf`` is taken, which is faster than
        ``masked_fill_`` but keeps NaN: tiles that may have NaN are filled.
        """
        if self.may_have_nan:
            self.fill_hidden_(tile, rule, positions, keys, -torch.inf)
            return

        def make() -> Tensor:
            visible = rule.tile(positions, keys, device=tile.device)
            shown, hidden = (1.0, 0.0) if self.small else (torch.inf, -torch.inf)
            mask = torch.full(visible.shape, shown, dtype=tile.dtype, device=tile.device)
            return self._over_tile(mask.masked_fill_(~visible, hidden), tile, positions)

        combine = torch.mul if self.small else torch.minimum
        view = _split_rows(tile, positions)
        combine(view, self._cached("numbers", make, rule, positions, keys), out=view)

    def fill_hidden_(self, tile: Tensor, rule: Rule, positions: range, keys: range, value: float) -> None:
        """Write the value to every hidden entry, NaN or not."""

        def make() -> Tensor:
            return self._over_tile(~rule.tile(positions, keys, device=tile.device), tile, positions)

        _split_rows(tile, positions).masked_fill_(self._cached("booleans", make, rule, positions, keys), value)

    def _cached(self, kind: str, make: Callable[[], Tensor], rule: Rule, positions: range, keys: range) -> Tensor:
        """Return the mask of a tile; tiles of a relative rule at one distance from the diagonal share a mask."""
        if not rule.is_relative:
            return make()
        name = (kind, rule, len(positions), len(keys), keys.start - positions.start, self.small)
        if name not in self.masks:
            self.masks[name] = make()
        return self.masks[name]

    def _over_tile(self, mask: Tensor, tile: Tensor, positions: range) -> Tensor:
        """Reshape a mask over ``(positions, keys)`` or ``(h, positions, keys)`` as :func:`_split_rows` does a tile."""
        if mask.ndim == 2:
            return mask[:, None]
        group = tile.shape[1] // len(positions)
        return mask.unflatten(0, (-1, group))[self.heads].transpose(1, 2)

    def accumulate_slope_grad(self, grad_scores: Tensor, positions: range, keys: range) -> None:
        """Add what this tile contributes to the gradient of the slopes."""
        if self.grad_slopes is not None:
            view, distances = _split_rows(grad_scores, positions), _distances(grad_scores, positions, keys)
            self.grad_slopes -= (view * distances).sum(dim=(1, 3))

    def accumulate_sink_grad(self, row_lse: Tensor, delta: Tensor) -> None:
        """Add what these rows contribute to the gradient of the sinks."""
        if self.sinks is not None and self.grad_sinks is not None:
            row_lse, delta = (x.unflatten(1, (-1, self.sinks.shape[2])) for x in (row_lse, delta))
            self.grad_sinks -= (self.unit.exp_(self.sinks - row_lse) * delta).sum(dim=(1, 3))


def _in_bits(of_heads: Tensor, key: Tensor) -> Tensor:
    """Return slopes or sinks over ``(g, 1, h / g, 1)`` in bits: with either of them no score counts as small."""
    return UNIT_OF_ANY_SCORES.per_nat * of_heads.detach().to(_accumulation_dtype(key)).view(key.shape[1], 1, -1, 1)


class _TileSize(NamedTuple):
    """The size of the tiles of one sequence."""

    positions: int  # queries of each head
    keys: int
    is_masked: bool  # whether the rule hides any pair of the sequence


def _tile_size(rule: Rule, query: Tensor, key: Tensor, n_scores: int) -> _TileSize:
    """Return the size of tiles of at most ``n_scores`` scores, for queries over ``(…, h / g, n, d)``."""
    group, n, m = *query.shape[-3:-1], key.shape[-2]
    is_masked = rule.coverage(range(m - n, m), range(m)) is not Coverage.FULL
    positions = max(1, min(n, (MASKED_ROWS if is_masked else ROWS) // group))
    rows = positions * group
    keys = max(KEYS, MASKED_ROWS * KEYS // rows)  # few queries take more keys at once
    return _TileSize(positions, max(1, min(m, keys, n_scores // rows)), is_masked)


class _Buffer:
    """Memory for one tile of scores of all heads; every tile uses the same memory."""

    def __init__(self, query: Tensor, size: _TileSize) -> None:
        self.memory = torch.empty(
            math.prod((*query.shape[:2], size.positions, size.keys)),
            dtype=_accumulation_dtype(query),
            device=query.device,
        )
        self.views: dict[tuple[int, ...], Tensor] = {}

    def tile(self, q: Tensor, keys: range) -> Tensor:
        """Return the memory as a tile of the rows of ``q`` and these keys."""
        size = q.shape[1], len(keys)
        if size not in self.views:
            shape = len(q), *size
            self.views[size] = self.memory[: math.prod(shape)].view(shape)
        return self.views[size]


def _query_blocks(query: Tensor, key: Tensor, size: _TileSize) -> Iterator[tuple[slice, range, slice]]:
    """Yield each block of queries as rows of :func:`_flatten_group`, as positions among the keys, and as a slice."""
    _, group, n, _ = query.shape
    offset = key.shape[1] - n  # the last query is at the position of the last key
    for start in range(0, n, size.positions):
        stop = min(start + size.positions, n)
        yield slice(start * group, stop * group), range(start + offset, stop + offset), slice(start, stop)


def _head_blocks(queries: Tensor, key: Tensor, rule: Rule, n_scores: int) -> Iterator[tuple[int, slice]]:
    """Yield each sequence with blocks of key/value heads whose tiles have at most ``n_scores`` scores together."""
    b, n_heads, group, _, _ = queries.shape
    size = _tile_size(rule, queries, key, n_scores)
    heads = max(1, n_scores // (group * size.positions * size.keys))
    yield from product(range(b), (slice(i, min(i + heads, n_heads)) for i in range(0, n_heads, heads)))


def _score_bound(query: Tensor, key: Tensor, rule: Rule, scale: float) -> float:
    r"""Return a bound on the visible scores from :math:`|q \cdot k| \le |q|\, |k|`.

    The bound is infinite or NaN if some product may be infinite or NaN. It is infinite, too, if it is not computed:
    for a few queries it costs more than it saves, and some values cannot be read at once (on a GPU, while a graph is
    compiled, in a tensor without data).
    """
    _, group, n, d = query.shape
    if n * group < d or torch.compiler.is_compiling() or type(query) is not Tensor or query.device.type != "cpu":
        return math.inf
    m = key.shape[1]
    ranges = rule.key_ranges(range(m - n, m), m)
    if not ranges:
        return math.inf
    visible = key[:, ranges[0].start : ranges[-1].stop]
    longest = [
        torch.linalg.vector_norm(x, dim=-1, dtype=_accumulation_dtype(x)).amax().item() for x in (query, visible)
    ]
    return abs(scale) * longest[0] * longest[1]


def _by_key_head(tensor: Tensor, key: Tensor) -> Tensor:
    """View ``(b, h, n, …)`` as ``(b, g, h / g, n, …)``: the query heads of a group share a key/value head."""
    return tensor.unflatten(1, (key.shape[1], -1))


def _flatten_group(tensor: Tensor) -> Tensor:
    """Return ``(g, h / g, n, …)`` as ``(g, n h / g, …)``: position by position, the queries of the group's heads."""
    return promote_half(tensor).transpose(1, 2).flatten(1, 2)


def _unflatten_group(matrices: Tensor, out: Tensor) -> None:
    """Undo :func:`_flatten_group`, into ``out``."""
    out.copy_(matrices.unflatten(1, (-1, out.shape[1])).transpose(1, 2))


def _block_of(tensor: Tensor, block: slice) -> Tensor:
    """View a block of queries of ``(g, h / g, n, …)`` with the axes of :func:`_split_rows`."""
    return tensor[:, :, block].transpose(1, 2)


def _split_rows(tile: Tensor, positions: range) -> Tensor:
    """View a tile over ``(g, rows, …)`` as ``(g, positions, h / g, …)``."""
    return tile.unflatten(1, (len(positions), -1))


def _kv_blocks(*tensors: Tensor) -> Callable[[range], tuple[Tensor, ...]]:
    """Return a function from keys to the blocks of these tensors, in at least float32; each block is sliced once."""
    promoted = [promote_half(x) for x in tensors]
    blocks: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # PyTorch's compiler does not follow functools.cache

    def block(keys: range) -> tuple[Tensor, ...]:
        ends = keys.start, keys.stop
        if ends not in blocks:
            blocks[ends] = tuple(x[:, keys.start : keys.stop] for x in promoted)
        return blocks[ends]

    return block


def _with_ones(tensor: Tensor) -> Tensor:
    """Append a one to each vector."""
    return pad(promote_half(tensor), (0, 1), value=1.0)


def _distances(tile: Tensor, positions: range, keys: range) -> Tensor:
    """Return the distance of each position from each key, over ``(positions, 1, keys)``, in the type of the tile."""
    first, second = (torch.arange(x.start, x.stop, dtype=tile.dtype, device=tile.device) for x in (positions, keys))
    return (first[:, None, None] - second).abs_()


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
