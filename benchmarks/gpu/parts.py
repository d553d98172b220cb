"""What there is to measure, part by part and item by item, and the loop that measures it."""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lessons_lib.flash.table import table_of

from . import checks, rivals, tuning
from .bench import Bench, Unmeasured, measure_rounded
from .patterns import PATTERNS, pairs
from .record import Row, reason
from .report import lines
from .tiles import candidates, parse_tile, tile_text
from .timing import time_decoding, time_shape


class Item(NamedTuple):
    """Something that is measured as a whole. ``measure(rows)`` appends what it finds, as it finds it."""

    name: str
    measure: Callable[[list[Row]], None]
    seconds: float = 10.0  # it is not begun with less time left than this


Part = Callable[[Bench], Iterator[Item]]


def check(bench: Bench) -> Iterator[Item]:
    """Every problem of :mod:`.checks`."""
    for name, function in checks.problems():
        yield Item(name, lambda rows, name=name, function=function: rows.append(function(bench, name)))


def sanitizer(bench: Bench) -> Iterator[Item]:
    """One problem under NVIDIA's checker of memory accesses."""
    yield Item("memcheck", lambda rows: rows.append(checks.memory_sanitized(bench, "memcheck")), seconds=100)


def dense(d: int) -> Part:
    """The table of one width: every length, full and causal, against PyTorch's kernels."""

    def part(bench: Bench) -> Iterator[Item]:
        return _shapes(bench, (d,), bench.sizes.lengths, lambda is_causal, d, n: rivals.fused(bench, is_causal, d))

    return part


def baseline(bench: Bench) -> Iterator[Item]:
    """The narrow tables at few lengths: a first look."""
    fused = lambda is_causal, d, n: rivals.fused(bench, is_causal, d)  # noqa: E731
    return _shapes(bench, (128, 64), bench.sizes.few_lengths, fused)


def short(bench: Bench) -> Iterator[Item]:
    """The kernels alone at few lengths: what two versions of them are compared by."""
    alone = lambda is_causal, d, n: rivals.alone(bench, is_causal, d)  # noqa: E731
    return _shapes(bench, (128, 64), bench.sizes.few_lengths, alone)


def flex(bench: Bench) -> Iterator[Item]:
    """Against FlexAttention at width 128, which compiles for every shape."""
    everyone = lambda is_causal, d, n: rivals.flexible(bench, is_causal, d, n)  # noqa: E731
    return _shapes(bench, (128,), bench.sizes.flex_lengths, everyone, seconds=90)


def plain(bench: Bench) -> Iterator[Item]:
    """Against attention that holds all scores, and the same tiles in PyTorch: the memory is what matters here."""
    everyone = lambda is_causal, d, n: rivals.plain(bench, is_causal, d, n)  # noqa: E731
    return _shapes(bench, (128,), bench.sizes.few_lengths, everyone, seconds=40)


def rules(bench: Bench) -> Iterator[Item]:
    """Led by a table at width 128: the causal band, packed documents, a prefix; FlexAttention at the last length."""
    lengths, names = bench.sizes.flex_lengths, ("causal", "documents", "prefix")
    for n, name in itertools.product(lengths, names):
        with_flex = n == lengths[-1] and name != "causal"  # of which it compiles each anew, and one it has in its part

        def measure(rows: list[Row], name: str = name, n: int = n, with_flex: bool = with_flex) -> None:
            _ruled(bench, rows, name, n, with_flex)

        yield Item(f"{name}, d 128, n {n}", measure, seconds=90 if with_flex else 20)


def winners(bench: Bench) -> Iterator[Item]:
    """The library's tiles beside the tuner's, in whole passes and in decoding."""
    widths = sorted({d for kernel, d in bench.tuned if kernel != "attend_part"}, key=[128, 64, 256].index)
    tuned = lambda is_causal, d, n: rivals.tuned(bench, is_causal, d)  # noqa: E731
    yield from _shapes(bench, widths, bench.sizes.few_lengths, tuned)
    for d in sorted({d for kernel, d in bench.tuned if kernel == "attend_part"}):
        everyone = {"triton": rivals.decoder(bench, d, {}), "triton-tuned": rivals.decoder(bench, d, bench.tuned)}
        yield from _decoding(bench, d, everyone)


def decode(bench: Bench) -> Iterator[Item]:
    """One query over a long cache, against the speed at which the device copies."""
    return _decoding(bench, 128, rivals.decoders(bench, 128))


