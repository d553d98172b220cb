"""Adapt the site to the ``file:`` protocol, for readers who unpack the book's zip: browsers forbid fetching there."""

from pathlib import Path

ALWAYS = "SHOW_SEARCH_SUMMARY: true"
UNLESS_FILE_PROTOCOL = 'SHOW_SEARCH_SUMMARY: window.location.protocol !== "file:"'


def skip_search_summaries(app, exception) -> None:
    """Show summaries under search results only if the site comes from a server, since summaries are fetched pages."""
    if exception is None and app.builder.format == "html" and app.config.html_show_search_summary:
        options = Path(app.outdir, "_static", "documentation_options.js")
        text = options.read_text(encoding="utf-8")
        if ALWAYS not in text:
            raise ValueError(f"{options.name} must hold {ALWAYS!r}, as Sphinx writes it, got:\n{text}")
        options.write_text(text.replace(ALWAYS, UNLESS_FILE_PROTOCOL), encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", skip_search_summaries)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
