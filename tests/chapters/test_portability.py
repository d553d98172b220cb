"""The chapter on FlashAttention runs without Triton or its interpreter, and reports the reason."""

import math
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).resolve().parents[2]
NO_TRITON = "import sys; sys.modules['triton'] = None"
NO_INTERPRETER = """
try:
    from lessons_lib.flash import autograd
except ModuleNotFoundError:
    pass
else:
    autograd.interpreter_fault = lambda: "Triton 3.6.0 cannot interpret a loop"
"""
FAULTY_KERNEL = """
import lessons_lib.flash as flash
def faulty(*_, **__): raise ValueError("the kernel is wrong")
flash.flash_attention = faulty
"""


@pytest.fixture
def interpreted(tmp_path, monkeypatch):
    """Run the cells that interpret the kernels after the code ``surroundings``; return the glued value."""

    def run(surroundings: str) -> tuple:
        (tmp_path / "sitecustomize.py").write_text(surroundings)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
        glued = {}
        names = {"math": math, "SEED": 0, "glue": lambda name, *value: glued.update({name: value})}
        cells = {cell.id: cell.source for cell in nbformat.read(ROOT / "book/efficient/flash.ipynb", 4).cells}
        for cell in ("kernel-program", "kernel-run", "kernel-run-glue"):
            exec(cells[cell], names)
        return glued["difference"]

    return run


def test_kernels_run_in_the_interpreter(interpreted):
    pytest.importorskip("triton")
    value, pattern = interpreted("")
    assert 0 < value < 1e-5
    assert pattern == ".0e"


@pytest.mark.parametrize(
    ("surroundings", "reason"),
    [
        pytest.param(NO_TRITON, "triton is not installed", id="no Triton"),
        pytest.param(NO_INTERPRETER, "", id="no interpreter", marks=pytest.mark.thorough),
    ],
)
def test_chapter_reports_missing_triton_and_continues(interpreted, capsys, surroundings, reason):
    assert interpreted(surroundings) == ("an amount that was not measured (Triton cannot run there)", "")
    assert f"cannot run here: {reason}" in capsys.readouterr().out


def test_kernel_error_is_raised(interpreted):
    with pytest.raises(ValueError, match="the kernel is wrong"):
        interpreted(FAULTY_KERNEL)
