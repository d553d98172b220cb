"""Sliding-window attention that computes the blocks of scores inside the window only."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention.attention import WeightsAndMask, attention_weights_and_mask, declare_weights
from lessons_lib.attention.rules import Causal, Rule, Window, as_rule, declare_rule_support
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.efficient.validation import check_mask_and_bias

_BLOCK = 128


def _weights_and_mask(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, window: int, causal: bool = True, **options: Any
) -> WeightsAndMask:
    return attention_weights_and_mask(query, key, _rule(window, causal, mask, key.shape[-2]), **options)


@declare_rule_support
@declare_weights(_weights_and_mask)
def sliding_window_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    window: int,
    causal: bool = True,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Compute attention under ``masks.sliding_window`` without the blocks of scores that the mask hides.

    .. math:: o_i = \sum_{j \in W_i} a_{ij} v_j, \qquad
              W_i = \{j : i - w < j \le i\} \text{ or, not causal, } \{j : |i - j| < w\}

    This is :func:`~lessons_lib.efficient.skipping.skipping_attention` with the rule ``Causal() & Window(window)``, or
    ``Window(window)`` if not causal, in blocks of :math:`B = 128`. It computes at most :math:`n (w + 2B)` scores
    instead of :math:`n^2`, and twice as many if not causal.

    With more keys than queries, the queries are the last positions, as in decoding with a KV cache. Keys before the
    window of the first query are skipped.

    ::

        >>> import torch
        >>> q, k, v = torch.randn(2, 8, 1, 64), torch.randn(2, 4, 300, 64), torch.randn(2, 4, 300, 64)
        >>> sliding_window_attention(q, k, v, window=100).shape  # one decoding step, grouped heads
        torch.Size([2, 8, 1, 64])

    Args:
        query, key, value: as :func:`lessons_lib.attention.attention.attention`.
        mask: hides further keys: a rule, or a Boolean table, which takes quadratic memory itself.
        window: number of visible keys on each visible side, including the query's own.
        causal: hide the keys after a query.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention.attention`.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention.attention`, if the leading axes differ by more than
            grouped heads, if there are fewer keys than queries, or if ``window`` is not a positive integer.
    """
    check_mask_and_bias(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    if n > m > 0:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    rule = _rule(window, causal, mask, m)
    return skipping_attention(query, key, value, rule, block=_BLOCK, scale=scale, bias=bias, dropout_p=dropout_p)


# --- parts ----------------------------------------------------------------------------------------------------------


def _rule(window: int, causal: bool, mask: Rule | Tensor | None, m: int) -> Rule:
    rule = Causal() & Window(window) if causal else Window(window)
    return rule if mask is None else rule & as_rule(mask, m)
