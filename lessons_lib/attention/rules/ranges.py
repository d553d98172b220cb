"""Ranges of positions: found in a row of Booleans, clipped, merged, shifted."""

from collections.abc import Iterable

import numpy as np


def true_ranges(row: np.ndarray) -> list[range]:
    """Return the ranges where a row of Booleans is True.

    >>> true_ranges(np.array([True, True, False, True]))
    [range(0, 2), range(3, 4)]
    """
    edges = np.flatnonzero(np.diff(row, prepend=False, append=False)).tolist()
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def clip_range(span: range, m: int) -> list[range]:
    """Return the part of the range that lies in ``0 .. m - 1``, as a list of one range or none.

    >>> clip_range(range(-2, 5), 3), clip_range(range(3, 5), 3)
    ([range(0, 3)], [])
    """
    start, stop = max(span.start, 0), min(span.stop, m)
    return [range(start, stop)] if start < stop else []


def merge_ranges(spans: Iterable[range], *, gap: int = 0) -> list[range]:
    """Merge ranges that touch, overlap or lie at most ``gap`` apart. They must be sorted by their start.

    >>> merge_ranges([range(0, 3), range(3, 5), range(7, 9)])
    [range(0, 5), range(7, 9)]
    """
    merged: list[range] = []
    for span in spans:
        if merged and span.start <= merged[-1].stop + gap:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return merged


def shift_range(span: range, by: int) -> range:
    """Return the range with ``by`` added to both ends.

    >>> shift_range(range(2, 4), -1)
    range(1, 3)
    """
    return range(span.start + by, span.stop + by)
