"""Build the site into _build/html with warnings as errors, running each notebook whose outputs may have changed.

With the name of a language, build the site in that language beside it (``build_language.py``).
"""

import shutil
import subprocess
import sys
from pathlib import Path

from build_language import build
from pin_library import pin_edition
from runs import BUILD, ROOT, run_notebooks
from set_repository import defined_address


def run_jupyter_book(source: Path, *builder: str) -> int:
    """Build the site of ``source`` into ``source/_build/html``; return the exit status, 0 for success.

    If a notebook fails, nothing is built. ``builder`` are arguments of jupyter-book that select another builder.
    """
    if not run_notebooks(source):
        return 1
    if not builder:
        shutil.rmtree(source / "_build" / "html", ignore_errors=True)  # removes pages that no longer exist
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    # --all: an incremental build would not repeat the warnings of the previous one.
    build = subprocess.run([jupyter_book, "build", source, "--all", "-W", "-n", "--keep-going", *builder], cwd=source)
    if build.returncode:
        print("The book was not built: see the warnings above; each of them counts as an error.", file=sys.stderr)
    return build.returncode


def placeholder_notice(root: Path = ROOT) -> str:
    """Return a notice if the repository's address is still the placeholder, or an empty string."""
    address = defined_address(root)
    if "/OWNER/" not in address:
        return ""
    return f"No launch buttons: {address} is a placeholder. Set it with make repository URL=https://github.com/you/your-fork"


def main() -> int:
    """Build the book, or its translation into the language that is given, and print the site's address."""
    if len(sys.argv) > 1:
        try:
            return build(sys.argv[1])
        except ValueError as error:
            print(f"make book: {error}", file=sys.stderr)
            return 2
    if status := run_jupyter_book(ROOT):
        return status
    notices = pin_edition(BUILD), placeholder_notice()
    print(f"\nThe book: {(BUILD / 'html' / 'index.html').as_uri()}   (or: make serve)")
    for notice in filter(None, notices):
        print(notice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
