"""Collect a class's notebooks from a course system's download: ``python -m grading.collect NAME``.

    python -m grading.collect scaling

Put the course system's zip, or the folder that a browser has unpacked from it, into downloaded/scaling/archive/ in
assignments/. Each student's notebook is written to submitted/STUDENT/scaling/scaling.ipynb. Every file that was not
taken is listed with its student.

Canvas writes doealice_1234_5678_scaling.ipynb (with _LATE, or anon_x7Qf2 in place of name and number). Moodle writes
Alice Doe_1234_assignsubmission_file/scaling.ipynb, as a folder or not, in older versions with one more underscore.
The first part of a path is written by the course system and identifies the student; the rest is chosen by the student.
Nothing is unpacked: a notebook is read from its archive, up to the size limit, and a student's path is never used.
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
CAME = "came.json"  # beside a notebook: its name in the course system, needed to return the feedback
FILES = 1000  # files that are read in one student's archive


@dataclass
class SubmittedFile:
    """A file that a student has handed in; ``read(n)`` returns its first ``n`` bytes."""

    path: PurePosixPath
    read: Callable[[int], bytes]
    late: bool = False
    came_as: str = ""  # its name, or its folder's name, in the course system's download


@dataclass
class ChosenNotebook:
    """The notebook chosen from one student's files, or ``None``, and messages on the other files."""

    notebook: bytes | None = None
    late: bool = False
    came_as: str = ""
    messages: list[str] = field(default_factory=list)


class CourseSystemCollector(FileNameCollectorPlugin):
    """A plugin for nbgrader's ``zip_collect`` with the same rules; nbgrader stops at the first file it cannot open."""

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """Return ``student_id`` and ``file_id``, or ``None`` for a file without an owner."""
        path = PurePosixPath(submitted_file)
        if path.suffix != ".ipynb":
            return None
        path = path.with_suffix("")
        extracted = next((i for i, part in enumerate(path.parts) if i > 1 and part == "extracted"), len(path.parts) - 2)
        inside = path.parts[extracted + 1 :]  # begins with the name of the zip file, if there was one
        zipped = len(inside) > 1 and MOODLE not in inside[0]
        found = owner(PurePosixPath(*inside[zipped:]), unpacked=True) or owner(PurePosixPath(*inside), unpacked=True)
        return {"student_id": student(found[0]), "file_id": plain_name(found[1].name)} if found else None


def owner(path: PurePosixPath, *, unpacked: bool = False) -> tuple[re.Match, PurePosixPath] | None:
    """Return the owner of a file and the path that the student chose, or ``None``; the outermost match decides.

    Canvas makes no folders. A folder with a name in Canvas' form is a student's zip that was unpacked, and counts only
    with ``unpacked``.
    """
    for i, part in enumerate(path.parts):
        may_be_canvas = unpacked or i == len(path.parts) - 1
        if (who := WHO.fullmatch(part)) and (may_be_canvas or MOODLE in part):
            inside = [*([who["file"]] if who["file"] else []), *path.parts[i + 1 :]]
            return who, PurePosixPath(*inside)
    return None


def student(who: re.Match) -> str:
    """Return the name of the student's folder."""
    return as_folder(who["anonymous"] or f"{who['name']}_id{who['number']}")


def by_student(files: Iterable[SubmittedFile]) -> tuple[dict[str, list[SubmittedFile]], list[str]]:
    """Group files by student; return also the paths of files without an owner."""
    found: dict[str, list[SubmittedFile]] = {}
    unowned: list[str] = []
    for file in files:
        if _is_system_file(file.path):
            continue
        if owned := owner(file.path):
            who, path = owned
            late = bool(who["late"] or who["late_anonymous"])
            found.setdefault(student(who), []).append(SubmittedFile(path, file.read, late, who.string))
        else:
            unowned.append(str(file.path))
    return found, unowned


