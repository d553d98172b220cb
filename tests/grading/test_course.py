"""What a submission folder may hold, and what is noted of an answer that nobody touched."""

import copy

import nbformat
import pytest

pytest.importorskip("nbgrader")
import shutil
from pathlib import Path

from students import answers

from grading.course import Course, configure, untouched_answers

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ROOT / "book/exercises/scaling/scaling.ipynb"


@pytest.fixture
def released():
    return nbformat.read(RELEASED, as_version=4)


@pytest.fixture
def course(tmp_path):
    target = tmp_path / "release/scaling/scaling.ipynb"
    target.parent.mkdir(parents=True)
    shutil.copy(RELEASED, target)
    return Course(tmp_path, "scaling", configure(tmp_path))


@pytest.fixture
def hand_in(course, released):
    folder = course.folder / "submitted/ada/scaling"
    folder.mkdir(parents=True)
    nbformat.write(answers()(released), folder / "scaling.ipynb")
    return folder


@pytest.mark.parametrize("link", ["scaling/scaling.ipynb", "scaling", "."])
def test_what_is_only_a_link_is_refused(course, hand_in, link):
    place = course.folder / "submitted/ada" / link
    place.rename(course.folder / "elsewhere")
    place.symlink_to(course.folder / "elsewhere")
    with pytest.raises(ValueError, match=r"there is no file scaling\.ipynb in it"):
        course.check_and_copy("ada")


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "9" * 400, "\0"])
def test_a_timestamp_that_is_none_is_noted(course, hand_in, text):
    (hand_in / "timestamp.txt").write_text(text)
    assert course.check_and_copy("ada") == [
        "its timestamp.txt is no date, so nothing is known of when it was handed in"
    ]
    assert not (course.folder / "checked/ada/scaling/timestamp.txt").exists()


def test_a_timestamp_is_kept_in_the_time_of_all(course, hand_in):
    (hand_in / "timestamp.txt").write_text("2026-11-20 12:30:00 +0100")
    assert course.check_and_copy("ada") == []
    assert (course.folder / "checked/ada/scaling/timestamp.txt").read_text() == "2026-11-20 11:30:00 UTC"


def test_an_answer_in_code_alone_is_noted(released):
    assert untouched_answers(answers()(released), released) == {}
    said = untouched_answers(answers(needle="print(1)")(released), released)
    assert said == {"needle-answer": "needle-answer is as handed out, but look at needle"}


def test_an_answer_in_code_and_in_words_is_not_noted(released):
    assert untouched_answers(answers(needle="print(1)", needle_answer="It is 1.")(released), released) == {}


def test_both_places_are_named(released):
    notebook = copy.deepcopy(answers(needle="print(1)")(released))
    notebook.cells.append(nbformat.v4.new_markdown_cell("It is 1."))
    said = untouched_answers(notebook, released)
    assert said == {"needle-answer": "needle-answer is as handed out, but look at needle, the cells around it"}


def test_a_result_that_cannot_be_read_costs_nobody_else_the_report(course):
    from grading.report import Result

    course.write_results({"ada": Result(notes=["a"]), "bob": Result(reason="it is late")}, beside_others=False)
    results = course.results()
    assert results["ada"].reason.startswith("what came of it cannot be read")
    assert results["bob"] == Result(reason="it is late")
