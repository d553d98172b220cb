"""Check whether a notebook still has everything that grading needs, and restore it where that is possible.

    python grading/check_notebook.py FILE [RELEASED]

FILE is the notebook that you are about to hand in. RELEASED is the one that was handed out; by default, the notebook
of that name in this repository's book. If something was lost, the mended notebook is written beside FILE; your own
cells stay as they are. The script needs only Python and nbformat.
"""

import argparse
import copy
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

import nbformat
from nbformat import NotebookNode

EXERCISES = Path(__file__).resolve().parents[1] / "book" / "exercises"
LIMIT = 20 * 2**20  # bytes
CELLS = 2000
# Additions of a browser, Colab, Canvas or this tool: "scaling (1)", "Copy of scaling", "scaling-2", "scaling-mended".
ADDED = re.compile(r"^(?:copy[ _]of[ _])+|(?:[ _]*\(\d+\)|-\d+|-mended)+$", re.IGNORECASE)
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of a cell, as nbformat allows it
ABOUT = "attention_book"  # in the metadata of a released notebook: {"assignment": its name}
MISSING = "the answer {} is missing, and so is the place where it stood"


def plain_name(stem: str) -> str:
    """Return the name under which a notebook was handed out, given the name of the submitted file.

    >>> plain_name("Copy of scaling (1)")
    'scaling'
    """
    return ADDED.sub("", stem)


def read(path: Path) -> NotebookNode:
    """Read a notebook that another program, such as Colab or a mail client, may have changed or damaged.

    Raises:
        ValueError: if it is too large, has too many cells, is not a notebook, or is too broken to read.
    """
    if (size := path.stat().st_size) > LIMIT:
        raise ValueError(f"it has {size / 2**20:.0f} MiB, more than {LIMIT / 2**20:.0f}: clear the outputs")
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        n_cells = _count_cells(content)
        if n_cells <= CELLS:  # the next steps visit every cell; too many are refused below
            _add_ids(content)
            # a lone surrogate (half an emoji) is valid in JSON but not in UTF-8; it becomes a question mark
            text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
            notebook = nbformat.reads(text, as_version=4)
            _add_ids(notebook, anew=content.get("nbformat") != 4)  # nbformat gives random ids to formats older than 4
            nbformat.validate(notebook)
    except RecursionError:
        raise ValueError("it is no notebook: its JSON is nested too deeply") from None
    except Exception as error:
        raise ValueError(f"it is no notebook: {str(error).splitlines()[0][:200]}") from error
    if n_cells > CELLS:
        raise ValueError(f"it has {n_cells} cells, more than {CELLS}")
    return notebook


def _count_cells(content) -> int:
    """Count the cells of a notebook of any version."""
    sheets = content.get("worksheets") if isinstance(content, dict) else None
    places = [content, *(sheets if isinstance(sheets, list) else [])]
    cells = [place.get("cells") for place in places if isinstance(place, dict)]
    return sum(len(some) for some in cells if isinstance(some, list))


def _add_ids(content, *, anew: bool = False) -> None:
    """Convert formats 4.0 to 4.4, which Colab and Kaggle write, to 4.5 by giving every cell an id.

    Ids that are valid and unique stay, unless ``anew`` is set. Content that is not a notebook of version 4 is left
    unchanged, for nbformat to refuse.
    """
    if not isinstance(content, dict) or content.get("nbformat") != 4 or not isinstance(content.get("cells"), list):
        return
    if isinstance(content.get("nbformat_minor"), int):
        content["nbformat_minor"] = max(5, content["nbformat_minor"])
    taken: set[str] = set()
    without = []
    for cell in [one for one in content["cells"] if isinstance(one, dict)]:
        given = cell.get("id")
        if not anew and isinstance(given, str) and ID.fullmatch(given) and given not in taken:
            taken.add(given)
        else:
            without.append(cell)
    for cell in without:  # a hash of the text, so that a unique text has the same id in every notebook
        source = json.dumps([cell.get("cell_type"), "".join(cell.get("source") or "")])
        name = f"cell-{hashlib.sha256(source.encode()).hexdigest()[:16]}"
        cell["id"] = next(one for i in count() if (one := f"{name}-{i}" if i else name) not in taken)
        taken.add(cell["id"])


