"""Grade a class in parts, on several machines, and join the results.

    python -m grading scaling --part 2/5    # grade the second of five parts, on any machine at any time
    python -m grading scaling --join        # join the results when all five are complete

Each part is written to its own folder, parts/scaling/2-of-5/ in the course folder, so that parts share only the files
that they read. The folder records the conditions under which the part was graded. Parts are joined only if the
conditions are the same for all of them, if seed, master and code are those of the place where they are joined, and if
every submission is in exactly one part.
"""

import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from nbgrader.api import Gradebook

from grading.course import Course
from grading.draw_numbers import course_numbers
from grading.report import Result

ROOT = Path(__file__).resolve().parents[1]
LOCAL_CONDITIONS = ("seed", "numbers", "master", "code")  # these must also be the same where the parts are joined


class JoinError(ValueError):
    """Raised if parts do not cover the class exactly, or were graded under different conditions."""


class Part:
    """The ``k``-th of ``n`` parts of a class.

    Raises:
        ValueError: if the text does not have the form K/N with 1 <= K <= N.

    >>> Part("2/5").of(["a", "b", "c", "d", "e", "f", "g"])
    ['b', 'g']
    """

    def __init__(self, text: str):
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"a part must be K/N with K from 1 to N, as 2/5, got {text}")
        self.k, self.n = int(found[1]), int(found[2])

    def __str__(self) -> str:
        return f"{self.k}/{self.n}"

    def folder(self, course: Path, name: str) -> Path:
        """Return the folder of this part."""
        return course / "parts" / name / f"{self.k}-of-{self.n}"

    def of(self, students: Iterable[str]) -> list[str]:
        """Return the students in this part."""
        return sorted(students)[self.k - 1 :: self.n]


