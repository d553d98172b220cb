"""Note what a person should read twice: answers that are the same, and names that the model answer does without.

A note accuses nobody. Short answers to one question are often the same, so only long ones are compared; an answer that
many have is where the exercise leads, and is not noted; a name may be used for something else.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from nbformat import NotebookNode
from nbgrader.utils import is_locked, is_solution

NODES, WORDS = 60, 25  # of a syntax tree, of a text: what is shorter is not compared
MANY, SHARE = 5, 0.1  # an answer that more have, and a greater part of the class, is common
# What does in one call what exercises ask for, whichever library it comes from.
DOES_IT_ALL = {"softmax", "log_softmax", "scaled_dot_product_attention", "MultiheadAttention", "logsumexp"}
DOES_IT_ALL |= {"autograd", "grad", "vjp", "jvp", "backward", "jacobian", "jacrev", "enable_grad"}


def answers(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    """Yield the cells that students fill in, with their names."""
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata and is_solution(cell):
            yield cell.metadata.nbgrader.grade_id, cell


def normal(cell: NotebookNode) -> str | None:
    """Reduce an answer to what remains when it is laid out, commented and named otherwise; nothing if it is short."""
    if cell.cell_type != "code":
        words = re.findall(r"\w+", cell.source.casefold())
        return " ".join(words) if len(words) >= WORDS else None
    try:
        tree = ast.parse(cell.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree))
    if len(nodes) < NODES:
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
    """Say for each student whose long answers are the same as theirs."""
    given = {name: normal(cell) for name, cell in answers(released)}
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for student, notebook in sorted(notebooks.items()):
        for name, cell in answers(notebook):
            if (form := normal(cell)) and form != given.get(name):
                shared[name, form].append(student)
    notes: dict[str, list[str]] = defaultdict(list)
    for (name, _), students in shared.items():
        for student in students if len(students) <= max(MANY, SHARE * len(notebooks)) else ():
            others = [one for one in students if one != student]
            if others:
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                notes[student].append(f"{name} is the same as that of {', '.join(others[:3])}{more}")
    return dict(notes)


def uncalled_for(notebook: NotebookNode, master: NotebookNode) -> list[str]:
    """Name what answers use of the library, or of what does it all, that the model answers do without."""
    noted = {name for cell in master.cells if cell.cell_type == "code" for name in _from_library(cell)}
    noted |= DOES_IT_ALL | {"lessons_lib"}
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
