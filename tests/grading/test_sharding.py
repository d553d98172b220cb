"""Tests of grading.sharding: joined parts give the same result as grading at once; parts that do not fit raise."""

import csv
import json
import shutil

import pytest

pytest.importorskip("nbgrader")
from nbgrader.api import Gradebook
from students import SCALE
from without_kernel import hand_in, make_course

from grading.__main__ import main
from grading.sharding import Part

# nbgrader adds a submission to its assignment before it adds it to the session
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")

CLASS = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus")


@pytest.mark.parametrize("text", ["0/5", "6/5", "2", "2/0", "a/b", "-1/2", "1/2/3", " 1/2", "1/1000000000"])
def test_part_invalid_text_raises(text):
    with pytest.raises(ValueError, match="a part must be K/N with K from 1 to N, as 2/5, got"):
        Part(text)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 9])
def test_part_of_divides_the_class_evenly(n):
    parts = [Part(f"{k}/{n}").of(reversed(CLASS)) for k in range(1, n + 1)]
    assert sorted(student for part in parts for student in part) == sorted(CLASS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A course in which both parts of the class are graded, and the same class graded at once."""
    course, at_once = (tmp_path_factory.mktemp(name) for name in ("course", "at-once"))
    with pytest.MonkeyPatch.context() as patch:
        for folder in (course, at_once):
            shutil.rmtree(folder)
            folder.mkdir()
            make_course(folder, patch)
            for student in CLASS[:3]:
                hand_in(folder, student, scale=SCALE if student != "bob" else None, came="2026-11-01 00:00 +0000")
            (folder / "submitted/cyd/scaling/scaling.ipynb").write_text("{")
            (folder / "roster.csv").write_text("student\nada\nbob\ncyd\nzoe\n")
        command = ["scaling", "--without-sandbox", "--course"]
        assert main([*command, str(at_once)]) == 0
        assert main([*command, str(course), "--part", "1/2"]) == 0
        assert not (course / "gradebook.db").exists()
        assert not (course / "report/scaling/results.json").exists()
        assert main([*command, str(course), "--part", "2/2"]) == 0
    return course, at_once


@pytest.fixture
def course(graded, tmp_path):
    return shutil.copytree(graded[0], tmp_path / "course")


def command(course) -> list[str]:
    return ["scaling", "--course", str(course), "--join", "--without-sandbox"]


def refusal(course, capsys) -> str:
    """Join parts that cannot be joined; return the error output."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(command(course))
    assert not (course / "gradebook.db").exists(), "a gradebook was written in spite of the error"
    return capsys.readouterr().err


def everything(course) -> dict:
    with (course / "report/scaling/grades.csv").open() as file:
        found: dict = {"rows": list(csv.DictReader(file))}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "attention") as gradebook:
        for submission in gradebook.assignment_submissions("scaling"):
            (notebook,) = submission.notebooks
            found[submission.student_id] = (
                submission.timestamp,
                sorted((one.name, one.auto_score, one.manual_score, one.needs_manual_grade) for one in notebook.grades),
                sorted((one.name, one.auto_comment) for one in notebook.comments),
            )
    for kind in ("autograded", "checked", "feedback"):
        found[kind] = sorted(path.parts[-3] for path in (course / kind).rglob("scaling.*"))
    return found


def test_join_gives_the_same_result_as_grading_at_once(course, graded, capsys):
    assert main(command(course)) == 0
    joined = everything(course)
    assert joined == everything(graded[1])
    assert joined["autograded"] == joined["feedback"] == ["ada", "bob"]
    assert [row["status"] for row in joined["rows"]] == ["graded", "graded", "not graded", "nothing came"]


def test_join_again_keeps_manual_points_to_be_confirmed(course, capsys):
    main(command(course))
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "attention") as gradebook:
        for grade in gradebook.find_submission_notebook("scaling", "scaling", "ada").grades:
            if grade.name == "moments":
                grade.manual_score, grade.needs_manual_grade = 2, False
        gradebook.db.commit()
    main(command(course))
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "attention") as gradebook:
        grade = gradebook.find_grade("moments", "scaling", "scaling", "ada")
        assert (grade.manual_score, grade.needs_manual_grade) == (2, True)


