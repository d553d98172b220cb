"""The measured code: its commit, and a fingerprint of each file of the kernels."""

import ast
import hashlib
import io
import subprocess
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLASH = "lessons_lib/flash"


def fingerprint(root: Path = ROOT) -> dict[str, str]:
    """Return a hash of :mod:`lessons_lib.flash.autograd` and of each file of its package that it imports.

    Imports are followed further. Comments and docstrings are left out, because they cannot change a kernel.
    """
    found, waiting = {}, ["autograd"]
    while waiting:
        name = waiting.pop()
        path = root / FLASH / f"{name}.py"
        if str(path) not in found and path.exists():
            source = path.read_text(encoding="utf-8")
            found[str(path)] = digest(source)
            waiting += _neighbours(source)
    return {Path(path).relative_to(root).as_posix(): found[path] for path in sorted(found)}


def digest(source: str) -> str:
    """Return the hash of a source without its comments and docstrings, as 16 hexadecimal digits."""
    return hashlib.sha256(_code(source).encode()).hexdigest()[:16]


def changed(measured: dict[str, str], root: Path = ROOT) -> list[str]:
    """Return the files that have changed since the measurement, including new and deleted ones."""
    now = fingerprint(root)
    return sorted(name for name in now.keys() | measured.keys() if now.get(name) != measured.get(name))


def commit(root: Path = ROOT) -> str | None:
    """Return the current commit, with a ``+`` if the kernels differ from it; None without git or a history."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(root, "status", "--porcelain", "--", FLASH) else "")


# --- parts ----------------------------------------------------------------------------------------------------------


@cache
def _code(source: str) -> str:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno
            lines[first - 1 : last] = [""] * (last - first + 1)  # pyright: ignore[reportOptionalOperand]
    return "\n".join(line.rstrip() for line in lines if line.strip())


@cache
def _neighbours(source: str) -> tuple[str, ...]:
    """Return the files of the same package that a source imports."""
    names, package = [], FLASH.replace("/", ".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            names.append(str(node.module).rsplit(".", 1)[-1])
    return tuple(names)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
