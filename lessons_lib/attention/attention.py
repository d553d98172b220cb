r"""Scaled dot-product attention: a weighted average of values, with weights computed from queries and keys.

:func:`attention` is the specification of every other implementation in this library.

Leading axes broadcast as in a matrix product. With four or more axes, ``(batch, heads, n, d)``, heads may be grouped:
with ``h`` query heads and ``g`` key/value heads, where ``g`` divides ``h``, consecutive ``h / g`` query heads share one
key/value head [1]_. With three axes, heads could not be told from a batch. The signatures have three names for leading
axes: ``*batch_q`` for the queries, ``*batch_kv`` for the keys and values, and ``*batch`` for their common shape.

A mask is a Boolean tensor or a :class:`~lessons_lib.attention.rules.Rule`, from which :func:`attention` makes a Boolean
tensor over the ``n`` queries and ``m`` keys.

Half-precision inputs are multiplied, summed and exponentiated in float32, under ``torch.autocast`` too. The result is
rounded once, at the end.

Three options change the scores without a bias tensor of ``n * m`` numbers: a cap on their size (``softcap``), a penalty
on distance (``alibi_slopes``), and a sink, which takes a share of the weight of each row (``sinks``). They are applied
in this order; the bias is added after the penalty, and the mask is applied to the scores :math:`s_{ij}`:

.. math:: s_{ij} = \operatorname{cap}\left(\tau\, q_i \cdot k_j\right) - \sigma_h\, |p_i - j| + B_{ij}, \qquad
          \operatorname{cap}(s) = c \tanh(s / c), \qquad A_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_k e^{s_{ik}}}

Here :math:`c` is the cap; :math:`\sigma_h` and :math:`z_h` are the slope and the sink of head :math:`h`. Query
:math:`i` of :math:`n` is at position :math:`p_i = i + m - n` among the :math:`m` keys. The term of an option that is
not given is left out.

.. [1] Ainslie et al., *GQA*, 2023. arXiv:2305.13245.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from einops import reduce, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout, pad

from lessons_lib.attention.rules import Rule, check_fits_scores
from lessons_lib.attention.softmax import softmax
from lessons_lib.foundations.validation import (
    broadcast_together,
    broadcasts_to,
    check_above,
    check_floating,
    check_fraction,
    check_mask,
    check_same_device,
    promote_half,
)

F = TypeVar("F", bound=Callable[..., Any])


def attention_weights(
    query: Float[Tensor, "*batch_q n d_k"],
    key: Float[Tensor, "*#batch_kv m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "*batch n m"]:
    r"""Return the attention weights of each query over the keys.

    .. math:: A = \operatorname{softmax}\!\left(\tau\, Q K^\top + B\right), \qquad \tau = 1/\sqrt{d_k}

    If the entries of :math:`q` and :math:`k` are independent with zero mean and unit variance, :math:`q \cdot k` has
    variance :math:`d_k`; the default scale reduces the variance to one [2]_.

    >>> query, key = torch.randn(2, 8, 5, 64), torch.randn(2, 8, 7, 64)  # two sequences, eight heads
    >>> attention_weights(query, key).shape
    torch.Size([2, 8, 5, 7])

    Args:
        query: one row per query.
        key: one row per key.
        mask: True where a query may attend to a key, or a rule. A query that may attend to no key gets zero weights.
        scale: multiplier :math:`\tau` of the scores; ``1 / sqrt(d_k)`` when omitted.
        bias: :math:`B`, added to the scaled scores; may hold ``-inf``. Its dtype is that of the query; beside a query
            in half precision it may be float32.
        softcap: :math:`c`, positive; limits the scaled scores to between :math:`-c` and :math:`c` [3]_.
        alibi_slopes: :math:`\sigma`, one for each head; a score falls by the slope for each position of distance [4]_.
            Equivalent to :class:`~lessons_lib.attention.positions.AlibiBias` as the bias, and to FlashAttention's
            ``alibi_slopes``.
        sinks: :math:`z`, one for each head: a score that takes part in the softmax's sum and belongs to no key [5]_.
            A sink of 0 adds 1 to the denominator, as in "softmax off by one" [6]_; a sink of ``-inf`` adds nothing.

    Returns:
        Non-negative weights. Each row sums to one; with a finite sink, to less than one; and to zero if the mask or the
        bias forbids the whole row.

    Raises:
        ValueError: if query and key differ in width, dtype or device, if their leading axes neither broadcast nor
            group, if mask or bias has the wrong dtype or would enlarge the scores, if the cap is not positive, or if
            slopes or sinks are not one floating-point number for each head, on the query's device.

    .. [2] Vaswani et al., *Attention Is All You Need*, 2017, section 3.2.1. arXiv:1706.03762.
    .. [3] Gemma Team, *Gemma 2*, 2024. arXiv:2408.00118.
    .. [4] Press et al., *Train Short, Test Long* (ALiBi), 2021. arXiv:2108.12409.
    .. [5] OpenAI, *gpt-oss-120b & gpt-oss-20b Model Card*, 2025. arXiv:2508.10925.
    .. [6] Miller, *Attention Is Off By One*, 2023. https://www.evanmiller.org/attention-is-off-by-one.html
    """
    _check_dtypes_and_leading_axes(query, key=key)
    return _weights(query, key, mask, scale, bias, softcap, alibi_slopes, sinks).to(query.dtype)


class WeightsAndMask(NamedTuple):
    """The attention weights, and the mask of the keys that each query may attend to."""

    weights: Float[Tensor, "*batch n m"]
    mask: Bool[Tensor, "*batch n m"]


def attention_weights_and_mask(
    query: Float[Tensor, "*batch_q n d_k"],
    key: Float[Tensor, "*#batch_kv m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> WeightsAndMask:
    """Return the :func:`attention_weights`, and a mask that is False where ``mask`` or a bias of ``-inf`` hides a key.

    The arguments are those of :func:`attention_weights`.

    >>> hides_last_key = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])
    >>> weights, mask = attention_weights_and_mask(torch.randn(2, 8), torch.randn(2, 8), bias=hides_last_key)
    >>> mask
    tensor([[ True, False],
            [ True,  True]])

    Raises:
        ValueError: as :func:`attention_weights`.
    """
    weights = attention_weights(
        query, key, mask, scale=scale, bias=bias, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks
    )
    visible = torch.ones_like(weights, dtype=torch.bool)
    if mask is not None:
        n, m = weights.shape[-2:]
        visible = visible & (mask.to_mask(n, m, device=weights.device) if isinstance(mask, Rule) else mask)
    if bias is not None:
        visible = visible & (bias > -torch.inf)
    return WeightsAndMask(weights, visible)


def declare_weights(weights_function: Callable[..., WeightsAndMask]) -> Callable[[F], F]:
    """Declare which function computes the attention weights of the decorated implementation of attention.

    ``weights_function(query, key, mask, bias=..., **options)`` takes the options of the implementation except
    ``dropout_p``. Its weights times the values must be the output of the implementation. A layer's ``weights`` and
    :func:`lessons_lib.analysis.diagnostics.observe` show these weights.

    >>> @declare_weights(attention_weights_and_mask)
    ... def my_attention(query, key, value, mask=None, *, bias=None, dropout_p=0.0):
    ...     return attention(query, key, value, mask, bias=bias, dropout_p=dropout_p)
    >>> my_attention.weights_function is attention_weights_and_mask
    True
    """

    def decorate(implementation: F) -> F:
        implementation.weights_function = weights_function  # type: ignore[attr-defined]
        return implementation

    return decorate


def get_weights_function(implementation: Callable[..., Any]) -> Callable[..., WeightsAndMask]:
    """Return the function that computes an implementation's attention weights from ``(query, key, mask, bias=...)``.

    The implementation declares this function as its attribute ``weights_function``, see :func:`declare_weights`. The
    options that a ``functools.partial`` fixes are fixed in the returned function, too, except ``dropout_p``.

    >>> compute_weights = get_weights_function(partial(attention, softcap=5.0))
    >>> compute_weights(torch.randn(2, 8), torch.randn(3, 8), None, bias=None).weights.shape
    torch.Size([2, 3])

    Raises:
        ValueError: if the implementation declares no such function, or if a ``partial`` fixes an option that the
            declared function does not take.
    """
    if isinstance(implementation, partial):
        fixed = {name: value for name, value in implementation.keywords.items() if name != "dropout_p"}
        compute_weights = get_weights_function(implementation.func)
        try:
            inspect.signature(compute_weights).bind(
                *implementation.args, "query", "key", "mask", **{"bias": None} | fixed
            )
        except TypeError as error:
            raise ValueError(
                f"the weights_function of {_name(implementation.func)} must take the options that the partial fixes, "
                f"{sorted(fixed)} ({error}); declare one that does with declare_weights"
            ) from error
        return partial(compute_weights, *implementation.args, **fixed)
    declared: Callable[..., WeightsAndMask] | None = getattr(implementation, "weights_function", None)
    if declared is None:
        raise ValueError(
            f"the implementation must declare its attention weights, got {_name(implementation)} without a "
            "weights_function; set this attribute, for instance `implementation.weights_function = "
            "attention_weights_and_mask` if its weights are those of lessons_lib.attention.attention.attention"
        )
    return declared


@declare_weights(attention_weights_and_mask)
def attention(
    query: Float[Tensor, "*batch_q n d_k"],
    key: Float[Tensor, "*#batch_kv m d_k"],
    value: Float[Tensor, "*#batch_kv m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Return the average of the values, weighted by the :func:`attention_weights`.

    .. math:: O = A V

    The value of a forbidden key is multiplied by zero, not skipped, so it must be finite.

    >>> query = torch.randn(2, 8, 5, 64)  # two sequences, eight query heads
    >>> key, value = torch.randn(2, 4, 7, 64), torch.randn(2, 4, 7, 32)  # two query heads share a key/value head
    >>> attention(query, key, value).shape
    torch.Size([2, 8, 5, 32])

    Args:
        value: one row per key; its leading axes are those of the key, or broadcast with them.
        dropout_p: the probability with which each weight is dropped; the others are divided by ``1 - dropout_p``, so
            that rows of weights sum to one only on average. Dropout is applied in *every* call: a layer passes 0
            outside training.

    The other arguments are those of :func:`attention_weights`.

    Raises:
        ValueError: as :func:`attention_weights`; if value does not fit key; if dropout_p is not in ``[0, 1)``.
    """
    check_attention_inputs(query, key, value)
    check_options(scale, dropout_p)
    weights = dropout(_weights(query, key, mask, scale, bias, softcap, alibi_slopes, sinks), dropout_p)
    with _without_autocast(query):
        return (weights @ promote_half(repeat_kv(value, query))).to(query.dtype)


