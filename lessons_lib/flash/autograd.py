"""FlashAttention on a GPU: the kernels of :mod:`lessons_lib.flash.triton_kernels` as one differentiable function.

The mask is a :class:`~lessons_lib.flash.band.KernelBand` or a :class:`~lessons_lib.flash.block_mask.TileTable`. Each of
the two has its own three kernels, whose other arguments are the same.

The module needs ``triton`` and is therefore imported only when a kernel is used. With ``TRITON_INTERPRET=1`` in the
environment when Triton is imported, the kernels run in Triton's interpreter, slowly and on the CPU; the tests use this
on machines without a GPU.
"""

import contextlib
import contextvars
import functools
import importlib.metadata
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lessons_lib.flash import block_mask_kernels
from lessons_lib.flash import triton_kernels as kernels
from lessons_lib.flash.band import KernelBand
from lessons_lib.flash.block_mask import SIDE, TileTable
from lessons_lib.flash.configurations import INTERPRETED, Configuration, Tile, configuration
from lessons_lib.flash.score_mods import Scores
from lessons_lib.foundations.derivatives import check_backward_only, first_derivatives_only

_NAME_IN_ERRORS = "flash_attention with backend='triton'"
IS_INTERPRETED = not isinstance(kernels.attend, triton.JITFunction)
_LOG2_E = math.log2(math.e)
ROW_BLOCK = 128  # numbers of each row, saved for the backward pass, are padded to a multiple; every block_q divides it
MERGE_TILE = 4096  # numbers that a program of merge_parts holds at once
MAX_DECODE_ROWS = {2: 64, 4: 16}  # rows of one tile in decoding, by the bytes of a number


