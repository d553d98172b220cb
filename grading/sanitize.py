"""Sanitise a graded notebook: remove active content, since Formgrader would run it with the grader's permissions.

A student's Markdown is rendered to HTML, sanitised with ``bleach`` and kept as one line of HTML, which Markdown leaves
unchanged. HTML outputs are sanitised in the same way. Tags that are not on the list are shown as text, so that nothing
is hidden from the grader. Code and printed text are escaped by nbconvert, and formulas run in MathJax's safe mode, so
these need no treatment.
"""

import base64
import re
from html import escape

import bleach
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_locked

TEXT = {"b", "blockquote", "br", "code", "del", "div", "em", "hr", "i", "p", "pre", "s", "small", "span", "strong", "u"}
LISTS = {"dd", "dl", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "li", "ol", "sub", "sup", "ul"}
TABLES = {"caption", "table", "tbody", "td", "tfoot", "th", "thead", "tr"}
TAGS = TEXT | LISTS | TABLES | {"a", "img"}
ALLOWED_VALUES = {
    "href": re.compile(r"(https?://|mailto:)[^\s\x00-\x1f]*", re.IGNORECASE),
    "src": re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=]*"),
    "alt": re.compile(r"(?s).*"),
    "colspan": re.compile(r"\d{1,3}"),
    "rowspan": re.compile(r"\d{1,3}"),
}
PICTURES = ("image/png", "image/jpeg")


def clean_html(html: str) -> str:
    """Return HTML reduced to text, tables, links to the web and embedded images.

    >>> clean_html('<p onclick="f()">Hello</p>')
    '<p>Hello</p>'
    """
    return bleach.clean(html, tags=TAGS, attributes=_is_allowed, protocols={"http", "https", "mailto", "data"})


def _is_allowed(tag: str, name: str, value: str) -> bool:
    allowed = ALLOWED_VALUES.get(name)
    return allowed is not None and (name == "href") == (tag == "a") and bool(allowed.fullmatch(value.strip()))


def clean_markdown(source: str, attachments: dict | None = None) -> str:
    """Return Markdown that displays the same without active content."""
    try:
        renderer = IPythonRenderer(escape=False, attachments=attachments or {})
        html = clean_html(MarkdownWithMath(renderer=renderer).render(source))
    except Exception:  # such as a missing attachment, or lists nested too deeply
        html = f"<pre>{escape(source)}</pre>"
    return f"<div>{html.strip()}</div>".replace("\n", "&#10;")


def clean_output(output: NotebookNode) -> NotebookNode:
    """Return an output reduced to images, plain text and sanitised HTML."""
    if "data" not in output:
        return output
    data = NotebookNode()
    for kind, value in output.data.items():
        if kind == "text/plain" and isinstance(value, str):
            data[kind] = value
        elif kind == "text/html" and isinstance(value, str):
            data[kind] = clean_html(value)
        elif kind in PICTURES and isinstance(value, str):
            data[kind] = _as_base64(value)
    left_out = sorted(set(output.data) - set(data))
    if not data:
        data["text/plain"] = f"(left out: {', '.join(left_out)[:200]})"
    return NotebookNode(output | {"data": data, "metadata": NotebookNode()})


def _as_base64(text: str) -> str:
    try:
        return base64.b64encode(base64.b64decode(text)).decode()
    except ValueError:
        return ""


class Sanitize(NbGraderPreprocessor):
    """Sanitise the students' text and all outputs; locked text belongs to the course and stays as it is."""

    def preprocess_cell(self, cell: NotebookNode, resources, cell_index: int):
        """Sanitise one cell and reduce its metadata to what nbgrader needs."""
        if cell.cell_type == "code":
            cell.outputs = [clean_output(output) for output in cell.outputs]
        elif not is_locked(cell):
            cell.source = clean_markdown(cell.source, cell.pop("attachments", None))
            cell.cell_type = "markdown"  # nbconvert would copy a raw cell into the page as HTML
        kept = ("nbgrader", "deletable", "editable")
        cell.metadata = NotebookNode({name: cell.metadata[name] for name in kept if name in cell.metadata})
        return cell, resources
