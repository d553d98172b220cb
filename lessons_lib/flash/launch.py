"""FlashAttention on a GPU: the kernels of :mod:`lessons_lib.flash.triton_kernels`, joined into one differentiable step.

Needs ``triton``, so it is imported only when asked for. With ``TRITON_INTERPRET=1`` in the environment when Triton is
imported, the kernels run in Triton's interpreter, on the CPU and slowly: that is how they are tested without a GPU.
"""

import contextlib
import contextvars
import importlib.metadata
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from lessons_lib.flash import triton_kernels as kernels
from lessons_lib.flash.band import Band
from lessons_lib.flash.configurations import INTERPRETED, Configuration, Tile, configuration

IS_INTERPRETED = not isinstance(kernels.attend, triton.JITFunction)
ROW_BLOCK = 128  # rows of numbers kept for the backward pass are padded to a multiple: every block_q divides it
MERGED = 4096  # numbers that a program merging parts holds at once
MOST_ROWS = {2: 64, 4: 16}  # of one tile when decoding, by the bytes of a number


@torch.compiler.disable(reason="the kernels are started as they are, between two compiled graphs")
def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    band: Band,
    scale: float,
    key_lengths: Tensor | None,
    tiles: Configuration | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable. Arguments are those of ``flash_attention``, already checked.

    One query for which no gradient is wanted is decoding: its keys are divided over the whole device. Nothing here
    waits for the device, unless ``key_lengths`` lie elsewhere.

    Raises:
        NotImplementedError: if a tensor carries a tangent: these kernels know no forward-mode differentiation.
    """
    if any(forward_ad.unpack_dual(x).tangent is not None for x in (query, key, value)):
        raise NotImplementedError(
            "the kernels do not differentiate in forward mode, got a tensor with a tangent; use attention instead"
        )
    if IS_INTERPRETED and query.dtype == torch.bfloat16:  # the interpreter multiplies the bits of bfloat16 as integers
        out, lse = triton_attention(query.float(), key.float(), value.float(), band, scale, key_lengths, tiles)
        return out.to(torch.bfloat16), lse
    tiles = _tiles(query) if tiles is None else tiles
    if key_lengths is not None:
        key_lengths = key_lengths.to(query.device).contiguous()  # the kernels read entry b at b
    wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if query.shape[2] == 1 and not wants_gradient:
        return decode(query, key, value, band, scale, key_lengths, tiles.attend_part, _n_parts(query, key))
    return TritonAttention.apply(query, key, value, key_lengths, band, scale, tiles)


class TritonAttention(torch.autograd.Function):
    """``apply(query, key, value, key_lengths, band, scale, tiles)`` returns ``(out, lse)``; both carry gradients."""

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_lengths: Tensor | None,
        band: Band,
        scale: float,
        tiles: Configuration,
    ) -> tuple[Tensor, Tensor]:
        """Run ``attend`` on every block of queries."""
        query, key, value = (_addressable(x) for x in (query, key, value))
        b, h, n, _ = query.shape
        out = _new_like(query)
        lse = query.new_empty(b, h, n, dtype=torch.float32)
        tile = tiles.attend
        whole_tiles = band.m // tile.block_k * tile.block_k
        _launch(
            kernels.attend,
            b * h * _n_blocks(n, tile.block_q),
            tile,
            *(query, key, value, out, lse, key_lengths, *map(_strides, (query, key, value, out))),
            *(scale, band.left, band.right, h, key.shape[1], n, band.m),
            **_constants(query),
            SPECIALIZE=tile.specialize,
            EVEN_K=tile.specialize and key_lengths is None and band[1:] == (whole_tiles, None, None),
        )
        ctx.save_for_backward(query, key, value, out, lse, key_lengths)
        ctx.band, ctx.scale, ctx.tiles = band, scale, tiles
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights twice: once for the keys' and values' gradients, once for the queries'.

        Each pass is made only if somebody waits for what it computes.
        """
        query, key, value, out, lse, key_lengths = ctx.saved_tensors
        band, tiles = ctx.band, ctx.tiles
        wants_query, wants_key, wants_value = ctx.needs_input_grad[:3]
        assert all(ROW_BLOCK % tile.block_q == 0 for tile in (tiles.key_value_gradients, tiles.query_gradients)), tiles
        grad_out, grad_lse = _addressable(grad_out), grad_lse.contiguous()
        (b, h, n, d), (_, g, m, _) = query.shape, key.shape
        n_padded = _n_blocks(n, ROW_BLOCK) * ROW_BLOCK
        bits, delta = (lse.new_empty(b, h, n_padded) for _ in range(2))
        constants = _constants(query)
        _launch(
            kernels.row_terms,
            b * h * n_padded // ROW_BLOCK,
            Tile(ROW_BLOCK, 1, num_warps=8, num_stages=1),
            *(out, grad_out, lse, grad_lse, bits, delta, _strides(out), _strides(grad_out), h, n, n_padded),
            D=d,
            WIDTH=constants["WIDTH"],
        )
        given = (query, key, value, grad_out, bits, delta)
        strides = tuple(map(_strides, (query, key, value, grad_out)))
        rest = (ctx.scale, band.left, band.right, h, g, n, m, n_padded)
        grad_query = grad_key = grad_value = None
        if wants_key or wants_value:
            grad_key, grad_value = _new_like(key), _new_like(value)
            _launch(
                kernels.key_value_gradients,
                b * g * _n_blocks(m, tiles.key_value_gradients.block_k),
                tiles.key_value_gradients,
                *(*given, grad_key, grad_value, key_lengths, *strides, *map(_strides, (grad_key, grad_value)), *rest),
                **constants,
                BRANCH=tiles.key_value_gradients.branch,
            )
        if wants_query:
            grad_query = _new_like(query)
            _launch(
                kernels.query_gradients,
                b * h * _n_blocks(n, tiles.query_gradients.block_q),
                tiles.query_gradients,
                *(*given, grad_query, key_lengths, *strides, _strides(grad_query), *rest),
                **constants,
            )
        return grad_query, grad_key, grad_value, None, None, None, None


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    band: Band,
    scale: float,
    key_lengths: Tensor | None,
    tile: Tile,
    n_parts: int,
) -> tuple[Tensor, Tensor]:
    """Attend with one query a sequence to ``n_parts`` parts of its keys at once, and merge them: two kernels, or one.

    The query heads that share a key/value head become the rows of one matrix, so the keys are read once for all of
    them, up to the rows that a tile has room for. No gradients.
    """
    (b, h, _, d), g = query.shape, key.shape[1]
    out, lse = _new_like(query), query.new_empty(b, h, 1, dtype=torch.float32)
    heads = query.detach()[:, :, 0].unflatten(1, (g, h // g))
    heads, key, value = (_addressable(x) for x in (heads, key, value))
    if n_parts > 1:
        found = query.new_empty(b, h, n_parts, d, dtype=torch.float32)
        found_lse = query.new_empty(b, h, n_parts, dtype=torch.float32)
    else:
        found, found_lse = out, lse
    tile = _with_rows_for(h // g, tile, query)
    constants = _constants(query)
    _launch(
        kernels.attend_part,
        b * g * _n_blocks(h // g, tile.block_q) * n_parts,
        tile,
        *(heads, key, value, found, found_lse, key_lengths, *map(_strides, (heads, key, value))),
        _strides(found[:, :, 0].unflatten(1, (g, h // g))),
        *(scale, band.left, g, h // g, band.m, n_parts),
        **constants,
    )
    if n_parts > 1:
        width, parts = constants["WIDTH"], _power_of_two(n_parts)
        _launch(
            kernels.merge_parts,
            b * h,
            Tile(min(parts, MERGED // width), 1, num_warps=4, num_stages=1),
            *(found, found_lse, out, lse, _strides(found), _strides(out), h, n_parts),
            D=d,
            WIDTH=width,
            PARTS=parts,
        )
    return out, lse


@torch.compiler.disable(reason="a kernel is tried")
def interpreter_fault() -> str | None:
    """Say why Triton's interpreter cannot run a kernel here, or None if it can or need not.

    A loop whose end is an argument tells: Triton 3.6 holds a number as an array with one entry, and NumPy has stopped
    taking such an array for an index. Asked of a kernel that does nothing else, so that a fault in ours stays one.
    """
    if not IS_INTERPRETED:
        return None
    try:
        _count[(1,)](3, torch.empty(1, dtype=torch.int32))
    except triton.runtime.errors.InterpreterError as error:
        numpy = importlib.metadata.version("numpy")
        return (
            f"Triton {triton.__version__} cannot interpret a loop with NumPy {numpy}, {error}; "
            "take a newer Triton, or numpy<2.4"
        )
    return None


# --- parts ----------------------------------------------------------------------------------------------------------


@triton.jit
def _count(n, LAST):
    for i in tl.range(n):  # pyright: ignore[reportGeneralTypeIssues]  (Triton's, not Python's)
        tl.store(LAST, i)


def _launch(kernel: Any, n_programs: int, tile: Tile, *arguments, **constants) -> None:
    """Start ``n_programs`` programs of a kernel on the device where its tensors lie.

    Descriptors made in a kernel need a little scratch memory, which Triton asks of an allocator held in a context
    variable: it is set in a copy of the context, so the caller's stays as it was.
    """
    if "BLOCK_Q" in kernel.arg_names:
        constants |= {"BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}
    else:
        constants |= {"BLOCK": tile.block_q}

    def start() -> None:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
        kernel[(n_programs,)](*arguments, **constants, num_warps=tile.num_warps, num_stages=tile.num_stages)

    device = arguments[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        contextvars.copy_context().run(start)


def _n_blocks(n: int, block: int) -> int:
    return -(-n // block)


def _power_of_two(n: int) -> int:
    """The smallest that is at least ``n``."""
    return 1 << (n - 1).bit_length()


def _constants(query: Tensor) -> dict:
    d = query.shape[-1]
    return {
        "D": d,
        "WIDTH": max(16, _power_of_two(d)),
        "PRECISION": "tf32x3" if query.dtype == torch.float32 else "ieee",
    }


def _strides(matrix: Tensor) -> tuple[int, ...]:
    return matrix.stride()[:3]


def _addressable(matrix: Tensor) -> Tensor:
    """Return the tensor itself if a descriptor can describe it, else a copy that it can.

    Entries of a row must follow one another and rows begin at multiples of 16 bytes; the copy pads rows to that.
    """
    unit = 16 // matrix.element_size()
    d = matrix.shape[-1]
    *outer, row_stride, entry_stride = matrix.stride()
    aligned = matrix.data_ptr() % 16 == 0 and all(stride % unit == 0 for stride in (*outer, row_stride))
    if aligned and row_stride >= d and entry_stride == 1:
        return matrix
    return _new_like(matrix, _n_blocks(d, unit) * unit)[..., :d].copy_(matrix)


def _new_like(matrix: Tensor, width: int | None = None) -> Tensor:
    """Return new memory without gaps for such a tensor, laid out as the given one: rows inside heads, or around them.

    So heads that come as a view of ``(b, n, h, d)`` give results that become ``(b, n, h d)`` without a copy. Rows stay
    whole; ``width`` is their new length. What is repeated in memory (a stride of 0) counts as the outermost axis.
    """
    order = sorted(range(3), key=lambda axis: (matrix.stride(axis) > 0, -matrix.stride(axis)))
    sizes = (*(matrix.shape[axis] for axis in order), matrix.shape[3] if width is None else width)
    return matrix.new_empty(sizes).permute(*(order.index(axis) for axis in range(3)), 3)


def _tiles(query: Tensor) -> Configuration:
    if IS_INTERPRETED:
        return INTERPRETED
    capability = torch.cuda.get_device_capability(query.device)
    return configuration(query.shape[-1], query.element_size(), capability)


def _n_parts(query: Tensor, key: Tensor) -> int:
    """Parts to give every multiprocessor about two programs, each of about 512 keys or more."""
    b, g, m, _ = key.shape
    if IS_INTERPRETED:
        return 2
    n_programs = 2 * torch.cuda.get_device_properties(query.device).multi_processor_count
    return max(1, round(min(n_programs / (b * g), m / 512)))


def _with_rows_for(n_heads: int, tile: Tile, query: Tensor) -> Tile:
    """Give a tile for decoding a row for each head, or as many as its warps compute with registers to spare.

    More heads are more programs, which find the keys in the cache where the first of them has put them.
    """
    most = max(tile.block_q, MOST_ROWS[query.element_size()])
    return tile._replace(block_q=min(max(tile.block_q, _power_of_two(n_heads)), most))
