"""One assignment of one course folder: where its files are, and the steps of grading it."""

import json
import re
import secrets
import shutil
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from nbgrader.utils import is_grade, is_solution
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from grading.alike import same_answers, uncalled_for
from grading.check_notebook import mend, read
from grading.collect import about_it
from grading.groups import Group, groups
from grading.names import split
from grading.outside import CheckedFromOutside, OutOfClockError, by_machine
from grading.processes import OutOfClock
from grading.report import Result
from grading.roster import (
    Member,
    TwoOfOneNameError,
    assignments_in,
    canvas_column,
    in_groups,
    read_roster,
    read_rules,
    text_of,
    when,
    whose,
)

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"


def configure(
    folder: Path, *, cell_seconds: int = 60, gib: float = 4, sandbox: bool = True, work: Path | None = None
) -> Config:
    """Read nbgrader's configuration and lay this course's folders and limits over it; draw its seed if it has none.

    What is graded is written to ``work``, the course's own folder if nothing else is said.
    """
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ASSIGNMENTS)).load_config()
    config.CourseDirectory.root = str(work or folder)
    config.CourseDirectory.db_url = f"sqlite:///{(work or folder) / 'gradebook.db'}"
    config.CourseDirectory.submitted_directory = "checked"
    config.CourseDirectory.release_directory = "release"
    config.CheckedFromOutside.timeout = cell_seconds
    config.CheckedFromOutside.memory = int(gib * 2**30)
    config.CheckedFromOutside.sandbox = sandbox
    seed = folder / "seed"
    if not seed.exists():
        seed.write_text(f"{secrets.randbelow(2**31)}\n")
    config.CheckedFromOutside.seed_shift = int(seed.read_text())
    return config


