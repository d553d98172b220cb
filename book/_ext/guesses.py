"""Guesses on a page: their script and style where there are any, and what they repeat only once.

Every output of a notebook carries all that it needs, to be live wherever it is shown. On a page the second copy of a
part is so much weight: of what is marked ``data-part`` with the same key, the first is kept.
"""

import re
from pathlib import Path

from lessons_lib.widgets.assemble import read

FILES = ("guesses.js", "guesses.css")
PART = re.compile(r'<(script|style) data-part="([\w.-]+)">.*?</\1>', re.DOTALL)


def keep_first(body: str) -> str:
    """Leave out the parts of a page that it has already."""
    seen: set[tuple[str, str]] = set()

    def once(found: re.Match) -> str:
        known = found.group(1, 2) in seen
        seen.add(found.group(1, 2))
        return "" if known else found[0]

    return PART.sub(once, body)


def lighten(app, pagename, templatename, context, doctree) -> None:
    """Keep one copy of each part, and bring what covers and remembers to pages that ask something."""
    body = context.get("body") or ""
    if "data-part" in body:
        context["body"] = keep_first(body)
    if 'class="guess"' in body:
        app.add_js_file("guesses.js", loading_method=None)  # at once: what it covers must not show before
        app.add_css_file("guesses.css")


def shorten(app, exception) -> None:
    """Leave remarks and indentation out of what a page loads."""
    if exception is None and app.builder.format == "html":
        for name in FILES:
            file = Path(app.outdir, "_static", name).resolve()
            file.write_text(read(str(file)), encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", lighten)
    app.connect("build-finished", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
