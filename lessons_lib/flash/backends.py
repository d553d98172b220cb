"""The choice of a backend: what each one cannot compute, and why."""

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from lessons_lib.flash.block_mask import TileTable, cached_tile_table, make_tile_table
from lessons_lib.flash.call import Call
from lessons_lib.flash.sdpa import memory_efficient_kernel_runs, needs_mask
from lessons_lib.flash.validation import read_lengths
from lessons_lib.foundations.derivatives import is_inside_transform


class Choice(NamedTuple):
    """What :func:`lessons_lib.flash.interface.chosen_backend` returns: a backend's name and the reason for it."""

    backend: str
    reason: str


def choose_backend(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Choice:
    """Return the fastest backend whose memory is linear."""
    no_kernel = why_backend_cannot_run("triton", q, call) if q.is_cuda else None
    if q.is_cuda and is_inside_transform():
        no_kernel = "the kernels cannot be called inside a transform of torch.func"
    if q.is_cuda and no_kernel is None:
        return Choice("triton", f"the kernels can do this on {torch.cuda.get_device_name(q.device)}")
    instead = "" if no_kernel is None else f"; not triton: {no_kernel}"
    missing = _why_torch_is_not_linear(call)
    if missing is None and q.device.type == "cpu" and not call.equal_widths:
        missing = "PyTorch's fused kernel for the CPU takes values as wide as the keys"
    if missing is not None:
        return Choice("tiled", missing + instead)
    if q.device.type == "cpu":
        return Choice("torch", "PyTorch's fused kernel for the CPU can do this")
    if q.is_cuda and memory_efficient_kernel_runs(q, k, v):
        return Choice("torch", "PyTorch's memory-efficient kernel can do this" + instead)
    return Choice(
        "tiled", f"PyTorch's memory-efficient kernel does not take {q.dtype} here, {q.shape[-1]} wide" + instead
    )


def why_backend_cannot_run(backend: str, q: Tensor, call: Call) -> str | None:
    """Return why the backend cannot compute this call on this device, or None if it can."""
    if backend == "torch":
        return _why_torch_cannot_run(call)
    if backend != "triton":
        return None
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; on Linux, pip install 'lessons-lib[gpu]'"
    if call.for_tiled_only:
        return f"the kernels do not support {' and '.join(call.for_tiled_only)}; use backend='tiled'"
    if q.dtype == torch.float64:
        return "the kernels add up in float32, got float64; use backend='tiled'"
    if q.shape[-1] > 256:
        return f"the kernels take heads at most 256 wide, got {q.shape[-1]}; use backend='tiled'"
    from lessons_lib.flash.autograd import IS_INTERPRETED, interpreter_fault  # needs triton

    if IS_INTERPRETED:
        return interpreter_fault()
    if not q.is_cuda or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, got tensors on {q.device}; use backend='tiled'"
    capability = torch.cuda.get_device_capability(q.device)
    if capability < (8, 0):
        return f"the kernels need compute capability 8.0, {torch.cuda.get_device_name(q.device)} has {capability}"
    return None


def tile_table(q: Tensor, k: Tensor, call: Call) -> TileTable:
    """Return the tiles that the kernels visit under a rule that is no band. The host reads cache lengths."""
    n, m = q.shape[2], k.shape[2]
    if call.cache_lengths is None:
        call.rule.check_sizes(n, m)
        return cached_tile_table(call.rule, n, m, q.device)
    lengths = torch.tensor(read_lengths(call.cache_lengths, m))
    return make_tile_table(call.rule, n, m, cache_lengths=lengths, device=q.device)


# --- parts ----------------------------------------------------------------------------------------------------------


def _why_torch_is_not_linear(call: Call) -> str | None:
    """Return why PyTorch's fused kernels cannot compute this call in linear memory, or None if they can."""
    if call.return_lse:
        return "PyTorch's fused kernel does not return the log-sum-exp"
    for name in ("cache_lengths", "cache_starts"):
        if getattr(call, name) is not None:
            return f"PyTorch's fused kernel does not support {name}"
    if not call.scores.plain:
        return f"PyTorch's fused kernel does not support {' and '.join(call.scores.score_mods)}"
    if call.dropout_p:
        return "PyTorch's fused kernel does not draw its dropout from dropout_seed"
    if call.bias is not None:
        return "PyTorch's fused kernel would need bias and mask in one table over n x m"
    if call.band is None or needs_mask(*call.band):
        return "PyTorch's fused kernel would need a mask over n x m"
    return None


def _why_torch_cannot_run(call: Call) -> str | None:
    if call.return_lse:
        return "PyTorch's function does not return the log-sum-exp; use backend='tiled'"
    if call.scores.softcap is not None:
        return "PyTorch's function does not support softcap; use backend='tiled'"
    if call.cache_lengths is not None:
        return "PyTorch's function has one number of keys for all sequences; use backend='tiled' for cache_lengths"
    if call.dropout_p:
        return "PyTorch's function does not draw its dropout from dropout_seed; use backend='tiled'"
    missing = [name for name in call.for_tiled_only if name.startswith(("alibi_slopes", "cache_starts"))]
    return f"PyTorch's function does not support {' and '.join(missing)}; use backend='tiled'" if missing else None
