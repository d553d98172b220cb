"""Add the script that marks chapters as read to the chapters and to the first page, which shows the marks."""

import re

CONCERNED = re.compile(r'class="(?:remember docutils container|gallery of-chapters)"')


def add_script(app, pagename, templatename, context, doctree) -> None:
    """Add ``progress.js`` to pages with a summary *Remember* or with the chapters' cards."""
    if CONCERNED.search(context.get("body") or ""):
        app.add_js_file("progress.js", loading_method="defer")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
