"""Check the Triton kernels on an NVIDIA GPU, then time them against PyTorch's fused kernels and a matrix product.

    python benchmarks/flash_gpu.py                   all six steps, then the result; run again, it goes on where it was
    python benchmarks/flash_gpu.py --step 5          one step, at most nine minutes
    python benchmarks/flash_gpu.py --part d128       one part, in this process
    python benchmarks/flash_gpu.py --merge DIR ...   join what the parts wrote there into the result
    python benchmarks/flash_gpu.py --mark            say in every result whether the kernels have changed since

A machine with a GPU of compute capability 8.0 or newer and a CUDA build of PyTorch, which brings Triton, needs besides
only einops, jaxtyping and NumPy. The steps are

1. right?      outputs, log-sum-exps and gradients against float64 in three precisions: bands and key lengths; packed
               documents, a prefix, Longformer and BigBird, led by a table; softcap, slopes and sinks; caches of their
               own lengths. Then what kernels are known to get wrong; every failure is recorded
2. first look  decoding, and the narrow tables at three lengths; what Nsight Compute counts, where it is
3. tiles       each tile that is worth it, kernel by kernel (also ``benchmarks/tune_flash.py``)
4. variants    the tuner's tiles in whole passes; with ``--other DIR`` the kernels of another ``lessons_lib``, in turns
5. tables      the checks again if the kernels are others, widths 128 and 64, decoding
6. tables      width 256; at width 128 plain ways, for their memory, FlexAttention (its default, not max-autotune), and
               rules led by a table: the causal band, packed documents and a prefix, beside the kernels' causal path,
               PyTorch's memory-efficient kernel with a Boolean mask, and at the last length FlexAttention

Before a step is measured, a process on each processor compiles a share of its kernels (``--jobs``): this takes most of
the time. Each part writes ``PART.json`` into ``--out`` after every shape. The result,
``benchmarks/results/flash-<device>.json``, names the commit and holds a fingerprint of every file that makes the
kernels.

What the figures mean. ``milliseconds`` is the mean of two rounds' medians, each round in its own order, ``low`` and
``high`` what 20 % and 80 % of the calls stay below. ``tflops`` counts the two products of the forward pass,
:math:`4 b h n^2 d`, half of that if causal, 2.5 times that for the backward pass and 3.5 times for both, whatever a
kernel really does; under a rule led by a table it is the ``share`` of all pairs that the rule shows which counts.
``of_matmul`` is ``tflops`` over the rate of an 8192 x 8192 x 8192 product measured in the same process; ``kernel`` is
who really ran, of ``launches``; ``extra_mib`` is how far the peak of memory rises; ``speed_of_triton`` is how many
times faster the Triton kernels are; ``table_seconds`` is what the host takes to write a rule's table, once. A row that
could not run has ``reason`` in place of figures.

The exit status: 0, all that was to be measured was, is right and on target; 1, nothing was measured; 2, a result is
wrong or a target missed; 3, neither, but something is unmeasured; 4, a part was lost, and running it again goes on.
"""

import argparse
import os
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[1]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the Triton kernels on an NVIDIA GPU.")
    parser.add_argument("--step", type=int, choices=range(1, 7), help="one step; without it, all")
    parser.add_argument("--part", action="append", help="a part in this process, by name; can be repeated")
    parser.add_argument("--out", type=Path, help="where the parts write; _build/gpu if not given")
    parser.add_argument("--seconds", type=float, default=540.0, help="what a part may take")
    parser.add_argument("--jobs", type=int, help="processes that compile beforehand; for steps a processor each")
    parser.add_argument(
        "--share", type=parse_share, help="I/N: compile for every N-th item from item I on, do not time"
    )
    parser.add_argument("--seed", type=int, help="of the inputs; a new one if not given, and recorded")
    parser.add_argument(
        "--tile",
        action="append",
        default=[],
        help="KERNEL:WIDTH=QUERIES,KEYS,WARPS,STAGES[,host]",
    )
    parser.add_argument("--tuned", type=Path, help="the tuner's record; tune.json in --out if not given")
    parser.add_argument("--other", type=Path, help="a folder with another lessons_lib, for step 4")
    parser.add_argument("--only", default="", help="only items whose name contains this")
    parser.add_argument("--commit", help="what is measured, where there is no git to ask")
    parser.add_argument("--name", help="of the record, if not the part's")
    parser.add_argument("--library", type=Path, help="measure the lessons_lib that lies in this folder")
    parser.add_argument("--watched", action="store_true", help="end when standard input does")
    parser.add_argument("--merge", type=Path, nargs="*", help="join the parts in these folders (--out if none)")
    parser.add_argument("--mark", action="store_true", help="bring the results' word on their age up to date")
    return parser.parse_args(argv)


