"""Run a task for each of many names in a process of its own, so that none outstays its time or harms the next.

``pebble.ProcessPool`` also gives each task a time of its own, but notices a process that ends with status 0 only when
that time is over, has its workers ignore interrupts, and forks from a thread.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import TypeVar

Outcome = TypeVar("Outcome")
FORK = multiprocessing.get_context("fork")  # a child starts with all that is imported here


def in_processes(
    task: Callable[[str], Outcome], names: Iterable[str], *, at_a_time: int, seconds: float, log: Path
) -> Iterator[tuple[str, Outcome | str]]:
    """Yield each name with what its task returned, or with a sentence on its bad end, in the order of their ends."""
    waiting = list(names)
    running: dict[Connection, tuple] = {}
    while waiting or running:
        while waiting and len(running) < at_a_time:
            name = waiting.pop(0)
            receiver, sender = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_run, args=(task, name, sender, log))
            process.start()
            sender.close()  # else the end of the process would not end the pipe
            running[receiver] = name, process, monotonic() + seconds
        wait(list(running), timeout=0.5)
        for receiver, (name, process, deadline) in list(running.items()):
            if receiver.poll():
                ending = _received(receiver)
            elif monotonic() > deadline:
                process.kill()
                ending = f"it ran longer than {seconds:.0f} seconds in all"
            else:
                continue
            process.join()
            del running[receiver]
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


def _received(receiver: Connection):
    try:
        return receiver.recv()
    except EOFError:
        return "the process that graded it died"
