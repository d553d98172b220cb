"""Tests of grading.course: checking a submission's folder, timestamps, and notes on unchanged answers."""

import copy
import csv

import nbformat
import pytest

pytest.importorskip("nbgrader")
import shutil
from pathlib import Path

from students import answers

from grading import collect
from grading.course import Course, configure, untouched_answers
from grading.report import Result, exercises, write_report

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
def test_check_and_copy_symlink_raises(course, hand_in, link):
    place = course.folder / "submitted/ada" / link
    place.rename(course.folder / "elsewhere")
    place.symlink_to(course.folder / "elsewhere")
    with pytest.raises(ValueError, match=r"there is no file scaling\.ipynb in it"):
        course.check_and_copy("ada")


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "9" * 400, "\0"])
def test_check_and_copy_notes_an_invalid_timestamp(course, hand_in, text):
    (hand_in / "timestamp.txt").write_text(text)
    assert course.check_and_copy("ada") == ["its timestamp.txt is no date, so the time of submission is not known"]
    assert not (course.folder / "checked/ada/scaling/timestamp.txt").exists()


def test_check_and_copy_converts_the_timestamp_to_utc(course, hand_in):
    (hand_in / "timestamp.txt").write_text("2026-11-20 12:30:00 +0100")
    assert course.check_and_copy("ada") == []
    assert (course.folder / "checked/ada/scaling/timestamp.txt").read_text() == "2026-11-20 11:30:00 UTC"


def test_untouched_answers_notes_an_answer_in_code_only(released):
    assert untouched_answers(answers()(released), released) == {}
    said = untouched_answers(answers(needle="print(1)")(released), released)
    assert said == {"needle-answer": "needle-answer is as handed out, but look at needle"}


def test_untouched_answers_ignores_an_answer_in_words(released):
    assert untouched_answers(answers(needle="print(1)", needle_answer="It is 1.")(released), released) == {}


def test_untouched_answers_names_code_and_other_cells(released):
    notebook = copy.deepcopy(answers(needle="print(1)")(released))
    notebook.cells.append(nbformat.v4.new_markdown_cell("It is 1."))
    said = untouched_answers(notebook, released)
    assert said == {"needle-answer": "needle-answer is as handed out, but look at needle, the cells around it"}


def test_results_unreadable_result_does_not_affect_others(course):
    course.write_results({"ada": Result(notes=["a"]), "bob": Result(reason="it is late")}, beside_others=False)
    results = course.results()
    assert results["ada"].reason.startswith("its result cannot be read")
    assert results["bob"] == Result(reason="it is late")


def test_wrong_notebook_waits_for_a_person_and_the_report_has_the_notes_of_collecting(course):
    masters = ROOT / "assignments/source"
    shutil.copytree(masters / "train-gpt", course.folder / "source/train-gpt")
    archive = course.folder / "downloaded/scaling/archive"
    archive.mkdir(parents=True)
    shutil.copy(ROOT / "book/exercises/train-gpt/train-gpt.ipynb", archive / "doealice_1_10_train-gpt.ipynb")
    (archive / "doealice_1_11_notes.txt").write_text("mine")
    assert collect.main(["scaling", "--course", str(course.folder)]) == 0
    course.add_result("doealice_id1", course.grade("doealice_id1"))
    master = nbformat.read(masters / "scaling/scaling.ipynb", as_version=4)
    write_report(course.report, "scaling", course.results(), exercises(master))
    with (course.report / "grades.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["status"], row["points"]) == ("not graded", "")
    assert "the notebook of another assignment, train-gpt" in row["why not"]
    assert "train-gpt.ipynb was taken, though it is called otherwise" in row["notes"]
    assert "notes.txt is no notebook, not taken" in row["notes"]
