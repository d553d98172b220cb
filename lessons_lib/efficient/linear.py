r"""Linear attention [1]_: the weight of a key is a product of features, so sums over the keys are computed first.

Softmax attention averages values with weights proportional to :math:`e^{q_i \cdot k_j}`. Linear attention replaces
them by :math:`\phi(q_i) \cdot \phi(k_j)`:

.. math:: o_i = \frac{\sum_j \left(\phi(q_i) \cdot \phi(k_j)\right) v_j}{\sum_j \phi(q_i) \cdot \phi(k_j)}
              = \frac{\phi(q_i)^\top S}{\phi(q_i)^\top z}, \qquad
              S = \sum_j \phi(k_j)\, v_j^\top, \quad z = \sum_j \phi(k_j),

where :math:`S` and :math:`z` do not depend on the query. The denominator makes the weights sum to one. Causal linear
attention sums over :math:`j \le i`: it is a recurrent network with the state :math:`(S, z)`.

.. [1] Katharopoulos et al., *Transformers are RNNs*, 2020. arXiv:2006.16236.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.attention import WeightsAndMask, declare_weights, repeat_kv
from lessons_lib.attention.rules import Causal, Rule, as_rule, declare_rule_support
from lessons_lib.efficient.validation import (
    check_heads,
    check_no_bias,
    check_no_dropout,
    hidden_keys,
)
from lessons_lib.foundations.validation import check_floating, promote_half

# Inside a chunk of positions the weights are computed as a matrix: _CHUNK x _CHUNK weights for each head.
_CHUNK = 128


def elu_plus_one(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    r"""Return the feature map of the paper: positive, and with a nonzero gradient on both sides of zero.

    .. math:: \phi(x) = \operatorname{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases}

    ::

        >>> elu_plus_one(torch.tensor([0.0, 2.0]))
        tensor([1., 3.])

    Raises:
        ValueError: if ``x`` does not hold floating-point numbers.
    """
    check_floating(x=x)
    # elu(x) + 1 would round to 0 for very negative x. The clamp keeps the unused branch finite.
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


class LinearState(NamedTuple):
    r"""The state of causal linear attention after the keys and values so far: :math:`(S, z)`.

    It has :math:`r (d_v + 1)` numbers for each query head and sequence, with :math:`r` features, for any sequence
    length. A KV cache of :math:`n` keys and values has :math:`n (d_k + d_v)` numbers.
    """

    value_sum: Float[Tensor, "*batch r d_v"]
    feature_sum: Float[Tensor, "*batch r"]

    @property
    def n_bytes(self) -> int:
        """Memory of the state in bytes."""
        return sum(part.numel() * part.element_size() for part in self)


def weights_by_one_hot_values(
    attend: Callable[..., Tensor],
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    mask: Rule | Tensor | None,
    *,
    causal: bool,
    **options: Any,
) -> WeightsAndMask:
    """Return the weights of an attention that never computes them: its output if the values are the identity matrix.

    The result has ``n * m`` numbers for each head.

    Args:
        attend: the attention function.
        query, key, mask, causal, options: its arguments.
    """
    n, m = query.shape[-2], key.shape[-2]
    one_hot = torch.eye(m, dtype=key.dtype, device=key.device).expand(*key.shape[:-1], m)
    weights = attend(query, key, one_hot, mask, causal=causal, **options)
    visible = torch.ones_like(weights, dtype=torch.bool)
    for rule in ([Causal()] if causal else []) + ([] if mask is None else [as_rule(mask, m)]):
        visible = visible & rule.to_mask(n, m, device=weights.device)
    return WeightsAndMask(weights, visible)


def _weights_and_mask(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, causal: bool = False, **options: Any
) -> WeightsAndMask:
    return weights_by_one_hot_values(linear_attention, query, key, mask, causal=causal, **options)


@declare_rule_support
@declare_weights(_weights_and_mask)
def linear_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Tensor | None = None,
    *,
    causal: bool = False,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
    scale: float | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Average the values with weights proportional to :math:`\phi(q_i) \cdot \phi(k_j)`, in time linear in the length.

    It is a different attention, not an approximation of softmax attention; their distance has to be measured. Causal
    linear attention is computed in chunks of positions: inside a chunk the weights are a matrix, and the state holds
    the earlier positions. A query without visible keys returns zeros. Half precision is computed in float32.

    ::

        >>> q, k, v = torch.randn(2, 8, 500, 64), torch.randn(2, 4, 500, 64), torch.randn(2, 4, 500, 32)
        >>> linear_attention(q, k, v, causal=True).shape
        torch.Size([2, 8, 500, 32])

    Args:
        query, key, value: as :func:`lessons_lib.attention.attention.attention`.
        mask: may hide keys from all queries alike, and may contain the causal mask if ``causal``: a table, or a rule
            such as ``Causal() & Padding(lengths)``.
        causal: hide the keys after a query; with more keys than queries, the queries are the last positions.
        feature_map: :math:`\phi`, from ``(..., d_k)`` to ``(..., r)``, not negative. To scale scores, scale inside it.
        scale, bias, dropout_p: not supported, because there are no scores and no weight matrix; keep the defaults.

    Raises:
        ValueError: if shapes, types or devices do not match, for any other mask, a scale, a bias or dropout, or if
            causal and there are fewer keys than queries.
    """
    check_heads(query, key, value)
    if scale is not None:
        raise ValueError(f"scale must be None, linear attention has no scores; scale inside feature_map, got {scale}")
    check_no_bias("linear attention", bias)
    check_no_dropout("linear attention", dropout_p)
    hidden = hidden_keys(mask, query, key, causal=causal)
    query_features, key_features = feature_map(promote_half(query)), feature_map(promote_half(key))
    key_features = repeat_kv(key_features, query)
    if hidden is not None:
        key_features = key_features.masked_fill(hidden.mT, 0.0)
    values = promote_half(repeat_kv(value, query))
    return average_by_features(query_features, key_features, values, causal=causal).to(query.dtype)


