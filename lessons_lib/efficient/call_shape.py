"""What the variants take: queries, keys and values as attention does, with one rule for the leading axes.

Keys and values share their leading axes with the queries; only over ``(batch, heads, rows, width)`` their number of
heads may be smaller, if it divides that of the queries.
"""

from functools import reduce
from operator import and_

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib import masks
from lessons_lib.rules import Causal, Everything, Rule, conjuncts, hides_whole_keys, rule_over
from lessons_lib.shapes import broadcasts_to, check_floating, check_same_device


def check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse queries, keys and values that do not belong together.

    Raises:
        ValueError: if they differ in type, device or leading axes, if the heads do not divide, if key and query differ
            in width, key and value in number, or if an axis is empty.
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
            "query and key must have the same leading axes, save that over (batch, heads, rows, width) the heads of "
            f"key may divide those of query, got {tuple(query.shape)} and {tuple(key.shape)}"
        )


def check_over_scores(query: Tensor, key: Tensor, mask: Rule | Tensor | None, bias: Tensor | None) -> None:
    """Refuse a mask or a bias that does not lie over the scores of these queries and keys.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention`.
    """
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None:
        rule_over(mask, query.new_empty(()).expand(shape))
    if bias is not None:
        check_same_device(query=query, bias=bias)
        if not broadcasts_to(bias.shape, shape):
            raise ValueError(
                f"bias must broadcast to the scores, {shape}, without enlarging them, got {tuple(bias.shape)}"
            )


def rows_and_columns(over_scores: Tensor, m: int) -> Tensor:
    """View a mask or a bias that broadcasts to the scores with an axis for its rows (maybe 1) and ``m`` columns."""
    over_scores = over_scores if over_scores.ndim > 1 else over_scores.reshape(1, -1)
    return over_scores.expand(*over_scores.shape[:-1], m)


def hidden_from_all(
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None,
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    *,
    causal: bool,
) -> Bool[Tensor, "... 1 m"] | None:
    """Read off a mask which keys no query sees; where weights are never computed one by one, it may say no more.

    With ``causal`` it may repeat that too, as a decoder's mask does: what the last query does not see is hidden from
    all. A table of more than one row is compared with the one it should be, which takes ``n * m`` bytes; a rule is
    read.

    Raises:
        ValueError: if the mask hides a key from one query and shows it to another, apart from causality.
    """
    check_over_scores(query, key, mask, None)
    if mask is None:
        return None
    n, m = query.shape[-2], key.shape[-2]
    if isinstance(mask, Rule):
        parts = [part for part in conjuncts(mask) if not (causal and part == Causal())]
        rest = reduce(and_, parts, Everything())
        if hides_whole_keys(rest):
            return ~rest.tensor(1, m, device=query.device) if parts else None
        mask = mask.tensor(n, m, device=query.device)
    mask = rows_and_columns(mask, m)
    seen = mask[..., -1:, :]
    if mask.shape[-2] > 1:
        order = masks.causal(n, m, device=mask.device) if causal else masks.bidirectional(n, m, device=mask.device)
        if not torch.equal(mask, seen & order):
            raise ValueError(
                "mask must hide each key from all queries or from none"
                f"{', save for what causal=True hides' if causal else ' (for the future there is causal=True)'}, "
                f"got another over {tuple(mask.shape)}; for any other mask use attention"
            )
    return ~seen


def refuse_bias(variant: str, bias: Tensor | None) -> None:
    """Refuse a bias where there are no scores to add it to."""
    if bias is not None:
        raise ValueError(f"bias must be None, {variant} has no scores between queries and keys; use attention")


def refuse_dropout(variant: str, dropout_p: float) -> None:
    """Refuse dropout where there are no weights to drop."""
    if dropout_p:
        raise ValueError(f"dropout_p must be 0, {variant} never holds the weights one by one, got {dropout_p}")
