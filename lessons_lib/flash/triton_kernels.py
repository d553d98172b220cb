"""FlashAttention in Triton, forward and backward, to be read beside its equations.

One head: ``n`` queries, ``m`` keys, scale τ. A hidden key has score -∞.

    attend                    S = τ Q Kᵀ      ℓ_i = log Σ_j exp S_ij      P = exp(S - ℓ)      O = P V
    row_terms                 δ_i = dO_i · O_i - dℓ_i
    key_value_gradients       dV = Pᵀ dO      dP = dO Vᵀ      dS = P ∘ (dP - δ)      dK = τ dSᵀ Q
    query_gradients           dQ = τ dS K

``attend`` visits the keys of one block of queries tile by tile and keeps three running values, as
:mod:`lessons_lib.flash.reference` does. The backward kernels recompute each tile of P from ℓ: one kernel owns a block
of keys and visits the queries, the other one owns a block of queries and visits the keys. No program adds to the result
of another one, so there are no atomic operations and the same input gives the same bits [1]_. ``attend_part`` is for
decoding, where there is one query: its keys are cut into parts that are attended to in parallel, and ``merge_parts``
merges the results.

Conventions:

* A capital letter is a matrix in memory, a small letter a tile of it on the chip; ``dX`` is the gradient of ``X``.
* ``tl.constexpr`` arguments are fixed when a kernel is compiled. So is ``None``: the code that it guards is removed.
* A *descriptor* is a matrix with its bounds; elements beyond the bounds read as zero. Hopper's copy engine moves such
  tiles by itself; older devices get ordinary loads from the same source. All descriptors of a kernel are made before
  the first one is waited for.
* Positions and bounds are those of :class:`lessons_lib.flash.band.KernelBand`: query ``i`` is at position ``i + m - n``
  and attends to the keys from ``left`` behind it to ``right`` ahead, among the first ``KEY_LENGTHS[b]`` of sequence
  ``b``.
* Inside the kernels logarithms are to base 2, as the hardware's exponential is: ``scale * LOG2_E`` converts scores to
  bits. Log-sum-exps outside the kernels are natural.
* Sums, and the tiles that are added up, are float32; tiles are rounded to the inputs' type before a product.

The kernels use what Triton 3.6 and 3.7 have in common, for devices of compute capability 8.0 and newer.

.. [1] Dao, *FlashAttention-2*, 2023. arXiv:2307.08691.
"""

# Kernels are compiled by Triton, not run by Python, and O is the output's name:
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: E741

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.0e38)  # finite, so that for a row that has seen nothing exp2(-inf - LOWEST) is 0


# --- forward --------------------------------------------------------------------------------------------------------


