"""Tests of grading.processes: each task runs in its own process, with limits of processor and wall-clock time."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from grading import processes
from grading.processes import WallClockExceeded, run_in_processes


class Tasks:
    """Tasks that end like a faulty submission, by name."""

    def __init__(self, folder):
        self.started, self.running = folder / "started", folder / "running"
        self.started.mkdir()
        self.running.mkdir()

    def end_somehow(self, name: str) -> str | None:
        os.write(1, f"{name}\n".encode())
        (self.started / name).write_text(str(os.getpid()))
        match name:
            case "returns":
                return "a reason"
            case "raises":
                raise KeyError("lost")
            case "exits":
                os._exit(0)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stays":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
            case "computes":
                while True:
                    pass
            case "has a child that computes":
                child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                (self.started / "child").write_text(str(child.pid))
                child.wait()
        return None

    def count(self, name: str) -> str:
        """Wait until a second task has started, and return how many tasks were running at most."""
        (self.started / name).touch()
        (self.running / name).touch()
        seen = 0
        while len(list(self.started.iterdir())) < 2:
            time.sleep(0.01)
        for _ in range(20):
            seen = max(seen, len(list(self.running.iterdir())))
            time.sleep(0.01)
        (self.running / name).unlink()
        return str(seen)


@pytest.fixture
def tasks(tmp_path):
    return Tasks(tmp_path)


def test_run_in_processes_isolates_failures(tasks, tmp_path):
    names = ["returns", "raises", "exits", "killed", "nothing"]
    died = "the process that graded it died"
    assert dict(run_in_processes(tasks.end_somehow, names, at_a_time=3, seconds=60, log=tmp_path / "log")) == {
        "returns": "a reason",
        "raises": "it failed with an unexpected error (KeyError: 'lost'): a person should look at the file",
        "exits": died,
        "killed": died,
        "nothing": None,
    }
    assert sorted((tmp_path / "log").read_text().split()) == sorted(names), "output is missing in the log"
    seen = {name: int((tasks.started / name).read_text()) for name in names}
    assert len({*seen.values(), os.getpid()}) == 6


@pytest.mark.parametrize("name", ["computes", "has a child that computes"])
def test_run_in_processes_limits_processor_time_of_descendants(tasks, tmp_path, name):
    limits = {"at_a_time": 1, "seconds": 1, "clock": 10_000, "log": tmp_path / "log"}
    assert list(run_in_processes(tasks.end_somehow, [name], **limits)) == [
        (name, "it used more than 1 seconds of processor time in all")
    ]
    for process in tasks.started.iterdir():
        assert not psutil.pid_exists(pid := int(process.read_text())) or psutil.Process(pid).status() == "zombie"


@pytest.mark.one_case
@pytest.mark.parametrize(("busy", "times"), [(False, 1), (True, 2)])
def test_run_in_processes_retries_a_wall_clock_timeout_on_a_busy_machine(tasks, tmp_path, monkeypatch, busy, times):
    monkeypatch.setattr(processes, "is_busy", lambda: busy)
    limits = {"at_a_time": 2, "seconds": 1000, "clock": 0.002, "log": tmp_path / "log"}
    ((name, ending),) = run_in_processes(tasks.end_somehow, ["stays"], **limits)
    assert (name, isinstance(ending, WallClockExceeded)) == ("stays", True)
    assert ending.startswith(
        "it waits for a person: 2 seconds of wall-clock time have passed, with less than 1000 seconds"
    )
    assert (tmp_path / "log").read_text().split() == ["stays"] * times
    with pytest.raises(ProcessLookupError):
        os.kill(int((tasks.started / "stays").read_text()), 0)


def test_run_in_processes_retries_returned_timeouts_last(tmp_path, monkeypatch):
    """A task that was slow only because of the others succeeds at the second run."""
    monkeypatch.setattr(processes, "is_busy", lambda: True)

    def task(name: str):
        with (tmp_path / "order").open("a") as file:
            file.write(name)
        if name in "ac" and (tmp_path / "order").read_text().count(name) == 1:
            return WallClockExceeded("it waits for a person")
        return WallClockExceeded("still") if name == "c" else name.upper()

    found = list(run_in_processes(task, "abcd", at_a_time=1, seconds=60, log=tmp_path / "log"))
    assert found == [("b", "B"), ("d", "D"), ("a", "A"), ("c", "still")]
    assert (tmp_path / "order").read_text() == "abcdac"


def test_run_in_processes_runs_at_a_time_tasks_at_once(tasks, tmp_path):
    found = dict(run_in_processes(tasks.count, "abcde", at_a_time=2, seconds=60, log=tmp_path / "log"))
    assert sorted(found) == list("abcde")
    assert set(found.values()) <= {"1", "2"}
    assert "2" in found.values()


def test_run_in_processes_accepts_no_names(tasks, tmp_path):
    assert list(run_in_processes(tasks.count, [], at_a_time=2, seconds=60, log=tmp_path / "log")) == []
