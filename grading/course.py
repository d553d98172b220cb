"""One assignment in a course folder: the places of its files, and the steps of grading it."""

import copy
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

from grading.check_notebook import mend, other_numbers, read
from grading.collect import collected_record
from grading.draw_numbers import course_numbers, drawn
from grading.executor import ExecuteWithOutsideChecks, WallClockExceededError, is_autograded
from grading.feedback_page import configure_page
from grading.groups import Group, groups
from grading.names import split
from grading.processes import WallClockExceeded
from grading.report import Result
from grading.roster import (
    AmbiguousNameError,
    Member,
    assign_groups,
    assignments_in,
    canvas_column,
    find_member,
    parse_time,
    read_roster,
    read_rules,
)
from grading.similarity import same_answers, shortcut_notes
from grading.text_files import read_text

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"


def configure(
    folder: Path, *, cell_seconds: int = 60, gib: float = 4, sandbox: bool = True, work: Path | None = None
) -> Config:
    """Read nbgrader's configuration and set this course's folders and limits; draw a seed if the course has none.

    Graded files are written to ``work``, by default the course folder itself.
    """
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ASSIGNMENTS)).load_config()
    config.CourseDirectory.root = str(work or folder)
    config.CourseDirectory.db_url = f"sqlite:///{(work or folder) / 'gradebook.db'}"
    config.CourseDirectory.submitted_directory = "checked"
    config.CourseDirectory.release_directory = "release"
    configure_page(config)
    config.ExecuteWithOutsideChecks.timeout = cell_seconds
    config.ExecuteWithOutsideChecks.memory = int(gib * 2**30)
    config.ExecuteWithOutsideChecks.sandbox = sandbox
    seed = folder / "seed"
    if not seed.exists():
        seed.write_text(f"{secrets.randbelow(2**31)}\n")
    config.ExecuteWithOutsideChecks.seed_shift = int(seed.read_text())
    config.DrawNumbers.numbers = course_numbers(folder / "course.toml")
    return config


