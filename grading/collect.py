"""Take a class's notebooks out of what a course system makes of them: ``python -m grading.collect NAME``.

    python -m grading.collect scaling

Put the course system's zip, or the folder that a browser has made of it, into downloaded/scaling/archive/ in
assignments/. Each student's notebook is written to submitted/STUDENT/scaling/scaling.ipynb, and every file that was
not taken is named with its student.

Canvas writes doealice_1234_5678_scaling.ipynb (with _LATE, or anon_x7Qf2 in place of name and number), Moodle writes
Alice Doe_1234_assignsubmission_file/scaling.ipynb, as a folder or not, in older versions with one more underscore.
What comes first in a path is the course system's, and says whose file it is; what follows is the student's to choose.
Nothing is unpacked: a notebook is read out of its archive, as far as the limit, and no path of a student's is used.
"""

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path, PurePosixPath

from nbgrader.plugins import FileNameCollectorPlugin

from grading.check_notebook import LIMIT, plain_name
from grading.names import as_folder

ASSIGNMENTS = Path(__file__).resolve().parents[1] / "assignments"
WHO = re.compile(
    r"(?:(?P<name>.+?)(?P<late>_late)?_(?P<number>\d+)|(?P<late_anonymous>late_)?(?P<anonymous>anon_[^_]+))"
    r"_(?:\d+|assignsubmission_(?:file|onlinetext))(?:_(?P<file>.*)|$)",
    re.IGNORECASE,
)
MOODLE = "_assignsubmission_"
CAME = "came.json"  # beside a notebook: what it came as, for the way back
FILES = 1000  # that are looked at in one student's archive


@dataclass
class Found:
    """A file that a student has handed in: its name, how to read as much of it as is asked for, and whether late."""

    path: PurePosixPath
    read: Callable[[int], bytes]
    late: bool = False
    came_as: str = ""  # what the course system called it, or the folder that it is in


@dataclass
class Taken:
    """What was taken of one student's files: the notebook, or nothing, and what is to be said of the rest."""

    notebook: bytes | None = None
    late: bool = False
    came_as: str = ""
    said: list[str] = field(default_factory=list)


class FromCourseSystem(FileNameCollectorPlugin):
    """The same for nbgrader's ``zip_collect``, which stops at the first file that it cannot open."""

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """Return ``student_id`` and ``file_id``, or nothing for a file that belongs to nobody."""
        path = PurePosixPath(submitted_file)
        if path.suffix != ".ipynb":
            return None
        path = path.with_suffix("")
        extracted = next((i for i, part in enumerate(path.parts) if i > 1 and part == "extracted"), len(path.parts) - 2)
        inside = path.parts[extracted + 1 :]  # the first of them is the zip's own name, if it was one
        zipped = len(inside) > 1 and MOODLE not in inside[0]
        found = owner(PurePosixPath(*inside[zipped:]), unpacked=True) or owner(PurePosixPath(*inside), unpacked=True)
        return {"student_id": student(found[0]), "file_id": plain_name(found[1].name)} if found else None


def owner(path: PurePosixPath, *, unpacked: bool = False) -> tuple[re.Match, PurePosixPath] | None:
    """Say whose a file is, and what the student called it; or nothing. The outermost name that fits decides.

    Canvas makes no folders; only a zip of the student's, if ``unpacked``, has become one.
    """
    for i, part in enumerate(path.parts):
        may_be_canvas = unpacked or i == len(path.parts) - 1
        if (who := WHO.fullmatch(part)) and (may_be_canvas or MOODLE in part):
            inside = [*([who["file"]] if who["file"] else []), *path.parts[i + 1 :]]
            return who, PurePosixPath(*inside)
    return None


def student(who: re.Match) -> str:
    """Name the student's folder."""
    return as_folder(who["anonymous"] or f"{who['name']}_id{who['number']}")


def by_student(files: Iterable[Found]) -> tuple[dict[str, list[Found]], list[str]]:
    """Sort files by student; name also those that are nobody's."""
    found: dict[str, list[Found]] = {}
    nobodys: list[str] = []
    for file in files:
        if _left_by_a_computer(file.path):
            continue
        if whose := owner(file.path):
            who, path = whose
            late = bool(who["late"] or who["late_anonymous"])
            found.setdefault(student(who), []).append(Found(path, file.read, late, who.string))
        else:
            nobodys.append(str(file.path))
    return found, nobodys


