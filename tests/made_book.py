"""A book of a few cells, for tests of the pages that are made of what stands in chapters."""

import json
from pathlib import Path


def chapter(at: Path, *cells: str) -> Path:
    """Write a notebook with these Markdown cells."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": [cell]} for cell in cells]}))
    return at


def contents(root: Path, *names: str) -> Path:
    """Write the table of contents: chapters in these places, titled alike, and a page that is none."""
    pages = [{"file": f"book/{name}", "title": Path(name).name.title()} for name in names] + [{"file": "book/notes"}]
    (root / "_toc.yml").write_text(json.dumps({"parts": [{"chapters": pages}]}))
    return root
