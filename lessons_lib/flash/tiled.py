r"""FlashAttention in PyTorch, optimised: exact, tile by tile, and without an ``n x m`` matrix in memory.

The algorithm is that of :mod:`lessons_lib.flash.reference`, which should be read first. This file and the files
of its loops add score modifications, biases, dropout, caches of different lengths, half precision, and the following
optimisations [1]_ [2]_:

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

With dropout the kept weights are :math:`Z = D \circ P / (1 - p)`, the gradient of the weights is
:math:`\bar P = D \circ \bar O V^\top / (1 - p)`, and :math:`\delta` stays :math:`\bar o_i \cdot o_i - \bar\ell_i`. The
gradient of a bias is that of the scores, summed in each tile over the axes that the bias shares.

**Transforms.** The transforms of ``torch.func`` reach the function as ordinary sequences: ``vmap`` joins its axis with
the batch (:class:`TransformedTiledAttention`). The gradients are a function of their own (:class:`TiledGradients`),
which ``vmap`` treats alike and which raises an error when it is differentiated.

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
.. [2] Dao, *FlashAttention-2*, 2023. arXiv:2307.08691.
"""

from collections.abc import Iterable
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from lessons_lib.attention.rules import Rule
from lessons_lib.flash import tile_shapes
from lessons_lib.flash.dropout import Dropout
from lessons_lib.flash.tile_loops import attend_tiles, tile_gradients
from lessons_lib.flash.tile_scores import MAX_SMALL_SCORE, Scorer, ScoreTerms, score_bound
from lessons_lib.flash.tile_shapes import HeadBlock, accumulation_dtype, by_key_head, head_blocks
from lessons_lib.foundations.derivatives import (
    check_no_tangents,
    is_inside_transform,
    raise_on_forward_mode,
    raise_on_second_derivative,
)

_NAME_IN_ERRORS = "flash_attention with backend='tiled'"


class TiledOptions(NamedTuple):
    """The arguments of a call that are not differentiated."""

    rule: Rule
    scale: float
    spans: list[tuple[int, int]]  # the first key of each sequence, and the end of its keys
    softcap: float | None = None
    dropout_p: float = 0.0
    bounds: list[float] | None = None  # on the scores of each sequence; computed where they are needed if None


def tiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: TiledOptions,
    terms: ScoreTerms = ScoreTerms(),  # noqa: B008  (immutable)
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable once. Arguments are those of ``flash_attention``, already checked.

    Raises:
        NotImplementedError: in forward mode.
    """
    check_no_tangents(_NAME_IN_ERRORS, query, key, value, *terms)
    seeds = None if seed is None else seed.reshape(1)
    if is_inside_transform():
        options = TiledOptions(_unwrapped(options.rule), *options[1:])
        return TransformedTiledAttention.apply(query, key, value, *terms, seeds, options)
    bounds = _score_bounds(by_key_head(query.detach(), key), key.detach(), options)  # once for both passes
    options = TiledOptions(*options[:-1], bounds)
    return TiledAttention.apply(query, key, value, *terms, seeds, options)


class TiledAttention(torch.autograd.Function):
    """``apply(query, key, value, alibi_slopes, sinks, bias, seeds, options)`` returns ``(out, lse)``.

    Both results carry gradients. Slopes, sinks, bias and seeds are over ``(r, ...)``, where ``r`` divides the number of
    sequences: consecutive sequences share an entry. The rules and spans of ``options`` are repeated if there are more
    sequences than spans. So an axis of ``vmap`` can be joined with that of the sequences.
    """

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alibi_slopes: Tensor | None,
        sinks: Tensor | None,
        bias: Tensor | None,
        seeds: Tensor | None,
        options: TiledOptions,
    ) -> tuple[Tensor, Tensor]:
        """Compute attention in each sequence under the sequence's own rule."""
        out = torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)
        lse = torch.empty(query.shape[:-1], dtype=accumulation_dtype(query), device=query.device)
        queries, outs, lses = (by_key_head(x, key) for x in (query, out, lse[..., None]))
        terms = ScoreTerms(alibi_slopes, sinks, bias)
        scorer = Scorer.for_all_heads(options.scale, options.softcap, terms, key)
        parts = _Parts(queries, key, scorer, seeds, options)
        for part in head_blocks(queries, key, options.spans, options.rule, tile_shapes.TILE_SCORES):
            at = part.sequence, part.heads
            attend_tiles(queries[at], part.of(key), part.of(value), outs[at], lses[at], *parts.of(part))
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save what the gradients need."""
        *tensors, options = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.options = options

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights tile by tile and accumulate the gradients."""
        inputs: tuple[Any, ...] = (
            *ctx.saved_tensors,
            grad_out,
            grad_lse,
            ctx.options,
            tuple(ctx.needs_input_grad[3:6]),
        )
        is_differentiable = torch.is_grad_enabled() or is_inside_transform()
        if torch.compiler.is_compiling() or not is_differentiable:
            return *TiledGradients.forward(*inputs), None, None
        return *TiledGradients.apply(*inputs), None, None