def linear_attention_step(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv n d_k"],
    value: Float[Tensor, "*batch_kv n d_v"],
    state: LinearState | None = None,
    *,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
) -> tuple[Float[Tensor, "*batch n d_v"], LinearState]:
    r"""Continue causal linear attention by ``n`` positions, and return their outputs and the new state.

    .. math:: S_i = S_{i-1} + \phi(k_i)\, v_i^\top, \qquad z_i = z_{i-1} + \phi(k_i), \qquad
              o_i = \frac{\phi(q_i)^\top S_i}{\phi(q_i)^\top z_i}

    The state is updated before it is read, because a query attends to its own key. With steps of any size the outputs
    equal those of :func:`linear_attention` with ``causal``. A step computes ``n * n`` weights, so split a long prompt
    into several steps.

    ::

        >>> q, k, v = torch.randn(3, 2, 8, 1, 64)  # one token
        >>> out, state = linear_attention_step(q, k, v)
        >>> out.shape, state.value_sum.shape
        (torch.Size([2, 8, 1, 64]), torch.Size([2, 8, 64, 64]))

    Args:
        query, key, value: of the new positions.
        state: the state that the previous step returned; ``None`` for the first step. It is not modified.
        feature_map: as :func:`linear_attention`.

    Raises:
        ValueError: if shapes, types or devices do not match, including those of the state.
    """
    check_heads(query, key, value)
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f"query and key must have the same number of rows, got {query.shape[-2]} and {key.shape[-2]}")
    query_features, key_features = feature_map(promote_half(query)), feature_map(promote_half(key))
    key_features = repeat_kv(key_features, query)
    values = promote_half(repeat_kv(value, query))
    empty = _state_of(key_features[..., :0, :], values[..., :0, :])
    if state is not None:
        check_floating(key_features=key_features, **state._asdict())
        for name, given, expected in zip(LinearState._fields, state, empty, strict=True):
            if given.shape != expected.shape:
                raise ValueError(
                    f"the state's {name} must be {tuple(expected.shape)}, got {tuple(given.shape)}; "
                    "a new batch begins with state=None"
                )
    out, state = _causal_chunk(query_features, key_features, values, empty if state is None else state)
    return out.to(query.dtype), state