def mend(notebook: NotebookNode, released: NotebookNode, others: Iterable[Path] = ()) -> tuple[NotebookNode, list[str]]:
    """Return a copy with the metadata of the released notebook, and a list of the repairs in words.

    Cells are matched by their nbgrader name, then by their id, then by their text, and at last by the cells before and
    after them. A deleted check is put back; a deleted answer cannot be. ``others`` are the paths of the notebooks of
    other assignments; they serve to name the assignment if this notebook belongs to another one.

    Raises:
        ValueError: if it is the notebook of another assignment, or a graded answer has no place left.
    """
    check_assignment(notebook, released, others)
    notebook, done = copy.deepcopy(notebook), []
    wanted = [cell for cell in released.cells if "nbgrader" in cell.metadata]
    found = _by_name(notebook, wanted, done)
    for how, matches in {"id": _same_id, "text": _same_text}.items():
        for cell in wanted:
            like_it = [one for one in _free(notebook, found) if matches(one, cell)]
            if _name(cell) not in found and len(like_it) == 1 == sum(matches(one, cell) for one in wanted):
                found[_name(cell)] = like_it[0]
                done.append(f"{_name(cell)} had lost its metadata, found by its {how}")
    _by_neighbours(notebook, wanted, found, done)
    _put_back(notebook, wanted, found, done)
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)
    for cell in wanted:
        if _name(cell) in found:
            found[_name(cell)].metadata["nbgrader"] = copy.deepcopy(cell.metadata["nbgrader"])
    notebook.metadata = copy.deepcopy(released.metadata)
    return notebook, done


def check_assignment(notebook: NotebookNode, released: NotebookNode, others: Iterable[Path] = ()) -> None:
    """Refuse the notebook of another assignment, by the name in its metadata and by its locked cells.

    Raises:
        ValueError: if less than half of the locked cells are in it as they were released, or its metadata has the name
            of another assignment.
    """
    says, wanted = assignment_of(notebook), assignment_of(released)
    here, locked = locked_cells_found(notebook, released)
    if 2 * here >= locked and (not says or not wanted or says == wanted):
        return
    seems = says if says != wanted else ""
    for path in () if seems else others:
        with suppress(ValueError, OSError):
            other = read(path)
            there, of = locked_cells_found(notebook, other)
            if assignment_of(other, path.stem) != wanted and there and 2 * there >= of:
                seems = assignment_of(other, path.stem)
                break
    raise ValueError(
        f"it seems to be the notebook of another assignment{f', {seems}' if seems else ''}: {here} of the {locked} "
        f"locked cells{f' of {wanted}' if wanted else ''} are in it as they were handed out"
        + (f", and its metadata says {ABOUT}: {says}" if says and says != wanted else "")
    )


def assignment_of(notebook: NotebookNode, otherwise: str = "") -> str:
    """Return the assignment's name in a notebook's metadata, or ``otherwise`` if there is none."""
    about = notebook.metadata.get(ABOUT)
    name = about.get("assignment") if isinstance(about, dict) else None
    return name if isinstance(name, str) and name else otherwise


def is_autograded(cell: NotebookNode) -> bool:
    """Return whether a cell is graded automatically."""
    about = cell.metadata.get("nbgrader", {})
    return cell.cell_type == "code" and about.get("grade", False) and not about.get("solution", False)


def locked_cells_found(notebook: NotebookNode, released: NotebookNode) -> tuple[int, int]:
    """Return how many of the released notebook's locked texts are in this notebook, and how many there are.

    A text must be the same up to white space, and its cell must have the same nbgrader name or none.
    """
    wanted: dict[tuple[str, str], set[str]] = {}
    theirs: dict[tuple[str, str], set[str]] = {}
    for cell in released.cells:
        if "nbgrader" in cell.metadata and cell.metadata["nbgrader"]["locked"]:
            wanted.setdefault(_words(cell), {""}).add(_name(cell))
    for cell in notebook.cells:
        theirs.setdefault(_words(cell), set()).add(_name(cell))
    return sum(bool(names & theirs.get(words, set())) for words, names in wanted.items()), len(wanted)


def other_numbers(notebook: NotebookNode, released: NotebookNode) -> list[str]:
    """Return a note for each locked text of a mended notebook whose numbers are not those of the released one.

    A student who works in the notebook of another year, or in the book's own, answers a question with its numbers.
    """
    theirs = {_name(cell): _numbers(cell) for cell in notebook.cells}
    return [
        f"{_heading(cell)}: the numbers in this question are not the released ones, as in a notebook of another year "
        "or of the book; read the question in submitted/"
        for cell in released.cells
        if cell.cell_type == "markdown" and "nbgrader" in cell.metadata and cell.metadata["nbgrader"]["locked"]
        if theirs.get(_name(cell), _numbers(cell)) != _numbers(cell)
    ]


