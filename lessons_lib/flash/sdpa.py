"""PyTorch's own fused attention, as :mod:`lessons_lib.fused` makes it mean what the rest of the flash path means.

For what it has no name for it is given a mask, which takes ``n x m`` bytes and more.
"""

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lessons_lib.flash.band import Band
from lessons_lib.fused import fused_attention
from lessons_lib.rules import Rule


def needs_mask(band: Band, key_lengths: Tensor | None) -> bool:
    """Return whether PyTorch's function can only be told by a mask who sees whom."""
    is_causal_square = band.right == 0 and band.n == band.m
    return key_lengths is not None or band.left is not None or not (band.right is None or is_causal_square)


def torch_attention(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scale: float) -> Tensor:
    """Attend with whichever kernel PyTorch chooses. Arguments are those of ``flash_attention``, already checked."""
    return fused_attention(query, key, value, rule, scale=scale)


def torch_attention_in_linear_memory(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scale: float) -> Tensor:
    """Attend with PyTorch's fused kernel for the CPU, or fail: it may not fall back to one that keeps ``n x m`` scores.

    The kernel wants the entries of a row to follow one another.
    """
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch_attention(query, key, value, rule, scale)
