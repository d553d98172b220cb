"""Name the library's commit in a notebook that leaves the repository, so that it still runs in a year.

What is committed here installs the library's newest state; what readers open and students are handed installs the one
that it was made from.
"""

import shutil
import subprocess
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ("lessons_lib", "pyproject.toml")  # what pip builds the library from
NEWEST = "/archive/refs/heads/main.zip"


def library_commit(root: Path = ROOT) -> str | None:
    """Return the last commit that changed the library, or None where there is no history (a downloaded folder).

    Not the last commit at all: a notebook stays the same, letter by letter, as long as it and the library do.
    """
    try:
        return _git(root, "log", "-1", "--format=%H") or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *command: str) -> str:
    """What git says of the library."""
    asked = ("git", *command, "--", *LIBRARY)
    return subprocess.run(asked, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def pinned(source: str, commit: str) -> str:
    """Return the cell that installs the library, its address that of ``commit``.

    Raises:
        ValueError: if the cell does not install the newest library.
    """
    if source.count(NEWEST) != 1:
        raise ValueError(f"the first code cell must install the library from ...{NEWEST}, got:\n{source}")
    return source.replace(NEWEST, f"/archive/{commit}.zip")


def pin(notebook: Path, commit: str) -> None:
    """Write the notebook anew with its first code cell pinned, and nothing else changed."""
    content = nbformat.read(notebook, as_version=4)
    first = next(cell for cell in content.cells if cell.cell_type == "code")
    first.source = pinned(first.source, commit)
    nbformat.write(content, notebook)


def pin_all(folder: Path, root: Path = ROOT) -> str:
    """Pin every notebook in the folder; return what there is to say about it, or nothing."""
    commit = library_commit(root)
    if commit is None:
        return "The notebooks install the library's newest state: no commit to name, as there is no git history here."
    for notebook in folder.rglob("*.ipynb"):
        pin(notebook, commit)
    if _git(root, "status", "--porcelain"):
        return f"The notebooks install the library of {commit[:10]}. Yours differs: commit it, then make them again."
    return ""


def pin_edition(build: Path, root: Path = ROOT) -> str:
    """Pin the runnable edition, and put it behind the download buttons of the site, if there is one.

    Returns:
        what there is to say about it, or nothing.
    """
    edition, downloads = build / "notebooks", build / "html" / "_sources"
    said = pin_all(edition, root)
    for notebook in edition.rglob("*.ipynb"):
        if (download := downloads / notebook.relative_to(edition)).exists():
            shutil.copy(notebook, download)
    return said
