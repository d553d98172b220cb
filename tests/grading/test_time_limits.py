"""A limit counts processor time: sleep, waiting and a busy machine cost no points, and earn none."""

from itertools import count

import nbformat
import pytest

pytest.importorskip("nbgrader")
from students import CLASS

from grading.course import Course, configure
from grading.outside import CheckedFromOutside, OutOfClockError
from grading.processes import OutOfClock
from grading.sandbox import why_not

SANDBOX = not why_not()
SPIN = "while True: pass"
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
GONE = "import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"


def about(name: str, *, grade: bool = False, solution: bool = False) -> dict:
    said = {"grade": grade, "solution": solution, "locked": grade, "points": 1, "schema_version": 3, "task": False}
    return {"nbgrader": {"grade_id": name, "cell_type": "code", **said}}


def run(cell: str, answer: str, **limits):
    """Run a cell, an answer and the answer's check; return what each of the three put out."""
    cells = [
        nbformat.v4.new_code_cell(cell),
        nbformat.v4.new_code_cell(f"def answer():\n    {answer}", metadata=about("answer", solution=True)),
        nbformat.v4.new_code_cell("assert answer() == 1", metadata=about("answer-check", grade=True)),
        nbformat.v4.new_code_cell("print('the rest')"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    CheckedFromOutside(sandbox=SANDBOX, **limits).preprocess(notebook, {"metadata": {"path": "."}})
    return [[one.get("evalue", one.get("text", "")) for one in cell.outputs] for cell in notebook.cells]


def test_sleep_costs_nothing_until_the_clock_ends():
    """As on a machine that does something else most of the time: longer on the clock than the limit allows."""
    first, _, check, rest = run("__import__('time').sleep(3); print('awake')", "return 1", timeout=2, clock=10_000)
    assert (first, check, rest) == (["awake\n"], [], ["the rest\n"])


@pytest.mark.parametrize("body", [SPIN, CHILD, GONE.replace("\n", "\n    ")], ids=["itself", "child", "many children"])
def test_processor_time_that_is_used_up_fails_the_check_and_the_rest_is_run(body):
    _, _, check, rest = run("", body, timeout=2, clock=10_000)
    assert check == ["no answer: it ran too long, more than 2 seconds of processor time"]
    assert rest == ["the rest\n"]


def test_cell_without_end_is_interrupted_and_its_notebook_goes_on():
    first, _, check, rest = run(SPIN, "return 1", timeout=2, clock=10_000)
    assert first, "nothing says that it was interrupted"
    assert (check, rest) == ([], ["the rest\n"])


@pytest.mark.parametrize(
    ("cell", "answer", "where"),
    [
        ("", "__import__('time').sleep(10**6)", "answer-check"),
        ("__import__('time').sleep(10**6)", "return 1", "that begins: __import__"),
        ("", "__import__('threading').Event().wait()", "answer-check"),
    ],
)
def test_no_end_on_the_clock_waits_for_a_person(cell, answer, where, monkeypatch):
    seconds = count(step=2000)  # of the clock, of which so many go by from one look to the next
    monkeypatch.setattr("grading.outside.monotonic", lambda: next(seconds))
    with pytest.raises(OutOfClockError, match=f"it waits for a person: 1000 seconds .* in the cell {where}"):
        run(cell, answer, timeout=1000, clock=1)


def test_autograde_tells_the_clock_from_other_reasons(tmp_path, monkeypatch):
    course = Course(tmp_path, "scaling", configure(tmp_path))
    for log, kind in {
        "grading.outside.OutOfClockError: it waits for a person: 50 seconds": OutOfClock,
        "RuntimeError: Kernel didn't respond in 300 seconds": OutOfClock,
        "grading.outside.KernelLostError: the kernel died in the cell scale": str,
    }.items():
        monkeypatch.setattr("grading.course.outcome", lambda _, log=log: (False, log))
        monkeypatch.setattr("nbgrader.apps.NbGraderAPI.autograde", lambda *_: None)
        assert type(course.autograde("ada")) is kind


def test_class_holds_a_student_who_sleeps_so_as_not_to_be_graded():
    assert CLASS["sleeps"].points is None
