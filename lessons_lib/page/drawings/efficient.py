"""The drawings of the part on efficient attention."""

import math
from collections.abc import Sequence
from itertools import pairwise

from lessons_lib.page.sketch import Sketch


def block_flops(lengths: Sequence[float] = (1, 2, 6)) -> Sketch:
    """Draw the FLOPs of a block as areas of height ``n``: projections, feed-forward layer and pairs.

    The widths are ``2 d``, ``4 d`` and ``n``; an area times ``4 d`` is the number of FLOPs.

    Args:
        lengths: sequence lengths in units of ``d``, the width of the residual stream.

    Raises:
        ValueError: if there is no length, or a length is not positive or is greater than 12.
    """
    if not lengths or min(lengths) <= 0 or max(lengths) > 12:
        raise ValueError(f"lengths must be positive and at most 12, one at least, got {list(lengths)}")
    notes = ", ".join(f"{n:g}" for n in lengths)
    unit, left, gap = min(24.0, 330 / (6 + max(lengths))), 62.0, 22.0
    d = Sketch(
        402,
        30 + sum(n * unit + gap for n in lengths),
        alt=f"For texts of {notes} times d tokens a rectangle each, as high as the text is long. It is divided into "
        "projections, 2 d wide, the feed-forward layer, 4 d wide, and pairs, as wide as the text is long: so the part "
        "for pairs is a square, and at six times d it is as large as the two others together.",
    )
    y = 26.0
    d.text((left + 2 * unit - 3, 8), "projections", anchor="end", small=True)
    d.text((left + 4 * unit, 8), "feed-forward", small=True)
    d.text((left + 6 * unit + 4, 8), "pairs", anchor="start", small=True)
    for n in lengths:
        times = "" if n == 1 else f"{n:g} "
        d.text((left - 8, y + n * unit / 2), f"$n = {times}d$", anchor="end", small=True)
        for x, width, role in ((0, 2, "query"), (2, 4, "value"), (6, n, "key")):
            d.box(left + x * unit, y, width * unit, n * unit, role=role)
        y += n * unit + gap
    for x, width in ((0, 2), (2, 4), (6, lengths[-1])):
        times = "" if width == 1 else f"{width:g} "
        d.text((left + (x + width / 2) * unit, y - gap + 10), f"${times}d$", small=True)
    return d


def parallel_scan(n: int = 8) -> Sketch:
    """Draw a parallel prefix scan: in round ``r`` each step is combined with the step ``2**r`` before it.

    Hillis and Steele, *Data Parallel Algorithms*, 1986.

    Args:
        n: number of steps, a power of two.

    Raises:
        ValueError: if ``n`` is not 2, 4, 8 or 16.
    """
    if n not in (2, 4, 8, 16):
        raise ValueError(f"n must be 2, 4, 8 or 16, got {n}")
    rounds = n.bit_length() - 1
    d = Sketch(
        402,
        46 + 62 * rounds,
        alt=f"A row of {n} circles, the steps. Below it {rounds} more rows. Into each circle of the next row goes the "
        f"circle above it, and, if there is one, one further left: 1 place in the first round, then twice as far. "
        f"After {rounds} rounds each circle stands for all steps up to it.",
    )
    left, right = 66.0, 384.0
    columns = [left + (right - left) * i / (n - 1) for i in range(n)]
    rows = [20.0 + 62 * r for r in range(rounds + 1)]
    for r in range(rounds):
        for i in range(n):
            d.arrow((columns[i], rows[r]), (columns[i], rows[r + 1]), gap=11)
            if i >= 2**r:
                d.arrow((columns[i - 2**r], rows[r]), (columns[i], rows[r + 1]), gap=13, role="query")
        d.text((1, (rows[r] + rows[r + 1]) / 2), f"round {r + 1}", anchor="start", small=True)
    for r, y in enumerate(rows):
        for i, x in enumerate(columns):
            d.circle((x, y), 9, role="output" if i < 2**r else "")
    d.text((1, rows[0]), "steps", anchor="start", small=True)
    d.text((1, rows[-1]), "states", anchor="start", small=True)
    d.text(((left + right) / 2, rows[-1] + 20), "filled: stands for all steps from the first", small=True)
    return d


