"""The kernels of :mod:`lessons_lib.flash.triton_kernels` for any rule: a table says which tiles to visit.

Equations, arguments and conventions are the same. Instead of the bounds of a band, each program reads its own list
(:class:`lessons_lib.flash.block_mask.Visits`): the position of the next tile, and the picture with its mask, or -1 if
the tile is fully visible. A square of the table is computed in tiles whose sides divide it, so one table serves all
three kernels on every device: the tiles of a square are steps of the same loop.
"""

# Kernels are compiled by Triton, not run by Python, and O is the output's name:
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: E741

import triton
import triton.language as tl

from lessons_lib.flash.triton_kernels import (
    LOG2_E,
    LOWEST,
    _average,
    _block_of_queries,
    _changed,
    _end,
    _finish,
    _length,
    _matrix,
    _of_head,
    _rows,
    _send_to_keys,
    _send_to_queries,
    _split,
    _store,
)

# --- forward --------------------------------------------------------------------------------------------------------


@triton.jit
def attend_by_table(
    Q, K, V, O, LSE, KEY_LENGTHS, SLOPES, SINKS, q_strides, k_strides, v_strides, o_strides,
    scale, softcap, STARTS, WHERE, WHICH, PICTURES, table_strides, h, g, n, m,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute one block of rows of the output, and their log-sum-exps."""
    b, head, first = _block_of_queries(h, n, BLOCK_Q, None)
    i = first + tl.arange(0, BLOCK_Q)
    length = _length(KEY_LENGTHS, b, m)
    position = i + _end(length, m, AT_END) - n
    slope = _of_head(SLOPES, head)
    queries = _matrix(Q, q_strides, b, head, n, D, WIDTH, BLOCK_Q)
    keys = _matrix(K, k_strides, b, head // (h // g), length, D, WIDTH, BLOCK_K)
    values = _matrix(V, v_strides, b, head // (h // g), length, D, WIDTH, BLOCK_K)
    q = _rows(queries, first)

    o = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    peak = tl.full([BLOCK_Q], LOWEST, tl.float32)
    bits = scale * LOG2_E
    start, stop = _steps(STARTS, table_strides, b, head, first // SIDE, BLOCK_K, SIDE)
    for step in tl.range(start, stop):
        j0, which = _step(WHERE, WHICH, step, BLOCK_K, SIDE)
        s = tl.dot(q, _rows(keys, j0).T, input_precision=PRECISION)
        s, _ = _changed(s, softcap, slope, position[:, None], (j0 + tl.arange(0, BLOCK_K))[None, :])
        if which >= 0:
            s = tl.where(_picture(PICTURES, which, first, j0, BLOCK_Q, BLOCK_K, SIDE), s, float("-inf"))
        o, total, peak = _average(o, total, peak, s, values, j0, bits, PRECISION)

    o, lse = _finish(o, total, peak, _of_head(SINKS, head))
    _store(O, o_strides, b, head, i, n, o, D, WIDTH)
    tl.store(LSE + (b * h + head) * n + i, lse, mask=i < n)


# --- backward -------------------------------------------------------------------------------------------------------


@triton.jit
def key_value_gradients_by_table(
    Q, K, V, dO, BITS, DELTA, dK, dV, KEY_LENGTHS, SLOPES, q_strides, k_strides, v_strides, do_strides, dk_strides,
    dv_strides, scale, softcap, STARTS, WHERE, WHICH, PICTURES, table_strides, h, g, n, m, n_padded,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute one block of rows of dK and dV: visit the queries of all heads that share it. A tile's row is a key."""
    b, head, block = _split(tl.program_id(0), g, tl.cdiv(m, BLOCK_K))
    first = block * BLOCK_K
    j = first + tl.arange(0, BLOCK_K)
    length = _length(KEY_LENGTHS, b, m)
    diagonal = j + n - _end(length, m, AT_END)
    keys = _matrix(K, k_strides, b, head, length, D, WIDTH, BLOCK_K)
    values = _matrix(V, v_strides, b, head, length, D, WIDTH, BLOCK_K)
    k = _rows(keys, first)
    v = _rows(values, first)

    dk = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    bits = scale * LOG2_E
    for member in tl.range(0, h // g):
        query_head = head * (h // g) + member
        queries = _matrix(Q, q_strides, b, query_head, n, D, WIDTH, BLOCK_Q)
        d_outputs = _matrix(dO, do_strides, b, query_head, n, D, WIDTH, BLOCK_Q)
        slope = _of_head(SLOPES, query_head)
        row = (b * h + query_head) * n_padded
        start, stop = _steps(STARTS, table_strides, b, query_head, first // SIDE, BLOCK_Q, SIDE)
        for step in tl.range(start, stop):
            i0, which = _step(WHERE, WHICH, step, BLOCK_Q, SIDE)
            i = i0 + tl.arange(0, BLOCK_Q)
            q = _rows(queries, i0)
            s = tl.dot(k, q.T, input_precision=PRECISION)
            s, slack = _changed(s, softcap, slope, i[None, :], diagonal[:, None])
            p = tl.exp2(s * bits - tl.load(BITS + row + i)[None, :])
            if which >= 0:
                p = tl.where(_picture(PICTURES, which, i0, first, BLOCK_Q, BLOCK_K, SIDE).T, p, 0.0)
            dk, dv = _send_to_keys(dk, dv, p, softcap, slack, q, v, d_outputs, DELTA + row, i0, i, PRECISION)

    exists = (j < length)[:, None]
    _store(dK, dk_strides, b, head, j, m, tl.where(exists, dk * scale, 0.0), D, WIDTH)
    _store(dV, dv_strides, b, head, j, m, tl.where(exists, dv, 0.0), D, WIDTH)


@triton.jit
def query_gradients_by_table(
    Q, K, V, dO, BITS, DELTA, dQ, dSLOPES, KEY_LENGTHS, SLOPES, q_strides, k_strides, v_strides, do_strides, dq_strides,
    scale, softcap, STARTS, WHERE, WHICH, PICTURES, table_strides, h, g, n, m, n_padded,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Compute one block of rows of dQ: visit the keys again."""
    b, head, first = _block_of_queries(h, n, BLOCK_Q, None)
    i = first + tl.arange(0, BLOCK_Q)
    length = _length(KEY_LENGTHS, b, m)
    position = i + _end(length, m, AT_END) - n
    slope = _of_head(SLOPES, head)
    queries = _matrix(Q, q_strides, b, head, n, D, WIDTH, BLOCK_Q)
    d_outputs = _matrix(dO, do_strides, b, head, n, D, WIDTH, BLOCK_Q)
    keys = _matrix(K, k_strides, b, head // (h // g), length, D, WIDTH, BLOCK_K)
    values = _matrix(V, v_strides, b, head // (h // g), length, D, WIDTH, BLOCK_K)
    q = _rows(queries, first)
    do = _rows(d_outputs, first)
    padded_row = (b * h + head) * n_padded
    row_bits = tl.load(BITS + padded_row + i)
    delta = tl.load(DELTA + padded_row + i)

    dq = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    dslope = tl.zeros([BLOCK_Q], tl.float32)
    bits = scale * LOG2_E
    start, stop = _steps(STARTS, table_strides, b, head, first // SIDE, BLOCK_K, SIDE)
    for step in tl.range(start, stop):
        j0, which = _step(WHERE, WHICH, step, BLOCK_K, SIDE)
        j = j0 + tl.arange(0, BLOCK_K)
        k = _rows(keys, j0)
        s = tl.dot(q, k.T, input_precision=PRECISION)
        s, slack = _changed(s, softcap, slope, position[:, None], j[None, :])
        p = tl.exp2(s * bits - row_bits[:, None])
        if which >= 0:
            p = tl.where(_picture(PICTURES, which, first, j0, BLOCK_Q, BLOCK_K, SIDE), p, 0.0)
        dq, dslope = _send_to_queries(
            dq, dslope, dSLOPES, p, softcap, slack, k, values, do, delta, position, j0, j, PRECISION)  # fmt: skip
    _store(dQ, dq_strides, b, head, i, n, dq * scale, D, WIDTH)
    if dSLOPES is not None:
        tl.store(dSLOPES + padded_row + i, dslope, mask=i < n)


# --- parts ------------------------------------------------------------------------------------------------------------


@triton.jit
def _steps(STARTS, table_strides, b, head, block, BLOCK: tl.constexpr, SIDE: tl.constexpr):
    """Return the range of a block's steps: each square that it visits takes ``SIDE / BLOCK`` steps."""
    mine = STARTS + b * table_strides[0] + head * table_strides[1] + block
    return tl.load(mine) * (SIDE // BLOCK), tl.load(mine + 1) * (SIDE // BLOCK)


@triton.jit
def _step(WHERE, WHICH, step, BLOCK: tl.constexpr, SIDE: tl.constexpr):
    """Return the first position of a step's tile on the visited side, and the picture of its square."""
    visit = step // (SIDE // BLOCK)
    return tl.load(WHERE + visit) * SIDE + step % (SIDE // BLOCK) * BLOCK, tl.load(WHICH + visit)


@triton.jit
def _picture(PICTURES, which, i0, j0, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, SIDE: tl.constexpr):
    """Return the mask of the tile of a square that begins with query ``i0`` and key ``j0``, a row of bits a query."""
    rows = tl.load(PICTURES + which * SIDE + i0 % SIDE + tl.arange(0, BLOCK_Q))
    return ((rows[:, None] >> (j0 % SIDE + tl.arange(0, BLOCK_K))[None, :]) & 1) != 0
