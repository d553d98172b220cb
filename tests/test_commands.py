"""The commands mean the same wherever they are written: Makefile, README without make, and the lanes of the tests."""

import re
import sys
from pathlib import Path

import pytest
import run_tests
from run_tests import ALL, LIBRARY, QUICK, SLOW, Lane, run

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


def test_every_file_of_tests_is_in_a_lane():
    commands = [lane.command for step in ALL for lane in step]
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = path.relative_to(ROOT).as_posix()
        assert any(covers(command, name) for command in commands), name
    assert any("book" in command and "--nbval-lax" in command for command in commands)
    assert [lane.name for step in ALL for lane in step if lane.command == ("tools/build_book.py",)]


def covers(command: tuple[str, ...], name: str) -> bool:
    above = {name, *(str(parent) for parent in Path(name).parents)}
    return bool(above & set(command)) and not any(f"--ignore={folder}" in command for folder in above)


def test_the_quick_lane_leaves_out_only_what_exists_and_lints():
    commands = [lane.command for step in QUICK for lane in step]
    assert ("-m", "ruff", "check", ".") in commands
    assert all((ROOT / "tests" / name).exists() for name in SLOW)
    assert set(LIBRARY.command) < set(commands[-1])


# --- the runner -----------------------------------------------------------------------------------------------------


def says(text: str, status: int = 0, **environment: str) -> Lane:
    code = f"import os, sys; print({text!r}, os.environ.get('WHERE', '-')); sys.exit({status})"
    return Lane(text, ("-c", code), environment=environment)


def test_lanes_run_in_order_and_each_in_its_environment(capfd):
    assert run(((says("first"),), (says("second", WHERE="here"), says("beside")), (says("third"),))) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if not line.startswith(("==", "   "))]
    assert said == ["first -", "second here", "beside -", "third -"]


@pytest.mark.parametrize("failing", [0, 1], ids=["the first lane", "the one beside it"])
def test_a_lane_that_fails_is_the_last(capfd, failing):
    step = [says("one"), says("two")]
    step[failing] = says("broken", status=3)
    assert run((step, (says("never"),))) == 3
    out = capfd.readouterr().out
    assert "broken -" in out
    assert "never -" not in out


def test_lanes_run_with_this_python_in_the_repository(capfd, monkeypatch):
    monkeypatch.chdir("/")
    assert run(((Lane("where", ("-c", "import os, sys; print(os.getcwd()); print(sys.executable)")),),)) == 0
    out = capfd.readouterr().out
    assert str(run_tests.ROOT) in out
    assert sys.executable in out
