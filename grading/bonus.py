"""Bonus exercises: their points are added to a student's points, but not to the maximum of the assignment.

An exercise is marked as a bonus in its line of points, *8 points, a bonus*. nbgrader has no notion of a bonus and
counts it like any other exercise.
"""

import re

from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades
from nbgrader.utils import is_grade, is_locked

BONUS_LINE = re.compile(r" points, a bonus\*$", re.MULTILINE)


def is_bonus(cell: NotebookNode) -> bool:
    """Return whether the exercise that begins with this cell is a bonus."""
    return cell.source.startswith("## Exercise ") and bool(BONUS_LINE.search(cell.source))


def bonus_points(notebook: NotebookNode) -> float:
    """Return the sum of the points of the bonus exercises; only locked headings begin an exercise."""
    points, in_bonus = 0.0, False
    for cell in notebook.cells:
        if is_locked(cell) and cell.source.startswith("## Exercise "):
            in_bonus = is_bonus(cell)
        elif in_bonus and is_grade(cell):
            points += cell.metadata.nbgrader.points
    return points


class GetGradesWithBonus(GetGrades):
    """Fetch the points and the maximum that a feedback page shows."""

    def preprocess(self, nb, resources):
        """Subtract the bonus points from the maximum."""
        nb, resources = super().preprocess(nb, resources)
        resources["nbgrader"]["max_score"] -= bonus_points(nb)
        return nb, resources
