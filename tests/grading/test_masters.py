"""The model answers of every master pass their checks when these run in another process."""

import os
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from thorough import all_but

from grading.course import messages
from grading.executor import ExecuteWithOutsideChecks, is_autograded
from grading.sandbox import sandbox_error

MASTERS = sorted((Path(__file__).resolve().parents[2] / "assignments/source").glob("*/*.ipynb"))


@pytest.mark.parametrize("path", all_but(MASTERS, lambda path: path.stem == "matrix"), ids=lambda path: path.stem)
def test_model_answers_pass_outside_checks_with_other_seeds(path, tmp_path):
    if sandbox_error() and os.environ.get("REQUIRE_SANDBOX") == "1":
        pytest.fail(sandbox_error())
    master = nbformat.read(path, as_version=4)
    checks = [i for i, cell in enumerate(master.cells) if is_autograded(cell)]
    master.cells = master.cells[: checks[-1] + 1]  # an open exercise without checks may be slow
    runner = ExecuteWithOutsideChecks(timeout=900, seed_shift=1_000_003, sandbox=not sandbox_error())
    runner.preprocess(master, {"metadata": {"path": str(tmp_path)}})
    assert {master.cells[i].id: messages(master.cells[i]) for i in checks} == {master.cells[i].id: [] for i in checks}
