"""The page *The formulas that matter*: each is copied from the chapter that derives it when the book is built.

A line of the page, ``* eq-label: **Name.** What its symbols are.``, becomes a box with that formula, the words, and a
link to the formula in its chapter.
"""

import html
import os
import re
from pathlib import Path

from chapters import chapters, filling, texts

PAGE = "book/cheat-sheet"
ENTRY = re.compile(r"^\* (eq-[\w-]+): (.+)$", re.MULTILINE)
LABELLED = re.compile(r"\$\$((?:(?!\$\$).)+)\$\$ \((eq-[\w-]+)\)", re.DOTALL)
MARKS = r"(?:\\[,;: ]|[\s.,:;])*"  # and the spaces before them
STOP = re.compile(MARKS + r"(\\end\{\w+\})?" + MARKS + "$")

Derived = dict[str, tuple[str, str, Path]]  # by its label a formula, the title of its chapter and the notebook


def derived(root: Path) -> Derived:
    """All formulas of the chapters that have a label.

    Raises:
        ValueError: if two formulas bear one label.
    """
    found = {}
    for title, path in chapters(root).items():
        for formula, label in (each for text in texts(path) for each in LABELLED.findall(text)):
            if label in found:
                raise ValueError(f"{label} is in {path.name} and in {found[label][2].name}")
            found[label] = formula.strip(), title, path
    return found


def without_stop(formula: str) -> str:
    """The formula without the mark that ends a sentence."""
    return STOP.sub(lambda end: f"\n{end[1]}" if end[1] else "", formula)


def boxed(label: str, words: str, root: Path, found: Derived) -> str:
    """The box of one formula, in Markdown.

    Raises:
        ValueError: if no chapter has the formula.
    """
    if label not in found:
        raise ValueError(f"{PAGE}.md asks for {label}, which no chapter has")
    formula, title, path = found[label]
    page = os.path.relpath(path.with_suffix(".html"), (root / PAGE).parent)
    link = f'<a href="{page}#equation-{label}">{html.escape(title)}</a>'
    return f":::{{container}} formula\n{words} {link}\n\n$$\n{without_stop(formula)}\n$$\n:::\n"


def filled(text: str, root: Path) -> str:
    """The page with each formula in its place."""
    found = derived(root)
    return ENTRY.sub(lambda entry: boxed(entry[1], entry[2], root, found), text)


def bring_styles(app, pagename, templatename, context, doctree) -> None:
    """Load the style sheet on the one page that needs it."""
    if pagename == PAGE:
        app.add_css_file("sheet.css", priority=900)  # after that of all pages


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", bring_styles)
    app.connect("source-read", filling(PAGE, filled))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
