"""Audit the checks of assignments: run right and wrong answers under many seeds of a course.

    python -m grading.audit scaling masks --jobs 2
    python -m grading.audit scaling --course-seed 271828     # the number in your course's file `seed`

The answers are those of tests/checks/answers. A class is graded with one seed for all, so two things must never
happen, whatever the seed: a right answer is refused, or a wrong answer passes every graded cell of its exercise. Each
such answer is reported with the seeds that show it. The exit status is 1 if there is one, and 0 otherwise.

Without a name, all assignments are audited. The answers are trusted code and run in this process, or with --jobs in
several. Another --draw draws other seeds.
"""

import argparse
import ast
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import nbformat
import torch
from tqdm import tqdm

from grading.check_notebook import is_autograded

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"
ANSWERS = ASSIGNMENTS.parent / "tests" / "checks" / "answers"
SEEDS_AT_ONCE = 25  # a task is one answer under so many seeds
SEEDS_SHOWN = 5


@dataclass(frozen=True)
class GradedCell:
    """A graded cell of a master: its name, the name of the check that it calls, and the options of the call."""

    name: str
    check: str
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Task:
    """One answer to audit: its assignment and check, whether it is right, its number in the table, and the seeds."""

    assignment: str
    check: str
    right: bool
    number: int
    seeds: tuple[int, ...]


@dataclass
class Finding:
    """A right answer that was refused, or a wrong answer that passed every cell, with the seeds that show it."""

    assignment: str
    check: str
    right: bool
    where: str
    seeds: list[int] = field(default_factory=list)
    message: str = ""

    def __str__(self) -> str:
        some = ", ".join(map(str, sorted(self.seeds)[:SEEDS_SHOWN])) + ", ..." * (len(self.seeds) > SEEDS_SHOWN)
        what = f"refused, {self.message}" if self.right else "wrong, and passed every graded cell"
        return f"{self.assignment}, {self.check}, {self.where}: {what}\n    course seeds ({len(self.seeds)}): {some}"


@cache
def graded_cells(name: str) -> list[GradedCell]:
    """Return the graded cells of an assignment's master that call a check, in their order."""
    master = nbformat.read(ASSIGNMENTS / "source" / name / f"{name}.ipynb", as_version=4)
    found = []
    for cell in filter(is_autograded, master.cells):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("check."):
                options = tuple((str(word.arg), ast.literal_eval(word.value)) for word in node.keywords)
                called = ast.unparse(node.func).removeprefix("check.")
                found.append(GradedCell(cell.metadata.nbgrader.grade_id, called, options))
    return found


@cache
def answers(name: str) -> ModuleType:
    """Load the table of answers to an assignment's checks."""
    file = ANSWERS / f"{name.replace('-', '_')}.py"
    spec = spec_from_file_location(f"answers_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(name: str, check: str, *, right: bool) -> list[Callable]:
    """Return the right answers, or the wrong answers, to a check; none if the check has none."""
    module = answers(name)
    found = (module.RIGHT if right else module.WRONG).get(getattr(module.check, check), [])
    return list(found) if right else [wrong for wrong, *_ in found]


def refusal(check: Callable, answer: Callable, cells: Sequence[GradedCell], shift: int) -> str:
    """Return the first graded cell that refuses an answer, with its message; empty if the answer passes every cell.

    ``shift`` is the seed of the course, which is added to the seed of every cell.
    """
    for cell in cells:
        options = dict(cell.options)
        seed = int(str(options.pop("seed", 0))) + shift
        try:
            check(answer, seed=seed, **options)
        except Exception as error:
            said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            return f"{cell.name}: {said}"
    return ""


@contextmanager
def as_in_a_notebook() -> Iterator[None]:
    """Set single precision as the default type and one thread, and ignore warnings, inside the ``with`` block."""
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)


def run(task: Task) -> Finding:
    """Run one answer under the seeds of a task; the finding has no seeds if nothing is wrong."""
    answer = table(task.assignment, task.check, right=task.right)[task.number]
    check = getattr(answers(task.assignment).check, task.check)
    cells = [cell for cell in graded_cells(task.assignment) if cell.check == task.check]
    found = Finding(task.assignment, task.check, task.right, place(answer, task.number))
    with as_in_a_notebook():
        for seed in task.seeds:
            refused = refusal(check, answer, cells, seed)
            if bool(refused) == task.right:
                found.seeds.append(seed)
                found.message = found.message or refused
    return found


