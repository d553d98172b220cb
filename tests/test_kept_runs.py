"""The book is built of the runs that nbval tested: what they put out is kept, unless a cell failed or code changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbval")
pytest.importorskip("jupyter_cache")

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("tools/build_book.py", "tools/pin_library.py", "tools/set_repository.py")
NEEDED = ("book/conftest.py", *TOOLS, "_config.yml", "pyproject.toml")
# Every kind of output, one that is silenced, and a number that no other run draws.
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
import build_book
from jupyter_cache import get_cache
from pathlib import Path
if __name__ == "__main__":
    build_book.run_notebooks(Path("."))
    cache = get_cache("_build/.jupyter_cache")
    for record in cache.list_cache_records():
        nb = cache.get_cache_bundle(record.pk).nb
        print(json.dumps([Path(record.uri).stem, [c.get("outputs", []) for c in nb.cells], nb.metadata]))
"""


def notebook(*cells: str):
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


@pytest.fixture(scope="module")
def tested(tmp_path_factory) -> Path:
    """A small book beside the files of this one that run it; its notebooks have been run by nbval."""
    folder = tmp_path_factory.mktemp("tested")
    for name in NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "requirements.txt").write_text("")
    (folder / "lessons_lib").mkdir()
    nbformat.write(notebook(*CELLS), folder / "book/good.ipynb")
    nbformat.write(notebook(*CELLS[:1], FAILS_WHEN_TESTED), folder / "book/fails.ipynb")
    python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "book")
    return folder


@pytest.fixture
def book(tested, tmp_path) -> Path:
    """A copy for one test."""
    return Path(shutil.copytree(tested, tmp_path / "book"))


def python(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"UNDER_TEST": "1"} if "pytest" in command else {}
    environment.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def built(folder: Path) -> dict[str, tuple[list, dict]]:
    """What the build would show: outputs by cell, and metadata, by the notebook's name."""
    (folder / "run.py").write_text(RUN)
    return {name: (outputs, about) for name, outputs, about in map(json.loads, python(folder, "run.py").splitlines())}


def test_the_build_shows_the_run_that_was_tested(book):
    ran = nbformat.read(book / "_build/tested/book/good.ipynb", 4)
    outputs, about = built(book)["good"]
    assert outputs == [cell.outputs for cell in ran.cells]
    assert [output["output_type"] for output in outputs[1]] == ["stream", "display_data", "execute_result"]
    assert about["language_info"]["pygments_lexer"] == "ipython3"


def test_a_run_that_is_kept_is_like_one_of_the_build(book):
    (kept, about) = built(book)["good"]
    shutil.rmtree(book / "_build")
    (fresh, fresh_about) = built(book)["good"]
    assert kept[0] != fresh[0]  # another number
    assert kept[1:] == fresh[1:]
    assert kept[2] == []
    assert about == fresh_about


def test_what_failed_is_not_kept_and_runs_in_the_build(book):
    assert not (book / "_build/tested/book/fails.ipynb").exists()
    assert built(book)["fails"][0][1] == []


def test_what_has_changed_since_is_run_again(book):
    nbformat.write(notebook(*CELLS[:1], "'something else'"), book / "book/good.ipynb")
    outputs, _ = built(book)["good"]
    assert outputs[1][0]["data"]["text/plain"] == "'something else'"


def test_what_was_kept_is_forgotten_when_the_library_changes(book):
    (book / "lessons_lib/new.py").write_text("")
    forget = "import sys; sys.path.insert(0, 'tools'); import build_book; build_book.forget_stale_outputs()"
    python(book, "-c", forget)
    assert not (book / "_build/tested").exists()
