"""Tests of grading.merge: merge marks that several people gave on copies, and report conflicts."""

import shutil

import pytest

pytest.importorskip("nbgrader")
from nbgrader.api import Gradebook

from grading.course import configure
from grading.merge import main, marks

# nbgrader adds a submission to its assignment before it adds it to the session
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A gradebook with two students, two answers to grade by hand, and one graded by a check."""
    folder = tmp_path_factory.mktemp("first")
    configure(folder)
    with opened(folder) as gradebook:
        gradebook.add_assignment("toy")
        gradebook.add_notebook("toy", "toy")
        for name, points in {"paper": 3, "open": 4, "check": 2}.items():
            gradebook.add_grade_cell(name, "toy", "toy", max_score=points, cell_type="markdown")
            gradebook.add_solution_cell(name, "toy", "toy")
        for student in ("ada", "bob"):
            gradebook.add_student(student)
            submission = gradebook.add_submission("toy", student)
            for grade in submission.notebooks[0].grades:
                grade.auto_score, grade.needs_manual_grade = (2, False) if grade.name == "check" else (None, True)
        gradebook.db.commit()
    return folder / "gradebook.db"


@pytest.fixture
def course(first, tmp_path):
    shutil.copy(first, tmp_path)
    return tmp_path


def opened(folder):
    folder.mkdir(exist_ok=True)
    return Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "attention")


@pytest.fixture
def graded_by(course):
    def copied(who: str, **given: tuple) -> str:
        """Copy the gradebook and enter marks: points and comment by student and answer, as in ``ada_paper``."""
        (course / who).mkdir()
        shutil.copy(course / "gradebook.db", course / who / "gradebook.db")
        with opened(course / who) as gradebook:
            for place, (points, comment) in given.items():
                student, answer = place.split("_")
                notebook = gradebook.find_submission_notebook("toy", "toy", student)
                for grade in notebook.grades:
                    if grade.name == answer:
                        grade.manual_score, grade.needs_manual_grade = points, False
                for one in notebook.comments:
                    if one.name == answer:
                        one.manual_comment = comment
            gradebook.db.commit()
        return str(course / who / "gradebook.db")

    return copied


def read(course) -> dict:
    with opened(course) as gradebook:
        return marks(gradebook, "toy")


def merged(course, *copies: str) -> int:
    return main(["toy", *copies, "--course", str(course)])


def test_main_merges_marks_of_different_exercises(course, graded_by, capsys):
    anna = graded_by("anna", ada_paper=(3, "well put"), bob_paper=(1, None))
    ben = graded_by("ben", ada_open=(4, None), bob_open=(0, "see page 3"))
    assert merged(course, anna, ben) == 0
    assert {place: (mark.points, mark.open, mark.comment) for place, mark in read(course).items()} == {
        ("ada", "paper"): (3, False, "well put"),
        ("bob", "paper"): (1, False, None),
        ("ada", "open"): (4, False, None),
        ("bob", "open"): (0, False, "see page 3"),
        ("ada", "check"): (None, False, None),
        ("bob", "check"): (None, False, None),
    }
    assert "4 marks taken over, 0 to agree on, 0 answers wait for a person." in capsys.readouterr().out


def test_main_takes_equal_marks_and_reports_conflicts(course, graded_by, capsys):
    anna = graded_by("anna", ada_paper=(3, None), bob_paper=(1, None))
    ben = graded_by("ben", ada_paper=(3, None), bob_paper=(2, "half"))
    assert merged(course, anna, ben) == 1
    after = read(course)
    assert (after["ada", "paper"].points, after["ada", "paper"].open) == (3, False)
    assert (after["bob", "paper"].points, after["bob", "paper"].open) == (None, True)
    said = capsys.readouterr().out
    assert f"bob, paper: {anna} says 1; {ben} says 2 (half)" in said
    assert "1 marks taken over, 1 to agree on, 3 answers wait for a person." in said


def test_main_twice_changes_nothing(course, graded_by, capsys):
    anna = graded_by("anna", ada_paper=(3, "well put"))
    assert merged(course, anna) == 0
    before = read(course)
    assert merged(course, anna) == 0
    assert read(course) == before
    assert "0 marks taken over" in capsys.readouterr().out


def test_main_with_an_older_copy_keeps_merged_marks(course, graded_by):
    anna, ben = graded_by("anna", ada_paper=(3, "well put")), graded_by("ben", ada_open=(4, None))
    assert merged(course, anna) == 0
    assert merged(course, ben) == 0
    assert (read(course)["ada", "paper"].points, read(course)["ada", "open"].points) == (3, 4)


def test_main_does_not_overwrite_merged_marks(course, graded_by, capsys):
    anna, ben = graded_by("anna", ada_paper=(3, None)), graded_by("ben", ada_paper=(0, None))
    assert merged(course, anna) == 0
    assert merged(course, ben) == 1
    assert read(course)["ada", "paper"].points == 3
    assert f"ada, paper: the gradebook says 3; {ben} says 0" in capsys.readouterr().out


def test_main_merges_manual_points_of_a_check(course, graded_by):
    assert merged(course, graded_by("anna", bob_check=(1, "by mercy"))) == 0
    assert read(course)["bob", "check"][:1] == (1,)


def test_main_missing_copy_raises(course, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        merged(course, "nowhere.db")
    assert "there is no file nowhere.db" in capsys.readouterr().err