def about(course, folder: str, **changed) -> None:
    """Change the values in a part's ``part.json``."""
    file = course / "parts/scaling" / folder / "part.json"
    said = json.loads(file.read_text())
    for name, value in changed.items():
        said[name] = (said[name] | value) if isinstance(value, dict) else value
    file.write_text(json.dumps(said))


def test_join_missing_part_raises_with_its_command(course, capsys):
    shutil.rmtree(course / "parts/scaling/2-of-2")
    said = refusal(course, capsys)
    assert "part 2/2 is missing: python -m grading scaling --part 2/2" in said
    assert "in no part: bob" in said


def test_join_incomplete_part_raises(course, capsys):
    (course / "parts/scaling/1-of-2/part.json").unlink()
    assert "part 1/2 is missing" in refusal(course, capsys)
    (course / "parts/scaling/2-of-2/part.json").unlink()
    assert "there is no completely graded part" in refusal(course, capsys)


def test_join_overlapping_parts_raise(course, capsys):
    ours = json.loads((course / "parts/scaling/1-of-2/part.json").read_text())["students"]
    about(course, "2-of-2", students={"ada": ours["ada"]})
    assert "ada is in 1-of-2 and in 2-of-2" in refusal(course, capsys)


def test_join_parts_of_different_divisions_raise(course, capsys):
    shutil.copytree(course / "parts/scaling/2-of-2", course / "parts/scaling/2-of-3")
    about(course, "2-of-3", part="2/3")
    assert "the class must be divided once, got parts of 2 and of 3" in refusal(course, capsys)


@pytest.mark.parametrize(
    ("what", "value"),
    [("seed", 3), ("commit", "abc"), ("code", "abc"), ("master", "abc"), ("torch", "1"), ("python", "2"), ("gib", 1.5)],
)
def test_join_different_conditions_raise(what, value, course, capsys):
    about(course, "2-of-2", conditions={what: value})
    said = refusal(course, capsys)
    assert f"the {what} differs: " in said
    assert f"{value} in 2/2" in said


@pytest.mark.parametrize(("place", "what"), [("seed", "seed"), ("source/scaling/scaling.ipynb", "master")])
def test_join_other_seed_or_master_than_here_raises(place, what, course, capsys):
    text = (course / place).read_text()
    (course / place).write_text("31415" if what == "seed" else f"{text} ")
    said = refusal(course, capsys)
    assert f"the {what} differs: " in said
    assert " in 1/2, 2/2; " in said
    assert " in here" in said


def test_join_new_changed_or_removed_submissions_raise(course, capsys):
    hand_in(course, "zoe")
    hand_in(course, "bob", scale=SCALE)
    shutil.rmtree(course / "submitted/ada")
    said = refusal(course, capsys)
    assert "in no part: zoe" in said
    assert "bob's file differs from the one in part 2/2: python -m grading scaling --part 2/2" in said
    assert "in a part, but not (or no longer the file that counts) in submitted/: ada" in said


def test_part_without_a_seed_raises(tmp_path, monkeypatch, capsys):
    make_course(tmp_path, monkeypatch)
    hand_in(tmp_path, "ada")
    (tmp_path / "seed").unlink()
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["scaling", "--course", str(tmp_path), "--part", "1/2", "--without-sandbox"])
    assert "parts must be graded with the same seed, and there is no file" in capsys.readouterr().err
    assert not (tmp_path / "seed").exists()


def test_part_contains_whole_groups(tmp_path, monkeypatch, capsys):
    make_course(tmp_path, monkeypatch)
    for student in ("ada", "bob", "cyd"):
        hand_in(tmp_path, student, scale=SCALE)
    (tmp_path / "roster.csv").write_text("student,group\nada,A\nbob,\ncyd,A\n")
    for k in (1, 2):
        main(["scaling", "--course", str(tmp_path), "--part", f"{k}/2", "--without-sandbox"])
    assert "1 of 2 are in part 1/2" in capsys.readouterr().out
    main(command(tmp_path))
    with (tmp_path / "report/scaling/grades.csv").open() as file:
        assert [row["2. The scale factor for unit variance"] for row in csv.DictReader(file)] == ["3.0"] * 3
