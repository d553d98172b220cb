"""End-to-end tests: the command grades a whole class, in which faulty and malicious submissions harm nobody else."""

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
from test_sanitize import as_formgrader_shows, opened
from thorough import all_but

from grading.__main__ import main
from grading.sandbox import sandbox_error

__all__ = ["opened"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
GRADE = (sys.executable, "-m", "grading")
CODE = ("2. The scale factor for unit variance", "3. A numerically stable softmax", "4. The backward pass of attention")
NO_SANDBOX = sandbox_error()
SECRET = "what-only-the-grader-may-know"
# These submissions exceed a limit of time, memory or disk; test_time_limits and test_sandbox test each limit.
LIMITED = ("endless-loop", "sleeps", "cannot-be-stopped", "eats-memory", "fills-the-disk")
# No other test needs these, and what they do other tests of grading cover.
LATER = (*LIMITED, "half-right", "looks-for-the-reference", "loses-metadata")
OWN_TEST = "test_student_gets_expected_points"
LIMITS = ("--cell-seconds", "10", "--seconds", "240", "--memory", "2.5", "--at-a-time", "3")


class Graded:
    """The course folder after grading, the command's output, and the number of connections to a local server."""

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
    """Grade the students whose own tests are selected and one without a fault; for all other tests the class.

    Students of :data:`LATER` are graded for their own tests only.
    """
    selected = [item for item in request.session.items if "graded" in getattr(item, "fixturenames", ())]
    names = {"right", *(item.callspec.params["name"] for item in selected if item.originalname == OWN_TEST)}
    if any(item.originalname != OWN_TEST for item in selected):
        names |= CLASS.keys() - set(LATER)
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


@pytest.mark.parametrize("name", all_but(CLASS, lambda name: name not in LATER))
def test_student_gets_expected_points(graded, name):
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
    expected = (student.says,) if isinstance(student.says, str) else student.says
    assert [text for text in expected if text not in said] == []
    assert graded.rows["right"]["status"] == "grade by hand", "another submission has done harm"


def test_every_submission_is_in_the_report(graded):
    handed_in = {path.name for path in (graded.folder / "submitted").iterdir()}
    assert set(graded.rows) == handed_in
    assert all(f"\n{name} " in graded.said for name in handed_in)


@pytest.mark.parametrize("name", ["right", "wrong", "empty", "hard-coded", "exception"])
def test_ordinary_submissions_cause_no_timeout(graded, name):
    log = (graded.folder / "report/scaling/logs" / f"{name}.txt").read_text()
    assert "Writing" in log
    assert "Timeout waiting" not in log


def test_no_submission_reaches_the_network(graded):
    assert graded.callers == 0


def test_no_submission_writes_or_deletes_files_outside(graded):
    assert not [place for place in (graded.folder, ROOT, Path("/usr")) if (place / "planted").exists()]
    assert (graded.folder / "gradebook.db").stat().st_size > 0
    assert (ROOT / "lessons_lib/__init__.py").is_file()


def test_feedback_contains_no_hidden_tests(graded):
    pages = {path.parts[-3]: path.read_text() for path in (graded.folder / "feedback").rglob("*.html")}
    assert set(pages) == {name for name, row in graded.rows.items() if row["status"] != "not graded"}
    master = (ROOT / "assignments/source/scaling/scaling.ipynb").read_text()
    secrets = [(graded.folder / "seed").read_text().strip(), "seed=", "cases="]
    assert all(secret in master for secret in secrets[1:])
    assert not [(name, secret) for name, page in pages.items() for secret in secrets if secret in page]


@pytest.mark.skipif(bool(NO_SANDBOX), reason=str(NO_SANDBOX))
def test_submissions_cannot_read_the_graders_environment(graded):
    written = [path for path in graded.folder.rglob("*") if path.suffix in (".ipynb", ".html", ".txt", ".csv")]
    page = graded.folder / "feedback/climbs-out/scaling/scaling.html"
    assert page in written
    assert "PATH=" in page.read_text(), "the submission read no environment at all"
    assert not [path for path in written if SECRET in path.read_text()]


def test_scripts_of_a_submission_do_not_run_in_formgrader_or_feedback(graded, browser, opened):
    autograded = graded.folder / "autograded/plants-scripts/scaling/scaling.ipynb"
    shown = opened(as_formgrader_shows(autograded))
    assert "The mean is" in shown
    assert "seen" in shown, "the sanitised output is missing"
    opened((graded.folder / "feedback/plants-scripts/scaling/scaling.html").read_text())


def test_open_exercise_answered_in_code_is_graded_by_hand(graded):
    assert graded.rows["digs-deep"]["status"] == "grade by hand"
    assert graded.rows["digs-deep"]["6. How sharp must attention be to find a needle?"] == ""
    assert graded.rows["exception"]["status"] == "graded", "an empty answer gets no points automatically"


def test_large_outputs_are_truncated(graded):
    assert (graded.folder / "autograded/shouts/scaling/scaling.ipynb").stat().st_size < 500_000
    assert (graded.folder / "feedback/shouts/scaling/scaling.html").stat().st_size < 1_500_000


def test_ungraded_submissions_have_no_points_in_exports(graded):
    with (graded.folder / "report/scaling/canvas.csv").open() as file:
        canvas = {row["SIS Login ID"]: row["scaling"] for row in csv.DictReader(file)}
    with (graded.folder / "report/scaling/moodle.csv").open() as file:
        moodle = {row["Student"]: row["Grade"] for row in csv.DictReader(file)}
    final = {name: row["points"] if row["status"] == "graded" else "" for name, row in graded.rows.items()}
    assert canvas == {"": "26"} | final
    assert moodle == final
    assert final["right"] == final["quits"] == ""


def test_report_names_students_without_a_place_in_feedback_zip(graded):
    assert (graded.folder / "report/scaling/feedback.zip").is_file()
    assert "Not in feedback.zip, since no zip of submissions had them: " in graded.said


def test_report_has_a_figure(graded):
    assert (graded.folder / "report/scaling/class.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_manual_points_are_reported_and_survive_grading_one_student(graded):
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

    # one file is corrected and graded again; all other results stay the same
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


def test_submitted_files_are_not_changed(graded):
    kept = json.loads((graded.folder / "submitted/copies-a-cell/scaling/scaling.ipynb").read_text())
    assert [cell["id"] for cell in kept["cells"]].count("copied") == 1


def refusal(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["scaling", *arguments])
    return capsys.readouterr().err


def test_main_without_bubblewrap_raises_and_names_the_option(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "assignments/source/scaling", tmp_path / "source/scaling")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(capsys, "--course", str(tmp_path))
    assert "bubblewrap is not installed" in said
    assert "--without-sandbox accepts that" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_main_without_submissions_raises(tmp_path, capsys):
    shutil.copytree(ROOT / "assignments/source/scaling", tmp_path / "source/scaling")
    said = refusal(capsys, "--course", str(tmp_path), "--without-sandbox")
    assert "there is no submission submitted/STUDENT/scaling/scaling.ipynb" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
