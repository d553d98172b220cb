"""Tests of grading.groups: a group's submission is graded once, and every member gets its points."""

import csv
import json
import zipfile
from datetime import UTC, datetime

import pytest

pytest.importorskip("nbgrader")
from students import SCALE
from without_kernel import hand_in, make_course

from grading.__main__ import main
from grading.course import Course, configure
from grading.groups import feedback_names, groups, results_by_member
from grading.report import Result
from grading.roster import Member, Rules, assign_groups, read_roster

# nbgrader adds a submission to its assignment before it adds it to the session
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")

DAY = {number: datetime(2026, 11, number, tzinfo=UTC) for number in range(1, 9)}
ALICE, BOB, CYD = (Member(name, number, group="A") for name, number in (("Alice", "1"), ("Bob", "22"), ("Cyd", "333")))
DAN = Member("Dan", "4444")


def only(members, there, came=None):
    (group,) = groups(members, there, (came or {}).get)
    return group


def test_groups_one_submission_counts_for_all_members():
    group = only([ALICE, BOB, CYD, DAN], {"Bob_id22": b"x", "Dan_id4444": b"y"})
    assert (group.counts, group.aside, group.notes) == ("Bob_id22", [], [])
    assert list(group.members) == ["Alice_id1", "Bob_id22", "Cyd_id333"]


def test_groups_equal_files_give_no_note():
    group = only([ALICE, BOB], {"Bob_id22": b"x", "Alice_id1": b"x"})
    assert (group.counts, group.aside, group.notes) == ("Alice_id1", ["Bob_id22"], [])


@pytest.mark.parametrize(
    ("came", "counts", "why"),
    [
        ({"Alice_id1": DAY[1], "Bob_id22": DAY[3], "Cyd_id333": DAY[2]}, "Bob_id22", "it came last"),
        ({"Alice_id1": DAY[1], "Bob_id22": DAY[3]}, "Alice_id1", "its member is listed first"),
        ({}, "Alice_id1", "its member is listed first"),
        (dict.fromkeys(("Alice_id1", "Bob_id22", "Cyd_id333"), DAY[1]), "Alice_id1", "its member is listed first"),
    ],
)
def test_groups_of_different_files_the_latest_counts(came, counts, why):
    group = only([ALICE, BOB, CYD], {"Cyd_id333": b"z", "Bob_id22": b"y", "Alice_id1": b"x"}, came)
    assert group.counts == counts
    assert sorted([counts, *group.aside]) == ["Alice_id1", "Bob_id22", "Cyd_id333"]
    assert why in group.notes[0]
    assert all(other in group.notes[0] for other in group.aside)


def test_groups_prefers_folders_with_a_notebook():
    assert only([ALICE, BOB], {"Alice_id1": None, "Bob_id22": b"x"}).counts == "Bob_id22"
    assert only([ALICE, BOB], {"Alice_id1": None}).counts == "Alice_id1"


def test_groups_without_a_submission_are_left_out():
    assert groups([ALICE, DAN], {"Dan_id4444": b"x"}, lambda _: None) == []


@pytest.mark.parametrize("folder", ["Team 7", "team7_id22"])
def test_groups_accepts_a_folder_with_the_groups_name(folder):
    """Such as a folder made by hand, or Canvas' folder, which has the number of one member."""
    members = [Member("Alice", "1", group="Team 7"), Member("Bob", "22", group="Team 7")]
    group = only(members, {folder: b"x"})
    assert (group.counts, list(group.members)) == (folder, ["Alice_id1", "Bob_id22"])


def test_results_by_member_gives_the_result_to_all_members():
    group = only([ALICE, BOB], {"Bob_id22": b"y", "Alice_id1": b"x"})
    results = {"Alice_id1": Result(points={"a": 3}, notes=["read"]), "Dan_id4444": Result(points={"a": 1})}
    everybody = results_by_member(results, [group])
    assert {name: one.points["a"] for name, one in everybody.items()} == {
        "Alice_id1": 3,
        "Bob_id22": 3,
        "Dan_id4444": 1,
    }
    assert everybody["Alice_id1"].notes == everybody["Bob_id22"].notes == ["read", *group.notes]
    assert [everybody[name].group for name in ("Alice_id1", "Bob_id22", "Dan_id4444")] == ["A", "A", ""]


def test_results_by_member_notes_an_ungraded_file():
    group = only([ALICE, BOB], {"Bob_id22": b"y", "Alice_id1": b"x"}, {"Alice_id1": DAY[1], "Bob_id22": DAY[2]})
    everybody = results_by_member({"Alice_id1": Result(points={"a": 3})}, [group])
    assert set(everybody) == {"Alice_id1", "Bob_id22"}
    assert "this is the result of Alice_id1: use --rest" in everybody["Bob_id22"].notes[-1]


def test_hours_late_uses_the_latest_extension():
    rules = Rules(DAY[1], extensions={"Alice_id1": DAY[3], "A": DAY[2]})
    assert rules.hours_late(DAY[4], "A", "Alice_id1") == 24
    assert rules.hours_late(DAY[4], "A") == 48
    assert rules.hours_late(DAY[4]) == 72


