"""Tests of grading.report and grading.bonus: tables, exports and the figure, also with unusual names and messages."""

import csv
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from nbgrader.preprocessors import GetGrades
from traitlets.config.loader import PyFileConfigLoader

from grading.bonus import GetGradesWithBonus, bonus_points, is_bonus
from grading.feedback_page import AddSummary
from grading.report import Exercise, Result, exercises, write_report
from grading.roster import Member

ROOT = Path(__file__).resolve().parents[2]

ASKED = [Exercise("1. On paper", {"paper": 3}), Exercise("2. In code", {"code-check": 2, "code-graded": 1})]


def read(path) -> list[dict]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def results():
    return {
        "ada": Result(points={"paper": 2.5, "code-check": 2, "code-graded": 1}),
        "bob": Result(points={"paper": None, "code-check": 2, "code-graded": 0}, messages={"code-graded": "off (n=3)"}),
        "cyd": Result(reason="it is no notebook"),
    }


def test_grades_sum_points_by_exercise_and_in_total(results, tmp_path):
    write_report(tmp_path, "toy", results, ASKED)
    ada, bob, cyd = read(tmp_path / "grades.csv")
    assert (ada["points"], ada["1. On paper"], ada["2. In code"], ada["status"]) == ("5.5", "2.5", "3", "graded")
    assert (bob["points"], bob["1. On paper"], bob["2. In code"], bob["status"]) == ("2", "", "2", "grade by hand")
    assert (cyd["points"], cyd["status"], cyd["why not"]) == ("", "not graded", "it is no notebook")


def test_all_regular_points_are_100_percent_without_the_bonus(results, tmp_path):
    asked = [*ASKED, Exercise("3. On top", {"top-check": 3, "top-graded": 1}, bonus=True)]
    everything = {"paper": 3, "code-check": 2, "code-graded": 1}
    results["ada"].points = everything | {"top-check": 0, "top-graded": 0}
    results["bob"].points = everything | {"top-check": 3, "top-graded": 0}
    table = write_report(tmp_path, "toy", results, asked)
    ada, bob, cyd = read(tmp_path / "grades.csv")
    assert (ada["points"], ada["3. On top"], ada["percent"]) == ("6", "0", "100.0")
    assert (bob["points"], bob["3. On top"], bob["percent"]) == ("9", "3", "150.0")
    assert cyd["percent"] == ""
    assert [row["toy"] for row in read(tmp_path / "canvas.csv")] == ["6", "6", "9", ""]
    assert {(row["Grade"], row["Maximum grade"]) for row in read(tmp_path / "moodle.csv")} == {
        ("6", "6"),
        ("9", "6"),
        ("", "6"),
    }
    assert table.splitlines()[0].split() == ["student", "status", "points", "1", "2", "3"]


def test_percentage_is_empty_until_points_are_final(results, tmp_path):
    write_report(tmp_path, "toy", results, ASKED)
    assert [row["percent"] for row in read(tmp_path / "grades.csv")] == ["91.7", "", ""]


@pytest.mark.parametrize("name", ["build-flash", "scaling"])
def test_bonus_is_recognised_by_its_line(name):
    master = nbformat.read(ROOT / f"assignments/source/{name}/{name}.ipynb", as_version=4)
    called = [cell.source.splitlines()[0] for cell in master.cells if " points, a bonus*" in cell.source]
    assert [f"## Exercise {one.title}" for one in exercises(master) if one.bonus] == called
    assert len(called) == (name == "build-flash")
    assert bonus_points(master) == 8 * len(called)


def test_bonus_points_ignores_unlocked_headings():
    master = nbformat.read(ROOT / "assignments/source/scaling/scaling.ipynb", as_version=4)
    mine = nbformat.v4.new_markdown_cell("## Exercise 2. Mine\n\n*Code · 3 points, a bonus*")
    master.cells.insert(3, mine)
    assert is_bonus(mine)
    assert bonus_points(master) == 0


def test_feedback_maximum_excludes_the_bonus(monkeypatch):
    def fetched(_, notebook, resources):
        resources["nbgrader"] |= {"score": 33.0, "max_score": 42.0}
        return notebook, resources

    monkeypatch.setattr(GetGrades, "preprocess", fetched)
    master = nbformat.read(ROOT / "assignments/source/build-flash/build-flash.ipynb", as_version=4)
    resources = GetGradesWithBonus().preprocess(master, {"nbgrader": {}})[1]
    assert resources["nbgrader"] == {"score": 33.0, "max_score": 34.0}
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "assignments")).load_config()
    assert "grading.feedback_page.AddSummary" in config.GenerateFeedback.preprocessors
    assert issubclass(AddSummary, GetGradesWithBonus)


