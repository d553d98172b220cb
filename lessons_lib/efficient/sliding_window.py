"""Sliding window attention that skips: each block of queries meets the keys within its reach, and no others."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention import Pattern, attention_pattern, declares_pattern
from lessons_lib.efficient.call_shape import check_over_scores
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.rules import Causal, Rule, Window, as_rule, takes_rules

BLOCK = 128


def _pattern(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, window: int, causal: bool = True, **options: Any
) -> Pattern:
    return attention_pattern(query, key, _rule(window, causal, mask, key.shape[-2]), **options)


@takes_rules
@declares_pattern(_pattern)
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
    r"""Attend to the neighbours alone: attention under ``masks.sliding_window``, without the scores that it hides.

    .. math:: o_i = \sum_{j \in W_i} a_{ij} v_j, \qquad
              W_i = \{j : i - w < j \le i\} \text{ or, not causal, } \{j : |i - j| < w\}

    It is :func:`~lessons_lib.efficient.skipping.skipping_attention` by the rule ``Causal() & Window(window)``, in
    blocks of :math:`B = 128`: at most :math:`n (w + 2B)` scores instead of :math:`n^2`, twice as many on two sides.

    With more keys than queries, the queries are the last positions, as when decoding with a cache, and what lies
    before the first window is not looked at.

    Args:
        mask: hides more than the window does: a rule, or a Boolean table, which is itself quadratic.
        window: number of visible keys, the query's own included, counted to each side that is visible.
        causal: hide what comes after a query.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention`.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention`, if the leading axes differ by more than grouped heads,
            if there are fewer keys than queries, or if ``window`` is not a positive integer.
    """
    check_over_scores(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    if n > m > 0:
        raise ValueError(f"n queries cannot be the last positions of fewer keys: n must be at most m, got {n} and {m}")
    rule = _rule(window, causal, mask, m)
    return skipping_attention(query, key, value, rule, block=BLOCK, scale=scale, bias=bias, dropout_p=dropout_p)


# --- parts ----------------------------------------------------------------------------------------------------------


def _rule(window: int, causal: bool, mask: Rule | Tensor | None, m: int) -> Rule:
    rule = Causal() & Window(window) if causal else Window(window)
    return rule if mask is None else rule & as_rule(mask, m)
