"""Make do without what a browser forbids to a page that is opened from the disk, as that of the book's zip is."""

from pathlib import Path

ASKED = "SHOW_SEARCH_SUMMARY: true"
UNLESS_FROM_DISK = 'SHOW_SEARCH_SUMMARY: window.location.protocol !== "file:"'


def show_no_summaries_from_disk(app, exception) -> None:
    """Under each find of the search the first lines of its page are shown, which are fetched: from a server only."""
    if exception is None and app.builder.format == "html" and app.config.html_show_search_summary:
        options = Path(app.outdir, "_static", "documentation_options.js")
        text = options.read_text(encoding="utf-8")
        if ASKED not in text:
            raise ValueError(f"{options.name} must hold {ASKED!r}, as Sphinx writes it, got:\n{text}")
        options.write_text(text.replace(ASKED, UNLESS_FROM_DISK), encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", show_no_summaries_from_disk)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
