"""FlashAttention on a GPU: the kernels of :mod:`lessons_lib.flash.triton_kernels`, joined into one differentiable step.

Who sees whom is a :class:`~lessons_lib.flash.band.Band` or a :class:`~lessons_lib.flash.table.TileTable`; each has its
own three kernels, which take the same arguments but for that.

Needs ``triton``, so it is imported only when asked for. With ``TRITON_INTERPRET=1`` in the environment when Triton is
imported, the kernels run in Triton's interpreter, on the CPU and slowly: that is how they are tested without a GPU.
"""

import contextlib
import contextvars
import importlib.metadata
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lessons_lib.derivatives import check_backward_only, first_derivatives_only
from lessons_lib.flash import table_kernels
from lessons_lib.flash import triton_kernels as kernels
from lessons_lib.flash.band import Band
from lessons_lib.flash.configurations import INTERPRETED, Configuration, Tile, configuration
from lessons_lib.flash.scores import Scores
from lessons_lib.flash.table import SIDE, TileTable

STEP = "flash_attention with backend='triton'"  # as errors name it
IS_INTERPRETED = not isinstance(kernels.attend, triton.JITFunction)
LOG2_E = math.log2(math.e)
ROW_BLOCK = 128  # rows of numbers kept for the backward pass are padded to a multiple: every block_q divides it
MERGED = 4096  # numbers that a program merging parts holds at once
MOST_ROWS = {2: 64, 4: 16}  # of one tile when decoding, by the bytes of a number


