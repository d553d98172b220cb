"""Tests of tools/publish_notebooks.sh on a local repository: it adds commits to the branch and never rewrites it."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "publish_notebooks.sh"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here; the workflow has one")


def git(folder: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def publish(tmp_path):
    git(tmp_path, "init", "-q", "--bare", "remote")
    edition = tmp_path / "edition"

    def run(**notebooks: str) -> str:
        shutil.rmtree(edition, ignore_errors=True)
        (edition / "book").mkdir(parents=True)
        for name, text in notebooks.items():
            (edition / "book" / f"{name}.ipynb").write_text(text)
        subprocess.run([SCRIPT, (tmp_path / "remote").as_uri(), edition, "From a test"], check=True)
        return git(tmp_path / "remote", "rev-parse", "notebooks").strip()

    return run


def test_publish_replaces_the_content_of_the_branch(publish, tmp_path):
    publish(scaling="one", gone="one")
    publish(scaling="two")
    listed = git(tmp_path / "remote", "ls-tree", "-r", "--name-only", "notebooks")
    assert listed.split() == ["book/scaling.ipynb"]
    assert git(tmp_path / "remote", "show", "notebooks:book/scaling.ipynb") == "two"
    assert git(tmp_path / "remote", "log", "-1", "--format=%s", "notebooks") == "From a test\n"


def test_publish_allows_fast_forward_pulls(publish, tmp_path):
    publish(scaling="one")
    git(tmp_path, "clone", "-q", "-b", "notebooks", "remote", "reader")
    publish(scaling="two")
    git(tmp_path / "reader", "pull", "-q", "--ff-only")
    assert (tmp_path / "reader/book/scaling.ipynb").read_text() == "two"


def test_publish_without_changes_makes_no_commit(publish):
    assert publish(scaling="one") == publish(scaling="one")


def test_publish_rejected_push_fails(publish, tmp_path):
    publish(scaling="one")
    hook = tmp_path / "remote/hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        publish(scaling="two")
