"""What several pages are made of: the contents' chapters, their text, and a page filled in as the book is built."""

import json
from collections.abc import Callable
from pathlib import Path

import yaml


def chapters(root: Path) -> dict[str, Path]:
    """The notebooks of the contents that are chapters, by the titles that the contents give them."""
    parts = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    pages = [page for part in parts for page in part["chapters"] if "title" in page]
    return {page["title"]: root / f"{page['file']}.ipynb" for page in pages}


def texts(chapter: Path) -> list[str]:
    """The Markdown cells of the chapter."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def filling(page: str, filled: Callable[[str, Path], str]) -> Callable:
    """Return a listener that fills in the page's Markdown, and has it made again when a chapter changes."""

    def fill(app, docname, source) -> None:
        if docname != page:
            return
        root = Path(app.srcdir)
        for path in (root / "_toc.yml", *chapters(root).values()):
            app.env.note_dependency(str(path))
        source[0] = filled(source[0], root)

    return fill
