"""Merge the marks that several people gave by hand, each on a copy of the course folder.

    python -m grading.merge scaling anna/gradebook.db ben/gradebook.db

Grade with ``python -m grading`` first. Then copy the course folder for each person, and let one grade the first
exercise, the next one the second. Marks that were changed in a copy are taken over. A mark that two copies changed
differently is left as it was and reported; change one of the copies and merge again.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from nbgrader.api import Gradebook

from grading.course import ASSIGNMENTS, configure


class Mark(NamedTuple):
    """What a person can enter for an answer: points, extra credit, whether it is still open, and a comment."""

    points: float | None
    extra: float | None
    open: bool
    comment: str | None


def marks(gradebook: Gradebook, name: str) -> dict[tuple[str, str], Mark]:
    """Return the marks of an assignment by student and cell name."""
    found: dict[tuple[str, str], Mark] = {}
    for submission in gradebook.assignment_submissions(name):
        for notebook in submission.notebooks:
            comments = {comment.name: comment.manual_comment for comment in notebook.comments}
            for grade in notebook.grades:
                comment = comments.get(grade.name) or None
                mark = Mark(grade.manual_score, grade.extra_credit or None, bool(grade.needs_manual_grade), comment)
                found[str(submission.student_id), grade.name] = mark
    return found


def changes(ours: dict, copies: dict[str, dict]) -> tuple[dict[tuple[str, str], Mark], list[str]]:
    """Return the marks that were given in the copies, and a message on each conflict.

    An answer that is still open in a copy is ignored: another copy may have been merged since that copy was made.
    """
    changed: dict[tuple[str, str], Mark] = {}
    conflicts: list[str] = []
    for place, mark in ours.items():
        theirs = {who: marks[place] for who, marks in copies.items() if place in marks}
        new = {who: one for who, one in theirs.items() if one != mark and _is_given(one, mark)}
        settled = not mark.open and _is_given(mark, mark)
        if len(set(new.values())) == 1 and not settled:
            changed[place] = next(iter(new.values()))
        elif new:
            all_of_them = ({"the gradebook": mark} if settled else {}) | new
            marks_given = "; ".join(f"{who} says {_in_words(one)}" for who, one in all_of_them.items())
            conflicts.append(f"{place[0]}, {place[1]}: {marks_given}")
    return changed, conflicts


def _is_given(mark: Mark, ours: Mark) -> bool:
    given = mark.points is not None or mark.extra is not None or mark.comment is not None
    return not mark.open and (given or ours.open)


def _in_words(mark: Mark) -> str:
    points = "open" if mark.open else "points as checked" if mark.points is None else f"{mark.points:g}"
    return points + (f" + {mark.extra:g}" if mark.extra else "") + (f" ({mark.comment})" if mark.comment else "")


def write_marks(gradebook: Gradebook, name: str, changed: dict[tuple[str, str], Mark]) -> None:
    """Write marks into a gradebook."""
    for submission in gradebook.assignment_submissions(name):
        for notebook in submission.notebooks:
            for grade in notebook.grades:
                if mark := changed.get((str(submission.student_id), grade.name)):
                    grade.manual_score, grade.extra_credit, grade.needs_manual_grade = mark[:3]
            for comment in notebook.comments:
                if mark := changed.get((str(submission.student_id), comment.name)):
                    comment.manual_comment = mark.comment
    gradebook.db.commit()


def main(argv: list[str] | None = None) -> int:
    """Merge the copies; the exit status is 1 if there are conflicts."""
    parser = argparse.ArgumentParser(
        prog="python -m grading.merge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the assignment, a folder of assignments/source")
    parser.add_argument("copies", nargs="+", type=Path, help="the gradebook.db of each copy")
    parser.add_argument("--course", type=Path, default=ASSIGNMENTS, help="the folder of gradebook.db")
    arguments = parser.parse_args(argv)
    own = arguments.course / "gradebook.db"
    for path in (own, *arguments.copies):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    directory = configure(arguments.course.resolve()).CourseDirectory
    copies: dict[str, dict] = {}
    for path in arguments.copies:
        with Gradebook(f"sqlite:///{path.resolve()}", directory.course_id) as gradebook:
            copies[str(path)] = marks(gradebook, arguments.name)
    with Gradebook(directory.db_url, directory.course_id) as gradebook:
        changed, conflicts = changes(marks(gradebook, arguments.name), copies)
        write_marks(gradebook, arguments.name, changed)
        still_open = sum(mark.open for mark in marks(gradebook, arguments.name).values())
    print(*conflicts, sep="\n", end="\n" if conflicts else "")
    print(f"{len(changed)} marks taken over, {len(conflicts)} to agree on, {still_open} answers wait for a person.")
    return 1 if conflicts else 0


if __name__ == "__main__":
    sys.exit(main())