def test_exports_have_final_points_only(results, tmp_path):
    write_report(tmp_path, "toy", results, ASKED)
    assert [row["toy"] for row in read(tmp_path / "canvas.csv")] == ["6", "5.5", "", ""]
    assert [row["Grade"] for row in read(tmp_path / "moodle.csv")] == ["5.5", "", ""]


def test_exports_have_the_students_numbers(results, tmp_path):
    write_report(tmp_path, "toy", {"Ada Lovelace_id1234": results["ada"], "bob": results["bob"]}, ASKED)
    points_possible, ada, bob = read(tmp_path / "canvas.csv")
    assert (points_possible["Student"], points_possible["toy"]) == ("    Points Possible", "6")
    assert (ada["Student"], ada["ID"], ada["SIS Login ID"]) == ("Ada Lovelace", "1234", "")
    assert (bob["Student"], bob["ID"], bob["SIS Login ID"]) == ("bob", "", "bob")
    ada, bob = read(tmp_path / "moodle.csv")
    assert (ada["Identifier"], ada["Grade"], ada["Maximum grade"]) == ("Participant 1234", "5.5", "6")
    assert (bob["Identifier"], bob["Student"]) == ("", "bob")


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1", "-1"])
def test_exported_text_is_not_a_spreadsheet_formula(results, tmp_path, text):
    results[text] = results.pop("ada")
    write_report(tmp_path, "toy", results, ASKED)
    for name, column in {"grades": "student", "canvas": "SIS Login ID", "moodle": "Student"}.items():
        assert f"'{text}" in [row[column] for row in read(tmp_path / f"{name}.csv")]


@pytest.mark.parametrize("message", ["$\\frac{", "", " (", "a\nb", "<script>", "x" * 10_000])
def test_figure_accepts_any_message(results, tmp_path, message):
    results["bob"].messages["code-check"] = message
    write_report(tmp_path, "toy", results, ASKED)
    assert (tmp_path / "class.png").read_bytes().startswith(b"\x89PNG")


def test_write_report_accepts_an_empty_class(tmp_path):
    assert write_report(tmp_path, "toy", {}, ASKED).startswith("student")


def test_table_has_a_line_for_each_student(results, tmp_path):
    table = write_report(tmp_path, "toy", results, ASKED).splitlines()
    assert table[0].split() == ["student", "status", "points", "1", "2"]
    assert [line.split()[0] for line in table[1:]] == ["ada", "bob", "cyd"]
    assert table[3].endswith("it is no notebook")


def test_table_lists_members_without_a_submission(results, tmp_path):
    members = [Member("Doe, Alice", "1234", "u77", "alice", "Monday"), Member("Roe, Bob", "99", login="bob")]
    table = write_report(tmp_path, "toy", results, ASKED, members=members, canvas_column="Toy (4711)")
    assert "nothing came" in next(line for line in table.splitlines() if line.startswith("Doe, Alice_id1234"))
    rows = {row["student"]: row for row in read(tmp_path / "grades.csv")}
    assert (rows["Doe, Alice_id1234"]["points"], rows["Doe, Alice_id1234"]["why not"]) == ("", "nothing was handed in")
    assert len(rows) == 4
    canvas = {row["Student"]: row for row in read(tmp_path / "canvas.csv")}
    assert (canvas["Doe, Alice"]["ID"], canvas["Doe, Alice"]["Section"], canvas["Doe, Alice"]["Toy (4711)"]) == (
        "1234",
        "Monday",
        "",
    )
    assert canvas["Roe, Bob"]["SIS Login ID"] == "bob"


def test_lateness_is_deducted_from_the_total_only(results, tmp_path):
    results["ada"].hours_late, results["ada"].percent_off = 25.02, 20
    write_report(tmp_path, "toy", results, ASKED)
    ada, bob, _ = read(tmp_path / "grades.csv")
    assert (ada["points"], ada["1. On paper"], ada["hours late"], ada["percent taken off"]) == (
        "4.4",
        "2.5",
        "25.0",
        "20",
    )
    assert (bob["hours late"], bob["percent taken off"]) == ("", "")
    assert [row["toy"] for row in read(tmp_path / "canvas.csv")] == ["6", "4.4", "", ""]
