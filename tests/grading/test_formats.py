"""Notebooks in the formats 4.0 to 4.4 are graded like notebooks in format 4.5; unexpected errors are reported."""

import csv
import json
import shutil
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from students import CLASS, OLD, SCALE, answers, as_written_elsewhere
from thorough import all_but
from without_kernel import make_course

from grading import collect
from grading.__main__ import main
from grading.check_notebook import mend, read
from grading.course import Course

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ROOT / "book/exercises/scaling/scaling.ipynb"

# nbgrader adds a submission to its assignment before it adds it to the session
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")


def graded_cells(path: Path, released) -> list | str:
    """Return the source and metadata of the graded cells, or the reason why the notebook is refused."""
    try:
        notebook, _ = mend(read(path), released)
    except ValueError as error:
        return str(error)
    return [(cell.source, cell.metadata["nbgrader"]) for cell in notebook.cells if "nbgrader" in cell.metadata]


@pytest.mark.parametrize("name", CLASS)
def test_mend_gives_the_same_cells_in_every_format(name, tmp_path):
    released = read(RELEASED)
    notebook = CLASS[name].hands_in(released)
    if isinstance(notebook, str):
        pytest.skip("it is no notebook")
    (tmp_path / "now.ipynb").write_text(nbformat.writes(notebook))
    wanted = graded_cells(tmp_path / "now.ipynb", released)
    for minor, ids in OLD:
        path = as_written_elsewhere(notebook, minor, ids, tmp_path / "old.ipynb")
        assert graded_cells(path, released) == wanted, f"4.{minor}, {ids}"


def table(folder: Path) -> dict[str, dict]:
    with (folder / "report/scaling/grades.csv").open(encoding="utf-8") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("formats", all_but([[*OLD[::4], OLD[11]], OLD], lambda formats: formats != OLD), ids=len)
def test_class_in_old_formats_is_graded_end_to_end(formats, tmp_path, monkeypatch):
    make_course(tmp_path, monkeypatch)
    released = read(RELEASED)
    for minor, ids in formats:
        file = tmp_path / f"submitted/{minor} {ids}/scaling/scaling.ipynb"
        file.parent.mkdir(parents=True)
        notebook = answers(scale=SCALE, moments="It is $d_k$ times that.")(released)
        for cell in notebook.cells if minor % 2 else ():
            cell.metadata = nbformat.NotebookNode()
        as_written_elsewhere(notebook, minor, ids, file)
    assert main(["scaling", "--course", str(tmp_path), "--without-sandbox"]) == 0
    rows = table(tmp_path)
    assert len(rows) == len(formats)
    graded = {(row["status"], row["2. The scale factor for unit variance"]) for row in rows.values()}
    assert graded == {("grade by hand", "3.0")}


def test_unexpected_error_is_reported_and_does_not_affect_others(tmp_path, monkeypatch):
    make_course(tmp_path, monkeypatch)
    for student in ("ada", "bob", "cyd"):
        file = tmp_path / f"submitted/{student}/scaling/scaling.ipynb"
        file.parent.mkdir(parents=True)
        nbformat.write(answers()(read(RELEASED)), file)
    original = Course.check_and_copy, Course.flag_for_manual_grading

    def check(self, student):
        return {}["no such thing"] if student == "ada" else original[0](self, student)

    def leave(self, student):
        return original[1](self, student) if student == "cyd" else {}["points"]

    monkeypatch.setattr(Course, "check_and_copy", check)
    monkeypatch.setattr(Course, "flag_for_manual_grading", leave)
    assert main(["scaling", "--course", str(tmp_path), "--without-sandbox"]) == 0
    rows = table(tmp_path)
    assert [row["status"] for row in rows.values()] == ["not graded", "not graded", "graded"]
    assert "checking it failed with an unexpected error (KeyError: 'no such thing')" in rows["ada"]["why not"]
    assert "grading it failed with an unexpected error (KeyError" in rows["bob"]["why not"]
    for student in ("ada", "bob"):
        log = tmp_path / f"report/scaling/logs/{student}.txt"
        assert str(log) in rows[student]["why not"]
        assert "Traceback" in log.read_text()
    assert set(json.loads((tmp_path / "report/scaling/results.json").read_text())) == {"ada", "bob", "cyd"}


def test_wrong_notebook_is_not_graded_and_collect_notes_are_reported(tmp_path, monkeypatch):
    make_course(tmp_path, monkeypatch)
    archive = tmp_path / "downloaded/scaling/archive"
    archive.mkdir(parents=True)
    shutil.copytree(ROOT / "assignments/source/flash", tmp_path / "source/flash")
    for number, name in enumerate(("flash", "scaling"), 1):
        shutil.copy(ROOT / f"book/exercises/{name}/{name}.ipynb", archive / f"doe_{number}_10_mine.ipynb")
    assert collect.main(["scaling", "--course", str(tmp_path)]) == 0
    assert main(["scaling", "--course", str(tmp_path), "--without-sandbox"]) == 0
    wrong, right = table(tmp_path).values()
    assert (wrong["status"], wrong["points"], right["status"]) == ("not graded", "", "graded")
    assert wrong["why not"].startswith("it seems to be the notebook of another assignment, flash: ")
    for row in (wrong, right):
        assert "mine.ipynb was taken, though it is called otherwise" in row["notes"]
    with (tmp_path / "report/scaling/canvas.csv").open(encoding="utf-8") as file:
        assert [row["scaling"] for row in csv.DictReader(file)][1] == ""