@triton.jit
def attend(
    Q, K, V, O, LSE, KEY_LENGTHS, SLOPES, SINKS, q_strides, k_strides, v_strides, o_strides,
    scale, softcap, left, right, h, g, n, m,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr,
):  # fmt: skip
    """Compute one block of rows of the output, and their log-sum-exps."""
    b, head, first = _block_of_queries(h, n, BLOCK_Q, right)
    i = first + tl.arange(0, BLOCK_Q)
    length = _length(KEY_LENGTHS, b, m)
    before = _end(length, m, AT_END) - n
    position = i + before
    slope = _of_head(SLOPES, head)
    queries = _matrix(Q, q_strides, b, head, n, D, WIDTH, BLOCK_Q)
    keys = _matrix(K, k_strides, b, head // (h // g), length, D, WIDTH, BLOCK_K)
    values = _matrix(V, v_strides, b, head // (h // g), length, D, WIDTH, BLOCK_K)
    q = _rows(queries, first)

    o = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    peak = tl.full([BLOCK_Q], LOWEST, tl.float32)
    bits = scale * LOG2_E
    start, inner, stop = _keys_in_sight(first + before, left, right, length, BLOCK_Q, BLOCK_K)
    if left is not None:  # a window is short: one loop
        o, total, peak = _take_in_keys(
            o, total, peak, q, keys, values, start, stop, bits, softcap, slope, position, left, right, length,
            BLOCK_K, PRECISION, MASKED=True)  # fmt: skip
    else:
        o, total, peak = _take_in_keys(
            o, total, peak, q, keys, values, start, inner, bits, softcap, slope, position, left, right, length,
            BLOCK_K, PRECISION, MASKED=False)  # fmt: skip
        o, total, peak = _take_in_keys(
            o, total, peak, q, keys, values, inner, stop, bits, softcap, slope, position, left, right, length,
            BLOCK_K, PRECISION, MASKED=True)  # fmt: skip

    o, lse = _finish(o, total, peak, _of_head(SINKS, head))
    _store(O, o_strides, b, head, i, n, o, D, WIDTH)
    tl.store(LSE + (b * h + head) * n + i, lse, mask=i < n)


@triton.jit
def attend_part(
    Q, K, V, O, LSE, KEY_LENGTHS, SLOPES, SINKS, q_strides, k_strides, v_strides, o_strides,
    scale, softcap, left, g, n, m, parts,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr,
):  # fmt: skip
    """Compute attention of one query, at the last position, to one of ``parts`` parts of its keys.

    Here the ``n`` rows of ``Q`` are the query's heads that share a key/value head. ``O`` and ``LSE`` are over
    ``(b, g, n, parts)``; a part without keys leaves 0 and -∞, which the merge ignores. Programs that read the same keys
    follow one another.
    """
    n_blocks = tl.cdiv(n, BLOCK_Q)
    b, head, part = _split(tl.program_id(0), g, parts * n_blocks)
    first = part % n_blocks * BLOCK_Q
    part = part // n_blocks
    length = _length(KEY_LENGTHS, b, m)
    last = _end(length, m, AT_END) - 1
    start = 0
    if left is not None:
        start = tl.maximum(last - left, 0)
    size = tl.cdiv(tl.cdiv(tl.maximum(length - start, 0), BLOCK_K), parts) * BLOCK_K
    start += part * size
    stop = tl.minimum(start + size, length)
    inner = start + tl.maximum(stop - start, 0) // BLOCK_K * BLOCK_K

    queries = _matrix(Q, q_strides, b, head, n, D, WIDTH, BLOCK_Q)
    keys = _matrix(K, k_strides, b, head, length, D, WIDTH, BLOCK_K)
    values = _matrix(V, v_strides, b, head, length, D, WIDTH, BLOCK_K)
    q = _rows(queries, first)
    o = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    peak = tl.full([BLOCK_Q], LOWEST, tl.float32)
    i = first + tl.arange(0, BLOCK_Q)
    slope = _of_heads(SLOPES, head * n, i, n)
    if slope is not None:
        slope = slope[:, None]
    position = tl.full([BLOCK_Q], 0, tl.int32) + last
    bits = scale * LOG2_E
    o, total, peak = _take_in_keys(
        o, total, peak, q, keys, values, start, inner, bits, softcap, slope, position, None, None, stop,
        BLOCK_K, PRECISION, MASKED=False)  # fmt: skip
    o, total, peak = _take_in_keys(
        o, total, peak, q, keys, values, inner, stop, bits, softcap, slope, position, None, None, stop,
        BLOCK_K, PRECISION, MASKED=True)  # fmt: skip

    o, lse = _finish(o, total, peak, _of_heads(SINKS, head * n, i, n))
    _store(O + part * D, o_strides, b, head, i, n, o, D, WIDTH)
    tl.store(LSE + ((b * g + head) * n + i) * parts + part, lse, mask=i < n)


@triton.jit
def merge_parts(
    FOUND, FOUND_LSE, O, LSE, SINKS, found_strides, o_strides, h, parts,
    D: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Merge the results of one head's query for the parts of its keys: o = Σ_p w_p o_p / Σ_p w_p with w_p = exp ℓ_p.

    It is attention once more, to one key a part, whose score is ℓ_p. ``FOUND`` is over ``(b, h, parts)``; PARTS is the
    power of two that ``parts`` fits in.
    """
    b, head, _ = _split(tl.program_id(0), h, 1)
    lse = FOUND_LSE + (b * h + head) * parts
    everyone = tl.arange(0, PARTS)[None, :]
    scores = tl.load(lse + everyone, mask=everyone < parts, other=float("-inf")) * LOG2_E
    peak = tl.maximum(tl.max(scores, 1), LOWEST)
    total = tl.sum(tl.exp2(scores - peak[:, None]), 1)
    o = tl.zeros([1, WIDTH], tl.float32)
    for first in tl.range(0, parts, BLOCK):
        part = first + tl.arange(0, BLOCK)
        bits = tl.load(lse + part, mask=part < parts, other=float("-inf")) * LOG2_E
        found = _load(FOUND, found_strides, b, head, part, parts, D, WIDTH)
        o += tl.sum(tl.exp2(bits - peak)[:, None] * found, 0)[None, :]

    o, merged = _finish(o, total, peak, _of_head(SINKS, head))
    row = tl.arange(0, 1)
    _store(O, o_strides, b, head, row, 1, o, D, WIDTH)
    tl.store(LSE + b * h + head + row, merged)


@triton.jit
def _take_in_keys(
    o, total, peak, q, keys, values, start, stop, bits, softcap, slope, position, left, right, length,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update the running values with the keys from ``start`` to ``stop``, a tile at a time."""
    for j0 in tl.range(start, stop, BLOCK_K):
        s = tl.dot(q, _rows(keys, j0).T, input_precision=PRECISION)
        s, _ = _changed(s, softcap, slope, position[:, None], (j0 + tl.arange(0, BLOCK_K))[None, :])
        if MASKED:
            s = tl.where(_sees(position, j0, left, right, length, BLOCK_K), s, float("-inf"))
        o, total, peak = _average(o, total, peak, s, values, j0, bits, PRECISION)
    return o, total, peak


@triton.jit
def _average(o, total, peak, s, values, j0, bits, PRECISION: tl.constexpr):
    """Update the running values with the scores and values of one tile: a step of the online softmax."""
    new_peak = tl.maximum(peak, tl.max(s, 1) * bits)
    p = tl.exp2(s * bits - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(p, 1)
    v = _rows(values, j0)
    o = tl.dot(p.to(v.dtype), v, o * shrink[:, None], input_precision=PRECISION)
    return o, total, new_peak


@triton.jit
def _finish(o, total, peak, sink=None):
    """Return the output and the log-sum-exp; 0 and -∞ for a row without keys. A sink counts in the sum only."""
    if sink is not None:
        new_peak = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.exp2(sink - new_peak)
        o *= shrink[:, None]
        peak = new_peak
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    return o / total[:, None], tl.where(empty, float("-inf"), (peak + tl.log2(total)) * LN_2)


# --- backward -------------------------------------------------------------------------------------------------------


@triton.jit
def row_terms(
    O, dO, LSE, dLSE, BITS, DELTA, o_strides, do_strides, h, n, n_padded,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the two numbers of each row that the backward pass needs: ℓ in bits, and δ.

    A row that saw no key, and a row of padding, gets ℓ = +∞: its weights exp2(S - ℓ) are then zero.
    """
    b, head, first = _block_of_queries(h, n_padded, BLOCK, None)
    i = first + tl.arange(0, BLOCK)
    row = b * h + head
    o = _load(O, o_strides, b, head, i, n, D, WIDTH)
    do = _load(dO, do_strides, b, head, i, n, D, WIDTH)
    lse = tl.load(LSE + row * n + i, mask=i < n, other=float("-inf"))
    dlse = tl.load(dLSE + row * n + i, mask=i < n, other=0.0)
    tl.store(BITS + row * n_padded + i, tl.where(lse == float("-inf"), float("inf"), lse * LOG2_E))
    tl.store(DELTA + row * n_padded + i, tl.sum(o * do, 1) - dlse)


@triton.jit
def key_value_gradients(
    Q, K, V, dO, BITS, DELTA, dK, dV, KEY_LENGTHS, SLOPES, q_strides, k_strides, v_strides, do_strides, dk_strides,
    dv_strides, scale, softcap, left, right, h, g, n, m, n_padded,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr,
):  # fmt: skip
    """Compute one block of rows of dK and dV: visit the queries of all heads that share it."""
    b, head, block = _split(tl.program_id(0), g, tl.cdiv(m, BLOCK_K))
    first = block * BLOCK_K
    j = first + tl.arange(0, BLOCK_K)
    length = _length(KEY_LENGTHS, b, m)
    end = _end(length, m, AT_END)
    keys = _matrix(K, k_strides, b, head, length, D, WIDTH, BLOCK_K)
    values = _matrix(V, v_strides, b, head, length, D, WIDTH, BLOCK_K)
    k = _rows(keys, first)
    v = _rows(values, first)

    dk = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    bits = scale * LOG2_E
    start, stop = _queries_in_sight(first, left, right, length, n, end, BLOCK_Q, BLOCK_K)
    for member in tl.range(0, h // g):
        query_head = head * (h // g) + member
        queries = _matrix(Q, q_strides, b, query_head, n, D, WIDTH, BLOCK_Q)
        d_outputs = _matrix(dO, do_strides, b, query_head, n, D, WIDTH, BLOCK_Q)
        row = (b * h + query_head) * n_padded
        dk, dv = _take_in_queries(
            dk, dv, k, v, queries, d_outputs, BITS + row, DELTA + row, start, stop, bits,
            softcap, _of_head(SLOPES, query_head), j + n - end, left, right, BLOCK_Q, PRECISION)  # fmt: skip

    exists = (j < length)[:, None]  # keys past the length read as zero rows, but zero is a score like any other
    _store(dK, dk_strides, b, head, j, m, tl.where(exists, dk * scale, 0.0), D, WIDTH)
    _store(dV, dv_strides, b, head, j, m, tl.where(exists, dv, 0.0), D, WIDTH)


@triton.jit
def _take_in_queries(
    dk, dv, k, v, queries, d_outputs, BITS, DELTA, start, stop, bits, softcap, slope, diagonal, left, right,
    BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the gradients from the queries ``start`` to ``stop`` to these keys, a tile at a time; a row is a key.

    With two accumulators there are too few registers for a second copy of the loop without the mask, for the tiles
    behind the diagonal.
    """
    for i0 in tl.range(start, stop, BLOCK_Q):
        i = i0 + tl.arange(0, BLOCK_Q)
        q = _rows(queries, i0)
        s = tl.dot(k, q.T, input_precision=PRECISION)
        s, slack = _changed(s, softcap, slope, i[None, :], diagonal[:, None])
        p = tl.exp2(s * bits - tl.load(BITS + i)[None, :])
        if left is not None or right is not None:
            p = tl.where(_seen_by(i, diagonal, left, right), p, 0.0)
        dk, dv = _send_to_keys(dk, dv, p, softcap, slack, q, v, d_outputs, DELTA, i0, i, PRECISION)
    return dk, dv


@triton.jit
def _send_to_keys(dk, dv, p, softcap, slack, q, v, d_outputs, DELTA, i0, i, PRECISION: tl.constexpr):
    """Add the gradients from one tile of queries to these keys and values."""
    do = _rows(d_outputs, i0)
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
    dp = tl.dot(v, do.T, input_precision=PRECISION)
    ds = p * (dp - tl.load(DELTA + i)[None, :])
    if softcap is not None:
        ds *= slack
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def query_gradients(
    Q, K, V, dO, BITS, DELTA, dQ, dSLOPES, KEY_LENGTHS, SLOPES, q_strides, k_strides, v_strides, do_strides, dq_strides,
    scale, softcap, left, right, h, g, n, m, n_padded,
    D: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
    AT_END: tl.constexpr,
):  # fmt: skip
    """Compute one block of rows of dQ: visit the keys again."""
    b, head, first = _block_of_queries(h, n, BLOCK_Q, right)
    i = first + tl.arange(0, BLOCK_Q)
    length = _length(KEY_LENGTHS, b, m)
    before = _end(length, m, AT_END) - n
    position = i + before
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
    start, inner, stop = _keys_in_sight(first + before, left, right, length, BLOCK_Q, BLOCK_K)
    if left is not None:
        dq, dslope = _revisit_keys(
            dq, dslope, dSLOPES, q, do, row_bits, delta, keys, values, start, stop, bits, softcap, slope, position,
            left, right, length, BLOCK_K, PRECISION, MASKED=True)  # fmt: skip
    else:
        dq, dslope = _revisit_keys(
            dq, dslope, dSLOPES, q, do, row_bits, delta, keys, values, start, inner, bits, softcap, slope, position,
            left, right, length, BLOCK_K, PRECISION, MASKED=False)  # fmt: skip
        dq, dslope = _revisit_keys(
            dq, dslope, dSLOPES, q, do, row_bits, delta, keys, values, inner, stop, bits, softcap, slope, position,
            left, right, length, BLOCK_K, PRECISION, MASKED=True)  # fmt: skip
    _store(dQ, dq_strides, b, head, i, n, dq * scale, D, WIDTH)
    if dSLOPES is not None:
        tl.store(dSLOPES + padded_row + i, dslope, mask=i < n)


@triton.jit
def _revisit_keys(
    dq, dslope, dSLOPES, q, do, row_bits, delta, keys, values, start, stop, bits, softcap, slope, position, left, right,
    length, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the gradients from the keys ``start`` to ``stop`` to these queries, a tile at a time."""
    for j0 in tl.range(start, stop, BLOCK_K):
        j = j0 + tl.arange(0, BLOCK_K)
        k = _rows(keys, j0)
        s = tl.dot(q, k.T, input_precision=PRECISION)
        s, slack = _changed(s, softcap, slope, position[:, None], j[None, :])
        p = tl.exp2(s * bits - row_bits[:, None])
        if MASKED:
            p = tl.where(_sees(position, j0, left, right, length, BLOCK_K), p, 0.0)
        dq, dslope = _send_to_queries(
            dq, dslope, dSLOPES, p, softcap, slack, k, values, do, delta, position, j0, j, PRECISION)  # fmt: skip
    return dq, dslope


@triton.jit
def _send_to_queries(
    dq, dslope, dSLOPES, p, softcap, slack, k, values, do, delta, position, j0, j, PRECISION: tl.constexpr
):  # fmt: skip
    """Add the gradients from one tile of keys to these queries, and to the slope of their head."""
    dp = tl.dot(do, _rows(values, j0).T, input_precision=PRECISION)
    ds = p * (dp - delta[:, None])
    if dSLOPES is not None:
        dslope -= tl.sum(ds * _distance(position[:, None], j[None, :]), 1)
    if softcap is not None:
        ds *= slack
    return tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION), dslope


# --- what is done to scores -----------------------------------------------------------------------------------------
#
# Softcap and slopes are given in the unit of the products q · k, that is divided by the scale.


@triton.jit
def _changed(s, softcap, slope, position, j):
    """Apply the cap, then subtract the distance bias; also return the derivative of the cap for the backward pass."""
    slack = s
    if softcap is not None:
        s = _capped(s, softcap)
        slack = 1 - (s / softcap) * (s / softcap)
    if slope is not None:
        s -= slope * _distance(position, j)
    return s, slack


@triton.jit
def _capped(s, softcap):
    """Keep scores within ``-softcap .. softcap``: softcap tanh(s / softcap)."""
    x = s / softcap
    square = x * x
    small = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))))
    large = 1 - 2 / (1 + tl.exp2(x * (2 * LOG2_E)))
    return softcap * tl.where(square < 0.0625, small, large)  # the second form cancels near 0, the first is a series


@triton.jit
def _distance(position, j):
    """Return the distance between a key and a query, on either side."""
    return tl.abs(position - j).to(tl.float32)


@triton.jit
def _of_head(NUMBERS, head):
    """Load the number of a head, or return None if there are none."""
    number = None
    if NUMBERS is not None:
        number = tl.load(NUMBERS + head)
    return number


@triton.jit
def _of_heads(NUMBERS, first, i, n):
    """Load the numbers of the heads that are rows of one tile, or return None if there are none."""
    numbers = None
    if NUMBERS is not None:
        numbers = tl.load(NUMBERS + first + i, mask=i < n, other=0.0)
    return numbers


@triton.jit
def _end(length, m, AT_END: tl.constexpr):
    """Return the end of the queries: the number of all keys, or the number of keys of their own sequence."""
    end = m
    if AT_END:
        end = length
    return end


# --- masks -----------------------------------------------------------------------------------------------------------


@triton.jit
def _sees(position, j0, left, right, length, BLOCK_K: tl.constexpr):
    """Return the mask of queries at ``position`` (rows) and keys from ``j0`` on (columns), one comparison a bound."""
    j = (j0 + tl.arange(0, BLOCK_K))[None, :]
    seen = j < length if right is None else j <= tl.minimum(position + right, length - 1)[:, None]
    if left is not None:
        seen = seen & (j >= (position - left)[:, None])
    return seen


@triton.jit
def _seen_by(i, diagonal, left, right):
    """Return the mask of queries ``i`` (columns) and keys (rows); ``diagonal`` is the query at a key's position."""
    if right is None:
        seen = i[None, :] <= (diagonal + left)[:, None]
    else:
        seen = i[None, :] >= (diagonal - right)[:, None]
        if left is not None:
            seen = seen & (i[None, :] <= (diagonal + left)[:, None])
    return seen


@triton.jit
def _keys_in_sight(position, left, right, length, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the keys ``start .. stop`` to which a block of queries attends, the first query being at ``position``.

    Without a left bound, all of them see all of ``start .. inner``, a whole number of tiles.
    """
    start = 0
    inner = length
    stop = length
    if left is not None:
        start = tl.maximum(position - left, 0)
    if right is not None:
        inner = tl.minimum(length, position + right + 1)
        stop = tl.minimum(length, position + right + BLOCK_Q)
    return start, tl.maximum(inner, 0) // BLOCK_K * BLOCK_K, stop


@triton.jit
def _queries_in_sight(first, left, right, length, n, m, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the queries ``start .. stop`` that attend to a block of keys, ``first`` being its first key.

    ``start`` is a multiple of the tile, so that no tile reaches past the padding of BITS and DELTA.
    """
    start = 0
    stop = n
    if right is not None:
        start = tl.maximum(first - right - m + n, 0) // BLOCK_Q * BLOCK_Q
    if left is not None:
        stop = tl.minimum(stop, first + BLOCK_K + left - m + n)
    if first >= length:
        stop = 0
    return start, stop


@triton.jit
def _length(KEY_LENGTHS, b, m):
    """Return the number of keys of sequence ``b``, at most ``m``: the host may not have checked the lengths."""
    length = m
    if KEY_LENGTHS is not None:
        length = tl.minimum(tl.maximum(tl.load(KEY_LENGTHS + b), 0), m).to(tl.int32)
    return length


@triton.jit
def _block_of_queries(h, n, BLOCK_Q: tl.constexpr, right):
    """Return the sequence, head and rows of this program. Causal blocks with the most keys are computed first."""
    b, head, block = _split(tl.program_id(0), h, tl.cdiv(n, BLOCK_Q))
    if right is not None:
        block = tl.cdiv(n, BLOCK_Q) - 1 - block
    return b, head, block * BLOCK_Q


@triton.jit
def _split(program, n_heads, n_blocks):
    """Count programs block by block, head by head, sequence by sequence. The large strides need 64-bit factors."""
    head = (program // n_blocks).to(tl.int64)
    return head // n_heads, head % n_heads, program % n_blocks


# --- memory ---------------------------------------------------------------------------------------------------------


@triton.jit
def _head(BASE, strides, b, head):
    """Return the address of the matrix of one head."""
    return BASE + b * strides[0] + head * strides[1]


@triton.jit
def _matrix(BASE, strides, b, head, n_rows, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return the descriptor of one head's ``n_rows x D`` matrix, in tiles of ``BLOCK x WIDTH``, and the head's place.

    WIDTH is D or just above. Where ``BASE`` is the descriptor of all heads, made by the host, nothing is made here.
    """
    descriptor = BASE
    if not isinstance(BASE, tl.tensor_descriptor):
        descriptor = tl.make_tensor_descriptor(
            _head(BASE, strides, b, head),
            shape=[tl.maximum(n_rows, 1), D],
            strides=[strides[2], 1],
            block_shape=[BLOCK, WIDTH],
        )
    return descriptor, b.to(tl.int32), head.to(tl.int32)


@triton.jit
def _rows(matrix, first):
    """Load a tile of a matrix: the rows from ``first`` on."""
    descriptor = matrix[0]
    if len(descriptor.block_shape) == 2:
        tile = descriptor.load([first, 0])
    else:
        tile = descriptor.load([matrix[1], matrix[2], first, 0]).reshape(descriptor.block_shape[2:])
    return tile


@triton.jit
def _load(BASE, strides, b, head, i, n_rows, D: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows ``i`` of one head's matrix of any alignment, in float32."""
    c = tl.arange(0, WIDTH)
    exists = (i < n_rows)[:, None] & (c < D)[None, :]
    at = _head(BASE, strides, b, head) + i.to(tl.int64)[:, None] * strides[2] + c[None, :]
    return tl.load(at, mask=exists, other=0.0).to(tl.float32)


@triton.jit
def _store(BASE, strides, b, head, i, n_rows, tile, D: tl.constexpr, WIDTH: tl.constexpr):
    """Write the tile to rows ``i`` of one head's matrix, rounded to its type."""
    c = tl.arange(0, WIDTH)
    exists = (i < n_rows)[:, None] & (c < D)[None, :]
    at = _head(BASE, strides, b, head) + i.to(tl.int64)[:, None] * strides[2] + c[None, :]
    tl.store(at, tile.to(BASE.dtype.element_ty), mask=exists)
