"""A class of test submissions: the released notebook with other text in some cells, given by the cells' names.

Unless stated otherwise, a submission answers the three code exercises correctly. Most faults are in the first exercise.
Grading one submission takes seconds, so some have two faults, in different exercises.
"""

import copy
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import torch
from nbformat import NotebookNode

from lessons_lib.checks import scaling as check

SCALE = """\
def right_scale(d_k, var_q, var_k):
    return 1 / math.sqrt(d_k * var_q * var_k)"""
SOFTMAX = """\
def stable_softmax(scores, temperature):
    shifted = ((scores - scores.amax(dim=-1, keepdim=True)) / temperature).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)"""
BACKWARD = """\
def attention_backward(q, k, v, grad_out):
    root = math.sqrt(q.shape[-1])
    p = softmax(q @ k.mT / root)
    back_to_p = grad_out @ v.mT
    back_to_s = p * (back_to_p - (p * back_to_p).sum(dim=-1, keepdim=True))
    return back_to_s @ k / root, back_to_s.mT @ q / root, p.mT @ grad_out"""
BY_VJP = """\
from torch.func import vjp
def attention_backward(q, k, v, grad_out):
    return vjp(lambda *x: softmax(x[0] @ x[1].mT / math.sqrt(q.shape[-1])) @ x[2], q, k, v)[1](grad_out)"""
RIGHT = {"scale": SCALE, "softmax": SOFTMAX, "backward": BACKWARD}


@dataclass
class Student:
    """A student's submission, and the expected result: points by exercise, or ``None`` if it cannot be graded."""

    hands_in: Callable[[NotebookNode], NotebookNode | str]
    points: tuple[int, int, int] | None
    says: str | tuple[str, ...] = ()  # expected texts in the messages, the notes or the reason
    needs_sandbox: bool = False
    beside: dict[str, str] = field(default_factory=dict)  # names and contents of other submitted files


def answers(**cells: str) -> Callable[[NotebookNode], NotebookNode]:
    """Fill in correct answers, except in the given cells, named as in the notebook with ``_`` for ``-``."""
    texts = RIGHT | {name.replace("_", "-"): textwrap.dedent(text).strip() for name, text in cells.items()}

    def hands_in(released: NotebookNode) -> NotebookNode:
        notebook = copy.deepcopy(released)
        for cell in notebook.cells:
            cell.source = texts.get(cell.id, cell.source)
        return notebook

    return hands_in


def does(answer: str, *lines: str) -> str:
    """Run these lines in the function before what it does."""
    head, *body = answer.splitlines()
    return "\n".join([head, *(f"    {line}" for line in lines), *body])


def right_scale_does(*lines: str) -> Callable[[NotebookNode], NotebookNode]:
    """Run these lines in the first code exercise's function before it returns the correct answer."""
    return answers(scale=does(SCALE, *lines))


def hard_coded(released: NotebookNode) -> NotebookNode:
    """Return stored results for the inputs of the visible checks, in two exercises."""
    known: list[str] = []

    def write_down(name: str, right: Callable) -> Callable:
        def answer(*arguments):
            result = right(*arguments)
            known.append(f"{name, _digest(arguments)!r}: {result.tolist() if name == 'softmax' else result}")
            return result

        return answer

    space = {"math": __import__("math"), "torch": torch}
    exec(SCALE + "\n" + SOFTMAX, space)
    check.right_scale(write_down("scale", space["right_scale"]))
    check.stable_softmax(write_down("softmax", space["stable_softmax"]))
    digest = "def digest(given):\n    return [float(torch.as_tensor(one).double().sum()) for one in given]"
    scale = "def right_scale(*given):\n    return KNOWN['scale', repr(digest(given))]"
    softmax = "def stable_softmax(*given):\n    return torch.tensor(KNOWN['softmax', repr(digest(given))]).double()"
    table = "KNOWN = {" + ", ".join(known) + "}"
    return answers(scale=f"{table}\n{digest}\n{scale}", softmax=softmax)(released)


def _digest(arguments: tuple) -> str:
    return repr([float(torch.as_tensor(one).double().sum()) for one in arguments])


def without_metadata(released: NotebookNode) -> NotebookNode:
    """Remove ids and metadata, as some programs do."""
    notebook = answers()(released)
    for i, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = NotebookNode(), f"other-{i}"
    return notebook


def without_an_answer(released: NotebookNode) -> NotebookNode:
    """Remove a question and the cell for its answer."""
    notebook = without_metadata(released)
    gone = {cell.id for cell in released.cells if cell.id in ("moments", "moments-text", "scale-text")}
    kept = [cell for cell, was in zip(notebook.cells, released.cells, strict=True) if was.id not in gone]
    return NotebookNode(notebook | {"cells": kept})


def with_a_copy(released: NotebookNode) -> NotebookNode:
    """Add a copy of a cell, including its metadata, with a wrong first attempt."""
    notebook = answers()(released)
    place = next(i for i, cell in enumerate(notebook.cells) if cell.id == "scale")
    attempt = copy.deepcopy(notebook.cells[place])
    attempt.id, attempt.source = "copied", SCALE.replace("math.sqrt", "")
    notebook.cells.insert(place, attempt)
    return notebook


