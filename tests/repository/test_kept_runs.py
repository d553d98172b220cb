"""Tests of tools/runs.py and book/conftest.py: the build reuses the runs that nbval has tested.

A run is stored unless a cell failed or the code changed. A notebook with a stored run is not tested again. The build
runs notebooks without a stored run, and reports a failing notebook with its cell and error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbval")
build_book = pytest.importorskip("build_book")
runs = pytest.importorskip("runs")

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("build_book", "dependencies", "pin_library", "runs", "set_repository")
NEEDED = ("book/conftest.py", *(f"tools/{name}.py" for name in TOOLS), "_config.yml", "pyproject.toml")
# Every kind of output, a suppressed one, and a number that is different in every run.
CELLS = (
    "import uuid\nfrom IPython.display import HTML, display\nprint(uuid.uuid4())",
    "import sys\nprint('to the side', file=sys.stderr)\ndisplay(HTML('<b>bold</b>'))\n{1: 2}",
    "'silenced';",
    "",
)
FAILS_WHEN_TESTED = "import os\nassert 'UNDER_TEST' not in os.environ"
RUN = """
import json, sys
sys.path.insert(0, "tools")
from pathlib import Path
from runs import run_notebooks
if __name__ == "__main__":
    if not run_notebooks(Path(".").resolve()):
        sys.exit(1)
    for name, place in json.loads(Path("_build/runs.json").read_text()).items():
        ran = json.loads(Path(place).read_text())
        print(json.dumps([Path(name).stem, [cell["outputs"] for cell in ran["cells"]], ran["metadata"]]))
"""


def notebook(*cells: str):
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


@pytest.fixture(scope="module")
def tested(tmp_path_factory) -> Path:
    """A small book with this repository's tools, whose notebooks have been run by nbval."""
    folder = tmp_path_factory.mktemp("tested")
    for name in NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "requirements.txt").write_text("")
    (folder / "lessons_lib").mkdir()
    for name in ("__init__", "one", "other"):
        (folder / f"lessons_lib/{name}.py").write_text("")
    nbformat.write(notebook(*CELLS), folder / "book/good.ipynb")
    nbformat.write(notebook(*CELLS[:1], FAILS_WHEN_TESTED), folder / "book/fails.ipynb")
    run_tests(folder)
    return folder


@pytest.fixture
def book(tested, tmp_path) -> Path:
    """A copy of the book for one test."""
    return Path(shutil.copytree(tested, tmp_path / "book"))


def python(folder: Path, *command: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(folder)}  # the library in that folder, not this one
    environment |= {"UNDER_TEST": "1"} if "pytest" in command else {}
    environment.pop("PYTEST_CURRENT_TEST", None)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run_tests(folder: Path) -> str:
    """Run the notebooks as ``make test`` does; return what pytest prints last."""
    nbval = ("--nbval-lax", "--nbval-current-env")
    return python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nbval, "book").stdout.splitlines()[-1]


def build(folder: Path) -> subprocess.CompletedProcess:
    (folder / "run.py").write_text(RUN)
    return python(folder, "run.py")


def built(folder: Path) -> dict[str, tuple[list, dict]]:
    """Build the book; return the outputs of each cell and the metadata, by the notebook's name."""
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return {name: (outputs, about) for name, outputs, about in map(json.loads, done.stdout.splitlines())}


def stored(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "_build/outputs/book" / name).glob("*.ipynb"))


def test_build_shows_the_tested_run(book):
    (ran,) = (json.loads(path.read_text()) for path in stored(book, "good"))
    outputs, about = built(book)["good"]
    assert outputs == [cell["outputs"] for cell in ran["cells"]]
    assert [output["output_type"] for output in outputs[1]] == ["stream", "display_data", "execute_result"]
    assert about["language_info"]["pygments_lexer"] == "ipython3"


def test_stored_notebook_is_tested_again_only_after_a_change(book):
    assert re.match(r"1 failed, 1 passed, 4 deselected in", run_tests(book))
    nbformat.write(notebook(*CELLS[:3]), book / "book/good.ipynb")
    assert re.match(r"1 failed, 4 passed in", run_tests(book))


@pytest.mark.thorough
def test_stored_run_equals_a_run_of_the_build(book):
    (kept, about) = built(book)["good"]
    shutil.rmtree(book / "_build")
    (fresh, fresh_about) = built(book)["good"]
    assert kept[0] != fresh[0]  # another number
    assert kept[1:] == fresh[1:]
    assert kept[2] == []
    assert about == fresh_about


@pytest.mark.thorough
def test_failed_notebook_is_not_stored_and_runs_in_the_build(book):
    assert stored(book, "fails") == []
    assert built(book)["fails"][0][1] == []


@pytest.mark.thorough
def test_changed_notebook_runs_again(book):
    nbformat.write(notebook(*CELLS[:1], "'something else'"), book / "book/good.ipynb")
    outputs, _ = built(book)["good"]
    assert outputs[1][0]["data"]["text/plain"] == ["'something else'"]


def test_changed_module_runs_only_dependent_notebooks(book):
    nbformat.write(notebook(*CELLS[:1], "import lessons_lib.one"), book / "book/imports.ipynb")
    before = built(book)
    (book / "lessons_lib/one.py").write_text("X = 2")
    (book / "lessons_lib/other.py").write_text("X = 2")
    after = built(book)
    assert {name for name in before if before[name] != after[name]} == {"imports"}


@pytest.mark.thorough
def test_change_during_a_run_is_an_error(book):
    edits = "import pathlib, lessons_lib.one\npathlib.Path(lessons_lib.one.__file__).write_text('X = 3')"
    nbformat.write(notebook(edits), book / "book/edits.ipynb")
    done = build(book)
    assert done.returncode == 1
    assert "book/edits.ipynb failed" in done.stderr
    assert "was changed while it ran" in done.stderr
    assert stored(book, "edits") == []
    assert "edits" in built(book), "the second run must succeed"


@pytest.mark.thorough
def test_failing_notebook_is_reported_and_others_are_stored(book):
    counts = "n = open('count', 'a').write('x')\nassert n == 2, 'one,\\ntwo'"
    broken = notebook(*CELLS[:1], counts)
    nbformat.write(broken, book / "book/broken.ipynb")
    done = build(book)
    assert done.returncode == 1
    reported = done.stderr[done.stderr.index("book/broken.ipynb failed") :].splitlines()
    assert reported[:4] == [
        f"book/broken.ipynb failed in cell {broken.cells[1].id}, which is cell 2 of 2:",
        "    assert n == 2, 'one,\\ntwo'",
        "    AssertionError: one,",
        "    two",
    ]
    assert reported[-1] == "The book was not built. What failed is named above: broken."
    assert (book / "book/count").read_text() == "x", "it ran more than once"
    assert len(stored(book, "fails")) == 1
    assert not (book / "_build/runs.json").exists()


@pytest.mark.thorough
def test_run_jupyter_book_failing_notebook_builds_nothing(book, monkeypatch):
    monkeypatch.setattr(build_book, "run_notebooks", lambda source: False)
    monkeypatch.setattr(build_book.subprocess, "run", lambda *_, **__: pytest.fail("Sphinx was started"))
    assert build_book.run_jupyter_book(book) == 1


@pytest.mark.thorough
def test_old_runs_are_removed(book):
    for number in range(runs.KEPT + 2):
        path = book / "_build/outputs/book/good" / f"{number}.ipynb"
        path.write_text("{}")
        os.utime(path, (number, number))
    nbformat.write(notebook("1"), book / "book/good.ipynb")
    built(book)
    assert len(stored(book, "good")) == runs.KEPT
