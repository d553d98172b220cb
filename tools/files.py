"""The files of the repository: what git lists or, in a downloaded folder without a history, what .gitignore leaves."""

import fnmatch
import os
import subprocess
from pathlib import Path


def listed(root: Path, *, new: bool = False) -> list[str]:
    """Return the tracked files, as paths seen from ``root``; with ``new`` also those that could be added.

    Without git, or in a folder that no history knows, these are all files that ``.gitignore`` does not leave out.
    """
    others = ("--others", "--exclude-standard") if new else ()
    command = ("git", "ls-files", "-z", "--cached", *others)
    try:
        said = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        said = ""
    names = [name for name in said.split("\0") if name]
    if not (root / ".git").exists():  # git may have spoken of a repository around this folder
        names = walked(root)
    return sorted(name for name in set(names) if (root / name).is_file())


def walked(root: Path) -> list[str]:
    """Return all files below ``root`` that its ``.gitignore`` does not leave out."""
    ignore = root / ".gitignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    patterns = [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]
    found = []
    for folder, inner, files in os.walk(root):
        here = Path(folder).relative_to(root)
        inner[:] = [name for name in inner if name != ".git" and not _is_ignored(here / name, patterns)]
        found += [(here / name).as_posix() for name in files if not _is_ignored(here / name, patterns)]
    return found


def _is_ignored(path: Path, patterns: list[str]) -> bool:
    """Say whether a pattern fits: one that begins with a slash the whole path, any other the name."""
    return any(
        fnmatch.fnmatch(path.as_posix(), pattern[1:]) if pattern[0] == "/" else fnmatch.fnmatch(path.name, pattern)
        for pattern in patterns
    )
