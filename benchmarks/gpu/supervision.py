"""A part in a process of its own, watched: what it does to the device, or to itself, ends with it.

After an illegal access to memory the device answers nothing more in that process; a kernel may also never end. The
item that was being measured is then noted as failed, and the part goes on with the next in a new process. If the
watcher ends, so does the process.
"""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from .parts import LOST, NOTHING, UNMEASURED, WHOLE, WRONG
from .record import give_up, read

TOLD = (WHOLE, NOTHING, WRONG, UNMEASURED)
FEWEST = 30.0  # seconds: with less no process is begun
GRACE = 15.0  # what a process gets beyond its time


def watch(command: list[str], path: Path, seconds: float, item_seconds: float = 180.0, poll: float = 1.0) -> int:
    """Run ``command --seconds S --watched`` until the part whose record is ``path`` is whole or the time is over.

    The process ends by itself when it is told how long it has; what takes longer than ``item_seconds`` is ended.
    Returns the last process's exit status, LOST if it could do nothing.
    """
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left < min(FEWEST, seconds / 2):
            return UNMEASURED
        before = _done(path)
        status, why = _one(command, path, left, item_seconds, poll)
        if status in TOLD and why is None and (read(path) or {}).get("running") is None:
            return status
        item = give_up(path, why or f"the process that measured it ended: {_said(status)}")
        print(f"{path.stem}: the process ended ({why or _said(status)}){f' while it measured {item}' if item else ''}")
        if _done(path) == before:  # it would only happen again
            return LOST


def _one(command: list[str], path: Path, left: float, item_seconds: float, poll: float) -> tuple[int, str | None]:
    """One process: its exit status, and why it was ended if it was."""
    begun, why = time.monotonic(), None
    told = ["--seconds", f"{left - 5:.0f}", "--watched"]
    process = subprocess.Popen([*command, *told], stdin=subprocess.PIPE, process_group=0)
    try:
        while process.poll() is None and why is None:
            time.sleep(poll)
            running = (read(path) or {}).get("running")
            if running and time.time() - running["since"] > item_seconds:
                why = f"it took longer than {item_seconds:.0f} s"
            elif time.monotonic() - begun > left + GRACE:
                why = "the time was over, and the process did not end"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return process.returncode, why


def end_with_parent() -> None:
    """End this process when the one that watches it ends, however that came about: its end of the pipe closes."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(LOST)

    threading.Thread(target=wait, daemon=True).start()


def _done(path: Path) -> int:
    return len((read(path) or {"done": ()})["done"])


def _said(status: int) -> str:
    try:
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"
    except ValueError:
        return f"exit status {status}"
