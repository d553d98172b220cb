"""One student under several spellings of the name, in a roster, a folder or an extension; unknown, ambiguous names."""

import json
import unicodedata
from datetime import UTC, datetime

import pytest

pytest.importorskip("nbgrader")
from grading import collect
from grading.course import Course, configure
from grading.names import as_folder, letters, normalise
from grading.report import Exercise, Result, write_report
from grading.roster import AmbiguousNameError, Member, assign_groups, find_member, read_roster

CANVAS = "Student,ID,SIS User ID,SIS Login ID,Section\n"
MOODLE = "Identifier,Full name\n"
ANONYMOUS = "student\n"
DECOMPOSED = "Zoe\u0308 Gru\u0308n"
CASES = {  # the file's name in the course system, the roster's line, and names for an extension
    "Canvas": (
        "doealice_1234_5678_scaling.ipynb",
        CANVAS + '"Doe, Alice",1234,u7,adoe,S\n',
        ["Doe, Alice_id1234", "doealice_id1234", "Doe, Alice", "Alice Doe", "adoe", "doealice"],
    ),
    "Canvas, no roster": ("doealice_1234_5678_scaling.ipynb", "", ["Doe, Alice_id1234", "Doe, Alice", "doealice"]),
    "Indic": (
        "प्रिया शर्मा_11_assignsubmission_file/scaling.ipynb",
        MOODLE + "Participant 11,प्रिया शर्मा\n",
        ["प्रिया शर्मा_id11", "प्रिया शर्मा"],
    ),
    "Thai": (
        "สมชาย ใจดี_12_assignsubmission_file/scaling.ipynb",
        ANONYMOUS + "สมชาย ใจดี\n",
        ["สมชาย ใจดี_id12", "สมชาย ใจดี"],
    ),
    "vowelled Arabic": (
        "مُحَمَّد عَلِيّ_13_assignsubmission_file/scaling.ipynb",
        ANONYMOUS + "مُحَمَّد عَلِيّ\n",
        ["مُحَمَّد عَلِيّ_id13", "مُحَمَّد عَلِيّ"],
    ),
    "decomposed": (
        f"{DECOMPOSED}_14_assignsubmission_file/scaling.ipynb",
        ANONYMOUS + "Zoë Grün\n",
        ["Zoë Grün_id14", DECOMPOSED, "Zoë Grün", f"{DECOMPOSED}_id14"],
    ),
    "apostrophe": (
        "Tim O\u2019Brien_15_assignsubmission_file/scaling.ipynb",
        ANONYMOUS + "Tim O'Brien\n",
        ["Tim O\u2019Brien_id15", "Tim O'Brien", "Tim O\u2019Brien", "Tim O\u02bcBrien"],
    ),
    "comma": (
        "Doe, Alice_16_assignsubmission_file/scaling.ipynb",
        ANONYMOUS + '"Doe, Alice"\n',
        ["Doe, Alice_id16", "Doe, Alice", "Alice Doe"],
    ),
}


@pytest.fixture
def course_of(tmp_path):
    """Collect one file in a course with this roster and these extensions; return the course and the folder."""

    def laid_down(file: str, roster: str, extension: str) -> tuple[Course, str]:
        path = tmp_path / "downloaded/scaling/archive" / file
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        (folder,), _ = collect.collect(tmp_path, "scaling")
        stamp = tmp_path / "submitted" / folder / "scaling/timestamp.txt"
        stamp.write_text("2026-11-22T12:00:00+00:00")
        if roster:
            (tmp_path / "roster.csv").write_text(roster, encoding="utf-8")
        (tmp_path / "course.toml").write_text(
            "[scaling]\ndue = 2026-11-20T23:59:00Z\npercent_per_day = 10\n[scaling.extensions]\n"
            + (f"{json.dumps(extension, ensure_ascii=False)} = 2026-11-27T23:59:00Z\n" if extension else ""),
            encoding="utf-8",
        )
        return Course(tmp_path, "scaling", configure(tmp_path)), folder

    return laid_down


@pytest.mark.parametrize(("case", "extension"), [(case, name) for case in CASES for name in CASES[case][2]])
def test_extension_is_applied_for_every_spelling(course_of, case, extension):
    course, folder = course_of(*CASES[case][:2], extension)
    result = Result()
    course.add_lateness(folder, result)
    assert (result.percent_off, result.hours_late) == (0, 0)
    assert course.notices() == []


@pytest.mark.parametrize("case", CASES)
def test_report_recognises_members_in_every_spelling(course_of, case, tmp_path):
    course, folder = course_of(*CASES[case][:2], "")
    table = write_report(tmp_path, "toy", {folder: Result()}, [Exercise("1. A", {"a": 1})], members=course.members)
    assert "nothing came" not in table
    assert len(table.splitlines()) == 2


