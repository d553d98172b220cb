"""The package reads in its declared order and touches no path; what was written before it is read."""

import ast
import json
import re
import runpy
import sys
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


def test_the_reading_order_names_every_file():
    assert sorted(ORDER) == sorted(FILES)


@pytest.mark.parametrize("name", ORDER)
def test_a_file_imports_only_from_files_above_it(name):
    nodes = [node for node in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(node, ast.ImportFrom)]
    ours = {node.module.removeprefix("grading.") for node in nodes if (node.module or "").startswith("grading.")}
    assert ours <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("path", [*FILES.values(), ROOT / "assignments/nbgrader_config.py"], ids=lambda path: path.stem)
def test_nothing_is_put_on_the_path(path):
    assert "sys.path" not in path.read_text()


def test_the_old_command_says_where_it_went_and_does_the_same(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grade.py", "nothing"])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_path(str(ROOT / "tools/grade.py"), run_name="__main__")
    said = capsys.readouterr().err
    assert "tools/grade.py has moved, please type: python -m grading\n" in said
    assert "there is no master source/nothing/nothing.ipynb" in said


def test_a_course_keeps_its_seed(tmp_path):
    (tmp_path / "seed").write_text("271828\n")
    assert course.configure(tmp_path).CheckedFromOutside.seed_shift == 271828
    assert (tmp_path / "seed").read_text() == "271828\n"


def test_results_written_earlier_are_read_and_added_to(tmp_path):
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


def test_the_master_is_run_to_its_last_check_and_no_further(tmp_path, monkeypatch):
    class Runner:
        def __init__(self, **_):
            pass

        def preprocess(self, notebook, _):
            ran.extend(cell.id for cell in notebook.cells)

    ran: list[str] = []
    monkeypatch.setattr(course, "CheckedFromOutside", Runner)
    path = tmp_path / "source/scaling/scaling.ipynb"
    path.parent.mkdir(parents=True)
    master = nbformat.read(ROOT / "assignments/source/scaling/scaling.ipynb", as_version=4)
    nbformat.write(master, path)
    assert course.Course(tmp_path, "scaling", course.configure(tmp_path)).check_master() is None
    assert ran[-1] == "backward-v-graded"
    assert ran == [cell.id for cell in master.cells][: len(ran)]
    assert len(ran) < len(master.cells)
