"""Pin the library's commit in notebooks that leave the repository, so that they still run in a year.

The notebooks that are committed here install the newest library. The copies for readers and students install the
commit from which they were made.
"""

import shutil
import subprocess
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ("lessons_lib", "pyproject.toml")  # the paths from which pip builds the library
NEWEST = "/archive/refs/heads/main.zip"


def library_commit(root: Path = ROOT) -> str | None:
    """Return the last commit that changed the library, or ``None`` without a history (in a downloaded folder).

    This is not the last commit of all, so that a notebook stays the same, byte for byte, while it and the library do.
    """
    try:
        return _git(root, "log", "-1", "--format=%H") or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *command: str) -> str:
    """Return the output of a git command that is restricted to the library's paths."""
    command = ("git", *command, "--", *LIBRARY)
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def pinned(source: str, commit: str) -> str:
    """Return the source of the cell that installs the library, with the address of ``commit``.

    Raises:
        ValueError: if the cell does not install the newest library.
    """
    if source.count(NEWEST) != 1:
        raise ValueError(f"the first code cell must install the library from ...{NEWEST}, got:\n{source}")
    return source.replace(NEWEST, f"/archive/{commit}.zip")


def pin(notebook: Path, commit: str) -> None:
    """Pin the library's commit in a notebook's first code cell; nothing else changes."""
    content = nbformat.read(notebook, as_version=4)
    first = next(cell for cell in content.cells if cell.cell_type == "code")
    first.source = pinned(first.source, commit)
    nbformat.write(content, notebook)


def pin_all(folder: Path, root: Path = ROOT) -> str:
    """Pin every notebook in the folder; return a notice for the user, or an empty string."""
    commit = library_commit(root)
    if commit is None:
        return "The notebooks install the library's newest state: no commit to name, as there is no git history here."
    for notebook in folder.rglob("*.ipynb"):
        pin(notebook, commit)
    if _git(root, "status", "--porcelain"):
        return f"The notebooks install the library of {commit[:10]}. Yours differs: commit it, then make them again."
    return ""


def pin_edition(build: Path, root: Path = ROOT) -> str:
    """Pin the runnable edition, and copy it to the site's downloads, if there is a site.

    Returns:
        a notice for the user, or an empty string.
    """
    edition, downloads = build / "notebooks", build / "html" / "_sources"
    notice = pin_all(edition, root)
    for notebook in edition.rglob("*.ipynb"):
        if (download := downloads / notebook.relative_to(edition)).exists():
            shutil.copy(notebook, download)
    return notice