class AttentionGradients(NamedTuple):
    """The gradients that :func:`attention_vjp` returns, each in the shape and dtype of its input."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None


def attention_vjp(
    query: Float[Tensor, "*batch_q n d_k"],
    key: Float[Tensor, "*#batch_kv m d_k"],
    value: Float[Tensor, "*#batch_kv m d_v"],
    grad_output: Float[Tensor, "*batch n d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
) -> AttentionGradients:
    r"""Return the gradients of the inputs of :func:`attention`, computed by hand (a vector-Jacobian product).

    Write :math:`\bar X` for the gradient of the loss with respect to :math:`X`; ``grad_output`` is :math:`\bar O`.

    .. math::
        \bar V &= A^\top \bar O, & \bar A &= \bar O V^\top, \\
        \bar S_{ij} &= A_{ij} \Big(\bar A_{ij} - \sum_k A_{ik} \bar A_{ik}\Big)
            & &\text{(each row: the softmax's Jacobian)}, \\
        \bar Q &= \tau\, \bar S K, & \bar K &= \tau\, \bar S^\top Q, \qquad \bar B = \bar S

    The gradient of an input that was broadcast, or of a key/value head that several query heads share, is the sum of
    the gradients of its copies. Without ``bias`` its gradient is ``None``. Dropout, cap, slopes and sinks are not
    supported.

    >>> query, key, value, grad_output = torch.randn(4, 2, 5, 16)
    >>> gradients = attention_vjp(query, key, value, grad_output)
    >>> gradients.query.shape, gradients.bias
    (torch.Size([2, 5, 16]), None)

    Raises:
        ValueError: as :func:`attention`, and if ``grad_output`` does not have the shape and dtype of its output.
    """
    check_attention_inputs(query, key, value)
    weights = _weights(query, key, mask, scale, bias)
    queries = promote_half(query)
    keys, values = (promote_half(repeat_kv(shared, query)) for shared in (key, value))
    _check_grad_output(grad_output, query, weights, values)
    grad_output, scale = promote_half(grad_output), _scale(query, scale)

    with _without_autocast(query):
        grad_values = weights.mT @ grad_output
        grad_weights = grad_output @ values.mT
        grad_scores = weights * (grad_weights - (grad_weights * weights).sum(dim=-1, keepdim=True))
        grad_queries = scale * grad_scores @ keys
        grad_keys = scale * grad_scores.mT @ queries

    return AttentionGradients(
        query=_sum_over_copies(grad_queries, query),
        key=_sum_over_copies(grad_keys, key),
        value=_sum_over_copies(grad_values, value),
        bias=None if bias is None else _sum_over_copies(grad_scores, bias),
    )


# --- helpers --------------------------------------------------------------------------------------------------------


def _weights(
    query: Tensor,
    key: Tensor,
    mask: Rule | Tensor | None,
    scale: float | None,
    bias: Tensor | None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention weights in float32 or wider, before they are rounded to the dtype of the query."""
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same width, got {query.shape[-1]} and {key.shape[-1]}")
    with _without_autocast(query):
        scores = _scale(query, scale) * promote_half(query) @ promote_half(repeat_kv(key, query)).mT
    check_score_mods(query, scores, softcap, alibi_slopes, sinks)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores + alibi_bias(alibi_slopes, scores)
    if bias is not None:
        check_bias(bias, query, scores)
        scores = scores + bias
    if isinstance(mask, Rule):
        check_fits_scores(mask, scores.shape)
        mask = mask.to_mask(*scores.shape[-2:], device=scores.device)
    return softmax(scores, mask) if sinks is None else _softmax_with_sink(scores, mask, sinks)


def alibi_bias(alibi_slopes: Tensor, scores: Tensor) -> Tensor:
    """Return the ALiBi bias of the scores: minus the slope of each head times the distance from query to key.

    >>> alibi_bias(torch.tensor([0.5, 0.25]), scores=torch.zeros(1, 2, 5, 7)).shape
    torch.Size([2, 5, 7])
    """
    n, m = scores.shape[-2:]
    query_positions = torch.arange(m - n, m, device=scores.device)[:, None]
    distances = (query_positions - torch.arange(m, device=scores.device)).abs()
    return -_per_head(alibi_slopes, scores) * distances


def _softmax_with_sink(scores: Tensor, mask: Tensor | None, sinks: Tensor) -> Tensor:
    """Take the softmax over the keys and the sink, which no mask hides, and return the weights of the keys."""
    if mask is not None:
        check_mask(mask, scores)
        mask = pad(mask.expand(*mask.shape[:-1], scores.shape[-1]), (0, 1), value=True)
    column = _per_head(sinks, scores).expand(*scores.shape[:-1], 1)
    return softmax(torch.cat([scores, column], dim=-1), mask)[..., :-1]


def _per_head(numbers: Tensor, scores: Tensor) -> Tensor:
    """Reshape one number per head to ``(h, 1, 1)``, or ``(1, 1)`` for scores without heads, in the scores' dtype."""
    return numbers.to(scores.dtype).reshape(-1, 1, 1) if scores.ndim > 2 else numbers.to(scores.dtype).reshape(1, 1)


def _without_autocast(query: Tensor) -> AbstractContextManager:
    """Disable ``torch.autocast``, which would round the matrix products to half precision."""
    device = query.device.type
    # torch 2.11 does not compile is_autocast_available, so it is not asked about the usual devices
    if device in ("cpu", "cuda") or torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _name(implementation: Callable[..., Any]) -> str:
    return getattr(implementation, "__qualname__", type(implementation).__name__)


def _scale(query: Tensor, scale: float | None) -> float:
    check_options(scale)
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def with_positive_scale(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Return a query and a positive scale that give the same scores.

    Kernels need a positive scale because they apply the mask and take the row maximum before they multiply by it.

    >>> with_positive_scale(torch.ones(2), -3.0)
    (tensor([-1., -1.]), 3.0)
    """
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale else (0 * query, 1.0)


def _n_heads(tensor: Tensor) -> int:
    """Return the number of heads; of three axes, the first is a batch, not heads."""
    return tensor.shape[-3] if tensor.ndim > 3 else 1


def _group_size(query: Tensor, shared: Tensor) -> int:
    """Return how many query heads share one head of ``shared``; 1 also where broadcasting suffices (one head)."""
    h, g = _n_heads(query), _n_heads(shared)
    return h // g if 1 < g < h and h % g == 0 else 1


def repeat_kv(shared: Tensor, query: Tensor) -> Tensor:
    """Repeat each key/value head for the consecutive query heads that share it.

    >>> repeat_kv(torch.randn(2, 4, 7, 64), query=torch.randn(2, 8, 5, 64)).shape
    torch.Size([2, 8, 7, 64])
    """
    size = _group_size(query, shared)
    return shared if size == 1 else repeat(shared, "... g m d -> ... (g size) m d", size=size)


def _sum_over_copies(grad: Tensor, original: Tensor) -> Tensor:
    """Sum the gradients of the copies that :func:`repeat_kv` or broadcasting made of each entry of ``original``."""
    if 1 < _n_heads(original) < _n_heads(grad):
        grad = reduce(grad, "... (g size) m d -> ... g m d", "sum", g=_n_heads(original))
    return grad.sum_to_size(original.shape).to(original.dtype)


def _check_dtypes_and_leading_axes(query: Tensor, **keys_and_values: Tensor) -> None:
    """Check that the tensors have one floating-point dtype and device and that their leading axes fit the query's."""
    check_floating(query=query, **keys_and_values)
    for name, tensor in {"query": query, **keys_and_values}.items():
        if tensor.ndim < 2 or not tensor.shape[-1]:
            raise ValueError(f"{name} must be (*batch, rows, width) of width at least 1, got {tuple(tensor.shape)}")
    for name, tensor in keys_and_values.items():
        *outer, heads = (1, *tensor.shape[:-2])
        if not broadcast_together(query.shape[:-2], (*outer, heads * _group_size(query, tensor))):
            raise ValueError(
                f"the leading axes of query and {name} must broadcast, or, over (batch, heads, rows, width), "
                f"the heads of {name} divide those of query, got {tuple(query.shape)} and {tuple(tensor.shape)}"
            )


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that queries, keys and values fit one another.

    Raises:
        ValueError: as :func:`attention`.
    """
    _check_dtypes_and_leading_axes(query, key=key, value=value)
    if key.shape[-2] != value.shape[-2] or not broadcast_together(key.shape[:-2], value.shape[:-2]):
        raise ValueError(
            "key and value must have the same number of rows and leading axes that broadcast, "
            f"got {tuple(key.shape)} and {tuple(value.shape)}"
        )


def check_options(scale: float | None, dropout_p: float = 0.0) -> None:
    """Check that the scale is finite, if there is one, and that the dropout probability is in ``[0, 1)``."""
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    check_fraction("dropout_p", dropout_p)


def check_bias(bias: Tensor, query: Tensor, scores: Tensor) -> None:
    """Check that a bias has the dtype of the query or the scores, and that it broadcasts to the shape of the scores."""
    if bias.dtype not in (query.dtype, scores.dtype):
        allowed = " or ".join(dict.fromkeys(map(str, (query.dtype, scores.dtype))))
        raise ValueError(f"bias must be of type {allowed} like the query, got {bias.dtype}")
    if not broadcasts_to(bias.shape, scores.shape):
        raise ValueError(
            f"bias must broadcast to the scores, {tuple(scores.shape)}, without enlarging them, got {tuple(bias.shape)}"
        )
    check_same_device(query=query, bias=bias)


def check_score_mods(
    query: Tensor, scores: Tensor, softcap: float | None, alibi_slopes: Tensor | None, sinks: Tensor | None
) -> None:
    """Check that the cap is positive, and that slopes and sinks are one floating-point number for each head."""
    if softcap is not None:
        check_above("softcap", softcap, 0)
    h = scores.shape[-3] if scores.ndim > 2 else 1
    for name, numbers in {"alibi_slopes": alibi_slopes, "sinks": sinks}.items():
        if numbers is not None:
            if not numbers.is_floating_point() or numbers.shape != (h,):
                raise ValueError(
                    f"{name} must be one floating-point number for each head, over (h,) = ({h},), "
                    f"got {numbers.dtype} over {tuple(numbers.shape)}"
                )
            check_same_device(**{"query": query, name: numbers})


def _check_grad_output(grad_output: Tensor, query: Tensor, weights: Tensor, values: Tensor) -> None:
    check_floating(query=query, grad_output=grad_output)
    leading = torch.broadcast_shapes(weights.shape[:-2], values.shape[:-2])
    expected = (*leading, weights.shape[-2], values.shape[-1])
    if grad_output.shape != expected:
        raise ValueError(f"grad_output must have the output's shape, {expected}, got {tuple(grad_output.shape)}")
