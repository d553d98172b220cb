"""Mutation tests: make one small wrong change at a time, and check that the tests fail for each.

    python tools/run_mutants.py [PART ...]

A mutant consists of a change in one place, and the tests that must fail because of it. The tests run in a copy of the
repository, as ``make test`` runs them, or ``make test-all`` for shapes: first without the change, when they must pass,
then with it, when they must fail. Without names all mutants run. Mutants of the site and of the book's build copy
``_build``: run ``make book`` first.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from files import listed
from run_tests import ALL_ELSE, ENVIRONMENT, TEST, Lane

ROOT = Path(__file__).resolve().parents[1]
FAILED = 1  # pytest's exit status if tests ran and failed; others mean that they were not found or did not run


@dataclass(frozen=True)
class Mutant:
    """A change that introduces a fault, and the tests that must fail because of it.

    ``old`` must occur exactly once in ``file``. ``tests`` are arguments of pytest. ``built`` is the path of the same
    file in the built site, for tests of the site.
    """

    part: str
    file: str
    old: str
    new: str
    lane: Lane
    tests: tuple[str, ...] = ()
    built: str | None = None


LANES = {lane.name: lane for lane in (*ALL_ELSE, *TEST)}  # of two with one name, that of make test
MUTANTS = (
    Mutant(
        "library",
        "lessons_lib/attention/attention.py",
        "return 1 / math.sqrt(query.shape[-1]) if scale is None else scale",
        "return 1 / math.sqrt(query.shape[-2]) if scale is None else scale",
        LANES["library"],
        ("tests/attention/test_attention.py", "-k", "default_scale"),
    ),
    Mutant(
        "shapes",
        "lessons_lib/attention/attention.py",
        ') -> Float[Tensor, "*batch n d_v"]:',
        ') -> Float[Tensor, "*batch n d_k"]:',
        LANES["shapes"],
        ("tests/attention/test_attention.py", "-k", "leading_axes"),
    ),
    Mutant(
        "checks",
        "lessons_lib/checks/matrix.py",
        'compare("walk", got, product[start], mistakes, where=where)',
        'compare("walk", got, torch.as_tensor(got), mistakes, where=where)',
        LANES["exercises and commands"],
        ("tests/checks/test_every_check.py", "-k", "matrix.walk"),
    ),
    Mutant(
        "exercises",
        "assignments/source/matrix/matrix.ipynb",
        "for a in layers.flip(0):",
        "for a in layers:",
        LANES["exercises and commands"],
        ("tests/chapters/test_exercises.py", "-k", "test_solved and matrix"),
    ),
    Mutant(
        "tools",
        "tools/pin_library.py",
        "if source.count(NEWEST) != 1:",
        "if source.count(NEWEST) == 0:",
        LANES["exercises and commands"],
        ("tests/edition/test_pin_library.py", "-k", "newest"),
    ),
    Mutant(
        "grading",
        "grading/rpc.py",
        '{"value": pack(result, keep), "changed": pack(tensors(given))}',
        '{"value": pack(result, keep), "changed": []}',
        LANES["grading"],
        ("tests/grading/test_rpc.py",),
    ),
    Mutant(
        "kernels interpreted",
        "lessons_lib/flash/triton_kernels.py",
        "start = tl.maximum(last - left, 0)",
        "start = tl.maximum(last - left + 1, 0)",
        LANES["kernels, interpreted"],
        ("tests/flash/test_triton_interpreted.py", "-k", "parts_of_decoding and window"),
    ),
    Mutant(
        "kernels compiled",
        "lessons_lib/flash/configurations.py",
        "64: Configuration(Tile(64, 128, 4, 2), Tile(16, 128, 4, 3), Tile(64, 64, 4, 2, host=True),",
        "64: Configuration(Tile(128, 128, 4, 2), Tile(16, 128, 4, 3), Tile(64, 64, 4, 2, host=True),",
        LANES["kernels, compiled"],
        ("tests/flash/test_triton_compiled.py", "-k", "half_precision and 90-64"),
    ),
    Mutant(
        "notebooks",
        "book/attention/masks.ipynb",
        "softmax(scores, masks.causal(3)), weights)",
        "softmax(scores, masks.causal(3).flip(0)), weights)",
        LANES["notebooks"],
        ("book/attention/masks.ipynb",),
    ),
    Mutant(
        "book",
        "book/notation.md",
        "# Notation and conventions",
        "# Notation and conventions\n\nSee {doc}`a-page-that-is-not-there`.",
        LANES["book"],
    ),
    Mutant(
        "site",
        "book/_static/book.js",
        "new URLSearchParams(hash.slice(1))",
        "new URLSearchParams(hash)",
        LANES["site"],
        ("tests/site/test_reading.py", "-k", "state_of_an_explorer"),
        built="_build/html/_static/book.js",
    ),
    Mutant(
        "explorers",
        "lessons_lib/page/widgets/static/temperature.js",
        'const weights = () => softmax(scope.read("scores"), scope.read("temperature"));',
        'const weights = () => softmax(scope.read("scores"));',
        LANES["explorers"],
        ("tests/page/widgets/test_temperature.py", "-k", "bars_follow"),
    ),
    Mutant(
        "arithmetic in JavaScript",
        "lessons_lib/page/widgets/static/arithmetic.js",
        "(w > 0 ? w * Math.log(w) : 0)",
        "w * Math.log(w)",
        LANES["explorers"],
        ("tests/page/widgets/test_arithmetic.py", "-k", "entropy"),
    ),
)


def mutate(folder: Path, mutant: Mutant) -> None:
    """Make the change in the copy.

    Raises:
        ValueError: if the text to change does not occur exactly once in the file.
    """
    for name in filter(None, (mutant.file, mutant.built)):
        path = folder / name
        text = path.read_text(encoding="utf-8")
        if (count := text.count(mutant.old)) != 1:
            raise ValueError(f"{name} must hold this text exactly once, found {count} times: {mutant.old}")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def copy_repository(to: Path, *, with_build: bool) -> None:
    """Copy the files that git tracks or would track, and with ``with_build`` also ``_build``."""
    for name in listed(ROOT, new=True):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    if with_build:
        shutil.copytree(ROOT / "_build", to / "_build")


def status(folder: Path, mutant: Mutant) -> int:
    """Run the mutant's tests in the copy, as their lane of ``make test`` does, and return the exit status."""
    lane = mutant.lane
    environment = {**os.environ, **ENVIRONMENT, **lane.environment}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a changed file may have the size and time of the old one
    environment["PYTHONPATH"] = str(folder)  # comes before the installed repository
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "_build/pycache")
    command = [sys.executable, *lane.options, *(mutant.tests or lane.paths)]
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


