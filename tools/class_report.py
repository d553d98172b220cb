"""Write what a class reached: a table, files for Canvas and Moodle, and one picture."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from nbformat import NotebookNode

from lessons_lib.plots import COLOURS


@dataclass
class Result:
    """What came of one submission: points by cell, ``None`` where a person has to grade; or a reason for no points."""

    reason: str | None = None
    notes: list[str] = field(default_factory=list)
    points: dict[str, float | None] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Say in a word or two where this submission stands."""
        return "not graded" if self.reason else "grade by hand" if None in self.points.values() else "graded"

    def total(self, names: Iterable[str] | None = None) -> float | None:
        """Add up the points, of some cells or of all; nothing if there are none yet."""
        known = [points for name in names or self.points if (points := self.points.get(name)) is not None]
        return sum(known) if known and not self.reason else None


@dataclass
class Exercise:
    """An exercise of a master: its heading, and the points of its graded cells."""

    title: str
    points: dict[str, float] = field(default_factory=dict)


def exercises(master: NotebookNode) -> list[Exercise]:
    """List the exercises of a master in their order."""
    found: list[Exercise] = []
    for cell in master.cells:
        if cell.source.startswith("## Exercise "):
            found.append(Exercise(cell.source.splitlines()[0].removeprefix("## Exercise ")))
        about = cell.metadata.get("nbgrader", {})
        if about.get("grade"):
            found[-1].points[about["grade_id"]] = about["points"]
    return found


def write_report(folder: Path, name: str, results: Mapping[str, Result], asked: list[Exercise]) -> str:
    """Write ``grades.csv``, ``canvas.csv``, ``moodle.csv`` and ``class.png``; return the table as text."""
    rows = [_row(student, result, asked) for student, result in sorted(results.items())]
    heads = ["student", "status", "points", *(exercise.title for exercise in asked), "why not", "messages", "notes"]
    _write(folder / "grades.csv", [heads, *rows])

    highest = sum(sum(exercise.points.values()) for exercise in asked)
    # A course system takes an empty field for "no grade yet"; points that are not final stay out of it.
    final = {student: r.total() if r.status == "graded" else None for student, r in sorted(results.items())}
    canvas = [["", "", "", student, "", points] for student, points in final.items()]
    heads = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", name]
    _write(folder / "canvas.csv", [heads, ["    Points Possible", "", "", "", "", highest], *canvas])
    comments = {student: results[student].reason or "" for student in final}
    moodle = [[student, points, comments[student]] for student, points in final.items()]
    _write(folder / "moodle.csv", [["username", f"{name} (of {highest:g})", "feedback"], *moodle])

    _draw(folder / "class.png", results, asked)
    return _table(rows, len(asked))


def _row(student: str, result: Result, asked: list[Exercise]) -> list:
    return [
        student,
        result.status,
        result.total(),
        *(result.total(exercise.points) for exercise in asked),
        result.reason,
        "; ".join(f"{name}: {message}" for name, message in result.messages.items()),
        "; ".join(result.notes),
    ]


def _write(path: Path, rows: list[list]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[_harmless(value) for value in row] for row in rows])


def _harmless(value):
    """Keep a spreadsheet from taking a student's text for a formula."""
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
    """Draw points per exercise, one dot a student, and the complaints that the checks made most often."""
    graded = [result for result in results.values() if not result.reason]
    said = Counter(
        sentence for result in graded for sentence in {text.split(" (")[0] for text in result.messages.values()}
    )
    figure, (left, right) = plt.subplots(2, 1, figsize=(8, 8), layout="constrained")
    for i, exercise in enumerate(asked):
        highest = sum(exercise.points.values())
        shares = Counter(100 * total / highest for r in graded if (total := r.total(exercise.points)) is not None)
        left.scatter(list(shares), [i] * len(shares), s=[40 * n for n in shares.values()], color=COLOURS[0], alpha=0.8)
        for share, n in shares.items():
            left.annotate(str(n), (share, i), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8)
    left.set_yticks(range(len(asked)), [shorten(exercise.title, 40) for exercise in asked])
    left.set(xlabel="percent of the points; the number of students", xlim=(-5, 105), ylim=(len(asked) - 0.5, -0.7))
    common = said.most_common(8)
    right.barh(range(len(common)), [n for _, n in common], color=COLOURS[1])
    right.set_yticks(range(len(common)), [shorten(sentence, 70) for sentence, _ in common], fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="students to whom a check said this")
    right.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