def linear_attention_orders() -> Sketch:
    """Draw the product of queries, keys and values in two orders: through an ``n x n`` matrix and a small state."""
    d = Sketch(
        402,
        150,
        alt="Two rows. Above: a tall narrow matrix of queries times a flat one of keys gives a large square, every "
        "query by every key, which then meets the tall matrix of values. Below: the flat matrix of keys times the "
        "tall one of values gives a small square, which the queries then read. Both give the same tall output.",
    )
    for y, square in ((16, True), (92, False)):
        high, flat = 50, 14
        q = d.matrix(24, y, flat, high, rows="$n$", role="query")
        k = d.matrix(66, y + 18, high, flat, role="key")
        v = d.matrix(142, y, flat, high, role="value")
        d.text((32 + 20, y + 25), r"$\times$")
        d.text((129, y + 25), r"$\times$")
        pair = (q.x, k.x + k.width) if square else (k.x, v.x + v.width)
        d.path(f"M{pair[0]} {y + high + 5}H{pair[1]}")
        d.text((172, y + 25), "=")
        side = high if square else flat
        first = d.matrix(190 if square else 236, y + (high - side) / 2, side, side)
        other = d.matrix(266 if square else 198, y, flat, high, role="value" if square else "query")
        d.text(((first.x + first.width + other.x) / 2, y + 25) if square else (224, y + 25), r"$\times$")
        d.text((294, y + 25), "=")
        d.matrix(312, y, flat, high, role="output")
        d.text((336, y + 25), "pairs first" if square else "keys first", anchor="start", small=True)
        d.text((first.middle[0], first.y - 9), r"$n \times n$" if square else r"$r \times d_v$", small=True)
    return d


def two_memories(fast: str = "small and fast", slow: str = "large and slow") -> Sketch:
    """Draw the two memories of a GPU: tiles are loaded into the memory on the chip, only the output is written back.

    Args:
        fast: description of the memory on the chip, its size for instance.
        slow: description of the main memory.
    """
    d = Sketch(
        402,
        214,
        alt=f"Above, the chip with its own memory, {fast}: a tile of Q, a tile of K and V, running maxima and sums, "
        f"and the arithmetic. Below, the main memory, {slow}: Q, K, V and O. Tiles of Q, K and V go up; O comes down.",
    )
    chip = d.box(41, 24, 320, 64)
    memory = d.box(1, 130, 400, 60)
    d.text((201, 10), f"on the chip: {fast}")
    d.text((201, 204), f"main memory: {slow}")
    for i, (name, role) in enumerate((("Q", "query"), ("K", "key"), ("V", "value"))):
        tile = d.matrix(60 + 56 * i, chip.y + 17, 40, 30, f"${name}_{'ijj'[i]}$", role=role)
        whole = d.matrix(24 + 88 * i, memory.y + 13, 70, 34, f"${name}$", role=role)
        d.arrow(whole.top, tile.bottom, role=role)
    d.text((284, chip.middle[1] - 9), "scores, softmax,", small=True)
    d.text((284, chip.middle[1] + 9), "running sums", small=True)
    out = d.matrix(308, memory.y + 13, 70, 34, "$O$", role="output")
    d.arrow((out.top[0], chip.middle[1] + 20), out.top, role="output")
    return d