class TransformedTiledAttention(TiledAttention):
    """:class:`TiledAttention` inside transforms of ``torch.func``; PyTorch's compiler does not trace a ``jvp``."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any):
        """Join the axis of ``vmap`` with the sequences."""
        joined = _join_all(info.batch_size, in_dims, inputs, [3, 4, 5, 6])
        return _split_all(info.batch_size, TransformedTiledAttention.apply(*joined))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise an error."""
        raise_on_forward_mode(_NAME_IN_ERRORS)


class TiledGradients(torch.autograd.Function):
    """The gradients of :class:`TiledAttention`, as a function of its inputs, its results and their gradients.

    ``apply(query, ..., seeds, out, lse, grad_out, grad_lse, options, wants_grad)`` returns the gradients of the first
    six; ``wants_grad`` says whether those of the slopes, the sinks and the bias are needed.
    """

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alibi_slopes: Tensor | None,
        sinks: Tensor | None,
        bias: Tensor | None,
        seeds: Tensor | None,
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        grad_lse: Tensor,
        options: TiledOptions,
        wants_grad: tuple[bool, ...],
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients in each sequence."""
        grad_query, grad_key, grad_value = (
            torch.empty(x.shape, dtype=accumulation_dtype(x), device=x.device) for x in (query, key, value)
        )
        lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # the weights of a row without keys become zero
        queries, outs, lses, grad_outs, grad_lses, grad_queries = (
            by_key_head(x, key) for x in (query, out, lse[..., None], grad_out, grad_lse[..., None], grad_query)
        )
        terms = ScoreTerms(alibi_slopes, sinks, bias)
        scorer = Scorer.for_all_heads(options.scale, options.softcap, terms, key, wants_grad)
        parts = _Parts(queries, key, scorer, seeds, options)
        for b in range(len(key)):
            start, stop = options.spans[b % len(options.spans)]
            for grad in (grad_key, grad_value):
                grad[b, :, :start], grad[b, :, stop:] = 0, 0
        for part in head_blocks(queries, key, options.spans, options.rule, tile_shapes.TILE_SCORES // 2):
            at = part.sequence, part.heads
            rows = queries[at], outs[at], lses[at], grad_outs[at], grad_lses[at]
            keys = part.of(key), part.of(value)
            grads = grad_queries[at], part.of(grad_key), part.of(grad_value)
            tile_gradients(*rows, *keys, *grads, *parts.of(part))
        grads = (grad.to(query.dtype) for grad in (grad_query, grad_key, grad_value))
        of_terms = (
            None if x is None or grad is None else grad.reshape(x.shape).to(x.dtype)
            for x, grad in zip(terms, (scorer.grad_slopes, scorer.grad_sinks, scorer.grad_bias), strict=True)
        )
        return *grads, *of_terms

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing: there is no backward pass."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise an error."""
        raise_on_second_derivative(_NAME_IN_ERRORS)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any):
        """Join the axis of ``vmap`` with the sequences; what all share gets a gradient for each entry of the axis."""
        shared = [6, *(3 + term for term, wanted in enumerate(inputs[-1]) if not wanted)]
        joined = _join_all(info.batch_size, in_dims, inputs, shared)
        return _split_all(info.batch_size, TiledGradients.apply(*joined))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise an error."""
        raise_on_forward_mode(_NAME_IN_ERRORS)


# --- parts ----------------------------------------------------------------------------------------------------------


class _Parts:
    """What the loops over tiles need beside tensors: the rule, the scorer and the dropout of each block of heads."""

    def __init__(
        self, queries: Tensor, key: Tensor, scorer: Scorer, seeds: Tensor | None, options: TiledOptions
    ) -> None:
        self.scorer, self.seeds, self.options, self.shape = scorer, seeds, options, (queries.shape[1], queries.shape[2])
        self.rules = _rules(options, len(key))
        known = _score_bounds(queries, key, options) if options.bounds is None else options.bounds
        bounds = [known[b % len(known)] for b in range(len(key))]  # vmap of the gradients alone repeats the sequences
        plain = scorer.is_plain
        self.small = [plain and bound < MAX_SMALL_SCORE for bound in bounds]
        self.may_have_nan = [scorer.bias is not None or not bound < torch.inf for bound in bounds]

    def of(self, part: HeadBlock) -> tuple[Rule, Scorer, Dropout | None]:
        """Return the rule, the scorer and the dropout of a block of heads."""
        b, dropout = part.sequence, None
        if self.seeds is not None:
            dropout = Dropout.of(part, self.seeds, self.options.dropout_p, self.shape, len(self.options.spans))
        return self.rules[b], self.scorer.for_heads(part, self.small[b], self.may_have_nan[b]), dropout


def _rules(options: TiledOptions, n_sequences: int) -> list[Rule]:
    """Return the rule of each sequence."""
    spans = options.spans
    rules = [options.rule.for_sequence(b) for b in range(len(spans))]
    return [rules[b % len(spans)] for b in range(n_sequences)]


def _score_bounds(queries: Tensor, key: Tensor, options: TiledOptions) -> list[float]:
    """Return :func:`score_bound` of each sequence, for queries over ``(b, g, h / g, n, d)``."""
    return [
        score_bound(queries[b], key[b, :, slice(*options.spans[b % len(options.spans)])], rule, options.scale)
        for b, rule in enumerate(_rules(options, len(key)))
    ]


def _join_all(size: int, axes: tuple[Any, ...], inputs: tuple[Any, ...], shared: Iterable[int]) -> list[Any]:
    """Join an axis of ``vmap`` with the first axis of each tensor.

    Tensors without it are repeated, except the inputs numbered ``shared`` with one entry for all sequences.
    """
    joined = list(inputs)
    for i, (x, axis) in enumerate(zip(inputs, axes, strict=True)):
        if isinstance(x, Tensor) and (axis is not None or i not in shared or len(x) > 1):
            batched = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
            joined[i] = batched.flatten(0, 1)
    return joined


def _split_all(size: int, results: Iterable[Tensor | None]) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """Return results with an axis of ``vmap`` split from their first axis, and the number of that axis for each."""
    split = tuple(None if x is None else x.unflatten(0, (size, -1)) for x in results)
    return split, tuple(None if x is None else 0 for x in split)


def _unwrapped(rule: Rule) -> Rule:
    """Return a rule without the wrappers that ``torch.func.grad`` puts round its tensors."""
    rule = copy(rule)
    for name, part in vars(rule).items():
        if isinstance(part, Rule):
            vars(rule)[name] = _unwrapped(part)
        while isinstance(part, Tensor) and is_functorch_wrapped_tensor(part):
            if is_batchedtensor(part):
                raise NotImplementedError(
                    f"{_NAME_IN_ERRORS} must have one mask for all entries of an axis of torch.func.vmap, got "
                    f"{type(rule).__name__} of a batched tensor; use lessons_lib.attention.attention.attention instead"
                )
            part = vars(rule)[name] = get_unwrapped(part)
    return rule
