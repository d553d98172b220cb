r"""Linear attention [1]_: the similarity of query and key is a product of features, so the keys can be added up first.

Attention averages values with weights :math:`e^{q_i \cdot k_j}`. With :math:`\phi(q_i) \cdot \phi(k_j)` in their place,

.. math:: o_i = \frac{\sum_j \left(\phi(q_i) \cdot \phi(k_j)\right) v_j}{\sum_j \phi(q_i) \cdot \phi(k_j)}
              = \frac{\phi(q_i)^\top S}{\phi(q_i)^\top z}, \qquad
              S = \sum_j \phi(k_j)\, v_j^\top, \quad z = \sum_j \phi(k_j),

and :math:`S` and :math:`z` do not depend on the query. The denominator belongs to it: without it nothing makes the
weights sum to one. Causal, the sums run to :math:`j \le i`: a recurrent network whose state is :math:`(S, z)`.

.. [1] Katharopoulos et al., *Transformers are RNNs*, 2020. arXiv:2006.16236.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention import Pattern, declares_pattern, for_each_query_head
from lessons_lib.efficient.call_shape import (
    check_heads,
    hidden_from_all,
    refuse_bias,
    refuse_dropout,
)
from lessons_lib.rules import Causal, Rule, as_rule, takes_rules
from lessons_lib.shapes import at_least_single, check_floating

# Between the sums, attention inside a chunk is written out: CHUNK x CHUNK weights a head.
CHUNK = 128


def elu_plus_one(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    r"""Return the features of the paper: positive, and with a gradient on both sides of zero.

    .. math:: \phi(x) = \operatorname{elu}(x) + 1 = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0 \end{cases}

    Raises:
        ValueError: if ``x`` does not hold floating-point numbers.
    """
    check_floating(x=x)
    # Written as elu(x) + 1, a very negative x would leave nothing but rounding; the clamp is for the unused branch.
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


class LinearState(NamedTuple):
    r"""What linear attention remembers of the keys and values so far: :math:`(S, z)`.

    :math:`r (d_v + 1)` numbers for each query head and sequence, :math:`r` being the number of features, however long
    the sequence. A cache of :math:`n` keys and values holds :math:`n (d_k + d_v)`.
    """

    value_sum: Float[Tensor, "*batch r d_v"]
    feature_sum: Float[Tensor, "*batch r"]

    @property
    def n_bytes(self) -> int:
        """Memory that the state takes."""
        return sum(part.numel() * part.element_size() for part in self)


def pattern_by_one_hot_values(
    attend: Callable[..., Tensor],
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    mask: Rule | Tensor | None,
    *,
    causal: bool,
    **options: Any,
) -> Pattern:
    """Return the weights of an attention that never holds them: its output for the rows of the identity as values.

    This takes ``n * m`` numbers.
    """
    n, m = query.shape[-2], key.shape[-2]
    one_hot = torch.eye(m, dtype=key.dtype, device=key.device).expand(*key.shape[:-1], m)
    weights = attend(query, key, one_hot, mask, causal=causal, **options)
    visible = torch.ones_like(weights, dtype=torch.bool)
    for rule in ([Causal()] if causal else []) + ([] if mask is None else [as_rule(mask, m)]):
        visible = visible & rule.tensor(n, m, device=weights.device)
    return Pattern(weights, visible)


def _pattern(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, causal: bool = False, **options: Any
) -> Pattern:
    return pattern_by_one_hot_values(linear_attention, query, key, mask, causal=causal, **options)


@takes_rules
@declares_pattern(_pattern)
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

    Not an approximation of softmax attention, another attention: how far it lies from the first is an experiment.
    Causal, it goes chunk by chunk: inside one, the weights are written out; what came before is in the state. A query
    that sees no key returns zeros. Half precision is computed in float32.

    Args:
        mask: may hide keys from all queries alike, and repeat what ``causal`` says: a table, or a rule such as
            ``Causal() & Padding(lengths)``.
        causal: hide what comes after a query; with more keys than queries these are the last positions.
        feature_map: :math:`\phi`, from ``(..., d_k)`` to ``(..., r)``, not negative. To scale scores, scale inside it.
        scale, bias, dropout_p: must be left as they are, there are no scores and no weights to apply them to.

    Raises:
        ValueError: if shapes, types or devices do not fit, for any other mask, a scale, a bias or dropout, or if causal
            and there are fewer keys than queries.
    """
    check_heads(query, key, value)
    if scale is not None:
        raise ValueError(f"scale must be None, linear attention has no scores; scale inside feature_map, got {scale}")
    refuse_bias("linear attention", bias)
    refuse_dropout("linear attention", dropout_p)
    hidden = hidden_from_all(mask, query, key, causal=causal)
    query_features, key_features = feature_map(at_least_single(query)), feature_map(at_least_single(key))
    key_features = for_each_query_head(key_features, query)
    if hidden is not None:
        key_features = key_features.masked_fill(hidden.mT, 0.0)
    values = at_least_single(for_each_query_head(value, query))
    return average_by_features(query_features, key_features, values, causal=causal).to(query.dtype)