def _numbers(cell: NotebookNode) -> list[str]:
    return re.findall(r"\d+", cell.source)


def _heading(cell: NotebookNode) -> str:
    found = re.search(r"^#+ +(.+)", cell.source, re.MULTILINE)
    return found[1].strip() if found else _name(cell)


def _words(cell: NotebookNode) -> tuple[str, str]:
    return cell.cell_type, " ".join(cell.source.split())


def _name(cell: NotebookNode) -> str:
    about = cell.metadata.get("nbgrader")
    name = about.get("grade_id") if isinstance(about, dict) else None
    return name if isinstance(name, str) else ""


def _by_name(notebook: NotebookNode, wanted: list[NotebookNode], done: list[str]) -> dict[str, NotebookNode]:
    found, names = {}, {_name(cell) for cell in wanted}
    for cell in notebook.cells:
        if (name := _name(cell)) in names:
            if name in found:
                done.append(f"{name} occurs twice: the later one counts")
            found[name] = cell
    return found


def _same_id(cell: NotebookNode, wanted: NotebookNode) -> bool:
    return wanted.id in (cell.get("id"), cell.metadata.get("id"))  # Colab keeps ids in the metadata


def _same_text(cell: NotebookNode, wanted: NotebookNode) -> bool:
    return cell.cell_type == wanted.cell_type and cell.source.strip() == wanted.source.strip()


def _free(notebook: NotebookNode, found: dict[str, NotebookNode]) -> list[NotebookNode]:
    taken = {id(cell) for cell in found.values()}
    return [cell for cell in notebook.cells if id(cell) not in taken]


def _positions(notebook: NotebookNode) -> dict[int, int]:
    return {id(cell): i for i, cell in enumerate(notebook.cells)}


def _by_neighbours(notebook, wanted, found: dict[str, NotebookNode], done: list[str]) -> None:
    start, run = 0, []
    position = _positions(notebook)
    for cell in [*wanted, None]:
        if cell and _name(cell) not in found:
            run.append(cell)
            continue
        stop = position[id(found[_name(cell)])] if cell else len(notebook.cells)
        gap = [one for one in _free(notebook, found) if start <= position[id(one)] < stop]
        for kind in ("code", "markdown"):
            lost, candidates = ([one for one in cells if one.cell_type == kind] for cells in (run, gap))
            if len(lost) == len(candidates):
                found |= {_name(one): candidate for one, candidate in zip(lost, candidates, strict=True)}
                done += [f"{_name(one)} had lost its metadata, found by the cells around it" for one in lost]
        start, run = stop + 1, []


def _put_back(notebook, wanted, found: dict[str, NotebookNode], done: list[str]) -> None:
    position = 0
    for cell in wanted:
        name, about = _name(cell), cell.metadata["nbgrader"]
        if name in found:
            position = _positions(notebook)[id(found[name])] + 1
        elif about["grade"] and about["solution"]:
            raise ValueError(MISSING.format(name))
        elif not about["solution"]:
            found[name] = copy.deepcopy(cell)
            notebook.cells.insert(position, found[name])
            position += 1
            done.append(f"{name} was missing, put back")


def main(argv: list[str] | None = None) -> int:
    """Check one notebook; write the mended notebook if it could be repaired."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("released", type=Path, nargs="?")
    arguments = parser.parse_args(argv)
    name = plain_name(arguments.file.stem)
    released = arguments.released or EXERCISES / name / f"{name}.ipynb"
    for path in (arguments.file, released):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    try:
        notebook, done = mend(read(arguments.file), read(released), sorted(EXERCISES.glob("*/*.ipynb")))
    except ValueError as error:
        print(f"{arguments.file} cannot be graded: {error}.\nCopy your answers into a fresh copy of the notebook.")
        return 2
    if not done:
        print(f"{arguments.file} carries all that grading needs.")
        return 0
    mended = arguments.file.with_stem(f"{arguments.file.stem}-mended")
    nbformat.write(notebook, mended)
    print(*done, f"Mended: hand in {mended}, under the name {released.name}.", sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
