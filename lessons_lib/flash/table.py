r"""A rule as the kernels take it when it is no band: which tiles of scores to visit, and what is hidden in them.

The scores of one head are cut into squares of ``SIDE`` queries and ``SIDE`` keys. For each block of queries the table
lists the blocks of keys in which somebody sees something, and for each block of keys the blocks of queries (the
backward pass needs both). A square seen in part has a *picture*, one bit a score: a row of it is one 64-bit number.
Squares that look alike share a picture, so a window needs three however long the sequence is. Nothing over ``n x m``
is made, unless the rule itself holds it [1]_ [2]_.

.. [1] Dao et al., *FlashAttention*, 2022, section 3.3 (block-sparse). arXiv:2205.14135.
.. [2] Dong et al., *Flex Attention*, 2024. arXiv:2412.05496.
"""

from copy import copy
from dataclasses import fields
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lessons_lib.rules import Rule, Seen

SIDE = 64  # keys of a picture's row: the bits of one number


class Visits(NamedTuple):
    """What each block on one side visits on the other, in order.

    Block ``i`` of sequence ``b`` and head ``h`` visits ``where[start:stop]``, with ``start, stop`` the two numbers from
    ``starts[b, h, i]`` on. An axis of ``starts`` for batch or heads is 1 where one list holds for all.
    """

    starts: Int[Tensor, "#b #h blocks_and_one"]
    where: Int[Tensor, " visits"]
    which: Int[Tensor, " visits"]


class TileTable(NamedTuple):
    """The two lists, and the pictures: ``which`` is a picture's number, or -1 where a visited square is all seen."""

    by_query: Visits
    by_key: Visits
    pictures: Int[Tensor, "pictures 64"]


def kept_table_of(rule: Rule, n: int, m: int, device: torch.device) -> TileTable:
    """Return :func:`table_of`, written once for a rule, sizes and a device: the layers of a model share a rule.

    It is kept with the rule, which does not change, and goes when the rule goes.
    """
    kept = vars(rule).setdefault("_tables", {})
    if (n, m, device) not in kept:
        kept[n, m, device] = table_of(rule, n, m, device=device)
    return kept[n, m, device]


def table_of(
    rule: Rule,
    n: int,
    m: int,
    *,
    cache_lengths: Int[Tensor, " b"] | None = None,
    device: torch.device | str | None = None,
) -> TileTable:
    """Write down which squares of ``n`` queries and ``m`` keys are visited under a rule.

    With ``cache_lengths`` sequence ``b`` has so many keys, and its queries stand at their end.
    """
    rule = _on_cpu(rule)
    n_sequences, n_heads = (1, 1, *rule.leading)[-2:]
    lengths = [m] * n_sequences if cache_lengths is None else cache_lengths.tolist()
    pictures = _Pictures()
    squares = []  # (sequence, head, block of queries, block of keys, picture)
    for b, length in enumerate(lengths):
        of_sequence = rule.of_sequence(b if n_sequences > 1 else 0)
        known: dict[int, list[int]] = {}
        for row in range(0, n, SIDE):
            rows = range(row + length - n, min(row + SIDE, n) + length - n)
            for column in _blocks_in_sight(of_sequence, rows, length):
                keys = range(column, min(column + SIDE, length))
                alike = of_sequence.is_relative and len(rows) == len(keys) == SIDE  # as all at this distance
                found = known.get(row - column) if alike else None
                if found is None:
                    found = pictures.of(of_sequence, rows, keys, n_heads)
                if alike:
                    known[row - column] = found
                squares += [
                    (b, head, row // SIDE, column // SIDE, which) for head, which in enumerate(found) if which != HIDDEN
                ]
    listed = np.array(squares, dtype=np.int64).reshape(-1, 5).T
    sizes = len(lengths), n_heads, -(-n // SIDE), -(-m // SIDE)
    return TileTable(
        _visits(listed, sizes, by_key=False, device=device),
        _visits(listed, sizes, by_key=True, device=device),
        torch.from_numpy(pictures.drawn()).to(device),
    )


# --- parts ------------------------------------------------------------------------------------------------------------

WHOLE, HIDDEN = -1, -2


class _Pictures:
    """The different pictures met so far, and their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def of(self, rule: Rule, rows: range, keys: range, n_heads: int) -> list[int]:
        """Return the picture's number of this square for each head, or ``WHOLE``, or ``HIDDEN``."""
        seen = rule.sees(rows, keys)
        if seen is Seen.NONE:
            return [HIDDEN] * n_heads
        if seen is Seen.ALL and len(keys) == SIDE:
            return [WHOLE] * n_heads
        square = np.zeros((n_heads, SIDE, SIDE), dtype=bool)
        square[:, : len(rows), : len(keys)] = rule.tile(rows, keys, device="cpu").numpy()
        return [self._number(each, len(rows)) for each in square]

    def _number(self, square: np.ndarray, n_rows: int) -> int:
        if not square.any():
            return HIDDEN
        if square[:n_rows].all():
            return WHOLE
        words = np.packbits(square, axis=-1, bitorder="little").tobytes()
        return self.numbers.setdefault(words, len(self.numbers))

    def drawn(self) -> np.ndarray:
        """Return all pictures as numbers, one a row; there is at least one, so that memory has an address."""
        words = b"".join(self.numbers) or bytes(8 * SIDE)
        return np.frombuffer(words, dtype="<i8").reshape(-1, SIDE).copy()


def _on_cpu(rule: Rule) -> Rule:
    """The same rule with its tensors on the CPU, where it is asked about one square after the other."""
    if rule.device is None or rule.device.type == "cpu":
        return rule
    moved = copy(rule)
    for field in fields(rule):  # type: ignore[arg-type]
        part = getattr(rule, field.name)
        if isinstance(part, Tensor | Rule):
            object.__setattr__(moved, field.name, _on_cpu(part) if isinstance(part, Rule) else part.cpu())
    return moved


def _blocks_in_sight(rule: Rule, rows: range, m: int) -> list[int]:
    """Where the blocks of keys begin of which the rows may see something."""
    spans = rule.keys(rows, m)
    return sorted({SIDE * block for span in spans for block in range(span.start // SIDE, -(-span.stop // SIDE))})


def _visits(listed: np.ndarray, sizes: tuple[int, int, int, int], *, by_key: bool, device) -> Visits:
    """Sort the squares by the side that visits, then by the one that is visited, and count."""
    b, head, row, column, which = listed
    n_sequences, n_heads, *n_blocks = sizes
    mine, theirs = (column, row) if by_key else (row, column)
    size = n_blocks[by_key]
    visitor = (b * n_heads + head) * size + mine
    order = np.lexsort((theirs, visitor))
    counts = np.bincount(visitor, minlength=n_sequences * n_heads * size).reshape(n_sequences, n_heads, size)
    ends = counts.cumsum().reshape(counts.shape)
    starts = np.concatenate([ends[..., :1] - counts[..., :1], ends], axis=-1)
    return Visits(*(torch.from_numpy(x.astype(np.int32)).to(device) for x in (starts, theirs[order], which[order])))
