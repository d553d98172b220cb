"""The page *The formulas that matter*: each is copied from the chapter that derives it when the book is built.

A line of the page, ``* eq-label: **Name.** What its symbols are.``, becomes a box with that formula, the words, and a
link to the formula in its chapter.
"""

import html
import json
import os
import re
from functools import cache
from pathlib import Path

import yaml

PAGE = "book/cheat-sheet"
ENTRY = re.compile(r"^\* (eq-[\w-]+): (.+)$", re.MULTILINE)
LABELLED = re.compile(r"\$\$((?:(?!\$\$).)+)\$\$ \((eq-[\w-]+)\)", re.DOTALL)
MARKS = r"(?:\\[,;: ]|[\s.,:;])*"  # and the spaces before them
STOP = re.compile(MARKS + r"(\\end\{\w+\})?" + MARKS + "$")


@cache
def derived(root: Path) -> dict[str, tuple[str, str, Path]]:
    """For each label the formula, the chapter's title and its notebook.

    Raises:
        ValueError: if two formulas bear one label.
    """
    parts = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    found = {}
    for page in (page for part in parts for page in part["chapters"] if "title" in page):
        path = root / f"{page['file']}.ipynb"
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "markdown":
                continue
            for formula, label in LABELLED.findall("".join(cell["source"])):
                if label in found:
                    raise ValueError(f"{label} is in {path.name} and in {found[label][2].name}")
                found[label] = formula.strip(), page["title"], path
    return found


def without_stop(formula: str) -> str:
    """The formula without the mark that ends a sentence."""
    return STOP.sub(lambda end: f"\n{end[1]}" if end[1] else "", formula)


def boxed(label: str, words: str, root: Path) -> str:
    """The box of one formula, in Markdown.

    Raises:
        ValueError: if no chapter has the formula.
    """
    if label not in derived(root):
        raise ValueError(f"{PAGE}.md asks for {label}, which no chapter has")
    formula, title, path = derived(root)[label]
    page = os.path.relpath(path.with_suffix(".html"), (root / PAGE).parent)
    link = f'<a href="{page}#equation-{label}">{html.escape(title)}</a>'
    return f":::{{container}} formula\n{words} {link}\n\n$$\n{without_stop(formula)}\n$$\n:::\n"


def fill(app, docname, source) -> None:
    """Put the formulas in their places, and let the page be made again when a chapter changes."""
    if docname != PAGE:
        return
    root = Path(app.srcdir)
    derived.cache_clear()
    for path in {path for _, _, path in derived(root).values()}:
        app.env.note_dependency(str(path))
    source[0] = ENTRY.sub(lambda entry: boxed(entry[1], entry[2], root), source[0])


def bring_styles(app, pagename, templatename, context, doctree) -> None:
    """Load the style sheet on the one page that needs it."""
    if pagename == PAGE:
        app.add_css_file("sheet.css", priority=900)  # after that of all pages


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", bring_styles)
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