def place(answer: Callable, number: int) -> str:
    """Return the number of an answer in its list, and the line that defines it if it is a Python function."""
    code = getattr(answer, "__code__", None)
    return f"answer {number}" + (f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code else "")


def tasks(name: str, seeds: Sequence[int]) -> list[Task]:
    """Return the tasks of an assignment: each answer under each batch of seeds."""
    batches = [tuple(seeds[i : i + SEEDS_AT_ONCE]) for i in range(0, len(seeds), SEEDS_AT_ONCE)]
    return [
        Task(name, check, right, number, batch)
        for check in dict.fromkeys(cell.check for cell in graded_cells(name))
        for right in (True, False)
        for number in range(len(table(name, check, right=right)))
        for batch in batches
    ]


def without_answers(name: str) -> list[str]:
    """Return the checks of an assignment that have no right or no wrong answers, and so cannot be audited."""
    checks = dict.fromkeys(cell.check for cell in graded_cells(name))
    return [check for check in checks if not all(table(name, check, right=right) for right in (True, False))]


def audit(names: Sequence[str], seeds: Sequence[int], *, jobs: int = 1) -> list[Finding]:
    """Run all answers to the assignments under all seeds, with a progress bar, and return what was found."""
    todo, found = [task for name in names for task in tasks(name, seeds)], {}
    with tqdm(total=sum(len(task.seeds) for task in todo), unit="run", disable=None) as bar:
        for task, finding in run_all(todo, jobs):
            bar.update(len(task.seeds))
            if finding.seeds:
                key = task.assignment, task.check, not task.right, task.number
                first = found.setdefault(key, finding)
                if first is not finding:
                    first.seeds += finding.seeds
    return [found[key] for key in sorted(found)]


def run_all(todo: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Finding]]:
    """Run tasks in this process, or in several processes, and yield each with its finding."""
    if jobs == 1:
        yield from ((task, run(task)) for task in todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, task): task for task in todo}
        try:
            yield from ((running[done], done.result()) for done in as_completed(running))
        finally:
            pool.shutdown(cancel_futures=True)


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, audit, print the findings, and return the exit status."""
    masters = sorted(path.stem for path in (ASSIGNMENTS / "source").glob("*/*.ipynb"))
    parser = argparse.ArgumentParser(prog="python -m grading.audit", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help="assignments; all of them if none is named")
    parser.add_argument("--seeds", type=int, default=250, help="how many course seeds to draw (default: 250)")
    parser.add_argument("--draw", type=int, default=0, help="which seeds to draw; 0 always draws the same (default: 0)")
    parser.add_argument("--course-seed", type=int, action="append", help="a seed to audit instead; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run at once (default: 1)")
    arguments = parser.parse_args(words)
    names = arguments.name or masters
    if unknown := sorted(set(names) - set(masters)):
        parser.error(f"there is no assignment {', '.join(unknown)}; there are: {', '.join(masters)}")
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    seeds = arguments.course_seed or drawn_seeds(arguments.seeds, arguments.draw)
    found = audit(names, seeds, jobs=arguments.jobs)
    print(*found, sep="\n", end="\n" if found else "")
    for name in names:
        if lacking := without_answers(name):
            print(f"{name}: not audited, without right or wrong answers in {ANSWERS.name}/: {', '.join(lacking)}")
    refused, passed = (sum(finding.right is right for finding in found) for right in (True, False))
    print(f"Assignments: {len(names)}. Course seeds: {len(seeds)}.", end=" ")
    print(f"Right answers refused: {refused}. Wrong answers that passed: {passed}.")
    return 1 if found else 0


def drawn_seeds(count: int, draw: int) -> list[int]:
    """Draw course seeds as ``grading`` draws them, below 2^31; the same ``draw`` gives the same seeds."""
    return [random.Random(f"{draw} {i}").randrange(2**31) for i in range(count)]


if __name__ == "__main__":
    sys.exit(main())
