"""What is lent to a kernel goes away again, and bubblewrap is told what it must not pass on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
from grading import sandbox
from grading.sandbox import command, environment, lent_folder, why_not

SANDBOX = pytest.mark.skipif(bool(why_not()), reason=str(why_not()))


def test_a_folder_of_any_depth_is_removed(capsys):
    with lent_folder() as folder:
        dig = "import os, sys\nos.chdir(sys.argv[1])\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
        subprocess.run([sys.executable, "-c", dig, str(folder)], check=True)
    assert not folder.exists()
    assert capsys.readouterr().err == ""


def test_a_folder_that_stays_is_named_and_stops_nobody(monkeypatch, capsys):
    monkeypatch.setattr(sandbox.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with lent_folder() as folder:
        pass
    folder.rmdir()
    assert f"{folder} could not be removed" in capsys.readouterr().err


def test_bubblewrap_knows_the_path_alone(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    assert environment() == {"PATH": os.environ["PATH"]}


@SANDBOX
@pytest.mark.parametrize("place", ["/proc/sys/kernel/hostname", "/etc/planted", "SHARED/shown/planted", "/planted"])
def test_nothing_outside_its_own_memory_can_be_written(place, tmp_path):
    (tmp_path / "shown").mkdir()
    written = place.replace("SHARED", str(tmp_path))
    done = subprocess.run([*command(tmp_path), "sh", "-c", f"echo x > {written}"], capture_output=True)
    assert done.returncode != 0
    assert not Path(written).exists() or Path(written).read_text() != "x\n"


@SANDBOX
def test_its_own_memory_has_a_size(tmp_path):
    fill = f"head -c 2000000 /dev/zero > {tmp_path}/own/a"
    done = subprocess.run([*command(tmp_path), "sh", "-c", fill], capture_output=True, text=True)
    assert "No space left" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_bubblewrap_that_cannot_be_started_is_a_reason(monkeypatch, error):
    def refuse(*_, **__):
        raise error("bwrap")

    monkeypatch.setattr(sandbox.subprocess, "run", refuse)
    assert str(why_not()).startswith("bubblewrap is not installed (Debian and Ubuntu: apt-get install bubblewrap)")


def test_an_old_bubblewrap_is_named(monkeypatch):
    said = subprocess.CompletedProcess([], 1, "", "bwrap: Unknown option --disable-userns")
    monkeypatch.setattr(sandbox.subprocess, "run", lambda *_, **__: said)
    assert why_not().startswith("bubblewrap 0.8 or newer is needed")
