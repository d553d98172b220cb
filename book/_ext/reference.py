"""The API reference: autodoc with the sources of every docstring kept apart."""

import enum
import re

FOOTNOTE = re.compile(r"(?P<define>^\s*\.\. )?\[(?P<number>\d+)\](?P<refer>_?)", re.MULTILINE)


def own_footnotes(app, what, name, obj, options, lines) -> None:
    """Give footnotes the name of the docstring that defines them, so that many [1] can share a page.

    A number that a docstring uses without defining it is its module's.
    """
    text = "\n".join(lines)
    defined = {match["number"] for match in FOOTNOTE.finditer(text) if match["define"]}
    module = name if what == "module" else getattr(obj, "__module__", name)

    def relabel(match: re.Match) -> str:
        if not (match["define"] or match["refer"]):
            return match[0]
        label = re.sub(r"\W", "-", name if match["number"] in defined else module)
        return f"{match['define'] or ''}[#{label}-{match['number']}]{match['refer']}"

    lines[:] = FOOTNOTE.sub(relabel, text).split("\n")


def choices_are_not_called(app, what, name, obj, options, signature, returns) -> tuple[str, str | None] | None:
    """Show an enumeration by its name alone: nobody makes one by calling it."""
    return ("", None) if isinstance(obj, type) and issubclass(obj, enum.Enum) else None


def setup(app) -> dict:
    """Register with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("autodoc-process-docstring", own_footnotes, priority=900)
    app.connect("autodoc-process-signature", choices_are_not_called)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
