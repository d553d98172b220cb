"""Tests of the GitHub workflows and the dev container, as far as that is possible locally."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
PUBLISH, WEEKLY = (yaml.safe_load((FOLDER / f"{name}.yml").read_text()) for name in ("publish", "weekly"))
MAKEFILE = (ROOT / "Makefile").read_text()
LINTERS = [line.split() for line in re.findall(r"^\t\$\(VENV\)/bin/((?:check-jsonschema|zizmor) .*)$", MAKEFILE, re.M)]
FAULTS = {
    "check-jsonschema": ("runs-on:", "run-on:"),
    "zizmor": ("permissions: {contents: read}", "permissions: write-all"),
}


def steps(job: dict) -> list[str]:
    return [step.get("run") or step["uses"] for step in job["steps"]]


def lint(command: list[str], folder: Path) -> subprocess.CompletedProcess:
    """Run a linter as ``make check`` does, on the workflows below ``folder``."""
    name, *arguments = command
    tool = Path(sys.executable).with_name(name)
    if not tool.exists():
        pytest.skip(f"{name} is not installed: requirements.txt names it")
    found = [str(path) for pattern in arguments if "*" in pattern for path in folder.glob(pattern)]
    given = [argument for argument in arguments if "*" not in argument]
    return subprocess.run([tool, *given, *found], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", LINTERS, ids=lambda command: command[0])
def test_linters_pass_here_and_fail_for_faults(command, tmp_path):
    good, bad = FAULTS[command[0]]
    assert lint(command, ROOT).returncode == 0
    (tmp_path / ".github/workflows").mkdir(parents=True)
    text = (FOLDER / "publish.yml").read_text()
    assert good in text
    (tmp_path / ".github/workflows/publish.yml").write_text(text.replace(good, bad))
    assert lint(command, tmp_path).returncode != 0


def test_linters_run_offline():
    assert [command[0] for command in LINTERS] == ["check-jsonschema", "zizmor"]
    assert "--offline" in LINTERS[1]
    assert any(argument.startswith("vendor.") for argument in LINTERS[0])


def test_push_runs_make_check_and_make_test_with_all_requirements():
    job = PUBLISH["jobs"]["test"]
    always = [step["run"] for step in job["steps"] if "run" in step and "if" not in step]
    assert [step for step in always if step.startswith("make")] == ["make check", "make test"]
    files = [ROOT / "Makefile", *(ROOT / "tests").rglob("*.py")]  # files in which REQUIRE_* variables may occur
    required = set(re.findall(r"\bREQUIRE_[A-Z]+", "\n".join(path.read_text() for path in files)))
    assert {name: value for name, value in job["env"].items() if "REQUIRE" in name} == dict.fromkeys(required, "1")


def test_main_builds_every_language_after_the_tests_and_before_the_upload():
    found = PUBLISH["jobs"]["test"]["steps"]
    names = [step.get("run", step.get("uses", "")) for step in found]
    for language in sorted(path.parent.name for path in (ROOT / "locale").glob("*/LC_MESSAGES")):
        place = names.index(f"make book LANGUAGE={language}")
        assert found[place]["if"] == "github.ref == 'refs/heads/main'"
        assert names.index("make test") < place < names.index("actions/upload-pages-artifact@v5")


def test_publish_job_uses_the_tested_build():
    (site, notebooks) = (step for step in PUBLISH["jobs"]["test"]["steps"] if "upload" in step.get("uses", ""))
    assert site["with"] == {"path": "_build/html"}
    assert (notebooks["with"]["name"], notebooks["with"]["path"]) == ("notebooks", "_build/notebooks")
    job = PUBLISH["jobs"]["publish"]
    assert job["needs"] == "test"
    assert job["if"] == site["if"] == notebooks["if"] == "github.ref == 'refs/heads/main'"
    (download,) = (step for step in job["steps"] if "download" in step.get("uses", ""))
    assert download["with"] == {"name": "notebooks", "path": "notebooks"}
    (pushed,) = (run for run in steps(job) if run.startswith("tools/"))
    assert pushed.startswith('tools/publish_notebooks.sh "$REMOTE" notebooks ')
    assert (ROOT / "tools/publish_notebooks.sh").stat().st_mode & 0o100


def test_published_branch_contains_the_library_for_binder():
    (archived,) = (run for run in steps(PUBLISH["jobs"]["publish"]) if run.startswith("git archive"))
    names = re.fullmatch(r"git archive HEAD (.+) \| tar -x -C notebooks", archived)[1].split()
    assert all((ROOT / name).exists() for name in names)
    assert {"binder", "lessons_lib", "pyproject.toml"} <= set(names)
    assert re.search(r'^readme = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1] in names
    assert ".[notebook]" in (ROOT / "binder/requirements.txt").read_text().split()


def test_checkout_fetches_the_full_history():
    checkout = next(s for s in PUBLISH["jobs"]["test"]["steps"] if s.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["fetch-depth"] == 0


@pytest.mark.parametrize("workflow", [PUBLISH, WEEKLY], ids=["publish", "weekly"])
def test_jobs_have_timeouts_fixed_images_and_minimal_permissions(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] >= (60 if any("make test" in run for run in steps(job)) else 5)
        assert re.fullmatch(r"ubuntu-\d\d\.04", job["runs-on"]), "the image must have a fixed version"
        assert ("permissions" in job) == (name == "publish")
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_deployments_are_not_cancelled():
    assert PUBLISH["concurrency"]["cancel-in-progress"] == "${{ github.event_name == 'pull_request' }}"


def test_weekly_edition_job_runs_the_published_branch():
    """The job uses the library that the first cell installs, and the versions of Colab's image."""
    job = WEEKLY["jobs"]["edition"]
    checkout, _, *runs = job["steps"]
    branch = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["branch"]
    assert checkout["with"]["ref"] == branch
    commands = [step["run"] for step in runs]
    assert not [run for run in commands if "lessons_lib" in run or '".[' in run], "the first cell installs it"
    assert commands[0].startswith("pip install $COLAB")
    (execute,) = (run for run in commands if "--nbval-lax" in run)
    assert execute.split()[-1] == "book"
    (also,) = (run for run in steps(WEEKLY["jobs"]["colab"]) if "--nbval-lax" in run)
    assert execute == also


def test_dev_container_creates_the_environment():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make .venv/.ready"
    assert re.search(r"^\$\(VENV\)/\.ready:", MAKEFILE, re.M)
    assert re.search(r"^VENV\s*:= \.venv$", MAKEFILE, re.M)
    python = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == "${containerWorkspaceFolder}/.venv/bin/python"
    assert re.search(r"python:3\.(\d+)-", container["image"])[1] == "11"
    # a subset of the properties in the schema of containers.dev
    known = {"name", "image", "hostRequirements", "containerEnv", "onCreateCommand", "postCreateCommand"}
    assert set(container) <= known | {"customizations"}
    assert set(container["hostRequirements"]) <= {"cpus", "memory", "storage", "gpu"}


def test_weekly_job_runs_all_tests_on_each_python():
    job = WEEKLY["jobs"]["pins"]
    assert [step for step in steps(job) if step.startswith("make")] == ["make test", "make test-all"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_ignored_files_are_not_passed_by_a_glob():
    """Pytest runs a file that is given on the command line even if it is ignored."""
    ignoring = [run for job in WEEKLY["jobs"].values() for run in steps(job) if "--ignore" in run]
    assert ignoring
    assert not [run for run in ignoring if "*" in run]