def problem(mutant: Mutant) -> str:
    """Return the reason why the mutant is not caught, or an empty string if it is."""
    with_build = mutant.built is not None or mutant.lane.name == "book"
    if with_build and not (ROOT / "_build/html").exists():
        return "the site has not been built: run make book"
    with tempfile.TemporaryDirectory() as name:
        copy_repository(Path(name), with_build=with_build)
        if before := status(Path(name), mutant):
            return f"its tests fail without the change: exit status {before}"
        mutate(Path(name), mutant)
        after = status(Path(name), mutant)
    return "" if after == FAILED else f"its tests do not fail: exit status {after}"


def main() -> int:
    """Run the selected mutants; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(description="Check that the tests notice deliberate mistakes.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(mutant.part for mutant in MUTANTS))
    selected = parser.parse_args().parts
    if unknown := set(selected) - {mutant.part for mutant in MUTANTS}:
        parser.error(f"PART must be one of {', '.join(mutant.part for mutant in MUTANTS)}, got {', '.join(unknown)}")
    escaped = 0
    for mutant in MUTANTS:
        if not selected or mutant.part in selected:
            reason = problem(mutant)
            print(f"{mutant.part}: {reason or 'caught'}", flush=True)
            escaped += bool(reason)
    return min(escaped, 1)


if __name__ == "__main__":
    sys.exit(main())
