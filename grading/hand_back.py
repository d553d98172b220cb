"""Pack the feedback pages of a class in the shape of the zip that the submissions came in.

Moodle takes it under *Upload multiple feedback files in a zip*, Canvas under *Upload Submissions* of the assignment;
both find the student by the name that they gave the file or its folder, which ``grading.collect`` has kept.
"""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from grading.collect import WHO, came_as


def name_in_zip(came_as: str, name: str) -> str:
    """Return where the course system looks for a page: in the student's folder, or under the name of their file."""
    who = WHO.fullmatch(came_as)
    return f"{PurePosixPath(came_as).stem}.html" if who and who["file"] else f"{came_as}/{name}.html"


def write_zip(
    course: Path, name: str, students: Iterable[str], ways: Mapping[str, str | None] | None = None
) -> tuple[Path, list[str]]:
    """Write ``feedback.zip`` into the report; return where it is, and who has no place in it.

    ``ways`` says of some, members of groups, under what name their page goes back, or that there is none.
    """
    path = course / "report" / name / "feedback.zip"
    without: list[str] = []
    written: set[str] = set()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student in sorted(students):
            page = course / "feedback" / student / name / f"{name}.html"
            way = (ways or {}).get(student) or came_as(course, student, name)
            if not page.is_file() or not way:
                without.append(student)
            elif (place := name_in_zip(way, name)) not in written:  # else a group has it there
                archive.write(page, place)
                written.add(place)
    return path, without