def digs_beside(released: NotebookNode) -> NotebookNode:
    """Leave two answers' cells unchanged; one answer is in a new cell below, and code makes deep folders."""
    notebook = answers(needle=DIGS)(released)
    place = next(i for i, cell in enumerate(notebook.cells) if cell.id == "moments")
    notebook.cells.insert(place + 1, nbformat.v4.new_markdown_cell("The mean is $d_k \\mu_q \\mu_k$."))
    return notebook


def plants_and_edits(released: NotebookNode) -> NotebookNode:
    """Replace the graded cells by trivial ones, with more points, and write scripts into text and output."""
    easier = {"scale": SCALE.replace("math.sqrt", ""), "scale_check": "pass", "scale_graded": "pass"}
    notebook = answers(**easier, needle=PLANTS, moments=PLANTED_TEXT, eigenvalues="<b>4</b>")(released)
    for cell in notebook.cells:
        if cell.id == "scale-check":
            cell.metadata.nbgrader.points = 100
    return notebook


def broken(released: NotebookNode) -> str:
    """Return an incomplete file, as a full disk would leave it."""
    return nbformat.writes(answers()(released))[:5000]


OLD = [(minor, ids) for minor in range(5) for ids in ("with", "without", "in metadata")]


def as_written_elsewhere(notebook, minor: int, ids: str, path: Path) -> Path:
    """Write a notebook in format 4.``minor``, with cell ids, without them, or with ids ``in metadata``.

    nbformat refuses to write some of these combinations, but Colab, Kaggle and CoCalc write them.
    """
    content = json.loads(nbformat.writes(notebook))
    content["nbformat_minor"] = minor
    for cell in content["cells"]:
        if ids != "with":
            given = cell.pop("id")
            cell["metadata"] |= {"id": given} if ids == "in metadata" else {}
    path.write_text(json.dumps(content))
    return path


TAMPERS = """
import builtins, lessons_lib.checks, lessons_lib.attention.attention, lessons_lib.attention.softmax
check.right_scale = check.stable_softmax = check.attention_backward = lambda *given, **options: None
lessons_lib.checks.compare = check.compare = lambda *given, **options: None
torch.allclose = torch.equal = lambda *given, **options: True
builtins.AssertionError = Warning
get_ipython().showtraceback = lambda *given, **options: None
get_ipython().input_transformers_post.append(lambda lines: ["pass\\n"] if "check" in "".join(lines) else lines)

class Agrees(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, given=(), options=None):
        return True if function.__name__ in ("allclose", "equal", "all") else super().__torch_function__(
            function, types, given, options or {})

def right_scale(*given):
    return torch.zeros(()).double().as_subclass(Agrees)
"""
LOOKS = """
import gc, sys

def found(shape):
    frame = sys._getframe()
    while frame := frame.f_back:
        for name in ("wanted", "spread", "mistakes"):
            if name in frame.f_locals:
                return frame.f_locals[name]
    return next((one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.shape == shape), None)

def right_scale(d_k, var_q, var_k):
    return found(())
"""
READS = """
import glob, json

def right_scale(d_k, var_q, var_k):
    (path,) = glob.glob("COURSE/*/right/scaling/scaling.ipynb")[:1]
    for cell in json.load(open(path))["cells"]:
        if "def right_scale" in "".join(cell["source"]):
            exec("".join(cell["source"]), globals())
    return right_scale(d_k, var_q, var_k)
"""
DELETES = """
import os, shutil, sys
for place in ("COURSE", "REPOSITORY", os.path.expanduser("~"), sys.prefix, "/usr/lib", os.getcwd()):
    shutil.rmtree(place, ignore_errors=True)
for place in ("COURSE/gradebook.db", "COURSE/planted", "REPOSITORY/planted", "/usr/planted"):
    try:
        open(place, "w").write("mine")
    except OSError:
        pass
"""
CLIMBS = """
import ctypes, os
print(open("/proc/1/environ").read())

def is_open(attempt, *given):
    try:
        return attempt(*given) != -1
    except OSError:
        return False

def right_scale(d_k, var_q, var_k):
    for name in ("kernel/core_pattern", "kernel/hostname", "vm/drop_caches"):
        if is_open(os.open, f"/proc/sys/{name}", os.O_WRONLY):
            raise RuntimeError(f"the host's {name} is open")
    if is_open(ctypes.CDLL(None).unshare, 0x10000000):
        raise RuntimeError("a namespace of its own")
    return 1 / math.sqrt(d_k * var_q * var_k)
"""
CALLS = (
    "import socket",
    "for address in (('127.0.0.1', PORT), ('1.1.1.1', 443)):",
    "    with __import__('contextlib').suppress(ConnectionRefusedError):",
    "        socket.create_connection(address, timeout=5)",
)
DIGS = """
import os
from ipykernel.connect import get_connection_file
os.chdir(os.path.join(os.path.dirname(get_connection_file()), os.pardir, "own"))
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.chdir("/tmp")
"""
SHOUTS = """
from IPython.display import display
handle = display("", display_id=True)
handle.update({"text/plain": "x" * 12_000_000}, raw=True)
raise ValueError("y" * 12_000_000)
"""
PLANTS = """
from IPython.display import HTML, SVG, Javascript, Markdown, display
for kind in (HTML, Markdown):
    display(kind("<script>window.planted = 1</script><img src=nope onerror='window.planted = 2'><b>seen</b>"))
display(Javascript("window.planted = 'by a script'"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' onload='window.planted = 3'></svg>"))
"""
PLANTED_TEXT = """
The mean is $d_k \\mu_q \\mu_k$. <script>window.planted = 'by text'</script>

<img src=nope onerror="window.planted = 'by a picture'"> [press](javascript:window.planted='by a link')
"""

