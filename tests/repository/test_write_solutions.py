"""Tests of tools/write_solutions.py: a page has all questions, answers and points, and needs no other file."""

import re

import nbformat
import pytest

pytest.importorskip("nbgrader")

from write_solutions import MASTERS, block, points_of, solutions

from typeset_page import self_contained  # isort: skip

EVERY_MASTER = sorted(MASTERS.glob("*/*.ipynb"))


def cell(kind: str, source: str, **about):
    make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
    nbgrader = {"grade": False, "solution": False, "grade_id": "floor", **about}
    return make(source, metadata={"nbgrader": nbgrader})


def test_written_answer_is_labelled_with_its_points():
    shown = block(cell("markdown", "**(a)** $a<b$, see [it](../x.ipynb).", grade=True, solution=True, points=3))
    assert "Model answer <code>floor</code>, 3 points</p>" in shown
    assert r"<strong>(a)</strong> <span class=" in shown
    assert r"\(a&lt;b\)" in shown
    assert "see it.</p>" in shown


def test_code_answer_has_no_marks_of_nbgrader():
    source = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    shown = re.sub(r"<[^>]+>", "", block(cell("code", source, solution=True)))
    assert "Model answer floor" in shown
    assert "def f():\n    return 1" in shown
    assert "###" not in shown


def test_check_and_question_are_not_answers():
    assert "Check <code>floor</code>, 1 point, graded by machine" in block(cell("code", "f(1)", grade=True, points=1))
    assert 'class="answer"' not in block(cell("markdown", "## Exercise 1"))
    assert points_of(1.5) == "1.5 points"


@pytest.mark.parametrize("master", EVERY_MASTER, ids=lambda path: path.stem)
def test_page_has_every_answer_and_scheme(master):
    notebook = nbformat.read(master, as_version=4)
    page = solutions(notebook, master.stem)
    answers = [one for one in notebook.cells if one.metadata.nbgrader.solution]
    assert re.findall(r'<div class="answer" id="([\w-]+)">', page) == [
        one.metadata.nbgrader.grade_id for one in answers
    ]
    assert page.count("<em>Points:</em>") == sum(one.source.count("*Points:*") for one in answers)
    assert len(re.findall(r"^<h2>", page, re.MULTILINE)) == sum(
        len(re.findall(r"^## ", one.source, re.MULTILINE)) for one in notebook.cells if one.cell_type == "markdown"
    )
    assert "### BEGIN" not in page
    assert not re.findall(r'href="(?!http)[^"]*"', page)


def test_self_contained_page_requests_nothing_and_has_no_tex():
    notebook = nbformat.read(MASTERS / "scaling" / "scaling.ipynb", as_version=4)
    page = self_contained(solutions(notebook, "scaling"))
    assert not re.findall(r'(?:src|href)="(?!http)[^"]*"|url\("(?!data:)[^"]*"', page)
    assert ("<mjx-container" in page) != (r"\(" in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL))