def in_folder(folder: Path) -> Iterator[Found]:
    """List the files of a folder, and those in the course system's zips there.

    Raises:
        ValueError: if such a zip cannot be opened.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        inside = PurePosixPath(path.relative_to(folder))
        if path.suffix.lower() == ".zip" and not owner(inside):
            try:
                archive = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, OSError) as error:
                raise ValueError(f"{path} is no zip that can be opened: {error}") from error
            yield from _in_zip(archive)
        else:
            yield Found(inside, lambda most, path=path: _read(path.open("rb"), most))


def _in_zip(archive: zipfile.ZipFile) -> Iterator[Found]:
    for member in archive.infolist():
        if not member.is_dir():
            yield Found(PurePosixPath(member.filename), lambda most, member=member: _read(archive.open(member), most))


def _read(file, most: int) -> bytes:
    with file:
        return file.read(most)


def take(files: list[Found], name: str) -> Taken:
    """Choose a student's notebook: the mended one of several, else that of the highest number, else the only one."""
    taken = Taken(late=any(file.late for file in files), came_as=files[0].came_as)
    notebooks: list[tuple[str, str, bytes, str]] = []  # where each was, its name, what is in it, and what it came as
    room = 5 * LIMIT  # bytes, for all that one student hands in
    for file in files:
        try:
            for path, stem, content in _notebooks(file):
                room -= len(content)
                if room < 0:
                    raise ValueError(f"with it there are more than {5 * LIMIT / 2**20:.0f} MiB")
                if len(content) > LIMIT:
                    taken.said.append(f"{path} is larger than {LIMIT / 2**20:.0f} MiB, not taken")
                else:
                    notebooks.append((path, stem, content, file.came_as))
            if file.path.suffix.lower() not in (".ipynb", ".zip"):
                taken.said.append(f"{file.path} is no notebook, not taken")
        except Exception as error:  # whatever is wrong with one file, it costs no other anything
            taken.said.append(f"{file.path} cannot be opened ({error}), not taken")
    named = [one for one in notebooks if plain_name(one[1]).casefold() == name]
    if not named and len(notebooks) == 1:
        named = notebooks
        taken.said.append(f"{named[0][0]} was taken, though it is called otherwise")
    chosen = max(named, key=_rank, default=None)
    if chosen:
        taken.came_as = chosen[3]
        taken.notebook = chosen[2]
    else:
        taken.said.append(f"there is no notebook {name}.ipynb")
    taken.said += [
        f"{one[0]} was not taken" + (f", but {chosen[0]}" if chosen else "") for one in notebooks if one is not chosen
    ]
    return taken


def _notebooks(file: Found) -> Iterator[tuple[str, str, bytes]]:
    """Read a notebook, or those in a student's own zip; of each one byte more than is allowed."""
    if file.path.suffix.lower() == ".ipynb":
        yield str(file.path), file.path.stem, file.read(LIMIT + 1)
    elif file.path.suffix.lower() == ".zip":
        content = file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise ValueError(f"it is larger than {LIMIT / 2**20:.0f} MiB")
        for inner in islice(_in_zip(zipfile.ZipFile(BytesIO(content))), FILES):
            if inner.path.suffix.lower() == ".ipynb" and not _left_by_a_computer(inner.path):
                yield f"{file.path}: {inner.path}", inner.path.stem, inner.read(LIMIT + 1)


def _left_by_a_computer(path: PurePosixPath) -> bool:
    return any(part == "__MACOSX" or (part.startswith(".") and part != "..") for part in path.parts)


def _rank(notebook: tuple[str, str, bytes, str]) -> tuple[bool, int]:
    numbers = re.findall(r"\d+", notebook[1])
    return "-mended" in notebook[1], int(numbers[-1][:9]) if numbers else 0


def collect(course: Path, name: str) -> tuple[dict[str, Taken], list[str]]:
    """Write what each student handed in to its place; return what was taken, and the files that are nobody's.

    Raises:
        ValueError: if the course system's own zip cannot be opened.
    """
    files, nobodys = by_student(in_folder(course / "downloaded" / name / "archive"))
    taken: dict[str, Taken] = {}
    for who, theirs in sorted(files.items()):
        taken[who] = take(theirs, name)
        folder = course / "submitted" / who / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (content := taken[who].notebook) is not None:
                (folder / f"{name}.ipynb").write_bytes(content)
            said = [_printable(line) for line in taken[who].said]
            about = {"as": taken[who].came_as, "late": taken[who].late, "said": said}
            (folder / CAME).write_text(json.dumps(about), encoding="utf-8")
        except OSError as error:
            taken[who].said.append(f"nothing could be written ({error.strerror})")
    return taken, nobodys


def about_it(course: Path, who: str, name: str) -> dict:
    """Return what collecting wrote of a submission; nothing if it was not collected, but laid there."""
    about = course / "submitted" / who / name / CAME
    return json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}


def came_as(course: Path, who: str, name: str) -> str | None:
    """Return what a submission came as, if it was collected."""
    return about_it(course, who, name).get("as")


def main(argv: list[str] | None = None) -> int:
    """Collect one assignment; the status is 1 if somebody has no notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m grading.collect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the assignment, a folder of assignments/source")
    parser.add_argument("--course", type=Path, default=ASSIGNMENTS, help="the folder of downloaded/ and submitted/")
    arguments = parser.parse_args(argv)
    if not (arguments.course / "downloaded" / arguments.name / "archive").is_dir():
        parser.error(f"there is no folder downloaded/{arguments.name}/archive in {arguments.course}")
    try:
        taken, nobodys = collect(arguments.course, arguments.name)
    except ValueError as error:
        parser.error(str(error))
    for who, one in taken.items():
        for line in one.said:
            print(f"{who}: {_printable(line)}")
    for path in nobodys:
        print(f"nobody's: {_printable(path)}")
    n_taken = sum(one.notebook is not None for one in taken.values())
    print(f"{n_taken} notebooks of {len(taken)} students are in {arguments.course / 'submitted'}.")
    return 0 if n_taken == len(taken) else 1


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


if __name__ == "__main__":
    sys.exit(main())
