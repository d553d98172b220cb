"""Run the tests, two lanes at a time; with ``--all-else`` what that leaves out, with ``--quick`` a small part.

    python tools/run_tests.py [--all-else | --quick | --kernels]

``make test`` runs each kind of test, and the notebooks on whose outputs a change may have an effect. Tests that only
repeat a kind (further seeds, devices, widths, themes, masters), that test other tests, or that run the slowest tools
are marked ``thorough`` and left to ``make test-all``, which also executes the shapes in the library's signatures.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # on two cores two processes with one thread each are faster than one with two
    "PYTHONHASHSEED": "0",  # the same names of the same tests in every run
    "PYTHONPYCACHEPREFIX": str(ROOT / "_build/pycache"),  # keep bytecode, but not beside the sources
    "PYTHONDONTWRITEBYTECODE": "",  # where this is set, each process would compile all that it imports
}


@dataclass(frozen=True)
class Lane:
    """One process of the tests: its name, Python's options, the files that they run, and extra environment variables.

    It starts when the lanes named in ``after`` have passed. One that ``may_be_empty`` passes without tests: those of
    the kernels are not collected where Triton is not installed, and notebooks with stored runs do not run again.
    """

    name: str
    options: tuple[str, ...]
    paths: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    may_be_empty: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """What Python is given."""
        return (*self.options, *self.paths)


def files(folder: str, *patterns: str) -> tuple[str, ...]:
    """Return the files of a folder that match, named from the repository's root."""
    found = {path for pattern in patterns for path in (ROOT / folder).glob(pattern)}
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found))


NO_TESTS = 5  # pytest's exit status
UNUSED = ("-p", "no:cacheprovider", "-p", "no:logging")  # parts of pytest
PYTEST = ("-m", "pytest", "-q", *UNUSED, "-rs", "--durations=5", "--durations-min=30")
FIRST = ("-m", "not thorough", "--hypothesis-profile=few")
SHAPED = ("-m", "not thorough and not another_process", *FIRST[2:])
REST = ("-m", "thorough")
MANY = ("-m", "thorough or hypothesis", "--hypothesis-profile=many")  # Hypothesis marks its tests itself
# Execute every shape in every signature; an int will do for a float, as for other checkers of types.
SHAPES = "--jaxtyping-packages=lessons_lib,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
# Chromium drops an input or a stored answer now and then: what fails is tried once more, and named either way.
AGAIN = ("--reruns", "1", "-rsR")
NBVAL = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=300")
INTERPRET = {"TRITON_INTERPRET": "1"}  # Triton decides once in a process whether it interprets kernels or compiles them

CHAPTERS = tuple(name for name in files("book", "*.ipynb", "*/*.ipynb") if not name.startswith("book/exercises/"))
INTERPRETED = tuple(
    f"tests/flash/test_{name}.py" for name in ("triton_interpreted", "differential", "autograd", "block_mask_kernels")
)
COMPILED = ("tests/flash/test_triton_compiled.py",)
SITE = ("tests/site", "tests/page/widgets/test_edition_in_jupyterlab.py")  # they need the built site
EXPLORERS = ("tests/page/widgets", "tests/page/test_drawings.py")
CLASS = ("tests/grading",)
CHECKS = ("tests/checks",)
LIBRARY = ("tests",)
ELSEWHERE = tuple(f"--ignore={path}" for path in (*INTERPRETED, *COMPILED, *SITE, *EXPLORERS, *CLASS))
# They start other processes or train.
SLOW = (
    "tests/edition",
    "tests/repository/test_build_page.py",
    "tests/repository/test_dependencies.py",
    "tests/chapters/test_exercises.py",
    "tests/transformer/test_huggingface.py",
    "tests/repository/test_kept_runs.py",
    "tests/training/test_learning.py",
    "tests/repository/test_mutants.py",
    "tests/repository/test_new_chapter.py",
    "tests/repository/test_new_explorer.py",
    "tests/chapters/test_portability.py",
    "tests/repository/test_stored_outputs.py",
    "tests/repository/test_wheel.py",
    "tests/chapters/test_without_records.py",
)
WITHOUT_SLOW = tuple(f"--ignore={path}" for path in SLOW)
MODELS_TOO = tuple(option for option in WITHOUT_SLOW if not option.endswith("test_huggingface.py"))
# They read the book, the repository and measurements, or give checks wrong arguments: other tests execute the shapes of
# what they call.
WITHOUT_SHAPES = tuple(
    f"--ignore={path}"
    for path in (
        "tests/chapters",
        "tests/checks/test_messages_in_languages.py",
        *files("tests/flash", "test_benchmark*.py"),
        *files("tests/repository", "test_*.py"),
    )
    if path != "tests/repository/test_examples.py"
)

