"""A whole class is graded in one go by the command that an instructor types; nobody's mischief costs anybody else."""

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from students import CLASS
from test_clean import as_formgrader_shows, opened
from thorough import all_but

from grading.__main__ import main
from grading.sandbox import why_not

__all__ = ["opened"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
GRADE = (sys.executable, "-m", "grading")
CODE = ("2. The right factor", "3. A softmax that survives", "4. The backward pass")
NO_SANDBOX = why_not()
SECRET = "what-only-the-grader-may-know"
# They run into a limit of time, memory or disk, which test_time_limits and test_sandbox look at one by one.
LIMITED = ("endless-loop", "sleeps", "cannot-be-stopped", "eats-memory", "fills-the-disk")
LIMITS = ("--cell-seconds", "10", "--seconds", "240", "--memory", "2.5", "--at-a-time", "3")


class Graded:
    """The course folder after grading, and what was listening meanwhile."""

    def __init__(self, folder: Path, said: str, callers: int):
        self.folder, self.said, self.callers = folder, said, callers
        with (folder / "report/scaling/grades.csv").open() as file:
            self.rows = {row["student"]: row for row in csv.DictReader(file)}


def hand_in(course: Path, port: int, names: set[str]) -> None:
    released = nbformat.read(ROOT / "book/exercises/scaling/scaling.ipynb", as_version=4)
    for name, student in CLASS.items():
        if name not in names or (student.needs_sandbox and NO_SANDBOX):
            continue
        notebook = student.hands_in(released)
        text = notebook if isinstance(notebook, str) else nbformat.writes(notebook)
        file = course / "submitted" / name / "scaling" / "scaling.ipynb"
        file.parent.mkdir(parents=True)
        file.write_text(text.replace("COURSE", str(course)).replace("REPOSITORY", str(ROOT)).replace("PORT", str(port)))
        for other, content in student.beside.items():
            file.with_name(other).write_text(content)


@pytest.fixture(scope="module")
def graded(request, tmp_path_factory) -> Graded:
    """A class without the students of :data:`LIMITED` whose own tests do not run now."""
    run = {item.name for item in request.session.items}
    names = {name for name in CLASS if name not in LIMITED or f"test_everybody_gets_what_they_earned[{name}]" in run}
    if NO_SANDBOX and os.environ.get("REQUIRE_SANDBOX") == "1":
        pytest.fail(NO_SANDBOX)
    course = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "assignments/source/scaling", course / "source/scaling")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        hand_in(course, server.getsockname()[1], names)
        command = [*GRADE, "scaling", "--course", course, *LIMITS]
        command += ["--without-sandbox"] if NO_SANDBOX else []
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GRADERS_TOKEN": SECRET}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-5000:]
        try:
            server.accept()
            callers = 1
        except BlockingIOError:
            callers = 0
    return Graded(course, done.stdout, callers)


@pytest.mark.parametrize("name", all_but(CLASS, lambda name: name not in LIMITED))
def test_everybody_gets_what_they_earned(graded, name):
    student = CLASS[name]
    if student.needs_sandbox and NO_SANDBOX:
        pytest.skip(NO_SANDBOX)
    row = graded.rows[name]
    said = f"{row['why not']} {row['messages']} {row['notes']}"
    if student.points is None:
        assert row["status"] == "not graded"
        assert row["points"] == ""
        assert all(row[title] == "" for title in CODE)
    else:
        assert tuple(float(row[title]) for title in CODE) == student.points, said
        assert row["status"] in ("graded", "grade by hand")
    assert student.says in said


def test_nobody_is_left_out(graded):
    handed_in = {path.name for path in (graded.folder / "submitted").iterdir()}
    assert set(graded.rows) == handed_in
    assert all(f"\n{name} " in graded.said for name in handed_in)


@pytest.mark.parametrize("name", ["right", "wrong", "empty", "hard-coded", "exception"])
def test_who_is_right_or_wrong_has_no_cell_that_waits_for_its_time_to_be_over(graded, name):
    log = (graded.folder / "report/scaling/logs" / f"{name}.txt").read_text()
    assert "Writing" in log
    assert "Timeout waiting" not in log


def test_nobody_called_out(graded):
    assert graded.callers == 0


def test_nothing_was_planted_or_deleted(graded):
    assert not [place for place in (graded.folder, ROOT, Path("/usr")) if (place / "planted").exists()]
    assert (graded.folder / "gradebook.db").stat().st_size > 0
    assert (ROOT / "lessons_lib/__init__.py").is_file()


def test_the_hidden_tests_stay_hidden(graded):
    pages = {path.parts[-3]: path.read_text() for path in (graded.folder / "feedback").rglob("*.html")}
    assert set(pages) == {name for name, row in graded.rows.items() if row["status"] != "not graded"}
    master = (ROOT / "assignments/source/scaling/scaling.ipynb").read_text()
    secrets = [(graded.folder / "seed").read_text().strip(), "seed=", "cases="]
    assert all(secret in master for secret in secrets[1:])
    assert not [(name, secret) for name, page in pages.items() for secret in secrets if secret in page]


