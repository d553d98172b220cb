"""The runnable edition: the book's notebooks as Colab, VS Code and a plain JupyterLab can show them.

A page may say {glue:text}`spread`, {eq}`eq-variance`, {doc}`../notation`; a notebook opened elsewhere would show just
that. So every notebook is written once more, into ``notebooks`` beside the site, with each role replaced by what the
page shows in its place. The text is the author's own: only what is MyST is touched, and what has no rule here is a
warning, which fails the build. Nothing is executed, no output is kept, and of the code not a letter differs.

It is written with every site (builder ``html``), and alone by the builder ``runnable``.
"""

import ast
import json
import posixpath
import re
import shutil
from pathlib import Path

import nbformat
from address import pages_address
from myst_parser.mdit_to_docutils.base import default_slugify
from sphinx.builders import Builder
from sphinx.util import logging

LOG = logging.getLogger(__name__)

# What Markdown would not look into, then what it does: the first alternative that fits wins.
SYNTAX = re.compile(
    r"""
    ^(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$     # a block, or a directive
    | \$\$(?P<tex>.+?)\$\$(?:[ \t]*\((?P<label>[\w:-]+)\))?                            # a displayed equation
    | \{(?P<role>[\w:-]+)\}(?P<ticks>`+)(?P<text>.+?)(?P=ticks)                        # a role
    | (?P<code>`+)(?!`).+?(?<!`)(?P=code)(?!`)                                         # code in a line
    | \]\((?P<href>[^()\s]+)\)                                                         # the end of a link
    | ^(?P<heading>\#{1,6}[ ][^\n]*)$
    | ^\((?P<target>[\w:-]+)\)=$
    | ^\{(?P<attributes>[.#][^{}\n]*)\}\n(?P<block>.+?)(?=\n\n|\Z)                     # a paragraph with a class
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
NAMED = re.compile(r"(?P<title>.+?)\s*<(?P<target>[^<>]+)>", re.DOTALL)
ADMONITIONS = {"admonition", "attention", "caution", "danger", "hint", "important", "note", "seealso", "tip", "warning"}
PLAIN = {"div", "container"}  # boxes without a title
PAPER = "only-print"  # the class of what stands on paper only: here everything moves
NOTICE = """\
*You are in the runnable edition of [a page of {book}]({page}). The numbers in the text are those of the book's own \
run; what you compute can differ in the last digit, and will when you change something.*"""
OF_GUESSES = """
*Run it cell by cell. Where a card asks you to guess, guess before you read on: here nothing is covered.*"""


class Edition:
    """What the build knows and a notebook elsewhere does not: numbers, titles, addresses."""

    def __init__(self, app):
        self.app, self.env, self.config = app, app.env, app.config
        self.root = Path(app.outdir).parent / "notebooks"
        self.glued = Path(app.outdir).parent / "jupyter_execute"  # where MyST-NB leaves what the pages print
        self.site = (self.config.html_baseurl or pages_address(self.config.html_theme_options)).rstrip("/") + "/"

    def write(self) -> None:
        """Write every notebook of the book anew."""
        shutil.rmtree(self.root, ignore_errors=True)
        for docname in sorted(filter(self.is_notebook, self.env.found_docs)):
            target = self.root / f"{docname}.ipynb"
            target.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(Page(self, docname).written(), target)

    def read(self, docname: str) -> nbformat.NotebookNode:
        """Read the notebook as the page was read: other extensions may have their say about its text."""
        text = [Path(self.env.doc2path(docname)).read_text(encoding="utf-8")]
        self.app.emit("source-read", docname, text)
        return nbformat.reads(text[0], as_version=4)

    def is_notebook(self, docname: str) -> bool:
        """Tell a notebook from a page of text."""
        return Path(self.env.doc2path(docname)).suffix == ".ipynb"

    def page(self, docname: str) -> str:
        """The address of the published page."""
        return f"{self.site}{docname}.html"

    def number(self, docname: str, kind: str, node_id: str) -> str:
        """The number that the page shows, such as 4.1."""
        return ".".join(map(str, self.env.toc_fignumbers[docname][kind][node_id]))

    def equation(self, label: str) -> tuple[str, str]:
        """Where the equation stands, and its number there."""
        docname, plain = self.env.get_domain("math").equations[label]
        if self.config.numfig and self.config.math_numfig:
            return docname, self.number(docname, "displaymath", f"equation-{label}")
        return docname, str(plain)

    def title(self, docname: str) -> str:
        """The heading of the page."""
        return self.env.titles[docname].astext()


class Page:
    """One notebook on its way into the edition."""

    def __init__(self, edition: Edition, docname: str):
        self.edition, self.docname = edition, docname
        self.notebook = edition.read(docname)
        values = edition.glued / f"{docname}.glue.json"
        self.values = json.loads(values.read_text(encoding="utf-8")) if values.exists() else {}
        everything = "".join(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")
        self.jumped_to = set(re.findall(r"\]\(#([^()\s]+)\)", everything))
        self.arrived = set()

    def complain(self, what: str) -> str:
        """Warn, and leave nothing in the place of ``what``."""
        LOG.warning("runnable edition: no rule for %s", what, location=self.docname)
        return ""

    def written(self) -> nbformat.NotebookNode:
        """The notebook of the edition. A hand-out keeps its cells and its checksums: it speaks plain Markdown."""
        if any("nbgrader" in cell.metadata for cell in self.notebook.cells):
            return self.notebook
        cells = []
        for cell in self.notebook.cells:
            cells.append(cell)
            if cell.cell_type == "markdown":
                cell.source = self.resolve(cell.source)
            else:
                cell.metadata = plain_tags(cell.metadata)
                cell.outputs, cell.execution_count = [], None
                if figure := cell.metadata.get("mystnb", {}).get("figure"):
                    cells.append(self.caption(cell, figure))
        for name in sorted(self.jumped_to - self.arrived):
            self.complain(f"the jump to #{name}")
        notice = NOTICE.format(book=self.edition.config.html_title, page=self.edition.page(self.docname))
        if any(cell.cell_type == "code" and "lessons_lib.guess" in cell.source for cell in cells):
            notice += OF_GUESSES
        cells.insert(1, nbformat.v4.new_markdown_cell(notice, id="edition"))
        self.notebook.metadata["colab"] = {"provenance": [], "toc_visible": True}
        return nbformat.from_dict({**self.notebook, "cells": cells})

    def caption(self, cell: nbformat.NotebookNode, figure: dict) -> nbformat.NotebookNode:
        """What the page sets under a figure, and the figure in words, as a cell of its own."""
        text = self.resolve(figure["caption"])
        try:
            text = f"**Fig. {self.edition.number(self.docname, 'figure', figure['name'])}.** {text}"
        except KeyError:
            self.complain(f"a figure without a name or number: {text}")
        if described := cell.metadata["mystnb"].get("image", {}).get("alt"):
            text += f"\n\n<details><summary>The figure in words</summary>\n\n{described}\n\n</details>"
        return nbformat.v4.new_markdown_cell(text, id=f"{cell.id}-caption"[:64])

    def resolve(self, source: str) -> str:
        """Replace what is MyST."""
        return SYNTAX.sub(self._replace, source)

    def _replace(self, found: re.Match) -> str:
        if found["fence"]:
            directive = re.fullmatch(r"\{([\w:-]+)\}\s*(.*)", found["info"].strip())
            return self._directive(*directive.groups(), found["body"]) if directive else found[0]
        if found["label"]:
            _, number = self.edition.equation(found["label"])
            return f"{anchor(found['label'])}$${found['tex'].rstrip()} \\tag{{{number}}}\n$$"
        if found["role"]:
            rule = {"glue:text": self._glue, "eq": self._eq, "doc": self._doc}.get(found["role"])
            return rule(found["text"]) if rule else self.complain(f"the role {found['role']}")
        if found["href"]:
            return f"]({self._href(found['href'])})"
        if found["heading"]:
            return self._heading(found["heading"])
        if found["target"]:
            self.arrived.add(found["target"])
            return anchor(found["target"])
        if found["attributes"]:
            return "" if f".{PAPER}" in found["attributes"].split() else self.resolve(found["block"])
        return found[0]

    def _directive(self, name: str, argument: str, body: str) -> str:
        body = re.sub(r"\A(:\w+:[^\n]*\n)+", "", body).strip()
        if name in PLAIN:
            return "" if PAPER in argument.split() else self.resolve(body)
        if name not in ADMONITIONS:
            return self.complain(f"the directive {name}")
        lines = [f"**{argument or name.capitalize()}**", "", *self.resolve(body).split("\n")]
        return "\n".join(f"> {line}".rstrip() for line in lines)

    def _heading(self, heading: str) -> str:
        level, _, text = heading.partition(" ")
        slug, line = slug_of(text), f"{level} {self.resolve(text)}"
        if slug not in self.jumped_to:
            return line
        self.arrived.add(slug)
        return anchor(slug) + line

    def _glue(self, name: str) -> str:
        if name not in self.values:
            return self.complain(f"the value {name}")
        text = self.values[name]["data"]["text/plain"]
        try:
            return str(ast.literal_eval(text))
        except (ValueError, SyntaxError):
            return text

    def _eq(self, label: str) -> str:
        if label not in self.edition.env.get_domain("math").equations:
            return self.complain(f"the equation {label}")
        docname, number = self.edition.equation(label)
        return f"[({number})]({'' if docname == self.docname else self._address(docname)}#{label})"

    def _doc(self, text: str) -> str:
        named = NAMED.fullmatch(text)
        docname = self._docname(named["target"] if named else text)
        if docname not in self.edition.env.found_docs:
            return self.complain(f"the page {docname}")
        return f"[{named['title'] if named else self.edition.title(docname)}]({self._address(docname)})"

    def _href(self, href: str) -> str:
        path, hash_, place = href.partition("#")
        docname = self._docname(path.removesuffix(".md").removesuffix(".ipynb")) if path and ":" not in path else ""
        if docname not in self.edition.env.found_docs:
            return href
        return self._address(docname) + hash_ + place

    def _docname(self, target: str) -> str:
        folder = "" if target.startswith("/") else posixpath.dirname(self.docname)
        return posixpath.normpath(posixpath.join(folder, target.lstrip("/")))

    def _address(self, docname: str) -> str:
        """A notebook of the edition stands beside this one; anything else is a page."""
        if not self.edition.is_notebook(docname):
            return self.edition.page(docname)
        return posixpath.relpath(docname, posixpath.dirname(self.docname)) + ".ipynb"


def anchor(name: str) -> str:
    """JupyterLab and Colab name headings each in its own way; both honour an id (JupyterLab no name)."""
    return f'<a id="{name}"></a>\n\n'


def slug_of(heading: str) -> str:
    """Name a heading as MyST does on the page: formulas do not count."""
    return default_slugify(re.sub(r"\$.*?\$|[*`]", "", heading.strip()))


def plain_tags(metadata: dict) -> dict:
    """Say what the page's tags mean in the words that JupyterLab and VS Code know."""
    metadata = nbformat.from_dict(metadata)
    tags = metadata.get("tags", [])
    if {"hide-cell", "hide-input"} & set(tags):
        metadata["jupyter"] = {"source_hidden": True}
    if left := [tag for tag in tags if tag not in {"remove-cell", "hide-cell", "hide-input"}]:
        metadata["tags"] = left
    else:
        metadata.pop("tags", None)
    return metadata


class EditionAlone(Builder):
    """Read the book, as every build does, and write no pages."""

    name = "runnable"

    def get_outdated_docs(self) -> str:
        """Say that all of it is to be written."""
        return "the runnable edition"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """Give the address of a page in the site."""
        return f"{docname}.html"

    def write(self, *_) -> None:
        """Write what has numbers and titles only when every page has been read."""
        Edition(self.app).write()


def beside_the_site(app) -> list:
    """Write the edition; no page comes of it.

    This is the last event of a build whose warnings still count: after "build-finished" none fails the build any more.
    """
    if app.builder.name == "html" and not app.config.one_page:  # an EPUB is made of pages too
        Edition(app).write()
    return []


def setup(app) -> dict:
    """Register with Sphinx."""
    app.setup_extension("one_page")  # the edition is left out where one page alone is made
    app.add_builder(EditionAlone)
    app.connect("html-collect-pages", beside_the_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