MOODLE = """\
Identifier,Full name,Email address,Status,Group,Grade,Last modified (submission)
Participant 1,Alice,a@x.org,Submitted,A,,"Friday, 20 November 2026, 11:59 PM"
Participant 22,Bob,b@x.org,Submitted,A,,"Friday, 20 November 2026, 11:59 PM"
Participant 4444,Dan,d@x.org,No submission,,,-
"""
CANVAS_SET = """\
name,canvas_user_id,user_id,login_id,sections,group_name,canvas_group_id,group_id
"Alice",1,u1,alice,Monday,A,7,
"Bob",22,u2,bob,Monday,A,7,
"Dan",4444,u4,dan,Monday,,,
"""


def test_read_roster_reads_groups_from_moodle(tmp_path):
    (tmp_path / "roster.csv").write_text(MOODLE)
    assert read_roster(tmp_path / "roster.csv")[0] == [ALICE, BOB, DAN]


@pytest.mark.parametrize("text", [CANVAS_SET, "student,group\nAlice_id1,A\nBob_id22,A\n"])
def test_assign_groups_reads_a_table_of_groups(text, tmp_path):
    (tmp_path / "groups.csv").write_text(text)
    known = [Member("Alice", "1", group="B"), Member("Dan", "4444", group="B")]
    found = assign_groups(known, tmp_path / "groups.csv")
    assert {one.name: (one.number, one.group) for one in found} == {
        "Alice": ("1", "A"),
        "Dan": ("4444", ""),
        "Bob": ("22", "A"),
    }
    assert known[0].group == "B", "the argument was changed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,group\nAlice,A\n", r"groups\.csv must have columns student and group.*got: name, group"),
        ("student,group\nAlice_id1,A\nAlice_id1,B\n", r"Alice_id1 must be in one group, got A and B"),
    ],
)
def test_assign_groups_invalid_table_raises(text, said, tmp_path):
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        assign_groups([], tmp_path / "groups.csv")


@pytest.mark.parametrize(("rule", "expected"), [("", "A"), ("groups = true", "A"), ("groups = false", "")])
def test_course_groups_false_disables_groups(rule, expected, tmp_path):
    (tmp_path / "roster.csv").write_text("student,group\nAlice_id1,A\n")
    (tmp_path / "course.toml").write_text(f"[scaling]\n{rule}\n")
    assert Course(tmp_path, "scaling", configure(tmp_path)).members[0].group == expected


@pytest.mark.parametrize(("rule", "said"), [("3", "groups must be true, false or"), ('"g.csv"', "no table of groups")])
def test_course_invalid_groups_rule_raises(rule, said, tmp_path):
    (tmp_path / "course.toml").write_text(f"[scaling]\ngroups = {rule}\n")
    with pytest.raises(ValueError, match=said):
        Course(tmp_path, "scaling", configure(tmp_path))


def came_as(folder, **names: str):
    for student, name in names.items():
        about = folder / "submitted" / student / "scaling/came.json"
        about.parent.mkdir(parents=True)
        about.write_text(json.dumps({"as": name, "late": False}))


def test_feedback_names_moodle_has_a_folder_for_each_member(tmp_path):
    came_as(tmp_path, Bob_id22="Bob_22_assignsubmission_file_")
    group = only([ALICE, BOB, Member("Eve", group="A")], {"Bob_id22": b"x"})
    assert feedback_names(tmp_path, "scaling", group) == {
        "Alice_id1": "Alice_1_assignsubmission_file_",
        "Bob_id22": "Bob_22_assignsubmission_file_",
        "Eve": None,
    }


def test_feedback_names_canvas_has_one_page_for_a_group(tmp_path):
    came_as(tmp_path, teamb_id22="teamb_22_9_scaling.ipynb", bob_id22="bob_22_9_scaling.ipynb")
    theirs = [Member("Alice", "1", group="Team B"), Member("Bob", "22", group="Team B")]
    group = only(theirs, {"teamb_id22": b"x"})
    assert set(feedback_names(tmp_path, "scaling", group).values()) == {"teamb_22_9_scaling.ipynb"}
    group = only([ALICE, BOB], {"bob_id22": b"x"})
    assert feedback_names(tmp_path, "scaling", group) == {"Alice_id1": None, "bob_id22": "bob_22_9_scaling.ipynb"}


