"""Write a small sample book, for tests of pages that are generated from the chapters."""

import json
from io import StringIO
from pathlib import Path
from typing import Any


def chapter(at: Path, *cells: str) -> Path:
    """Write a notebook with these Markdown cells and return its path."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": [cell]} for cell in cells]}))
    return at


def contents(root: Path, *names: str) -> Path:
    """Write a table of contents with these chapters, titled by their names, and a page that is not a chapter."""
    pages = [{"file": f"book/{name}", "title": Path(name).name.title()} for name in names] + [{"file": "book/notes"}]
    (root / "_toc.yml").write_text(json.dumps({"parts": [{"chapters": pages}]}))
    return root


def sphinx_app(source: Path, target: Path, settings: dict[str, Any], builder="html", warning: StringIO | None = None):
    """Return a Sphinx application for a build in this process, without messages.

    Sphinx adds the source suffixes of extensions to a default that all builds of a process share. Each application
    has suffixes of its own here, so that no test depends on the builds before it.
    """
    from sphinx.application import Sphinx

    settings = {"source_suffix": {".rst": "restructuredtext"}} | settings
    return Sphinx(source, None, target, target / ".doctrees", builder, settings, status=None, warning=warning)