def tune(bench: Bench, only: tuple[str, ...] = ()) -> Iterator[Item]:
    """Every tile that is worth it, kernel by kernel; the best two and the library's once more."""
    for key in tuning.ORDER:
        if only and key[0] not in only and f"{key[0]}:{key[1]}" not in only:
            continue
        tiles = candidates(*key, bench.machine.capability())
        for tile in tiles:
            name = tile_text(key, tile)
            yield Item(name, lambda rows, name=name, key=key, tile=tile: tuning.try_tile(bench, name, rows, key, tile))
        name = f"again {key[0]}:{key[1]}"
        yield Item(name, lambda rows, name=name, key=key, own=tiles[0]: _again(bench, name, rows, key, own))


def counters(bench: Bench) -> Iterator[Item]:
    """What Nsight Compute counts while ``attend`` runs once at width 128: whose turn it is to wait, and for what."""
    yield Item("attend at 4096", lambda rows: rows.append(_counted(bench)), seconds=60)


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
WHOLE, NOTHING, WRONG, UNMEASURED, LOST = range(5)  # exit statuses: benchmarks/flash_gpu.py says what they mean


def run(items: Iterator[Item], bench: Bench, deadline: float, only: str = "") -> int:
    """Measure what has not been measured and write it down; return LOST if the device can do no more in this process.

    ``deadline`` is on the clock of ``time.monotonic``; what there is no time for is named in the record.
    """
    record = bench.record
    for item in items:
        if only not in item.name or record.has(item.name):
            continue
        left = deadline - time.monotonic()
        if left < item.seconds:
            record.leave_out(item.name, f"{max(left, 0):.0f} s were left, it wants {item.seconds:.0f} s")
            continue
        record.begin(item.name)
        rows: list[Row] = []
        try:
            item.measure(rows)
        except Unmeasured as why:
            rows.append({"unmeasured": str(why)})
        except Exception as error:
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
            print(f"the device can do no more in this process, {lost}; run this again to go on", flush=True)
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


def _ruled(bench: Bench, rows: list[Row], name: str, n: int, with_flex: bool) -> None:
    """One rule at one length, and the seconds that the host takes to write its table."""
    d, device = 128, bench.machine.device
    b, _ = bench.heads(n, d)
    pattern = PATTERNS[name](b, n, device)
    began = time.perf_counter()
    table_of(pattern.rule, n, n, device=device)
    seconds = measure_rounded(time.perf_counter() - began)
    share = pairs(pattern.rule, b, n, device) / n**2
    everyone = rivals.ruled(bench, pattern, d, n, with_flex=with_flex)
    time_shape(bench, f"{name}, d {d}, n {n}", rows, everyone, d, n, False, rule=(name, share))
    for row in rows:
        if row["implementation"] == "triton":
            row["table_seconds"] = seconds


def _decoding(bench: Bench, d: int, everyone: dict[str, Callable]) -> Iterator[Item]:
    for b in bench.sizes.batches:
        name = f"decode d {d}, b {b}"
        yield Item(name, lambda rows, name=name, b=b: time_decoding(bench, name, rows, everyone, b, d))


def _again(bench: Bench, name: str, rows: list[Row], key: tuple[str, int], own) -> None:
    """Time the best two tiles and the library's in turns."""
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


COUNTED = """
import torch
from lessons_lib.flash import flash_attention
q, k, v = (torch.randn(4, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
for _ in range(3):
    flash_attention(q, k, v, backend="triton")
torch.cuda.synchronize()
"""


def _counted(bench: Bench, program: str = "ncu") -> Row:
    """The report of Nsight Compute lies beside the record; the clocks are left as they are."""
    command = [program, "--clock-control", "none", "--set", "full", "--kernel-name", "attend"]
    command += ["--launch-skip", "2", "--launch-count", "1"]
    done = checks.run_beside([*command, sys.executable, "-c", COUNTED], {}, seconds=90)
    report = bench.record.path.with_suffix(".txt")
    report.write_text(done.stdout + done.stderr)
    told = [line.strip() for line in done.stdout.splitlines() if "Throughput" in line or "Duration" in line]
    if done.returncode or not told:
        raise Unmeasured(f"{program} counted nothing, exit status {done.returncode}: see {report.name}")
    return {"said": told, "report": report.name}