def online_softmax(scores: Sequence[float] = (1, 2, 0.5, 1.5, 3, 0), tile: int = 2) -> Sketch:
    r"""Draw the online softmax of a row of scores: after each tile the running :math:`\mu`, :math:`z` and :math:`u`.

    Each arrow between tiles shows the factor :math:`c = e^{\mu - \mu'}` that rescales :math:`z` and :math:`u`.
    Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018, algorithm 3.

    Args:
        scores: at most eight scores, two to four whole tiles.
        tile: number of scores in a tile.

    Raises:
        ValueError: if the scores are not two to four whole tiles, or more than eight.
    """
    n = len(scores) // tile if tile >= 1 and len(scores) % tile == 0 and len(scores) <= 8 else 0
    if not 2 <= n <= 4:
        raise ValueError(f"scores must be at most 8, in two to four whole tiles, got {len(scores)} in tiles of {tile}")
    step, wide = 402 / n, min(92.0, 402 / n - 40)
    peak, total, notes = -math.inf, 0.0, []
    states: list[tuple[float, float, float]] = []
    for i in range(n):
        tile_scores = scores[i * tile : (i + 1) * tile]
        new_peak = max(peak, *tile_scores)
        factor = math.exp(peak - new_peak)
        total = total * factor + sum(math.exp(x - new_peak) for x in tile_scores)
        peak = new_peak
        states.append((peak, total, factor))
        notes.append(f"{', '.join(f'{x:g}' for x in tile_scores)}: maximum {peak:g}, z {total:.2f}")
    factors = ", ".join(f"{factor:.2f}" for _, _, factor in states[1:])
    d = Sketch(
        402,
        176,
        alt=f"A row of {len(scores)} scores in {n} tiles. Under each tile a box with what is kept after it: the "
        f"maximum, z and u. {'; '.join(notes)}. From box to box an arrow with the factor c: {factors}. An arrow leads "
        "from the last box to the output, u divided by z.",
    )
    boxes = []
    for i, (mu, z, _) in enumerate(states):
        left = i * step + 4
        row = [f"${x:.2g}$" for x in scores[i * tile : (i + 1) * tile]]
        cells = d.table(left, 20, (wide / tile, 24), [row], role="query", shades=[[0.3] * tile])
        d.text((cells.top[0], 8), f"tile {i + 1}", small=True)
        box = d.box(left, 72, wide, 62)
        d.arrow(cells.bottom, box.top)
        for j, text in enumerate((f"$μ = {mu:.3g}$", f"$z = {z:.2f}$", "$u$")):
            d.text((box.middle[0], box.y + 13 + 18 * j), text, small=True)
        boxes.append(box)
    for (one, other), (_, _, factor) in zip(pairwise(boxes), states[1:], strict=True):
        y = one.y + 40  # the factor stands below the arrow, beside the short u and not beside z
        d.arrow((one.right[0], y), (other.left[0], y), f"\u00d7{factor:.2f}", gap=2, below=True)
    last = boxes[-1]
    d.arrow(last.bottom, (last.bottom[0], 160), role="output", gap=1)
    d.text((last.bottom[0], 168), r"$o = u/z$", small=True)
    return d


# By kernel: the side whose tile stays on the chip; whether each row or column has its own program; two lines of text.
_KERNELS = {
    "forward, 2022": ("key", False, "one program, column by column", "sums go out and in at each tile"),
    "forward, 2023": ("query", True, "a program for each row", "its output goes out once"),
    "backward, 2023": ("key", True, "a program for each column", "adds to the queries' gradients"),
    "keys and values, here": ("key", True, "a program for each column", "its gradients go out once"),
    "queries, here": ("query", True, "a program for each row", "its gradients go out once"),
}


