"""PyTorch's own fused attention, made to mean what the rest of the flash path means.

``scaled_dot_product_attention`` differs in two ways: its ``is_causal`` aligns queries to the *first* keys, and it
knows neither windows nor lengths. Where these matter it is given a mask, which takes ``n x m`` bytes and more.
"""

from torch import Tensor, arange
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.flash.band import Band


def needs_mask(band: Band, key_lengths: Tensor | None) -> bool:
    """Return whether PyTorch's function can only be told by a mask who sees whom."""
    is_causal_square = band.right == 0 and band.n == band.m
    return key_lengths is not None or band.left is not None or not (band.right is None or is_causal_square)


def torch_attention(
    query: Tensor, key: Tensor, value: Tensor, band: Band, scale: float, key_lengths: Tensor | None
) -> Tensor:
    """Attend with whichever kernel PyTorch chooses. Arguments are those of ``flash_attention``, already checked."""
    grouped = query.shape[1] != key.shape[1]
    if not needs_mask(band, key_lengths):
        return scaled_dot_product_attention(
            query, key, value, is_causal=band.right == 0, scale=scale, enable_gqa=grouped
        )
    mask = band.mask(range(band.n), range(band.m), device=query.device)
    if key_lengths is not None:
        exists = arange(band.m, device=query.device) < key_lengths.to(query.device)[:, None]
        mask = mask & exists[:, None, None, :]
    # A row that may see nothing sees everything and is then erased, so that no kernel divides by zero.
    empty = ~mask.any(dim=-1, keepdim=True)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask | empty, scale=scale, enable_gqa=grouped)
    return out.masked_fill(empty, 0.0)


def torch_attention_in_linear_memory(query: Tensor, key: Tensor, value: Tensor, band: Band, scale: float) -> Tensor:
    """Attend with PyTorch's fused kernel for the CPU, or fail: it may not fall back to one that keeps ``n x m`` scores.

    The kernel wants the entries of a row to follow one another.
    """
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch_attention(query, key, value, band, scale, None)
