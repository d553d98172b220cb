"""The runnable edition: the book's notebooks in plain Markdown, for Colab, VS Code and a plain JupyterLab.

A chapter's source uses MyST roles such as {glue:text}`spread`, {eq}`eq-variance` and {doc}`../notation`, which other
programs show as they stand. So every notebook is also written to ``notebooks`` beside the site, with each role replaced
by the text that the page shows. Only MyST syntax is changed. Syntax without a rule here causes a warning, which fails
the build. Nothing is executed, outputs are removed, and the code is unchanged.

The edition is written with every site (builder ``html``), and alone by the builder ``runnable``.
"""

import ast
import json
import posixpath
import re
import shutil
from pathlib import Path

import nbformat
from catalogs import gettext, mark
from explore_links import without_links
from repository_url import pages_address
from sphinx.builders import Builder
from sphinx.util import logging
from translation import slug

LOG = logging.getLogger(__name__)

# Syntax whose content Markdown does not parse comes first, then the rest: the first alternative that matches wins.
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
PAPER = "only-print"  # the class of remarks for the printed page, which are left out: here everything is interactive
NOTICE = mark(
    "*You are in the runnable edition of [a page of {book}]({page}). The numbers in the text are those of the book's "
    "own run; what you compute can differ in the last digit, and will when you change something.*"
)
OF_GUESSES = mark(
    "*Run it cell by cell. Where a card asks you to guess, guess before you read on: here nothing is covered.*"
)


class Edition:
    """The runnable edition as a whole, with the numbers, titles and addresses that only the build knows."""

    def __init__(self, app):
        self.app, self.env, self.config = app, app.env, app.config
        self.root = Path(app.outdir).parent / "notebooks"
        self.glued = Path(app.outdir).parent / "jupyter_execute"  # MyST-NB writes the glued values there
        self.site = (self.config.html_baseurl or pages_address(self.config.html_theme_options)).rstrip("/") + "/"

    def write(self) -> None:
        """Write every notebook of the book; older files are removed."""
        shutil.rmtree(self.root, ignore_errors=True)
        for docname in sorted(filter(self.is_notebook, self.env.found_docs)):
            target = self.root / f"{docname}.ipynb"
            target.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(Page(self, docname).converted(), target)

    def read(self, docname: str) -> nbformat.NotebookNode:
        """Read the notebook as Sphinx reads it for the page, including the changes by other extensions."""
        text = [Path(self.env.doc2path(docname)).read_text(encoding="utf-8")]
        self.app.emit("source-read", docname, text)
        return nbformat.reads(text[0], as_version=4)

    def is_notebook(self, docname: str) -> bool:
        """Return whether a page is a notebook."""
        return Path(self.env.doc2path(docname)).suffix == ".ipynb"

    def page(self, docname: str) -> str:
        """Return the address of the published page."""
        return f"{self.site}{docname}.html"

    def number(self, docname: str, kind: str, node_id: str) -> str:
        """Return the number of a figure or an equation, such as 4.1."""
        return ".".join(map(str, self.env.toc_fignumbers[docname][kind][node_id]))

    def equation(self, label: str) -> tuple[str, str]:
        """Return the page of an equation, and the equation's number."""
        docname, plain = self.env.get_domain("math").equations[label]
        if self.config.numfig and self.config.math_numfig:
            return docname, self.number(docname, "displaymath", f"equation-{label}")
        return docname, str(plain)

    def title(self, docname: str) -> str:
        """Return the heading of a page."""
        return self.env.titles[docname].astext()


