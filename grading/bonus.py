"""A bonus adds to the points of an assignment, and not to how many there are to reach.

Its exercise says so in its line, *8 points, a bonus*; nbgrader knows nothing of it and counts it like any other.
"""

import re

from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades
from nbgrader.utils import is_grade, is_locked

SAYS_SO = re.compile(r" points, a bonus\*$", re.MULTILINE)


def is_bonus(cell: NotebookNode) -> bool:
    """Say whether the exercise that begins with this cell is a bonus."""
    return cell.source.startswith("## Exercise ") and bool(SAYS_SO.search(cell.source))


def points_on_top(notebook: NotebookNode) -> float:
    """Add up what the exercises that are a bonus are worth; a heading of a student's own is none."""
    points, counts = 0.0, False
    for cell in notebook.cells:
        if is_locked(cell) and cell.source.startswith("## Exercise "):
            counts = is_bonus(cell)
        elif counts and is_grade(cell):
            points += cell.metadata.nbgrader.points
    return points


class BonusOnTop(GetGrades):
    """Fetch the points for a page of feedback, which says that so many were reached of so many."""

    def preprocess(self, nb, resources):
        """Leave what is a bonus out of the second number."""
        nb, resources = super().preprocess(nb, resources)
        resources["nbgrader"]["max_score"] -= points_on_top(nb)
        return nb, resources
