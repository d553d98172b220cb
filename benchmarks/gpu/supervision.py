"""A part in a supervised process of its own, so that its errors do not affect other parts.

After an illegal memory access the device is unusable in that process; a kernel may also never end. The item that was
being measured is then recorded as failed, and the part continues with the next item in a new process. The process ends
with its supervisor.
"""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from .parts import LOST, NOTHING, UNMEASURED, WHOLE, WRONG
from .record import give_up, read

REPORTED = (WHOLE, NOTHING, WRONG, UNMEASURED)
MIN_SECONDS = 30.0  # no process is started with less time
GRACE = 15.0  # seconds that a process gets beyond its time


def watch(command: list[str], path: Path, seconds: float, item_seconds: float = 180.0, poll: float = 1.0) -> int:
    """Run ``command --seconds S --watched`` until the part whose record is ``path`` is complete or the time is over.

    The process ends by itself after S seconds; it is killed if one item takes longer than ``item_seconds``. Return the
    exit status of the last process, or LOST if that process measured nothing.
    """
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left < min(MIN_SECONDS, seconds / 2):
            return UNMEASURED
        before = _done(path)
        status, why = _run_once(command, path, left, item_seconds, poll)
        if status in REPORTED and why is None and (read(path) or {}).get("running") is None:
            return status
        item = give_up(path, why or f"the process that measured it ended: {_describe_status(status)}")
        during = f" while it measured {item}" if item else ""
        print(f"{path.stem}: the process ended ({why or _describe_status(status)}){during}")
        if _done(path) == before:  # the next process would fail in the same way
            return LOST


def run_together(commands: list[list[str]], seconds: float) -> None:
    """Run commands side by side, without their output, and end those that are not done after ``seconds``."""
    end = time.monotonic() + seconds
    processes = [
        subprocess.Popen(
            [*command, "--watched"],
            process_group=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    for process in processes:
        try:
            process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _run_once(command: list[str], path: Path, left: float, item_seconds: float, poll: float) -> tuple[int, str | None]:
    """Run one process; return its exit status, and why it was killed, or None."""
    begun, why = time.monotonic(), None
    options = ["--seconds", f"{left - 5:.0f}", "--watched"]
    process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, process_group=0)
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
    """End this process when its supervisor ends for whatever reason, which closes the pipe."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(LOST)

    threading.Thread(target=wait, daemon=True).start()


def _done(path: Path) -> int:
    return len((read(path) or {"done": ()})["done"])


def _describe_status(status: int) -> str:
    try:
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"
    except ValueError:
        return f"exit status {status}"