def parse_share(text: str) -> tuple[int, int]:
    """Parse ``I/N``, from ``0/N`` to ``(N - 1)/N``.

    Raises:
        argparse.ArgumentTypeError: if the text has another form.
    """
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise argparse.ArgumentTypeError(f"a share is I/N with I below N, got {text!r}")
    return int(i), int(n)


def find_library(other: Path | None) -> None:
    """Let Python find this checkout's library, whatever is installed, or the one in another folder.

    This folder leaves the path, on which Python has put it: PyTorch hands the path to the processes that compile, and
    they would take the ``site.py`` that is here for Python's own.
    """
    folder = str(ROOT / "benchmarks")
    sys.path[:] = [str(ROOT), *(place for place in sys.path if place not in (folder, str(ROOT)))]
    import benchmarks.gpu  # noqa: F401  (from here, also if the other folder has one)

    if other is not None:
        sys.path.insert(0, str(other.resolve()))


def main(argv: list[str] | None = None, machine=None, sizes=None, script: Path | None = SCRIPT) -> int:
    """Do what the command line asks; parts run in this process if there is no ``script`` to run them in another."""
    asked = arguments(argv)
    find_library(asked.library)
    from benchmarks.gpu import results, steps
    from benchmarks.gpu.machine import Machine, Rehearsal
    from benchmarks.gpu.parts import LOST, PARTS
    from benchmarks.gpu.supervision import end_with_parent
    from benchmarks.gpu.tiles import parse_tiles

    names = ("out", "seconds", "seed", "tuned", "only", "commit", "name", "share")
    given = {name: getattr(asked, name) for name in names}
    given["jobs"] = asked.jobs or (1 if asked.part else os.cpu_count())
    given = {name: value for name, value in given.items() if value is not None}
    options = steps.Options(**given, tiles=tuple(asked.tile))
    parse_tiles(options.tiles)

    if asked.mark:
        print(*results.mark() or ["every result says truly whether it is out of date"], sep="\n")
        return 0
    if asked.merge is not None:
        return merge(asked.merge or [options.out])
    machine = machine or (Rehearsal() if asked.share else Machine())
    if not machine.available():
        print(
            "flash_gpu.py needs an NVIDIA GPU and a CUDA build of PyTorch: there is none here, nothing was measured",
            file=sys.stderr,
        )
        return 1
    if asked.watched:
        end_with_parent()
    if asked.part:
        unknown = [part for part in asked.part if part not in PARTS]
        if unknown:
            raise ValueError(f"part must be one of {', '.join(PARTS)}, got {unknown[0]!r}")
        if script and not asked.share:
            steps.rehearse(script, options, asked.part, options.seconds / 2)
        contents = [steps.measure(part, PARTS[part], options, machine, sizes).content for part in asked.part]
        lost = any(content["status"] == LOST for content in contents)
        return LOST if lost else results.status(contents, asked.part)

    start = steps.supervised(script, options) if script else steps.here(options, machine, sizes)
    numbers = [asked.step] if asked.step else list(steps.STEPS)
    statuses = [steps.run_step(number, options, start, asked.other, script) for number in numbers]
    return statuses[0] if asked.step else merge([options.out])


def merge(folders: list[Path]) -> int:
    """Join the parts in these folders; print the verdicts and where the result is."""
    from benchmarks.gpu import results
    from benchmarks.gpu.record import write
    from benchmarks.gpu.report import verdicts

    contents = results.gather(folders)
    if not contents:
        print(f"there is no part in {', '.join(map(str, folders))}: nothing was measured", file=sys.stderr)
        return 1
    result = results.join(contents)
    path = results.FOLDER / results.file_name(result["device"])
    write(path, result)
    print(verdicts(result["targets"]))
    for what in ("wrong", "unmeasured", "stale"):
        if result[what]:
            print(f"{what}: {result[what]}")
    print(path)
    return results.status(contents, results.KEPT)


if __name__ == "__main__":
    sys.exit(main())
