"""The items to measure, part by part, and the loop that measures them."""

import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lessons_lib.flash.block_mask import make_tile_table

from . import checks, rivals, tuning
from .bench import Bench, Unmeasured, measure_rounded
from .patterns import PATTERNS, count_pairs
from .record import Row, reason
from .report import lines
from .tiles import candidates, parse_tile, tile_text
from .timing import time_decoding, time_shape


class Item(NamedTuple):
    """The unit of measurement. ``measure(rows)`` appends each row as soon as it is measured."""

    name: str
    measure: Callable[[list[Row]], None]
    seconds: float = 10.0  # the item is not started with less time left


Part = Callable[[Bench], Iterator[Item]]


def check(bench: Bench) -> Iterator[Item]:
    """Yield every problem of :mod:`.checks`."""
    for name, function in checks.problems():
        yield Item(name, lambda rows, name=name, function=function: rows.append(function(bench, name)))


def sanitizer(bench: Bench) -> Iterator[Item]:
    """Yield one problem under NVIDIA's memory sanitizer."""
    yield Item("memcheck", lambda rows: rows.append(checks.memory_sanitized(bench, "memcheck")), seconds=100)


def dense(d: int) -> Part:
    """Return the part of one width: every length, full and causal, compared with PyTorch's kernels."""

    def part(bench: Bench) -> Iterator[Item]:
        return _shapes(bench, (d,), bench.sizes.lengths, lambda is_causal, d, n: rivals.fused(bench, is_causal, d))

    return part


def baseline(bench: Bench) -> Iterator[Item]:
    """Yield the widths 128 and 64 at a few lengths, for a first overview."""
    fused = lambda is_causal, d, n: rivals.fused(bench, is_causal, d)  # noqa: E731
    return _shapes(bench, (128, 64), bench.sizes.few_lengths, fused)


def short(bench: Bench) -> Iterator[Item]:
    """Yield the kernels alone at a few lengths, to compare two versions of the kernels."""
    alone = lambda is_causal, d, n: rivals.alone(bench, is_causal, d)  # noqa: E731
    return _shapes(bench, (128, 64), bench.sizes.few_lengths, alone)


def flex(bench: Bench) -> Iterator[Item]:
    """Yield the comparison with FlexAttention at width 128; FlexAttention compiles for every shape."""
    everyone = lambda is_causal, d, n: rivals.flexible(bench, is_causal, d, n)  # noqa: E731
    return _shapes(bench, (128,), bench.sizes.flex_lengths, everyone, seconds=90)


def plain(bench: Bench) -> Iterator[Item]:
    """Yield the comparison with attention that stores all scores, and with the tiled backend: for their memory."""
    everyone = lambda is_causal, d, n: rivals.plain(bench, is_causal, d, n)  # noqa: E731
    return _shapes(bench, (128,), bench.sizes.few_lengths, everyone, seconds=25)


def rules(bench: Bench) -> Iterator[Item]:
    """Yield rules as tile tables at width 128: causal, packed documents, prefix; FlexAttention at the last length."""
    lengths, names = bench.sizes.flex_lengths, ("causal", "documents", "prefix")
    for n, name in itertools.product(lengths, names):
        with_flex = n == lengths[-1] and name != "causal"  # it compiles for each rule; the part flex has the causal one

        def measure(rows: list[Row], name: str = name, n: int = n, with_flex: bool = with_flex) -> None:
            _measure_rule(bench, rows, name, n, with_flex)

        yield Item(f"{name}, d 128, n {n}", measure, seconds=90 if with_flex else 20)


def winners(bench: Bench) -> Iterator[Item]:
    """Yield the comparison of the library's tiles with the tuner's, in whole passes and in decoding."""
    widths = sorted({d for kernel, d in bench.tuned if kernel != "attend_part"}, key=[128, 64, 256].index)
    tuned = lambda is_causal, d, n: rivals.tuned(bench, is_causal, d)  # noqa: E731
    yield from _shapes(bench, widths, bench.sizes.few_lengths, tuned)
    for d in sorted({d for kernel, d in bench.tuned if kernel == "attend_part"}):
        everyone = {"triton": rivals.decoder(bench, d, {}), "triton-tuned": rivals.decoder(bench, d, bench.tuned)}
        yield from _decoding(bench, d, everyone)


def decode(bench: Bench) -> Iterator[Item]:
    """Yield decoding, one query over a long cache, compared with the copy speed of the device."""
    return _decoding(bench, 128, rivals.decoders(bench, 128))


def tune(bench: Bench, only: tuple[str, ...] = ()) -> Iterator[Item]:
    """Yield every candidate tile of each kernel; then the best two and the library's once more."""
    for key in tuning.ORDER:
        if only and key[0] not in only and f"{key[0]}:{key[1]}" not in only:
            continue
        tiles = candidates(*key, bench.machine.capability())
        for tile in tiles:
            name = tile_text(key, tile)
            yield Item(name, lambda rows, name=name, key=key, tile=tile: tuning.try_tile(bench, name, rows, key, tile))
        name = f"again {key[0]}:{key[1]}"
        yield Item(name, lambda rows, name=name, key=key, own=tiles[0]: _time_again(bench, name, rows, key, own))


def counters(bench: Bench) -> Iterator[Item]:
    """Yield the hardware counters of Nsight Compute for one run of ``attend`` at width 128."""
    yield Item("attend at 4096", lambda rows: rows.append(_hardware_counters(bench)), seconds=60)


