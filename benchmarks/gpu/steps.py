"""The parts in groups that take at most ten minutes each, and the options of the command line."""

import dataclasses
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

import lessons_lib

from . import results, sources, tuning
from .bench import Bench, Sizes
from .machine import Machine
from .parts import PARTS, Part, run
from .record import Record, read
from .report import judge, verdicts
from .supervision import run_together, watch
from .tiles import Tiles, parse_tiles
from .timing import with_speeds

BUILD = Path(__file__).resolve().parents[2] / "_build" / "gpu"


class Step(NamedTuple):
    """Parts that are run together, and their time in seconds."""

    title: str
    parts: tuple[str, ...]
    seconds: float


STEPS = {
    1: Step("Are the kernels right?", ("checks", "sanitizer"), 540),
    2: Step("A first look", ("decode", "baseline", "counters"), 400),
    3: Step("Tiles", ("tune",), 540),
    4: Step("The tuner's tiles, and another version of the kernels, in whole passes", ("winners", "short"), 480),
    5: Step("The tables, first half", ("checks", "d128", "d64", "decode"), 540),
    6: Step("The tables, second half", ("d256", "plain", "flex", "rules"), 540),
}


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    out: Path = BUILD
    seconds: float = 540.0
    seed: int = field(default_factory=lambda: datetime.datetime.now().microsecond)
    tiles: tuple[str, ...] = ()
    tuned: Path | None = None
    only: str = ""
    commit: str | None = None
    name: str | None = None  # name of the record, if not that of the part
    jobs: int = 1  # processes that compile the kernels before they are measured
    share: tuple[int, int] | None = None  # this process takes every n-th item from item i on, to compile its kernels


def measure(part: str, items: Part, options: Options, machine: Machine, sizes: Sizes | None = None) -> Record:
    """Run one part in this process and return its record, with the exit status in ``record.content["status"]``."""
    began = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = False  # plain float32 is a reference
    home = Path(str(lessons_lib.__file__)).resolve().parents[1]
    about = {
        "part": part,
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.date.today().isoformat(),
        "began": time.time(),
        "device": machine.name(),
        "versions": machine.versions(),
        "commit": options.commit or sources.commit(home),
        "kernels": sources.fingerprint(home),
        "tiles": list(options.tiles),
        "seed": options.seed,
        "flex": "default, no max-autotune" if part in ("flex", "rules") else None,
        "state": machine.state(),
    }
    record = Record(options.out / f"{options.name or part}.json", about)
    bench = Bench(
        machine,
        record,
        record.content["seed"],
        sizes or Sizes(),
        parse_tiles(options.tiles),
        winners(options.tuned or options.out / "tune.json"),
    )
    record.content["status"] = run(items(bench), bench, began + options.seconds, options.only, options.share)
    record.save()
    return record


def winners(path: Path) -> Tiles:
    """Return the tiles that a tuner's record proposes, without tiles of the library."""
    content = read(path) or {"rows": []}
    return parse_tiles(row["winner"] for row in content["rows"] if "winner" in row and row["gain"] > 1)


Start = Callable[[str, float, str | None, Path | None], int]  # part, seconds, name of the record, library
REHEARSED = ("checks", "decode", "baseline", "tune", "d128", "d64", "d256", "flex", "rules")


def rehearse(script: Path, options: Options, parts: Iterable[str], seconds: float) -> None:
    """Let several processes make every call of the parts once: what they compile is in Triton's cache afterwards.

    Compiling takes far longer than measuring, and a process compiles one kernel at a time. Nothing is measured here,
    and no failure counts: it is met again, and recorded, when the part is measured.
    """
    parts = [part for part in parts if part in REHEARSED]
    if options.jobs < 2 or not parts:
        return
    print(f"-- compiling for {', '.join(parts)} in {options.jobs} processes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        commands = [
            [*_command(script, options, parts, Path(folder, str(i))), "--share", f"{i}/{options.jobs}"]
            for i in range(options.jobs)
        ]
        run_together(commands, seconds)


