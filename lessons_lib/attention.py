r"""Scaled dot-product attention: a weighted average whose weights are computed from the data.

Leading axes broadcast as in a matrix product. From four axes on, ``(batch, heads, n, d)``, heads may be grouped: with
``h`` query heads and ``g`` key/value heads, ``g`` dividing ``h``, consecutive ``h / g`` query heads share one key/value
head [1]_. With three axes nothing would tell heads from a batch. Hence three names for leading axes in the signatures:
the queries' (``*batch_q``), the keys' and values' (``*batch_kv``), and what they broadcast to (``*batch``).

A mask is a Boolean table or a :class:`~lessons_lib.rules.Rule`, whose picture over the ``n`` queries and ``m`` keys is
then made.

Half-precision inputs are multiplied, added up and exponentiated in float32 and rounded once, at the end; under
``torch.autocast`` too.

Three changes of the scores cost no table: a cap on their size, a price on distance, and a sink that takes a share of
each row. A score passes them in this order, and then the bias and the mask:

.. math:: s_{ij} = \operatorname{cap}\left(\tau\, q_i \cdot k_j\right) - \sigma_h\, |p_i - j| + B_{ij}, \qquad
          \operatorname{cap}(s) = c \tanh(s / c), \qquad A_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_k e^{s_{ik}}}

with the cap :math:`c` and, for head :math:`h`, the slope :math:`\sigma_h` and the sink :math:`z_h`; query :math:`i` of
:math:`n` stands at position :math:`p_i = i + m - n` among the :math:`m` keys. What is not given is left out.

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

from lessons_lib.rules import Rule, check_over
from lessons_lib.shapes import (
    at_least_single,
    broadcast_together,
    broadcasts_to,
    check_above,
    check_floating,
    check_mask,
    check_same_device,
    check_share,
)
from lessons_lib.softmax import softmax

F = TypeVar("F", bound=Callable[..., Any])


def attention_weights(
    query: Float[Tensor, "*batch_q n d_k"],
    key: Float[Tensor, "*#batch_kv m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    softcap: float | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "*batch n m"]:
    r"""Return how much each query attends to each key.

    .. math:: A = \operatorname{softmax}\!\left(\tau\, Q K^\top + B\right), \qquad \tau = 1/\sqrt{d_k}

    If the entries of :math:`q` and :math:`k` are independent with zero mean and unit variance, :math:`q \cdot k` has
    variance :math:`d_k`; the default scale brings it back to one [2]_.

    Args:
        query: one row per query.
        key: one row per key.
        mask: True where a query may attend to a key, or the rule that says so. A query that may attend nowhere gets
            zero weights.
        scale: multiplier :math:`\tau` of the scores; ``1 / sqrt(d_k)`` when omitted.
        bias: :math:`B`, added to the scaled scores; may hold ``-inf``. Either of the queries' type or, where these
            in half precision, float32.
        softcap: :math:`c`, positive: keeps the scaled scores between :math:`-c` and :math:`c` [3]_.
        slopes: :math:`\sigma`, one for each head: what a step of distance costs [4]_. It is
            :class:`~lessons_lib.positions.AlibiBias` as a bias, and FlashAttention's ``alibi_slopes``.
        sinks: :math:`z`, one for each head: a score that takes part in the softmax's sum and belongs to no key [5]_.
            At 0 the denominator gets the 1 of "softmax off by one" [6]_; at ``-inf`` there is no sink.

    Returns:
        Non-negative weights. Each row sums to one, to less with a sink, or to zero if the mask or the bias forbids the
        whole row.

    Raises:
        ValueError: if query and key differ in width, type or device, if their leading axes neither broadcast nor
            group, if mask or bias has the wrong type or would enlarge the scores, if the cap is not positive, or if
            slopes or sinks are not one floating-point number for each head, on the query's device.

    .. [2] Vaswani et al., *Attention Is All You Need*, 2017, section 3.2.1. arXiv:1706.03762.
    .. [3] Gemma Team, *Gemma 2*, 2024. arXiv:2408.00118.
    .. [4] Press et al., *Train Short, Test Long* (ALiBi), 2021. arXiv:2108.12409.
    .. [5] OpenAI, *gpt-oss-120b & gpt-oss-20b Model Card*, 2025. arXiv:2508.10925.
    .. [6] Miller, *Attention Is Off By One*, 2023. https://www.evanmiller.org/attention-is-off-by-one.html
    """
    _check_rows(query, key=key)
    return _weights(query, key, mask, scale, bias, softcap, slopes, sinks).to(query.dtype)


class Pattern(NamedTuple):
    """The attention weights of each query, and the keys that the query may attend to."""

    weights: Float[Tensor, "*batch n m"]
    visible: Bool[Tensor, "*batch n m"]


def attention_pattern(
    query: Float[Tensor, "*batch_q n d_k"],
    key: Float[Tensor, "*#batch_kv m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    softcap: float | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Pattern:
    """Return :func:`attention_weights`, and which keys the mask and the bias leave visible; arguments as there.

    Raises:
        ValueError: as :func:`attention_weights`.
    """
    weights = attention_weights(query, key, mask, scale=scale, bias=bias, softcap=softcap, slopes=slopes, sinks=sinks)
    visible = torch.ones_like(weights, dtype=torch.bool)
    if mask is not None:
        n, m = weights.shape[-2:]
        visible = visible & (mask.tensor(n, m, device=weights.device) if isinstance(mask, Rule) else mask)
    if bias is not None:
        visible = visible & (bias > -torch.inf)
    return Pattern(weights, visible)


def declares_pattern(pattern: Callable[..., Pattern]) -> Callable[[F], F]:
    """Mark an implementation of attention with the function that returns its :class:`Pattern`.

    ``pattern(query, key, mask, bias=..., **options)`` takes the options of the implementation except ``dropout_p``.
    Its weights times the values must be the output of the implementation. Diagnostics show these weights.
    """

    def mark(implementation: F) -> F:
        implementation.pattern = pattern  # type: ignore[attr-defined]
        return implementation

    return mark


def pattern_of(implementation: Callable[..., Any]) -> Callable[..., Pattern]:
    """Return the function ``pattern(query, key, mask, bias=...)`` for the weights that an implementation averages with.

    The implementation declares this function as its attribute ``pattern``, see :func:`declares_pattern`. The options
    that a ``functools.partial`` fixes are fixed in the returned function, too.

    Raises:
        ValueError: if the implementation declares no pattern, or a ``partial`` fixes an option that the pattern does
            not take.
    """
    if isinstance(implementation, partial):
        fixed = {name: value for name, value in implementation.keywords.items() if name != "dropout_p"}
        pattern = pattern_of(implementation.func)
        try:
            inspect.signature(pattern).bind(*implementation.args, "query", "key", "mask", **{"bias": None} | fixed)
        except TypeError as error:
            raise ValueError(
                f"the pattern of {_name(implementation.func)} must take the options that the partial fixes, "
                f"{sorted(fixed)} ({error}); declare a pattern that does, see lessons_lib.attention.declares_pattern"
            ) from error
        return partial(pattern, *implementation.args, **fixed)
    declared: Callable[..., Pattern] | None = getattr(implementation, "pattern", None)
    if declared is None:
        raise ValueError(
            f"the implementation must declare the weights it averages with, got {_name(implementation)} without; set "
            "its attribute `pattern`, for instance `implementation.pattern = attention_pattern` if it averages with "
            "the weights of lessons_lib.attention.attention"
        )
    return declared


@declares_pattern(attention_pattern)
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
    slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Average the values with :func:`attention_weights`; arguments as there, and two more.

    .. math:: O = A V

    A forbidden key's value is multiplied by zero, not skipped: it has to be finite.

    Args:
        value: one row per key, with the keys' leading axes or ones that broadcast with them.
        dropout_p: each weight is dropped with this probability and the rest divided by ``1 - dropout_p``, *every
            time*: a layer passes 0 outside training. Rows of weights then sum to one only on average.

    Raises:
        ValueError: as :func:`attention_weights`, if value does not fit key, or dropout_p is not in ``[0, 1)``.
    """
    check_attention_inputs(query, key, value)
    check_options(scale, dropout_p)
    weights = dropout(_weights(query, key, mask, scale, bias, softcap, slopes, sinks), dropout_p)
    with _in_its_own_precision(query):
        return (weights @ at_least_single(for_each_query_head(value, query))).to(query.dtype)


