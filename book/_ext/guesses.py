"""Guesses on a page: what covers, remembers and counts them comes to pages that ask something, without its remarks."""

from pathlib import Path

from lessons_lib.widgets.assemble import read

FILES = ("guesses.js", "guesses.css")


def equip(app, pagename, templatename, context, doctree) -> None:
    """Bring what covers and remembers to pages that ask something."""
    if 'class="guess"' in (context.get("body") or ""):
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
    app.connect("html-page-context", equip)
    app.connect("build-finished", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
