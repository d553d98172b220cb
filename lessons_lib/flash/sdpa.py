"""PyTorch's fused attention through :mod:`lessons_lib.attention.sdpa`, with the semantics of this room.

A rule that PyTorch's function has no option for is passed as a mask, which takes ``n x m`` bytes or more.
"""

from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from lessons_lib.attention.attention import repeat_kv
from lessons_lib.attention.rules import Rule
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.flash.band import KernelBand
from lessons_lib.flash.score_mods import Scores


def needs_mask(band: KernelBand, key_lengths: Tensor | None) -> bool:
    """Return whether PyTorch's function needs a mask for this band, because its options cannot express it."""
    is_causal_square = band.right == 0 and band.n == band.m
    return key_lengths is not None or band.left is not None or not (band.right is None or is_causal_square)


def torch_attention(
    query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores, bias: Tensor | None = None
) -> Tensor:
    """Return the output of the kernel that PyTorch chooses. Arguments are those of ``flash_attention``, checked."""
    return fused_attention(
        query, key, value, rule, scale=scores.scale, bias=bias, alibi_slopes=scores.alibi_slopes, sinks=scores.sinks
    )


def torch_attention_in_linear_memory(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores) -> Tensor:
    """Return the output of one fused kernel, or fail: PyTorch may not fall back to a kernel with ``n x m`` scores.

    On a CPU this is the flash kernel; on a GPU it is the memory-efficient kernel, which old GPUs have too. The latter
    does not support grouped heads, so keys and values are repeated for it.
    """
    query, key, value = _with_contiguous_rows(query, key, value)
    if query.is_cuda:
        key, value = (repeat_kv(x, query) for x in (key, value))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if query.is_cuda else SDPBackend.FLASH_ATTENTION):
        return torch_attention(query, key, value, rule, scores)


def memory_efficient_kernel_runs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether PyTorch's memory-efficient kernel accepts these tensors on their GPU."""
    query, key, value = _with_contiguous_rows(query, key, value)
    key, value = (x[:, :1].expand(-1, query.shape[1], -1, -1) for x in (key, value))
    return can_use_efficient_attention(SDPAParams(query, key, value, None, 0.0, False, False))


def _with_contiguous_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors with contiguous rows, which PyTorch's kernels require."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)
