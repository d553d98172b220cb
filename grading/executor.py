"""Execute a student's notebook with nbgrader, but run its checks in another process, which the answers cannot reach."""

import ast
import asyncio
import builtins
import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from types import ModuleType
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbgrader.preprocessors import ClearHiddenTests, Execute
from nbgrader.utils import is_grade, is_locked
from traitlets import Bool, Integer

from grading.check_notebook import is_autograded
from grading.processes import CLOCK, processor_seconds
from grading.rpc import Answers, NoAnswerError
from grading.sandbox import OWN, SHOWN, kernel_spec, sandbox_error, temporary_folder

RPC_FILE = Path(__file__).with_name("rpc.py")
OUTPUT_LIMIT = 2_000_000  # characters of output for one cell; five times as many for a notebook
POLL_SECONDS = 1  # between two measurements of a cell's processor time
STARTUP, HANDOVER = 300, 30  # wall-clock seconds for a kernel to start, and for an interrupted cell to end
MESSAGE_LIMIT = 1000  # characters of an error message
NOT_DEFINED = re.compile(r"NameError: (?:name ')?(\w+)'? is not defined")
CELL_FILE = re.compile(r"\([^()\s]+, (line \d+)\)$")


class KernelLostError(Exception):
    """Raised if the kernel died or stopped responding, so that the rest of the notebook could not be run."""


class WallClockExceededError(Exception):
    """Raised if a cell exceeds its wall-clock limit but not its processor time: it slept, or the machine was busy."""


class ShiftedSeeds:
    """A wrapper of a module of checks that adds ``shift`` to every check's seed, so that its inputs differ."""

    def __init__(self, module: ModuleType, shift: int):
        self._module, self._shift = module, shift

    def __getattr__(self, name: str):
        check = getattr(self._module, name)
        return lambda *answers, seed=0, **options: check(*answers, seed=seed + self._shift, **options)


