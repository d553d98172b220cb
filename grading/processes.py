"""Run a task for each of many names in a process of its own, so that none outstays its time or harms the next.

A limit counts processor time, which says how much was computed, whatever else the machine does. The clock has a limit
as well, ``CLOCK`` times as long: whatever sleeps or waits uses no processor. A task that the clock ends on a machine
that is busy is run once more, after all others and alone.

``pebble.ProcessPool`` also gives each task a time of its own, but notices a process that ends with status 0 only when
that time is over, has its workers ignore interrupts, and forks from a thread.
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
FORK = multiprocessing.get_context("fork")  # a child starts with all that is imported here
CLOCK = 5  # seconds of the clock for each second of processor time that is allowed


class OutOfClock(str):
    """Why a task came to no end: its time on the clock was over, and its processor time was not."""


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
    """Say whether more processes want to compute than this machine has processors."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def in_processes(
    task: Callable[[str], Outcome],
    names: Iterable[str],
    *,
    at_a_time: int,
    seconds: float,
    log: Path,
    clock: float = CLOCK,
) -> Iterator[tuple[str, Outcome | str]]:
    """Yield each name with what its task returned, or with a sentence on its bad end, in the order of their ends.

    ``seconds`` are those of processor time; on the clock a task has ``clock`` times as many. What is an ``OutOfClock``
    was tried a second time if the machine was busy at the first.
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
            sender.close()  # else the end of the process would not end the pipe
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
                ending = OutOfClock(
                    f"it waits for a person: {clock * seconds:.0f} seconds went by on the clock, and less than "
                    f"{seconds:.0f} of them on the processor"
                )
            else:
                continue
            process.join()
            del running[receiver]
            if isinstance(ending, OutOfClock) and name not in alone and is_busy():
                again.append(name)
            else:
                yield name, ending


def _run(task: Callable[[str], object], name: str, sender: Connection, log: Path) -> None:
    with log.open("a") as file:  # what kernels print to a terminal
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        sender.send(task(name))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:200]
        sender.send(f"it failed in a way that was not expected ({said}): a person should look at the file")


def _kill(pid: int) -> None:
    """Kill a process and all its descendants: outside a sandbox a kernel outlives whoever started it."""
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
