"""Tests of grading.audit: unlucky seeds of right and wrong answers are found, and the checks have none."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from thorough import all_but

pytest.importorskip("nbgrader")
from grading import audit

MASTERS = sorted(path.stem for path in (audit.ASSIGNMENTS / "source").glob("*/*.ipynb"))
VISIBLE, HIDDEN = "check.double(double)", "check.double(double, seed=10, cases=2)"
ANSWERS = """
from types import SimpleNamespace
from lessons_lib.checks import check as checked

@checked
def double(answer, *, seed=0, cases=1):
    for case in range(cases):
        assert answer(seed + case) == 2 * (seed + case), f"double is wrong ({seed})"

@checked
def half(answer, *, seed=0, cases=1): ...

def odd(x):
    return 2 * x if x % 2 else 0

check = SimpleNamespace(double=double, half=half)
RIGHT = {double: [lambda x: x + x, lambda x: 2 * x if x % 7 else 1]}
WRONG = {double: [(lambda x: 2 * x if x > 20 else 0, "says"), (lambda x: 3 * x, "says", 2), (odd, "says")]}
"""


def cell(grade_id, source, points=1):
    marked = {"grade": True, "grade_id": grade_id, "locked": True, "points": points, "schema_version": 3}
    nbgrader = marked | {"solution": False, "task": False, "cell_type": "code"}
    return nbformat.v4.new_code_cell(source, metadata={"nbgrader": nbgrader})


@pytest.fixture
def small(tmp_path, monkeypatch):
    """An assignment with two checks, one of which has no answers."""
    cells = [cell("double-check", VISIBLE), cell("double-graded", f"# other inputs\n{HIDDEN}")]
    plain = nbformat.v4.new_code_cell("check.double(double, seed=99)")
    master = nbformat.v4.new_notebook(cells=[plain, *cells, cell("half-check", "check.half(half)")])
    (tmp_path / "source/small-one").mkdir(parents=True)
    nbformat.write(master, tmp_path / "source/small-one/small-one.ipynb")
    (tmp_path / "small_one.py").write_text(ANSWERS)
    monkeypatch.setattr(audit, "ASSIGNMENTS", tmp_path)
    monkeypatch.setattr(audit, "ANSWERS", tmp_path)
    for cached in (audit.answers, audit.graded_cells):
        cached.cache_clear()
    yield "small-one"
    for cached in (audit.answers, audit.graded_cells):
        cached.cache_clear()


def test_graded_cells_are_those_of_the_master_that_call_a_check(small):
    visible, hidden, half = audit.graded_cells(small)
    assert visible == audit.GradedCell("double-check", "double")
    assert hidden == audit.GradedCell("double-graded", "double", (("seed", 10), ("cases", 2)))
    assert half.check == "half"


def test_audit_finds_the_unlucky_seeds(small):
    refused, passed = audit.audit([small], range(30))
    # A multiple of 7 is drawn by the visible cell (the seed) or by the hidden one (10 and 11 more).
    assert refused.seeds == [seed for seed in range(30) if not seed % 7 or not (seed + 10) % 7 or not (seed + 11) % 7]
    assert (refused.right, refused.check) == (True, "double")
    assert refused.message == "double-check: double is wrong (0)"
    assert "answer 1 (small_one.py, line 17)" in str(refused)
    assert "course seeds (13): 0, 3, 4, 7, 10, ..." in str(refused)
    assert passed.seeds == list(range(21, 30))
    assert not passed.right


def test_audit_names_checks_without_answers(small, capsys):
    assert audit.main([small, "--course-seed", "1", "--course-seed", "2"]) == 0
    assert "small-one: not audited, without" in (said := capsys.readouterr().out)
    assert "half" in said
    assert "Assignments: 1. Course seeds: 2. Right answers refused: 0. Wrong answers that passed: 0." in said


def test_exit_status_is_one_if_something_is_found(small, capsys):
    assert audit.main([small, "--course-seed", "7"]) == 1
    assert "small-one, double, answer 1 (small_one.py, line 17): refused, double-check" in capsys.readouterr().out
    assert audit.main([small, "--course-seed", "25"]) == 1
    assert "answer 0 (small_one.py, line 18): wrong, and passed every graded cell" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["scalling"], ["scaling", "--seeds", "0"], ["scaling", "--jobs", "0"]])
def test_main_invalid_arguments_exit_with_two(words, capsys):
    with pytest.raises(SystemExit) as ended:
        audit.main(words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_drawn_seeds_are_those_of_the_draw_and_below_two_to_the_31():
    assert audit.drawn_seeds(5, 0) == audit.drawn_seeds(9, 0)[:5]
    assert set(audit.drawn_seeds(50, 0)).isdisjoint(audit.drawn_seeds(50, 1))
    assert all(0 <= seed < 2**31 for seed in audit.drawn_seeds(50, 2))


def test_an_exception_of_a_right_answer_is_a_refusal(small):
    def fails(x):
        raise KeyError("x")

    said = audit.refusal(audit.answers(small).check.double, fails, audit.graded_cells(small)[:2], 0)
    assert said.endswith("KeyError: 'x'")


def test_audit_restores_the_default_type(small):
    audit.audit([small], [1])
    assert torch.get_default_dtype() == torch.float64


@pytest.mark.parametrize("name", all_but(MASTERS, lambda name: name in MASTERS[::3]))
def test_no_answer_is_graded_wrongly(name):
    """The weekly workflow audits 250 seeds."""
    assert audit.without_answers(name) == []
    assert list(map(str, audit.audit([name], audit.drawn_seeds(1, 0)))) == []


@pytest.mark.thorough
def test_the_command_runs_in_several_processes():
    command = [sys.executable, "-m", "grading.audit", "why-attention", "--seeds", "1", "--jobs", "2"]
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Assignments: 1. Course seeds: 1. Right answers refused: 0. Wrong answers that passed: 0.\n"
