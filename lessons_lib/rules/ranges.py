"""Ranges of positions: found in a row of Booleans, cut, joined, moved."""

from collections.abc import Iterable

import numpy as np


def runs(wanted: np.ndarray) -> list[range]:
    """Return the ranges where a row of Booleans is True."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).tolist()
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def clipped(span: range, m: int) -> list[range]:
    """Return the part of the range that lies in ``0 .. m - 1``, or nothing."""
    start, stop = max(span.start, 0), min(span.stop, m)
    return [range(start, stop)] if start < stop else []


def joined(spans: Iterable[range], *, gap: int = 0) -> list[range]:
    """Return ranges in order, with those that touch, overlap or lie at most ``gap`` apart made one."""
    joined: list[range] = []
    for span in spans:
        if joined and span.start <= joined[-1].stop + gap:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, span.stop))
        else:
            joined.append(span)
    return joined


def moved(span: range, by: int) -> range:
    """Return the range a few positions further on."""
    return range(span.start + by, span.stop + by)
