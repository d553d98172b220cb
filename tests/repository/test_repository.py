"""Tests of the repository's conventions: notebooks without outputs, one address, consistent pins, existing commands."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from files import listed
from set_repository import defined_address, set_address

ROOT = Path(__file__).resolve().parents[2]

NOTEBOOKS = sorted(p for top in ("book", "assignments/source") for p in (ROOT / top).rglob("*.ipynb"))
INSTALL = """\
try:
    import lessons_lib
except ImportError:  # on Colab
    %pip install -q "lessons_lib[notebook] @ {address}/archive/refs/heads/main.zip\""""


def code_cells(notebook: Path) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def text(cell: dict) -> str:
    return "".join(cell["source"])


def tracked() -> list[Path]:
    return [ROOT / name for name in listed(ROOT)]


def test_notebooks_are_found():
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_have_no_outputs(notebook):
    dirty = [cell["id"] for cell in code_cells(notebook) if cell["outputs"] or cell["execution_count"] is not None]
    assert not dirty, f"clear the outputs of {notebook.name}, cells {dirty}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_code_cells_are_short(notebook):
    long = {cell["id"]: text(cell).count("\n") + 1 for cell in code_cells(notebook)}
    assert max(long.values()) <= (12 if "book/exercises" not in str(notebook) else 30), long


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_plot_cells_suppress_their_return_value(notebook):
    """A return value would be a second output, and the caption and the figure's name would occur twice."""
    of_plots = [cell for cell in code_cells(notebook) if "figure" in cell["metadata"].get("mystnb", {})]
    open_ended = [cell["id"] for cell in of_plots if re.search(r"^plots\.", text(cell), re.M) and text(cell)[-1] != ";"]
    assert not open_ended


CHAPTERS = [path for path in NOTEBOOKS if path.parts[-3:-1] != ("source", path.stem) and path.name != "header.ipynb"]


@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda p: p.stem)
def test_first_code_cell_installs_the_library_on_colab(notebook):
    assert text(code_cells(notebook)[0]) == INSTALL.format(address=defined_address())


def test_assignment_header_installs_the_library_on_colab():
    header = ROOT / "assignments/source/header.ipynb"
    assert text(code_cells(header)[0]) == INSTALL.format(address=defined_address())


def test_every_mention_of_the_repository_has_the_defined_address():
    ours = re.compile(r"https://github\.com/[\w-]+/attention-book\b")
    for path in tracked():
        if path.suffix in {".md", ".yml", ".ipynb", ".toml", ".cff", ".py", ".txt"} and path.exists():
            assert set(ours.findall(path.read_text())) <= {defined_address()}, path


@pytest.mark.parametrize("history", [True, False], ids=["a clone", "a downloaded folder"])
def test_set_address_changes_the_address_everywhere(tmp_path, history):
    copy = tmp_path / "book"
    for path in tracked():
        if path.suffix in {".md", ".yml", ".ipynb", ".toml", ".cff"} or path.name == ".gitignore":
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    if history and shutil.which("git") is None:
        pytest.skip("no git here")
    if history:
        subprocess.run(["git", "init", "-q", copy], check=True)
        subprocess.run(["git", "add", "-A"], cwd=copy, check=True)
    old, new = defined_address(copy), "https://github.com/someone/some.fork"

    changed = set_address(new + ".git", copy)

    assert {"_config.yml", "README.md", "CITATION.cff", "book/run.md", "book/explorers.ipynb"} <= set(changed)
    assert defined_address(copy) == new
    leftovers = [p for p in copy.rglob("*") if p.is_file() and ".git" not in p.parts and old in p.read_text()]
    assert not leftovers
    assert set_address(new, copy) == []


@pytest.mark.parametrize("wrong", ["", "github.com/a/b", "https://github.com/a", "https://example.org/a/b"])
def test_set_address_invalid_address_raises(wrong):
    with pytest.raises(ValueError, match="must read https://github"):
        set_address(wrong)


def test_listed_without_git_follows_gitignore(tmp_path):
    for name in (
        ".gitignore",
        "book/a.md",
        "_build/html/a.html",
        "book/__pycache__/a.pyc",
        "x.egg-info/PKG",
        "node_modules/a",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    assert listed(tmp_path) == listed(tmp_path, new=True) == [".gitignore", "book/a.md"]


def test_set_repository_sets_the_address_with_the_standard_library_only(tmp_path):
    for name in ("tools/set_repository.py", "tools/files.py", "_config.yml", ".gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    address = "https://github.com/me/my-fork"
    command = [sys.executable, "-S", "tools/set_repository.py", address]  # -S: no installed packages
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "The address was changed in these files. Commit them and push."
    assert defined_address(tmp_path) == address


def test_pins_are_exact_and_cover_the_dependencies():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    pins = [line.split(";")[0] for line in lines if line]
    assert pins[-1] == "-e ."
    assert all(re.fullmatch(r"[\w.\[\]-]+==[\w.]+", pin) for pin in pins[:-1]), pins
    pinned = {re.split(r"[\[=]", pin)[0].lower() for pin in pins[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["notebook"]
    assert {re.split(r"[<>=~]", want)[0] for want in wanted} <= pinned


def test_readme_commands_exist():
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^\s*make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"book", "test"} <= named <= rules


def test_ci_checks_and_runs_all_tests():
    script = (ROOT / ".ci/run").read_text()
    assert re.findall(r"^make .*$", script, re.MULTILINE) == ["make check", "make test", "make test-all"]
    assert "REQUIRE_BROWSER=1" in script
    assert "REQUIRE_FIREFOX=1" in script
