"""Grade the submissions of an assignment: check, run in a sandbox, report.

    tools/grade.py scaling

Submissions are expected at submitted/STUDENT/scaling/scaling.ipynb in assignments/; the results are written to
report/scaling/ and feedback/. Run it again with --report after grading by hand. What cannot be graded is reported
with its reason and gets no points, not even zero.
"""

import argparse
import json
import multiprocessing
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic

import nbformat
from check_notebook import mend, read
from class_report import Result, exercises, write_report
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.utils import is_grade, is_solution
from outside import CheckedFromOutside, by_machine
from sandbox import why_not
from tqdm import tqdm
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"
FORK = multiprocessing.get_context("fork")  # a child starts with all that is imported here


class Course:
    """One assignment of one course folder, and the steps of grading it."""

    def __init__(self, folder: Path, name: str, config: Config):
        self.folder, self.name, self.config = folder, name, config
        self.report = folder / "report" / name
        self.results = self.report / "results.json"
        self.logs = self.report / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def notebook(self, kind: str, student: str = ".") -> Path:
        """Return where the assignment's notebook is: as ``source``, ``release``, ``checked`` or ``autograded``."""
        return self.folder / kind / student / self.name / f"{self.name}.ipynb"

    def load(self) -> None:
        """Write the assignment, with its hidden tests, into the gradebook."""
        done, log = outcome(NbGraderAPI(config=self.config).generate_assignment(self.name))
        if not done:
            raise SystemExit(f"the master of {self.name} is not well formed:\n{log}")

    def try_the_master(self, _: str) -> str | None:
        """Run the checks on the model answers, so that no student pays for a check that refuses them."""
        master = nbformat.read(self.notebook("source"), as_version=4)
        runner = CheckedFromOutside(config=self.config, timeout=600)  # our own code; only the class is hurried
        runner.preprocess(master, {"metadata": {"path": str(self.folder)}})
        failed = {cell.metadata.nbgrader.grade_id: messages(cell) for cell in master.cells if by_machine(cell)}
        return "; ".join(f"{name}: {said[0]}" for name, said in failed.items() if said) or None

    def take_in(self, student: str) -> list[str]:
        """Check a submission and copy what can be graded; return what had to be mended.

        Raises:
            ValueError: if it cannot be graded.
        """
        shutil.rmtree(self.notebook("checked", student).parent, ignore_errors=True)
        handed_in = self.folder / "submitted" / student / self.name
        file = handed_in / f"{self.name}.ipynb"
        if not file.is_file() or file.is_symlink():
            raise ValueError(f"there is no file {self.name}.ipynb in it")
        released = read(self.notebook("release"))
        notebook, mended = mend(read(file), released)
        target = self.notebook("checked", student)
        target.parent.mkdir(parents=True)
        nbformat.write(notebook, target)
        if (handed_in / "timestamp.txt").is_file():
            shutil.copy(handed_in / "timestamp.txt", target.parent)
        return mended + [
            f"{name} is as handed out, but look at the cells around it" for name in aside(notebook, released)
        ]

    def autograde(self, student: str) -> str | None:
        """Run one submission; return nothing, or why that could not be done."""
        done, log = outcome(NbGraderAPI(config=self.config).autograde(self.name, student))
        (self.logs / f"{student}.txt").write_text(log, encoding="utf-8")
        if done:
            return None
        reasons = re.findall(r"^\s*(?!nbgrader)[\w.]+(?:Error|Exception): (.+)$", log, re.MULTILINE)
        return reasons[-1] if reasons else f"see {self.logs / student}.txt"

    def forget(self, student: str) -> None:
        """Remove what half a grading left, so that nobody mistakes it for no points."""
        shutil.rmtree(self.notebook("autograded", student).parent, ignore_errors=True)
        with self.gradebook() as gradebook, suppress(MissingEntry):
            gradebook.remove_submission(self.name, student)

    def feedback(self, student: str) -> str | None:
        """Write a student's feedback; return nothing, or why that could not be done."""
        done, log = outcome(NbGraderAPI(config=self.config).generate_feedback(self.name, student))
        return None if done else "no feedback: " + log.splitlines()[-1]

    def gradebook(self) -> Gradebook:
        """Open the gradebook."""
        return Gradebook(self.config.CourseDirectory.db_url, self.config.CourseDirectory.course_id)

    def remember(self, results: dict[str, Result], *, beside_others: bool) -> None:
        """Keep what the gradebook does not: who could not be graded, and what was mended."""
        kept = self.kept() if beside_others else {}
        kept |= {student: {"reason": result.reason, "notes": result.notes} for student, result in results.items()}
        self.results.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    def kept(self) -> dict[str, dict]:
        """Read that again; nothing before the first grading."""
        return json.loads(self.results.read_text(encoding="utf-8")) if self.results.is_file() else {}

    def remembered(self) -> dict[str, Result]:
        """Return that with the points as they are now."""
        return {s: Result(**one) if one["reason"] else self.result(s, one["notes"]) for s, one in self.kept().items()}

    def result(self, student: str, notes: list[str]) -> Result:
        """Read points and messages of a graded submission."""
        notebook = nbformat.read(self.notebook("autograded", student), as_version=4)
        said = {cell.metadata.nbgrader.grade_id: messages(cell) for cell in notebook.cells if by_machine(cell)}
        with self.gradebook() as gradebook:
            grades = gradebook.find_submission_notebook(self.name, self.name, student).grades
            points = {grade.name: None if grade.needs_manual_grade else grade.score for grade in grades}
        return Result(notes=notes, points=points, messages={name: lines[0] for name, lines in said.items() if lines})


