"""Build the instructors' site into _build/solutions/html: the same book, with its exercises solved and run.

It is for those who teach. The ordinary build neither reads nor writes it, and the workflow publishes _build/html alone.
"""

import shutil
import sys
from pathlib import Path

import nbformat
import yaml
from build_book import BUILD, ROOT, run_jupyter_book

MASTERS = ROOT / "assignments" / "source"


def with_solutions(master: Path) -> nbformat.NotebookNode:
    """Return the page of a master: the header that every notebook opens with, and what is on paper in a frame."""
    notebook = nbformat.read(master, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.metadata.nbgrader.solution:
            cell.source = f":::{{admonition}} Solution\n{cell.source}\n:::"
    notebook.cells = nbformat.read(MASTERS / "header.ipynb", as_version=4).cells + notebook.cells
    return notebook


def lay_out(target: Path) -> None:
    """Write to ``target`` what the instructors' site is built from."""
    shutil.copytree(ROOT / "book", target / "book", ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    shutil.copy(ROOT / "_toc.yml", target)
    for master in MASTERS.glob("*/*.ipynb"):
        page = target / "book" / "exercises" / master.parent.name / master.name
        page.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(with_solutions(master), page)

    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    settings["title"] += ", with solutions"
    settings["sphinx"]["config"]["html_title"] = settings["title"]
    del settings["sphinx"]["local_extensions"]["runnable"]  # the runnable edition is the students'
    settings["execute"]["exclude_patterns"] = []  # solved, they run
    (target / "_config.yml").write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")


def main() -> int:
    """Build; say where the site is, or that it is not."""
    source, site = BUILD / "solutions" / "source", BUILD / "solutions" / "html"
    shutil.rmtree(BUILD / "solutions", ignore_errors=True)
    source.mkdir(parents=True)
    lay_out(source)
    if status := run_jupyter_book(source):
        return status
    (source / "_build" / "html").rename(site)
    print(f"\nThe book with solutions, not for publication: {(site / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
