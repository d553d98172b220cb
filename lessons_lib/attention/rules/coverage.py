"""How much of a tile of the mask is True, and a bounded memory of what a range of queries may attend to."""

from bisect import bisect_right
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lessons_lib.attention.rules.ranges import merge_ranges, true_ranges
from lessons_lib.foundations.validation import values_can_be_read

MOST_PAIRS = 2**20  # pairs of a query and a key in the largest table that a scan makes
MOST_RANGES = 2**17  # ranges that one rule remembers, some 100 bytes each


class Coverage(Enum):
    """How much of a tile a rule allows. An implementation skips an empty tile and applies no mask to a full one."""

    EMPTY = "empty"
    PARTIAL = "partial"
    FULL = "full"


def coverage_of(table: "np.ndarray | Tensor") -> Coverage:
    """Return how much of a Boolean table is True.

    >>> coverage_of(np.array([True, False]))
    <Coverage.PARTIAL: 'partial'>
    """
    if table.all():
        return Coverage.FULL
    return Coverage.PARTIAL if table.any() else Coverage.EMPTY


class KeyScan(NamedTuple):
    """The result of evaluating a rule for a range of queries and the first ``n_keys`` keys.

    ``by_some`` are the keys that at least one of the queries may attend to, ``by_all`` those that all of them may.
    """

    n_keys: int
    by_some: list[range]
    by_all: list[range]

    def coverage(self, keys: range) -> Coverage:
        """Return how much of the tile of these keys is allowed; they must be among those scanned."""
        if (
            (span := _first_ending_after(self.by_all, keys.start))
            and span.start <= keys.start
            and span.stop >= keys.stop
        ):
            return Coverage.FULL
        span = _first_ending_after(self.by_some, keys.start)
        return Coverage.PARTIAL if span and span.start < keys.stop else Coverage.EMPTY


class ScanCache:
    """The scans of one rule by their range of queries; the oldest are dropped once too many ranges are stored."""

    def __init__(self) -> None:
        self._scans: dict[tuple[int, int], KeyScan] = {}
        self._n_ranges = 0

    def scan(self, rows: range, m: int, tile: Callable[[range, range], Tensor]) -> KeyScan | None:
        """Return a scan of at least ``m`` keys. ``tile(rows, keys)`` is evaluated only for keys not scanned before.

        The result is None where the values of the table cannot be read, as under ``torch.compile``.
        """
        place = rows.start, rows.stop
        known = self._scans.get(place, KeyScan(0, [], []))
        if known.n_keys >= m:
            return known
        found = _scan(rows, range(known.n_keys, m), tile)
        if found is None:
            return None
        joined = KeyScan(m, *(merge_ranges([*old, *new]) for old, new in zip(known[1:], found, strict=True)))
        self._drop(place)
        self._scans[place] = joined
        self._n_ranges += _n_ranges(joined)
        while self._n_ranges > MOST_RANGES and len(self._scans) > 1:  # the newest is needed next
            self._drop(next(iter(self._scans)))
        return joined

    def _drop(self, place: tuple[int, int]) -> None:
        if (scan := self._scans.pop(place, None)) is not None:
            self._n_ranges -= _n_ranges(scan)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _scan(rows: range, keys: range, tile: Callable[[range, range], Tensor]) -> tuple[list[range], list[range]] | None:
    """Evaluate the tile in strips of rows, each small enough for memory; return the ranges of both kinds."""
    by_some, by_all = np.zeros(len(keys), dtype=bool), np.ones(len(keys), dtype=bool)
    step = max(1, MOST_PAIRS // len(keys))
    for start in range(rows.start, rows.stop, step):
        table = tile(range(start, min(start + step, rows.stop)), keys)
        if not values_can_be_read(table):
            return None
        table = table.reshape(-1, len(keys))
        by_some |= table.any(dim=0).cpu().numpy()
        by_all &= table.all(dim=0).cpu().numpy()
    first = keys.start
    some, every = ([range(x.start + first, x.stop + first) for x in true_ranges(row)] for row in (by_some, by_all))
    return some, every


def _first_ending_after(spans: list[range], position: int) -> range | None:
    place = bisect_right(spans, position, key=lambda span: span.stop)
    return spans[place] if place < len(spans) else None


def _n_ranges(scan: KeyScan) -> int:
    return 1 + len(scan.by_some) + len(scan.by_all)
