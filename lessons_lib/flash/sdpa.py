"""PyTorch's own fused attention, made to mean what the rest of the flash path means.

``scaled_dot_product_attention`` differs in two ways: its ``is_causal`` aligns queries to the *first* keys, and it
knows no other rule. Where that matters it is given a mask, which takes ``n x m`` bytes and more.
"""

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.flash.band import Band, as_band
from lessons_lib.rules import Rule


def needs_mask(band: Band, key_lengths: Tensor | None) -> bool:
    """Return whether PyTorch's function can only be told by a mask who sees whom."""
    is_causal_square = band.right == 0 and band.n == band.m
    return key_lengths is not None or band.left is not None or not (band.right is None or is_causal_square)


def torch_attention(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scale: float) -> Tensor:
    """Attend with whichever kernel PyTorch chooses. Arguments are those of ``flash_attention``, already checked."""
    (b, h, n, _), (g, m) = query.shape, key.shape[1:3]
    found = as_band(rule, b, n, m)
    if found is not None and not needs_mask(*found):
        band, _ = found
        return scaled_dot_product_attention(
            query, key, value, is_causal=band.right == 0, scale=scale, enable_gqa=h != g
        )
    mask = rule.tensor(n, m, device=query.device)
    # A row that may see nothing sees everything and is then erased, so that no kernel divides by zero.
    empty = ~mask.any(dim=-1, keepdim=True)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask | empty, scale=scale, enable_gqa=h != g)
    return out.masked_fill(empty, 0.0)


def torch_attention_in_linear_memory(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scale: float) -> Tensor:
    """Attend with PyTorch's fused kernel for the CPU, or fail: it may not fall back to one that keeps ``n x m`` scores.

    The kernel wants the entries of a row to follow one another.
    """
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch_attention(query, key, value, rule, scale)