def files_in(folder: Path) -> Iterator[SubmittedFile]:
    """Yield the files in a folder and in the course system's zips there.

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
            yield SubmittedFile(inside, lambda most, path=path: _read(path.open("rb"), most))


def _in_zip(archive: zipfile.ZipFile) -> Iterator[SubmittedFile]:
    for member in archive.infolist():
        if not member.is_dir():
            yield SubmittedFile(
                PurePosixPath(member.filename), lambda most, member=member: _read(archive.open(member), most)
            )


def _read(file, most: int) -> bytes:
    with file:
        return file.read(most)


def choose_notebook(files: list[SubmittedFile], name: str) -> ChosenNotebook:
    """Choose a student's notebook.

    Notebooks with the assignment's name come first. Among several of these a mended one is preferred, then the one
    with the highest number. If none has the assignment's name, the only notebook is taken.
    """
    taken = ChosenNotebook(late=any(file.late for file in files), came_as=files[0].came_as)
    notebooks: list[tuple[str, str, bytes, str]] = []  # path, stem, content, and name in the course system
    room = 5 * LIMIT  # bytes for all files of one student
    for file in files:
        try:
            for path, stem, content in _notebooks(file):
                room -= len(content)
                if room < 0:
                    raise ValueError(f"with it there are more than {5 * LIMIT / 2**20:.0f} MiB")
                if len(content) > LIMIT:
                    taken.messages.append(f"{path} is larger than {LIMIT / 2**20:.0f} MiB, not taken")
                else:
                    notebooks.append((path, stem, content, file.came_as))
            if file.path.suffix.lower() not in (".ipynb", ".zip"):
                taken.messages.append(f"{file.path} is no notebook, not taken")
        except Exception as error:  # an error in one file must not affect the others
            taken.messages.append(f"{file.path} cannot be opened ({error}), not taken")
    named = [one for one in notebooks if plain_name(one[1]).casefold() == name]
    if not named and len(notebooks) == 1:
        named = notebooks
        taken.messages.append(f"{named[0][0]} was taken, though it is called otherwise")
    chosen = max(named, key=_rank, default=None)
    if chosen:
        taken.came_as = chosen[3]
        taken.notebook = chosen[2]
    else:
        taken.messages.append(f"there is no notebook {name}.ipynb")
    taken.messages += [
        f"{one[0]} was not taken" + (f", but {chosen[0]}" if chosen else "") for one in notebooks if one is not chosen
    ]
    return taken


def _notebooks(file: SubmittedFile) -> Iterator[tuple[str, str, bytes]]:
    """Yield path, stem and content of a notebook, or of those in a student's zip; read one byte past the limit."""
    if file.path.suffix.lower() == ".ipynb":
        yield str(file.path), file.path.stem, file.read(LIMIT + 1)
    elif file.path.suffix.lower() == ".zip":
        content = file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise ValueError(f"it is larger than {LIMIT / 2**20:.0f} MiB")
        for inner in islice(_in_zip(zipfile.ZipFile(BytesIO(content))), FILES):
            if inner.path.suffix.lower() == ".ipynb" and not _is_system_file(inner.path):
                yield f"{file.path}: {inner.path}", inner.path.stem, inner.read(LIMIT + 1)


def _is_system_file(path: PurePosixPath) -> bool:
    return any(part == "__MACOSX" or (part.startswith(".") and part != "..") for part in path.parts)


def _rank(notebook: tuple[str, str, bytes, str]) -> tuple[bool, int]:
    numbers = re.findall(r"\d+", notebook[1])
    return "-mended" in notebook[1], int(numbers[-1][:9]) if numbers else 0


def collect(course: Path, name: str) -> tuple[dict[str, ChosenNotebook], list[str]]:
    """Write each student's notebook to the folder ``submitted``; return the choices, and the files without an owner.

    Raises:
        ValueError: if the course system's own zip cannot be opened.
    """
    files, unowned = by_student(files_in(course / "downloaded" / name / "archive"))
    taken: dict[str, ChosenNotebook] = {}
    for who, submitted in sorted(files.items()):
        taken[who] = choose_notebook(submitted, name)
        folder = course / "submitted" / who / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (content := taken[who].notebook) is not None:
                (folder / f"{name}.ipynb").write_bytes(content)
            messages = [_printable(line) for line in taken[who].messages]
            about = {"as": taken[who].came_as, "late": taken[who].late, "said": messages}
            (folder / CAME).write_text(json.dumps(about), encoding="utf-8")
        except OSError as error:
            taken[who].messages.append(f"nothing could be written ({error.strerror})")
    return taken, unowned


def collected_record(course: Path, who: str, name: str) -> dict:
    """Return what ``collect`` recorded about a submission; empty if the file was put there by hand."""
    about = course / "submitted" / who / name / CAME
    return json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}


def came_as(course: Path, who: str, name: str) -> str | None:
    """Return a submission's name in the course system, or ``None`` if it was not collected."""
    return collected_record(course, who, name).get("as")


def main(argv: list[str] | None = None) -> int:
    """Collect one assignment; the exit status is 1 if a student has no notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m grading.collect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the assignment, a folder of assignments/source")
    parser.add_argument("--course", type=Path, default=ASSIGNMENTS, help="the folder of downloaded/ and submitted/")
    arguments = parser.parse_args(argv)
    if not (arguments.course / "downloaded" / arguments.name / "archive").is_dir():
        parser.error(f"there is no folder downloaded/{arguments.name}/archive in {arguments.course}")
    try:
        taken, unowned = collect(arguments.course, arguments.name)
    except ValueError as error:
        parser.error(str(error))
    for who, one in taken.items():
        for line in one.messages:
            print(f"{who}: {_printable(line)}")
    for path in unowned:
        print(f"nobody's: {_printable(path)}")
    n_taken = sum(one.notebook is not None for one in taken.values())
    print(f"{n_taken} notebooks of {len(taken)} students are in {arguments.course / 'submitted'}.")
    return 0 if n_taken == len(taken) else 1


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


if __name__ == "__main__":
    sys.exit(main())
