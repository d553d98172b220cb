"""Helpers for pages that are generated from the chapters: list the chapters, read their text, fill in a page."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import catalogs
import yaml
from messages import translated


def chapters(root: Path) -> dict[str, Path]:
    """Return the notebooks of the chapters by their titles in ``_toc.yml``."""
    files = _files_by_title((root / "_toc.yml").read_text(encoding="utf-8"))
    return {title: root / f"{file}.ipynb" for title, file in files.items()}


@cache  # many pages ask for the chapters
def _files_by_title(toc: str) -> dict[str, str]:
    pages = [page for part in yaml.safe_load(toc)["parts"] for page in part["chapters"]]
    return {page["title"]: page["file"] for page in pages if "title" in page}


def markdown_cells(chapter: Path) -> list[str]:
    """Return the sources of a chapter's Markdown cells."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def in_language(text: str, chapter: Path, root: Path) -> str:
    """Return Markdown of a chapter, or of another page, with its messages in the language of this build."""
    if not (language := catalogs.language()):
        return text
    docname = chapter.relative_to(root).with_suffix("").as_posix()
    return translated(text, catalogs.of_page(language, docname).get)


def page_filler(page: str, filled: Callable[[str, Path], str]) -> Callable:
    """Return a listener for ``source-read`` that replaces the page's Markdown by ``filled(markdown, root)``.

    Sphinx builds the page again when a chapter changes.
    """

    def fill(app, docname, source) -> None:
        if docname != page:
            return
        root = Path(app.srcdir)
        for path in (root / "_toc.yml", *chapters(root).values()):
            app.env.note_dependency(str(path))
        source[0] = filled(source[0], root)

    return fill
