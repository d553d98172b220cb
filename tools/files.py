"""List the files of the repository, from git, or by ``.gitignore`` in a downloaded folder without a history."""

import fnmatch
import os
import subprocess
from pathlib import Path


def listed(root: Path, *, new: bool = False) -> list[str]:
    """Return the tracked files as paths relative to ``root``; with ``new`` also untracked files that are not ignored.

    Without git, or in a folder that is not a repository, these are all files that ``.gitignore`` does not exclude.
    """
    others = ("--others", "--exclude-standard") if new else ()
    command = ("git", "ls-files", "-z", "--cached", *others)
    try:
        output = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        output = ""
    names = [name for name in output.split("\0") if name]
    if not (root / ".git").exists():  # git may have listed a repository that contains this folder
        names = walked(root)
    return sorted(name for name in set(names) if (root / name).is_file())


def walked(root: Path) -> list[str]:
    """Return all files below ``root`` that its ``.gitignore`` does not exclude."""
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
    """Return whether a pattern matches: the whole path if it begins with a slash, else the name."""
    return any(
        fnmatch.fnmatch(path.as_posix(), pattern[1:]) if pattern[0] == "/" else fnmatch.fnmatch(path.name, pattern)
        for pattern in patterns
    )
