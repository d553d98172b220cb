"""Tests of time limits: they count processor time; sleeping cells end by the wall clock and are graded by a person."""

from itertools import count

import nbformat
import pytest

pytest.importorskip("nbgrader")
from students import CLASS

from grading.course import Course, configure
from grading.executor import ExecuteWithOutsideChecks, WallClockExceededError
from grading.processes import WallClockExceeded
from grading.sandbox import sandbox_error

SANDBOX = not sandbox_error()
SPIN = "while True: pass"
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
GONE = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"


def about(name: str, *, grade: bool = False, solution: bool = False) -> dict:
    said = {"grade": grade, "solution": solution, "locked": grade, "points": 1, "schema_version": 3, "task": False}
    return {"nbgrader": {"grade_id": name, "cell_type": "code", **said}}


def run(cell: str, answer: str, **limits):
    """Run a cell, an answer, the answer's check and a last cell; return the outputs of each."""
    cells = [
        nbformat.v4.new_code_cell(cell),
        nbformat.v4.new_code_cell(f"def answer():\n    {answer}", metadata=about("answer", solution=True)),
        nbformat.v4.new_code_cell("assert answer() == 1", metadata=about("answer-check", grade=True)),
        nbformat.v4.new_code_cell("print('the rest')"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    ExecuteWithOutsideChecks(sandbox=SANDBOX, **limits).preprocess(notebook, {"metadata": {"path": "."}})
    return [[one.get("evalue", one.get("text", "")) for one in cell.outputs] for cell in notebook.cells]


@pytest.mark.thorough
def test_sleep_does_not_count_as_processor_time():
    """The cell takes longer in wall-clock time than its limit of processor time, as on a busy machine."""
    first, _, check, rest = run("__import__('time').sleep(3); print('awake')", "return 1", timeout=2, clock=10_000)
    assert (first, check, rest) == (["awake\n"], [], ["the rest\n"])


@pytest.mark.one_case
@pytest.mark.parametrize("body", [SPIN, CHILD, GONE.replace("\n", "\n    ")], ids=["itself", "child", "many children"])
def test_check_over_its_processor_time_fails_and_the_rest_runs(body):
    _, _, check, rest = run("", body, timeout=2, clock=10_000)
    assert check == ["no answer: it ran too long, more than 2 seconds of processor time"]
    assert rest == ["the rest\n"]


@pytest.mark.thorough
def test_endless_cell_is_interrupted_and_the_rest_runs():
    first, _, check, rest = run(SPIN, "return 1", timeout=2, clock=10_000)
    assert first, "the interrupt was not reported"
    assert (check, rest) == ([], ["the rest\n"])


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("cell", "answer", "where"),
    [
        ("", "__import__('time').sleep(10**6)", "answer-check"),
        ("__import__('time').sleep(10**6)", "return 1", "that begins: __import__"),
        ("", "__import__('threading').Event().wait()", "answer-check"),
    ],
)
def test_cell_over_its_wall_clock_limit_raises(cell, answer, where, monkeypatch):
    seconds = count(step=2000)  # a clock that advances by 2000 seconds at each reading
    monkeypatch.setattr("grading.executor.monotonic", lambda: next(seconds))
    with pytest.raises(WallClockExceededError, match=f"it waits for a person: 1000 seconds .* in the cell {where}"):
        run(cell, answer, timeout=1000, clock=1)


def test_autograde_recognises_wall_clock_timeouts(tmp_path, monkeypatch):
    course = Course(tmp_path, "scaling", configure(tmp_path))
    for log, kind in {
        "grading.executor.WallClockExceededError: it waits for a person: 50 seconds": WallClockExceeded,
        "RuntimeError: Kernel didn't respond in 300 seconds": WallClockExceeded,
        "grading.executor.KernelLostError: the kernel died in the cell scale": str,
    }.items():
        monkeypatch.setattr("grading.course.api_result", lambda _, log=log: (False, log))
        monkeypatch.setattr("nbgrader.apps.NbGraderAPI.autograde", lambda *_: None)
        assert type(course.autograde("ada")) is kind


def test_sleeping_student_expects_no_points():
    assert CLASS["sleeps"].points is None