def prepare(part: Part, course: Path, name: str) -> Path:
    """Create the part's folder, with a copy of the master; an old folder is removed.

    Raises:
        ValueError: if the course has no seed, since each part would then draw its own.
    """
    if not (course / "seed").is_file():
        raise ValueError(
            f"parts must be graded with the same seed, and there is no file {course / 'seed'}: "
            "write a number of your choice into it before the first part is graded"
        )
    folder = part.folder(course, name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(course / "source" / name, folder / "source" / name)
    return folder


def digest(*files: Path) -> str:
    """Return a hash of the files' names and contents; a missing file counts as empty."""
    found = hashlib.sha256()
    for file in files:
        content = file.read_bytes() if file.is_file() else b""
        found.update(f"{file.name} {len(content)} ".encode() + content)
    return found.hexdigest()[:16]


def conditions(course: Path, name: str, limits: dict[str, Any]) -> dict[str, Any]:
    """Return the conditions under which answers are graded here: seed, files, versions and limits."""
    code = [path for place in ("lessons_lib", "grading") for path in sorted((ROOT / place).rglob("*.py"))]
    try:
        git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        commit = git.stdout.strip()[:10]
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {
        "seed": int((course / "seed").read_text()),
        "numbers": course_numbers(course / "course.toml"),
        "master": digest(*sorted(path for path in (course / "source" / name).rglob("*") if path.is_file())),
        "code": digest(*code),
        "commit": commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **limits,
    }


def _file(course: Course, student: str) -> Path:
    return course.submitted(student) / f"{course.name}.ipynb"


def write_part_file(part: Part, course: Course, students: list[str], under: dict[str, Any]) -> None:
    """Write ``part.json``, with the students and conditions of a part that has been graded."""
    theirs = {student: digest(_file(course, student)) for student in students}
    about = {"part": str(part), "conditions": under, "students": theirs}
    (course.work / "part.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def join_errors(found: dict[str, dict], wanted: Iterable[str], course: Course, here: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why parts cannot be joined; ``found`` maps each part's folder to its ``part.json``."""
    again = f"python -m grading {course.name} --part"
    parts = {folder: Part(about["part"]) for folder, about in found.items()}
    if len(numbers := sorted({part.n for part in parts.values()})) > 1:
        yield f"the class must be divided once, got parts of {' and of '.join(map(str, numbers))}: remove one kind"
        return
    for k in sorted(set(range(1, numbers[0] + 1)) - {part.k for part in parts.values()}):
        yield f"part {k}/{numbers[0]} is missing: {again} {k}/{numbers[0]}"
    for what in next(iter(found.values()))["conditions"]:
        values: dict[str, list[str]] = defaultdict(list)
        for folder, about in found.items():
            values[str(about["conditions"].get(what))].append(str(parts[folder]))
        if what in LOCAL_CONDITIONS:
            values[str(here[what])].append("here")
        if len(values) > 1:
            yield f"the {what} differs: " + "; ".join(
                f"{value} in {', '.join(where)}" for value, where in values.items()
            )
    places: dict[str, list[str]] = defaultdict(list)
    for folder, about in found.items():
        for student, its_digest in about["students"].items():
            places[student].append(folder)
            if its_digest != digest(_file(course, student)):
                yield f"{student}'s file differs from the one in part {parts[folder]}: {again} {parts[folder]}"
    for student, folders in places.items():
        if len(folders) > 1:
            yield f"{student} is in {' and in '.join(folders)}"
    wanted = set(wanted)
    if absent := sorted(wanted - set(places)):
        yield f"in no part: {', '.join(absent)}. Grade the parts again that were graded before this work came"
    if strangers := sorted(set(places) - wanted):
        yield f"in a part, but not (or no longer the file that counts) in submitted/: {', '.join(strangers)}"


def join(course: Course, limits: dict[str, Any]) -> dict[str, Result]:
    """Copy the results of all parts into the course's gradebook and folders, and return them.

    Raises:
        JoinError: if parts are missing, overlap, or were graded under different conditions.
    """
    place = course.folder / "parts" / course.name
    files = sorted(place.glob("*/part.json"))
    if not files:
        raise JoinError(f"there is no completely graded part in {place}")
    found = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    wanted, _ = course.works(course.handed_in())
    here = conditions(course.folder, course.name, limits)
    if errors := list(join_errors(found, wanted, course, here)):
        raise JoinError("the parts cannot be joined:\n" + "\n".join(errors))
    course.load_master()
    results: dict[str, Result] = {}
    for file in files:
        part = file.parent
        graded = json.loads((part / "report" / course.name / "results.json").read_text(encoding="utf-8"))
        results |= {student: Result(**one) for student, one in graded.items()}
        shutil.copytree(part / "report" / course.name / "logs", course.logs, dirs_exist_ok=True)
        theirs = Gradebook(f"sqlite:///{part / 'gradebook.db'}", course.config.CourseDirectory.course_id)
        with theirs, course.gradebook() as ours:
            for student, one in graded.items():
                _take_over(part, course, student)
                if one["reason"]:
                    course.drop(student)
                else:
                    copy_marks(theirs, ours, course.name, student)
    return dict(sorted(results.items()))


def _take_over(part: Path, course: Course, student: str) -> None:
    for kind in ("checked", "autograded"):
        source, target = part / kind / student / course.name, course.work / kind / student / course.name
        shutil.rmtree(target, ignore_errors=True)
        if source.is_dir():
            shutil.copytree(source, target)


def copy_marks(theirs: Gradebook, ours: Gradebook, name: str, student: str) -> None:
    """Copy the points given by checks; points that a person gave here stay and must be confirmed, as after a rerun."""
    ours.update_or_create_student(student)
    ours.update_or_create_submission(name, student)
    ours.find_submission(name, student).timestamp = theirs.find_submission(name, student).timestamp
    notebook = theirs.find_submission_notebook(name, name, student)
    for grade in notebook.grades:
        own = ours.find_grade(grade.name, name, name, student)
        confirm: Any = grade.needs_manual_grade or own.manual_score is not None
        own.auto_score, own.needs_manual_grade = grade.auto_score, confirm
    for comment in notebook.comments:
        ours.find_comment(comment.name, name, name, student).auto_comment = comment.auto_comment
    ours.db.commit()