class Page:
    """One notebook that is converted for the edition."""

    def __init__(self, edition: Edition, docname: str):
        self.edition, self.docname = edition, docname
        self.notebook = edition.read(docname)
        values = edition.glued / f"{docname}.glue.json"
        self.values = json.loads(values.read_text(encoding="utf-8")) if values.exists() else {}
        everything = "".join(cell.source for cell in self.notebook.cells if cell.cell_type == "markdown")
        self.link_targets = set(re.findall(r"\]\(#([^()\s]+)\)", without_links(everything)))
        self.anchors = set()

    def warn(self, what: str) -> str:
        """Log a warning that there is no rule for ``what``, and return an empty replacement."""
        LOG.warning("runnable edition: no rule for %s", what, location=self.docname)
        return ""

    def converted(self) -> nbformat.NotebookNode:
        """Return the notebook for the edition; a hand-out, with checksums and plain Markdown, stays unchanged."""
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
        for name in sorted(self.link_targets - self.anchors):
            self.warn(f"the link to #{name}")
        notice = gettext(NOTICE).format(book=self.edition.config.html_title, page=self.edition.page(self.docname))
        if any(cell.cell_type == "code" and "lessons_lib.page.guess" in cell.source for cell in cells):
            notice += f"\n{gettext(OF_GUESSES)}"
        cells.insert(1, nbformat.v4.new_markdown_cell(notice, id="edition"))
        self.notebook.metadata["colab"] = {"provenance": [], "toc_visible": True}
        return nbformat.from_dict({**self.notebook, "cells": cells})

    def caption(self, cell: nbformat.NotebookNode, figure: dict) -> nbformat.NotebookNode:
        """Return a cell with a figure's caption, number and description in words."""
        text = self.resolve(figure["caption"])
        try:
            number = self.edition.number(self.docname, "figure", figure["name"])
            text = gettext("**Fig. {number}.** {caption}").format(number=number, caption=text)
        except KeyError:
            self.warn(f"a figure without a name or number: {text}")
        if described := cell.metadata["mystnb"].get("image", {}).get("alt"):
            summary = gettext("The figure in words")
            text += f"\n\n<details><summary>{summary}</summary>\n\n{described}\n\n</details>"
        return nbformat.v4.new_markdown_cell(text, id=f"{cell.id}-caption"[:64])

    def resolve(self, source: str) -> str:
        """Return Markdown in which MyST syntax is replaced."""
        return SYNTAX.sub(self._replace, without_links(source))

    def _replace(self, found: re.Match) -> str:
        if found["fence"]:
            directive = re.fullmatch(r"\{([\w:-]+)\}\s*(.*)", found["info"].strip())
            return self._directive(*directive.groups(), found["body"]) if directive else found[0]
        if found["label"]:
            _, number = self.edition.equation(found["label"])
            return f"{anchor(found['label'])}$${found['tex'].rstrip()} \\tag{{{number}}}\n$$"
        if found["role"]:
            rule = {"glue:text": self._glue, "eq": self._eq, "doc": self._doc}.get(found["role"])
            return rule(found["text"]) if rule else self.warn(f"the role {found['role']}")
        if found["href"]:
            return f"]({self._href(found['href'])})"
        if found["heading"]:
            return self._heading(found["heading"])
        if found["target"]:
            self.anchors.add(found["target"])
            return anchor(found["target"])
        if found["attributes"]:
            return "" if f".{PAPER}" in found["attributes"].split() else self.resolve(found["block"])
        return found[0]

    def _directive(self, name: str, argument: str, body: str) -> str:
        body = re.sub(r"\A(:\w+:[^\n]*\n)+", "", body).strip()
        if name in PLAIN:
            return "" if PAPER in argument.split() else self.resolve(body)
        if name not in ADMONITIONS:
            return self.warn(f"the directive {name}")
        lines = [f"**{argument or name.capitalize()}**", "", *self.resolve(body).split("\n")]
        return "\n".join(f"> {line}".rstrip() for line in lines)

    def _heading(self, heading: str) -> str:
        level, _, text = heading.partition(" ")
        slug, line = slug_of(text), f"{level} {self.resolve(text)}"
        if slug not in self.link_targets:
            return line
        self.anchors.add(slug)
        return anchor(slug) + line

    def _glue(self, name: str) -> str:
        if name not in self.values:
            return self.warn(f"the value {name}")
        text = self.values[name]["data"]["text/plain"]
        try:
            return str(ast.literal_eval(text))
        except (ValueError, SyntaxError):
            return text

    def _eq(self, label: str) -> str:
        if label not in self.edition.env.get_domain("math").equations:
            return self.warn(f"the equation {label}")
        docname, number = self.edition.equation(label)
        return f"[({number})]({'' if docname == self.docname else self._address(docname)}#{label})"

    def _doc(self, text: str) -> str:
        named = NAMED.fullmatch(text)
        docname = self._docname(named["target"] if named else text)
        if docname not in self.edition.env.found_docs:
            return self.warn(f"the page {docname}")
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
        """Return a relative path for a notebook of the edition, and the published address for any other page."""
        if not self.edition.is_notebook(docname):
            return self.edition.page(docname)
        return posixpath.relpath(docname, posixpath.dirname(self.docname)) + ".ipynb"


def anchor(name: str) -> str:
    """Return an HTML anchor: JupyterLab and Colab name headings differently, but both support an ``id``."""
    return f'<a id="{name}"></a>\n\n'


def slug_of(heading: str) -> str:
    """Return the slug of a heading as MyST makes it for the page, without formulas.

    >>> slug_of("Why $d_k$ matters")
    'why--matters'
    """
    return slug(re.sub(r"\$.*?\$|[*`]", "", heading.strip()))


def plain_tags(metadata: dict) -> dict:
    """Return cell metadata in which the page's tags are replaced by those of JupyterLab and VS Code."""
    metadata = nbformat.from_dict(metadata)
    tags = metadata.get("tags", [])
    if {"hide-cell", "hide-input"} & set(tags):
        metadata["jupyter"] = {"source_hidden": True}
    if left := [tag for tag in tags if tag not in {"remove-cell", "hide-cell", "hide-input"}]:
        metadata["tags"] = left
    else:
        metadata.pop("tags", None)
    return metadata


class EditionBuilder(Builder):
    """A Sphinx builder that reads the book and writes the edition, but no pages."""

    name = "runnable"

    def get_outdated_docs(self) -> str:
        """Return a description of the work: the edition is always written as a whole."""
        return "the runnable edition"

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """Return the address of a page in the site."""
        return f"{docname}.html"

    def write(self, *_) -> None:
        """Write the edition, after all pages have been read: numbers and titles are known only then."""
        Edition(self.app).write()


def write_edition(app) -> list:
    """Write the edition beside the site; return no further pages.

    The event "html-collect-pages" is the last one whose warnings fail the build; those of "build-finished" do not.
    """
    if app.builder.name == "html" and not app.config.one_page:  # the EPUB builder emits this event as well
        Edition(app).write()
    return []


def setup(app) -> dict:
    """Register with Sphinx."""
    app.setup_extension("one_page")  # the edition is not written when a single page is built
    app.add_builder(EditionBuilder)
    app.connect("html-collect-pages", write_edition)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
