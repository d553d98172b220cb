"""Each task has a process of its own: what one does to itself costs no other anything, and none outstays its time."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from grading import processes
from grading.processes import OutOfClock, in_processes


class Tasks:
    """What a submission may do to the process that grades it."""

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
        """Wait for one other, and say how many have been seen at work."""
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


def test_each_ends_in_its_own_way(tasks, tmp_path):
    names = ["returns", "raises", "exits", "killed", "nothing"]
    died = "the process that graded it died"
    assert dict(in_processes(tasks.end_somehow, names, at_a_time=3, seconds=60, log=tmp_path / "log")) == {
        "returns": "a reason",
        "raises": "it failed in a way that was not expected (KeyError: 'lost'): a person should look at the file",
        "exits": died,
        "killed": died,
        "nothing": None,
    }
    assert sorted((tmp_path / "log").read_text().split()) == sorted(names), "what they print goes to the log"
    seen = {name: int((tasks.started / name).read_text()) for name in names}
    assert len({*seen.values(), os.getpid()}) == 6


@pytest.mark.parametrize("name", ["computes", "has a child that computes"])
def test_limit_counts_processor_time_of_a_task_and_its_descendants(tasks, tmp_path, name):
    limits = {"at_a_time": 1, "seconds": 1, "clock": 10_000, "log": tmp_path / "log"}
    assert list(in_processes(tasks.end_somehow, [name], **limits)) == [
        (name, "it used more than 1 seconds of processor time in all")
    ]
    for process in tasks.started.iterdir():
        assert not psutil.pid_exists(pid := int(process.read_text())) or psutil.Process(pid).status() == "zombie"


@pytest.mark.parametrize(("busy", "times"), [(False, 1), (True, 2)])
def test_task_without_end_waits_for_a_person_and_is_tried_again_alone_if_the_machine_was_busy(
    tasks, tmp_path, monkeypatch, busy, times
):
    monkeypatch.setattr(processes, "is_busy", lambda: busy)
    limits = {"at_a_time": 2, "seconds": 1000, "clock": 0.002, "log": tmp_path / "log"}
    ((name, ending),) = in_processes(tasks.end_somehow, ["stays"], **limits)
    assert (name, isinstance(ending, OutOfClock)) == ("stays", True)
    assert ending.startswith("it waits for a person: 2 seconds went by on the clock, and less than 1000 of them")
    assert (tmp_path / "log").read_text().split() == ["stays"] * times
    with pytest.raises(ProcessLookupError):
        os.kill(int((tasks.started / "stays").read_text()), 0)


def test_what_a_task_says_of_the_clock_is_tried_again_after_all_others(tmp_path, monkeypatch):
    """Whoever is hindered by the others alone has their result at the second try."""
    monkeypatch.setattr(processes, "is_busy", lambda: True)

    def task(name: str):
        with (tmp_path / "order").open("a") as file:
            file.write(name)
        if name in "ac" and (tmp_path / "order").read_text().count(name) == 1:
            return OutOfClock("it waits for a person")
        return OutOfClock("still") if name == "c" else name.upper()

    found = list(in_processes(task, "abcd", at_a_time=1, seconds=60, log=tmp_path / "log"))
    assert found == [("b", "B"), ("d", "D"), ("a", "A"), ("c", "still")]
    assert (tmp_path / "order").read_text() == "abcdac"


def test_as_many_run_at_once_as_asked_and_no_more(tasks, tmp_path):
    found = dict(in_processes(tasks.count, "abcde", at_a_time=2, seconds=60, log=tmp_path / "log"))
    assert sorted(found) == list("abcde")
    assert set(found.values()) <= {"1", "2"}
    assert "2" in found.values()


def test_nobody_is_nothing(tasks, tmp_path):
    assert list(in_processes(tasks.count, [], at_a_time=2, seconds=60, log=tmp_path / "log")) == []
