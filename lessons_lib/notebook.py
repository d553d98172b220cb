"""What a chapter needs from the notebook it runs in: a way to hand its numbers to the prose."""

import re
from typing import Any

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_HIDDEN = "application/papermill.record/"


def glue(name: str, value: Any, spec: str = "") -> None:
    r"""Record ``value`` under ``name``, so that the prose of the same notebook can print it.

    In a chapter ``{glue:text}`name``` becomes the text of ``format(value, spec)``. The output is invisible in the
    notebook itself; MyST-NB finds it when the book is built. It is the same output that ``myst_nb.glue`` makes,
    without the need to have MyST-NB, which Colab does not.

    A negative number gets a true minus sign, and an exponent is written as a power of ten: ``4e-08`` becomes
    ``4×10⁻⁸``.

    Args:
        name: the name the prose uses, once per notebook.
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


def _text(value: Any, spec: str) -> str:
    try:
        number = value.item() if hasattr(value, "item") else value  # a tensor or an array with one element
        text = format(number, spec)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"spec must format the value, got {spec!r} for a {type(value).__name__}: {error}") from error
    if isinstance(value, str):
        return text
    text = re.sub(r"^-", "\u2212", text)
    return re.sub(r"e([+-]\d+)$", lambda power: "\u00d710" + str(int(power[1])).translate(_SUPERSCRIPTS), text)
