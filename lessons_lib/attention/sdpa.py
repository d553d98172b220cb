"""Attention computed by PyTorch's fused kernels, which models are trained with.

PyTorch's ``scaled_dot_product_attention`` and :func:`lessons_lib.attention.attention.attention` differ in three ways:
PyTorch's ``is_causal`` aligns the queries with the *first* keys, a fully masked row gives ``NaN``, and a mask cannot be
a rule. :func:`fused_attention` converts the arguments of the latter into those of the former.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from lessons_lib.attention.attention import (
    alibi_bias,
    attention_weights_and_mask,
    check_attention_inputs,
    check_bias,
    check_options,
    check_score_mods,
    declare_weights,
    with_positive_scale,
)
from lessons_lib.attention.rules import Full, Rule, as_band, declare_rule_support, rule_for_scores
from lessons_lib.foundations.validation import promote_half


@declare_rule_support
@declare_weights(attention_weights_and_mask)
def fused_attention(
    query: Float[Tensor, "b h n d_k"],
    key: Float[Tensor, "#b g m d_k"],
    value: Float[Tensor, "#b g m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h n d_v"]:
    """Compute :func:`lessons_lib.attention.attention.attention` with PyTorch's ``scaled_dot_product_attention``.

    The arguments are those of ``attention``. The sums are computed in another order, so the last digits differ. Beside
    a query in half precision, a float32 bias is rounded to the dtype of the query, and so are slopes and sinks.

    Without a mask, and with a causal mask over as many keys as queries, no mask tensor is made. Any other mask takes
    ``n * m`` bytes; a bias, slopes and sinks take a tensor of floating-point numbers. Where that is too much memory,
    use :func:`lessons_lib.flash.interface.flash_attention`.

    Where PyTorch chooses a fused kernel there are first derivatives only; PyTorch raises its own error for others.

    PyTorch's kernels treat NaN differently. Where a mask tensor is made, NaN in a hidden key reaches every query. On a
    CPU, a query whose visible keys are all NaN returns zeros if it has fewer of them than the processor adds in one
    instruction (8 or 16).

    >>> query = torch.randn(2, 8, 5, 64)  # two sequences, eight query heads
    >>> key, value = torch.randn(2, 4, 7, 64), torch.randn(2, 4, 7, 32)  # two query heads share a key/value head
    >>> fused_attention(query, key, value).shape
    torch.Size([2, 8, 5, 32])

    Raises:
        ValueError: as ``attention``; if there are not four axes; if a ``softcap`` is given, which PyTorch's kernels do
            not support.
    """
    check_attention_inputs(query, key, value)
    if not query.ndim == key.ndim == value.ndim == 4:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value must be (batch, heads, rows, width), got {shapes}; use attention")
    if key.shape[1] > query.shape[1]:
        raise ValueError(
            "query must have as many heads as key, or a multiple of them, over (batch, heads, rows, width), got "
            f"{query.shape[1]} and {key.shape[1]}; use attention, which broadcasts a single query head"
        )
    check_options(scale, dropout_p)
    n, m = query.shape[2], key.shape[2]
    scores = promote_half(query.new_empty(())).expand(query.shape[0], query.shape[1], n, m)
    check_score_mods(query, scores, softcap, alibi_slopes, sinks)
    if softcap is not None:
        raise ValueError(
            f"softcap must be None, PyTorch's fused attention caps no scores, got {softcap}; use attention, or "
            "lessons_lib.flash.flash_attention with backend='tiled'"
        )
    if bias is not None:
        check_bias(bias, query, scores)
    if alibi_slopes is not None:
        alibi = alibi_bias(alibi_slopes, scores)
        bias = alibi if bias is None else bias + alibi
    rule = Full() if mask is None else rule_for_scores(mask, scores)
    query, scale = with_positive_scale(query, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    options: dict[str, Any] = {"scale": scale, "dropout_p": dropout_p}
    if query.shape[1] != key.shape[1]:  # a branch, since a compiled graph may hold the numbers of heads as variables
        options["enable_gqa"] = True

    band = as_band(rule, n, m)
    needs_no_mask = band is not None and band.left is None and (band.right is None or (band.right == 0 and n == m))
    if bias is None and sinks is None and band is not None and needs_no_mask:
        return scaled_dot_product_attention(query, key, value, is_causal=band.right == 0, **options)
    visible = rule.to_mask(n, m, device=query.device)
    if bias is not None:
        visible = visible & (bias != -torch.inf)
    # A fully masked row attends to all keys and is set to zero afterwards, so that no kernel divides by zero.
    fully_masked = ~visible.any(dim=-1, keepdim=True)
    if bias is None and sinks is None:
        attn_mask = visible | fully_masked
    else:
        attn_mask = query.new_zeros(1, 1) if bias is None else bias.to(query.dtype)
        attn_mask = attn_mask.masked_fill(~visible, -torch.inf).masked_fill(fully_masked, 0.0)
    if sinks is not None:  # one additional key with score zero and value zero; its bias is the sink of the head
        column = sinks.to(query.dtype).reshape(-1, 1, 1)
        heads = torch.broadcast_shapes(attn_mask.shape[:-2], column.shape[:-2])
        attn_mask = torch.cat([attn_mask.expand(*heads, n, m), column.expand(*heads, n, 1)], dim=-1)
        key, value = (pad(x, (0, 0, 0, 1)) for x in (key, value))
    out = scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)
    return out.masked_fill(fully_masked, 0.0)
