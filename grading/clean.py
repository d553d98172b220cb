"""Take out of a graded notebook what a browser would run: Formgrader shows it with the rights of whoever grades.

Text of a student's is rendered, cleaned by ``bleach`` and kept as HTML in one line, which Markdown leaves as it is;
outputs are cleaned likewise. What is not on the list of tags is shown as text, so that nothing is hidden from whoever
grades. Code and printed text need nothing, nbconvert escapes them; nor do formulas, it has MathJax run in safe mode.
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
MAY_BE = {
    "href": re.compile(r"(https?://|mailto:)[^\s\x00-\x1f]*", re.IGNORECASE),
    "src": re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=]*"),
    "alt": re.compile(r"(?s).*"),
    "colspan": re.compile(r"\d{1,3}"),
    "rowspan": re.compile(r"\d{1,3}"),
}
PICTURES = ("image/png", "image/jpeg")


def clean_html(html: str) -> str:
    """Keep of HTML what is text, tables, links to the web and pictures that come along."""
    return bleach.clean(html, tags=TAGS, attributes=_may_stay, protocols={"http", "https", "mailto", "data"})


def _may_stay(tag: str, name: str, value: str) -> bool:
    return name in MAY_BE and (name == "href") == (tag == "a") and bool(MAY_BE[name].fullmatch(value.strip()))


def clean_markdown(source: str, attachments: dict | None = None) -> str:
    """Return Markdown that shows the same, and runs nothing."""
    try:
        renderer = IPythonRenderer(escape=False, attachments=attachments or {})
        html = clean_html(MarkdownWithMath(renderer=renderer).render(source))
    except Exception:  # a picture that is not there, lists in lists in lists
        html = f"<pre>{escape(source)}</pre>"
    return f"<div>{html.strip()}</div>".replace("\n", "&#10;")


def clean_output(output: NotebookNode) -> NotebookNode:
    """Keep of an output pictures, plain text and cleaned HTML."""
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


class Cleaned(NbGraderPreprocessor):
    """Clean what students wrote and what their cells put out; locked text is ours."""

    def preprocess_cell(self, cell: NotebookNode, resources, cell_index: int):
        """Clean one cell."""
        if cell.cell_type == "code":
            cell.outputs = [clean_output(output) for output in cell.outputs]
        elif not is_locked(cell):
            cell.source = clean_markdown(cell.source, cell.pop("attachments", None))
            cell.cell_type = "markdown"  # of a raw cell every character counts as HTML
        kept = ("nbgrader", "deletable", "editable")
        cell.metadata = NotebookNode({name: cell.metadata[name] for name in kept if name in cell.metadata})
        return cell, resources
