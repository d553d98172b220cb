"""The commands in the Makefile, CONTRIBUTING.md and the test lanes agree; tests of the runner of the lanes."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import run_tests
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers
from run_tests import ALL_ELSE, CHAPTERS, MANY, QUICK, SHAPES, SLOW, TEST, Lane, Running, run

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()


def recipe(target: str) -> list[str]:
    """Return the commands of a make target, as arguments for Python."""
    found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.removeprefix("$(PY) ") for line in found[1].replace("\t", "").splitlines()]


def test_guide_commands_without_make_agree_with_the_makefile():
    spelled_out = dict(
        reversed(pair) for pair in re.findall(r"^\.venv\\Scripts\\python (\S+) +# make (\w+)$", GUIDE, re.MULTILINE)
    )
    assert set(spelled_out) == {"book", "test"}
    for target, script in spelled_out.items():
        assert [command.split()[0] for command in recipe(target)] == [script]
        assert (ROOT / script).exists()


def test_guide_setup_without_make_agrees_with_the_makefile():
    (arguments,) = re.findall(r"^\.venv\\Scripts\\python (-m pip install .*)$", GUIDE, re.MULTILINE)
    by_make = re.sub(r" --disable-pip-version-check| --progress-bar on", "", "\n".join(recipe("$(VENV)/.ready")))
    assert arguments in by_make.splitlines()
    assert re.search(r"^py -m venv \.venv$", GUIDE, re.MULTILINE)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_repairs_an_environment_without_pip(tmp_path):
    """An interrupted ``python -m venv`` leaves a Python without pip."""
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
def test_every_test_file_is_in_one_lane_of_each_command(path):
    name = path.relative_to(ROOT).as_posix()
    assert len([lane for lane in TEST if covers(lane, name)]) == 1
    (of_what_is_left,) = [lane for lane in ALL_ELSE if covers(lane, name) and SHAPES not in lane.options]
    assert "thorough" in of_what_is_left.options or MANY[1] in of_what_is_left.options


@pytest.mark.parametrize("path", sorted((ROOT / "book").rglob("*.ipynb")), ids=lambda path: path.name)
def test_every_notebook_is_in_one_lane(path):
    name = path.relative_to(ROOT).as_posix()
    (lane,) = (lane for lane in (*TEST, *ALL_ELSE) if "--nbval-lax" in lane.options and covers(lane, name))
    assert (lane in TEST) == ("exercises" not in path.parts)


def test_book_lane_runs_after_notebooks_and_before_site():
    lanes = {lane.name: lane for lane in TEST}
    assert lanes["book"].command == ("tools/build_book.py",)
    assert lanes["book"].after == tuple(name for name in lanes if name.startswith("notebooks"))
    assert lanes["site"].after == ("book",)


def covers(lane: Lane, name: str) -> bool:
    above = {name, *(str(parent) for parent in Path(name).parents)}
    return bool(above & set(lane.paths)) and not any(f"--ignore={folder}" in lane.options for folder in above)


def test_only_one_lane_of_make_test_all_executes_shapes():
    (shaped,) = (lane for lane in (*TEST, *ALL_ELSE) if SHAPES in lane.options)
    assert shaped in ALL_ELSE
    for path in (
        "attention/test_attention",
        "flash/test_tiled",
        "checks/test_every_check",
        "transformer/test_huggingface",
        "repository/test_examples",
    ):
        assert covers(shaped, f"tests/{path}.py")


@given(integers())
@settings(max_examples=1, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hypothesis_marks_its_tests(request, n):
    """``make test-all`` runs them again, with more examples."""
    assert request.node.get_closest_marker("hypothesis"), n


@pytest.mark.parametrize("path", [*SLOW, *CHAPTERS])
def test_paths_in_lanes_exist(path):
    assert (ROOT / path).exists()


def test_make_test_all_runs_the_remaining_lanes():
    assert recipe("test-all") == [f"{command} --all-else" for command in recipe("test")]


def test_quick_command_lints_and_tests_library_modules_once():
    assert ("-m", "ruff", "check", ".") in [lane.command for lane in QUICK]
    tested = [path for lane in QUICK for path in lane.paths]
    assert len(tested) == len(set(tested)) > 30
    assert {"tests/attention/test_attention.py", "tests/efficient/test_linear.py"} < set(tested)
    assert not {"tests/transformer/test_huggingface.py", "tests/repository/test_repository.py"} & set(tested)


# --- the runner -----------------------------------------------------------------------------------------------------


def printing(
    text: str, status: int = 0, after: tuple[str, ...] = (), wait_for: Path | None = None, **environment
) -> Lane:
    """Return a lane that prints a text, and ends when the file ``wait_for`` exists."""
    code = f"import os, sys, time; print({text!r}, os.environ.get('WHERE', '-'))"
    if wait_for:
        code += f"\nwhile not os.path.exists({str(wait_for)!r}): time.sleep(0.01)"
    return Lane(text, ("-c", f"{code}\nsys.exit({status})"), environment=environment, after=after)


def said(capfd) -> list[str]:
    return [line for line in capfd.readouterr().out.splitlines() if not line.startswith(("==", "   "))]


def test_run_starts_each_lane_once_with_its_environment(capfd):
    assert run((printing("first"), printing("second", WHERE="here"), printing("third"))) == 0
    assert sorted(said(capfd)) == ["first -", "second here", "third -"]


def test_run_runs_two_lanes_at_once(capfd, tmp_path):
    mark = tmp_path / "mark"
    makes_it = Lane("third", ("-c", f"open({str(mark)!r}, 'w'); print('third -')"))
    assert run((printing("first", wait_for=mark), printing("second"), makes_it)) == 0
    found = said(capfd)
    assert found[0] == "second -"
    assert sorted(found[1:]) == ["first -", "third -"]


def test_run_waits_for_required_lanes(capfd, tmp_path):
    mark = tmp_path / "mark"
    makes_it = Lane("last", ("-c", f"open({str(mark)!r}, 'w'); print('last -')"))
    assert run((printing("first", wait_for=mark), printing("second", after=("first",)), makes_it)) == 0
    found = said(capfd)
    assert sorted(found[:2]) == ["first -", "last -"]
    assert found[2] == "second -"


@pytest.mark.parametrize("failing", [0, 1])
def test_run_starts_no_lane_after_a_failure(capfd, tmp_path, failing):
    lanes = [printing("one"), printing("two"), printing("never")]
    lanes[failing] = printing("broken", status=3)
    lanes[2] = printing("never", after=tuple(lane.name for lane in lanes[:2]))
    assert run(lanes) == 3
    assert "never -" not in (found := said(capfd))
    assert len(found) == 2


@pytest.mark.parametrize(("may_be_empty", "status"), [(True, 0), (False, 5)])
def test_run_lane_without_tests_passes_if_it_may_be_empty(capfd, may_be_empty, status):
    assert run((replace(printing("empty", status=5), may_be_empty=may_be_empty),)) == status


def test_run_uses_this_python_in_the_repository(capfd, monkeypatch):
    monkeypatch.chdir("/")
    assert run((Lane("where", ("-c", "import os, sys; print(os.getcwd()); print(sys.executable)")),)) == 0
    out = capfd.readouterr().out
    assert str(run_tests.ROOT) in out
    assert sys.executable in out


def test_progress_is_the_last_printed_percentage(tmp_path):
    job = Running(Lane("counts", ("-c", "print('.... [  4%]'); print('.... [ 37%]'); print('..')")), tmp_path)
    while job.status() is None:
        pass
    assert job.progress() == "counts 37%"
