"""The API reference: autodoc with footnotes that are numbered separately for every docstring."""

import enum
import re

FOOTNOTE = re.compile(r"(?P<define>^\s*\.\. )?\[(?P<number>\d+)\](?P<refer>_?)", re.MULTILINE)


def make_footnotes_unique(app, what, name, obj, options, lines) -> None:
    """Add the name of the defining docstring to each footnote's label, so that a page can have several [1].

    A number that a docstring uses without defining it refers to the footnote of its module.
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


def hide_enum_signature(app, what, name, obj, options, signature, returns) -> tuple[str, str | None] | None:
    """Show an enumeration without a signature, since its members are not created by a call."""
    return ("", None) if isinstance(obj, type) and issubclass(obj, enum.Enum) else None


def setup(app) -> dict:
    """Register with Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("autodoc-process-docstring", make_footnotes_unique, priority=900)
    app.connect("autodoc-process-signature", hide_enum_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
