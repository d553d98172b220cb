"""The files that a class's points are written to, whatever students make their messages say."""

import csv

import pytest

from grading.report import Exercise, Result, write_report
from grading.roster import Member

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


def test_points_add_up_by_exercise_and_in_all(results, tmp_path):
    write_report(tmp_path, "toy", results, ASKED)
    ada, bob, cyd = read(tmp_path / "grades.csv")
    assert (ada["points"], ada["1. On paper"], ada["2. In code"], ada["status"]) == ("5.5", "2.5", "3", "graded")
    assert (bob["points"], bob["1. On paper"], bob["2. In code"], bob["status"]) == ("2", "", "2", "grade by hand")
    assert (cyd["points"], cyd["status"], cyd["why not"]) == ("", "not graded", "it is no notebook")


def test_course_systems_get_points_that_are_final_and_no_others(results, tmp_path):
    write_report(tmp_path, "toy", results, ASKED)
    assert [row["toy"] for row in read(tmp_path / "canvas.csv")] == ["6", "5.5", "", ""]
    assert [row["Grade"] for row in read(tmp_path / "moodle.csv")] == ["5.5", "", ""]


def test_course_systems_know_a_student_by_the_number_in_the_zip(results, tmp_path):
    write_report(tmp_path, "toy", {"Ada Lovelace_id1234": results["ada"], "bob": results["bob"]}, ASKED)
    points_possible, ada, bob = read(tmp_path / "canvas.csv")
    assert (points_possible["Student"], points_possible["toy"]) == ("    Points Possible", "6")
    assert (ada["Student"], ada["ID"], ada["SIS Login ID"]) == ("Ada Lovelace", "1234", "")
    assert (bob["Student"], bob["ID"], bob["SIS Login ID"]) == ("bob", "", "bob")
    ada, bob = read(tmp_path / "moodle.csv")
    assert (ada["Identifier"], ada["Grade"], ada["Maximum grade"]) == ("Participant 1234", "5.5", "6")
    assert (bob["Identifier"], bob["Student"]) == ("", "bob")


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+1", "-1"])
def test_no_text_is_a_formula_in_a_spreadsheet(results, tmp_path, text):
    results[text] = results.pop("ada")
    write_report(tmp_path, "toy", results, ASKED)
    for name, column in {"grades": "student", "canvas": "SIS Login ID", "moodle": "Student"}.items():
        assert f"'{text}" in [row[column] for row in read(tmp_path / f"{name}.csv")]


@pytest.mark.parametrize("message", ["$\\frac{", "", " (", "a\nb", "<script>", "x" * 10_000])
def test_no_message_spoils_the_picture(results, tmp_path, message):
    results["bob"].messages["code-check"] = message
    write_report(tmp_path, "toy", results, ASKED)
    assert (tmp_path / "class.png").read_bytes().startswith(b"\x89PNG")


def test_a_class_of_nobody_has_a_report(tmp_path):
    assert write_report(tmp_path, "toy", {}, ASKED).startswith("student")


def test_the_table_has_a_line_for_each(results, tmp_path):
    table = write_report(tmp_path, "toy", results, ASKED).splitlines()
    assert table[0].split() == ["student", "status", "points", "1", "2"]
    assert [line.split()[0] for line in table[1:]] == ["ada", "bob", "cyd"]
    assert table[3].endswith("it is no notebook")


def test_who_handed_in_nothing_stands_in_the_table(results, tmp_path):
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


def test_being_late_costs_of_the_whole_and_not_of_an_exercise(results, tmp_path):
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
