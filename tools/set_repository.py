"""Set the repository's address: in _config.yml, where it is defined, and in every file that repeats it."""

import re
import sys
from pathlib import Path

from files import listed

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")


def defined_address(root: Path = ROOT) -> str:
    """Return the repository's address that ``_config.yml`` defines.

    Raises:
        ValueError: if ``_config.yml`` has no such line.
    """
    found = re.search(rf"^  url: ({ADDRESS.pattern})$", (root / "_config.yml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("_config.yml must hold 'repository: url: https://github.com/OWNER/NAME', found no such line")
    return found[1]


def set_address(new: str, root: Path = ROOT) -> list[str]:
    """Replace the old address by ``new`` in every text file of the repository; return the files that changed.

    Raises:
        ValueError: if ``new`` is not of the form https://github.com/OWNER/NAME.
    """
    new = new.strip().removesuffix("/").removesuffix(".git")
    if not ADDRESS.fullmatch(new):
        raise ValueError(f"the address must read https://github.com/OWNER/NAME, got {new!r}")
    old = re.compile(re.escape(defined_address(root)) + r"(?![\w-])")
    changed = []
    for name in listed(root):
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file
        if (replaced := old.sub(new, text)) != text:
            (root / name).write_text(replaced, encoding="utf-8")
            changed.append(name)
    return changed


if __name__ == "__main__":
    try:
        changed = set_address(sys.argv[1])
    except (IndexError, ValueError) as error:
        sys.exit(f"usage: make repository URL=https://github.com/OWNER/NAME\n{error}")
    if changed:
        print("\n".join(changed))
        print("\nThe address was changed in these files. Commit them and push.")
    else:
        print("The address was that already: nothing changed.")
