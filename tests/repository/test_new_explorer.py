"""Tests of ``make explorer``: the files it lays down are imported, formatted, and pass the tests of every explorer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from files import listed
from new_explorer import lay_down

pytest.importorskip("anywidget")

ROOT = Path(__file__).resolve().parents[2]
NAME, MODULE, CLASS = "retrieval-two", "retrieval_two", "RetrievalTwoExplorer"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the repository's files with a new explorer."""
    folder = tmp_path_factory.mktemp("book")
    for name in listed(ROOT, new=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    made = run(folder, "tools/new_explorer.py", NAME)
    assert made.returncode == 0, made.stderr
    paths = [line for line in made.stdout.splitlines() if re.fullmatch(r"\S+\.(py|js)", line)]
    assert len(paths) == 6
    assert all((folder / path).exists() for path in paths)
    return folder


def test_new_explorer_is_imported_from_the_copy_and_draws_a_picture(copy):
    code = f"from lessons_lib.page import widgets; print(widgets.__file__); print(widgets.{CLASS}().to_html())"
    done = run(copy, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(copy))
    assert f'class="explorer x-{MODULE}"' in done.stdout


def test_new_explorer_is_in_the_reading_order(copy):
    done = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "widgets", "tests/repository/test_layers.py")
    assert done.returncode == 0, done.stdout


def test_new_explorer_is_formatted(copy):
    written = [path for path in listed(ROOT, new=True) if path.endswith(("widgets/__init__.py", "widgets/examples.py"))]
    written += [f"lessons_lib/page/widgets/{MODULE}.py", f"tests/page/widgets/test_{MODULE}.py"]
    for command in (("check",), ("format", "--check")):
        done = run(copy, "-m", "ruff", *command, "--no-cache", *written)
        assert done.returncode == 0, done.stdout


@pytest.mark.browser
@pytest.mark.thorough  # a minute
@pytest.mark.parametrize("tests", [f"test_{MODULE}.py", "test_every_explorer.py"])
def test_new_explorer_passes_the_tests_of_every_explorer(copy, tests):
    chosen = ["-k", f"{CLASS} or has_an_example"] if tests == "test_every_explorer.py" else []
    done = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, f"tests/page/widgets/{tests}")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["", "Retrieval", "a_b", "a/b", "-a", "retrieval"])
def test_lay_down_invalid_or_taken_name_raises(name):
    with pytest.raises(ValueError, match="the name must be"):
        lay_down(name)
