"""Set the repository's address: in _config.yml, where it is defined, and in every file that repeats it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")


def defined_address(root: Path = ROOT) -> str:
    """Read the address from the one place that defines it."""
    found = re.search(rf"^  url: ({ADDRESS.pattern})$", (root / "_config.yml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("_config.yml must hold 'repository: url: https://github.com/OWNER/NAME', found no such line")
    return found[1]


def set_address(new: str, root: Path = ROOT) -> list[str]:
    """Replace the old address by ``new`` in every tracked text file; return the files that changed.

    Raises:
        ValueError: if ``new`` is not of the form https://github.com/OWNER/NAME.
    """
    new = new.strip().removesuffix("/").removesuffix(".git")
    if not ADDRESS.fullmatch(new):
        raise ValueError(f"the address must read https://github.com/OWNER/NAME, got {new!r}")
    old = re.compile(re.escape(defined_address(root)) + r"(?![\w-])")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    changed = []
    for name in filter(None, listed.split("\0")):
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        if (replaced := old.sub(new, text)) != text:
            (root / name).write_text(replaced, encoding="utf-8")
            changed.append(name)
    return changed


if __name__ == "__main__":
    try:
        print("\n".join(set_address(sys.argv[1])) or "The address was that already: nothing changed.")
    except (IndexError, ValueError) as error:
        sys.exit(f"usage: make repository URL=https://github.com/OWNER/NAME\n{error}")
