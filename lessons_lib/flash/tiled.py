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
are powers of two, :math:`e^s = 2^{s \log_2 e}`, which PyTorch computes in half the time on a processor of AMD's, so
inside a tile scores and log-sum-exps are in bits. Where the lengths of queries and keys keep every score small, no
maximum has to be taken off, and on a processor of Intel's they are in nats: its own library is the fastest there with
numbers whose exponentials do not underflow, and up to a hundred times the slowest with others. Weights for which there
is no normal number are zero: products with the subnormal ones would take hundreds of times as long.

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
.. [2] Dao, *FlashAttention-2*, 2023. arXiv:2307.08691.
"""

import math
import platform
from collections.abc import Callable, Iterator
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.derivatives import check_backward_only, first_derivatives_only
from lessons_lib.flash.inputs import lengths_of
from lessons_lib.flash.scores import Scores
from lessons_lib.rules import Rule, Seen, tiles
from lessons_lib.shapes import at_least_single

STEP = "flash_attention with backend='tiled'"  # as errors name it
# Tall tiles are the fastest; but where a rule cuts, half of one on the diagonal is computed in vain.
ROWS, ROWS_CUT, KEYS = 1024, 256, 256
# So many scores at once, of one head or of several, and half as many beside their gradients: 1 MiB of float32, which
# stays in the second-level cache.
TILE = ROWS * KEYS
SMALL = 30.0  # nats: the exponentials of such scores, their sums and quotients stay far from both ends of float32


class Unit(NamedTuple):
    """What the scores of a tile are counted in."""

    per_nat: float
    exp_: Callable[[Tensor], Tensor]  # in place
    log: Callable[[Tensor], Tensor]


def _exp2_or_zero_(bits: Tensor) -> Tensor:
    """Powers of two in place, zero where no normal number is small enough."""
    return torch.threshold_(bits, math.log2(torch.finfo(bits.dtype).tiny), -torch.inf).exp2_()


NATS = Unit(1.0, Tensor.exp_, Tensor.log)
BITS = Unit(math.log2(math.e), Tensor.exp2_, Tensor.log2)
OF_ANY = BITS._replace(exp_=_exp2_or_zero_)


def _is_intel() -> bool:
    """Whether exponentials are computed by Intel's library on a processor of Intel's."""
    if not torch.backends.mkl.is_available():
        return False
    cpus = Path("/proc/cpuinfo")  # where there is none, the name is asked for, which may start a process
    first = cpus.read_bytes()[:200] if cpus.exists() else platform.processor().encode()
    return b"GenuineIntel" in first


OF_SMALL = NATS if _is_intel() else BITS


def tiled_attention(
    query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores, cache_lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable once. Arguments are those of ``flash_attention``, already checked.

    Raises:
        NotImplementedError: in forward mode, and inside a transform of ``torch.func``.
    """
    check_backward_only(STEP, query, key, value, scores.slopes, scores.sinks)
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
        bounds = [_bound(queries[b], key[b, :, :m], rules[b], scores.scale) for b, m in enumerate(lengths)]
        small = [scores.plain and bound < SMALL for bound in bounds]
        wild = [not bound < torch.inf for bound in bounds]
        for b, g in _parts(queries, key, rule, TILE):
            q, k, v = queries[b, g], key[b, g, : lengths[b]], value[b, g, : lengths[b]]
            _attend(q, k, v, outs[b, g], lses[b, g], rules[b], scorer.of(g, small[b], wild[b]))
        ctx.save_for_backward(query, key, value, slopes, sinks, out, lse)
        ctx.rule, ctx.scores, ctx.lengths = rule, scores._replace(slopes=None, sinks=None), lengths
        ctx.small, ctx.wild = small, wild
        return out, lse

    @staticmethod
    @first_derivatives_only(STEP)
    def backward(ctx, saved: tuple[Any, ...], grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights tile by tile and collect the gradients."""
        query, key, value, slopes, sinks, out, lse = saved
        grad_query, grad_key, grad_value = (
            torch.empty(x.shape, dtype=_wide(x), device=x.device) for x in (query, key, value)
        )
        totals = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row that saw no key has no weights
        queries, outs, lses, grad_outs, grad_lses, grad_queries = (
            _by_key_head(x, key) for x in (query, out, totals[..., None], grad_out, grad_lse[..., None], grad_query)
        )
        scorer = _Scorer(ctx.scores._replace(slopes=slopes, sinks=sinks), key, ctx.needs_input_grad[3:5])
        rules = [ctx.rule.of_sequence(b) for b in range(len(key))]
        for b, m in enumerate(ctx.lengths):
            grad_key[b, :, m:], grad_value[b, :, m:] = 0, 0
        for b, g in _parts(queries, key, ctx.rule, TILE // 2):
            m = ctx.lengths[b]
            rows = queries[b, g], outs[b, g], lses[b, g], grad_outs[b, g], grad_lses[b, g]
            keys = key[b, g, :m], value[b, g, :m]
            grads = grad_queries[b, g], grad_key[b, g, :m], grad_value[b, g, :m]
            _carry_back(*rows, *keys, *grads, rules[b], scorer.of(g, ctx.small[b], ctx.wild[b]))
        grads = (grad.to(query.dtype) for grad in (grad_query, grad_key, grad_value))
        return *grads, *scorer.gradients(), None, None, None


def _attend(query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, rule: Rule, scorer: "_Scorer") -> None:
    """Fill ``out`` and ``lse`` of one sequence: rows over ``(g, h / g, n, …)``, keys and values over ``(g, m, d)``."""
    unit, small = scorer.unit, scorer.small
    queries = _stacked(query)
    totals = torch.zeros_like(queries[..., :1])
    # Finite: exp(-inf - peak) is 0 before any key is seen.
    peaks = torch.full_like(totals, 0.0 if small else torch.finfo(totals.dtype).min)
    if scorer.sinks is not None:  # a key without a value, seen first
        sinks = scorer.sinks.expand(-1, query.shape[2], -1, -1).reshape(peaks.shape)
        peaks = torch.maximum(peaks, sinks)
        totals += unit.exp_(sinks - peaks)
    size = _size(rule, query, key, TILE)
    tile, at_hand = _Buffer(query, size), _at_hand(key, value)
    for rows, places, here in _blocks(query, key, size):
        q, total, peak = (x[:, rows] for x in (queries, totals, peaks))
        average = q.new_zeros(q.shape)
        for keys, seen in tiles(rule, places, key.shape[1], size.keys):
            k, v = at_hand(keys)
            scores = scorer.scores(q, k, places, keys, scorer.factor, out=tile)
            if not small:
                if seen is Seen.SOME:
                    scorer.hide(scores, rule, places, keys)
                new_peak = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
                scores.sub_(new_peak)
                shrink = unit.exp_(peak.sub_(new_peak))
                total.mul_(shrink)
                average.mul_(shrink)
                peak.copy_(new_peak)
            weights = unit.exp_(scores)
            if small and seen is Seen.SOME:
                scorer.hide(weights, rule, places, keys)
            total.add_(weights.sum(dim=-1, keepdim=True))
            average.baddbmm_(weights, v)
        total = total.clamp_min(torch.finfo(total.dtype).tiny)
        torch.div(_by_place(average, places), _by_place(total, places), out=_of_places(out, here))
    _unstack((peaks + unit.log(totals)) / unit.per_nat, lse)


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
    """Fill ``grad_query``, ``grad_key`` and ``grad_value`` of one sequence; shapes as :func:`_attend`."""
    unit, small = scorer.unit, scorer.small
    total = unit.per_nat * _stacked(lse)
    queries, grads_out = _stacked(query), _stacked(grad_out)
    delta = (grads_out * _stacked(out)).sum(dim=-1, keepdim=True) - _stacked(grad_lse)
    scorer.teach_sinks(total, delta)
    # What has to be taken off a vector's products stands beside it, and a one beside its partners. From small scores
    # the total is not taken off: their exponentials are the weights but for a factor of the row, and what comes back to
    # the row is multiplied by it instead.
    grads_out = torch.cat([grads_out, -delta], dim=-1)
    factor, beforehand = (scorer.factor, 1.0) if small else (1.0, scorer.factor)
    if small:
        grads_out *= unit.exp_(-total)
    else:
        queries = torch.cat([queries * beforehand, -total], dim=-1)
    size = _size(rule, query, key, TILE // 2)
    weight_tile, score_tile = _Buffer(query, size), _Buffer(query, size)
    steepness_tile = None if scorer.softcap is None else _Buffer(query, size)
    at_hand = _at_hand(key, key if small else _with_ones(key), _with_ones(value), grad_key, grad_value)
    if size.is_cut:
        grad_key.zero_()
        grad_value.zero_()
    for rows, places, here in _blocks(query, key, size):
        kept = float(size.is_cut or here.start > 0)  # where nothing is cut, the first queries begin the keys' sums
        q_and_total, grad_o_and_delta = queries[:, rows], grads_out[:, rows]
        q, grad_o = (x[..., : key.shape[-1]] for x in (q_and_total, grad_o_and_delta))
        grad_q = q.new_zeros(q.shape)
        for keys, seen in tiles(rule, places, key.shape[1], size.keys):
            k, k_and_one, v_and_one, grad_k, grad_v = at_hand(keys)
            if steepness_tile is None:
                scores = scorer.scores(q_and_total, k_and_one, places, keys, factor, out=weight_tile)
            else:
                scores = scorer.scores(q, k, places, keys, out=weight_tile, steepness=steepness_tile)
                scores.add_(q_and_total[..., -1:])
            if seen is Seen.SOME and not small:
                scorer.hide(scores, rule, places, keys)
            weights = unit.exp_(scores)
            if seen is Seen.SOME and small:
                scorer.hide(weights, rule, places, keys)
            torch.baddbmm(grad_v, weights.mT, grad_o, beta=kept, out=grad_v)
            grad_scores = torch.bmm(grad_o_and_delta, v_and_one.mT, out=score_tile.over(q, keys)).mul_(weights)
            scorer.teach_slopes(grad_scores, places, keys)
            if steepness_tile is not None:
                grad_scores.mul_(steepness_tile.over(q, keys))
            from_q, from_k = q, k
            if scorer.wild and seen is Seen.SOME:  # nothing comes back through a hidden score, not even NaN times zero
                scorer.erase(grad_scores, rule, places, keys, 0.0)
                from_q, from_k = (x.nan_to_num(0.0, 0.0, 0.0) for x in (q, k))
            torch.baddbmm(grad_k, grad_scores.mT, from_q, beta=kept, alpha=scorer.scale / beforehand, out=grad_k)
            grad_q.baddbmm_(grad_scores, from_k, alpha=scorer.scale)
        _of_places(grad_query, here).copy_(_by_place(grad_q, places))


# --- parts ----------------------------------------------------------------------------------------------------------


class _Scorer:
    """Computes tiles of scores, hides what a rule hides in them, and collects what they teach the slopes and the sinks.

    Scores are in units. Slopes and sinks are laid out over ``(g, 1, h / g, 1)``, as a tile is over keys, places, heads
    that share the key, and keys again.
    """

    heads, unit, small, wild = slice(None), OF_ANY, False, True

    def __init__(self, scores: Scores, key: Tensor, teach: tuple[bool, ...] = (False, False)) -> None:
        self.given, self.scale, self.softcap = scores, scores.scale, scores.softcap
        self.slopes, self.sinks = (
            None if x is None else self.unit.per_nat * x.detach().to(_wide(key)).view(key.shape[1], 1, -1, 1)
            for x in (scores.slopes, scores.sinks)
        )
        self.grad_slopes, self.grad_sinks = (
            torch.zeros_like(x[:, 0, :, 0]) if wanted and x is not None else None
            for x, wanted in zip((self.slopes, self.sinks), teach, strict=True)
        )
        self.bounds: dict[tuple, Tensor] = {}

    def of(self, heads: slice, small: bool, wild: bool) -> "_Scorer":
        """The same for some of the key heads, whose scores are small, or wild; what it collects is collected here."""
        part = copy(self)
        part.heads, part.small, part.wild, part.unit = heads, small, wild, OF_SMALL if small else OF_ANY
        for name in ("slopes", "sinks", "grad_slopes", "grad_sinks"):
            given = getattr(self, name)
            setattr(part, name, None if given is None else given[heads])
        return part

    @property
    def factor(self) -> float:
        """What the queries are multiplied by, so that their products with keys are scores, or go into the cap."""
        return self.scale * self.unit.per_nat if self.softcap is None else self.scale / self.softcap

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        places: range,
        keys: range,
        factor: float = 1.0,
        *,
        out: "_Buffer",
        steepness: "_Buffer | None" = None,
    ) -> Tensor:
        """Fill a tile with the scores, and ``steepness`` with the derivative of the cap."""
        tile = out.over(q, keys)
        torch.baddbmm(tile, q, k.mT, beta=0, alpha=factor, out=tile)
        if self.softcap is not None:
            tile.tanh_()
            if steepness is not None:
                torch.addcmul(tile.new_ones(()), tile, tile, value=-1, out=steepness.over(q, keys))
            tile.mul_(self.softcap * self.unit.per_nat)
        if self.slopes is not None:
            _by_place(tile, places).addcmul_(self.slopes, _distances(tile, places, keys), value=-1)
        return tile

    def hide(self, tile: Tensor, rule: Rule, places: range, keys: range) -> None:
        """Take out what the rule hides: of small scores from their exponentials, by factors; of others beforehand.

        The smaller of a score and a bound, infinite either way, is faster than filling by a mask, but it lets NaN pass:
        wild scores, among which there may be some, are filled.
        """
        if self.wild:
            self.erase(tile, rule, places, keys, -torch.inf)
            return

        def bound() -> Tensor:
            seen = rule.tile(places, keys, device=tile.device)
            shown, hidden = (1.0, 0.0) if self.small else (torch.inf, -torch.inf)
            bounds = torch.full(seen.shape, shown, dtype=tile.dtype, device=tile.device)
            return self._over_heads(bounds.masked_fill_(~seen, hidden), tile, places)

        cut = torch.mul if self.small else torch.minimum
        each = _by_place(tile, places)
        cut(each, self._kept("bound", bound, rule, places, keys), out=each)

    def erase(self, tile: Tensor, rule: Rule, places: range, keys: range, value: float) -> None:
        """Put the value wherever the rule hides, whatever is there."""

        def hidden() -> Tensor:
            return self._over_heads(~rule.tile(places, keys, device=tile.device), tile, places)

        _by_place(tile, places).masked_fill_(self._kept("hidden", hidden, rule, places, keys), value)

    def _kept(self, what: str, made: Callable[[], Tensor], rule: Rule, places: range, keys: range) -> Tensor:
        """What is made for a tile, once for all that are alike."""
        if not rule.is_relative:
            return made()
        alike = (what, rule, len(places), len(keys), keys.start - places.start, self.small)
        if alike not in self.bounds:
            self.bounds[alike] = made()
        return self.bounds[alike]

    def _over_heads(self, table: Tensor, tile: Tensor, places: range) -> Tensor:
        """Lay what is over places and keys, maybe for each query head, over a tile as :func:`_by_place` views it."""
        if table.ndim == 2:
            return table[:, None]
        group = tile.shape[1] // len(places)
        return table.unflatten(0, (-1, group))[self.heads].transpose(1, 2)

    def teach_slopes(self, grad_scores: Tensor, places: range, keys: range) -> None:
        if self.grad_slopes is not None:
            each, distances = _by_place(grad_scores, places), _distances(grad_scores, places, keys)
            self.grad_slopes -= (each * distances).sum(dim=(1, 3))

    def teach_sinks(self, total: Tensor, delta: Tensor) -> None:
        if self.sinks is not None and self.grad_sinks is not None:
            total, delta = (x.unflatten(1, (-1, self.sinks.shape[2])) for x in (total, delta))
            self.grad_sinks -= (self.unit.exp_(self.sinks - total) * delta).sum(dim=(1, 3))

    def gradients(self) -> Iterator[Tensor | None]:
        """What the slopes and the sinks have learnt, in their own types."""
        for given, grad in ((self.given.slopes, self.grad_slopes), (self.given.sinks, self.grad_sinks)):
            yield None if given is None or grad is None else grad.flatten().to(given.dtype)


class _Size(NamedTuple):
    """How many places and how many keys make a tile, and whether some query does not see some key."""

    places: int
    keys: int
    is_cut: bool


def _size(rule: Rule, query: Tensor, key: Tensor, tile: int) -> _Size:
    """The size of tiles of at most ``tile`` scores, where rows are over ``(…, h / g, n, d)``."""
    group, n, m = *query.shape[-3:-1], key.shape[-2]
    is_cut = rule.sees(range(m - n, m), range(m)) is not Seen.ALL
    places = max(1, min(n, (ROWS_CUT if is_cut else ROWS) // group))
    rows = places * group
    keys = max(KEYS, ROWS_CUT * KEYS // rows)  # few queries take more keys at once
    return _Size(places, max(1, min(m, keys, tile // rows)), is_cut)


class _Buffer:
    """Memory for one tile of scores of all heads, used again for each tile."""

    def __init__(self, query: Tensor, size: _Size) -> None:
        self.memory = torch.empty(
            math.prod((*query.shape[:2], size.places, size.keys)), dtype=_wide(query), device=query.device
        )
        self.views: dict[tuple[int, ...], Tensor] = {}

    def over(self, q: Tensor, keys: range) -> Tensor:
        size = q.shape[1], len(keys)
        if size not in self.views:
            shape = len(q), *size
            self.views[size] = self.memory[: math.prod(shape)].view(shape)
        return self.views[size]


def _blocks(query: Tensor, key: Tensor, size: _Size) -> Iterator[tuple[slice, range, slice]]:
    """Blocks of queries: their rows, as :func:`_stacked` lays them; where they stand among the keys; their places."""
    _, group, n, _ = query.shape
    before = key.shape[1] - n
    for start in range(0, n, size.places):
        stop = min(start + size.places, n)
        yield slice(start * group, stop * group), range(start + before, stop + before), slice(start, stop)


def _parts(queries: Tensor, key: Tensor, rule: Rule, tile: int) -> Iterator[tuple[int, slice]]:
    """Each sequence in turn, and in it as many key/value heads at once as ``tile`` scores are of."""
    b, n_heads, group, _, _ = queries.shape
    size = _size(rule, queries, key, tile)
    heads = max(1, tile // (group * size.places * size.keys))
    yield from product(range(b), (slice(i, min(i + heads, n_heads)) for i in range(0, n_heads, heads)))


def _bound(query: Tensor, key: Tensor, rule: Rule, scale: float) -> float:
    r"""What no visible product is larger than, times the scale: :math:`|q \cdot k| \le |q|\, |k|`.

    It is infinite or NaN where there may be infinities or NaN among the products, and where nobody looks: few queries
    are not worth looking at all keys, and some numbers cannot be read at once (a GPU's, a graph's being compiled, a
    tensor's without data).
    """
    _, group, n, d = query.shape
    if n * group < d or torch.compiler.is_compiling() or type(query) is not Tensor or query.device.type != "cpu":
        return math.inf
    m = key.shape[1]
    seen = rule.keys(range(m - n, m), m)
    if not seen:
        return math.inf
    visible = key[:, seen[0].start : seen[-1].stop]
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=_wide(x)).amax().item() for x in (query, visible)]
    return abs(scale) * longest[0] * longest[1]


def _by_key_head(tensor: Tensor, key: Tensor) -> Tensor:
    """View ``(b, h, n, …)`` as ``(b, g, h / g, n, …)``: the query heads that share a key/value head side by side."""
    return tensor.unflatten(1, (key.shape[1], -1))


def _stacked(tensor: Tensor) -> Tensor:
    """Make ``(g, h / g, n, …)`` one matrix for each key/value head: place after place the queries that share it."""
    return at_least_single(tensor).transpose(1, 2).flatten(1, 2)


def _unstack(matrices: Tensor, out: Tensor) -> None:
    """Copy what :func:`_stacked` would make of ``out`` into it."""
    out.copy_(matrices.unflatten(1, (-1, out.shape[1])).transpose(1, 2))


def _of_places(tensor: Tensor, here: slice) -> Tensor:
    """View some places of ``(g, h / g, n, …)`` as :func:`_by_place` views what was computed of them."""
    return tensor[:, :, here].transpose(1, 2)


def _by_place(tile: Tensor, places: range) -> Tensor:
    """View a tile over key heads, places, query heads of a key head, and keys."""
    return tile.unflatten(1, (len(places), -1))


def _at_hand(*tensors: Tensor) -> Callable[[range], tuple[Tensor, ...]]:
    """Blocks of keys, values and their gradients in the precision of the sums, each cut once for all queries."""
    wide = [at_least_single(x) for x in tensors]
    blocks: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # PyTorch's compiler does not follow functools.cache

    def block(keys: range) -> tuple[Tensor, ...]:
        at = keys.start, keys.stop
        if at not in blocks:
            blocks[at] = tuple(x[:, keys.start : keys.stop] for x in wide)
        return blocks[at]

    return block


def _with_ones(tensor: Tensor) -> Tensor:
    """Each vector with a one as its last entry."""
    return pad(at_least_single(tensor), (0, 1), value=1.0)


def _distances(tile: Tensor, places: range, keys: range) -> Tensor:
    """How far each place is from each key, over ``(places, 1, keys)`` in the type of the tile."""
    first, second = (torch.arange(x.start, x.stop, dtype=tile.dtype, device=tile.device) for x in (places, keys))
    return (first[:, None, None] - second).abs_()


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
