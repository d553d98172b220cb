"""Pack the feedback pages of a class into a zip with the same layout as the zip of submissions.

In Moodle it is uploaded under *Upload multiple feedback files in a zip*, in Canvas under *Upload Submissions* of the
assignment. Both identify the student by the name that they gave to the file or folder, recorded by ``grading.collect``.
"""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from grading.collect import WHO, came_as


def name_in_zip(came_as: str, name: str) -> str:
    """Return a page's path in the zip: in the student's folder (Moodle), or under their file's name (Canvas)."""
    who = WHO.fullmatch(came_as)
    return f"{PurePosixPath(came_as).stem}.html" if who and who["file"] else f"{came_as}/{name}.html"


def write_zip(
    course: Path, name: str, students: Iterable[str], group_names: Mapping[str, str | None] | None = None
) -> tuple[Path, list[str]]:
    """Write ``feedback.zip`` into the report's folder; return its path, and the students whose page is not in it.

    ``group_names`` maps members of groups to the name under which their page is returned, ``None`` if there is none.
    """
    path = course / "report" / name / "feedback.zip"
    without: list[str] = []
    written: set[str] = set()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student in sorted(students):
            page = course / "feedback" / student / name / f"{name}.html"
            original = (group_names or {}).get(student) or came_as(course, student, name)
            if not page.is_file() or not original:
                without.append(student)
            elif (path_in_zip := name_in_zip(original, name)) not in written:  # members of a group may share one page
                archive.write(page, path_in_zip)
                written.add(path_in_zip)
    return path, without
