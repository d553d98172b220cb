"""Run the examples in docstrings as doctests."""

import doctest
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import lessons_lib

ROOT = Path(__file__).resolve().parents[2]
GPU = "lessons_lib.flash.triton_kernels"
LIBRARY = [found.name for found in walk_packages(lessons_lib.__path__, "lessons_lib.") if found.name != GPU]
# The folders whose modules the tests import, and what their names begin with.
FOLDERS = {"grading": "grading.", "tools": "", "book/_ext": ""}
MODULES = LIBRARY + [
    prefix + path.stem
    for folder, prefix in FOLDERS.items()
    for path in sorted((ROOT / folder).glob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


def examples(name: str) -> list[doctest.DocTest]:
    return [found for found in doctest.DocTestFinder().find(import_module(name)) if found.examples]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_pass(name, capsys):
    for example in examples(name):
        runner = doctest.DocTestRunner()
        runner.run(example)
        assert not runner.failures, capsys.readouterr().out


def test_selected_modules_have_examples():
    shown = {name.removeprefix("lessons_lib.") for name in MODULES if examples(name)}
    assert {
        "analysis.patterns",
        "attention.positions",
        "attention.rope_scaling",
        "training.tasks",
        "efficient.recurrence",
        "page.sketch",
        "grading.names",
        "write_stretch",
        "opengraph",
    } <= shown


def test_wrong_example_fails():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    runner = doctest.DocTestRunner()
    assert runner.run(wrong, out=lambda _: None).failed == 1
