"""Run a student's notebook with nbgrader, but check its answers from outside: no answer can reach its own check."""

import ast
import asyncio
import builtins
import json
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
from nbgrader.utils import is_grade, is_locked, is_solution
from traitlets import Bool, Integer

from grading.processes import CLOCK, processor_seconds
from grading.sandbox import OWN, SHOWN, kernel_spec, lent_folder, why_not
from grading.wire import Answers, NoAnswerError

WIRE = Path(__file__).with_name("wire.py")
OUTPUT_LIMIT = 2_000_000  # characters that one cell may print or draw; five times as many a notebook
LOOK = 1  # seconds between two looks at what a cell has used
STARTUP, HANDOVER = 300, 30  # seconds of the clock: for a kernel to start, for a cell to end once it is interrupted
MESSAGE_LIMIT = 1000  # characters of what an error says


class KernelLostError(Exception):
    """The kernel died or stopped answering, so that the rest of the notebook could not be run."""


class OutOfClockError(Exception):
    """The time of a cell on the clock is over, and its processor time is not: it slept, or the machine was busy."""


class OtherInputs:
    """A module of checks that draws from other seeds than the ones written in the notebook."""

    def __init__(self, module: ModuleType, shift: int):
        self._module, self._shift = module, shift

    def __getattr__(self, name: str):
        check = getattr(self._module, name)
        return lambda *answers, seed=0, **options: check(*answers, seed=seed + self._shift, **options)


