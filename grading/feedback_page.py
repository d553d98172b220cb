"""Summarise a student's points at the top of the feedback page: the total, the lateness, and each exercise by name."""

from collections.abc import Mapping
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.server_extensions.formgrader import handlers
from traitlets import Float
from traitlets.config import Config

from grading.bonus import GetGradesWithBonus
from grading.report import Exercise, Result, exercise_title, exercises

TEMPLATES = Path(__file__).with_name("templates")


def configure_page(config: Config) -> None:
    """Let nbgrader write feedback with our template, which extends nbgrader's ``feedback``.

    This cannot stand in ``nbgrader_config.py``, from which Formgrader would take the template too. nbgrader sets the
    template's name itself, so ours is another file in a folder of that name.
    """
    config.HTMLExporter.template_file = "student_page.html.j2"
    config.HTMLExporter.preprocessors = []  # those of Formgrader
    config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES), handlers.template_path]


class AddSummary(GetGradesWithBonus):
    """Fetch the points from the gradebook and summarise them for the template."""

    hours_late = Float(0, help="hours between the deadline and the submission").tag(config=True)
    percent_off = Float(0, help="percent of the total taken off for lateness").tag(config=True)

    def preprocess(self, nb, resources):
        """Add ``page``: the text of the total, of the lateness, and of each exercise's line."""
        nb, resources = super().preprocess(nb, resources)
        about = resources["nbgrader"]
        with Gradebook(self.db_url) as gradebook:
            grades = gradebook.find_submission_notebook(self.notebook_id, self.assignment_id, self.student_id).grades
            points = {grade.name: None if grade.needs_manual_grade else grade.score for grade in grades}
        result = Result(points=points, hours_late=self.hours_late, percent_off=self.percent_off)
        asked = exercises(nb)
        about["page"] = {
            "total": total_line(result, about["max_score"]),
            "lateness": lateness_line(result),
            "exercises": [exercise_line(exercise, result, commented(nb)) for exercise in asked],
        }
        return nb, resources


def total_line(result: Result, highest: float) -> str:
    """Return the total, after the penalty for lateness, and what is not graded yet.

    >>> total_line(Result(points={"a": 3, "b": None}), 8)
    '3 of 8 points (1 answer is not graded yet)'
    """
    waiting = sum(points is None for points in result.points.values())
    pending = f" ({waiting} answer{'s are' if waiting > 1 else ' is'} not graded yet)" if waiting else ""
    return f"{_number(result.total() or 0)} of {_number(highest)} points{pending}"


def lateness_line(result: Result) -> str:
    """Return a sentence on how the penalty for lateness was computed, or an empty string.

    >>> lateness_line(Result(points={"a": 20.5}, hours_late=36, percent_off=20))
    'Submitted 36 hours after the deadline: 20 % of 20.5 points are taken off, which leaves 16.4.'
    """
    if not result.hours_late:
        return ""
    when = f"Submitted {_number(round(result.hours_late, 1))} hours after the deadline: "
    if not result.percent_off:
        return f"{when}no points are taken off."
    earned, left = result.total(result.points) or 0, result.total() or 0
    percent = _number(result.percent_off)
    return f"{when}{percent} % of {_number(earned)} points are taken off, which leaves {_number(left)}."


def exercise_line(exercise: Exercise, result: Result, comments: Mapping[str, str]) -> dict:
    """Return an exercise's title, points, the name of its first graded cell, and the cells with a comment."""
    earned = result.total(exercise.points)
    waiting = any(result.points.get(name) is None for name in exercise.points)
    of = f"of {_number(sum(exercise.points.values()))}{', a bonus' if exercise.bonus else ''}"
    points = "not graded yet" if earned is None else f"{_number(earned)} {of}{' so far' if waiting else ''}"
    named = [name for name, title in comments.items() if title == exercise.title]
    return {"title": exercise.title, "points": points, "anchor": next(iter(exercise.points), ""), "comments": named}


def commented(notebook: NotebookNode) -> dict[str, str]:
    """Return the names of the cells with a grader's comment, and the titles of their exercises."""
    found: dict[str, str] = {}
    title = ""
    for cell in notebook.cells:
        title = exercise_title(cell) or title
        about = cell.metadata.get("nbgrader", {})
        if about.get("comment"):
            found[about["grade_id"]] = title
    return found


def _number(value: float) -> str:
    return f"{round(value, 2):g}"
