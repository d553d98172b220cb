"""The scores of one tile: scaled, capped, with ALiBi slopes, a bias and the mask, in a unit that is fast to compute.

A tile is over ``(g, rows, keys)``: the rows of the query heads that share a key/value head lie in one matrix. Slopes,
sinks and biases may differ between sequences. Their leading axis has one entry for all sequences, or one for each, or
one for each run of consecutive sequences.
"""

import math
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lessons_lib.attention.rules import Rule
from lessons_lib.flash.tile_shapes import HeadBlock, TileBuffer, accumulation_dtype, split_rows

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


class ScoreTerms(NamedTuple):
    """What is added to the scores of a call, or takes part in their softmax; one leading axis for the sequences."""

    alibi_slopes: Tensor | None = None  # over (r, h)
    sinks: Tensor | None = None  # over (r, h)
    bias: Tensor | None = None  # over (r, h, n, m); h, n and m may be 1

    @classmethod
    def of(cls, alibi_slopes: Tensor | None, sinks: Tensor | None, bias: Tensor | None) -> "ScoreTerms":
        """Return the arguments of ``flash_attention`` with all axes: ``(1, h)`` or ``(b, h)``, and ``(r, h, n, m)``."""
        return cls(
            alibi_slopes[None] if alibi_slopes is not None and alibi_slopes.ndim == 1 else alibi_slopes,
            None if sinks is None else sinks[None],
            None if bias is None else bias[(None,) * (4 - bias.ndim)],
        )


@dataclass
class Scorer:
    """Computes and masks the tiles of scores of some heads, and accumulates the gradients of slopes, sinks and bias.

    Slopes, sinks and their gradients have one entry for each query head, over ``(g, h / g)`` (gradients) or
    ``(g, 1, h / g, 1)`` (values): these axes are those of a tile as :func:`split_rows` views it. A bias and its
    gradient are over ``(g, h / g, n, m)``, where an axis along which all entries are equal has size 1. The scorer of
    all heads has one axis more, for the sequences.
    """

    scale: float  # of the products of queries and keys
    softcap: float | None  # in nats
    alibi_slopes: Tensor | None  # in bits
    sinks: Tensor | None  # in bits
    bias: Tensor | None  # in nats
    grad_slopes: Tensor | None  # accumulated here; None if this gradient is not needed
    grad_sinks: Tensor | None  # accumulated here; None if this gradient is not needed
    grad_bias: Tensor | None  # accumulated here; None if this gradient is not needed
    heads: slice = field(default_factory=lambda: slice(None))  # the key/value heads of these tiles
    first_position: int = 0  # the position of the first query
    unit: ScoreUnit = UNIT_OF_ANY_SCORES  # of the scores in a tile
    small: bool = False  # whether every score is at most MAX_SMALL_SCORE: no maximum is subtracted
    may_have_nan: bool = True  # whether a score may be NaN or infinite
    masks: dict[tuple, Tensor] = field(default_factory=dict)  # of tiles that are alike, shared by all heads

    @classmethod
    def for_all_heads(
        cls,
        scale: float,
        softcap: float | None,
        terms: ScoreTerms,
        key: Tensor,
        wants_grad: tuple[bool, ...] = (False, False, False),
    ) -> "Scorer":
        """Return the scorer of all sequences and heads; ``wants_grad`` is for the slopes, the sinks and the bias."""
        slopes, sinks = (None if x is None else _in_bits(x, key) for x in terms[:2])
        grad_slopes, grad_sinks = (
            torch.zeros_like(x[:, :, 0, :, 0]) if wanted and x is not None else None
            for x, wanted in zip((slopes, sinks), wants_grad[:2], strict=True)
        )
        bias = grad_bias = None
        if terms.bias is not None:
            bias = _bias_by_key_head(terms.bias.detach(), key)
            grad_bias = torch.zeros(bias.shape, dtype=accumulation_dtype(key), device=key.device)
        return cls(scale, softcap, slopes, sinks, bias, grad_slopes, grad_sinks, grad_bias if wants_grad[2] else None)

    def for_heads(self, part: HeadBlock, small: bool, may_have_nan: bool) -> "Scorer":
        """Return the scorer of some key/value heads of a sequence; its gradients are views of those of all heads."""
        of_heads = (self.alibi_slopes, self.sinks, self.grad_slopes, self.grad_sinks)
        slopes, sinks, grad_slopes, grad_sinks = (None if x is None else part.entry(x)[part.heads] for x in of_heads)
        bias, grad_bias = (None if x is None else _bias_of(part, x) for x in (self.bias, self.grad_bias))
        unit = UNIT_OF_SMALL_SCORES if small else UNIT_OF_ANY_SCORES
        settings = part.heads, part.first_position, unit, small, may_have_nan, self.masks
        return Scorer(self.scale, self.softcap, slopes, sinks, bias, grad_slopes, grad_sinks, grad_bias, *settings)

    @property
    def is_plain(self) -> bool:
        """Whether a score is the scaled product and nothing else."""
        return all(x is None for x in (self.softcap, self.alibi_slopes, self.sinks, self.bias))

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
        out: "TileBuffer",
        cap_grad: "TileBuffer | None" = None,
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
            split_rows(tile, positions).addcmul_(self.alibi_slopes, _distances(tile, positions, keys), value=-1)
        if self.bias is not None:
            split_rows(tile, positions).add_(self._bias_tile(self.bias, positions, keys), alpha=self.unit.per_nat)
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
        view = split_rows(tile, positions)
        combine(view, self._cached("numbers", make, rule, positions, keys), out=view)

    def fill_hidden_(self, tile: Tensor, rule: Rule, positions: range, keys: range, value: float) -> None:
        """Write the value to every hidden entry, NaN or not."""

        def make() -> Tensor:
            return self._over_tile(~rule.tile(positions, keys, device=tile.device), tile, positions)

        split_rows(tile, positions).masked_fill_(self._cached("booleans", make, rule, positions, keys), value)

    def _cached(self, kind: str, make: Callable[[], Tensor], rule: Rule, positions: range, keys: range) -> Tensor:
        """Return the mask of a tile; tiles of a relative rule at one distance from the diagonal share a mask."""
        if not rule.is_relative:
            return make()
        name = (kind, rule, len(positions), len(keys), keys.start - positions.start, self.small)
        if name not in self.masks:
            self.masks[name] = make()
        return self.masks[name]

    def _over_tile(self, mask: Tensor, tile: Tensor, positions: range) -> Tensor:
        """Reshape a mask over ``(positions, keys)`` or ``(h, positions, keys)`` as :func:`split_rows` does a tile."""
        if mask.ndim == 2:
            return mask[:, None]
        group = tile.shape[1] // len(positions)
        return mask.unflatten(0, (-1, group))[self.heads].transpose(1, 2)

    def accumulate_slope_grad(self, grad_scores: Tensor, positions: range, keys: range) -> None:
        """Add what this tile contributes to the gradient of the slopes."""
        if self.grad_slopes is not None:
            view, distances = split_rows(grad_scores, positions), _distances(grad_scores, positions, keys)
            self.grad_slopes -= (view * distances).sum(dim=(1, 3))

    def accumulate_bias_grad(self, grad_scores: Tensor, positions: range, keys: range) -> None:
        """Add what this tile contributes to the gradient of the bias, summed over the axes that the bias shares."""
        if self.grad_bias is not None:
            grad_tile = self._bias_tile(self.grad_bias, positions, keys)
            grad_tile += split_rows(grad_scores, positions).sum_to_size(grad_tile.shape)

    def _bias_tile(self, bias: Tensor, positions: range, keys: range) -> Tensor:
        """View the part of a bias, or of its gradient, that belongs to a tile as :func:`split_rows` views the tile."""
        rows, columns = (
            slice(None) if size == 1 else slice(each.start - first, each.stop - first)
            for size, each, first in zip(bias.shape[2:], (positions, keys), (self.first_position, 0), strict=True)
        )
        return bias[:, :, rows, columns].transpose(1, 2)

    def accumulate_sink_grad(self, row_lse: Tensor, delta: Tensor) -> None:
        """Add what these rows contribute to the gradient of the sinks."""
        if self.sinks is not None and self.grad_sinks is not None:
            row_lse, delta = (x.unflatten(1, (-1, self.sinks.shape[2])) for x in (row_lse, delta))
            self.grad_sinks -= (self.unit.exp_(self.sinks - row_lse) * delta).sum(dim=(1, 3))