def average_by_features(
    query_features: Float[Tensor, "*batch n r"],
    key_features: Float[Tensor, "*batch_kv m r"],
    value: Float[Tensor, "*batch_kv m d_v"],
    *,
    causal: bool = False,
    log_scale: Float[Tensor, "*batch_kv m"] | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Average the values with weights from given features, the common part of linear attention and Performer.

    If not causal, the largest intermediate tensor is :math:`S`, of size :math:`r \times d_v`. If causal, autograd keeps
    one :math:`S` for each chunk of 128 positions. This is linear in the length; one :math:`S` for each position would
    take 128 times as much memory.

    ::

        >>> query_features, key_features, value = torch.rand(5, 6), torch.rand(7, 6), torch.randn(7, 3)
        >>> average_by_features(query_features, key_features, value).shape
        torch.Size([5, 3])

    Args:
        query_features, key_features: :math:`\phi` of the queries and keys, not negative.
        value: the values.
        causal: hide the keys after a query; with more keys than queries, the queries are the last positions.
        log_scale: for causal averages of features that vary over many orders of magnitude: the actual features of key
            ``j`` are the given ones times ``exp(log_scale[j])``. It must not decrease from key to key. Query ``i``
            divides by ``exp(log_scale[i])``, so that nothing overflows and no query depends on later keys. No gradient
            flows through it.

    Raises:
        ValueError: if the shapes of features, values or scales do not match, if causal and there are fewer keys than
            queries, or if scales are given and not causal.
    """
    check_heads(query_features, key_features, value)
    query_features, key_features, value = (promote_half(rows) for rows in (query_features, key_features, value))
    key_features, value = (repeat_kv(rows, query_features) for rows in (key_features, value))
    if log_scale is not None and (not causal or log_scale.shape != key_features.shape[:-1]):
        raise ValueError(
            f"log_scale must come with causal=True and be one number for each key, {tuple(key_features.shape[:-1])}, "
            f"got causal={causal} and {tuple(log_scale.shape)}"
        )
    if not causal:
        return _read_state(query_features, _state_of(key_features, value))
    n, m = query_features.shape[-2], key_features.shape[-2]
    if n > m:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    earlier = [m - n, n]
    (key_before, key_features), (value_before, value) = key_features.split(earlier, -2), value.split(earlier, -2)
    if log_scale is None:
        scales: list[Tensor | None] = [None] * -(-n // _CHUNK)
    else:
        scale_before, log_scale = log_scale.detach().split(earlier, -1)
        # The state has the scale of its last key. An empty state takes the scale of the first key.
        last = torch.cat([scale_before, log_scale[..., :1]], dim=-1)[..., max(m - n - 1, 0), None]
        key_before = key_before * (scale_before - last).exp()[..., None]
        scales = [torch.cat([last, log_scale], dim=-1)[..., i : i + _CHUNK + 1] for i in range(0, n, _CHUNK)]
    state = _state_of(key_before, value_before)
    outs = []
    chunks = (rows.split(_CHUNK, dim=-2) for rows in (query_features, key_features, value))
    for q, k, v, scale in zip(*chunks, scales, strict=True):
        out, state = _causal_chunk(q, k, v, state, scale)
        outs.append(out)
    return torch.cat(outs, dim=-2)


# --- parts ----------------------------------------------------------------------------------------------------------


def _state_of(key_features: Tensor, value: Tensor) -> LinearState:
    return LinearState(key_features.mT @ value, key_features.sum(dim=-2))


def _read_state(query_features: Tensor, state: LinearState) -> Tensor:
    return _divide(query_features @ state.value_sum, query_features @ state.feature_sum[..., None])


def _causal_chunk(
    query_features: Tensor, key_features: Tensor, value: Tensor, state: LinearState, log_scale: Tensor | None = None
) -> tuple[Tensor, LinearState]:
    """Return the outputs of the next positions and the new state.

    The positions attend to the state and causally to each other.
    ``log_scale`` holds the scale of the state, followed by the scales of the keys.
    """
    weights = (query_features @ key_features.mT).tril()
    queries, keys, kept = query_features, key_features, state
    if log_scale is not None:
        before, here, last = log_scale[..., :1], log_scale[..., 1:], log_scale[..., -1:]
        # Scales do not decrease, so the exponents of visible keys are at most 0.
        weights = weights * (here[..., None, :] - here[..., :, None]).tril().exp()
        queries = query_features * (before - here).exp()[..., None]
        keys = key_features * (here - last).exp()[..., None]
        left = (before - last).exp()
        kept = LinearState(left[..., None] * state.value_sum, left * state.feature_sum)
    averaged = queries @ state.value_sum + weights @ value
    total = queries @ state.feature_sum[..., None] + weights.sum(dim=-1, keepdim=True)
    added = _state_of(keys, value)
    after = LinearState(kept.value_sum + added.value_sum, kept.feature_sum + added.feature_sum)
    return _divide(averaged, total), after


def _divide(averaged: Tensor, total: Tensor) -> Tensor:
    return averaged / total.masked_fill(total == 0, 1.0)
