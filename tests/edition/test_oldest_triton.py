"""Tests of tools/oldest_triton.py: the requirements of its environment, and the tests that run in it."""

import re
import sys
import tomllib
from pathlib import Path

import oldest_triton
import pytest
import run_tests
import yaml

ROOT = Path(__file__).resolve().parents[2]
WEEKLY = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())


@pytest.fixture
def called(monkeypatch):
    """Record the commands and their environments instead of running them."""
    found = []

    class Done:
        returncode = 5

    def run(command, **options):
        found.append((list(map(str, command)), options.get("env", {})))
        return Done()

    monkeypatch.setattr(oldest_triton.subprocess, "run", run)
    monkeypatch.setattr(oldest_triton.venv, "create", lambda folder, with_pip: Path(folder).mkdir(parents=True))
    return found


def test_oldest_is_the_declared_version_and_colabs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["gpu"] == ["triton>=3.6; sys_platform == 'linux'"]
    assert oldest_triton.oldest() == "triton==3.6"
    assert "triton==3.6.0 " in WEEKLY["env"]["COLAB"]


def test_constraints_are_the_pins_except_numpy():
    pins = (ROOT / "requirements.txt").read_text()
    found = oldest_triton.constraints()
    assert found[0] == "numpy<2.4"
    assert not [pin for pin in found[1:] if re.match(r"numpy|triton|-e", pin)]
    assert not [pin for pin in found if "[" in pin], "pip allows no extras in a constraint"
    torch = re.search(r"^torch==.*$", pins, re.M)[0]
    assert torch in found
    assert len(found) == len(re.findall(r"^[\w.\[\]-]+==", pins, re.M)) - 1  # without Triton
    assert {"torch", "numpy", "einops", "pytest", "hypothesis"} <= set(oldest_triton.names())
    assert "triton" not in oldest_triton.names()


def test_ready_creates_the_environment_once_and_installs_triton_last(called, tmp_path):
    folder = tmp_path / "made"
    python = oldest_triton.ready(folder)
    (first, _), (second, _) = called
    assert first[0] == second[0] == str(python)
    assert first[-len(oldest_triton.names()) :] == oldest_triton.names()
    assert Path(first[first.index("--constraint") + 1]).read_text().splitlines() == oldest_triton.constraints()
    assert second[-2:] == ["--no-deps", "triton==3.6"]
    assert oldest_triton.ready(folder) == python
    assert len(called) == 2

    (folder / "ready.txt").write_text("of other versions")
    oldest_triton.ready(folder)
    assert len(called) == 4


def test_ready_does_not_mark_an_incomplete_environment(called, tmp_path, monkeypatch):
    def fails(command, **options):
        raise oldest_triton.subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(oldest_triton.subprocess, "run", fails)
    with pytest.raises(oldest_triton.subprocess.CalledProcessError):
        oldest_triton.ready(tmp_path / "made")
    assert not (tmp_path / "made" / "ready.txt").exists()


def test_main_returns_the_exit_status_of_the_tests(called, monkeypatch):
    monkeypatch.setattr(oldest_triton, "ready", lambda: Path("there/python"))
    assert oldest_triton.main() == 5
    ((command, environment),) = called
    assert command == ["there/python", "tools/run_tests.py", "--kernels"]
    assert "DeprecationWarning" in environment["PYTEST_ADDOPTS"]


def test_main_requires_linux(monkeypatch, capsys):
    monkeypatch.setattr(oldest_triton.sys, "platform", "darwin")
    assert oldest_triton.main() == 1
    assert capsys.readouterr().err == "oldest_triton.py needs Linux, as Triton does\n"


def test_kernel_lanes_contain_every_test_file_that_needs_triton(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "--kernels"])
    asked = []
    monkeypatch.setattr(run_tests, "run", lambda lanes: asked.extend(lanes) or 0)
    assert run_tests.main() == 0
    files = {path for lane in asked for path in lane.paths}
    wants = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests/flash").glob("test_*.py")
        if re.search(r'^(triton = )?pytest\.importorskip\("triton"', path.read_text(), re.M)
    ]
    assert files == set(wants)
    assert len(wants) >= 5


def test_weekly_workflow_runs_oldest_triton():
    commands = [step.get("run") for step in WEEKLY["jobs"]["triton"]["steps"]]
    assert commands[-1] == "make oldest-triton"
    assert re.search(
        r"^oldest-triton: ## .*\n\t\$\(PYTHON\) tools/oldest_triton\.py$", (ROOT / "Makefile").read_text(), re.M
    )
