"""Tests of the output in a notebook: a message, or the traceback of the student's code, never the check's source."""

import re

import nbformat
import pytest
from nbclient import NotebookClient
from test_every_check import CHECKS

ANSWERS = """
import torch
from lessons_lib.checks import {files}

def helper(q, k):
    return q @ k  # the widths do not fit

def weights(q, k):
    scores = helper(q, k)
    return scores.softmax(-1)

def unfinished(*given):
    raise NotImplementedError  # your code here

def doubting(q, k):
    assert len(q) == 0, "mine"

def as_objects(q, keys, values):
    return torch.zeros(len(values[0])).to_sparse()
"""
CELLS = {
    "wrong": "why_attention.look_up(lambda q, keys, values: values.mean(0))",
    "a number": "flash.causal_traffic(lambda *sizes: 7)",
    "raises": "build_attention.attention_weights(weights)",
    "unfinished": "build_attention.attention_weights(unfinished)",
    "an own assertion": "build_attention.attention_weights(doubting)",
    "too few arguments": "build_attention.attention_weights(lambda q: q)",
    "no function": "build_attention.attention_weights(5)",
    "unreadable": "why_attention.look_up(as_objects)",
} | {f"seven to {name}": f"{name}(lambda *given: 7)" for name in CHECKS}


@pytest.fixture(scope="module")
def shown():
    """Return the output of each of these cells, without colours."""
    setup = ANSWERS.format(files=", ".join(sorted({name.split(".")[0] for name in CHECKS})))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in (setup, *CELLS.values())])
    NotebookClient(notebook, timeout=900, allow_errors=True, kernel_name="python3").execute()  # a machine may be busy
    assert notebook.cells[0].outputs == []
    outputs = [cell.outputs[0] for cell in notebook.cells[1:]]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback)) for output in outputs]
    return dict(zip(CELLS, lines, strict=True))


def test_wrong_answer_shows_only_its_message(shown):
    where = r" \(m=\d keys, d_k=\d, d_v=\d\)"
    sentence = f"look_up is wrong: every key has the same weight, whatever the query{where}"
    assert re.fullmatch(sentence, shown["wrong"])
    assert re.fullmatch(r"causal_traffic is 7, wanted \d+ \(n=.*\)", shown["a number"])
    assert shown["no function"] == "attention_weights must be a function, got int"


def test_message_of_every_check_is_one_line(shown):
    long = {name: text for name, text in shown.items() if name.startswith("seven to") and "\n" in text}
    assert long == {}


def test_exception_in_the_answer_shows_its_traceback(shown):
    assert "in weights(q, k)" in shown["raises"]
    assert "return q @ k  # the widths do not fit" in shown["raises"]
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in shown["raises"]
    assert "raise NotImplementedError  # your code here" in shown["unfinished"]
    assert shown["an own assertion"].endswith("AssertionError: mine")
    assert shown["too few arguments"].endswith("takes 1 positional argument but 2 were given")


def test_unreadable_result_shows_a_one_line_message(shown):
    assert re.fullmatch(r"the result could not be read: RuntimeError: .{1,200}", shown["unreadable"])


@pytest.mark.parametrize("cell", CELLS)
def test_source_of_the_check_is_not_shown(shown, cell):
    assert not re.search(r"lessons_lib|wanted =|mistakes|compare\(|ask\(|assert (?!len)", shown[cell])
