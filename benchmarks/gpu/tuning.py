"""Comparison of tiles: each is checked against float64 and timed, then the best two of a kernel are timed in turns.

A tile of a backward kernel is timed in the whole backward pass, with the library's tiles for the other kernels: this
is the gain that a model has.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lessons_lib.attention.masks import causal
from lessons_lib.flash.configurations import Tile

from .bench import Bench, measure_rounded
from .checks import LOOSE, error, gradients, plain
from .record import Row, reason
from .rivals import decoder, ours
from .tiles import Tiles, tile_text
from .timing import flops, take_turns, timed

# The kernels with the largest expected gain come first, because the time may not suffice for all.
ORDER = (
    ("attend", 128),
    ("key_value_gradients", 128),
    ("query_gradients", 128),
    ("attend", 64),
    ("attend_part", 128),
    ("key_value_gradients", 64),
    ("query_gradients", 64),
    ("attend", 256),
    ("key_value_gradients", 256),
    ("query_gradients", 256),
    ("attend_part", 64),
)
ENOUGH = 1.02  # a tile must be faster than the library's by this to be proposed


def try_tile(bench: Bench, item: str, rows: list[Row], key: tuple[str, int], tile: Tile) -> None:
    """Check one tile and time it at every length, with and without a causal mask."""
    name_fields = {"tile": tile_text(key, tile)}
    try:
        worst = largest_error(bench, key, {key: tile})
    except Exception as failure:
        rows.append({**name_fields, "reason": reason(failure)})
        return
    if not worst <= LOOSE:
        rows.append({**name_fields, "reason": f"wrong: its relative error is {worst:.1e}", "wrong": True})
        return
    for shape, work in works(bench, item, key, {key: tile}):
        row = timed(bench, work, {}, milliseconds=150)
        rows.append({**name_fields, **shape, "error": worst, **with_rate(bench, key, shape, row)})


def try_again(bench: Bench, item: str, rows: list[Row], key: tuple[str, int], best: list[Tile]) -> None:
    """Time the best tiles and the library's tile in turns."""
    everyone = {tile_text(key, tile): dict(enumerate(works(bench, item, key, {key: tile}))) for tile in best}
    shapes = range(len(next(iter(everyone.values()))))

    def turn(mine: dict[int, tuple[Row, Callable]], known: Any) -> list[Row]:
        return [timed(bench, mine[i][1], {}, milliseconds=150) for i in shapes]

    turns = take_turns(bench, everyone, turn, rounds=2)
    for text, mine in everyone.items():
        for i in shapes:
            found = [found[i] for found in turns[text] if isinstance(found, list)]
            times = [row["milliseconds"] for row in found if "milliseconds" in row]
            shape = mine[i][0]
            row = {"milliseconds": sum(times) / len(times), "rounds": times} if times else {"reason": "it failed here"}
            rows.append({"tile": text, "again": True, **shape, **with_rate(bench, key, shape, row)})


def works(bench: Bench, item: str, key: tuple[str, int], tiles: Tiles) -> list[tuple[Row, Callable[[], object]]]:
    """Return a function to time for each shape of a kernel. The function makes its inputs once."""
    kernel, d = key
    if kernel == "attend_part":
        return [({"b": b, "m": bench.sizes.cache}, _decode(bench, item, d, b, tiles)) for b in bench.sizes.batches]
    shapes = [(n, is_causal) for n in bench.sizes.tune_lengths for is_causal in (False, True)]
    return [
        ({"n": n, "is_causal": is_causal}, _attend(bench, item, key, n, is_causal, tiles)) for n, is_causal in shapes
    ]


def largest_error(bench: Bench, key: tuple[str, int], tiles: Tiles) -> float:
    """Return the largest relative error against float64, forward and backward, full and causal."""
    kernel, d = key
    h, n = 2, bench.sizes.tune_check
    randn = bench.randn(f"check of {kernel} {d}")
    q, k, v = (randn(1, h, 1 if name == "q" and kernel == "attend_part" else n, d).to(torch.bfloat16) for name in "qkv")
    upstream = [randn(q.shape).to(torch.bfloat16), randn(q.shape[:-1])]
    configured, worst = bench.configured(d, tiles), []
    for is_causal in (True,) if kernel == "attend_part" else (False, True):

        def kernels(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = is_causal) -> Any:
            return bench.machine.flash(q, k, v, is_causal=is_causal, tiles=configured, return_lse=True)

        masked = is_causal and kernel != "attend_part"  # one query, at the last position, sees all keys
        specified = plain(causal(n, device=bench.machine.device) if masked else None, h, h)
        exact = [x.double() for x in (q, k, v)]
        if kernel in ("attend", "attend_part"):
            with torch.no_grad():
                worst.append(error(list(kernels(q, k, v)), list(specified(*exact))))
        else:
            worst.append(error(gradients(kernels, [q, k, v], upstream), gradients(specified, exact, upstream)))
    return max(worst)