@torch.compiler.disable(reason="the kernels are started as they are, between two compiled graphs")
def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Band | TileTable,
    scores: Scores | float,
    key_lengths: Tensor | None,
    tiles: Configuration | None = None,
    *,
    at_end: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return ``(out, lse)``, both differentiable once. Arguments are those of ``flash_attention``, already checked;
    a number is the scale of scores that nothing else changes.

    With ``at_end`` a sequence's queries stand at the end of its own keys: ``key_lengths`` are ``cache_lengths``. One
    query for which no gradient is wanted is decoding: its keys are divided over the whole device. Nothing here waits
    for the device, unless ``key_lengths`` lie elsewhere.

    Raises:
        NotImplementedError: in forward mode, and inside a transform of ``torch.func``.
    """
    scores = scores if isinstance(scores, Scores) else Scores(scores)
    given = [x for x in (query, key, value, scores.slopes, scores.sinks) if x is not None]
    check_backward_only(STEP, *given)
    if IS_INTERPRETED and query.dtype == torch.bfloat16:  # the interpreter multiplies the bits of bfloat16 as integers
        q, k, v = (x.float() for x in (query, key, value))
        out, lse = triton_attention(q, k, v, seen, scores, key_lengths, tiles, at_end=at_end)
        return out.to(torch.bfloat16), lse
    tiles = _tiles(query, isinstance(seen, TileTable)) if tiles is None else tiles
    if key_lengths is not None:
        key_lengths = key_lengths.to(query.device).contiguous()  # the kernels read entry b at b
    wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    if query.shape[2] == 1 and isinstance(seen, Band) and not wants_gradient:
        n_parts = _n_parts(query, key)
        return decode(query, key, value, seen, scores, key_lengths, tiles.attend_part, n_parts, at_end=at_end)
    return TritonAttention.apply(
        query, key, value, scores.slopes, scores.sinks, key_lengths, seen, scores.scale, scores.softcap, at_end, tiles
    )


class TritonAttention(torch.autograd.Function):
    """``apply(query, key, value, slopes, sinks, key_lengths, seen, scale, softcap, at_end, tiles)``: ``(out, lse)``.

    Both carry gradients, to queries, keys, values, slopes and sinks.
    """

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slopes: Tensor | None,
        sinks: Tensor | None,
        key_lengths: Tensor | None,
        seen: Band | TileTable,
        scale: float,
        softcap: float | None,
        at_end: bool,
        tiles: Configuration,
    ) -> tuple[Tensor, Tensor]:
        """Average the values for every block of queries."""
        query, key, value = (_addressable(x) for x in (query, key, value))
        (b, h, n, _), (_, g, m, _) = query.shape, key.shape
        out = _new_like(query)
        lse = query.new_empty(b, h, n, dtype=torch.float32)
        changes = _Changes.of(scale, softcap, slopes, sinks, query)
        tile = tiles.attend
        if isinstance(seen, TileTable):
            kernel, choices = table_kernels.attend_by_table, {"SIDE": SIDE}
        else:
            whole_tiles = m // tile.block_k * tile.block_k
            is_even = tile.specialize and key_lengths is None and seen[1:] == (whole_tiles, None, None)
            kernel, choices = kernels.attend, {"SPECIALIZE": tile.specialize, "EVEN_K": is_even}
        _launch(
            kernel,
            b * h * _n_blocks(n, tile.block_q),
            tile,
            *_described((query, key, value), tile, "qkk", key_lengths),
            *(out, lse, key_lengths, changes.slopes, changes.sinks, *map(_strides, (query, key, value, out))),
            *(scale, changes.softcap, *_led_by(seen), h, g, n, m),
            **_constants(query),
            **choices,
            AT_END=at_end,
        )
        ctx.save_for_backward(query, key, value, slopes, sinks, out, lse, key_lengths)
        ctx.seen, ctx.scale, ctx.softcap, ctx.at_end, ctx.tiles = seen, scale, softcap, at_end, tiles
        return out, lse

    @staticmethod
    @first_derivatives_only(STEP)
    def backward(ctx, saved: tuple[Any, ...], grad_out: Tensor, grad_lse: Tensor):
        """Recompute the weights twice: once for the keys' and values' gradients, once for the queries'.

        Each pass is made only if somebody waits for what it computes.
        """
        query, key, value, slopes, sinks, out, lse, key_lengths = saved
        seen, tiles = ctx.seen, ctx.tiles
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
        changes = _Changes.of(ctx.scale, ctx.softcap, slopes, sinks, query)
        given = (query, key, value, grad_out)
        strides = tuple(map(_strides, given))
        sizes = (h, g, n, m, n_padded)
        by_table = isinstance(seen, TileTable)
        grad_query = grad_key = grad_value = grad_slopes = grad_sinks = None
        if wants_key or wants_value:
            grad_key, grad_value = _new_like(key), _new_like(value)
            tile = tiles.key_value_gradients
            _launch(
                table_kernels.key_value_gradients_by_table if by_table else kernels.key_value_gradients,
                b * g * _n_blocks(m, tile.block_k),
                tile,
                *_described(given, tile, "qkkq", key_lengths),
                *(bits, delta, grad_key, grad_value, key_lengths, changes.slopes),
                *(*strides, *map(_strides, (grad_key, grad_value))),
                *(ctx.scale, changes.softcap, *_led_by(seen, by_key=True), *sizes),
                **constants,
                **({"SIDE": SIDE} if by_table else {"BRANCH": tile.branch}),
                AT_END=ctx.at_end,
            )
        if wants_query or wants_slopes:
            grad_query = _new_like(query)
            of_rows = torch.zeros_like(delta) if wants_slopes else None
            tile = tiles.query_gradients
            _launch(
                table_kernels.query_gradients_by_table if by_table else kernels.query_gradients,
                b * h * _n_blocks(n, tile.block_q),
                tile,
                *_described(given, tile, "qkkq", key_lengths),
                *(bits, delta, grad_query, of_rows, key_lengths, changes.slopes, *strides, _strides(grad_query)),
                *(ctx.scale, changes.softcap, *_led_by(seen), *sizes),
                **constants,
                **({"SIDE": SIDE} if by_table else {}),
                AT_END=ctx.at_end,
            )
            if of_rows is not None:
                grad_slopes = of_rows.sum(dim=(0, 2)).to(slopes.dtype)
        if wants_sinks and changes.sinks is not None:  # a weight times minus delta: it has no value of its own
            weight = torch.exp2(changes.sinks[:, None] - bits)
            grad_sinks = -(weight * delta)[..., :n].sum(dim=(0, 2)).to(sinks.dtype)
        return grad_query, grad_key, grad_value, grad_slopes, grad_sinks, *(None,) * 6


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    band: Band,
    scores: Scores | float,
    key_lengths: Tensor | None,
    tile: Tile,
    n_parts: int,
    *,
    at_end: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend with one query a sequence to ``n_parts`` parts of its keys at once, and merge them: two kernels, or one.

    The query heads that share a key/value head become the rows of one matrix, so the keys are read once for all of
    them, up to the rows that a tile has room for. No gradients.
    """
    scores = scores if isinstance(scores, Scores) else Scores(scores)
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
    changes = _Changes.of(*scores, query)
    _launch(
        kernels.attend_part,
        b * g * _n_blocks(h // g, tile.block_q) * n_parts,
        tile,
        *(heads, key, value, found, found_lse, key_lengths, changes.slopes, changes.sinks if n_parts == 1 else None),
        *map(_strides, (heads, key, value, found[:, :, 0].unflatten(1, (g, h // g)))),
        *(scores.scale, changes.softcap, band.left, g, h // g, band.m, n_parts),
        **constants,
        AT_END=at_end,
    )
    if n_parts > 1:
        width, parts = constants["WIDTH"], _power_of_two(n_parts)
        _launch(
            kernels.merge_parts,
            b * h,
            Tile(min(parts, MERGED // width), 1, num_warps=4, num_stages=1),
            *(found, found_lse, out, lse, changes.sinks, _strides(found), _strides(out), h, n_parts),
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


class _Changes(NamedTuple):
    """What becomes of scores, as the kernels take it: cap and slopes as products q · k, sinks in bits."""

    softcap: float | None
    slopes: Tensor | None
    sinks: Tensor | None

    @classmethod
    def of(
        cls, scale: float, softcap: float | None, slopes: Tensor | None, sinks: Tensor | None, query: Tensor
    ) -> "_Changes":
        return cls(
            None if softcap is None else softcap / scale,
            None if slopes is None else (slopes.detach().to(query.device, torch.float32) / scale).contiguous(),
            None if sinks is None else (sinks.detach().to(query.device, torch.float32) * LOG2_E).contiguous(),
        )


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

    device = next(x.device for x in arguments if isinstance(x, Tensor))
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


def _described(
    matrices: tuple[Tensor, ...], tile: Tile, sides: str, key_lengths: Tensor | None
) -> tuple[Tensor | TensorDescriptor, ...]:
    """Return the matrices, or their descriptors if the tile wants the host to make them and it can.

    A side is ``q`` or ``k``: by which of the tile's two sizes a matrix is read. Where a sequence has its own number of
    keys, or one number in memory stands for several, each program describes what it reads.
    """
    if not tile.host or tile.specialize or key_lengths is not None or any(0 in x.stride() for x in matrices):
        return matrices
    blocks = ({"q": tile.block_q, "k": tile.block_k}[side] for side in sides)
    return tuple(
        TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, block, max(16, _power_of_two(x.shape[-1]))])
        for x, block in zip(matrices, blocks, strict=True)
    )


def _led_by(seen: Band | TileTable, *, by_key: bool = False) -> tuple:
    """What tells a kernel which tiles to visit: a band's two numbers, or a table's lists and pictures.

    Last comes how far the lists of two sequences, and of two heads, lie apart; 0 where all share one.
    """
    if isinstance(seen, Band):
        return seen.left, seen.right
    visits = seen.by_key if by_key else seen.by_query
    starts = visits.starts
    apart = tuple(0 if starts.shape[axis] == 1 else starts.stride(axis) for axis in (0, 1))
    return *visits, seen.pictures, apart


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


def _tiles(query: Tensor, by_table: bool) -> Configuration:
    if IS_INTERPRETED:
        return INTERPRETED
    capability = torch.cuda.get_device_capability(query.device)
    return configuration(query.shape[-1], query.element_size(), capability, by_table=by_table)


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
