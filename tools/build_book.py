"""Build the site into _build/html with warnings as errors, running each notebook whose outputs may have changed."""

import shutil
import subprocess
import sys
from pathlib import Path

from pin_library import pin_edition
from runs import BUILD, ROOT, run_notebooks
from set_repository import defined_address


def run_jupyter_book(source: Path, *builder: str) -> int:
    """Build the site of ``source`` into ``source/_build/html``; return the exit status, 0 if nothing was amiss.

    Where a notebook fails, nothing is built. Arguments of jupyter-book may name another builder.
    """
    if not run_notebooks(source):
        return 1
    if not builder:
        shutil.rmtree(source / "_build" / "html", ignore_errors=True)  # a page that is gone must not linger
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    # --all: an incremental build forgets the warnings of the one before.
    build = subprocess.run([jupyter_book, "build", source, "--all", "-W", "-n", "--keep-going", *builder], cwd=source)
    if build.returncode:
        print("The book was not built: see the warnings above; each of them counts as an error.", file=sys.stderr)
    return build.returncode


def without_address(root: Path = ROOT) -> str:
    """Say that the repository's address is still the placeholder, or nothing if it is not."""
    address = defined_address(root)
    if "/OWNER/" not in address:
        return ""
    return f"No launch buttons: {address} is a placeholder. Set it with make repository URL=https://github.com/you/your-fork"


def main() -> int:
    """Build; say where the site is, or that it is not."""
    if status := run_jupyter_book(ROOT):
        return status
    notes = pin_edition(BUILD), without_address()
    print(f"\nThe book: {(BUILD / 'html' / 'index.html').as_uri()}   (or: make serve)")
    for said in filter(None, notes):
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
