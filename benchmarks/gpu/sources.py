"""Which code is measured: its commit, and a fingerprint of each file that makes the kernels."""

import ast
import hashlib
import io
import subprocess
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLASH = "lessons_lib/flash"


def fingerprint(root: Path = ROOT) -> dict[str, str]:
    """Return a hash for each file of the package that :mod:`lessons_lib.flash.launch` is made of, itself included.

    Comments and docstrings do not count: what they change cannot change a kernel.
    """
    found, waiting = {}, ["launch"]
    while waiting:
        name = waiting.pop()
        path = root / FLASH / f"{name}.py"
        if str(path) not in found and path.exists():
            source = path.read_text(encoding="utf-8")
            found[str(path)] = digest(source)
            waiting += _neighbours(source)
    return {Path(path).relative_to(root).as_posix(): found[path] for path in sorted(found)}


def digest(source: str) -> str:
    """Sixteen hexadecimal digits for a source, comments and docstrings left out."""
    return hashlib.sha256(_code(source).encode()).hexdigest()[:16]


def changed(measured: dict[str, str], root: Path = ROOT) -> list[str]:
    """The files that are not as they were when they were measured, come or gone since included."""
    now = fingerprint(root)
    return sorted(name for name in now.keys() | measured.keys() if now.get(name) != measured.get(name))


def commit(root: Path = ROOT) -> str | None:
    """The commit that is checked out, ``+`` behind it if the kernels differ from it; None without git or a history."""
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(root, "status", "--porcelain", "--", FLASH) else "")


# --- parts ----------------------------------------------------------------------------------------------------------


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


def _neighbours(source: str) -> list[str]:
    """The files of the same package that a source imports."""
    names, package = [], FLASH.replace("/", ".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            names.append(str(node.module).rsplit(".", 1)[-1])
    return names


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