def table(folder) -> dict[str, dict]:
    with (folder / "report/scaling/grades.csv").open() as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def test_class_with_groups_is_graded_end_to_end(tmp_path, monkeypatch, capsys):
    make_course(tmp_path, monkeypatch)
    (tmp_path / "roster.csv").write_text(
        "student,group\nAlice_id1,A\nBob_id22,A\nCyd_id333,A\nDan_id4444,\nEve_id5,E\nFay_id6,E\n"
    )
    (tmp_path / "course.toml").write_text(
        "[scaling]\ndue = 2026-11-02T00:00:00Z\npercent_per_day = 10\n"
        "[scaling.extensions]\nCyd_id333 = 2026-11-03T00:00:00Z\n"
    )
    hand_in(tmp_path, "Alice_id1", came="2026-11-01 00:00 +0000")
    hand_in(tmp_path, "Bob_id22", scale=SCALE, came="2026-11-03 12:00 +0000")
    hand_in(tmp_path, "Dan_id4444", came="2026-11-03 12:00 +0000")
    for who, number in (("Alice", 1), ("Bob", 22), ("Dan", 4444)):
        about = tmp_path / f"submitted/{who}_id{number}/scaling/came.json"
        about.write_text(json.dumps({"as": f"{who}_{number}_assignsubmission_file", "late": False}))

    command = ["scaling", "--course", str(tmp_path), "--without-sandbox"]
    assert main(command) == 0
    rows = table(tmp_path)
    assert list(rows) == ["Alice_id1", "Bob_id22", "Cyd_id333", "Dan_id4444", "Eve_id5", "Fay_id6"]
    for name in ("Alice_id1", "Bob_id22", "Cyd_id333"):
        row = rows[name]
        assert (row["2. The scale factor for unit variance"], row["group"]) == ("3.0", "A")
        assert (row["hours late"], row["percent taken off"]) == ("12.0", "10"), "Cyd's extension is the group's"
        assert "the file of Bob_id22 counts (it came last); the different file of Alice_id1 does not" in row["notes"]
    assert (rows["Dan_id4444"]["hours late"], rows["Dan_id4444"]["percent taken off"]) == ("36.0", "20")
    assert [rows[name]["status"] for name in ("Eve_id5", "Fay_id6")] == ["nothing came"] * 2

    with zipfile.ZipFile(tmp_path / "report/scaling/feedback.zip") as back:
        names = [f"{who}_assignsubmission_file/scaling.html" for who in ("Alice_1", "Bob_22", "Cyd_333", "Dan_4444")]
        assert sorted(back.namelist()) == names
        assert len({back.read(name) for name in names[:3]}) == 1
    with (tmp_path / "report/scaling/moodle.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6

    # another member's file counts now: the previous result is removed from the gradebook, with its notes and points
    hand_in(tmp_path, "Alice_id1", came="2026-11-01 00:00 +0000", scale=SCALE.replace("math.sqrt", ""))
    (tmp_path / "submitted/Alice_id1/scaling/timestamp.txt").write_text("2026-11-04 00:00 +0000")
    main([*command, "--report"])
    assert "this is the result of Bob_id22: use --rest" in table(tmp_path)["Cyd_id333"]["notes"]
    main([*command, "--rest"])
    rows = table(tmp_path)
    points = {rows[name]["2. The scale factor for unit variance"] for name in ("Alice_id1", "Bob_id22", "Cyd_id333")}
    assert points == {"0.0"}
    assert "--rest" not in rows["Cyd_id333"]["notes"]
    assert not (tmp_path / "autograded/Bob_id22/scaling").exists()
    assert set(json.loads((tmp_path / "report/scaling/results.json").read_text())) == {"Alice_id1", "Dan_id4444"}


def test_submission_after_grading_is_reported_as_not_graded(tmp_path, monkeypatch, capsys):
    make_course(tmp_path, monkeypatch)
    (tmp_path / "roster.csv").write_text("student\nada\nbob\n")
    hand_in(tmp_path, "ada", scale=SCALE)
    command = ["scaling", "--course", str(tmp_path), "--without-sandbox"]
    main(command)
    assert table(tmp_path)["bob"]["status"] == "nothing came"
    hand_in(tmp_path, "bob")
    main([*command, "--report"])
    assert table(tmp_path)["bob"]["why not"] == "it is not graded yet: --rest"
    before = (tmp_path / "autograded/ada/scaling/scaling.ipynb").stat().st_mtime_ns
    main([*command, "--rest"])
    assert table(tmp_path)["bob"]["status"] == "graded"
    assert (tmp_path / "autograded/ada/scaling/scaling.ipynb").stat().st_mtime_ns == before


def test_interrupted_grading_continues_with_rest(tmp_path, monkeypatch, capsys):
    make_course(tmp_path, monkeypatch)
    for student in ("ada", "bob", "cyd"):
        hand_in(tmp_path, student, scale=SCALE)
    command = ["scaling", "--course", str(tmp_path), "--without-sandbox", "--jobs", "1"]
    add = Course.add_result

    def add_and_break_off(self, student, result):
        add(self, student, result)
        if student == "bob":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Course, "add_result", add_and_break_off)
        with pytest.raises(KeyboardInterrupt):
            main(command)
    main([*command, "--report"])
    assert [row["status"] for row in table(tmp_path).values()] == ["graded", "graded", "not graded"]
    capsys.readouterr()
    main([*command, "--rest"])
    assert "1/1" in capsys.readouterr().err
    assert [row["2. The scale factor for unit variance"] for row in table(tmp_path).values()] == ["3.0"] * 3