class Course:
    """One assignment in a course folder; a method that takes one student's name can run in its own process.

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
            self.members = assign_groups(self.members, folder / self.rules.groups)
        elif not self.rules.groups:
            self.members = [replace(member, group="") for member in self.members]
        self.canvas_column = canvas_column(name, self.rules, heads)
        self.extended = self.extensions()
        self.logs = self.report / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def notebook(self, kind: str, student: str = ".") -> Path:
        """Return the notebook's path in the folder ``source``, ``release``, ``checked`` or ``autograded``."""
        return self.work / kind / student / self.name / f"{self.name}.ipynb"

    def submitted(self, student: str) -> Path:
        """Return the folder of a student's submission."""
        return self.folder / "submitted" / student / self.name

    def handed_in(self) -> set[str]:
        """Return the folders' names of all students who have handed in."""
        return {path.parent.name for path in (self.folder / "submitted").glob(f"*/{self.name}")}

    def notices(self) -> list[str]:
        """Return warnings about unknown names in ``course.toml``: extensions for nobody, rules for no assignment."""
        names = sorted(set(self.rules.extensions) - set(self.extended))
        source = self.folder / "source"
        sections = assignments_in(self.folder / "course.toml") if source.is_dir() else []
        unknown = [one for one in sections if not (source / one).is_dir()]
        warnings = (
            [f"In course.toml there are extensions for nobody of the class: {', '.join(names)}."] if names else []
        )
        return warnings + (
            [f"In course.toml there are rules for no assignment: {', '.join(unknown)}."] if unknown else []
        )

    def extensions(self) -> dict[str, str]:
        """Map each name under ``extensions`` to its owner: the folder of a member or a submission, or a group's name.

        Raises:
            ValueError: if a name fits two owners, or two names have the same owner.
        """
        others = [Member(*split(folder)) for folder in self.handed_in() if not self._member(folder)]
        teams = [Member(name) for name in dict.fromkeys(one.group for one in self.members if one.group)]
        found: dict[str, str] = {}
        for name in self.rules.extensions:
            try:
                owner = find_member(name, [*self.members, *others, *teams])
            except AmbiguousNameError as error:
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
        found = find_member(student, [Member(*split(folder)) for folder in there]) if student not in there else None
        return found.folder if found else student

    def _member(self, folder: str) -> Member | None:
        with suppress(AmbiguousNameError):
            return find_member(folder, self.members)
        return None

    def groups(self) -> list[Group]:
        """List the groups that have handed in."""
        there: dict[str, bytes | None] = {}
        for student in sorted(self.handed_in()) if any(member.group for member in self.members) else ():
            file = self.submitted(student) / f"{self.name}.ipynb"
            there[student] = file.read_bytes() if file.is_file() else None
        return groups(self.members, there, self.when_it_came)

    def works(self, students: Iterable[str]) -> tuple[list[str], list[Group]]:
        """Return the folders to grade so that these students are graded, and the groups to which they belong."""
        wanted = set(students)
        found = [group for group in self.groups() if wanted & set(group.everybody)]
        for group in found:
            wanted = wanted - set(group.everybody) | {group.counts}
        return sorted(wanted), found

    def master(self) -> NotebookNode:
        """Read the notebook with the solutions, and fill in the numbers of this course."""
        master = nbformat.read(self.notebook("source"), as_version=4)
        return drawn(master, self.name, course_numbers(self.folder / "course.toml"))

    def load_master(self) -> None:
        """Write the assignment, with its hidden tests, into the gradebook.

        Raises:
            ValueError: if the master is not well formed.
        """
        done, log = api_result(NbGraderAPI(config=self.config).generate_assignment(self.name))
        if not done:
            raise ValueError(f"the master of {self.name} is not well formed:\n{log}")

    def check_master(self, _: str = "") -> str | None:
        """Run the checks on the model answers; return the messages of checks that refuse them, or ``None``."""
        master = self.master()
        checks = [i for i, cell in enumerate(master.cells) if is_autograded(cell)]
        master.cells = master.cells[: max(checks, default=-1) + 1]  # an open exercise without checks may be slow
        runner = ExecuteWithOutsideChecks(
            config=self.config, timeout=600
        )  # the tighter limits are for submissions only
        runner.preprocess(master, {"metadata": {"path": str(self.folder)}})
        failed = {cell.metadata.nbgrader.grade_id: messages(cell) for cell in master.cells if is_autograded(cell)}
        return "; ".join(f"{name}: {texts[0]}" for name, texts in failed.items() if texts) or None

    def check_and_copy(self, student: str) -> list[str]:
        """Check a submission and write the repaired copy to ``checked``; return the repairs and other notes.

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
                came = f"{parse_time(read_text(stamp)).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
            except (ValueError, OverflowError):
                mended.append("its timestamp.txt is no date, so the time of submission is not known")
            else:
                (target.parent / "timestamp.txt").write_text(came, encoding="utf-8")
        return mended + other_numbers(notebook, released) + list(untouched_answers(notebook, released).values())

    def grade(self, student: str) -> Result | WallClockExceeded:
        """Check and run one submission; return the reason if it could not be graded, and notes."""
        try:
            notes = self.check_and_copy(student)
        except (ValueError, OSError, RecursionError) as error:
            return Result(reason=str(error))
        except Exception as error:
            return self.unexpected_failure("checking", student, error)
        try:
            if reason := self.autograde(student):
                return reason if isinstance(reason, WallClockExceeded) else Result(reason=reason, notes=notes)
            self.flag_for_manual_grading(student)
        except Exception as error:
            return self.unexpected_failure("grading", student, error)
        return Result(notes=notes)

    def unexpected_failure(self, doing: str, student: str, error: Exception) -> Result:
        """Return the result for an unexpected error in grading itself, and write the traceback to the log."""
        log = self.logs / f"{student}.txt"
        with log.open("a", encoding="utf-8", errors="replace") as file:
            file.writelines(traceback.format_exception(error))
        summary = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Result(
            reason=f"{doing} it failed with an unexpected error ({summary}): a fault of this program, not of the "
            f"student. The traceback is in {log}; a person should look at the file"
        )

    def flag_for_manual_grading(self, student: str) -> None:
        """Mark answers for manual grading that are unchanged in an exercise with other work by the student.

        nbgrader would give them no points.
        """
        notebook, released = (
            nbformat.read(path, as_version=4) for path in (self.notebook("checked", student), self.notebook("release"))
        )
        open_answers = untouched_answers(notebook, released)
        with self.gradebook() as gradebook:
            for grade in gradebook.find_submission_notebook(self.name, self.name, student).grades:
                grade.needs_manual_grade = grade.needs_manual_grade or grade.name in open_answers
            gradebook.db.commit()

    def autograde(self, student: str) -> str | None:
        """Run one submission with nbgrader; return ``None``, or the reason why it could not be graded."""
        done, log = api_result(NbGraderAPI(config=self.config).autograde(self.name, student))
        (self.logs / f"{student}.txt").write_text(log, encoding="utf-8")
        if done:
            return None
        reasons = re.findall(r"^\s*(?!nbgrader)([\w.]+(?:Error|Exception)): (.+)$", log, re.MULTILINE)
        if not reasons:
            return f"see {self.logs / student}.txt"
        kind, reason = reasons[-1]
        if reason.startswith("Kernel didn't respond in"):
            return WallClockExceeded(f"it waits for a person, nothing of it was run: {reason}")
        return WallClockExceeded(reason) if kind.endswith(WallClockExceededError.__name__) else reason

    def drop(self, student: str) -> None:
        """Remove the results of an incomplete grading, so that they are not mistaken for zero points."""
        shutil.rmtree(self.notebook("autograded", student).parent, ignore_errors=True)
        with self.gradebook() as gradebook, suppress(MissingEntry):
            gradebook.remove_submission(self.name, student)

    def drop_uncounted(self, group: Group) -> None:
        """Remove the results of those files of a group that do not count."""
        results = self.read_results()
        for student in group.aside:
            if results.pop(student, None):
                self.drop(student)
        self._write(results)

    def share_feedback(self, group: Group) -> None:
        """Copy a group's feedback page to every member."""
        page = self.folder / "feedback" / group.counts / self.name / f"{self.name}.html"
        for folder in group.members if page.is_file() else ():
            if folder != group.counts:
                copied = self.folder / "feedback" / folder / self.name / page.name
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(page, copied)

    def write_feedback(self, student: str, result: Result) -> str | None:
        """Write a student's feedback page; return ``None``, or the reason why there is none."""
        config = copy.deepcopy(self.config)
        config.AddSummary.hours_late, config.AddSummary.percent_off = result.hours_late, result.percent_off
        done, log = api_result(NbGraderAPI(config=config).generate_feedback(self.name, student))
        return None if done else "no feedback: " + log.splitlines()[-1]

    def gradebook(self) -> Gradebook:
        """Open the gradebook."""
        return Gradebook(self.config.CourseDirectory.db_url, self.config.CourseDirectory.course_id)

    def write_results(self, results: dict[str, Result], *, beside_others: bool) -> None:
        """Write to ``results.json`` what the gradebook does not store: reasons for no grade, and notes."""
        new = {student: {"reason": result.reason, "notes": result.notes} for student, result in results.items()}
        self._write((self.read_results() if beside_others else {}) | new)

    def _write(self, results: dict[str, dict]) -> None:
        beside = self.results_file.with_suffix(".new")  # replaced in one step: an interrupt leaves no partial file
        beside.write_text(json.dumps(results, indent=1), encoding="utf-8")
        beside.replace(self.results_file)

    def add_result(self, student: str, result: Result) -> None:
        """Add one result to ``results.json``."""
        self.write_results({student: result}, beside_others=True)

    def read_results(self) -> dict[str, dict]:
        """Return the content of ``results.json``, empty before the first grading."""
        return json.loads(self.results_file.read_text(encoding="utf-8")) if self.results_file.is_file() else {}

    def results(self) -> dict[str, Result]:
        """Return the result of every submission: the gradebook's points, lateness, and notes on similar answers."""
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
                find_member(student, self.members)
            except AmbiguousNameError as error:
                result.notes.append(f"its owner is not known: {error}")
        graded = {student: self.notebook("checked", student) for student, one in results.items() if not one.reason}
        notebooks = {student: nbformat.read(path, as_version=4) for student, path in graded.items() if path.is_file()}
        if notebooks:
            master, released = self.master(), nbformat.read(self.notebook("release"), as_version=4)
            same = same_answers(notebooks, released)
            for student, notebook in notebooks.items():
                results[student].notes += shortcut_notes(notebook, master) + same.get(student, [])
        return results

    def stamp(self, student: str) -> str:
        """Return the text of a submission's time stamp, empty if there is none."""
        file = self.submitted(student) / "timestamp.txt"
        member = self._member(student)
        return read_text(file) if file.is_file() else self.came.get(member.folder, "") if member else ""

    def when_it_came(self, student: str) -> datetime | None:
        """Return the time of a submission, or ``None`` if it is not known."""
        try:
            return parse_time(stamp) if (stamp := self.stamp(student)) else None
        except (ValueError, OverflowError, OSError):
            return None

    def add_lateness(self, student: str, result: Result, group: Group | None = None) -> None:
        """Set how late a submission came and the percentage taken off, and add the notes made when it was collected."""
        theirs = {student, *([group.name, *group.everybody] if group else [])}
        theirs |= {one.folder for folder in theirs if (one := self._member(folder))}
        theirs |= {one.folder for one in group.members.values()} if group else set()
        together = [name for name, owner in self.extended.items() if owner in theirs]
        try:
            stamp = self.stamp(student)
            about = collected_record(self.folder, student, self.name)
            marked, notes = about.get("late"), about.get("said", [])
            result.notes = [*notes, *(note for note in result.notes if note not in notes)]
            result.hours_late = self.rules.hours_late(parse_time(stamp), *together) if stamp else 0
            result.percent_off = self.rules.percent_off(result.hours_late)
        except (ValueError, OverflowError, OSError) as error:
            result.notes.append(f"its time of submission cannot be read: {error}"[:200])
            return
        if marked and not stamp:
            result.notes.append("the course system marks it as late, and does not say by how much")

    def result_or_reason(self, student: str, notes: list[str]) -> Result:
        """Return a submission's result; an error becomes its reason, so that the report is written all the same."""
        try:
            return self.result(student, notes)
        except Exception as error:
            return Result(reason=f"its result cannot be read: {error}", notes=notes)

    def result(self, student: str, notes: list[str]) -> Result:
        """Return the points and messages of a graded submission."""
        notebook = nbformat.read(self.notebook("autograded", student), as_version=4)
        found = {cell.metadata.nbgrader.grade_id: messages(cell) for cell in notebook.cells if is_autograded(cell)}
        with self.gradebook() as gradebook:
            grades = gradebook.find_submission_notebook(self.name, self.name, student).grades
            points = {grade.name: None if grade.needs_manual_grade else grade.score for grade in grades}
        return Result(notes=notes, points=points, messages={name: lines[0] for name, lines in found.items() if lines})


def api_result(result: dict) -> tuple[bool, str]:
    """Return whether an nbgrader call succeeded, and its log."""
    return bool(result["success"]), f"{result.get('log', '')}{result.get('error', '')}"


def messages(cell: NotebookNode) -> list[str]:
    """Return the error messages of a graded cell."""
    return [output.evalue for output in cell.outputs if output.output_type == "error"]


def untouched_answers(notebook: NotebookNode, released: NotebookNode) -> dict[str, str]:
    """Return unchanged answers to manually graded questions, each with a note, where the exercise has other work.

    nbgrader gives no points for an unchanged answer, but the student may have written it in another cell, or answered
    in code.
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