# Longest first. The book is built of the runs that were tested (book/conftest.py), and the site is what was built.
TEST = (
    Lane("notebooks", (*PYTEST, *NBVAL), CHAPTERS[::2], may_be_empty=True),
    Lane("notebooks, other half", (*PYTEST, *NBVAL), CHAPTERS[1::2], may_be_empty=True),
    Lane("exercises and commands", (*PYTEST, *FIRST), (*CHECKS, *SLOW)),
    Lane("library", (*PYTEST, *FIRST, *ELSEWHERE, *WITHOUT_SLOW, f"--ignore={CHECKS[0]}"), LIBRARY),
    Lane("book", ("tools/build_book.py",), after=("notebooks", "notebooks, other half")),
    Lane("site", (*PYTEST, *FIRST, *AGAIN), SITE, after=("book",)),
    Lane("explorers", (*PYTEST, *FIRST, *AGAIN, f"--ignore={SITE[-1]}"), EXPLORERS),
    Lane("grading", (*PYTEST, *FIRST), CLASS),
    Lane("kernels, interpreted", (*PYTEST, *FIRST), INTERPRETED, INTERPRET, may_be_empty=True),
    Lane("kernels, compiled", (*PYTEST, *FIRST), COMPILED, may_be_empty=True),
)
ALL_ELSE = (
    Lane("exercises and commands", (*PYTEST, *REST), SLOW),
    Lane("shapes", (*PYTEST, *SHAPED, SHAPES, *ELSEWHERE, *MODELS_TOO, *WITHOUT_SHAPES), LIBRARY),
    Lane("library", (*PYTEST, *MANY, *ELSEWHERE, *WITHOUT_SLOW), LIBRARY),
    Lane("site", (*PYTEST, *REST, *AGAIN), SITE),
    Lane("explorers", (*PYTEST, *REST, *AGAIN, f"--ignore={SITE[-1]}"), EXPLORERS),
    Lane("kernels, compiled", (*PYTEST, *REST), COMPILED, may_be_empty=True),
    Lane("exercises, unsolved", (*PYTEST, *NBVAL), ("book/exercises",), may_be_empty=True),
    Lane("kernels, interpreted", (*PYTEST, *REST), INTERPRETED, INTERPRET, may_be_empty=True),
    Lane("grading", (*PYTEST, *REST), CLASS),
)
# The tests of the rooms, but for those that train or that open a browser.
ROOMS = ("foundations", "attention", "transformer", "generation", "training", "analysis", "applications", "efficient")
FAST = tuple(name for room in ROOMS for name in files(f"tests/{room}", "test_*.py") if name not in SLOW)
FEW = (*PYTEST, "-p", "no:nbval", "-m", "not thorough", "-k", "not either_precision0", "--hypothesis-profile=quick")
QUICK = (
    Lane("lint", ("-m", "ruff", "check", ".")),
    Lane("format", ("-m", "ruff", "format", "--check", ".")),
    Lane("library", FEW, FAST[::2]),
    Lane("library, other half", FEW, FAST[1::2]),
)
KERNELS = (
    Lane("kernels, interpreted", PYTEST, INTERPRETED, INTERPRET, may_be_empty=True),
    Lane("kernels, compiled", PYTEST, COMPILED, may_be_empty=True),
)


class Running:
    """A lane that runs; what it prints goes into a file of this folder."""

    def __init__(self, lane: Lane, folder: Path):
        self.lane, self.began = lane, time.monotonic()
        self._output = folder / lane.name
        environment = {**os.environ, **ENVIRONMENT, **lane.environment}
        command = [sys.executable, *lane.command]
        with self._output.open("wb") as file:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def status(self) -> int | None:
        """Return the exit status, or None while the lane runs."""
        status = self._process.poll()
        return 0 if status == NO_TESTS and self.lane.may_be_empty else status

    def output(self) -> bytes:
        """Return what the lane has printed."""
        return self._output.read_bytes()

    def progress(self) -> str:
        """Return the lane's name, and the last percentage that it has printed."""
        return b" ".join([self.lane.name.encode(), *re.findall(rb"\d+%", self.output())[-1:]]).decode()


def run(lanes: Sequence[Lane], at_once: int = 2) -> int:
    """Run the lanes, two at once; start no more after one has failed. Return the exit status, 0 if none failed.

    What a lane prints is shown when it has ended, and once a minute how far those that run are.
    """
    began = told = time.monotonic()
    waiting, running, status = list(lanes), [], 0
    with tempfile.TemporaryDirectory() as folder:
        while running or (waiting and not status):
            unfinished = {lane.name for lane in waiting} | {job.lane.name for job in running}
            ready = [lane for lane in waiting if not unfinished.intersection(lane.after)]
            for lane in ready[: 0 if status else at_once - len(running)]:
                waiting.remove(lane)
                running.append(Running(lane, Path(folder)))
            time.sleep(0.05)
            for job in [job for job in running if job.status() is not None]:
                running.remove(job)
                now = time.monotonic()
                print(f"== {job.lane.name}: {now - job.began:.0f} s, {now - began:.0f} s so far", flush=True)
                sys.stdout.buffer.write(job.output())
                sys.stdout.flush()
                status = status or job.status() or 0
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"   {told - began:.0f} s: {', '.join(job.progress() for job in running)}", flush=True)
    return status


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Run the tests, two lanes at a time.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all-else", action="store_true", help="what is left out otherwise: make test-all")
    which.add_argument("--quick", action="store_true", help="lint, and the library's fast tests")
    which.add_argument("--kernels", action="store_true", help="the GPU's kernels alone, interpreted and compiled")
    asked = parser.parse_args()
    try:
        return run(ALL_ELSE if asked.all_else else QUICK if asked.quick else KERNELS if asked.kernels else TEST)
    except KeyboardInterrupt:  # which the lanes have got too
        return 130


if __name__ == "__main__":
    sys.exit(main())