def test_extension_for_nobody_gives_a_notice(course_of):
    course, folder = course_of(*CASES["Canvas"][:2], "Doe, Alicia")
    result = Result()
    course.add_lateness(folder, result)
    assert result.percent_off == 20
    assert course.notices() == ["In course.toml there are extensions for nobody of the class: Doe, Alicia."]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["Alice Doe"], "Alice Doe is the name of Alice Doe_id1 and of Alice Doe_id2"),
        (["Alice Doe_id1", "alice doe_id1"], "Alice Doe_id1 and alice doe_id1 are both Alice Doe_id1"),
    ],
)
def test_ambiguous_or_repeated_extension_raises(tmp_path, names, said):
    (tmp_path / "roster.csv").write_text(MOODLE + "Participant 1,Alice Doe\nParticipant 2,Alice Doe\n")
    lines = [f'"{name}" = 2026-11-27T23:59:00Z' for name in names]
    (tmp_path / "course.toml").write_text("\n".join(["[scaling.extensions]", *lines]))
    with pytest.raises(ValueError, match=said):
        Course(tmp_path, "scaling", configure(tmp_path))


def test_find_member_prefers_the_exact_spelling():
    members = [Member("Anna-Bo"), Member("Anna Bo"), Member("annabo", login="x")]
    for member in members:
        assert find_member(member.name, members) is member
    with pytest.raises(AmbiguousNameError, match="Annabo is the name of Anna-Bo and of Anna Bo and of annabo"):
        find_member("Annabo", members)


def test_folder_that_matches_two_members_is_noted(tmp_path):
    (tmp_path / "roster.csv").write_text(MOODLE + "Participant 1,Alice Doe\nParticipant 2,Alice Doe\n")
    (tmp_path / "submitted/Alice Doe/scaling").mkdir(parents=True)
    results = Course(tmp_path, "scaling", configure(tmp_path)).results()
    assert "its owner is not known: Alice Doe is the name of" in results["Alice Doe"].notes[0]


def test_assign_groups_finds_members_in_other_spellings(tmp_path):
    (tmp_path / "groups.csv").write_text(f"student,group\n{DECOMPOSED},A\nTim O\u2019Brien,A\n", encoding="utf-8")
    found = assign_groups([Member("Zoë Grün", "1"), Member("Tim O'Brien", "2")], tmp_path / "groups.csv")
    assert [(one.number, one.group) for one in found] == [("1", "A"), ("2", "A")]


def test_course_named_finds_students_in_other_spellings(course_of):
    course, folder = course_of(*CASES["decomposed"][:2], "")
    assert course.named("Zoë Grün") == course.named(DECOMPOSED) == folder
    assert course.named("nobody") == "nobody"


@pytest.mark.parametrize("name", [name for case in CASES.values() for name in case[2]])
def test_normalise_as_folder_and_letters_are_idempotent(name):
    for change in (normalise, as_folder, letters):
        assert change(change(name)) == change(name)
        assert change(unicodedata.normalize("NFD", name)) == change(name)


GRADES = 'Student,ID,SIS User ID,SIS Login ID,Section,"Week 1, scaling (47)"\n"Grün; Zoë",7,u7,zgruen,S,\n'
SHEET = (
    'Identifier;Full name;Last modified (submission)\r\n"Participant 7";"Zoë Grün";"Friday, 20 November 2026, 11:59"'
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(
    "text",
    [
        GRADES,
        SHEET,
        SHEET.replace(";", "\t"),
        "sep=;\r\n" + SHEET,
        "student;group\nZoë Grün_id7;\n",
        "\n student \nZoë Grün_id7\n",
    ],
)
def test_read_roster_accepts_spreadsheet_formats_and_encodings(text, encoding, tmp_path):
    (tmp_path / "roster.csv").write_bytes(text.encode(encoding))
    (member,), _, came = read_roster(tmp_path / "roster.csv")
    assert (letters(member.name), member.number) == (letters("Grün; Zoë" if text == GRADES else "Zoë Grün"), "7")
    assert came == ({"Zoë Grün_id7": "Friday, 20 November 2026, 11:59"} if "Identifier" in text else {})


@pytest.mark.parametrize("content", [b"PK\x03\x04\0\0\0\x81\x8d", b"\x81\x8d\x8f", b"\xff\xfea"])
def test_read_roster_binary_file_raises(content, tmp_path):
    (tmp_path / "roster.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"^roster\.csv is no text that can be read.*save it as CSV UTF-8"):
        read_roster(tmp_path / "roster.csv")


def test_rules_and_timestamps_are_read_in_other_encodings(tmp_path):
    (tmp_path / "course.toml").write_bytes("# für alle\n[scaling]\ndue = 2026-11-20T00:00:00Z\n".encode("cp1252"))
    stamp = tmp_path / "submitted/ada/scaling/timestamp.txt"
    stamp.parent.mkdir(parents=True)
    stamp.write_text("2026-11-20T10:00:00Z", encoding="utf-16")
    course, result = Course(tmp_path, "scaling", configure(tmp_path)), Result()
    course.add_lateness("ada", result)
    assert (course.rules.due, result.hours_late) == (datetime(2026, 11, 20, tzinfo=UTC), 10)
