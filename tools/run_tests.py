"""Run the tests, one lane after the other; with ``--quick`` only what one wants to know while writing.

    python tools/run_tests.py [--quick | --kernels]

A lane is a way to run tests that needs a process of its own. Each uses two processes with one thread, which on two
cores measured faster than one process with two threads; a lane that is mostly one long test has another one beside it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NBVAL = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=300")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # two processes must collect the same tests in the same order
}


@dataclass(frozen=True)
class Lane:
    """One lane of the tests: its name, Python's options, the files that they run, and extra environment variables."""

    name: str
    options: tuple[str, ...]
    paths: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        """What Python is given."""
        return (*self.options, *self.paths)


def shaped() -> list[str]:
    """What the shape-checked lane runs: the library's tests, without those that train or that look at notebooks."""
    without = {"test_learning.py", "test_exercises.py", "test_repository.py", "test_guess.py"}
    without |= {"test_address.py", "test_commands.py", "test_new_chapter.py", "test_portability.py", "test_wheel.py"}
    without |= {"test_kept_runs.py", "test_seeds.py", "test_sharing.py", "test_sources.py", "test_drawings.py"}
    without |= {"test_claims.py", "test_formulas.py", "test_colophon.py"}
    without |= {"test_every_check.py"}  # each check is called over the wire too
    files = [*sorted((ROOT / "tests").glob("test_*.py")), *sorted((ROOT / "tests").glob("checks/test_*.py"))]
    library = [path.relative_to(ROOT).as_posix() for path in files if path.name not in without]
    return [*library, "tests/flash/test_tiled.py", "tests/flash/test_dispatch.py"]


# Compiled with COMPILED, each week: tiles that nobody gets before a GPU has timed them, single precision on devices
# other than a Hopper, and half precision on a small Ampere, which differs from a large one by its memory alone.
WEEKLY = tuple(
    f"--deselect=tests/flash/test_triton_compiled.py::test_{cases}"
    for cases in ("candidates[", "single_precision[80", "single_precision[100", "half_precision[86")
)
LIBRARY = Lane(
    "library, exercises, repository",
    (
        *PYTEST,
        "-n",
        "2",
        *(f"--ignore=tests/{folder}" for folder in ("grading", "site", "widgets")),
        *WEEKLY,
    ),
    ("tests",),
)
CLASS = Lane(
    "a class's work, graded in a sandbox", (*PYTEST, "-n", "2", "--dist", "loadfile", "-rs"), ("tests/grading",)
)
BOOK = Lane("the site, built with warnings as errors", ("tools/build_book.py",))
INTERPRETED = ("triton_interpreted", "differential", "launch", "table_kernels")
# Triton decides once in a process whether it interprets kernels or compiles them.
KERNELS = Lane(
    "the GPU's kernels, interpreted on the CPU",
    (*PYTEST, "-n", "2"),
    tuple(f"tests/flash/test_{name}.py" for name in INTERPRETED),
    {"TRITON_INTERPRET": "1"},
)
COMPILED = Lane(
    "the GPU's kernels, compiled for their devices", (*PYTEST, "-n", "2"), ("tests/flash/test_triton_compiled.py",)
)
SHAPES = Lane(
    "the same library tests with every shape in every signature executed",
    (*PYTEST, "-n", "2", "--jaxtyping-packages=lessons_lib,beartype.beartype", "-m", "not rejects"),
    tuple(shaped()),
)
NOTEBOOKS = Lane(
    "every notebook of the book, cell by cell",
    (*PYTEST, "-n", "2", "--dist", "loadfile", *NBVAL),
    ("book",),
)
# A browser on a machine with other work may answer late: what fails is tried once more, and named either way.
SITE = Lane(
    "the site and the explorers, moved in a real browser",
    (*PYTEST, "-n", "2", "--dist", "loadgroup", "--reruns", "1", "-rsR"),
    ("tests/site", "tests/widgets"),
)
# Lanes of one tuple run side by side. The book is built of the runs that were tested: book/conftest.py.
ALL = ((LIBRARY,), (NOTEBOOKS,), (BOOK, CLASS), (KERNELS,), (SHAPES,), (SITE,))

OF_KERNELS = ((COMPILED,), (KERNELS,))  # most of COMPILED is in LIBRARY: alone it needs PyTorch and Triton only

FEW = ("-k", "not either_precision0", "--hypothesis-profile=quick")
SLOW = (
    "test_exercises.py",
    "test_kept_runs.py",
    "test_portability.py",
    "test_learning.py",
    "test_huggingface.py",
    "test_new_chapter.py",
    "test_wheel.py",
    "flash/test_triton_compiled.py",
)
QUICK = (
    (Lane("lint", ("-m", "ruff", "check", ".")),),
    (Lane("format", ("-m", "ruff", "format", "--check", ".")),),
    (
        Lane(
            "library without what is slow, in one precision, with few examples",
            (*LIBRARY.options, *(f"--ignore=tests/{file}" for file in SLOW), *FEW),
            LIBRARY.paths,
        ),
    ),
)


def run(steps: Sequence[Sequence[Lane]]) -> int:
    """Run the steps in order and stop after one that fails; return the exit status, 0 if nothing failed.

    The first lane of a step speaks as it goes, what the others say follows.
    """
    began = time.monotonic()
    for number, (first, *others) in enumerate(steps, 1):
        print(f"== {number}/{len(steps)} {' | beside it: '.join(lane.name for lane in (first, *others))}", flush=True)
        with tempfile.TemporaryFile() as said:
            beside = [start(lane, said) for lane in others]
            statuses = [start(first).wait(), *(process.wait() for process in beside)]
            said.seek(0)
            sys.stdout.buffer.write(said.read())
        print(f"   {time.monotonic() - began:.0f} s so far", flush=True)
        if any(statuses):
            return next(filter(None, statuses))
    return 0


def start(lane: Lane, output=None) -> subprocess.Popen:
    """Start the lane in the repository's folder."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **ENVIRONMENT, **lane.environment}
    return subprocess.Popen(
        [sys.executable, *lane.command], cwd=ROOT, env=environment, stdout=output, stderr=output and subprocess.STDOUT
    )


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Run the tests, one lane after the other.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="lint, and the library's fast tests")
    which.add_argument("--kernels", action="store_true", help="the GPU's kernels alone, interpreted and compiled")
    asked = parser.parse_args()
    try:
        return run(QUICK if asked.quick else OF_KERNELS if asked.kernels else ALL)
    except KeyboardInterrupt:  # which the lanes have got too
        return 130


if __name__ == "__main__":
    sys.exit(main())