@torch.compiler.disable(reason="the kernels are launched between two compiled graphs")
def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: KernelBand | TileTable,
    scores: Scores | float,
    key_lengths: Tensor | None,
    tiles: Configuration | None = None,
    *,
    at_end: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable once. Arguments are those of ``flash_attention``, already checked.

    A number for ``scores`` is the scale, without other score modifications. With ``at_end`` the queries of a sequence
    are at the end of its own keys: ``key_lengths`` are ``cache_lengths``. A single query without gradients is decoding:
    its keys are divided over the whole device. The host does not wait for the device, unless ``key_lengths`` are on
    another one.

    Raises:
        NotImplementedError: in forward mode, and inside a transform of ``torch.func``.
    """
    scores = scores if isinstance(scores, Scores) else Scores(scores)
    inputs = [x for x in (query, key, value, scores.alibi_slopes, scores.sinks) if x is not None]
    check_backward_only(_NAME_IN_ERRORS, *inputs)
    if IS_INTERPRETED and query.dtype == torch.bfloat16:  # the interpreter multiplies the bits of bfloat16 as integers
        q, k, v = (x.float() for x in (query, key, value))
        out, lse = triton_attention(q, k, v, mask, scores, key_lengths, tiles, at_end=at_end)
        return out.to(torch.bfloat16), lse
    tiles = _tiles(query, isinstance(mask, TileTable)) if tiles is None else tiles
    if key_lengths is not None:
        key_lengths = key_lengths.to(query.device).contiguous()  # the kernels do not know strides of lengths
    wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    if query.shape[2] == 1 and isinstance(mask, KernelBand) and not wants_gradient:
        n_parts = _n_parts(query, key)
        return decode_attention(query, key, value, mask, scores, key_lengths, tiles.attend_part, n_parts, at_end=at_end)
    return TritonAttention.apply(
        query,
        key,
        value,
        scores.alibi_slopes,
        scores.sinks,
        key_lengths,
        mask,
        scores.scale,
        scores.softcap,
        at_end,
        tiles,
    )


class TritonAttention(torch.autograd.Function):
    """``apply(query, key, value, alibi_slopes, sinks, key_lengths, mask, scale, softcap, at_end, tiles)``.

    It returns ``(out, lse)``. Both carry gradients to queries, keys, values, slopes and sinks.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alibi_slopes: Tensor | None,
        sinks: Tensor | None,
        key_lengths: Tensor | None,
        mask: KernelBand | TileTable,
        scale: float,
        softcap: float | None,
        at_end: bool,
        tiles: Configuration,
    ) -> tuple[Tensor, Tensor]:
        """Compute the output and the log-sum-exp of every block of queries."""
        query, key, value = (_addressable(x) for x in (query, key, value))
        (b, h, n, _), (_, g, m, _) = query.shape, key.shape
        out = _new_like(query)
        lse = query.new_empty(b, h, n, dtype=torch.float32)
        score_mods = _KernelScoreMods.of(scale, softcap, alibi_slopes, sinks, query)
        tile = tiles.attend
        if isinstance(mask, TileTable):
            kernel, choices = block_mask_kernels.attend_by_table, {"SIDE": SIDE}
        else:
            kernel, choices = kernels.attend, {}
        _launch(
            kernel,
            b * h * _n_blocks(n, tile.block_q),
            tile,
            *_with_descriptors((query, key, value), tile, "qkk", key_lengths),
            *(
                out,
                lse,
                key_lengths,
                score_mods.alibi_slopes,
                score_mods.sinks,
                *map(_strides, (query, key, value, out)),
            ),
            *(scale, score_mods.softcap, *_mask_arguments(mask), h, g, n, m),
            **_constants(query),
            **choices,
            AT_END=at_end,
        )
        ctx.save_for_backward(query, key, value, alibi_slopes, sinks, out, lse, key_lengths)
        ctx.mask, ctx.scale, ctx.softcap, ctx.at_end, ctx.tiles = mask, scale, softcap, at_end, tiles
        return out, lse

    @staticmethod
    @first_derivatives_only(_NAME_IN_ERRORS)
    def backward(ctx, saved: tuple[Any, ...], grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights twice: once for the gradients of keys and values, once for those of the queries.

        A pass is skipped if none of its gradients is needed.
        """
        query, key, value, alibi_slopes, sinks, out, lse, key_lengths = saved
        mask, tiles = ctx.mask, ctx.tiles
        wants_query, wants_key, wants_value, wants_slopes, wants_sinks = ctx.needs_input_grad[:5]
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
        score_mods = _KernelScoreMods.of(ctx.scale, ctx.softcap, alibi_slopes, sinks, query)
        inputs = (query, key, value, grad_out)
        strides = tuple(map(_strides, inputs))
        sizes = (h, g, n, m, n_padded)
        by_table = isinstance(mask, TileTable)
        grad_query = grad_key = grad_value = grad_slopes = grad_sinks = None
        if wants_key or wants_value:
            grad_key, grad_value = _new_like(key), _new_like(value)
            tile = tiles.key_value_gradients
            _launch(
                block_mask_kernels.key_value_gradients_by_table if by_table else kernels.key_value_gradients,
                b * g * _n_blocks(m, tile.block_k),
                tile,
                *_with_descriptors(inputs, tile, "qkkq", key_lengths),
                *(bits, delta, grad_key, grad_value, key_lengths, score_mods.alibi_slopes),
                *(*strides, *map(_strides, (grad_key, grad_value))),
                *(ctx.scale, score_mods.softcap, *_mask_arguments(mask, by_key=True), *sizes),
                **constants,
                **({"SIDE": SIDE} if by_table else {}),
                AT_END=ctx.at_end,
            )
        if wants_query or wants_slopes:
            grad_query = _new_like(query)
            slope_grad_rows = torch.zeros_like(delta) if wants_slopes else None
            tile = tiles.query_gradients
            _launch(
                block_mask_kernels.query_gradients_by_table if by_table else kernels.query_gradients,
                b * h * _n_blocks(n, tile.block_q),
                tile,
                *_with_descriptors(inputs, tile, "qkkq", key_lengths),
                *(
                    bits,
                    delta,
                    grad_query,
                    slope_grad_rows,
                    key_lengths,
                    score_mods.alibi_slopes,
                    *strides,
                    _strides(grad_query),
                ),
                *(ctx.scale, score_mods.softcap, *_mask_arguments(mask), *sizes),
                **constants,
                **({"SIDE": SIDE} if by_table else {}),
                AT_END=ctx.at_end,
            )
            if slope_grad_rows is not None:
                grad_slopes = slope_grad_rows.sum(dim=(0, 2)).to(alibi_slopes.dtype)
        if wants_sinks and score_mods.sinks is not None:  # minus weight times delta, as for a key whose value is zero
            weight = torch.exp2(score_mods.sinks[:, None] - bits)
            grad_sinks = -(weight * delta)[..., :n].sum(dim=(0, 2)).to(sinks.dtype)
        return grad_query, grad_key, grad_value, grad_slopes, grad_sinks, *(None,) * 6


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    band: KernelBand,
    scores: Scores | float,
    key_lengths: Tensor | None,
    tile: Tile,
    n_parts: int,
    *,
    at_end: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)`` of one query a sequence, without gradients; one kernel, or two if ``n_parts`` is above 1.

    The first kernel attends to ``n_parts`` parts of the keys in parallel, the second one merges the results. The query
    heads that share a key/value head become the rows of one matrix, so that the keys are read once for all of them (or
    once for each tile of rows, if they do not fit into one tile).
    """
    scores = scores if isinstance(scores, Scores) else Scores(scores)
    (b, h, _, d), g = query.shape, key.shape[1]
    out, lse = _new_like(query), query.new_empty(b, h, 1, dtype=torch.float32)
    heads, key, value = (_addressable(x) for x in (query.view(b, g, h // g, d), key, value))
    if n_parts > 1:
        parts_out = query.new_empty(b, h, n_parts, d, dtype=torch.float32)
        parts_lse = query.new_empty(b, h, n_parts, dtype=torch.float32)
    else:
        parts_out, parts_lse = out, lse
    of_sequence, of_head, _ = _strides(parts_out)
    tile = _with_decode_rows(h // g, tile, query)
    constants = _constants(query)
    score_mods = _KernelScoreMods.of(*scores, query)
    _launch(
        kernels.attend_part,
        b * g * _n_blocks(h // g, tile.block_q) * n_parts,
        tile,
        *(
            heads,
            key,
            value,
            parts_out,
            parts_lse,
            key_lengths,
            score_mods.alibi_slopes,
            score_mods.sinks if n_parts == 1 else None,
        ),
        *(*map(_strides, (heads, key, value)), (of_sequence, h // g * of_head, of_head)),
        *(scores.scale, score_mods.softcap, band.left, g, h // g, band.m, n_parts),
        **constants,
        AT_END=at_end,
    )
    if n_parts > 1:
        width, padded_parts = constants["WIDTH"], _power_of_two(n_parts)
        _launch(
            kernels.merge_parts,
            b * h,
            Tile(min(padded_parts, MERGE_TILE // width), 1, num_warps=4, num_stages=1),
            *(parts_out, parts_lse, out, lse, score_mods.sinks, _strides(parts_out), _strides(out), h, n_parts),
            D=d,
            WIDTH=width,
            PARTS=padded_parts,
        )
    return out, lse


@torch.compiler.disable(reason="a kernel is run as a trial")
def interpreter_fault() -> str | None:
    """Return why Triton's interpreter cannot run a kernel here, or None if it can or is not used.

    The trial kernel has a loop whose end is an argument. Triton 3.6 holds a number as an array with one entry, and
    newer versions of NumPy do not accept such an array as an index. The trial does nothing else, so that an error in
    the kernels of this library is not taken for this one.
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


class _KernelScoreMods(NamedTuple):
    """The score modifications as the kernels take them: cap and slopes divided by the scale, sinks in bits."""

    softcap: float | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None

    @classmethod
    def of(
        cls, scale: float, softcap: float | None, alibi_slopes: Tensor | None, sinks: Tensor | None, query: Tensor
    ) -> "_KernelScoreMods":
        return cls(
            None if softcap is None else softcap / scale,
            None
            if alibi_slopes is None
            else (alibi_slopes.detach().to(query.device, torch.float32) / scale).contiguous(),
            None if sinks is None else (sinks.detach().to(query.device, torch.float32) * _LOG2_E).contiguous(),
        )


@triton.jit
def _count(n, LAST):
    for i in tl.range(n):  # pyright: ignore[reportGeneralTypeIssues]  (Triton's, not Python's)
        tl.store(LAST, i)


def _launch(kernel: Any, n_programs: int, tile: Tile, *arguments, **constants) -> None:
    """Start ``n_programs`` programs of a kernel on the device where its tensors lie.

    Descriptors made in a kernel need a little scratch memory, which Triton requests from an allocator in a context
    variable. The allocator is set in a copy of the context, so the caller's context does not change.
    """
    if "BLOCK_Q" in kernel.arg_names:
        constants |= {"BLOCK_Q": tile.block_q, "BLOCK_K": tile.block_k}
    else:
        constants |= {"BLOCK": tile.block_q}

    def start() -> None:
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
        kernel[(n_programs,)](*arguments, **constants, num_warps=tile.num_warps, num_stages=tile.num_stages)

    device = next(x.device for x in arguments if isinstance(x, Tensor))
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if elsewhere else contextlib.nullcontext():
        contextvars.copy_context().run(start)


def _n_blocks(n: int, block: int) -> int:
    return -(-n // block)


def _power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
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


def _with_descriptors(
    matrices: tuple[Tensor, ...], tile: Tile, sides: str, key_lengths: Tensor | None
) -> tuple[Tensor | TensorDescriptor, ...]:
    """Return the matrices, or descriptors of them if the tile wants descriptors from the host and they are possible.

    A side is ``q`` or ``k``: the tile size by which a matrix is read. If sequences have their own numbers of keys, or
    an axis is expanded (stride 0), each program makes its own descriptors.
    """
    if not tile.host or key_lengths is not None or any(0 in x.stride() for x in matrices):
        return matrices
    blocks = ({"q": tile.block_q, "k": tile.block_k}[side] for side in sides)
    return tuple(
        TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, block, max(16, _power_of_two(x.shape[-1]))])
        for x, block in zip(matrices, blocks, strict=True)
    )


def _mask_arguments(mask: KernelBand | TileTable, *, by_key: bool = False) -> tuple:
    """Return the kernel arguments that select the tiles: the two numbers of a band, or the lists of a tile table.

    The last argument of a table has the strides of the lists between sequences and between heads; 0 for a shared list.
    """
    if isinstance(mask, KernelBand):
        return mask.left, mask.right
    visits = mask.by_key if by_key else mask.by_query
    starts = visits.starts
    strides = tuple(0 if starts.shape[axis] == 1 else starts.stride(axis) for axis in (0, 1))
    return *visits, mask.pictures, strides


def _addressable(matrix: Tensor) -> Tensor:
    """Return the tensor itself if a descriptor can describe it, otherwise a copy for which this is possible.

    Rows must be contiguous and begin at multiples of 16 bytes; the copy pads its rows accordingly.
    """
    unit = 16 // matrix.element_size()
    d = matrix.shape[-1]
    *outer, row_stride, entry_stride = matrix.stride()
    aligned = matrix.data_ptr() % 16 == 0 and all(stride % unit == 0 for stride in (*outer, row_stride))
    if aligned and row_stride >= d and entry_stride == 1:
        return matrix
    return _new_like(matrix, _n_blocks(d, unit) * unit)[..., :d].copy_(matrix)


def _new_like(matrix: Tensor, width: int | None = None) -> Tensor:
    """Return uninitialised memory of this shape without gaps, whose axes lie in memory in the order of ``matrix``.

    Heads that are a view of ``(b, n, h, d)`` thus give results that become ``(b, n, h d)`` without a copy. Rows stay
    contiguous; ``width`` is their new length. An expanded axis (stride 0) counts as the outermost one.
    """
    order = sorted(range(3), key=lambda axis: (matrix.stride(axis) > 0, -matrix.stride(axis)))
    sizes = (*(matrix.shape[axis] for axis in order), matrix.shape[3] if width is None else width)
    return matrix.new_empty(sizes).permute(*(order.index(axis) for axis in range(3)), 3)


def _tiles(query: Tensor, by_table: bool) -> Configuration:
    if IS_INTERPRETED:
        return INTERPRETED
    capability = (_properties(query.device).major, _properties(query.device).minor)
    return configuration(query.shape[-1], query.element_size(), capability, by_table=by_table)


@functools.cache
def _properties(device: torch.device) -> Any:
    """Return the properties of a device, which PyTorch looks up anew at every call."""
    return torch.cuda.get_device_properties(device)


def _n_parts(query: Tensor, key: Tensor) -> int:
    """Return the number of parts that gives every multiprocessor about two programs of about 512 keys or more."""
    b, g, m, _ = key.shape
    if IS_INTERPRETED:
        return 2
    n_programs = 2 * _properties(query.device).multi_processor_count
    return max(1, round(min(n_programs / (b * g), m / 512)))


def _with_decode_rows(n_heads: int, tile: Tile, query: Tensor) -> Tile:
    """Return a tile for decoding with a row for each head, or as many as fit into the registers of its warps.

    Further heads get programs of their own, which find the keys in the cache.
    """
    most = max(tile.block_q, MAX_DECODE_ROWS[query.element_size()])
    return tile._replace(block_q=min(max(tile.block_q, _power_of_two(n_heads)), most))