class Course:
    """The steps of grading; each that takes one student's name can run in a process of its own.

    Raises:
        ValueError: if the rules, the roster or the groups of the course cannot be read.
    """

    def __init__(self, folder: Path, name: str, config: Config):
        self.folder, self.name, self.config = folder, name, config
        self.work = Path(config.CourseDirectory.root)
        self.report = self.work / "report" / name
        self.results_file = self.report / "results.json"
        self.rules = read_rules(folder / "course.toml", name)
        self.members: list[Member] = []
        self.came: dict[str, str] = {}
        heads: list[str] = []
        if (roster := folder / "roster.csv").is_file():
            self.members, heads, self.came = read_roster(roster)
        if isinstance(self.rules.groups, str):
            if not (folder / self.rules.groups).is_file():
                raise ValueError(
                    f"there is no table of groups {self.rules.groups} in {folder}, which course.toml names"
                )
            self.members = in_groups(self.members, folder / self.rules.groups)
        elif not self.rules.groups:
            self.members = [replace(member, group="") for member in self.members]
        self.canvas_column = canvas_column(name, self.rules, heads)
        self.extended = self.extensions()
        self.logs = self.report / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def notebook(self, kind: str, student: str = ".") -> Path:
        """Return where the assignment's notebook is: as ``source``, ``release``, ``checked`` or ``autograded``."""
        return self.work / kind / student / self.name / f"{self.name}.ipynb"

    def submitted(self, student: str) -> Path:
        """Return the folder of what a student has handed in."""
        return self.folder / "submitted" / student / self.name

    def handed_in(self) -> set[str]:
        """Name the folders of all who have handed in."""
        return {path.parent.name for path in (self.folder / "submitted").glob(f"*/{self.name}")}

    def notices(self) -> list[str]:
        """Say which names in ``course.toml`` are nobody's: of extensions, and of assignments."""
        names = sorted(set(self.rules.extensions) - set(self.extended))
        source = self.folder / "source"
        sections = assignments_in(self.folder / "course.toml") if source.is_dir() else []
        unknown = [one for one in sections if not (source / one).is_dir()]
        said = [f"In course.toml there are extensions for nobody of the class: {', '.join(names)}."] if names else []
        return said + ([f"In course.toml there are rules for no assignment: {', '.join(unknown)}."] if unknown else [])

    def extensions(self) -> dict[str, str]:
        """Say whose each extension is: a member's or somebody else's who has handed in, by folder, or a group's.

        Raises:
            ValueError: if one could be that of two, or two are the same one's.
        """
        others = [Member(*split(folder)) for folder in self.handed_in() if not self._member(folder)]
        teams = [Member(name) for name in dict.fromkeys(one.group for one in self.members if one.group)]
        found: dict[str, str] = {}
        for name in self.rules.extensions:
            try:
                owner = whose(name, [*self.members, *others, *teams])
            except TwoOfOneNameError as error:
                raise ValueError(f"course.toml, [{self.name}.extensions]: {error}") from error
            if owner is None:
                continue
            if owner.folder in found.values():
                both = [name, *(one for one, theirs in found.items() if theirs == owner.folder)]
                raise ValueError(
                    f"course.toml, [{self.name}.extensions]: {' and '.join(sorted(both))} are both {owner.folder}: "
                    "leave one of them"
                )
            found[name] = owner.folder
        return found

    def named(self, student: str) -> str:
        """Return the folder in submitted/ that a name means, or the name itself where there is none.

        Raises:
            ValueError: if it could be that of two.
        """
        there = self.handed_in()
        found = whose(student, [Member(*split(folder)) for folder in there]) if student not in there else None
        return found.folder if found else student

    def _member(self, folder: str) -> Member | None:
        with suppress(TwoOfOneNameError):
            return whose(folder, self.members)
        return None

    def groups(self) -> list[Group]:
        """List the groups that have handed in."""
        there: dict[str, bytes | None] = {}
        for student in sorted(self.handed_in()) if any(member.group for member in self.members) else ():
            file = self.submitted(student) / f"{self.name}.ipynb"
            there[student] = file.read_bytes() if file.is_file() else None
        return groups(self.members, there, self.when_it_came)

    def works(self, students: Iterable[str]) -> tuple[list[str], list[Group]]:
        """Return whose files are graded if these students' work is, and the groups among them."""
        wanted = set(students)
        found = [group for group in self.groups() if wanted & set(group.everybody)]
        for group in found:
            wanted = wanted - set(group.everybody) | {group.counts}
        return sorted(wanted), found

    def master(self) -> NotebookNode:
        """Read the notebook with the solutions."""
        return nbformat.read(self.notebook("source"), as_version=4)

    def load_master(self) -> None:
        """Write the assignment, with its hidden tests, into the gradebook.

        Raises:
            ValueError: if the master is not well formed.
        """
        done, log = outcome(NbGraderAPI(config=self.config).generate_assignment(self.name))
        if not done:
            raise ValueError(f"the master of {self.name} is not well formed:\n{log}")

    def check_master(self, _: str = "") -> str | None:
        """Run the checks on the model answers, so that no student pays for a check that refuses them."""
        master = self.master()
        checks = [i for i, cell in enumerate(master.cells) if by_machine(cell)]
        master.cells = master.cells[: max(checks, default=-1) + 1]  # an open exercise may come after, and take its time
        runner = CheckedFromOutside(config=self.config, timeout=600)  # our own code; only the class is hurried
        runner.preprocess(master, {"metadata": {"path": str(self.folder)}})
        failed = {cell.metadata.nbgrader.grade_id: messages(cell) for cell in master.cells if by_machine(cell)}
        return "; ".join(f"{name}: {said[0]}" for name, said in failed.items() if said) or None

    def check_and_copy(self, student: str) -> list[str]:
        """Check a submission and copy what can be graded; return what had to be mended.

        Raises:
            ValueError: if it cannot be graded.
        """
        shutil.rmtree(self.notebook("checked", student).parent, ignore_errors=True)
        handed_in = self.submitted(student)
        file = handed_in / f"{self.name}.ipynb"
        if not file.is_file() or any(place.is_symlink() for place in (file, handed_in, handed_in.parent)):
            raise ValueError(f"there is no file {self.name}.ipynb in it")
        released = read(self.notebook("release"))
        others = sorted((self.folder / "source").glob("*/*.ipynb"))
        notebook, mended = mend(read(file), released, others)
        target = self.notebook("checked", student)
        target.parent.mkdir(parents=True)
        nbformat.write(notebook, target)
        if (stamp := handed_in / "timestamp.txt").is_file():
            try:
                came = f"{when(text_of(stamp)).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            except (ValueError, OverflowError):
                mended.append("its timestamp.txt is no date, so nothing is known of when it was handed in")
            else:
                (target.parent / "timestamp.txt").write_text(came, encoding="utf-8")
        return mended + list(untouched_answers(notebook, released).values())

    def grade(self, student: str) -> Result | OutOfClock:
        """Check and run one submission; return why that could not be done, or what is to be noted."""
        try:
            notes = self.check_and_copy(student)
        except (ValueError, OSError, RecursionError) as error:
            return Result(reason=str(error))
        except Exception as error:
            return self.failed("checking", student, error)
        try:
            if reason := self.autograde(student):
                return reason if isinstance(reason, OutOfClock) else Result(reason=reason, notes=notes)
            self.leave_to_a_person(student)
        except Exception as error:
            return self.failed("grading", student, error)
        return Result(notes=notes)

    def failed(self, doing: str, student: str, error: Exception) -> Result:
        """Say that grading itself failed on a submission, and keep the traceback for whoever mends it."""
        log = self.logs / f"{student}.txt"
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.writelines(traceback.format_exception(error))
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Result(
            reason=f"{doing} it failed in a way that was not expected ({said}): a fault of this program, not of the "
            f"student. The traceback is in {log}; a person should look at the file"
        )

    def leave_to_a_person(self, student: str) -> None:
        """Have answers looked at that nbgrader gives no points, when their exercise has work of the student's."""
        notebook, released = (
            nbformat.read(path, as_version=4) for path in (self.notebook("checked", student), self.notebook("release"))
        )
        open_answers = untouched_answers(notebook, released)
        with self.gradebook() as gradebook:
            for grade in gradebook.find_submission_notebook(self.name, self.name, student).grades:
                grade.needs_manual_grade = grade.needs_manual_grade or grade.name in open_answers
            gradebook.db.commit()

    def autograde(self, student: str) -> str | None:
        """Run one submission; return nothing, or why that could not be done."""
        done, log = outcome(NbGraderAPI(config=self.config).autograde(self.name, student))
        (self.logs / f"{student}.txt").write_text(log, encoding="utf-8")
        if done:
            return None
        reasons = re.findall(r"^\s*(?!nbgrader)([\w.]+(?:Error|Exception)): (.+)$", log, re.MULTILINE)
        if not reasons:
            return f"see {self.logs / student}.txt"
        kind, reason = reasons[-1]
        if reason.startswith("Kernel didn't respond in"):
            return OutOfClock(f"it waits for a person, nothing of it was run: {reason}")
        return OutOfClock(reason) if kind.endswith(OutOfClockError.__name__) else reason

    def drop(self, student: str) -> None:
        """Remove what half a grading left, so that nobody mistakes it for no points."""
        shutil.rmtree(self.notebook("autograded", student).parent, ignore_errors=True)
        with self.gradebook() as gradebook, suppress(MissingEntry):
            gradebook.remove_submission(self.name, student)

    def set_aside(self, group: Group) -> None:
        """Remove what was graded of a group and is not what counts."""
        results = self.read_results()
        for student in group.aside:
            if results.pop(student, None):
                self.drop(student)
        self._write(results)

    def share_feedback(self, group: Group) -> None:
        """Give every member of a group its page."""
        page = self.folder / "feedback" / group.counts / self.name / f"{self.name}.html"
        for folder in group.members if page.is_file() else ():
            if folder != group.counts:
                copied = self.folder / "feedback" / folder / self.name / page.name
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(page, copied)

    def write_feedback(self, student: str) -> str | None:
        """Write a student's feedback; return nothing, or why that could not be done."""
        done, log = outcome(NbGraderAPI(config=self.config).generate_feedback(self.name, student))
        return None if done else "no feedback: " + log.splitlines()[-1]

    def gradebook(self) -> Gradebook:
        """Open the gradebook."""
        return Gradebook(self.config.CourseDirectory.db_url, self.config.CourseDirectory.course_id)

    def write_results(self, results: dict[str, Result], *, beside_others: bool) -> None:
        """Write to ``results.json`` what the gradebook does not hold: why a submission was not graded, and notes."""
        new = {student: {"reason": result.reason, "notes": result.notes} for student, result in results.items()}
        self._write((self.read_results() if beside_others else {}) | new)

    def _write(self, results: dict[str, dict]) -> None:
        beside = self.results_file.with_suffix(".new")  # who breaks this off shall not be left with half a file
        beside.write_text(json.dumps(results, indent=1), encoding="utf-8")
        beside.replace(self.results_file)

    def add_result(self, student: str, result: Result) -> None:
        """Write one result beside the others."""
        self.write_results({student: result}, beside_others=True)

    def read_results(self) -> dict[str, dict]:
        """Read ``results.json``; nothing before the first grading."""
        return json.loads(self.results_file.read_text(encoding="utf-8")) if self.results_file.is_file() else {}

    def results(self) -> dict[str, Result]:
        """Return what came of every submission: points as the gradebook has them, lateness, what to read twice."""
        results = {
            student: Result(**one) if one["reason"] else self.result_or_reason(student, one["notes"])
            for student, one in self.read_results().items()
        }
        found = {folder: group for group in self.groups() for folder in group.everybody}
        for student in sorted(self.handed_in() - set(results)):
            if student not in found or not results.keys() & set(found[student].everybody):
                results[student] = Result(reason="it is not graded yet: --rest")
        for student, result in results.items():
            self.add_lateness(student, result, found.get(student))
            try:
                whose(student, self.members)
            except TwoOfOneNameError as error:
                result.notes.append(f"whose it is is not known: {error}")
        graded = {student: self.notebook("checked", student) for student, one in results.items() if not one.reason}
        notebooks = {student: nbformat.read(path, as_version=4) for student, path in graded.items() if path.is_file()}
        if notebooks:
            master, released = self.master(), nbformat.read(self.notebook("release"), as_version=4)
            same = same_answers(notebooks, released)
            for student, notebook in notebooks.items():
                results[student].notes += uncalled_for(notebook, master) + same.get(student, [])
        return results

    def stamp(self, student: str) -> str:
        """Return what is written of when a submission came; nothing if that is not known."""
        file = self.submitted(student) / "timestamp.txt"
        member = self._member(student)
        return text_of(file) if file.is_file() else self.came.get(member.folder, "") if member else ""

    def when_it_came(self, student: str) -> datetime | None:
        """Return when a submission came, if that is known."""
        try:
            return when(stamp) if (stamp := self.stamp(student)) else None
        except (ValueError, OverflowError, OSError):
            return None

    def add_lateness(self, student: str, result: Result, group: Group | None = None) -> None:
        """Note how late a submission came, what that costs, and what was said when it was collected."""
        theirs = {student, *([group.name, *group.everybody] if group else [])}
        theirs |= {one.folder for folder in theirs if (one := self._member(folder))}
        theirs |= {one.folder for one in group.members.values()} if group else set()
        together = [name for name, owner in self.extended.items() if owner in theirs]
        try:
            stamp = self.stamp(student)
            about = about_it(self.folder, student, self.name)
            marked, said = about.get("late"), about.get("said", [])
            result.notes = [*said, *(note for note in result.notes if note not in said)]
            result.hours_late = self.rules.hours_late(when(stamp), *together) if stamp else 0
            result.percent_off = self.rules.percent_off(result.hours_late)
        except (ValueError, OverflowError, OSError) as error:
            result.notes.append(f"when it came cannot be read: {error}"[:200])
            return
        if marked and not stamp:
            result.notes.append("the course system marks it as late, and does not say by how much")

    def result_or_reason(self, student: str, notes: list[str]) -> Result:
        """Read a result; nobody's costs the class its report."""
        try:
            return self.result(student, notes)
        except Exception as error:
            return Result(reason=f"what came of it cannot be read: {error}", notes=notes)

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


