"""Tell nbgrader's ``zip_collect`` whose notebook a file in a course system's zip is.

Canvas writes doealice_1234_5678_scaling.ipynb (with _LATE, or anon_x7Qf2 in place of name and number), Moodle writes
Alice Doe_1234_assignsubmission_file/scaling.ipynb, as a folder or not, in older versions with one more underscore.
"""

import re
from pathlib import Path

from nbgrader.plugins import FileNameCollectorPlugin

from grading.check_notebook import plain_name

WHO = re.compile(
    r"(?:(?P<name>.+?)(?:_late)?_(?P<number>\d+)|(?:late_)?(?P<anonymous>anon_[^_]+))"
    r"_(?:\d+|assignsubmission_file)(?:_(?P<file>.*)|$)",
    re.IGNORECASE,
)


class FromCourseSystem(FileNameCollectorPlugin):
    """Know a student by name and number, so that two of one name are two; the number is also the way back."""

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """Return ``student_id`` and ``file_id``, or nothing for a file that belongs to nobody."""
        notebook = Path(submitted_file)
        if notebook.suffix != ".ipynb":
            return None
        notebook = notebook.with_suffix("")
        for place in (notebook, *notebook.parents):
            if who := WHO.fullmatch(place.name):
                written = who["file"] if place is notebook and who["file"] else notebook.name
                return {"student_id": student(who), "file_id": plain_name(written)}
        return None


def student(who: re.Match) -> str:
    """Name the student's folder."""
    return who["anonymous"] or f"{who['name']}_id{who['number']}"


def split(student: str) -> tuple[str, str]:
    """Take a folder's name apart again: the name, and the number in the course system (or nothing)."""
    found = re.fullmatch(r"(.+)_id(\d+)", student)
    return (found[1], found[2]) if found else (student, "")