def tile_orders(*names: str) -> Sketch:
    """Draw the order in which kernels visit the tiles of scores: by rows or columns, in one program or in many.

    A row is a block of queries, a column a tile of keys and values. Dao et al., *FlashAttention*, 2022, algorithm 1;
    Dao, *FlashAttention-2*, 2023, figure 2; *here* are the kernels of ``lessons_lib/flash/triton_kernels.py``.

    Args:
        names: one to four of ``"forward, 2022"``, ``"forward, 2023"``, ``"backward, 2023"``, ``"keys and values,
            here"`` and ``"queries, here"``.

    Raises:
        ValueError: if there are no names, more than four, or an unknown name.
    """
    if not 1 <= len(names) <= 4 or not set(names) <= set(_KERNELS):
        raise ValueError(f"names must be one to four of {', '.join(map(repr, _KERNELS))}, got {names}")
    size, cell, rows = 4, 24.0, -(-len(names) // 2)
    notes = []
    for name in names:
        stays, separate, programs, writes = _KERNELS[name]
        notes.append(
            f"{name}: the arrows run along the {'columns' if stays == 'key' else 'rows'}; {programs}, {writes}"
        )
    d = Sketch(
        402,
        186 * rows,
        alt="Squares of four by four tiles, a row for each block of queries and a column for each tile of keys and "
        f"values. {'. '.join(notes)}.",
    )
    for index, name in enumerate(names):
        stays, separate, programs, writes = _KERNELS[name]
        alone = len(names) % 2 and index == len(names) - 1
        left, top = (100.5 if alone else index % 2 * 201.0), 186.0 * (index // 2)
        x, y = left + 52, top + 44
        shades = [[0.4 if (i if stays == "query" else j) % 2 == 0 or not separate else 0.1 for j in range(size)]
                  for i in range(size)]  # fmt: skip
        d.text((left + 100, top + 8), name)
        d.table(x, y, (cell, cell), [[""] * size] * size, role=stays, shades=shades)
        for i in range(size):
            d.matrix(x - 20, y + i * cell + 3, 14, cell - 6, role="query")
            d.matrix(x + i * cell + 3, y - 20, cell - 6, 14, role="key")
            at = (i + 0.5) * cell
            if stays == "query":
                d.arrow((x, y + at), (x + size * cell, y + at), role="query")
            else:
                d.arrow((x + at, y), (x + at, y + size * cell), role="key")
        d.text((x - 36, y + size * cell / 2), "$Q$", small=True)
        d.text((x + size * cell + 20, y - 13), "$K, V$", small=True)
        d.text((left + 100, y + size * cell + 14), programs, small=True)
        d.text((left + 100, y + size * cell + 29), writes, small=True)
    return d


def gpu_levels(
    *,
    registers: str = "256 KiB",
    shared: str = "228 KiB",
    cache: str = "50 MiB",
    memory: str = "80 GiB",
    multiprocessors: int = 132,
) -> Sketch:
    """Draw the levels of a GPU: a grid of programs, the multiprocessors that run them, and the levels of memory.

    The sizes are an H100's: Shah et al., *FlashAttention-3*, 2024, table 1, and footnote 5 for the multiprocessors.
    """
    d = Sketch(
        402,
        266,
        alt="On the left a column of numbered programs, the grid. An arrow leads from the first of them to one of "
        f"{multiprocessors} multiprocessors; two are drawn. In each a row of warps, with registers, {registers}, for "
        f"scores and running sums, above shared memory, {shared}, for tiles of K and V. Below both a cache for all, "
        f"{cache}, and at the bottom main memory, {memory}, with Q, K, V and O.",
    )
    d.text((30, 8), "grid", small=True)
    programs = [d.box(8, 22 + 27.0 * i, 44, 21, f"{i}") for i in range(4)]
    d.text((30, 140), "\u22ee")
    for i, left in enumerate((82.0, 246.0)):
        chip = d.box(left, 22, 155, 142)
        d.text((chip.top[0], 9), "multiprocessor" if i == 0 else f"one of {multiprocessors}", small=True)
        for w in range(4):
            d.matrix(left + 10 + 35 * w, 32, 30, 20, "", role="query")
        d.text((chip.top[0], 63), "warps; registers,", small=True)
        d.text((chip.top[0], 79), f"{registers}: scores, sums", small=True)
        inner = d.matrix(left + 8, 96, 139, 60, role="key")
        d.text((inner.middle[0], 116), f"shared, {shared}:", small=True)
        d.text((inner.middle[0], 135), "tiles of $K$, $V$", small=True)
        d.arrow((chip.bottom[0] - 8, 184), (chip.bottom[0] - 8, 164), gap=1)
        d.arrow((chip.bottom[0] + 8, 164), (chip.bottom[0] + 8, 184), role="output", gap=1)
    d.arrow(programs[0].right, (82, programs[0].right[1]), gap=2)
    d.box(82, 184, 319, 26, f"cache of all, {cache}")
    d.arrow((233, 232), (233, 210), gap=1)
    d.arrow((249, 210), (249, 232), role="output", gap=1)
    d.box(82, 232, 319, 30, f"main memory, {memory}: $Q$, $K$, $V$, $O$")
    return d


def ping_pong(share: float = 0.5) -> Sketch:
    """Draw FlashAttention-3's ping-pong schedule: two groups of warps alternate matrix products and exponentials.

    Shah et al., *FlashAttention-3*, 2024, figure 1.

    Args:
        share: time of a tile's exponentials divided by the time of its matrix products.

    Raises:
        ValueError: unless ``share`` is between 0.2 and 1; above 1, products would wait for exponentials.
    """
    if not 0.2 <= share <= 1:
        raise ValueError(f"share must be between 0.2 and 1, got {share}")
    unit, left, height = 318 / (4 + share), 80.0, 24.0
    alone = math.floor((4 + share + 1e-9) / (1 + share))
    d = Sketch(
        402,
        188,
        alt="Three rows of bars against time. In the first, one group takes turns: products, then exponentials, "
        f"{share:.2g} times as long, {alone} times. Below are two groups: while the first takes exponentials the "
        f"second multiplies, and the other way round: four bars of products in the time of {alone} in the first row.",
    )

    def bars(y: float, name: str, start: float, stop: float, step: float) -> None:
        d.text((1, y + height / 2), name, anchor="start", small=True)
        at = start
        while at + 1 + share <= stop + 1e-9:
            d.box(left + at * unit, y, unit, height, "products", role="query")
            d.box(left + (at + 1) * unit, y, share * unit, height, "exp" if share > 0.4 else "", role="value")
            at += step

    d.text((left, 8), "in turns", anchor="start")
    bars(20, "one group", 0, 4 + share, 1 + share)
    d.text((left, 74), "ping-pong", anchor="start")
    bars(86, "group 1", 0, 4 + share, 2)
    bars(118, "group 2", 1, 4 + share, 2)
    d.arrow((left, 162), (398, 162), gap=0)
    d.text((left, 176), "time", anchor="start", small=True)
    return d


def ring_attention_steps() -> Sketch:
    """Draw ring attention on three devices: queries stay, keys and values move to the next device at each turn.

    Liu et al., *Ring Attention with Blockwise Transformers*, 2023. arXiv:2310.01889.
    """
    d = Sketch(
        402,
        214,
        alt="Three boxes in a row are devices. Each keeps its own queries, 1, 2 and 3. Below stand the keys and values "
        "that it attends to in each of three turns: device 1 those of 1, then 3, then 2; device 2 those of 2, 1, 3; "
        "device 3 those of 3, 2, 1. Arrows lead from each device's block to the next device's in the turn below, and "
        "from the last one back to the first.",
    )
    width, height, tops = 84.0, 30.0, (66.0, 116.0, 166.0)
    lefts = (66.0, 186.0, 306.0)
    d.text((1, 34), "stays", anchor="start", small=True)
    for turn, top in enumerate(tops):
        d.text((1, top + height / 2), f"turn {turn + 1}", anchor="start", small=True)
    blocks = []
    for turn, top in enumerate(tops):
        names = [(rank - turn) % 3 + 1 for rank in range(3)]
        blocks.append(
            [d.box(x, top, width, height, f"K, V {n}", role="key") for x, n in zip(lefts, names, strict=True)]
        )
    for rank, left in enumerate(lefts):
        d.text((left + width / 2, 10), f"device {rank + 1}", small=True)
        d.box(left, 20, width, height, f"Q {rank + 1}", role="query")
    for above, below in pairwise(blocks):
        for rank in range(2):
            d.arrow(above[rank].bottom, below[rank + 1].top, gap=2)
        d.path(f"M{above[2].bottom[0]} {above[2].bottom[1]}v9H{below[0].top[0]}v10", dashed=True)
    return d