def messages(cell: NotebookNode) -> list[str]:
    """Return what a graded cell complained about."""
    return [output.evalue for output in cell.outputs if output.output_type == "error"]


def untouched_answers(notebook: NotebookNode, released: NotebookNode) -> dict[str, str]:
    """Name the answers graded by hand that are as handed out, and say where their exercise has work of the student's.

    nbgrader gives no points for an answer that nobody touched; somebody may have written it beside its place, or
    answered in code.
    """
    given = {cell.source.strip() for cell in released.cells} | {""}
    found: dict[str, str] = {}
    untouched: list[str] = []
    filled: list[str] = []
    beside = False
    for cell in [*notebook.cells, None]:
        if cell is None or cell.source.startswith("## Exercise "):
            where = [*filled, *(["the cells around it"] if beside else [])]
            found |= {name: f"{name} is as handed out, but look at {', '.join(where)}" for name in untouched if where}
            untouched, filled, beside = [], [], False
        elif "nbgrader" not in cell.metadata:
            beside = beside or cell.source.strip() not in given
        elif is_solution(cell) and not is_grade(cell) and cell.source.strip() not in given:
            filled.append(cell.metadata.nbgrader.grade_id)
        elif is_grade(cell) and is_solution(cell) and cell.source.strip() in given:
            untouched.append(cell.metadata.nbgrader.grade_id)
    return found