def with_rate(bench: Bench, key: tuple[str, int], shape: Row, row: Row) -> Row:
    """Round the time, and add TFLOP/s except for decoding."""
    row = {name: value for name, value in row.items() if name not in ("low", "high")}
    if "milliseconds" in row:
        row["milliseconds"] = measure_rounded(row["milliseconds"])
        if "n" in shape:
            direction = "forward" if key[0] == "attend" else "backward"
            b, h = bench.heads(shape["n"], key[1])
            count = flops(direction, b, h, shape["n"], key[1], shape["is_causal"])
            row |= {"pass": direction, "tflops": measure_rounded(count / row["milliseconds"] / 1e9)}
    return row


def summary(rows: list[Row]) -> dict[str, float]:
    """Return the geometric mean of the milliseconds of each tile that ran for all shapes, the fastest first."""
    times: dict[str, list[float]] = {}
    failed = {row["tile"] for row in rows if "reason" in row and "tile" in row}
    for row in rows:
        if "milliseconds" in row and row["tile"] not in failed:
            times.setdefault(row["tile"], []).append(row["milliseconds"])
    most = max(map(len, times.values()), default=0)
    means = {
        tile: math.exp(sum(map(math.log, found)) / len(found)) for tile, found in times.items() if len(found) == most
    }
    return dict(sorted(means.items(), key=lambda pair: pair[1]))


def winner(rows: list[Row], default: str) -> tuple[str, float]:
    """Return the fastest tile and its gain over the library's tile; the library's if the gain is below ``ENOUGH``."""
    means = summary([row for row in rows if row.get("again")])
    if default not in means:
        return default, 1.0
    best = next(iter(means))
    gain = means[default] / means[best]
    return (best, gain) if gain >= ENOUGH else (default, 1.0)


def table(rows: list[Row]) -> str:
    """Return a line for each tile that ran for all shapes, by kernel and speed, with its gain over the library's.

    The library's tile is the one that was tried first.
    """
    tiles = [row for row in rows if "tile" in row and not row.get("again")]
    said = []
    for kernel in dict.fromkeys(row["tile"].partition("=")[0] for row in tiles):
        of_kernel = [row for row in tiles if row["tile"].startswith(f"{kernel}=")]
        means, own = summary(of_kernel), of_kernel[0]["tile"]
        for tile, mean in means.items():
            beside = f"x{means[own] / mean:.3f}" if own in means else ""
            said.append(f"{tile:40}{mean:9.4f} ms  {beside}{' (the library)' if tile == own else ''}")
    return "\n".join(said)


# --- parts ----------------------------------------------------------------------------------------------------------


def _attend(
    bench: Bench, item: str, key: tuple[str, int], n: int, is_causal: bool, tiles: Tiles
) -> Callable[[], object]:
    kernel, d = key
    backward, attend, made = kernel != "attend", ours(bench, is_causal, d, tiles), []

    def make() -> None:
        randn = bench.randn(f"{item} {n}")
        b, h = bench.heads(n, d)
        qkv = [randn(b, h, n, d, dtype=torch.bfloat16).requires_grad_(backward) for _ in range(3)]
        made.extend([qkv, attend(*qkv) if backward else None, randn(b, h, n, d, dtype=torch.bfloat16)])

    def work() -> object:
        if not made:
            make()
        qkv, out, upstream = made
        return torch.autograd.grad(out, qkv, upstream, retain_graph=True) if backward else attend(*qkv)

    return work


def _decode(bench: Bench, item: str, d: int, b: int, tiles: Tiles) -> Callable[[], object]:
    made = []

    def work() -> object:
        with torch.no_grad():
            if not made:
                randn = bench.randn(f"{item} {b}")
                sizes = ((32, 1), (8, bench.sizes.cache), (8, bench.sizes.cache))
                qkv = [randn(b, heads, n, d, dtype=torch.bfloat16) for heads, n in sizes]
                made.append(decoder(bench, d, tiles)(*qkv))
            return made[0]()

    return work
