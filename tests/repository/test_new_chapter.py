"""A new chapter's files run and pass the tests of every chapter, but for what only its author can decide."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from files import listed
from new_chapter import lay_down, with_chapter

yaml = pytest.importorskip("yaml")
pytest.importorskip("nbgrader")

ROOT = Path(__file__).resolve().parents[2]
NAME, MODULE = "a-new-one", "a_new_one"
# A chapter is read in some week of the longer courses, and which one is for its author to say.
FOR_ITS_AUTHOR = ("test_the_longer_syllabi_leave_no_chapter_out",)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The repository's files in another folder, a chapter added there."""
    folder = tmp_path_factory.mktemp("book")
    for name in listed(ROOT, new=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    made = run(folder, "tools/new_chapter.py", f"attention/{NAME}")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tests", ["repository/test_repository.py", "chapters/test_exercises.py", "chapters/test_instructors.py"]
)
def test_it_passes_what_every_chapter_must_pass(copy, tests):
    chosen = [] if tests.endswith("test_instructors.py") else ["-k", f"{NAME} or address"]
    leave_out = [word for name in FOR_ITS_AUTHOR for word in ("--deselect", f"tests/{tests}::{name}")]
    done = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *leave_out, f"tests/{tests}")
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_the_chapter_runs(copy):
    nbval = ("-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120")
    done = run(copy, "-m", "pytest", "-q", *nbval, f"book/attention/{NAME}.ipynb", f"book/exercises/{NAME}")
    assert done.returncode == 0, done.stdout


def test_its_checks_pass_right_answers_and_name_the_mistake_in_wrong_ones(copy):
    code = f"""
import runpy
answers = runpy.run_path("tests/checks/answers/{MODULE}.py")
for check, right in answers["RIGHT"].items():
    for answer in right:
        check(answer, seed=1, cases=20)
for check, wrong in answers["WRONG"].items():
    for answer, says in wrong:
        try:
            check(answer)
        except AssertionError as error:
            assert says in str(error), error
        else:
            raise SystemExit("a wrong answer passes")
"""
    done = run(copy, "-c", code)
    assert done.returncode == 0, done.stderr


def test_what_it_writes_is_formatted(copy):
    written = (f"lessons_lib/checks/{MODULE}.py", f"tests/checks/answers/{MODULE}.py")
    for command in (("check",), ("format", "--check")):
        done = run(copy, "-m", "ruff", *command, "--no-cache", *written)
        assert done.returncode == 0, done.stdout


def test_it_says_what_remains(copy):
    again = run(copy, "tools/new_chapter.py", "attention/another")
    assert again.returncode == 0
    assert "weeks" in again.stdout
    assert all((copy / line).exists() for line in again.stdout.splitlines() if line.endswith((".ipynb", ".py", ".md")))


def test_the_first_chapter_of_a_new_part_brings_its_caption():
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    changed = yaml.safe_load(with_chapter(contents, "elsewhere", "patches", "Elsewhere"))["parts"]
    parts = yaml.safe_load(contents)["parts"]
    numbered = [i for i, part in enumerate(parts) if part.get("numbered")]
    (new,) = [part for part in changed if part not in parts]
    assert changed.index(new) == numbered[-1] + 1
    assert [part for part in changed if part is not new] == parts
    assert (new["caption"], new["numbered"]) == ("Elsewhere", 1)
    (chapter,) = new["chapters"]
    assert (chapter["file"], chapter["title"]) == ("book/elsewhere/patches", "Patches")
    assert chapter["sections"] == [{"file": "book/exercises/patches/patches"}]


def test_a_part_that_has_chapters_has_its_caption():
    with pytest.raises(ValueError, match=r"'attention', which has chapters, and caption 'Again'"):
        with_chapter((ROOT / "_toc.yml").read_text(encoding="utf-8"), "attention", "more", "Again")


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("", "must read PART/NAME"),
        ("scaling", "must read PART/NAME"),
        ("attention/Scaling", "must read PART/NAME"),
        ("../attention/x", "must read PART/NAME"),
        ("nowhere/new", "must be one that has chapters .* got 'nowhere', which has none"),
        ("attention/scaling", "must be new, got 'scaling'"),
        ("training/scaling", "must be new, got 'scaling'"),
        ("attention/build-flash", "must be new, got 'build-flash'"),
    ],
)
def test_a_wrong_place_is_refused_and_nothing_is_written(place, rule):
    before = (ROOT / "_toc.yml").read_bytes(), sorted((ROOT / "book").rglob("*.ipynb"))
    with pytest.raises(ValueError, match=rule):
        lay_down(place)
    assert before == ((ROOT / "_toc.yml").read_bytes(), sorted((ROOT / "book").rglob("*.ipynb")))