class CheckedFromOutside(Execute):
    """Execute a notebook in its kernel, except the graded cells: those run here and call the kernel for answers.

    A graded cell may use what the locked cells import and what the student's cells define, and nothing else.

    ``timeout`` counts seconds of processor time, of the kernel and all that it has started. What uses more of them is
    interrupted, and the rest of the notebook is run. On the clock a cell has ``clock`` times as many seconds; what uses
    more of those ends the notebook, which then waits for a person, so that a busy machine costs nobody a point.
    """

    sandbox = Bool(True, help="whether the kernel is a prisoner").tag(config=True)
    memory = Integer(4 * 2**30, help="bytes that the kernel may use").tag(config=True)
    clock = Integer(CLOCK, help="seconds of the clock for each second of processor time").tag(config=True)
    seed_shift = Integer(0, help="added to the seed of every check").tag(config=True)

    def preprocess(self, nb, resources=None, km=None):
        """Run the notebook from its first cell to its last."""
        if self.sandbox and (reason := why_not()):
            raise RuntimeError(f"no sandbox: {reason}")
        self._imported: dict[str, object] = {}
        self.timeout_func = lambda cell: LOOK
        self.startup_timeout = STARTUP
        self.iopub_timeout = HANDOVER  # to be interrupted, or to hand over what it printed
        self.kernel_name = "sandbox" if self.sandbox else "python3"
        self._printed_in_all, self._most_used = 0, 0.0
        with lent_folder() as self._shared:
            (self._shared / SHOWN).mkdir()
            if not self.sandbox:
                (self._shared / OWN).mkdir()  # else it is made by the kernel, out of our sight
            return super().preprocess(nb, resources, km)

    def create_kernel_manager(self):
        """Prepare a kernel that talks by sockets in a folder: it needs no network."""
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
        return seconds if is_grade(cell) or not is_locked(cell) else 10 * seconds  # the last are our own

    def _used(self) -> float:
        """Return the processor time that the kernel has used; it never falls, even where a process hides its own."""
        kernel: Any = self.km
        self._most_used = max(self._most_used, processor_seconds(kernel.provisioner.pid))
        return self._most_used

    async def _async_handle_timeout(self, timeout, cell=None):
        """Look after a cell that runs longer than ``LOOK``: nbclient waits on if nothing is returned.

        Raises:
            OutOfClockError: if its time on the clock is over.
        """
        assert cell is not None
        seconds, used = self._seconds(cell), self._used() - self._used_before
        if used > seconds:
            self._too_long = True
            return await super()._async_handle_timeout(seconds, cell)
        if monotonic() - self._began > self.clock * seconds:
            raise OutOfClockError(
                f"it waits for a person: {self.clock * seconds} seconds went by on the clock in the cell "
                f"{_called(cell)}, and {used:.0f} of its {seconds} on the processor"
            )
        await asyncio.sleep(LOOK / 10)  # nbclient may ask at once
        return None

    def preprocess_cell(self, cell, resources, index):
        """Check a graded cell from outside; run any other."""
        if by_machine(cell):
            return self._check(cell, resources, index)
        if cell.cell_type == "code" and is_locked(cell):
            self._import(cell.source)
        return self._run(cell, resources, index)

    def _run(self, cell: NotebookNode, resources, index: int):
        self._printed, self._too_long = 0, False
        self._began, self._used_before = monotonic(), self._used()
        try:
            return super().preprocess_cell(cell, resources, index)
        except (DeadKernelError, CellTimeoutError) as error:
            what = "died" if isinstance(error, DeadKernelError) else "could not be interrupted"
            raise KernelLostError(f"the kernel {what} in the cell {_called(cell)}") from error

    def _import(self, source: str) -> None:
        imports: list[ast.stmt] = [
            node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names: dict[str, object] = {}
        exec(compile(ast.Module(imports, []), "<imports>", "exec"), names)
        for name, value in names.items():
            if isinstance(value, ModuleType) and value.__name__.startswith("lessons_lib.checks."):
                value = OtherInputs(value, self.seed_shift)
            self._imported[name] = value

    def _check(self, cell: NotebookNode, resources, index: int):
        with socket.socket(socket.AF_UNIX) as listener:
            address = str(self._shared / SHOWN / f"check-{index}")
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(self.clock * self._seconds(cell))
            verdict: list[str] = ["no answer: it ran too long, or its process ended"]
            held: list[socket.socket] = []
            thread = Thread(target=self._judge, args=(listener, cell.source, verdict, held), daemon=True)
            thread.start()
            source = cell.source
            cell.source = f"__import__('runpy').run_path({str(WIRE)!r})['serve']({address!r}, globals())"
            self._run(cell, resources, index)
            cell.source = source
            with suppress(OSError), socket.socket(socket.AF_UNIX) as nobody:
                nobody.connect(address)  # wakes a check that no answer has called
            for connection in held:  # ends one that waits for a cell which has ended
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()
            if self._too_long and verdict:
                verdict[:] = [f"no answer: it ran too long, more than {self._seconds(cell)} seconds of processor time"]
        printed = [output for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
        cell.outputs = printed + [_error(message) for message in verdict]
        return cell, resources

    def _judge(self, listener: socket.socket, source: str, verdict: list[str], held: list[socket.socket]) -> None:
        """Run the check here; an empty verdict is a pass."""
        try:
            connection, _ = listener.accept()
            held.append(connection)
            connection.settimeout(listener.gettimeout())
            with connection, _hung_up(connection), closing(Answers(connection)) as answers:
                names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
                theirs = names - set(self._imported) - set(dir(builtins))
                exec(source, self._imported | {name: answers.named(name) for name in sorted(theirs)})
            verdict.clear()
        except (AssertionError, NoAnswerError) as error:
            verdict[:] = [str(error)]
        except OSError:  # nobody called, or hung up in the middle
            pass
        except Exception as error:  # an answer of a kind that the check did not expect
            verdict[:] = [f"{type(error).__name__}: {error}"]

    def process_message(self, msg, cell, cell_index):
        """Stop recording what a cell puts out when that is too much; that it failed is recorded all the same."""
        kind, content = msg["msg_type"], msg["content"]
        if kind.startswith("comm_"):
            return None  # of a widget only its picture could be kept
        if kind in ("stream", "display_data", "update_display_data", "execute_result", "error"):
            size = len(str(content))
            self._printed, self._printed_in_all = self._printed + size, self._printed_in_all + size
            if self._printed > OUTPUT_LIMIT or self._printed_in_all > 5 * OUTPUT_LIMIT:
                if kind != "error":
                    return None
                said = {name: str(content.get(name, ""))[:MESSAGE_LIMIT] for name in ("ename", "evalue")}
                msg = msg | {"content": said | {"traceback": ["the rest is left out: this is too much output"]}}
        return super().process_message(msg, cell, cell_index)


@contextmanager
def _hung_up(connection: socket.socket) -> Iterator[None]:
    """End a connection even where an exception still holds the frames that use it: else the kernel would wait on."""
    try:
        yield
    finally:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class HideTests(ClearHiddenTests):
    """Take the hidden tests out of graded cells before feedback is written."""

    def preprocess_cell(self, cell, resources, cell_index):
        """Leave a student's own cells alone, whatever is written in them."""
        return super().preprocess_cell(cell, resources, cell_index) if by_machine(cell) else (cell, resources)


def by_machine(cell: NotebookNode) -> bool:
    """Say whether a cell is graded without a person."""
    return cell.cell_type == "code" and is_grade(cell) and not is_solution(cell)


def _error(message: str) -> NotebookNode:
    """Build what nbgrader reads as a failed check; it holds no traceback, which would show the hidden test."""
    message = "".join(character for character in message[:MESSAGE_LIMIT] if character.isprintable())  # for any terminal
    return nbformat.v4.new_output("error", ename="CheckFailed", evalue=message, traceback=[message])


def _called(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id") or "that begins: " + cell.source.strip().splitlines()[0]
