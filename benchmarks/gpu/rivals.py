"""The timed implementations: the Triton kernels, PyTorch's fused kernels, FlexAttention, and two in plain PyTorch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention.attention import attention
from lessons_lib.attention.masks import causal
from lessons_lib.attention.rules import Causal, Rule
from lessons_lib.flash import flash_attention

from .bench import Bench, Tiles
from .timing import Attend, Everyone

FORCED = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def ours(bench: Bench, is_causal: bool, d: int, tiles: Tiles | None = None) -> Attend:
    """Return the kernels, with other tiles if they are given."""
    configured = bench.configured(d, tiles)
    return lambda q, k, v: bench.machine.flash(q, k, v, is_causal=is_causal, tiles=configured)


def fused(bench: Bench, is_causal: bool, d: int) -> Everyone:
    """Return the kernels and each of PyTorch's fused kernels."""

    def forced(backend: SDPBackend) -> Callable:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        return attend

    return {"triton": ours(bench, is_causal, d), **{name: forced(backend) for name, backend in FORCED.items()}}


def flexible(bench: Bench, is_causal: bool, d: int, n: int) -> Everyone:
    """Return the kernels and FlexAttention."""
    return {"triton": ours(bench, is_causal, d), "flex": flex(bench, Causal() if is_causal else None, None, n)}


def flex(bench: Bench, rule: Rule | None, b: int | None, n: int) -> Attend:
    """Return FlexAttention, compiled with default options, without its search for tiles (max-autotune)."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()
    compiled: Any = torch.compile(flex_attention, dynamic=False, backend=bench.machine.compiler)
    mask = None if rule is None else rule.block_mask(n, batch=b, device=bench.machine.device)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def ruled(bench: Bench, rule: Rule, d: int, n: int, *, with_flex: bool) -> Everyone:
    """Return the kernels with a tile table and with the causal band, PyTorch's with a mask, and FlexAttention."""
    mask = rule.to_mask(n, device=bench.machine.device)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    everyone: Everyone = {
        "triton": lambda q, k, v: bench.machine.flash(q, k, v, mask=rule),
        "triton-band": ours(bench, True, d),
        "sdpa-mask": masked,
    }
    return everyone | ({"flex": flex(bench, rule, bench.heads(n, d)[0], n)} if with_flex else {})


def plain(bench: Bench, is_causal: bool, d: int, n: int) -> Everyone:
    """Return the kernels, the specification, which stores all scores, and, at the first length, the tiled backend.

    The tiled backend takes seconds at the later lengths, and there needs no other memory.
    """
    mask = causal(n, device=bench.machine.device) if is_causal else None
    everyone: Everyone = {
        "triton": ours(bench, is_causal, d),
        "naive": lambda q, k, v: attention(q, k, v, mask),
    }
    if n == bench.sizes.few_lengths[0]:
        everyone["tiled"] = lambda q, k, v: flash_attention(q, k, v, is_causal=is_causal, backend="tiled")
    return everyone


def alone(bench: Bench, is_causal: bool, d: int) -> Everyone:
    """Return the kernels only."""
    return {"triton": ours(bench, is_causal, d)}


def tuned(bench: Bench, is_causal: bool, d: int) -> Everyone:
    """Return the kernels with the library's tiles and with the tuner's."""
    return {"triton": ours(bench, is_causal, d, {}), "triton-tuned": ours(bench, is_causal, d, bench.tuned)}


# --- decoding -------------------------------------------------------------------------------------------------------


def decoders(bench: Bench, d: int) -> dict[str, Callable]:
    """Return the decoders: each takes q, k and v and returns the step. A CUDA graph saves the launch time."""

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Callable:
        def work() -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return work

    def in_a_graph(q: Tensor, k: Tensor, v: Tensor) -> Callable:
        return bench.machine.captured(decoder(bench, d)(q, k, v))

    return {"triton": decoder(bench, d), "sdpa-flash": theirs, "triton-graph": in_a_graph}


def decoder(bench: Bench, d: int, tiles: Tiles | None = None) -> Callable:
    """Return the decoding step of the kernels."""
    configured = bench.configured(d, tiles)

    def prepare(q: Tensor, k: Tensor, v: Tensor) -> Callable:
        return lambda: bench.machine.flash(q, k, v, is_causal=True, tiles=configured)

    return prepare
