"""Grading without kernels, for fast tests: an answer with ``right_scale`` passes its check, all other checks fail."""

import copy
import shutil
from pathlib import Path

import nbformat

from grading import course as course_module
from grading import executor

ROOT = Path(__file__).resolve().parents[2]


def make_course(folder: Path, monkeypatch) -> None:
    """Create a course folder with one master, and replace the execution of notebooks."""

    def preprocess(self, notebook, resources=None, km=None):
        text = "".join(cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            if executor.is_autograded(cell):
                passed = cell.metadata.nbgrader.grade_id.startswith("scale") and "math.sqrt(d_k" in text
                cell.outputs = [] if passed else [executor._error("no answer")]
        return notebook, resources

    monkeypatch.setattr(executor.ExecuteWithOutsideChecks, "preprocess", preprocess)
    monkeypatch.setattr(course_module.Course, "check_master", lambda self, _="": None)
    shutil.copytree(ROOT / "assignments/source/scaling", folder / "source/scaling")
    (folder / "seed").write_text("271828\n")


def hand_in(folder: Path, student: str, *, scale: str | None = None, came: str = "", **cells: str) -> Path:
    """Hand in the released notebook with some cells filled in; return the file."""
    notebook = copy.deepcopy(nbformat.read(ROOT / "book/exercises/scaling/scaling.ipynb", as_version=4))
    texts = cells | ({"scale": scale} if scale else {})
    for cell in notebook.cells:
        cell.source = texts.get(cell.id, cell.source)
    file = folder / "submitted" / student / "scaling/scaling.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, file)
    if came:
        file.with_name("timestamp.txt").write_text(came)
    return file
