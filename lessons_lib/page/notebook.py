"""Numbers that the text of a chapter quotes, and tables of results."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from lessons_lib.page.language import gettext, mark

# The names of patterns that ``analysis.pattern_names`` gives to heads, for catalogs.
_PATTERNS = (
    mark("previous_token"),
    mark("diagonal"),
    mark("local"),
    mark("sink"),
    mark("diffuse"),
    mark("induction"),
    mark("other"),
)
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_HIDDEN = "application/papermill.record/"


def glue(name: str, value: Any, spec: str = "") -> None:
    r"""Record ``value`` under ``name``, so that the text of the same notebook can quote it.

    In a chapter ``{glue:text}`name``` becomes the text of ``format(value, spec)``. The output is invisible in the
    notebook itself; MyST-NB finds it when the book is built. The output is the same as that of ``myst_nb.glue``, but
    MyST-NB need not be installed, and on Colab it is not.

    A negative number gets a true minus sign, and an exponent is written as a power of ten: ``4e-08`` becomes
    ``4×10⁻⁸``.

    Args:
        name: the name that the text uses, once per notebook.
        value: a number, a tensor with one element, or anything else that ``format`` accepts.
        spec: a format specification, e.g. ``".2f"``, ``".0%"``, ``".1e"``.

    Raises:
        ImportError: if IPython is not installed.
        ValueError: if ``name`` is empty, or ``spec`` does not fit the value.
    """
    if not name:
        raise ValueError("name must not be empty: the prose refers to the number by it")
    try:
        from IPython.display import display
    except ImportError as error:
        raise ImportError("glue needs IPython: run it in a notebook, or pip install 'lessons_lib[notebook]'") from error
    # repr keeps the text a text: MyST-NB would read 1.50 as a number and print 1.5
    display(
        {_HIDDEN + "text/plain": repr(_text(value, spec))},
        raw=True,
        metadata={"scrapbook": {"name": name, "mime_prefix": _HIDDEN}},
    )


def table(
    rows: Mapping[Any, Any], columns: Sequence[str], spec: str | Sequence[str] = ".3g", *, of: str = ""
) -> "HtmlTable":
    """Return a table of results, a name and its values in each row, as the last expression of a cell.

    Numbers are written as :func:`glue` writes them, Booleans as *yes* and *no*, text unchanged, ``nan`` as *NaN*, and
    infinity as its symbol.

    ::

        >>> table({"dot product": [0.5, True], "cosine": [0.25, False]}, ["score", "scaled"], ".2f")
                     score  scaled
        dot product   0.50     yes
        cosine        0.25      no

    Args:
        rows: for each name one value, or one value for each column.
        columns: headings of the values, with their units.
        spec: a format specification for all columns, or one for each.
        of: heading of the names.

    Raises:
        ValueError: if there is no row, a row is not as long as ``columns``, or ``spec`` does not fit a value.
    """
    specs = [spec] * len(columns) if isinstance(spec, str) else list(spec)
    if len(specs) != len(columns):
        raise ValueError(f"spec must be one for all or one for each of {len(columns)} columns, got {len(specs)}")
    if not rows:
        raise ValueError("rows must hold at least one, got none")
    cells = {}
    for name, values in rows.items():
        row = _row(values)
        if len(row) != len(columns):
            raise ValueError(f"row {name!r} must have a value for each of {len(columns)} columns, got {len(row)}")
        cells[str(name)] = [_cell(value, one) for value, one in zip(row, specs, strict=True)]
    return HtmlTable(map(gettext, [of, *columns]), [[gettext(name), *row] for name, row in cells.items()])


class HtmlTable:
    """Rows of text under a header: an HTML table on a page, aligned columns in a terminal."""

    def __init__(self, header: Iterable[str], rows: Sequence[Sequence[str]]) -> None:
        self.header, self.rows = list(header), [list(row) for row in rows]

    def to_html(self) -> str:
        """Return the table as HTML."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.header)
        body = "".join(
            f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>'
            for name, *row in self.rows
        )
        return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        return {"text/html": self.to_html(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
        )


def _row(values: Any) -> list[Any]:
    if hasattr(values, "tolist"):  # a tensor or an array
        values = values.reshape(-1).tolist()
    return list(values) if isinstance(values, list | tuple) else [values]


def _cell(value: Any, spec: str) -> str:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return gettext(mark("yes") if value else mark("no"))
    text = gettext(value) if isinstance(value, str) else _text(value, spec)
    return {"nan": "NaN", "inf": "\u221e", "\u2212inf": "\u2212\u221e"}.get(text, text)


def _text(value: Any, spec: str) -> str:
    try:
        number = value.item() if hasattr(value, "item") else value  # a tensor or an array with one element
        text = format(number, spec)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"spec must format the value, got {spec!r} for a {type(value).__name__}: {error}") from error
    if isinstance(value, str):
        return gettext(text)
    text = re.sub(r"^-", "\u2212", text)
    return re.sub(r"e([+-]\d+)$", lambda power: "\u00d710" + str(int(power[1])).translate(_SUPERSCRIPTS), text)
