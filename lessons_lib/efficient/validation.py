"""Checks of the arguments that all efficient variants share.

Queries, keys and values must have the same leading axes, with one exception: over ``(batch, heads, rows, width)`` the
keys and values may have fewer heads, if their number of heads divides the queries' number of heads.
"""

from functools import reduce
from operator import and_

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention import masks
from lessons_lib.attention.rules import Causal, Full, Rule, conjuncts, hides_whole_keys, rule_for_scores
from lessons_lib.foundations.validation import broadcasts_to, check_floating, check_same_device


def check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that queries, keys and values have matching shapes, types and devices.

    Raises:
        ValueError: if they differ in type, device or leading axes, if the number of key heads does not divide the
            number of query heads, if key and query differ in width, if key and value differ in their number of rows,
            or if an axis is empty.
    """
    check_floating(query=query, key=key, value=value)
    for name, rows in {"query": query, "key": key, "value": value}.items():
        if rows.ndim < 2 or not rows.numel():
            raise ValueError(f"{name} must be (*batch, rows, width), each at least 1, got {tuple(rows.shape)}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same width, got {query.shape[-1]} and {key.shape[-1]}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            "key and value must have the same leading axes and number of rows, "
            f"got {tuple(key.shape)} and {tuple(value.shape)}"
        )
    *outer, h = 1, *query.shape[:-2]
    *outer_kv, g = 1, *key.shape[:-2]
    grouped = query.ndim > 3 and h % g == 0
    if query.ndim != key.ndim or outer != outer_kv or not (h == g or grouped):
        raise ValueError(
            "query and key must have the same leading axes, except that over (batch, heads, rows, width) the number "
            f"of key heads may divide the number of query heads, got {tuple(query.shape)} and {tuple(key.shape)}"
        )


def check_mask_and_bias(query: Tensor, key: Tensor, mask: Rule | Tensor | None, bias: Tensor | None) -> None:
    """Check that the mask and the bias broadcast to the scores of these queries and keys.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention.attention`.
    """
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None:
        rule_for_scores(mask, query.new_empty(()).expand(shape))
    if bias is not None:
        check_same_device(query=query, bias=bias)
        if not broadcasts_to(bias.shape, shape):
            raise ValueError(
                f"bias must broadcast to the scores, {shape}, without enlarging them, got {tuple(bias.shape)}"
            )


def expand_columns(over_scores: Tensor, m: int) -> Tensor:
    """Expand the last axis of a mask or a bias to ``m`` columns; its row axis keeps its size, which may be 1."""
    over_scores = over_scores if over_scores.ndim > 1 else over_scores.reshape(1, -1)
    return over_scores.expand(*over_scores.shape[:-1], m)


def hidden_keys(
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None,
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    *,
    causal: bool,
) -> Bool[Tensor, "... 1 m"] | None:
    """Return the keys that the mask hides from all queries, the only masks that linear variants support.

    With ``causal``, the mask may also contain the causal mask, as a decoder's mask does. Then the row of the last
    query gives the hidden keys. A rule is decided without a table if it hides whole keys. Otherwise the mask is
    compared with the expected one, which takes ``n * m`` bytes.

    Returns:
        True where a key is hidden; None if no key is.

    Raises:
        ValueError: if the mask hides a key from one query and not from another, except where ``causal`` hides it.
    """
    check_mask_and_bias(query, key, mask, None)
    if mask is None:
        return None
    n, m = query.shape[-2], key.shape[-2]
    if isinstance(mask, Rule):
        parts = [part for part in conjuncts(mask) if not (causal and part == Causal())]
        rest = reduce(and_, parts, Full())
        if hides_whole_keys(rest):
            return ~rest.to_mask(1, m, device=query.device) if parts else None
        mask = mask.to_mask(n, m, device=query.device)
    mask = expand_columns(mask, m)
    seen = mask[..., -1:, :]
    if mask.shape[-2] > 1:
        order = masks.causal(n, m, device=mask.device) if causal else masks.bidirectional(n, m, device=mask.device)
        if not torch.equal(mask, seen & order):
            raise ValueError(
                "mask must hide each key from all queries or from none"
                f"{', except for the keys that causal=True hides' if causal else ' (causal=True hides the future)'}, "
                f"got another mask over {tuple(mask.shape)}; for any other mask use attention"
            )
    return ~seen


def check_no_bias(variant: str, bias: Tensor | None) -> None:
    """Raise ``ValueError`` if a bias is given to a variant that has no scores."""
    if bias is not None:
        raise ValueError(f"bias must be None, {variant} has no scores between queries and keys; use attention")


def check_no_dropout(variant: str, dropout_p: float) -> None:
    """Raise ``ValueError`` if dropout is given to a variant that never computes the weights."""
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, {variant} never computes the weights, got {dropout_p}")