class ExecuteWithOutsideChecks(Execute):
    """Execute a notebook in its kernel, except the graded cells, which run in this process and call the kernel.

    A graded cell may use only the imports of the locked cells and the definitions in the student's cells.

    ``timeout`` is in seconds of processor time, of the kernel and all of its descendants. A cell that exceeds it is
    interrupted, and the rest of the notebook is run. In wall-clock time a cell has ``clock`` times as many seconds. A
    cell that exceeds those ends the notebook, which then waits for a person, so that a busy machine costs no points.
    """

    sandbox = Bool(True, help="whether the kernel runs in a sandbox").tag(config=True)
    memory = Integer(4 * 2**30, help="bytes that the kernel may use").tag(config=True)
    clock = Integer(CLOCK, help="wall-clock seconds for each second of processor time").tag(config=True)
    seed_shift = Integer(0, help="added to the seed of every check").tag(config=True)

    def preprocess(self, nb, resources=None, km=None):
        """Run the notebook from its first cell to its last."""
        if self.sandbox and (reason := sandbox_error()):
            raise RuntimeError(f"no sandbox: {reason}")
        self._imported: dict[str, object] = {}
        self.timeout_func = lambda cell: POLL_SECONDS
        self.startup_timeout = STARTUP
        self.iopub_timeout = HANDOVER  # for an interrupt to take effect, and for the last output to arrive
        self.kernel_name = "sandbox" if self.sandbox else "python3"
        self._printed_in_all, self._most_used = 0, 0.0
        self._failed: list[tuple[str, str]] = []
        with temporary_folder() as self._shared:
            (self._shared / SHOWN).mkdir()
            if not self.sandbox:
                (self._shared / OWN).mkdir()  # in a sandbox the kernel makes its own, in a file system of its own
            return super().preprocess(nb, resources, km)

    def create_kernel_manager(self):
        """Create a manager whose kernel communicates over Unix sockets in a folder, and so needs no network."""
        manager = super().create_kernel_manager()
        manager.transport, manager.ip = "ipc", str(self._shared / OWN / "kernel")
        manager.connection_file = str(self._shared / SHOWN / "kernel.json")
        if self.sandbox:
            spec = self._shared / "kernels" / "sandbox" / "kernel.json"
            spec.parent.mkdir(parents=True)
            spec.write_text(json.dumps(kernel_spec(self.memory)))
            manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[str(spec.parents[1])])
        return manager

    def _seconds(self, cell: NotebookNode) -> int:
        seconds = self.timeout or 60
        return seconds if is_grade(cell) or not is_locked(cell) else 10 * seconds  # locked cells are the course's code

    def _used(self) -> float:
        """Return the kernel's processor time; it never decreases, even if a process ends or hides its time."""
        kernel: Any = self.km
        self._most_used = max(self._most_used, processor_seconds(kernel.provisioner.pid))
        return self._most_used

    async def _async_handle_timeout(self, timeout, cell=None):
        """Handle a cell that runs longer than ``POLL_SECONDS``; nbclient keeps waiting if ``None`` is returned.

        Raises:
            WallClockExceededError: if the cell exceeds its wall-clock limit.
        """
        assert cell is not None
        seconds, used = self._seconds(cell), self._used() - self._used_before
        if used > seconds:
            self._too_long = True
            return await super()._async_handle_timeout(seconds, cell)
        if monotonic() - self._began > self.clock * seconds:
            raise WallClockExceededError(
                f"it waits for a person: {self.clock * seconds} seconds of wall-clock time have passed in the cell "
                f"{_cell_label(cell)}, with {used:.0f} of its {seconds} seconds of processor time"
            )
        await asyncio.sleep(POLL_SECONDS / 10)  # nbclient may call this again at once
        return None

    def preprocess_cell(self, cell, resources, index):
        """Check a graded cell from this process; run any other cell in the kernel."""
        if is_autograded(cell):
            return self._check(cell, resources, index)
        if cell.cell_type == "code" and is_locked(cell):
            self._import(cell.source)
        return self._run(cell, resources, index)

    def _run(self, cell: NotebookNode, resources, index: int):
        self._printed, self._too_long = 0, False
        self._began, self._used_before = monotonic(), self._used()
        try:
            cell, resources = super().preprocess_cell(cell, resources, index)
        except (DeadKernelError, CellTimeoutError) as error:
            what = "died" if isinstance(error, DeadKernelError) else "could not be interrupted"
            raise KernelLostError(f"the kernel {what} in the cell {_cell_label(cell)}") from error
        errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
        self._failed += [(cell.source, _described(error)) for error in errors]
        return cell, resources

    def _import(self, source: str) -> None:
        imports: list[ast.stmt] = [
            node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names: dict[str, object] = {}
        exec(compile(ast.Module(imports, []), "<imports>", "exec"), names)
        for name, value in names.items():
            if isinstance(value, ModuleType) and value.__name__.startswith("lessons_lib.checks."):
                value = ShiftedSeeds(value, self.seed_shift)
            self._imported[name] = value

    def _check(self, cell: NotebookNode, resources, index: int):
        with socket.socket(socket.AF_UNIX) as listener:
            address = str(self._shared / SHOWN / f"check-{index}")
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(self.clock * self._seconds(cell))
            verdict: list[str] = ["no answer: it ran too long, or its process ended"]
            held: list[socket.socket] = []
            thread = Thread(target=self._run_check, args=(listener, cell.source, verdict, held), daemon=True)
            thread.start()
            source = cell.source
            cell.source = f"__import__('runpy').run_path({str(RPC_FILE)!r})['serve']({address!r}, globals())"
            self._run(cell, resources, index)
            cell.source = source
            with suppress(OSError), socket.socket(socket.AF_UNIX) as nobody:
                nobody.connect(address)  # wakes a check to which the kernel never connected
            for connection in held:  # ends a check that waits for a cell which has ended
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()
            if self._too_long and verdict:
                verdict[:] = [f"no answer: it ran too long, more than {self._seconds(cell)} seconds of processor time"]
        verdict[:] = [with_cause(message, self._failed) for message in verdict]
        printed = [output for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
        cell.outputs = printed + [_error(message) for message in verdict]
        return cell, resources

    def _run_check(self, listener: socket.socket, source: str, verdict: list[str], held: list[socket.socket]) -> None:
        """Run the check in this process; an empty ``verdict`` means that it passed."""
        try:
            connection, _ = listener.accept()
            held.append(connection)
            connection.settimeout(listener.gettimeout())
            with connection, _shutting_down(connection), closing(Answers(connection)) as answers:
                names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
                theirs = names - set(self._imported) - set(dir(builtins))
                exec(source, self._imported | {name: answers.named(name) for name in sorted(theirs)})
            verdict.clear()
        except (AssertionError, NoAnswerError) as error:
            verdict[:] = [str(error)]
        except OSError:  # the kernel never connected, or closed the connection
            pass
        except Exception as error:  # an answer of a type that the check did not expect
            verdict[:] = [f"{type(error).__name__}: {error}"]

    def process_message(self, msg, cell, cell_index):
        """Stop recording a cell's output beyond the limit; an error is still recorded, without its traceback."""
        kind, content = msg["msg_type"], msg["content"]
        if kind.startswith("comm_"):
            return None  # the state of a widget cannot be kept in a graded notebook
        if kind in ("stream", "display_data", "update_display_data", "execute_result", "error"):
            size = len(str(content))
            self._printed, self._printed_in_all = self._printed + size, self._printed_in_all + size
            if self._printed > OUTPUT_LIMIT or self._printed_in_all > 5 * OUTPUT_LIMIT:
                if kind != "error":
                    return None
                shortened = {name: str(content.get(name, ""))[:MESSAGE_LIMIT] for name in ("ename", "evalue")}
                msg = msg | {"content": shortened | {"traceback": ["the rest is left out: this is too much output"]}}
        return super().process_message(msg, cell, cell_index)


@contextmanager
def _shutting_down(connection: socket.socket) -> Iterator[None]:
    """Shut a connection down on exit, even if an exception's frames still refer to it; else the kernel would wait."""
    try:
        yield
    finally:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class HideTests(ClearHiddenTests):
    """Remove the hidden tests from graded cells before feedback is written."""

    def preprocess_cell(self, cell, resources, cell_index):
        """Remove the hidden tests from an automatically graded cell; leave every other cell unchanged."""
        return super().preprocess_cell(cell, resources, cell_index) if is_autograded(cell) else (cell, resources)


def with_cause(message: str, failed: list[tuple[str, str]]) -> str:
    """Return the message of a check; if a name is not defined, with the error of the cell that should have defined it.

    ``failed`` holds the source and the error of each cell of the student's that failed.

    >>> with_cause("NameError: g is not defined", [("def g(x) return x", "SyntaxError: expected ':' (line 1)")])
    "SyntaxError: expected ':' (line 1), so g is not defined"
    """
    if not (found := NOT_DEFINED.match(message)):
        return message
    name = re.escape(found[1])
    defines = re.compile(rf"^[ \t]*(?:async +)?(?:(?:def|class) +{name}\b|{name} *[:=])", re.MULTILINE)
    causes = [error for source, error in failed if defines.search(source)]
    return f"{causes[-1]}, so {found[1]} is not defined" if causes else message


def _described(error: NotebookNode) -> str:
    """Return an error in one line, without the name of the temporary file of its cell."""
    text = CELL_FILE.sub(r"(\1)", next(iter(error.evalue.splitlines()), ""))
    return f"{error.ename}: {text[:200]}" if text else error.ename


def _error(message: str) -> NotebookNode:
    """Return an output that nbgrader reads as a failed check, without a traceback, which would show the hidden test."""
    message = "".join(character for character in message[:MESSAGE_LIMIT] if character.isprintable())  # no escape codes
    return nbformat.v4.new_output("error", ename="CheckFailed", evalue=message, traceback=[message])


def _cell_label(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id") or "that begins: " + cell.source.strip().splitlines()[0]