def linear_attention_step(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv n d_k"],
    value: Float[Tensor, "*batch_kv n d_v"],
    state: LinearState | None = None,
    *,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
) -> tuple[Float[Tensor, "*batch n d_v"], LinearState]:
    r"""Take causal linear attention ``n`` positions further, and return the outputs with the state after them.

    .. math:: S_i = S_{i-1} + \phi(k_i)\, v_i^\top, \qquad z_i = z_{i-1} + \phi(k_i), \qquad
              o_i = \frac{\phi(q_i)^\top S_i}{\phi(q_i)^\top z_i}

    The state is updated before it is read, since a query sees its own key. In steps of any size the outputs are those
    of :func:`linear_attention` with ``causal``; a step makes ``n * n`` weights, so a long prompt is taken in pieces.

    Args:
        state: what the step before returned; ``None`` at the beginning. It is not changed.

    Raises:
        ValueError: if shapes, types or devices do not fit, those of the state included.
    """
    check_heads(query, key, value)
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f"a step takes a key with each query, got {query.shape[-2]} queries and {key.shape[-2]} keys")
    query_features, key_features = feature_map(at_least_single(query)), feature_map(at_least_single(key))
    key_features = for_each_query_head(key_features, query)
    values = at_least_single(for_each_query_head(value, query))
    nothing = _absorb(key_features[..., :0, :], values[..., :0, :])
    if state is not None:
        check_floating(key_features=key_features, **state._asdict())
        for name, given, expected in zip(LinearState._fields, state, nothing, strict=True):
            if given.shape != expected.shape:
                raise ValueError(
                    f"the state's {name} must be {tuple(expected.shape)}, got {tuple(given.shape)}; "
                    "a new batch begins with state=None"
                )
    out, state = _step(query_features, key_features, values, nothing if state is None else state)
    return out.to(query.dtype), state


def average_by_features(
    query_features: Float[Tensor, "*batch n r"],
    key_features: Float[Tensor, "*batch_kv m r"],
    value: Float[Tensor, "*batch_kv m d_v"],
    *,
    causal: bool = False,
    log_scale: Float[Tensor, "*batch_kv m"] | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Average the values, given the features themselves: what linear attention and Performer share.

    Not causal, the largest thing made is :math:`S`, :math:`r \times d_v`. Causal, autograd keeps one :math:`S` for
    each chunk of 128 positions: linear in the length, where one for each position would be 128 times as much.

    Args:
        log_scale: for causal averages of features that vary over many orders of magnitude: the features of key ``j``
            are those given times ``exp(log_scale[j])``. It must not decrease from key to key. Query ``i`` divides by
            ``exp(log_scale[i])``, so that nothing overflows and no query depends on later keys. No gradient flows
            through it.

    Raises:
        ValueError: if the features, values or scales do not fit, if causal and there are fewer keys than queries, or if
            scales are given and not causal.
    """
    check_heads(query_features, key_features, value)
    query_features, key_features, value = (at_least_single(rows) for rows in (query_features, key_features, value))
    key_features, value = (for_each_query_head(rows, query_features) for rows in (key_features, value))
    if log_scale is not None and (not causal or log_scale.shape != key_features.shape[:-1]):
        raise ValueError(
            f"log_scale must come with causal=True and be one number for each key, {tuple(key_features.shape[:-1])}, "
            f"got causal={causal} and {tuple(log_scale.shape)}"
        )
    if not causal:
        return _read(query_features, _absorb(key_features, value))
    n, m = query_features.shape[-2], key_features.shape[-2]
    if n > m:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    earlier = [m - n, n]
    (key_before, key_features), (value_before, value) = key_features.split(earlier, -2), value.split(earlier, -2)
    if log_scale is None:
        scales: list[Tensor | None] = [None] * -(-n // CHUNK)
    else:
        scale_before, log_scale = log_scale.detach().split(earlier, -1)
        # The scale of the state: that of the last key in it. An empty state has none, and its first one will do.
        last = torch.cat([scale_before, log_scale[..., :1]], dim=-1)[..., max(m - n - 1, 0), None]
        key_before = key_before * (scale_before - last).exp()[..., None]
        scales = [torch.cat([last, log_scale], dim=-1)[..., i : i + CHUNK + 1] for i in range(0, n, CHUNK)]
    state = _absorb(key_before, value_before)
    outs = []
    chunks = (rows.split(CHUNK, dim=-2) for rows in (query_features, key_features, value))
    for q, k, v, scale in zip(*chunks, scales, strict=True):
        out, state = _step(q, k, v, state, scale)
        outs.append(out)
    return torch.cat(outs, dim=-2)


# --- parts ----------------------------------------------------------------------------------------------------------


def _absorb(key_features: Tensor, value: Tensor) -> LinearState:
    return LinearState(key_features.mT @ value, key_features.sum(dim=-2))


def _read(query_features: Tensor, state: LinearState) -> Tensor:
    return _divide(query_features @ state.value_sum, query_features @ state.feature_sum[..., None])


def _step(
    query_features: Tensor, key_features: Tensor, value: Tensor, state: LinearState, log_scale: Tensor | None = None
) -> tuple[Tensor, LinearState]:
    """The outputs of the next positions, which see one another causally and all before them; and the state after.

    ``log_scale`` holds the scale of the state, and those of the keys.
    """
    weights = (query_features @ key_features.mT).tril()
    queries, keys, kept = query_features, key_features, state
    if log_scale is not None:
        before, here, last = log_scale[..., :1], log_scale[..., 1:], log_scale[..., -1:]
        # Scales do not decrease, so the exponents of keys that are seen are at most 0.
        weights = weights * (here[..., None, :] - here[..., :, None]).tril().exp()
        queries = query_features * (before - here).exp()[..., None]
        keys = key_features * (here - last).exp()[..., None]
        left = (before - last).exp()
        kept = LinearState(left[..., None] * state.value_sum, left * state.feature_sum)
    averaged = queries @ state.value_sum + weights @ value
    total = queries @ state.feature_sum[..., None] + weights.sum(dim=-1, keepdim=True)
    added = _absorb(keys, value)
    after = LinearState(kept.value_sum + added.value_sum, kept.feature_sum + added.feature_sum)
    return _divide(averaged, total), after


def _divide(averaged: Tensor, total: Tensor) -> Tensor:
    return averaged / total.masked_fill(total == 0, 1.0)
