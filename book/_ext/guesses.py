"""Add the script and the style of guesses to the pages that ask a question."""


def equip(app, pagename, templatename, context, doctree) -> None:
    """Add ``guesses.js``, which covers, stores and counts guesses, and its style to a page with a guess."""
    if 'class="guess"' in (context.get("body") or ""):
        app.add_js_file("guesses.js", loading_method=None)  # at once: what it covers must not show before
        app.add_css_file("guesses.css")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", equip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