def run_step(number: int, options: Options, start: Start, other: Path | None = None, script: Path | None = None) -> int:
    """Run the parts of a step, each with the time that is left; print a summary and return the exit status.

    With a ``script`` their kernels are compiled first, in several processes.
    """
    step = STEPS[number]
    end = time.monotonic() + step.seconds
    print(f"== step {number}: {step.title}", flush=True)
    if script is not None:
        rehearse(script, options, step.parts, step.seconds / 2)
    for part in step.parts:
        if part == "short":
            if other is not None:
                versions(options, lambda *how: start("short", (end - time.monotonic()) / 2, *how), other)
            continue
        print(f"-- {part}", flush=True)
        start(part, end - time.monotonic(), None, None)
    return summarize(number, step.parts, options)


def summarize(number: int, parts: tuple[str, ...], options: Options) -> int:
    """Print the summary of a step and return the exit status."""
    contents = [content for part in parts if (content := read(options.out / f"{part}.json")) is not None]
    wanted = [part for part in parts if part in ("checks", *results.TABLES, "decode", "tune", "winners", "baseline")]
    rows = with_speeds([row | {"part": content["part"]} for content in contents for row in content["rows"]])
    counts = [f"{content['part']} {len(content['done'])} items" for content in contents]
    print(f"== step {number}: {', '.join(counts) or 'nothing'}")
    for content in contents:
        for name, why in content["left_out"].items():
            print(f"left out of {content['part']}: {name}: {why}")
        if content["part"] == "tune":
            print(tuning.table(content["rows"]))
    if "winners" in parts and not rows:
        print("there are no tuned tiles to time: run step 3 first, or name its record with --tuned")
    for row in rows:
        if row.get("right") is False or (row["part"] == "checks" and "reason" in row):
            print(f"WRONG: {row['item']}: {row.get('reason', row.get('error'))}")
        if "winner" in row:
            print(f"--tile {row['winner']}  x{row['gain']:.3f}")
    print(verdicts(judge(rows, parts)))
    return results.status(contents, wanted)


def versions(options: Options, start: Callable[[str, Path | None], int], other: Path) -> None:
    """Time the kernels of this library and of another one in the order here, there, there, here; print the ratios."""
    order = (("here-1", None), ("there-1", other), ("there-2", other), ("here-2", None))
    for name, library in order:
        start(name, library)
    found: dict[str, dict[tuple, list[float]]] = {"here": {}, "there": {}}
    for name, _ in order:
        for row in (read(options.out / f"{name}.json") or {"rows": []})["rows"]:
            if "milliseconds" in row:
                key = (row["d"], row["is_causal"], row["n"], row["pass"])
                found[name.split("-")[0]].setdefault(key, []).append(row["milliseconds"])
    print(f"how many times faster the kernels in {other} are")
    for key in found["here"].keys() & found["there"].keys():
        d, is_causal, n, direction = key
        ratio = fmean(found["here"][key]) / fmean(found["there"][key])
        print(f"  d {d:3} {'causal' if is_causal else 'full':6} n {n:6} {direction:17} x{ratio:.3f}")


def here(options: Options, machine: Machine, sizes: Sizes | None) -> Start:
    """Return a ``start`` that runs each part in this process, with the imported library."""

    def start(part: str, seconds: float, name: str | None, library: Path | None) -> int:
        part_options = dataclasses.replace(options, seconds=seconds, name=name)
        return measure(part, PARTS[part], part_options, machine, sizes).content["status"]

    return start


def _command(script: Path, options: Options, parts: Iterable[str], out: Path) -> list[str]:
    """Return the command for these parts, with the tiles and the choice of items, that writes into ``out``."""
    command = [sys.executable, str(script), *(f"--part={part}" for part in parts), "--out", str(out)]
    command += [f"--tile={text}" for text in options.tiles]
    return command + (["--only", options.only] if options.only else [])


def supervised(script: Path, options: Options) -> Start:
    """Return a ``start`` that runs each part in a supervised process of its own."""

    def start(part: str, seconds: float, name: str | None, library: Path | None) -> int:
        command = [*_command(script, options, [part], options.out), "--seed", str(options.seed)]
        command += ["--tuned", str(options.tuned)] if options.tuned else []
        command += ["--commit", options.commit] if options.commit else []
        command += ["--name", name] if name else []
        command += ["--library", str(library)] if library else []
        return watch(command, options.out / f"{name or part}.json", seconds)

    return start
