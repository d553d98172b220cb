"""Who is timed: the library's kernels, PyTorch's fused kernels each by name, FlexAttention, and two plain ways."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lessons_lib.attention import attention
from lessons_lib.flash import flash_attention
from lessons_lib.masks import causal

from .bench import Bench, Tiles
from .patterns import Pattern, Sees
from .timing import Attend, Everyone

FORCED = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def ours(bench: Bench, is_causal: bool, d: int, tiles: Tiles | None = None) -> Attend:
    """The kernels, with other tiles if they are to be tried."""
    configured = bench.configured(d, tiles)
    return lambda q, k, v: bench.machine.flash(q, k, v, is_causal=is_causal, tiles=configured)


def fused(bench: Bench, is_causal: bool, d: int) -> Everyone:
    """The kernels beside PyTorch's, each of them forced."""

    def forced(backend: SDPBackend) -> Callable:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

        return attend

    return {"triton": ours(bench, is_causal, d), **{name: forced(backend) for name, backend in FORCED.items()}}


def flexible(bench: Bench, is_causal: bool, d: int, n: int) -> Everyone:
    """The kernels beside FlexAttention."""
    sees = (lambda b, h, i, j: i >= j) if is_causal else None
    return {"triton": ours(bench, is_causal, d), "flex": flex(bench, sees, None, n)}


def flex(bench: Bench, sees: Sees | None, b: int | None, n: int) -> Attend:
    """FlexAttention, compiled by default: its own search for tiles (max-autotune) is not run."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    compiled: Any = torch.compile(flex_attention, dynamic=False, backend=bench.machine.compiler)
    mask: Any = None if sees is None else create_block_mask(sees, b, None, n, n, device=bench.machine.device)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def ruled(bench: Bench, pattern: Pattern, d: int, n: int, *, with_flex: bool) -> Everyone:
    """The kernels led by a table, beside themselves on the causal band, PyTorch's with a mask, and FlexAttention."""
    mask = pattern.rule.tensor(n, device=bench.machine.device)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    everyone: Everyone = {
        "triton": lambda q, k, v: bench.machine.flash(q, k, v, mask=pattern.rule),
        "triton-band": ours(bench, True, d),
        "sdpa-mask": masked,
    }
    return everyone | ({"flex": flex(bench, pattern.sees, bench.heads(n, d)[0], n)} if with_flex else {})


def plain(bench: Bench, is_causal: bool, d: int, n: int) -> Everyone:
    """The kernels beside the specification, which holds all scores, and beside the same tiles in PyTorch."""
    mask = causal(n, device=bench.machine.device) if is_causal else None
    return {
        "triton": ours(bench, is_causal, d),
        "naive": lambda q, k, v: attention(q, k, v, mask),
        "tiled": lambda q, k, v: flash_attention(q, k, v, is_causal=is_causal, backend="tiled"),
    }


def alone(bench: Bench, is_causal: bool, d: int) -> Everyone:
    """The kernels only."""
    return {"triton": ours(bench, is_causal, d)}


def tuned(bench: Bench, is_causal: bool, d: int) -> Everyone:
    """The library's tiles beside those that the tuner found."""
    return {"triton": ours(bench, is_causal, d, {}), "triton-tuned": ours(bench, is_causal, d, bench.tuned)}


# --- decoding -------------------------------------------------------------------------------------------------------


def decoders(bench: Bench, d: int) -> dict[str, Callable]:
    """Who decodes: each takes q, k and v and returns the work. A graph spares the time to launch kernels."""

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Callable:
        def work() -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return work

    def in_a_graph(q: Tensor, k: Tensor, v: Tensor) -> Callable:
        return bench.machine.captured(decoder(bench, d)(q, k, v))

    return {"triton": decoder(bench, d), "sdpa-flash": theirs, "triton-graph": in_a_graph}


def decoder(bench: Bench, d: int, tiles: Tiles | None = None) -> Callable:
    """The kernels' decoding step."""
    configured = bench.configured(d, tiles)

    def prepare(q: Tensor, k: Tensor, v: Tensor) -> Callable:
        return lambda: bench.machine.flash(q, k, v, is_causal=True, tiles=configured)

    return prepare
