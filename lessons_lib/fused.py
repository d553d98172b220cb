"""The same attention by PyTorch's own fused kernels: what models are trained with.

``scaled_dot_product_attention`` differs from :func:`lessons_lib.attention.attention` in what it takes: its
``is_causal`` aligns queries to the *first* keys, a row that may see nothing is ``NaN``, it knows no rules.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention import check_attention_inputs, check_bias, check_options
from lessons_lib.rules import Everything, Rule, as_band, rule_over, takes_rules
from lessons_lib.shapes import at_least_single


@takes_rules
def fused_attention(
    query: Float[Tensor, "b h n d_k"],
    key: Float[Tensor, "#b g m d_k"],
    value: Float[Tensor, "#b g m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "b h n d_v"]:
    """Return what :func:`lessons_lib.attention.attention` does, arguments as there, from one fused operation.

    The order of additions differs, so the last digits do; a float32 bias beside queries in half precision is rounded to
    theirs. No mask and a causal one over as many keys as queries cost no table; any other mask takes its ``n * m``
    bytes, and where that is too much there is :func:`lessons_lib.flash.flash_attention`. There are first derivatives
    only.

    Raises:
        ValueError: as ``attention``, or if there are not four axes.
    """
    check_attention_inputs(query, key, value)
    if not query.ndim == key.ndim == value.ndim == 4:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value must be (batch, heads, rows, width), got {shapes}; use attention")
    check_options(scale, dropout_p)
    n, m = query.shape[2], key.shape[2]
    scores = at_least_single(query.new_empty(())).expand(len(query), query.shape[1], n, m)
    if bias is not None:
        check_bias(bias, query, scores)
    rule = Everything() if mask is None else rule_over(mask, scores)
    options = {"scale": scale, "dropout_p": dropout_p, "enable_gqa": query.shape[1] != key.shape[1]}

    band = as_band(rule, n, m)
    is_square = band is not None and band.left is None and (band.right is None or (band.right == 0 and n == m))
    if bias is None and band is not None and is_square:
        return scaled_dot_product_attention(query, key, value, is_causal=band.right == 0, **options)
    seen = rule.tensor(n, m, device=query.device)
    if bias is not None:
        seen = seen & (bias != -torch.inf)
    # A row that may see nothing sees everything and is then erased, so that no kernel divides by zero.
    empty = ~seen.any(dim=-1, keepdim=True)
    given = (
        seen | empty if bias is None else bias.to(query.dtype).masked_fill(~seen, -torch.inf).masked_fill(empty, 0.0)
    )
    return scaled_dot_product_attention(query, key, value, attn_mask=given, **options).masked_fill(empty, 0.0)
