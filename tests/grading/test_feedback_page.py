"""Tests of grading.feedback_page: the total after lateness, the exercises by name, and the error of an answer."""

import csv
import html
import re

import pytest

pytest.importorskip("nbgrader")
from nbgrader.api import Gradebook
from students import SCALE
from without_kernel import hand_in, make_course

from grading.__main__ import main
from grading.executor import with_cause
from grading.feedback_page import exercise_line, lateness_line, total_line
from grading.report import Exercise, Result

# nbgrader adds a submission to its assignment before it adds it to the session
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")

TITLES = [
    "1. The variance of a dot product",
    "2. The scale factor for unit variance",
    "3. A numerically stable softmax",
    "4. The backward pass of attention",
    "5. The eigenvalues of a softmax's Jacobian",
    "6. How sharp must attention be to find a needle?",
]


def top(folder, student: str) -> list[str]:
    """Return the text of each title, sentence and row in the heading of a student's page."""
    page = (folder / f"feedback/{student}/scaling/scaling.html").read_text()
    heading = page.split('<div class="panel-heading">')[1].split('<div class="panel-body">')[0]
    blocks = re.findall(r"(?s)<(h4|p|tr)\b[^>]*>(.*?)</\1>", heading)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()) for _, text in blocks]


def grade_by_hand(folder, student: str, points: dict[str, float], comment: str) -> None:
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as gradebook:
        notebook = gradebook.find_submission_notebook("scaling", "scaling", student)
        for grade in notebook.grades:
            if grade.name in points:
                grade.manual_score, grade.needs_manual_grade = points[grade.name], False
        gradebook.find_comment("moments", "scaling", "scaling", student).manual_comment = comment
        gradebook.db.commit()


@pytest.fixture
def late(tmp_path, monkeypatch, capsys):
    """A course with one student, who is 36 hours late, and the command that grades it."""
    make_course(tmp_path, monkeypatch)
    (tmp_path / "course.toml").write_text("[scaling]\ndue = 2026-11-02T00:00:00Z\npercent_per_day = 10\n")
    mine = "A text.\n\n## Exercise 9. Mine"
    answers = {"moments": "It is zero.", "eigenvalues": "Four.", "needle-answer": mine}
    hand_in(tmp_path, "ada", scale=SCALE, came="2026-11-03 12:00 +0000", **answers)
    command = ["scaling", "--course", str(tmp_path), "--without-sandbox"]
    assert main(command) == 0
    return tmp_path, command


def test_page_has_each_exercise_by_name_and_the_total_after_lateness(late):
    folder, command = late
    total, lateness, _, *rows = top(folder, "ada")
    assert total == "scaling: 2.4 of 26 points (3 answers are not graded yet)"
    assert lateness == "Submitted 36 hours after the deadline: 20 % of 3 points are taken off, which leaves 2.4."
    points = ["not graded yet", "3 of 3", "0 of 4", "0 of 6", "not graded yet", "not graded yet"]
    assert [row.startswith(title) for row, title in zip(rows, TITLES, strict=True)] == [True] * 6
    assert [re.search(r"(\d+ of \d+|not graded yet)", row)[0] for row in rows] == points

    grade_by_hand(folder, "ada", {"moments": 2.5, "eigenvalues": 1, "needle-answer": 4}, "Where is the <b>mean</b>?")
    main([*command, "--report"])
    total, lateness, _, *rows = top(folder, "ada")
    assert total == "scaling: 8.4 of 26 points"
    assert "20 % of 10.5 points are taken off, which leaves 8.4" in lateness
    assert [row.endswith("comment") for row in rows] == [True, False, True, True, False, True], "nbgrader: No response"
    with (folder / "report/scaling/grades.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["points"] == "8.4", "the page and the table must say the same"

    (folder / "submitted/ada/scaling/timestamp.txt").write_text("2026-11-01 12:00 +0000")
    main([*command, "--report"])
    assert top(folder, "ada")[0] == "scaling: 10.5 of 26 points"
    assert not [line for line in top(folder, "ada") if "deadline" in line or "taken off" in line]

    page = (folder / "feedback/ada/scaling/scaling.html").read_text()
    linked = re.findall(r'<td><a href="#(?!comment-)([\w-]+)">', page)
    assert linked == ["moments", "scale-check", "softmax-check", "backward-q-check", "eigenvalues", "needle-answer"]
    assert all(f'<a name="{name}"></a>' in page for name in [*linked, "comment-moments"])
    assert "Test cell" not in page


def test_lateness_without_a_penalty_is_said():
    assert lateness_line(Result(points={"a": 2}, hours_late=1)).endswith("deadline: no points are taken off.")
    assert lateness_line(Result(points={"a": 2})) == ""


def test_total_line_without_any_points():
    assert total_line(Result(points={"a": None}, percent_off=10), 2.5) == "0 of 2.5 points (1 answer is not graded yet)"


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({"a": 1.5, "b": None}, "1.5 of 5 so far"),
        ({"a": 1.5, "b": 2}, "3.5 of 5"),
        ({"a": None, "b": None}, "not graded yet"),
    ],
)
def test_exercise_line_says_what_is_not_graded(points, said):
    exercise = Exercise("1. A", {"a": 2, "b": 3})
    assert exercise_line(exercise, Result(points=points, percent_off=50), {})["points"] == said
    bonus = exercise_line(
        Exercise("1. A", {"a": 2, "b": 3}, bonus=True), Result(points=points), {"b": "1. A", "c": "2"}
    )
    assert bonus["comments"] == ["b"]
    assert said == "not graded yet" or ", a bonus" in bonus["points"]


@pytest.mark.parametrize(
    ("source", "message", "said"),
    [
        ("def f(x) return x", "NameError: f is not defined", "SyntaxError: no, so f is not defined"),
        ("x = 1\nf: int = y", "NameError: name 'f' is not defined, at: f(1)", "SyntaxError: no, so f is not defined"),
        ("class f(:", "NameError: f is not defined", "SyntaxError: no, so f is not defined"),
        ("def fs(x) return x", "NameError: f is not defined", "NameError: f is not defined"),
        ("print(f", "NameError: f is not defined", "NameError: f is not defined"),
        ("def f(x) return x", "f is not defined at 0", "f is not defined at 0"),
        ("\n" * 10**6 + "def", "NameError: f is not defined", "NameError: f is not defined"),
    ],
)
def test_with_cause_names_the_error_of_the_cell_that_defines(source, message, said):
    assert (
        with_cause(message, [("def f(x): return", "ValueError: an earlier one"), (source, "SyntaxError: no")][1:])
        == said
    )
