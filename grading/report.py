"""Write the results of a class: a table, files for Canvas and Moodle, and a figure."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill, shorten

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from nbformat import NotebookNode
from nbgrader.utils import is_locked

from grading.bonus import is_bonus
from grading.names import split
from grading.roster import AmbiguousNameError, Member, find_member
from lessons_lib.page.plots import COLOURS

NOTHING = "nothing was handed in"


@dataclass
class Result:
    """The result of one submission: points by cell, ``None`` if graded by hand; or the reason why it has no points."""

    reason: str | None = None
    notes: list[str] = field(default_factory=list)
    points: dict[str, float | None] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    hours_late: float = 0
    percent_off: float = 0
    group: str = ""

    @property
    def status(self) -> str:
        """Return the state of this submission in a few words."""
        if self.reason == NOTHING:
            return "nothing came"
        return "not graded" if self.reason else "grade by hand" if None in self.points.values() else "graded"

    def total(self, names: Iterable[str] | None = None) -> float | None:
        """Return the sum of the known points, or ``None`` if there are none.

        Without ``names`` the sum is over all cells, and the percentage for lateness is taken off.
        """
        known = [points for name in names or self.points if (points := self.points.get(name)) is not None]
        if not known or self.reason:
            return None
        return sum(known) if names or not self.percent_off else round(sum(known) * (1 - self.percent_off / 100), 2)


@dataclass
class Exercise:
    """An exercise of a master: its heading, the points of its graded cells, and whether it is a bonus."""

    title: str
    points: dict[str, float] = field(default_factory=dict)
    bonus: bool = False


def exercise_title(cell: NotebookNode) -> str:
    """Return the title of the exercise that begins with this cell, or an empty string; headings are locked cells."""
    begins = is_locked(cell) and cell.source.startswith("## Exercise ")
    return cell.source.splitlines()[0].removeprefix("## Exercise ") if begins else ""


def exercises(notebook: NotebookNode) -> list[Exercise]:
    """Return the exercises of a master, or of a graded notebook, in their order."""
    found: list[Exercise] = []
    for cell in notebook.cells:
        if title := exercise_title(cell):
            found.append(Exercise(title, bonus=is_bonus(cell)))
        about = cell.metadata.get("nbgrader", {})
        if about.get("grade"):
            found[-1].points[about["grade_id"]] = about["points"]
    return found


def write_report(
    folder: Path,
    name: str,
    results: Mapping[str, Result],
    asked: list[Exercise],
    *,
    members: Iterable[Member] = (),
    canvas_column: str = "",
) -> str:
    """Write ``grades.csv``, ``canvas.csv``, ``moodle.csv`` and ``class.png``; return the table as text.

    A member of the class without a result is listed as having handed in nothing.
    """
    members = list(members)
    known = {student: _member(student, members) for student in results}
    came = {one.folder for one in known.values() if one}
    nothing = [one for one in members if one.folder not in came]
    results = {one.folder: Result(reason=NOTHING, group=one.group) for one in nothing} | dict(results)
    highest = sum(sum(exercise.points.values()) for exercise in asked if not exercise.bonus)
    rows = [_row(student, result, asked, highest) for student, result in sorted(results.items())]
    heads = ["student", "status", "points", *(exercise.title for exercise in asked), "why not", "messages", "notes"]
    heads += ["hours late", "percent taken off", "percent", "group"]
    _write(folder / "grades.csv", [heads, *rows])

    # A course system reads an empty field as "no grade yet"; points that are not final are left empty.
    final = {student: r.total() if r.status == "graded" else None for student, r in sorted(results.items())}
    canvas = [["    Points Possible", "", "", "", "", highest]]
    moodle = []
    for student, points in final.items():
        who, number = split(student)
        one = known.get(student) or _member(student, nothing) or Member(who, number, login="" if number else who)
        canvas.append([one.name, one.number, one.sis, one.login, one.section, points])
        identifier = f"Participant {number}" if number else ""
        moodle.append([identifier, who, points, highest, "", results[student].reason or ""])
    _write(
        folder / "canvas.csv",
        [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", canvas_column or name], *canvas],
    )
    heads = ["Identifier", "Student", "Grade", "Maximum grade", "Last modified (grade)", "Feedback comments"]
    _write(folder / "moodle.csv", [heads, *moodle])

    with plt.rc_context({"text.parse_math": False}):  # dollar signs in messages are not formulas
        _draw(folder / "class.png", results, asked)
    return _table(rows, len(asked))


def _member(student: str, members: Iterable[Member]) -> Member | None:
    try:
        return find_member(student, members)
    except AmbiguousNameError:  # the submission's note reports it
        return None


def _row(student: str, result: Result, asked: list[Exercise], highest: float) -> list:
    total = result.total()
    return [
        student,
        result.status,
        total,
        *(result.total(exercise.points) for exercise in asked),
        result.reason,
        "; ".join(f"{name}: {message}" for name, message in result.messages.items()),
        "; ".join(result.notes),
        round(result.hours_late, 1) or "",
        result.percent_off or "",
        round(100 * total / highest, 1) if total is not None and result.status == "graded" else "",
        result.group,
    ]


def _write(path: Path, rows: list[list]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[_harmless(value) for value in row] for row in rows])


def _harmless(value):
    """Prevent a spreadsheet from reading a student's text as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _table(rows: list[list], n_exercises: int) -> str:
    heads = ["student", "status", "points", *(str(i + 1) for i in range(n_exercises)), ""]
    last = 3 + n_exercises
    lines = [[_text(value) for value in row[:last]] + [shorten(row[last] or row[last + 1], 90)] for row in rows]
    widths = [max(len(line[i]) for line in [heads, *lines]) for i in range(last + 1)]
    aligned = (
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in [heads, *lines]
    )
    return "\n".join(line.rstrip() for line in aligned)


def _text(value) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float | int) else value


def _draw(path: Path, results: Mapping[str, Result], asked: list[Exercise]) -> None:
    """Draw the distribution of points in each exercise, and the most frequent messages of the checks."""
    graded = [result for result in results.values() if not result.reason]
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 9), layout="constrained")
    for i, exercise in enumerate(asked):
        highest = sum(exercise.points.values())
        reached = Counter(total for r in graded if (total := r.total(exercise.points)) is not None)
        for points, n in reached.items():
            share = 100 * points / highest
            above.scatter(share, i, s=300 + 30 * n, color=COLOURS[0])
            above.annotate(str(n), (share, i), ha="center", va="center", color="white")
    above.set_yticks(range(len(asked)), [fill(exercise.title, 40) for exercise in asked])
    above.set(xlabel="percent of the points, and how many students have them", xlim=(-7, 107))
    above.set_ylim(len(asked) - 0.5, -0.5)

    common = Counter(what for result in graded for what in {_cause(text) for text in result.messages.values()})
    causes = common.most_common(8)
    below.barh(range(len(causes)), [n for _, n in causes], color=COLOURS[1])
    below.set_yticks(range(len(causes)), [fill(shorten(cause, 88), 46) for cause, _ in causes])
    below.set(xlabel="students who got this message of a check", ylim=(max(len(causes), 4) - 0.4, -0.6))
    below.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _cause(message: str) -> str:
    """Return a check's message without the input that failed and without the line that raised."""
    return message.split(" (")[0].split(", at: ")[0]
