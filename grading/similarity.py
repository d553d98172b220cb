"""Note answers that a person should read twice: identical answers, and functions that the model answer does not use.

A note accuses nobody. Short answers to one question are often the same, so only long answers are compared. An answer
that many students give is the one to which the exercise leads, and is not noted. A name may be used for something
else.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from nbformat import NotebookNode
from nbgrader.utils import is_locked, is_solution

MIN_NODES, MIN_WORDS = 60, 25  # answers with a smaller syntax tree or a shorter text are not compared
MANY, SHARE = 5, 0.1  # an answer is common if more students, and a larger share of the class, have it
# Names of functions, of any library, that compute in one call what exercises ask for.
SHORTCUTS = {"softmax", "log_softmax", "scaled_dot_product_attention", "MultiheadAttention", "logsumexp"}
SHORTCUTS |= {"autograd", "grad", "vjp", "jvp", "backward", "jacobian", "jacrev", "enable_grad"}


def answers(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    """Yield the name and cell of each answer, the cells that students fill in."""
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata and is_solution(cell):
            yield cell.metadata.nbgrader.grade_id, cell


def normalise(cell: NotebookNode) -> str | None:
    """Return a form of an answer that ignores layout, comments and variable names, or ``None`` if it is short."""
    if cell.cell_type != "code":
        words = re.findall(r"\w+", cell.source.casefold())
        return " ".join(words) if len(words) >= MIN_WORDS else None
    try:
        tree = ast.parse(cell.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree))
    if len(nodes) < MIN_NODES:
        return None
    called: dict[str, str] = {}
    for node in nodes:
        for attribute in ("id", "arg", "name"):
            if isinstance(name := getattr(node, attribute, None), str):
                setattr(node, attribute, called.setdefault(name, f"name{len(called)}"))
    try:
        return ast.dump(tree)
    except RecursionError:
        return None


def same_answers(notebooks: Mapping[str, NotebookNode], released: NotebookNode) -> dict[str, list[str]]:
    """Return notes for each student on long answers that other students have as well."""
    given = {name: normalise(cell) for name, cell in answers(released)}
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for student, notebook in sorted(notebooks.items()):
        for name, cell in answers(notebook):
            if (form := normalise(cell)) and form != given.get(name):
                shared[name, form].append(student)
    notes: dict[str, list[str]] = defaultdict(list)
    for (name, _), students in shared.items():
        for student in students if len(students) <= max(MANY, SHARE * len(notebooks)) else ():
            others = [one for one in students if one != student]
            if others:
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                notes[student].append(f"{name} is the same as that of {', '.join(others[:3])}{more}")
    return dict(notes)


def shortcut_notes(notebook: NotebookNode, master: NotebookNode) -> list[str]:
    """Return notes on answers that use the library or a shortcut function which the model answers do not use."""
    noted = {name for cell in master.cells if cell.cell_type == "code" for name in _from_library(cell)}
    noted |= SHORTCUTS | {"lessons_lib"}
    model = {name: _names(cell.source) for name, cell in answers(master) if cell.cell_type == "code"}
    notes: list[str] = []
    for name, cell in answers(notebook):
        if cell.cell_type == "code" and name in model:
            used = (_names(cell.source) & noted) - model[name] - _defined(cell.source)
            notes += [f"{name} uses {', '.join(sorted(used))}"] if used else []
    return notes


def _from_library(cell: NotebookNode) -> Iterator[str]:
    if is_locked(cell):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lessons_lib"):
                yield from (alias.asname or alias.name for alias in node.names if node.module != "lessons_lib.checks")


def _tree(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _defined(source: str) -> set[str]:
    return {node.name for node in ast.walk(_tree(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _names(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(_tree(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found |= set(name.split("."))
            case ast.ImportFrom(module=str(name)):
                found |= set(name.split("."))
            case ast.Constant(value=str(name)) if name.isidentifier():  # getattr(torch, "softmax")
                found.add(name)
    return found