class AttentionGradients(NamedTuple):
    """What :func:`attention_vjp` returns: one gradient for each input, in that input's shape and type."""

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
    r"""Carry the gradient of a loss back through :func:`attention` (a vector-Jacobian product), by hand.

    Write :math:`\bar X` for the gradient of the loss with respect to :math:`X`; ``grad_output`` is :math:`\bar O`.

    .. math::
        \bar V &= A^\top \bar O, & \bar A &= \bar O V^\top, \\
        \bar S_{ij} &= A_{ij} \Big(\bar A_{ij} - \sum_k A_{ik} \bar A_{ik}\Big)
            & &\text{(each row: the softmax's Jacobian)}, \\
        \bar Q &= \tau\, \bar S K, & \bar K &= \tau\, \bar S^\top Q, \qquad \bar B = \bar S

    An input that was broadcast, or a key/value head that several query heads share, collects the sum of what its
    copies receive. Without ``bias`` its gradient is ``None``. There is no dropout here, and no cap, slopes or sinks.

    Raises:
        ValueError: as :func:`attention`, and if ``grad_output`` does not have the shape and type of its output.
    """
    check_attention_inputs(query, key, value)
    weights = _weights(query, key, mask, scale, bias)
    queries = at_least_single(query)
    keys, values = (at_least_single(for_each_query_head(shared, query)) for shared in (key, value))
    _check_grad_output(grad_output, query, weights, values)
    grad_output, scale = at_least_single(grad_output), _scale(query, scale)

    with _in_its_own_precision(query):
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


