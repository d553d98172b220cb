"""Tests of grading.formgrader: model answers and remarks are in Formgrader, and in nothing that students get."""

import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from nbconvert.exporters import HTMLExporter
from nbgrader.apps import NbGraderAPI
from nbgrader.server_extensions.formgrader import handlers
from students import SCALE
from traitlets.config.loader import PyFileConfigLoader
from without_kernel import hand_in, make_course

from grading.__main__ import main
from grading.formgrader import AddModelAnswers, is_graded_by_hand, model_answers, read_remarks
from grading.sanitize import Sanitize

# nbgrader adds a submission to its assignment before it adds it to the session
pytestmark = pytest.mark.filterwarnings("ignore:Object of type <Submitted")

ROOT = Path(__file__).resolve().parents[2]
MASTERS = sorted((ROOT / "assignments/source").glob("*/*.ipynb"))
SCALING = ROOT / "assignments/source/scaling/scaling.ipynb"
MODEL = "The mean is the same for all keys of this query."  # of the model answer to the first question
SCHEME = "1 for the mean and variance in (a)"
REMARK = "only the keys are random"


def nbgrader_config(course: Path):
    """Return nbgrader's configuration as Formgrader and nbgrader's commands read it, for another course folder."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "assignments")).load_config()
    config.CourseDirectory.root = config.AddModelAnswers.course = str(course)
    return config


def shown_by_formgrader(notebook, course: Path, **resources) -> str:
    """Return the page that Formgrader shows; it sets these two options and these resources itself."""
    config = nbgrader_config(course)
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    given = {"base_url": "", "index": 0, "total": 1, "notebook_path": "x", "submission_id": "a1"}
    given |= {"assignment_id": "scaling", "notebook_id": "scaling"} | resources
    return HTMLExporter(config=config).from_notebook_node(notebook, given)[0]


@pytest.fixture(scope="module")
def released():
    return nbformat.read(ROOT / "book/exercises/scaling/scaling.ipynb", as_version=4)


@pytest.fixture(scope="module")
def page(released) -> str:
    return shown_by_formgrader(released, ROOT / "assignments")


def test_formgrader_shows_model_answer_and_points_folded_above_each_answer(page):
    assert page.count('<details class="model">') == 3
    for text in (MODEL, SCHEME, "needle_share"):
        assert text in page
    assert "BEGIN SOLUTION" not in page
    assert page.index("Exercise 1.") < page.index(MODEL)
    assert page.index(MODEL) < page.index('id="moments-comment"')
    assert "back_to_p" not in page, "model answers that are graded by machine are not shown"


def test_model_answer_has_the_numbers_of_the_course(tmp_path):
    (tmp_path / "source").symlink_to(ROOT / "assignments/source")
    (tmp_path / "course.toml").write_text("numbers = 2027")
    names = {"assignment_id": "multi-head", "notebook_id": "multi-head"}
    released = nbformat.read(ROOT / "book/exercises/multi-head/multi-head.ipynb", as_version=4)
    pages = [shown_by_formgrader(released, course, **names) for course in (ROOT / "assignments", tmp_path)]
    assert [page.count("= 41\\,943\\,040$;") for page in pages] == [1, 0]
    assert not [page for page in pages if "{{h}}" in page]


def test_every_model_answer_has_its_scheme_of_points():
    for path in MASTERS:
        master = nbformat.read(path, as_version=4)
        models = model_answers(master)
        assert list(models) == [cell.metadata.nbgrader.grade_id for cell in master.cells if is_graded_by_hand(cell)]
        without = [name for name, cells in models.items() if "*Points:*" not in cells[-1].source]
        assert without == [], path.stem


@pytest.mark.parametrize("resources", [{"assignment_id": "nobody's"}, {"notebook_id": "other"}])
def test_formgrader_without_a_master_shows_the_notebook(released, resources):
    html = shown_by_formgrader(released, ROOT / "assignments", **resources)
    assert "The variance of a dot product" in html
    assert '<details class="model">' not in html


def test_pages_that_formgrader_does_not_show_stay_unchanged(released):
    preprocessor = AddModelAnswers(course=str(ROOT / "assignments"))
    about = {"assignment_id": "scaling", "notebook_id": "scaling"}
    assert preprocessor.preprocess(released, dict(about))[0] == released
    assert preprocessor.preprocess(nbformat.from_dict(released), about | {"submission_id": "a"})[0] != released


def test_nothing_that_a_student_receives_has_a_model_answer(tmp_path, monkeypatch, capsys):
    """Not the feedback of this package, nor that of nbgrader's own command with the configuration of Formgrader."""
    make_course(tmp_path, monkeypatch)
    (tmp_path / "remarks.toml").write_text((ROOT / "assignments/remarks.toml").read_text())
    hand_in(tmp_path, "Ada_id1", scale=SCALE, moments="It is zero.")
    (tmp_path / "submitted/Ada_id1/scaling/came.json").write_text(
        '{"as": "Ada_1_assignsubmission_file", "late": false}'
    )
    assert main(["scaling", "--course", str(tmp_path), "--without-sandbox"]) == 0
    graded = nbformat.read(tmp_path / "autograded/Ada_id1/scaling/scaling.ipynb", as_version=4)
    shown = shown_by_formgrader(graded, tmp_path)
    secrets = [MODEL, SCHEME, REMARK]
    assert all(secret in shown for secret in secrets), "Formgrader must show them"

    def received() -> dict[str, str]:
        folders = ("release", "checked", "autograded", "feedback", "report")
        files = {path for folder in folders for path in (tmp_path / folder).rglob("*") if path.is_file()}
        texts = {path.name: path.read_text() for path in files if path.suffix in (".ipynb", ".html", ".csv", ".txt")}
        with zipfile.ZipFile(tmp_path / "report/scaling/feedback.zip") as archive:
            return texts | {name: archive.read(name).decode() for name in archive.namelist()}

    assert {"scaling.html", "Ada_1_assignsubmission_file/scaling.html", "scaling.ipynb"} <= set(received())
    assert [name for name, text in received().items() if any(secret in text for secret in secrets)] == []
    config = nbgrader_config(tmp_path)
    config.CourseDirectory.db_url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    page = tmp_path / "feedback/Ada_id1/scaling/scaling.html"
    page.unlink()
    assert NbGraderAPI(config=config).generate_feedback("scaling", "Ada_id1")["success"]
    assert "It is zero." in page.read_text()
    assert [name for name, text in received().items() if any(secret in text for secret in secrets)] == []
    assert not list(tmp_path.glob("release/**/remarks*"))


