"""The API reference: autodoc with the sources of every docstring kept apart."""

import re

FOOTNOTE = re.compile(r"(?P<define>^\s*\.\. )?\[(?P<number>\d+)\](?P<refer>_?)", re.MULTILINE)


def own_footnotes(app, what, name, obj, options, lines) -> None:
    """Give the footnotes of each docstring labels of their own, so that many [1] can share a page."""
    prefix = re.sub(r"\W", "-", name)

    def relabel(match: re.Match) -> str:
        if not (match["define"] or match["refer"]):
            return match[0]
        return f"{match['define'] or ''}[#{prefix}-{match['number']}]{match['refer']}"

    lines[:] = FOOTNOTE.sub(relabel, "\n".join(lines)).split("\n")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("autodoc-process-docstring", own_footnotes, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