@pytest.mark.skipif(bool(NO_SANDBOX), reason=str(NO_SANDBOX))
def test_the_graders_environment_stays_with_the_grader(graded):
    written = [path for path in graded.folder.rglob("*") if path.suffix in (".ipynb", ".html", ".txt", ".csv")]
    page = graded.folder / "feedback/climbs-out/scaling/scaling.html"
    assert page in written
    assert "PATH=" in page.read_text(), "the student saw no environment at all"
    assert not [path for path in written if SECRET in path.read_text()]


def test_nothing_of_a_students_runs_where_it_is_shown_to_whoever_grades(graded, browser, opened):
    autograded = graded.folder / "autograded/plants-scripts/scaling/scaling.ipynb"
    shown = opened(as_formgrader_shows(autograded))
    assert "The mean is" in shown
    assert "seen" in shown, "a cleaned output is left"
    opened((graded.folder / "feedback/plants-scripts/scaling/scaling.html").read_text())


def test_an_exercise_answered_in_code_waits_for_a_person(graded):
    assert graded.rows["digs-deep"]["status"] == "grade by hand"
    assert graded.rows["digs-deep"]["6. How sharp must a search be?"] == ""
    assert graded.rows["exception"]["status"] == "graded", "who has left it all out has no points for it"


def test_nobody_fills_the_graders_disk(graded):
    assert (graded.folder / "autograded/shouts/scaling/scaling.ipynb").stat().st_size < 500_000
    assert (graded.folder / "feedback/shouts/scaling/scaling.html").stat().st_size < 1_500_000


def test_a_course_system_gets_no_zero_for_what_was_not_graded(graded):
    with (graded.folder / "report/scaling/canvas.csv").open() as file:
        canvas = {row["SIS Login ID"]: row["scaling"] for row in csv.DictReader(file)}
    with (graded.folder / "report/scaling/moodle.csv").open() as file:
        moodle = {row["Student"]: row["Grade"] for row in csv.DictReader(file)}
    final = {name: row["points"] if row["status"] == "graded" else "" for name, row in graded.rows.items()}
    assert canvas == {"": "26"} | final
    assert moodle == final
    assert final["right"] == final["quits"] == ""


def test_what_was_not_collected_from_a_zip_is_named_where_the_zip_of_feedback_is(graded):
    assert (graded.folder / "report/scaling/feedback.zip").is_file()
    assert "Not in feedback.zip, since no zip of submissions had them: " in graded.said


def test_there_is_a_picture_of_the_class(graded):
    assert (graded.folder / "report/scaling/class.png").read_bytes().startswith(b"\x89PNG")


def test_points_given_by_hand_reach_the_report_and_stay(graded):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{graded.folder / 'gradebook.db'}") as gradebook:
        for grade in gradebook.find_submission_notebook("scaling", "scaling", "right").grades:
            if grade.needs_manual_grade:
                grade.manual_score, grade.needs_manual_grade = 2, False
        gradebook.db.commit()
    command = [*GRADE, "scaling", "--course", graded.folder]
    subprocess.run([*command, "--report"], check=True, capture_output=True)
    row = Graded(graded.folder, "", 0).rows["right"]
    assert (row["status"], float(row["points"])) == ("graded", 17)

    # one file is corrected and graded again; everybody else keeps what they have
    before = Graded(graded.folder, "", 0).rows
    pages = {path: path.stat().st_mtime_ns for path in (graded.folder / "feedback").rglob("*.html")}
    file = graded.folder / "submitted/quits/scaling/scaling.ipynb"
    file.write_text(file.read_text().replace("os._exit(0)", "pass"))
    only = ["--student", "quits", *(["--without-sandbox"] if NO_SANDBOX else [])]
    subprocess.run([*command, *only], check=True, capture_output=True)
    after = Graded(graded.folder, "", 0).rows
    assert tuple(float(after["quits"][title]) for title in CODE) == (3, 4, 6)
    assert {name: row for name, row in after.items() if name != "quits"} == {
        name: row for name, row in before.items() if name != "quits"
    }
    assert {path: path.stat().st_mtime_ns for path in pages} == pages
    assert (graded.folder / "feedback/quits/scaling/scaling.html").is_file()


def test_the_file_of_the_class_is_left_as_it_was(graded):
    kept = json.loads((graded.folder / "submitted/copies-a-cell/scaling/scaling.ipynb").read_text())
    assert [cell["id"] for cell in kept["cells"]].count("copied") == 1


def refusal(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["scaling", *arguments])
    return capsys.readouterr().err


def test_without_bubblewrap_grading_refuses_and_says_how_to_insist(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "assignments/source/scaling", tmp_path / "source/scaling")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(capsys, "--course", str(tmp_path))
    assert "bubblewrap is not installed" in said
    assert "--without-sandbox accepts that" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_name_that_nobody_handed_in_under_is_an_error(tmp_path, capsys):
    shutil.copytree(ROOT / "assignments/source/scaling", tmp_path / "source/scaling")
    said = refusal(capsys, "--course", str(tmp_path), "--without-sandbox")
    assert "nobody's work is at submitted/STUDENT/scaling/scaling.ipynb" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