def _in_bits(of_heads: Tensor, key: Tensor) -> Tensor:
    """Return slopes or sinks over ``(r, g, 1, h / g, 1)`` in bits: with either of them no score counts as small."""
    numbers = of_heads.detach().to(accumulation_dtype(key))
    return UNIT_OF_ANY_SCORES.per_nat * numbers.view(len(of_heads), key.shape[1], 1, -1, 1)


def _bias_by_key_head(bias: Tensor, key: Tensor) -> Tensor:
    """View a bias over ``(r, h, n, m)`` as ``(r, g, h / g, n, m)``, where one entry for all heads stays one."""
    return bias[:, None] if bias.shape[1] == 1 else bias.unflatten(1, (key.shape[1], -1))


def _bias_of(part: HeadBlock, bias: Tensor) -> Tensor:
    """View the part of a bias, or of its gradient, that belongs to some heads and keys of a sequence."""
    bias = part.entry(bias)
    heads = slice(None) if len(bias) == 1 else part.heads
    return bias[heads, ..., slice(None) if bias.shape[-1] == 1 else slice(part.keys.start, part.keys.stop)]


def score_bound(query: Tensor, key: Tensor, rule: Rule, scale: float) -> float:
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
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=accumulation_dtype(x)).amax().item() for x in (query, visible)]
    return abs(scale) * longest[0] * longest[1]


def _distances(tile: Tensor, positions: range, keys: range) -> Tensor:
    """Return the distance of each position from each key, over ``(positions, 1, keys)``, in the type of the tile."""
    first, second = (torch.arange(x.start, x.stop, dtype=tile.dtype, device=tile.device) for x in (positions, keys))
    return (first[:, None, None] - second).abs_()
