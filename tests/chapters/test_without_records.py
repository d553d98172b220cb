"""Chapters that read benchmark records also run without them, as on Colab, where only the library is installed."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]


def reads_record(path: Path) -> bool:
    """Return whether a code cell of the notebook names the folder of the records."""
    cells = nbformat.read(path, as_version=4).cells
    return any(cell.cell_type == "code" and re.search(r"benchmarks|\"results\"", cell.source) for cell in cells)


CHAPTERS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "book").rglob("*.ipynb")
    if "exercises" not in path.parts and reads_record(path)
)


@pytest.fixture(scope="module")
def library_alone(tmp_path_factory) -> Path:
    """A folder that contains only the library."""
    folder = tmp_path_factory.mktemp("colab")
    shutil.copytree(ROOT / "lessons_lib", folder / "lessons_lib", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_chapters_that_read_records_are_found():
    assert len(CHAPTERS) >= 11


@pytest.mark.thorough
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_runs_without_records(chapter, library_alone, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(library_alone))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / chapter, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(library_alone)}})
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                client.execute_cell(cell, index)
        where = nbformat.v4.new_code_cell("import lessons_lib; print(lessons_lib.__file__)")
        notebook.cells.append(where)
        [said] = client.execute_cell(where, len(notebook.cells) - 1).outputs
    assert said.text.strip() == str(library_alone / "lessons_lib" / "__init__.py")