PARTS: dict[str, Part] = {
    "checks": check,
    "sanitizer": sanitizer,
    "d64": dense(64),
    "d128": dense(128),
    "d256": dense(256),
    "flex": flex,
    "plain": plain,
    "rules": rules,
    "decode": decode,
    "baseline": baseline,
    "short": short,
    "counters": counters,
    "tune": tune,
    "winners": winners,
}
WHOLE, NOTHING, WRONG, UNMEASURED, LOST = range(5)  # exit statuses, explained in benchmarks/flash_gpu.py


def run(
    items: Iterator[Item], bench: Bench, deadline: float, only: str = "", share: tuple[int, int] | None = None
) -> int:
    """Measure and record the items that are missing; return LOST if the device becomes unusable in this process.

    ``deadline`` is on the clock of ``time.monotonic``. The record lists the items for which there was no time. With a
    ``share`` of ``(i, n)`` only every ``n``-th item is taken, from item ``i`` on.
    """
    record = bench.record
    for item in items if share is None else itertools.islice(items, share[0], None, share[1]):
        if only not in item.name or record.has(item.name):
            continue
        left = deadline - time.monotonic()
        if left < item.seconds:
            record.leave_out(item.name, f"{max(left, 0):.0f} s were left, it needs {item.seconds:.0f} s")
            continue
        record.begin(item.name)
        rows: list[Row] = []
        try:
            item.measure(rows)
        except Unmeasured as why:
            rows.append({"unmeasured": str(why)})
        except Exception as error:
            traceback.print_exc()
            rows.append({"reason": reason(error)})
        try:
            bench.machine.settle()
            lost = None
        except Exception as error:
            lost = reason(error)
        timed = any("milliseconds" in row for row in rows)
        record.add(item.name, rows, bench.machine.state() if timed and lost is None else None)
        print(lines(item.name, rows), flush=True)
        if lost is not None:
            print(f"the device is unusable in this process, {lost}; run this again to continue", flush=True)
            return LOST
    for name, why in record.content["left_out"].items():
        print(f"left out: {name}: {why}", flush=True)
    return UNMEASURED if record.content["left_out"] else WHOLE


# --- items ----------------------------------------------------------------------------------------------------------


def _shapes(bench: Bench, widths, lengths, everyone: Callable, seconds: float = 10.0) -> Iterator[Item]:
    for d, is_causal, n in itertools.product(widths, (False, True), lengths):
        name = f"d {d}, {'causal' if is_causal else 'full'}, n {n}"

        def measure(rows: list[Row], name: str = name, d: int = d, is_causal: bool = is_causal, n: int = n) -> None:
            time_shape(bench, name, rows, everyone(is_causal, d, n), d, n, is_causal)

        yield Item(name, measure, seconds)


def _measure_rule(bench: Bench, rows: list[Row], name: str, n: int, with_flex: bool) -> None:
    """Measure one rule at one length, and the seconds in which the host makes its tile table."""
    d, device = 128, bench.machine.device
    b, _ = bench.heads(n, d)
    rule = PATTERNS[name](b, n, device)
    began = time.perf_counter()
    make_tile_table(rule, n, n, device=device)
    seconds = measure_rounded(time.perf_counter() - began)
    share = count_pairs(rule, b, n, device) / n**2
    everyone = rivals.ruled(bench, rule, d, n, with_flex=with_flex)
    time_shape(bench, f"{name}, d {d}, n {n}", rows, everyone, d, n, False, rule=(name, share))
    for row in rows:
        if row["implementation"] == "triton":
            row["table_seconds"] = seconds


def _decoding(bench: Bench, d: int, everyone: dict[str, Callable]) -> Iterator[Item]:
    for b in bench.sizes.batches:
        name = f"decode d {d}, b {b}"
        yield Item(name, lambda rows, name=name, b=b: time_decoding(bench, name, rows, everyone, b, d))


def _time_again(bench: Bench, name: str, rows: list[Row], key: tuple[str, int], own) -> None:
    """Time the best two tiles and the library's tile in turns."""
    wanted = f"{key[0]}:{key[1]}="
    earlier = [row for row in bench.record.rows if row.get("tile", "").startswith(wanted) and not row.get("again")]
    best = [parse_tile(text)[1] for text in list(tuning.summary(earlier))[:2]]
    best += [own] if own not in best else []
    if len(best) < 2:
        rows.append({"unmeasured": "no second tile ran"})
        return
    tuning.try_again(bench, name, rows, key, best)
    text, gain = tuning.winner(rows, tile_text(key, own))
    rows.append({"winner": text, "gain": round(gain, 3)})


PROFILED_CALLS = """
import torch
from lessons_lib.flash import flash_attention
q, k, v = (torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
for _ in range(3):
    flash_attention(q, k, v, backend="triton")
torch.cuda.synchronize()
"""


def _hardware_counters(bench: Bench, program: str = "ncu") -> Row:
    """Run Nsight Compute without changing the clocks, and save its report beside the record."""
    command = [program, "--clock-control", "none", "--set", "full", "--kernel-name", "attend"]
    command += ["--launch-skip", "2", "--launch-count", "1"]
    done = checks.run_beside([*command, sys.executable, "-c", PROFILED_CALLS], {}, seconds=90)
    report = bench.record.path.with_suffix(".txt")
    report.write_text(done.stdout + done.stderr)
    printed = [line.strip() for line in done.stdout.splitlines() if "Throughput" in line or "Duration" in line]
    if done.returncode or not printed:
        raise Unmeasured(f"{program} reported no counters, exit status {done.returncode}: see {report.name}")
    return {"said": printed, "report": report.name}
