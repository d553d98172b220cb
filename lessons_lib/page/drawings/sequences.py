"""The drawings of the chapter on sequences, graphs and decisions."""

from collections.abc import Sequence
from itertools import groupby

from lessons_lib.page.sketch import Sketch


def ctc_reading(path: Sequence[str], *, blank: str) -> Sketch:
    """Draw how CTC reads a path, one symbol for each frame: repeats are merged, then blanks are dropped.

    Graves et al., *Connectionist Temporal Classification*, 2006, section 3.1.

    Args:
        path: the symbol of each of 2 to 8 frames.
        blank: the symbol of the blank.

    Raises:
        ValueError: if there are not 2 to 8 symbols, or all of them are blanks.
    """
    n = len(path)
    if not 2 <= n <= 8:
        raise ValueError(f"path must have 2 to 8 symbols, got {n}")
    merged, start = [], 0
    for symbol, run in groupby(path):
        length = len(list(run))
        merged.append((symbol, start + length / 2))
        start += length
    read = [symbol for symbol, _ in merged if symbol != blank]
    if not read:
        raise ValueError(f"path must have a symbol other than the blank {blank!r}")
    d = Sketch(
        402,
        190,
        alt=f"Three rows. In the first, a symbol for each of {n} frames: {' '.join(path)}. In the second, repeats are "
        f"merged: {' '.join(symbol for symbol, _ in merged)}. In the third, blanks are dropped: {' '.join(read)}.",
    )
    for y, name in ((26, "frames"), (92, "merged"), (158, "read as")):
        d.text((1, y), name, anchor="start", small=True)
    step = 336 / n
    wide = min(46.0, step - 4)
    for i, symbol in enumerate(path):
        d.box(62 + step * (i + 0.5) - wide / 2, 12, wide, 28, symbol, role="" if symbol == blank else "value")
    start = 0
    for (symbol, middle), (_, run) in zip(merged, groupby(path), strict=True):
        x = 62 + step * middle
        for _ in run:
            d.arrow((62 + step * (start + 0.5), 40), (x, 78), gap=2)
            start += 1
        d.box(x - wide / 2, 78, wide, 28, symbol, role="" if symbol == blank else "value")
        if symbol != blank:
            d.arrow((x, 106), (x, 144), gap=2)
            d.box(x - wide / 2, 144, wide, 28, symbol, role="output")
    return d


def static_scores(queries: Sequence[float], keys: Sequence[float]) -> Sketch:
    """Draw the sums inside GAT's scores as bars: one part for the query node, one for each key.

    Args:
        queries: the parts of two query nodes, not negative.
        keys: the parts of 2 to 6 keys, not negative and different from each other.

    Raises:
        ValueError: if there are not two queries and 2 to 6 keys, a part is negative, or two keys are equal.
    """
    if len(queries) != 2 or not 2 <= len(keys) <= 6:
        raise ValueError(f"queries must be two and keys from 2 to 6, got {len(queries)} and {len(keys)}")
    if min(*queries, *keys) < 0 or len(set(keys)) < len(keys):
        raise ValueError(f"parts must not be negative, and keys must differ, got {list(queries)} and {list(keys)}")
    order = sorted(range(len(keys)), key=lambda j: -keys[j])
    d = Sketch(
        402,
        178,
        alt=f"Two groups of {len(keys)} bars, one group for each query node. Each bar has a lower part, the same in "
        f"the whole group, {queries[0]:.3g} for the first query node and {queries[1]:.3g} for the second. On it stands "
        f"a part for the key, {', '.join(f'{key:.3g}' for key in keys)}, the same in both groups. In both groups the "
        f"bars have the same order of heights; the highest is key {order[0]}.",
    )
    unit = 112 / (max(queries) + max(keys))
    step = 170 / len(keys)
    for i, query in enumerate(queries):
        left = 16 + 206 * i
        d.text((left + 85, 10), f"query node {i}", small=True)
        d.path(f"M{left} 140H{left + 170}", fine=True)
        for j, key in enumerate(keys):
            x = left + step * (j + 0.2)
            if query:
                d.matrix(x, 140 - unit * query, 0.6 * step, unit * query, role="query")
            if key:
                d.matrix(x, 140 - unit * (query + key), 0.6 * step, unit * key, role="key")
            d.text((x + 0.3 * step, 152), f"{j}", small=True)
    d.text((201, 170), "key; lower part: from the query, upper part: from the key", small=True)
    return d
