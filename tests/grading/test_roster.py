"""Tests of grading.roster: the class list, times of submission, deadlines and deductions in the systems' formats."""

from datetime import UTC, datetime

import pytest

pytest.importorskip("nbgrader")
from grading.course import Course, configure
from grading.report import Result
from grading.roster import Member, Rules, canvas_column, find_member, parse_time, read_roster, read_rules

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Scaling (4711),Masks (4712)
"    Points Possible",,,,,26,26
"Doe, Alice",1234,u77,adoe,Monday,,
"Roe, Bob",99,u78,broe,Tuesday,,
"""
MOODLE = """\
Identifier,Full name,Email address,Status,Grade,Last modified (submission)
Participant 1234,Alice Doe,a@x.org,Submitted,,"Friday, 20 November 2026, 11:59 PM"
Participant 99,Bob Roe,b@x.org,No submission,,-
"""


@pytest.fixture
def roster(tmp_path):
    def written(text: str):
        (tmp_path / "roster.csv").write_text("\ufeff" + text, encoding="utf-8")
        return read_roster(tmp_path / "roster.csv")

    return written


def test_read_roster_reads_canvas_gradebook(roster):
    members, heads, came = roster(CANVAS)
    assert members == [
        Member("Doe, Alice", "1234", "u77", "adoe", "Monday"),
        Member("Roe, Bob", "99", "u78", "broe", "Tuesday"),
    ]
    assert canvas_column("scaling", Rules(), heads) == "Scaling (4711)"
    assert canvas_column("flash", Rules(), heads) == "flash"
    assert canvas_column("scaling", Rules(canvas="Week 4 (1)"), heads) == "Week 4 (1)"
    assert came == {}


def test_read_roster_reads_moodle_worksheet_with_times(roster):
    members, _, came = roster(MOODLE)
    assert members == [Member("Alice Doe", "1234"), Member("Bob Roe", "99")]
    assert came == {"Alice Doe_id1234": "Friday, 20 November 2026, 11:59 PM"}


def test_read_roster_reads_a_list_of_folders(roster):
    members, _, came = roster("student,submitted\nAlice Doe_id1234,2026-11-20 12:00\nbob,\n")
    assert [member.folder for member in members] == ["Alice Doe_id1234", "bob"]
    assert came == {"Alice Doe_id1234": "2026-11-20 12:00"}


def test_read_roster_unknown_columns_raise(roster):
    with pytest.raises(ValueError, match=r"roster\.csv has no column student.*but: name\. Export it again"):
        roster("name\nAda\n")


@pytest.mark.parametrize(
    ("student", "member", "same"),
    [
        ("doealice_id1234", Member("Doe, Alice", "1234"), True),
        ("doealice_id99", Member("Doe, Alice", "1234"), False),
        ("Alice Doe_id12", Member("Alice Doe", "1234"), False),
        ("adoe", Member("Doe, Alice", "1234", login="adoe"), True),
        ("Alice Doe", Member("Alice Doe"), True),
        ("bob", Member("Alice Doe"), False),
    ],
)
def test_find_member_compares_numbers_first(student, member, same):
    assert find_member(student, [member]) == (member if same else None)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20 22:59:00 Europe/Berlin",
        "2026-11-20 22:59:00.000 CET",
        "2026-11-20T22:59:00+01:00",
        "2026-11-20 22:59:00 +0100",
        "2026-11-20  21:59 UTC",
        "2026-11-20T21:59:00Z",
    ],
)
def test_parse_time_accepts_all_formats(text):
    assert parse_time(text) == datetime(2026, 11, 20, 21, 59, tzinfo=UTC)


def test_parse_time_moodle_uses_the_local_time_zone():
    local = datetime(2026, 11, 20, 23, 59).astimezone()
    assert parse_time("Friday, 20 November 2026, 11:59 PM") == parse_time("Friday, 20 November 2026, 23:59") == local


@pytest.mark.parametrize("text", ["", "soon", "20/11/2026"])
def test_parse_time_invalid_text_raises(text):
    with pytest.raises(ValueError, match="Invalid isoformat"):
        parse_time(text)


@pytest.mark.parametrize(
    ("minutes", "percent"), [(-60, 0), (0, 0), (15, 0), (16, 10), (1440, 10), (1441, 20), (9999, 25)]
)
def test_percent_off_counts_each_day_begun(minutes, percent):
    rules = Rules(datetime(2026, 11, 20, tzinfo=UTC), percent_per_day=10, percent_at_most=25, grace_minutes=15)
    came = datetime.fromtimestamp(rules.due.timestamp() + 60 * minutes, UTC)
    assert rules.percent_off(rules.hours_late(came)) == percent


def test_extension_applies_to_one_student(tmp_path):
    (tmp_path / "course.toml").write_text(
        "[scaling]\ndue = 2026-11-20T00:00:00Z\npercent_per_day = 10\n"
        '[scaling.extensions]\n"Ada L_id7" = 2026-11-22T00:00:00Z\n'
    )
    rules, came = read_rules(tmp_path / "course.toml", "scaling"), datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert (rules.hours_late(came, "Ada L_id7"), rules.hours_late(came)) == (0, 36)
    assert read_rules(tmp_path / "course.toml", "masks") == Rules()


@pytest.mark.parametrize(
    "text",
    ["[scaling]\ndue = 3", "[scaling]\npercent_per_day = -1", "[scaling]\npercent = 1", "[scaling", "scaling = 1"],
)
def test_read_rules_invalid_rules_raise(text, tmp_path):
    (tmp_path / "course.toml").write_text(text)
    with pytest.raises(ValueError, match=r"^course\.toml, \[scaling\]: "):
        read_rules(tmp_path / "course.toml", "scaling")


def course_with(folder) -> Course:
    (folder / "course.toml").write_text("[scaling]\ndue = 2026-11-20T00:00:00Z\npercent_per_day = 10\n")
    return Course(folder, "scaling", configure(folder))


def test_add_lateness_reads_timestamp_file_before_roster(tmp_path):
    (tmp_path / "roster.csv").write_text("student,submitted\nada,2026-11-20 12:00 +0000\nbob,2026-11-23 00:00 +0000\n")
    ours, ada, bob, cyd = course_with(tmp_path), Result(), Result(), Result()
    for name, text in {"bob": "2026-11-21 01:00:00 UTC", "cyd": "whenever"}.items():
        (tmp_path / f"submitted/{name}/scaling").mkdir(parents=True)
        (tmp_path / f"submitted/{name}/scaling/timestamp.txt").write_text(text)
    for name, result in {"ada": ada, "bob": bob, "cyd": cyd}.items():
        ours.add_lateness(name, result)
    assert (ada.hours_late, ada.percent_off) == (12, 10)
    assert (bob.hours_late, bob.percent_off) == (25, 20), "the timestamp file must take precedence"
    assert cyd.hours_late == 0
    assert "its time of submission cannot be read" in cyd.notes[0]


def test_add_lateness_late_mark_without_time_deducts_nothing(tmp_path):
    (tmp_path / "submitted/ada/scaling").mkdir(parents=True)
    (tmp_path / "submitted/ada/scaling/came.json").write_text('{"as": "x", "late": true}')
    ours, ada = course_with(tmp_path), Result()
    ours.add_lateness("ada", ada)
    assert ada.notes == ["the course system marks it as late, and does not say by how much"]
    assert ada.percent_off == 0


def test_notices_list_unknown_names_in_course_toml(tmp_path):
    (tmp_path / "roster.csv").write_text("student,group\nada,Team 1\n")
    (tmp_path / "submitted/bob/scaling").mkdir(parents=True)
    known = "".join(f'"{name}" = 2026-11-22T00:00:00Z\n' for name in ("ada", "bob", "Team 1", "adda", "Team 2"))
    (tmp_path / "course.toml").write_text(f"[scaling.extensions]\n{known}")
    assert Course(tmp_path, "scaling", configure(tmp_path)).notices() == [
        "In course.toml there are extensions for nobody of the class: Team 2, adda."
    ]
    (tmp_path / "course.toml").write_text("[scaling]\n[scalling]\ndue = 2026-11-22T00:00:00Z\n")
    (tmp_path / "source/scaling").mkdir(parents=True)
    assert Course(tmp_path, "scaling", configure(tmp_path)).notices() == [
        "In course.toml there are rules for no assignment: scalling."
    ]
