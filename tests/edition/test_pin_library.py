"""Tests of tools/pin_library.py: exported notebooks install the commit from which they were made."""

import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from pin_library import library_commit, pin, pin_all, pin_edition, pinned

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "https://github.com/someone/a-fork"
INSTALL = f'%pip install -q "lessons_lib[notebook] @ {ADDRESS}/archive/refs/heads/main.zip"'


def git(folder: Path, *command: str) -> str:
    who = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    return subprocess.run(
        ["git", *who, *command], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


def write(path: Path, first: str = INSTALL) -> None:
    cells = [nbformat.v4.new_markdown_cell(f"See `{INSTALL}`.", id="prose")]
    cells += [nbformat.v4.new_code_cell(source, id=f"code-{i}") for i, source in enumerate([first, f"x = {INSTALL!r}"])]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.fixture
def repository(tmp_path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


@pytest.fixture
def edition(tmp_path) -> Path:
    write(tmp_path / "build/notebooks/book/one.ipynb")
    return tmp_path / "build"


def test_library_commit_is_the_last_change_of_the_library(repository):
    library = commit(repository, "lessons_lib/attention/attention.py", "one = 1")
    commit(repository, "book/text.md", "two")
    assert library_commit(repository) == library
    ranges = commit(repository, "pyproject.toml", "three")
    assert library_commit(repository) == ranges != library


def test_library_commit_in_a_shallow_clone_is_its_only_commit(repository, tmp_path):
    commit(repository, "lessons_lib/attention/attention.py", "one = 1")
    last = commit(repository, "book/text.md", "two")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "shallow")
    assert library_commit(tmp_path / "shallow") == last


def test_library_commit_of_this_repository_has_the_current_library():
    name = library_commit(ROOT)
    if name is None:
        pytest.skip("no git history here")
    assert git(ROOT, "diff", "--stat", name, "HEAD", "--", "lessons_lib", "pyproject.toml") == ""


def test_pinned_changes_only_the_address():
    assert pinned(INSTALL, "c0ffee") == INSTALL.replace("refs/heads/main", "c0ffee")


@pytest.mark.parametrize("source", ["import lessons_lib", INSTALL.replace("main", "other"), f"{INSTALL}\n{INSTALL}"])
def test_pinned_requires_a_cell_that_installs_the_newest_library(source):
    with pytest.raises(ValueError, match=r"must install the library from \.\.\./archive/refs/heads/main.zip, got"):
        pinned(source, "c0ffee")


def test_pin_changes_only_the_first_code_cell(tmp_path):
    path = tmp_path / "one.ipynb"
    write(path)
    before = path.read_text()
    pin(path, "c0ffee")
    lines = [pair for pair in zip(before.split("\n"), path.read_text().split("\n"), strict=True) if len(set(pair)) > 1]
    assert [after for _, after in lines] == [lines[0][0].replace("refs/heads/main", "c0ffee")]
    assert "%pip" in lines[0][0]
    assert "See" not in lines[0][0]


def test_pin_edition_pins_notebooks_and_copies_them_to_the_site(repository, edition):
    name = commit(repository, "lessons_lib/attention/attention.py", "one = 1")
    write(edition / "html/_sources/book/one.ipynb", "the source")
    assert pin_edition(edition, repository) == ""
    assert f"/archive/{name}.zip" in (edition / "notebooks/book/one.ipynb").read_text()
    given = edition / "html/_sources/book/one.ipynb"
    assert given.read_bytes() == (edition / "notebooks/book/one.ipynb").read_bytes()


def test_pin_edition_without_a_site_makes_no_downloads(repository, edition):
    commit(repository, "lessons_lib/attention/attention.py", "one = 1")
    pin_edition(edition, repository)
    assert not (edition / "html").exists()


@pytest.mark.parametrize("name", ["lessons_lib/attention/attention.py", "lessons_lib/new.py"])
def test_pin_all_reports_uncommitted_changes(repository, edition, name):
    made = commit(repository, "lessons_lib/attention/attention.py", "one = 1")
    (repository / name).write_text("two = 2")
    said = pin_all(edition / "notebooks", repository)
    assert made[:10] in said
    assert "Yours differs" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("folder", ["no repository", "no commit"])
def test_pin_all_reports_a_missing_history(repository, edition, tmp_path, monkeypatch, folder):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    said = pin_all(edition / "notebooks", repository if folder == "no commit" else tmp_path)
    assert "no git history" in said
    assert "refs/heads/main" in (edition / "notebooks/book/one.ipynb").read_text()


# --- hand-outs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def released(tmp_path) -> tuple[Path, Path]:
    """A pinned hand-out for students, and the same notebook as a page of the book."""
    pytest.importorskip("nbgrader")
    from release_assignments import hand_out, release

    pages, hand_outs = tmp_path / "pages", tmp_path / "hand-outs"
    release("scaling", pages)
    hand_out(pages, hand_outs)
    return hand_outs / "scaling/scaling.ipynb", pages / "scaling/scaling.ipynb"


def test_hand_out_pins_the_commit(released):
    ours, page = (nbformat.read(path, as_version=4).cells for path in released)
    name = library_commit(ROOT)
    if name is None:
        pytest.skip("no git history here")
    assert f"/archive/{name}.zip" in ours[0].source
    assert ours[1:] == page[1:]


def test_grading_does_not_change_hand_outs(tmp_path):
    pytest.importorskip("nbgrader")
    from release_assignments import ASSIGNMENTS, HAND_OUTS

    from grading.course import Course, configure

    assert HAND_OUTS.parent == ASSIGNMENTS, "hand-outs must be outside of the folders that grading writes"
    shutil.copytree(ASSIGNMENTS / "source/scaling", tmp_path / "source/scaling")
    ours = tmp_path / HAND_OUTS.name / "scaling/scaling.ipynb"
    ours.parent.mkdir(parents=True)
    ours.write_text("pinned")
    Course(tmp_path, "scaling", configure(tmp_path)).load_master()
    assert ours.read_text() == "pinned"
    assert (tmp_path / "release/scaling/scaling.ipynb").is_file()


def test_guide_refers_to_the_pinned_hand_outs():
    from release_assignments import HAND_OUTS

    guide = (ROOT / "assignments/README.md").read_text(encoding="utf-8")
    assert f"Hand out `{HAND_OUTS.relative_to(ROOT)}/scaling/scaling.ipynb`" in guide
    assert f"/assignments/{HAND_OUTS.name}/\n" in (ROOT / ".gitignore").read_text(encoding="utf-8")


def test_mend_accepts_a_pinned_hand_out(released):
    from grading.check_notebook import mend

    ours, page = (nbformat.read(path, as_version=4) for path in released)
    mended, done = mend(ours, page)
    assert done == []
    assert mended == ours
