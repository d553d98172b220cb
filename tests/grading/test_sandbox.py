"""Tests of grading.sandbox: the temporary folder, the environment, and access to files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
from grading import sandbox
from grading.sandbox import command, environment, sandbox_error, temporary_folder

SANDBOX = pytest.mark.skipif(bool(sandbox_error()), reason=str(sandbox_error()))


def test_temporary_folder_removes_deep_folders(capsys):
    with temporary_folder() as folder:
        dig = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
        subprocess.run([sys.executable, "-c", dig, str(folder)], check=True)
    assert not folder.exists()
    assert capsys.readouterr().err == ""


def test_temporary_folder_reports_a_folder_that_cannot_be_removed(monkeypatch, capsys):
    monkeypatch.setattr(sandbox.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with temporary_folder() as folder:
        pass
    folder.rmdir()
    assert f"{folder} could not be removed" in capsys.readouterr().err


def test_environment_has_only_the_path(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    assert environment() == {"PATH": os.environ["PATH"]}


@SANDBOX
@pytest.mark.parametrize("place", ["/proc/sys/kernel/hostname", "/etc/planted", "SHARED/shown/planted", "/planted"])
def test_sandbox_is_read_only_outside_of_its_memory(place, tmp_path):
    (tmp_path / "shown").mkdir()
    written = place.replace("SHARED", str(tmp_path))
    done = subprocess.run([*command(tmp_path), "sh", "-c", f"echo x > {written}"], capture_output=True)
    assert done.returncode != 0
    assert not Path(written).exists() or Path(written).read_text() != "x\n"


@SANDBOX
def test_sandbox_limits_the_size_of_its_files(tmp_path):
    fill = f"head -c 2000000 /dev/zero > {tmp_path}/own/a"
    done = subprocess.run([*command(tmp_path), "sh", "-c", fill], capture_output=True, text=True)
    assert "No space left" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_sandbox_error_if_bubblewrap_cannot_be_started(monkeypatch, error):
    def refuse(*_, **__):
        raise error("bwrap")

    monkeypatch.setattr(sandbox.subprocess, "run", refuse)
    assert str(sandbox_error()).startswith(
        "bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap)"
    )


def test_sandbox_error_if_bubblewrap_is_too_old(monkeypatch):
    said = subprocess.CompletedProcess([], 1, "", "bwrap: Unknown option --disable-userns")
    monkeypatch.setattr(sandbox.subprocess, "run", lambda *_, **__: said)
    assert sandbox_error().startswith("bubblewrap 0.8 or newer is needed")
