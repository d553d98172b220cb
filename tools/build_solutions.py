"""Build the instructors' site into _build/solutions/html: the same book, with its exercises solved and run.

The ordinary build neither reads nor writes it, and the workflow publishes only _build/html.
"""

import shutil
import sys
from pathlib import Path

import nbformat
import yaml
from build_book import BUILD, ROOT, run_jupyter_book

sys.path.append(str(ROOT))
from grading.draw_numbers import drawn  # isort: skip

MASTERS = ROOT / "assignments" / "source"


def with_solutions(master: Path) -> nbformat.NotebookNode:
    """Return the page of a master, with the header of every notebook, and with written solutions in a box."""
    notebook = drawn(nbformat.read(master, as_version=4), master.stem)
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.metadata.nbgrader.solution:
            cell.source = f":::{{admonition}} Solution\n{cell.source}\n:::"
    notebook.cells = nbformat.read(MASTERS / "header.ipynb", as_version=4).cells + notebook.cells
    return notebook


def write_sources(target: Path) -> None:
    """Write the sources of the instructors' site to ``target``."""
    shutil.copytree(ROOT / "book", target / "book", ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    shutil.copy(ROOT / "_toc.yml", target)
    for master in MASTERS.glob("*/*.ipynb"):
        page = target / "book" / "exercises" / master.parent.name / master.name
        page.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(with_solutions(master), page)

    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    settings["title"] += ", with solutions"
    settings["sphinx"]["config"]["html_title"] = settings["title"]
    del settings["sphinx"]["local_extensions"]["notebook_export"]  # the runnable edition has no solutions
    settings["execute"]["exclude_patterns"] = []  # solved exercises can be run
    (target / "_config.yml").write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")


def main() -> int:
    """Build the instructors' site and print its address."""
    source, site = BUILD / "solutions" / "source", BUILD / "solutions" / "html"
    for old in (source, site):  # the pages of make solutions stay
        shutil.rmtree(old, ignore_errors=True)
    source.mkdir(parents=True)
    write_sources(source)
    if status := run_jupyter_book(source):
        return status
    (source / "_build" / "html").rename(site)
    print(f"\nThe book with solutions, not for publication: {(site / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