# --- parts ----------------------------------------------------------------------------------------------------------


def _weights(
    query: Tensor,
    key: Tensor,
    mask: Rule | Tensor | None,
    scale: float | None,
    bias: Tensor | None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The weights in at least float32: what :func:`attention_weights` shows and :func:`attention` averages with."""
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same width, got {query.shape[-1]} and {key.shape[-1]}")
    with _in_its_own_precision(query):
        scores = _scale(query, scale) * at_least_single(query) @ at_least_single(for_each_query_head(key, query)).mT
    check_changes(query, scores, softcap, slopes, sinks)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        scores = scores + distance_bias(slopes, scores)
    if bias is not None:
        check_bias(bias, query, scores)
        scores = scores + bias
    if isinstance(mask, Rule):
        check_over(mask, scores.shape)
        mask = mask.tensor(*scores.shape[-2:], device=scores.device)
    return softmax(scores, mask) if sinks is None else _softmax_with_sink(scores, mask, sinks)


def distance_bias(slopes: Tensor, scores: Tensor) -> Tensor:
    """Return what each head's scores lose with the distance between query and key, over the last axes of the scores."""
    n, m = scores.shape[-2:]
    places = torch.arange(m - n, m, device=scores.device)[:, None]
    distances = (places - torch.arange(m, device=scores.device)).abs()
    return -_for_each_head(slopes, scores) * distances


def _softmax_with_sink(scores: Tensor, mask: Tensor | None, sinks: Tensor) -> Tensor:
    """The softmax over one entry more, which everyone sees, without that entry."""
    if mask is not None:
        check_mask(mask, scores)
        mask = pad(mask.expand(*mask.shape[:-1], scores.shape[-1]), (0, 1), value=True)
    column = _for_each_head(sinks, scores).expand(*scores.shape[:-1], 1)
    return softmax(torch.cat([scores, column], dim=-1), mask)[..., :-1]


def _for_each_head(numbers: Tensor, scores: Tensor) -> Tensor:
    """One number for each head, in the type of the scores and laid beside their rows."""
    return numbers.to(scores.dtype).reshape(-1, 1, 1) if scores.ndim > 2 else numbers.to(scores.dtype).reshape(1, 1)


def _in_its_own_precision(query: Tensor) -> AbstractContextManager:
    """Keep ``torch.autocast``, in which a model's other layers may run, from rounding what is multiplied here."""
    device = query.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _name(implementation: Callable[..., Any]) -> str:
    return getattr(implementation, "__qualname__", type(implementation).__name__)


def _scale(query: Tensor, scale: float | None) -> float:
    check_options(scale)
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def with_positive_scale(query: Tensor, scale: float) -> tuple[Tensor, float]:
    """Return a query and a scale above 0 that make the same scores.

    Kernels hide keys, and take a row's maximum, before they multiply by the scale.
    """
    if scale > 0:
        return query, scale
    return (-query, -scale) if scale else (0 * query, 1.0)


def _n_heads(tensor: Tensor) -> int:
    """How many heads there are; a third axis from the end is a batch's, not the heads'."""
    return tensor.shape[-3] if tensor.ndim > 3 else 1


def _group_size(query: Tensor, shared: Tensor) -> int:
    """How many query heads share one head of ``shared``; 1 also where plain broadcasting does the sharing."""
    h, g = _n_heads(query), _n_heads(shared)
    return h // g if 1 < g < h and h % g == 0 else 1


def for_each_query_head(shared: Tensor, query: Tensor) -> Tensor:
    """Repeat each key/value head for the consecutive query heads that share it."""
    size = _group_size(query, shared)
    return shared if size == 1 else repeat(shared, "... g m d -> ... (g size) m d", size=size)


def _sum_over_copies(grad: Tensor, given: Tensor) -> Tensor:
    """Undo :func:`for_each_query_head` and broadcasting: each entry of ``given`` collects from all its copies."""
    if 1 < _n_heads(given) < _n_heads(grad):
        grad = reduce(grad, "... (g size) m d -> ... g m d", "sum", g=_n_heads(given))
    return grad.sum_to_size(given.shape).to(given.dtype)


def _check_rows(query: Tensor, **shared: Tensor) -> None:
    """Refuse a query, key or value that differ in type or device or whose leading axes do not fit the query's."""
    check_floating(query=query, **shared)
    for name, tensor in {"query": query, **shared}.items():
        if tensor.ndim < 2 or not tensor.shape[-1]:
            raise ValueError(f"{name} must be (*batch, rows, width) of width at least 1, got {tuple(tensor.shape)}")
    for name, tensor in shared.items():
        *outer, heads = (1, *tensor.shape[:-2])
        if not broadcast_together(query.shape[:-2], (*outer, heads * _group_size(query, tensor))):
            raise ValueError(
                f"the leading axes of query and {name} must broadcast, or, over (batch, heads, rows, width), "
                f"the heads of {name} divide those of query, got {tuple(query.shape)} and {tuple(tensor.shape)}"
            )


def check_attention_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse queries, keys and values that do not belong together.

    Raises:
        ValueError: as :func:`attention`.
    """
    _check_rows(query, key=key, value=value)
    if key.shape[-2] != value.shape[-2] or not broadcast_together(key.shape[:-2], value.shape[:-2]):
        raise ValueError(
            "key and value must have the same number of rows and leading axes that broadcast, "
            f"got {tuple(key.shape)} and {tuple(value.shape)}"
        )


def check_options(scale: float | None, dropout_p: float = 0.0) -> None:
    """Refuse a scale that is not finite, and a dropout that is no probability below one."""
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    check_share("dropout_p", dropout_p)


def check_bias(bias: Tensor, query: Tensor, scores: Tensor) -> None:
    """Refuse a bias of another type, or one that would enlarge the scores it is added to."""
    if bias.dtype not in (query.dtype, scores.dtype):
        allowed = " or ".join(dict.fromkeys(map(str, (query.dtype, scores.dtype))))
        raise ValueError(f"bias must be of type {allowed} like the query, got {bias.dtype}")
    if not broadcasts_to(bias.shape, scores.shape):
        raise ValueError(
            f"bias must broadcast to the scores, {tuple(scores.shape)}, without enlarging them, got {tuple(bias.shape)}"
        )
    check_same_device(query=query, bias=bias)


def check_changes(
    query: Tensor, scores: Tensor, softcap: float | None, slopes: Tensor | None, sinks: Tensor | None
) -> None:
    """Refuse a cap that is not positive, and slopes or sinks that are not one number for each head of the scores."""
    if softcap is not None:
        check_above("softcap", softcap, 0)
    h = scores.shape[-3] if scores.ndim > 2 else 1
    for name, numbers in {"slopes": slopes, "sinks": sinks}.items():
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
