"""The same attention by PyTorch's own fused kernels: what models are trained with.

``scaled_dot_product_attention`` differs from :func:`lessons_lib.attention.attention` in what it takes: its
``is_causal`` aligns queries to the *first* keys, a row that may see nothing is ``NaN``, it knows no rules.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from lessons_lib.attention import (
    attention_pattern,
    check_attention_inputs,
    check_bias,
    check_changes,
    check_options,
    declares_pattern,
    distance_bias,
    with_positive_scale,
)
from lessons_lib.rules import Everything, Rule, as_band, rule_over, takes_rules
from lessons_lib.shapes import at_least_single


@takes_rules
@declares_pattern(attention_pattern)
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
    slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
) -> Float[Tensor, "b h n d_v"]:
    """Return what :func:`lessons_lib.attention.attention` does, arguments as there, from one fused operation.

    The order of additions differs, so the last digits do; a float32 bias beside queries in half precision is rounded to
    theirs, and so are slopes and sinks. No mask and a causal one over as many keys as queries cost no table; any other
    mask takes its ``n * m`` bytes, a bias, slopes and sinks a table of numbers, and where that is too much there is
    :func:`lessons_lib.flash.flash_attention`. Where PyTorch takes a fused
    kernel there are first derivatives only, and it raises its own error for others.

    Its kernels treat NaN in other ways: where a table is made, NaN in a hidden key reaches every query; and on a CPU a
    query that sees nothing but NaN gives zeros if it sees fewer keys than the processor adds up at once (8 or 16).

    Raises:
        ValueError: as ``attention``, if there are not four axes, or for a ``softcap``, which PyTorch's kernels lack.
    """
    check_attention_inputs(query, key, value)
    if not query.ndim == key.ndim == value.ndim == 4:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value must be (batch, heads, rows, width), got {shapes}; use attention")
    if key.shape[1] > query.shape[1]:
        raise ValueError(
            "query must have as many heads as key, or a multiple of them, over (batch, heads, rows, width), got "
            f"{query.shape[1]} and {key.shape[1]}; use attention, which gives one query head to all"
        )
    check_options(scale, dropout_p)
    n, m = query.shape[2], key.shape[2]
    scores = at_least_single(query.new_empty(())).expand(query.shape[0], query.shape[1], n, m)
    check_changes(query, scores, softcap, slopes, sinks)
    if softcap is not None:
        raise ValueError(
            f"softcap must be None, PyTorch's fused attention caps no scores, got {softcap}; use attention, or "
            "lessons_lib.flash.flash_attention with backend='tiled'"
        )
    if bias is not None:
        check_bias(bias, query, scores)
    if slopes is not None:
        distance = distance_bias(slopes, scores)
        bias = distance if bias is None else bias + distance
    rule = Everything() if mask is None else rule_over(mask, scores)
    query, scale = with_positive_scale(query, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    options = {"scale": scale, "dropout_p": dropout_p, "enable_gqa": query.shape[1] != key.shape[1]}

    band = as_band(rule, n, m)
    is_square = band is not None and band.left is None and (band.right is None or (band.right == 0 and n == m))
    if bias is None and sinks is None and band is not None and is_square:
        return scaled_dot_product_attention(query, key, value, is_causal=band.right == 0, **options)
    seen = rule.tensor(n, m, device=query.device)
    if bias is not None:
        seen = seen & (bias != -torch.inf)
    # A row that may see nothing sees everything and is then erased, so that no kernel divides by zero.
    empty = ~seen.any(dim=-1, keepdim=True)
    if bias is None and sinks is None:
        given = seen | empty
    else:
        added = query.new_zeros(1, 1) if bias is None else bias.to(query.dtype)
        given = added.masked_fill(~seen, -torch.inf).masked_fill(empty, 0.0)
    if sinks is not None:  # one key more, of score zero and value zero, to which each head adds its sink
        column = sinks.to(query.dtype).reshape(-1, 1, 1)
        heads = torch.broadcast_shapes(given.shape[:-2], column.shape[:-2])
        given = torch.cat([given.expand(*heads, n, m), column.expand(*heads, n, 1)], dim=-1)
        key, value = (pad(x, (0, 0, 0, 1)) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=given, **options).masked_fill(empty, 0.0)
