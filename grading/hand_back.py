"""Pack the feedback pages of a class in the shape of the zip that the submissions came in.

Moodle takes it under *Upload multiple feedback files in a zip*, Canvas under *Upload Submissions* of the assignment;
both find the student by the name that they gave the file or its folder, which ``grading.collect`` has kept.
"""

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from grading.collect import CAME, WHO


def name_in_zip(came_as: str, name: str) -> str:
    """Return where the course system looks for a page: in the student's folder, or under the name of their file."""
    who = WHO.fullmatch(came_as)
    return f"{PurePosixPath(came_as).stem}.html" if who and who["file"] else f"{came_as}/{name}.html"


def write_zip(course: Path, name: str, students: Iterable[str]) -> tuple[Path, list[str]]:
    """Write ``feedback.zip`` into the report; return where it is, and who has no place in it."""
    path = course / "report" / name / "feedback.zip"
    without: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student in sorted(students):
            page = course / "feedback" / student / name / f"{name}.html"
            about = course / "submitted" / student / name / CAME
            if page.is_file() and about.is_file():
                archive.write(page, name_in_zip(json.loads(about.read_text(encoding="utf-8"))["as"], name))
            else:
                without.append(student)
    return path, without