def outcome(result: dict) -> tuple[bool, str]:
    """Read what nbgrader returns: whether it did what it should, and what it said."""
    return bool(result["success"]), f"{result.get('log', '')}{result.get('error', '')}"


def messages(cell) -> list[str]:
    """Return what a graded cell complained about."""
    return [output.evalue for output in cell.outputs if output.output_type == "error"]


def aside(notebook, released) -> list[str]:
    """Name the answers graded by hand that are as handed out, in exercises with cells of the student's own.

    nbgrader gives no points for an answer that nobody touched; somebody may have written it beside its place.
    """
    given = {cell.source.strip() for cell in released.cells} | {""}
    found: list[str] = []
    untouched: list[str] = []
    own = False
    for cell in [*notebook.cells, None]:
        if cell is None or cell.source.startswith("## Exercise "):
            found += untouched if own else []
            untouched, own = [], False
        elif "nbgrader" not in cell.metadata:
            own = own or cell.source.strip() not in given
        elif is_grade(cell) and is_solution(cell) and cell.source.strip() in given:
            untouched.append(cell.metadata.nbgrader.grade_id)
    return found


def configure(folder: Path, arguments: argparse.Namespace) -> Config:
    """Read nbgrader's configuration and lay this course's folders and limits over it."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ASSIGNMENTS)).load_config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.db_url = f"sqlite:///{folder / 'gradebook.db'}"
    config.CourseDirectory.submitted_directory = "checked"
    config.CourseDirectory.release_directory = "release"
    config.CheckedFromOutside.timeout = arguments.cell_seconds
    config.CheckedFromOutside.memory = int(arguments.memory * 2**30)
    config.CheckedFromOutside.sandbox = not arguments.without_sandbox
    seed = folder / "seed"
    if not seed.exists():
        seed.write_text(f"{secrets.randbelow(2**31)}\n")
    config.CheckedFromOutside.seed_shift = int(seed.read_text())
    return config


def in_processes(
    task: Callable[[str], str | None], names: Iterable[str], *, at_a_time: int, seconds: float, log: Path
) -> Iterator[tuple[str, str | None]]:
    """Run a task for each name in a process of its own; yield what it returned, or how it came to a bad end."""
    waiting = list(names)
    running: dict[Connection, tuple] = {}
    while waiting or running:
        while waiting and len(running) < at_a_time:
            name = waiting.pop(0)
            receiver, sender = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_in_a_process, args=(task, name, sender, log))
            process.start()
            sender.close()
            running[receiver] = name, process, monotonic() + seconds
        ready = wait(list(running), timeout=0.5)
        for receiver in [one for one in running if one in ready]:
            name, process, _ = running.pop(receiver)
            try:
                reason = receiver.recv()
            except EOFError:
                reason = "the process that graded it died"
            process.join()
            yield name, reason
        for receiver, (name, process, deadline) in list(running.items()):
            if monotonic() > deadline:
                del running[receiver]
                process.kill()
                process.join()
                yield name, f"it ran longer than {seconds:.0f} seconds in all"


def _in_a_process(task: Callable[[str], str | None], name: str, sender, log: Path) -> None:
    with log.open("a") as file:  # what kernels print to a terminal
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        sender.send(task(name))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


def grade(course: Course, students: list[str], limits: dict) -> dict[str, Result]:
    """Grade submissions; return what came of it by student, without the points of those that were graded."""
    course.load()
    for _, complaint in in_processes(course.try_the_master, [course.name], **limits):
        if complaint:
            raise SystemExit(f"the model answers do not pass their own checks, so nobody was graded: {complaint}")
    results: dict[str, Result] = {}
    for student in students:
        try:
            results[student] = Result(notes=course.take_in(student))
        except (ValueError, OSError) as error:
            results[student] = Result(reason=str(error))
    gradable = [student for student, result in results.items() if not result.reason]
    for student, reason in progress("graded", course.autograde, gradable, limits):
        results[student].reason = reason
    for student, result in results.items():
        if result.reason:
            course.forget(student)
    return results


def progress(verb: str, task: Callable[[str], str | None], students: list[str], limits: dict):
    """Run a task for each student and show how far it is."""
    return tqdm(in_processes(task, students, **limits), total=len(students), desc=verb, unit="student")


def main(argv: list[str] | None = None) -> int:
    """Grade one assignment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the assignment, a folder of assignments/source")
    parser.add_argument("--course", type=Path, default=ASSIGNMENTS, help="the folder of source/ and submitted/")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--report", action="store_true", help="grade nothing, write report and feedback anew")
    which.add_argument(
        "--student", action="append", help="grade this one, leave the others as they are; may be repeated"
    )
    parser.add_argument("--without-sandbox", action="store_true", help="run students' code with your own rights")
    parser.add_argument("--cell-seconds", type=int, default=60, help="time for one cell (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=600, help="time for one notebook (default: %(default)s)")
    parser.add_argument("--memory", type=float, default=4, help="GiB for one notebook (default: %(default)s)")
    parser.add_argument("--at-a-time", type=int, default=2, help="notebooks run at once (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not (arguments.course / "source" / arguments.name / f"{arguments.name}.ipynb").is_file():
        parser.error(f"there is no master source/{arguments.name}/{arguments.name}.ipynb in {arguments.course}")
    if arguments.report and not (arguments.course / "report" / arguments.name / "results.json").is_file():
        parser.error(f"{arguments.name} has not been graded yet: leave out --report")
    if not (arguments.report or arguments.without_sandbox) and (reason := why_not()):
        parser.error(f"{reason}. Students' code would run with your rights; --without-sandbox accepts that")
    there = {path.parent.name for path in (arguments.course / "submitted").glob(f"*/{arguments.name}")}
    wanted = set(arguments.student or there) or {"STUDENT"}
    if not arguments.report and (missing := sorted(wanted - there)):
        place = f"submitted/{missing[0]}/{arguments.name}/{arguments.name}.ipynb"
        parser.error(f"nobody's work is at {place} in {arguments.course}")
    folder = arguments.course.resolve()
    course = Course(folder, arguments.name, configure(folder, arguments))
    limits = {"at_a_time": arguments.at_a_time, "seconds": arguments.seconds, "log": course.logs / "kernels.txt"}
    with tempfile.TemporaryDirectory() as scratch:  # also for what a process that was killed leaves behind
        tempfile.tempdir = scratch
        if not arguments.report:
            course.remember(grade(course, sorted(wanted), limits), beside_others=bool(arguments.student))
        results = course.remembered()
        graded = [student for student, result in results.items() if not result.reason]
        for student, reason in progress("feedback", course.feedback, graded, limits):
            results[student].notes += [reason] if reason else []
    asked = exercises(nbformat.read(course.notebook("source"), as_version=4))
    print(write_report(course.report, course.name, results, asked))
    print(f"\nMore in {course.report}, and for the students in {folder / 'feedback'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
