r"""Any rule as the Triton kernels take it: which tiles of scores to visit, and a bit mask for each partial tile.

The scores of one head are cut into squares of ``SIDE`` queries and ``SIDE`` keys. For each block of queries the table
lists the blocks of keys to which some query attends, and for each block of keys the blocks of queries (the backward
pass needs both). A square that is visible in part has a *picture*, its mask with one bit for each score: a row is one
64-bit number. Squares with equal masks share a picture, so a window needs three pictures for any sequence length.
Nothing over ``n x m`` is made, unless the rule itself holds a table [1]_ [2]_. FlexAttention's ``BlockMask`` serves the
same purpose.

.. [1] Dao et al., *FlashAttention*, 2022, section 3.3 (block-sparse). arXiv:2205.14135.
.. [2] Dong et al., *Flex Attention*, 2024. arXiv:2412.05496.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lessons_lib.attention.rules import Coverage, Rule

SIDE = 64  # keys in a row of a picture: the bits of one number


class Visits(NamedTuple):
    """The blocks of keys that each block of queries visits, in order; or the other way round.

    Block ``i`` of sequence ``b`` and head ``h`` visits the blocks ``where[start:stop]``, where ``start`` is
    ``starts[b, h, i]`` and ``stop`` is ``starts[b, h, i + 1]``. The picture of each visited square is in ``which``. The
    batch or head axis of ``starts`` has size 1 where all sequences or heads share one list.
    """

    starts: Int[Tensor, "#b #h blocks_and_one"]
    where: Int[Tensor, " visits"]
    which: Int[Tensor, " visits"]


class TileTable(NamedTuple):
    """The visits by query and by key, and the pictures. ``which`` indexes pictures; -1 is a fully visible square."""

    by_query: Visits
    by_key: Visits
    pictures: Int[Tensor, "pictures 64"]


def cached_tile_table(rule: Rule, n: int, m: int, device: torch.device) -> TileTable:
    """Return :func:`make_tile_table` from a cache, so that the layers of a model, which share a rule, compute it once.

    The cache is an attribute of the rule, which is immutable, and is freed with the rule.
    """
    cache = vars(rule).setdefault("_tables", {})
    if (n, m, device) not in cache:
        cache[n, m, device] = make_tile_table(rule, n, m, device=device)
    return cache[n, m, device]


def make_tile_table(
    rule: Rule,
    n: int,
    m: int,
    *,
    cache_lengths: Int[Tensor, " b"] | None = None,
    device: torch.device | str | None = None,
) -> TileTable:
    """Return the squares of ``n`` queries and ``m`` keys that are visited under a rule.

    With ``cache_lengths`` sequence ``b`` has the first ``cache_lengths[b]`` keys, and its queries are at their end.
    """
    rule = rule.to("cpu")  # its squares are computed one after the other
    n_sequences, n_heads = (1, 1, *rule.batch_shape)[-2:]
    lengths = [m] * n_sequences if cache_lengths is None else cache_lengths.tolist()
    pictures = _Pictures()
    squares = []  # (sequence, head, block of queries, block of keys, picture)
    for b, length in enumerate(lengths):
        for_sequence = rule.for_sequence(b if n_sequences > 1 else 0)
        known: dict[int, list[int]] = {}
        for row in range(0, n, SIDE):
            rows = range(row + length - n, min(row + SIDE, n) + length - n)
            for column in _visible_blocks(for_sequence, rows, length):
                keys = range(column, min(column + SIDE, length))
                # Whole squares of a relative rule at one distance from the diagonal have equal masks.
                is_shared = for_sequence.is_relative and len(rows) == len(keys) == SIDE
                of_heads = known.get(row - column) if is_shared else None
                if of_heads is None:
                    of_heads = pictures.numbers_of(for_sequence, rows, keys, n_heads)
                if is_shared:
                    known[row - column] = of_heads
                squares += [
                    (b, head, row // SIDE, column // SIDE, which)
                    for head, which in enumerate(of_heads)
                    if which != HIDDEN
                ]
    listed = np.array(squares, dtype=np.int64).reshape(-1, 5).T
    sizes = len(lengths), n_heads, -(-n // SIDE), -(-m // SIDE)
    return TileTable(
        _visits(listed, sizes, by_key=False, device=device),
        _visits(listed, sizes, by_key=True, device=device),
        torch.from_numpy(pictures.to_array()).to(device),
    )


# --- parts ------------------------------------------------------------------------------------------------------------

WHOLE, HIDDEN = -1, -2


class _Pictures:
    """The distinct pictures found so far, and their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def numbers_of(self, rule: Rule, rows: range, keys: range, n_heads: int) -> list[int]:
        """Return for each head the number of the picture of this square, or ``WHOLE``, or ``HIDDEN``."""
        coverage = rule.coverage(rows, keys)
        if coverage is Coverage.EMPTY:
            return [HIDDEN] * n_heads
        if coverage is Coverage.FULL and len(keys) == SIDE:
            return [WHOLE] * n_heads
        square = np.zeros((n_heads, SIDE, SIDE), dtype=bool)
        square[:, : len(rows), : len(keys)] = rule.tile(rows, keys, device="cpu").numpy()
        return [self._number(of_head, len(rows)) for of_head in square]

    def _number(self, square: np.ndarray, n_rows: int) -> int:
        if not square.any():
            return HIDDEN
        if square[:n_rows].all():
            return WHOLE
        words = np.packbits(square, axis=-1, bitorder="little").tobytes()
        return self.numbers.setdefault(words, len(self.numbers))

    def to_array(self) -> np.ndarray:
        """Return all pictures, one a row. There is at least one, so that the kernels get a valid address."""
        words = b"".join(self.numbers) or bytes(8 * SIDE)
        return np.frombuffer(words, dtype="<i8").reshape(-1, SIDE).copy()


def _visible_blocks(rule: Rule, rows: range, m: int) -> list[int]:
    """Return the first key of each block of keys to which some row may attend."""
    ranges = rule.key_ranges(rows, m)
    return sorted({SIDE * block for keys in ranges for block in range(keys.start // SIDE, -(-keys.stop // SIDE))})


def _visits(listed: np.ndarray, sizes: tuple[int, int, int, int], *, by_key: bool, device) -> Visits:
    """Sort the squares by the visiting block, then by the visited block, and count the visits of each block."""
    b, head, row, column, which = listed
    n_sequences, n_heads, *n_blocks = sizes
    visiting, visited = (column, row) if by_key else (row, column)
    size = n_blocks[by_key]
    visitor = (b * n_heads + head) * size + visiting
    order = np.lexsort((visited, visitor))
    counts = np.bincount(visitor, minlength=n_sequences * n_heads * size).reshape(n_sequences, n_heads, size)
    ends = counts.cumsum().reshape(counts.shape)
    starts = np.concatenate([ends[..., :1] - counts[..., :1], ends], axis=-1)
    return Visits(*(torch.from_numpy(x.astype(np.int32)).to(device) for x in (starts, visited[order], which[order])))
