"""Run a task for each of many names, each in its own process with a time limit.

The limit counts processor time, which does not depend on what else the machine does. A task that sleeps or waits uses
no processor time, so there is also a wall-clock limit, ``CLOCK`` times as long. A task that exceeds the wall-clock
limit on a busy machine is run once more, after all others and alone.

``pebble.ProcessPool`` also has a time limit for each task, but notices a process that ends with status 0 only when the
limit is over, makes its workers ignore interrupts, and forks from a thread.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import TypeVar

import psutil

Outcome = TypeVar("Outcome")
FORK = multiprocessing.get_context("fork")  # a child inherits all imported modules
CLOCK = 5  # wall-clock seconds for each second of processor time that is allowed


class WallClockExceeded(str):
    """The message of a task that was ended because it exceeded its wall-clock limit but not its processor time."""


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process and all its descendants have used."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def is_busy() -> bool:
    """Return whether the load average is above the number of processors."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def run_in_processes(
    task: Callable[[str], Outcome],
    names: Iterable[str],
    *,
    at_a_time: int,
    seconds: float,
    log: Path,
    clock: float = CLOCK,
) -> Iterator[tuple[str, Outcome | str]]:
    """Yield each name with its task's return value, or with a message if it failed, in the order in which tasks end.

    ``seconds`` limits the processor time; in wall-clock time a task has ``clock`` times as many. A result of type
    ``WallClockExceeded`` comes from the second run if the machine was busy during the first.
    """
    waiting = list(names)
    again: list[str] = []
    alone: set[str] = set()
    running: dict[Connection, tuple] = {}
    while waiting or running or again:
        if not waiting and not running:
            alone.add(again[0])
            waiting, at_a_time = [again.pop(0)], 1
        while waiting and len(running) < at_a_time:
            name = waiting.pop(0)
            receiver, sender = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_run, args=(task, name, sender, log))
            process.start()
            sender.close()  # else the pipe would stay open after the process has ended
            running[receiver] = name, process, monotonic() + clock * seconds
        wait(list(running), timeout=0.5)
        for receiver, (name, process, deadline) in list(running.items()):
            if receiver.poll():
                ending = _received(receiver)
            elif processor_seconds(process.pid) > seconds:
                _kill(process.pid)
                ending = f"it used more than {seconds:.0f} seconds of processor time in all"
            elif monotonic() > deadline:
                _kill(process.pid)
                ending = WallClockExceeded(
                    f"it waits for a person: {clock * seconds:.0f} seconds of wall-clock time have passed, with less "
                    f"than {seconds:.0f} seconds of processor time"
                )
            else:
                continue
            process.join()
            del running[receiver]
            if isinstance(ending, WallClockExceeded) and name not in alone and is_busy():
                again.append(name)
            else:
                yield name, ending


def _run(task: Callable[[str], object], name: str, sender: Connection, log: Path) -> None:
    with log.open("a") as file:  # for the output that kernels write to the terminal
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        sender.send(task(name))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:200]
        sender.send(f"it failed with an unexpected error ({message}): a person should look at the file")


def _kill(pid: int) -> None:
    """Kill a process and all its descendants; outside a sandbox a kernel would outlive its parent."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [*root.children(recursive=True), root]:
            with suppress(psutil.Error):
                process.kill()


def _received(receiver: Connection):
    try:
        return receiver.recv()
    except EOFError:
        return "the process that graded it died"
