"""Each task has a process of its own: what one does to itself costs no other anything, and none outstays its time."""

import os
import signal
import time

import pytest

from grading.processes import in_processes


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
    names = ["stays", "returns", "raises", "exits", "killed", "nothing"]
    died = "the process that graded it died"
    assert dict(in_processes(tasks.end_somehow, names, at_a_time=3, seconds=4, log=tmp_path / "log")) == {
        "stays": "it ran longer than 4 seconds in all",
        "returns": "a reason",
        "raises": "it failed in a way that was not expected (KeyError: 'lost'): a person should look at the file",
        "exits": died,
        "killed": died,
        "nothing": None,
    }
    assert sorted((tmp_path / "log").read_text().split()) == sorted(names), "what they print goes to the log"
    processes = {name: int((tasks.started / name).read_text()) for name in names}
    assert len({*processes.values(), os.getpid()}) == 7
    with pytest.raises(ProcessLookupError):
        os.kill(processes["stays"], 0)


def test_as_many_run_at_once_as_asked_and_no_more(tasks, tmp_path):
    found = dict(in_processes(tasks.count, "abcde", at_a_time=2, seconds=60, log=tmp_path / "log"))
    assert sorted(found) == list("abcde")
    assert set(found.values()) <= {"1", "2"}
    assert "2" in found.values()


def test_nobody_is_nothing(tasks, tmp_path):
    assert list(in_processes(tasks.count, [], at_a_time=2, seconds=60, log=tmp_path / "log")) == []
