"""The page *The formulas that matter*: each formula is copied from its chapter when the book is built.

A line of the page, ``* eq-label: **Name.** What its symbols are.``, becomes a box with the formula, the text, and a
link to the formula in its chapter.
"""

import html
import os
import re
from pathlib import Path

import catalogs
from chapters import chapters, markdown_cells, page_filler

PAGE = "book/cheat-sheet"
ENTRY = re.compile(r"^\* (eq-[\w-]+): (.+)$", re.MULTILINE)
LABELLED = re.compile(r"\$\$((?:(?!\$\$).)+)\$\$ \((eq-[\w-]+)\)", re.DOTALL)
MARKS = r"(?:\\[,;: ]|[\s.,:;])*"  # punctuation and the spaces before it
STOP = re.compile(MARKS + r"(\\end\{\w+\})?" + MARKS + "$")

Formulas = dict[str, tuple[str, str, Path]]  # by label: the formula, the title of its chapter, and the notebook


def labelled_formulas(root: Path) -> Formulas:
    """Return all formulas in the chapters that have a label.

    Raises:
        ValueError: if two formulas have the same label.
    """
    found = {}
    for title, path in chapters(root).items():
        for formula, label in (each for text in markdown_cells(path) for each in LABELLED.findall(text)):
            if label in found:
                raise ValueError(f"{label} must be unique, but is in {path.name} and in {found[label][2].name}")
            found[label] = formula.strip(), title, path
    return found


def without_stop(formula: str) -> str:
    """Return a formula without the punctuation at its end."""
    return STOP.sub(lambda end: f"\n{end[1]}" if end[1] else "", formula)


def formula_box(label: str, words: str, root: Path, found: Formulas) -> str:
    """Return the Markdown box of one formula.

    Raises:
        ValueError: if no chapter has the formula.
    """
    if label not in found:
        raise ValueError(f"{PAGE}.md names the formula {label}, which no chapter has")
    formula, title, path = found[label]
    page = os.path.relpath(path.with_suffix(".html"), (root / PAGE).parent)
    link = f'<a href="{page}#equation-{label}">{html.escape(catalogs.title(title))}</a>'
    return f":::{{container}} formula\n{words} {link}\n\n$$\n{without_stop(formula)}\n$$\n:::\n"


def with_formulas(text: str, root: Path) -> str:
    """Return the page's Markdown with each entry replaced by its box."""
    found = labelled_formulas(root)
    return ENTRY.sub(lambda entry: formula_box(entry[1], entry[2], root, found), text)


def add_stylesheet(app, pagename, templatename, context, doctree) -> None:
    """Load the style sheet on this page only."""
    if pagename == PAGE:
        app.add_css_file("sheet.css", priority=900)  # after the style sheet of all pages


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", add_stylesheet)
    app.connect("source-read", page_filler(PAGE, with_formulas))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