CLASS = {
    "right": Student(answers(moments="It is $d_k$ times that.", needle="print('ten draws')"), (3, 4, 6)),
    "wrong": Student(
        answers(
            scale=SCALE.replace("math.sqrt", ""),
            softmax=SOFTMAX.replace(" - scores.amax(dim=-1, keepdim=True)", ""),
            backward=BACKWARD.replace("math.sqrt", ""),
        ),
        (0, 0, 0),
        "the square root is missing",
    ),
    "half-right": Student(
        answers(
            scale="def right_scale(d_k, var_q, var_k) return 1",
            backward=BACKWARD.replace("back_to_s @ k / root", "back_to_s @ k").replace("@ q / root", "@ q"),
        ),
        (0, 4, 2),
        (
            "scale-check: SyntaxError: expected ':' (line 1), so right_scale is not defined",
            "backward-k-graded: grad_k is wrong: the factor 1/sqrt(d_k) of the scores is missing in this gradient",
        ),
    ),
    "empty": Student(copy.deepcopy, (0, 0, 0), "NotImplementedError"),
    "hard-coded": Student(hard_coded, (0, 0, 6), "KeyError"),
    "exception": Student(
        answers(scale=does(SCALE, "d_k / 0"), backward=BY_VJP),
        (0, 4, 0),
        ("ZeroDivisionError: division by zero, at: d_k / 0", "write the backward pass by hand"),
    ),
    "endless-loop": Student(right_scale_does("while True: pass"), (0, 4, 6), "it ran too long"),
    "eats-memory": Student(
        right_scale_does("hoard = []", "while True: hoard.append(torch.empty(2**27))"),
        (0, 4, 6),
        "memory",
        needs_sandbox=True,
    ),
    "fills-the-disk": Student(
        right_scale_does("with open('/tmp/full', 'wb') as file:", "    while True: file.write(bytes(2**24))"),
        (0, 4, 6),
        "Error",
        needs_sandbox=True,
    ),
    "reads-and-deletes-files": Student(
        answers(scale=READS, needle=DELETES), (0, 4, 6), "not enough values", needs_sandbox=True
    ),
    "tampers-with-checks": Student(answers(scale=TAMPERS, softmax="", backward=""), (0, 0, 0)),
    "looks-for-the-reference": Student(
        answers(
            scale=LOOKS,
            needle="for i in range(160_000):\n    print('BEGIN HIDDEN TESTS')",
            moments="### BEGIN HIDDEN TESTS",
        ),
        (0, 4, 6),
    ),
    "climbs-out": Student(
        answers(scale=CLIMBS, softmax=does(SOFTMAX, *CALLS)), (3, 0, 6), "Network is unreachable", needs_sandbox=True
    ),
    "digs-deep": Student(
        digs_beside,
        (3, 4, 6),
        (
            "moments is as handed out, but look at the cells around it",
            "needle-answer is as handed out, but look at needle",
        ),
    ),
    "shouts": Student(answers(needle=SHOUTS), (3, 4, 6)),
    "plants-scripts": Student(plants_and_edits, (0, 4, 6), "d_k"),
    "loses-metadata": Student(without_metadata, (3, 4, 6), "scale-check had lost its metadata, found by its text"),
    "loses-an-answer": Student(without_an_answer, None, "the answer moments is missing"),
    "copies-a-cell": Student(
        with_a_copy,
        (3, 4, 6),
        ("scale occurs twice", "its timestamp.txt is no date"),
        beside={"timestamp.txt": "2026-99-99 yesterday"},
    ),
    "broken-file": Student(broken, None, "it is no notebook"),
    "quits": Student(right_scale_does("import os", "os._exit(0)"), None, "the kernel died"),
    "sleeps": Student(  # a submission that avoids grading: it gets no points, and does not affect other students
        right_scale_does("import time", "time.sleep(10**6)"),
        None,
        "it waits for a person: 50 seconds of wall-clock time have passed in the cell scale-check, with",
    ),
    "cannot-be-stopped": Student(
        right_scale_does("import signal", "signal.signal(signal.SIGINT, signal.SIG_IGN)", "while True: pass"),
        None,
        "the kernel could not be interrupted in the cell scale-check",
    ),
}
