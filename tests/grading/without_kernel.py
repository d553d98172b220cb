"""The grading loop with everything but kernels: whoever writes ``right_scale`` passes that check, and no other."""

import copy
import shutil
from pathlib import Path

import nbformat

from grading import course as course_module
from grading import outside

ROOT = Path(__file__).resolve().parents[2]


def lay_down(folder: Path, monkeypatch) -> None:
    """Make a course folder with one master, and have nothing run."""

    def preprocess(self, notebook, resources=None, km=None):
        text = "".join(cell.source for cell in notebook.cells)
        for cell in notebook.cells:
            if outside.by_machine(cell):
                passed = cell.metadata.nbgrader.grade_id.startswith("scale") and "math.sqrt(d_k" in text
                cell.outputs = [] if passed else [outside._error("no answer")]
        return notebook, resources

    monkeypatch.setattr(outside.CheckedFromOutside, "preprocess", preprocess)
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
