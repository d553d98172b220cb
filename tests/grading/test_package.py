"""Tests of the package grading as a whole: import order, sys.path, existing seeds and results."""

import ast
import json
import re
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
import grading
from grading import course
from grading.report import Result

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: path for path in (ROOT / "grading").glob("*.py") if path.stem != "__init__"}
ORDER = re.findall(r"``(\w+)``", grading.__doc__ or "")


def test_reading_order_lists_every_file():
    assert sorted(ORDER) == sorted(FILES)


@pytest.mark.parametrize("name", ORDER)
def test_files_import_only_earlier_files(name):
    nodes = [node for node in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(node, ast.ImportFrom)]
    ours = {node.module.removeprefix("grading.") for node in nodes if (node.module or "").startswith("grading.")}
    assert ours <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("path", [*FILES.values(), ROOT / "assignments/nbgrader_config.py"], ids=lambda path: path.stem)
def test_no_file_changes_sys_path(path):
    assert "sys.path" not in path.read_text()


def test_configure_keeps_an_existing_seed(tmp_path):
    (tmp_path / "seed").write_text("271828\n")
    assert course.configure(tmp_path).ExecuteWithOutsideChecks.seed_shift == 271828
    assert (tmp_path / "seed").read_text() == "271828\n"


def test_write_results_keeps_earlier_results(tmp_path):
    file = tmp_path / "report/scaling/results.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"ada": {"reason": "it is no notebook", "notes": []}, "bob": {"reason": null, "notes": ["a"]}}')
    ours = course.Course(tmp_path, "scaling", course.configure(tmp_path))
    ours.write_results({"bob": Result(reason="the kernel died", notes=["b"])}, beside_others=True)
    assert ours.results() == {
        "ada": Result(reason="it is no notebook"),
        "bob": Result(reason="the kernel died", notes=["b"]),
    }
    ours.write_results({"cyd": Result(reason="late")}, beside_others=False)
    assert json.loads(file.read_text()) == {"cyd": {"reason": "late", "notes": []}}


def test_check_master_runs_up_to_the_last_check(tmp_path, monkeypatch):
    class Runner:
        def __init__(self, **_):
            pass

        def preprocess(self, notebook, _):
            ran.extend(cell.id for cell in notebook.cells)

    ran: list[str] = []
    monkeypatch.setattr(course, "ExecuteWithOutsideChecks", Runner)
    path = tmp_path / "source/scaling/scaling.ipynb"
    path.parent.mkdir(parents=True)
    master = nbformat.read(ROOT / "assignments/source/scaling/scaling.ipynb", as_version=4)
    nbformat.write(master, path)
    assert course.Course(tmp_path, "scaling", course.configure(tmp_path)).check_master() is None
    assert ran[-1] == "backward-v-graded"
    assert ran == [cell.id for cell in master.cells][: len(ran)]
    assert len(ran) < len(master.cells)
