"""Tests of ``glue`` and ``table``: the output equals that of MyST-NB's ``glue``, and values are formatted as given."""

import sys

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from lessons_lib.page.notebook import glue, table


@pytest.fixture
def outputs():
    """The rich outputs of a call, as a notebook would record them."""

    def record(function, *args, **kwargs):
        with capture_output() as captured:
            function(*args, **kwargs)
        return [{"data": output.data, "metadata": output.metadata} for output in captured.outputs]

    InteractiveShell.instance()
    yield record
    InteractiveShell.clear_instance()


def text_of(output):
    from myst_nb.core.variables import format_plain_text

    (data,) = output["data"].values()
    return format_plain_text(data, "")


def test_glue_displays_the_same_data_as_myst_nb(outputs):
    myst_nb = pytest.importorskip("myst_nb")
    ours = outputs(glue, "width", "256")
    assert ours == outputs(myst_nb.glue, "width", "256", display=False)


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (1.5, ".2f", "1.50"),
        (torch.tensor(0.3333), ".1%", "33.3%"),
        (torch.tensor([[2.0]]), ".0f", "2"),
        (4.2e-8, ".0e", "4\u00d710⁻⁸"),
        (6.5e12, ".1e", "6.5\u00d710¹²"),
        (-0.5, ".1f", "\u22120.5"),
        (12, "", "12"),
        ("size-1e+2", "", "size-1e+2"),
    ],
)
def test_glue_formats_the_value(outputs, value, spec, text):
    pytest.importorskip("myst_nb")
    (output,) = outputs(glue, "name", value, spec)
    assert text_of(output) == text


@pytest.mark.parametrize(
    ("value", "spec"), [(1.0, "d"), (1.0, ".2q"), ("text", ".2f"), (torch.ones(2), ".2f"), (None, ".2f")]
)
def test_glue_invalid_format_raises(value, spec):
    with pytest.raises(ValueError, match="spec must format the value"):
        glue("name", value, spec)


def test_glue_empty_name_raises():
    with pytest.raises(ValueError, match="name must not be empty"):
        glue("", 1.0)


def test_glue_without_ipython_raises_with_install_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ImportError, match=r"lessons_lib\[notebook\]"):
        glue("name", 1.0)


def test_table_has_a_name_and_values_in_each_row():
    rows = {"naïve & fast": torch.tensor([1.25, -3.0]), "slow": (torch.tensor(1e-8), 4)}
    shown = table(rows, ["seconds", "score"], [".1e", ".0f"], of="method")
    assert shown.rows == [["naïve & fast", "1.2\u00d710⁰", "\u22123"], ["slow", "1.0\u00d710⁻⁸", "4"]]
    html = shown._repr_mimebundle_()["text/html"]
    assert html.count("<tr>") == 3
    assert '<th scope="col">method</th><th scope="col">seconds</th>' in html
    assert '<th scope="row">naïve &amp; fast</th><td>1.2\u00d710⁰</td>' in html
    assert repr(shown).splitlines() == [
        "method         seconds  score",
        "naïve & fast   1.2\u00d710⁰     \u22123",
        "slow          1.0\u00d710⁻⁸      4",
    ]


def test_table_formats_booleans_text_and_single_numbers():
    rows = {"a": torch.tensor(True), "b": False, "c": "frozen", 4: 0.5}
    assert table(rows, ["found"], ".0%").rows == [["a", "yes"], ["b", "no"], ["c", "frozen"], ["4", "50%"]]
    odd = {"x": torch.tensor([[float("nan"), float("inf"), -float("inf")]])}
    assert table(odd, list("abc")).rows == [["x", "NaN", "\u221e", "\u2212\u221e"]]


@pytest.mark.parametrize(
    ("rows", "columns", "spec", "says"),
    [
        ({}, ["a"], ".1f", "at least one"),
        ({"x": [1, 2, 3]}, ["a", "b"], ".1f", "row 'x' must have a value for each of 2 columns, got 3"),
        ({"x": [1, 2]}, ["a", "b"], [".1f"], "spec must be one for all or one for each of 2 columns, got 1"),
        ({"x": 1.5}, ["a"], "d", "spec must format the value"),
    ],
)
def test_table_invalid_arguments_raise(rows, columns, spec, says):
    with pytest.raises(ValueError, match=says):
        table(rows, columns, spec)
