"""PyTorch's own fused attention, as :mod:`lessons_lib.fused` makes it mean what the rest of the flash path means.

For what it has no name for it is given a mask, which takes ``n x m`` bytes and more.
"""

from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from lessons_lib.attention import for_each_query_head
from lessons_lib.flash.band import Band
from lessons_lib.flash.scores import Scores
from lessons_lib.fused import fused_attention
from lessons_lib.rules import Rule


def needs_mask(band: Band, key_lengths: Tensor | None) -> bool:
    """Return whether PyTorch's function can only be told by a mask who sees whom."""
    is_causal_square = band.right == 0 and band.n == band.m
    return key_lengths is not None or band.left is not None or not (band.right is None or is_causal_square)


def torch_attention(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores) -> Tensor:
    """Attend with whichever kernel PyTorch chooses. Arguments are those of ``flash_attention``, already checked."""
    return fused_attention(query, key, value, rule, scale=scores.scale, slopes=scores.slopes, sinks=scores.sinks)


def torch_attention_in_linear_memory(query: Tensor, key: Tensor, value: Tensor, rule: Rule, scores: Scores) -> Tensor:
    """Attend with one fused kernel of PyTorch's, or fail: it may not fall back to one that keeps ``n x m`` scores.

    That is the flash kernel on a CPU, and on a GPU the memory-efficient one, which old GPUs have too. It knows no
    groups, so there keys and values are repeated for the heads that share them.
    """
    query, key, value = _with_unbroken_rows(query, key, value)
    if query.is_cuda:
        key, value = (for_each_query_head(x, query) for x in (key, value))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION if query.is_cuda else SDPBackend.FLASH_ATTENTION):
        return torch_attention(query, key, value, rule, scores)


def memory_efficient_kernel_runs(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Ask PyTorch whether its memory-efficient kernel takes these on the GPU where they are."""
    query, key, value = _with_unbroken_rows(query, key, value)
    key, value = (x[:, :1].expand(-1, query.shape[1], -1, -1) for x in (key, value))
    return can_use_efficient_attention(SDPAParams(query, key, value, None, 0.0, False, False))


def _with_unbroken_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """PyTorch's kernels want the entries of a row to follow one another."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)