def test_a_student_cannot_add_remarks_or_a_model_answer(released):
    cell = next(cell for cell in nbformat.from_dict(released).cells if cell.id == "moments")
    cell.source = '<div class="remarks" data-cell="moments"><button data-text="Full marks">x</button></div>\n\n' + (
        '<details class="model"><summary>Model answer and points</summary>all mine</details>'
    )
    made = nbformat.v4.new_notebook(cells=[cell])
    html = shown_by_formgrader(Sanitize().preprocess(made, {})[0], ROOT / "assignments")
    assert html.count('<div class="remarks"') == html.count('<details class="model"') == 1
    assert "all mine" in html


@pytest.mark.browser
def test_click_on_a_remark_appends_it_to_the_comment_and_saves(page, browser):
    tab = browser.new_page()
    tab.route("**/*", lambda route: route.abort())
    tab.set_content(page, wait_until="load")
    tab.evaluate(
        "document.addEventListener('change', (event) => { window.saved = [event.target.id, event.target.value]; })"
    )
    assert tab.locator("details.model").first.evaluate("one => one.open") is False
    remarks = tab.locator(".panel-footer .remarks[data-cell=moments]")
    assert remarks.count() == 1
    tab.locator("#moments-comment").fill("Good.")
    remarks.get_by_text(REMARK).click()
    first = "In (b), $q$ is fixed, so it is a constant: only the keys are random."
    assert tab.evaluate("window.saved") == ["moments-comment", f"Good.\n\n{first}"]
    remarks.get_by_text("Correct and complete.").click()
    assert tab.locator("#moments-comment").input_value() == f"Good.\n\n{first}\n\nCorrect and complete."
    assert tab.locator("#eigenvalues-comment").input_value() == ""
    tab.close()


def test_remarks_name_cells_that_are_graded_by_hand():
    path = ROOT / "assignments/remarks.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert len(table) >= 3
    assert 3 <= len(read_remarks(path, "nobody's")["every"]) <= 5
    for name in sorted(set(table) - {"every"}):
        models = model_answers(nbformat.read(ROOT / f"assignments/source/{name}/{name}.ipynb", as_version=4))
        assert set(table[name]) == set(models), name
        assert {answer: len(some) for answer, some in table[name].items() if not 3 <= len(some) <= 5} == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[scaling]\nmoments = "one"', r"remarks.toml, \[scaling\]: moments must be a list of texts"),
        ("[every]\nanswer = [1]", r"remarks.toml, \[every\]: answer must be a list of texts"),
        ('scaling = "one"', r"remarks.toml, \[scaling\]:  must be a list of texts"),
        ("[scaling", "Expected"),
    ],
)
def test_read_remarks_invalid_file_raises_and_formgrader_still_works(text, says, tmp_path, released):
    (tmp_path / "remarks.toml").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_remarks(tmp_path / "remarks.toml", "scaling")
    (tmp_path / "source").symlink_to(ROOT / "assignments/source")
    html = shown_by_formgrader(released, tmp_path)
    assert MODEL in html
    assert "<button" in html
    assert 'class="remarks"' not in html


def test_read_remarks_without_a_file_gives_none(tmp_path):
    assert read_remarks(tmp_path / "remarks.toml", "scaling") == {}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_read_remarks_in_the_encodings_of_editors(encoding, tmp_path):
    (tmp_path / "remarks.toml").write_text('[scaling]\nmoments = ["Für alle Schlüssel gleich."]\n', encoding=encoding)
    assert read_remarks(tmp_path / "remarks.toml", "scaling")["moments"] == ["Für alle Schlüssel gleich."]
