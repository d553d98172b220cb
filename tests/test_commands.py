"""The commands mean the same wherever they are written: Makefile, README without make, and the lanes of the tests."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run_tests
from run_tests import ALL_ELSE, CHAPTERS, QUICK, SHAPES, SLOW, TEST, Lane, Running, run

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
README = (ROOT / "README.md").read_text()


def recipe(target: str) -> list[str]:
    """What make runs for a target, as Python's arguments."""
    found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.removeprefix("$(PY) ") for line in found[1].replace("\t", "").splitlines()]


def test_without_make_the_readme_runs_what_make_runs():
    spelled_out = dict(
        reversed(pair) for pair in re.findall(r"^\.venv\\Scripts\\python (\S+) +# make (\w+)$", README, re.MULTILINE)
    )
    assert set(spelled_out) == {"book", "test"}
    for target, script in spelled_out.items():
        assert recipe(target) == [script]
        assert (ROOT / script).exists()


def test_without_make_the_readme_sets_up_what_make_sets_up():
    (arguments,) = re.findall(r"^\.venv\\Scripts\\python (-m pip install .*)$", README, re.MULTILINE)
    by_make = re.sub(r" --disable-pip-version-check| --progress-bar on", "", "\n".join(recipe("$(VENV)/.ready")))
    assert arguments in by_make.splitlines()
    assert re.search(r"^py -m venv \.venv$", README, re.MULTILINE)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_repairs_an_environment_that_was_interrupted_before_it_had_pip(tmp_path):
    """Ctrl-C while ``python -m venv`` runs leaves a Python without pip."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "pyproject.toml").write_text("")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    alone = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MAKEFLAGS"}}
    make = ["make", f"PYTHON={sys.executable}", ".venv/.ready"]
    done = subprocess.run(make, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv/.ready").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: path.name)
def test_every_file_of_tests_is_in_one_lane_of_each_command(path):
    name = path.relative_to(ROOT).as_posix()
    assert len([lane for lane in TEST if covers(lane, name)]) == 1
    of_what_is_left = [lane for lane in ALL_ELSE if covers(lane, name)]
    assert len(of_what_is_left) == 1
    assert of_what_is_left[0].options.count("-m") == 1 or "thorough" in of_what_is_left[0].options


@pytest.mark.parametrize("path", sorted((ROOT / "book").rglob("*.ipynb")), ids=lambda path: path.name)
def test_every_notebook_is_run_by_one_of_the_two_commands(path):
    name = path.relative_to(ROOT).as_posix()
    (lane,) = (lane for lane in (*TEST, *ALL_ELSE) if "--nbval-lax" in lane.options and covers(lane, name))
    assert (lane in TEST) == ("exercises" not in path.parts)


def test_the_book_is_built_of_the_tested_notebooks_before_the_site_is_tested():
    lanes = {lane.name: lane for lane in TEST}
    assert lanes["book"].command == ("tools/build_book.py",)
    assert lanes["book"].after == tuple(name for name in lanes if name.startswith("notebooks"))
    assert lanes["site"].after == ("book",)


def covers(lane: Lane, name: str) -> bool:
    above = {name, *(str(parent) for parent in Path(name).parents)}
    return bool(above & set(lane.paths)) and not any(f"--ignore={folder}" in lane.options for folder in above)


def test_shapes_are_executed_where_the_library_is_tested_first():
    shaped = [lane for lane in TEST if SHAPES in lane.options]
    for path in ("tests/test_attention.py", "tests/flash/test_tiled.py", "tests/checks/test_every_check.py"):
        assert any(covers(lane, path) for lane in shaped)
    assert not [option for lane in ALL_ELSE for option in lane.options if option.startswith("--jaxtyping")]


@pytest.mark.parametrize("path", [*SLOW, *CHAPTERS])
def test_what_is_named_exists(path):
    assert (ROOT / path).exists()


def test_make_test_all_runs_what_make_test_leaves_out():
    assert recipe("test-all") == [f"{command} --all-else" for command in recipe("test")]


def test_the_quick_command_lints_and_tests_modules_of_the_library_once():
    assert ("-m", "ruff", "check", ".") in [lane.command for lane in QUICK]
    tested = [path for lane in QUICK for path in lane.paths]
    assert len(tested) == len(set(tested)) > 30
    assert {"tests/test_attention.py", "tests/test_efficient_linear.py"} < set(tested)
    assert not {"tests/test_huggingface.py", "tests/test_repository.py"} & set(tested)


# --- the runner -----------------------------------------------------------------------------------------------------


def says(text: str, status: int = 0, after: tuple[str, ...] = (), wait_for: Path | None = None, **environment) -> Lane:
    """A lane that says a text, and ends when a file is there."""
    code = f"import os, sys, time; print({text!r}, os.environ.get('WHERE', '-'))"
    if wait_for:
        code += f"\nwhile not os.path.exists({str(wait_for)!r}): time.sleep(0.01)"
    return Lane(text, ("-c", f"{code}\nsys.exit({status})"), environment=environment, after=after)


def said(capfd) -> list[str]:
    return [line for line in capfd.readouterr().out.splitlines() if not line.startswith(("==", "   "))]


def test_each_lane_runs_once_in_its_environment(capfd):
    assert run((says("first"), says("second", WHERE="here"), says("third"))) == 0
    assert sorted(said(capfd)) == ["first -", "second here", "third -"]


def test_two_lanes_run_at_once_and_another_when_one_has_ended(capfd, tmp_path):
    mark = tmp_path / "mark"
    makes_it = Lane("third", ("-c", f"open({str(mark)!r}, 'w'); print('third -')"))
    assert run((says("first", wait_for=mark), says("second"), makes_it)) == 0
    found = said(capfd)
    assert found[0] == "second -"
    assert sorted(found[1:]) == ["first -", "third -"]


def test_a_lane_waits_for_those_it_needs(capfd, tmp_path):
    mark = tmp_path / "mark"
    makes_it = Lane("last", ("-c", f"open({str(mark)!r}, 'w'); print('last -')"))
    assert run((says("first", wait_for=mark), says("second", after=("first",)), makes_it)) == 0
    found = said(capfd)
    assert sorted(found[:2]) == ["first -", "last -"]
    assert found[2] == "second -"


@pytest.mark.parametrize("failing", [0, 1])
def test_none_is_started_after_one_has_failed_and_the_one_that_runs_is_finished(capfd, tmp_path, failing):
    lanes = [says("one"), says("two"), says("never")]
    lanes[failing] = says("broken", status=3)
    lanes[2] = says("never", after=tuple(lane.name for lane in lanes[:2]))
    assert run(lanes) == 3
    assert "never -" not in (found := said(capfd))
    assert len(found) == 2


@pytest.mark.parametrize(("may_be_empty", "status"), [(True, 0), (False, 5)])
def test_a_lane_without_tests_passes_only_where_it_may_be_empty(capfd, may_be_empty, status):
    assert run((replace(says("empty", status=5), may_be_empty=may_be_empty),)) == status


def test_lanes_run_with_this_python_in_the_repository(capfd, monkeypatch):
    monkeypatch.chdir("/")
    assert run((Lane("where", ("-c", "import os, sys; print(os.getcwd()); print(sys.executable)")),)) == 0
    out = capfd.readouterr().out
    assert str(run_tests.ROOT) in out
    assert sys.executable in out


def test_how_far_a_lane_is_is_the_last_percentage_that_it_printed(tmp_path):
    job = Running(Lane("counts", ("-c", "print('.... [  4%]'); print('.... [ 37%]'); print('..')")), tmp_path)
    while job.status() is None:
        pass
    assert job.progress() == "counts 37%"
