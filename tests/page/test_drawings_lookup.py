"""Tests of the drawings in ``lookup``: one query, memory, reordered words."""

import re

import pytest
import torch
from drawn import words

from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings

DRAWINGS = {
    "one_query": drawings.one_query(["The", "cat", "sat"], [0.0, 3.0, 0.0], [0.0, 4.0, 1.0], query=2),
    "one_query of four words": drawings.one_query(["a", "big", "cat", "sat"], [-1.5, 0.25, 3, -4], [10, 0, 2.5, 1]),
    "fixed_and_growing_memory": drawings.fixed_and_growing_memory(),
    "fixed_and_growing_memory of two": drawings.fixed_and_growing_memory(["the", "cat"], width=4),
    "reordered_words": drawings.reordered_words(),
    "reordered_words of four": drawings.reordered_words(["dog", "bites", "man", "today"], [2, 1, 0, 3]),
}


@pytest.mark.parametrize(("scores", "values"), [([0.0, 3.0, 0.0], [0.0, 4.0, 1.0]), ([1.0, -2.0], [5.0, 2.0])])
def test_one_query_shows_scores_weights_and_the_weighted_average(scores, values):
    drawing = drawings.one_query(["a", "b", "c"][: len(scores)], scores, values)
    weights, said = softmax(torch.tensor(scores, dtype=torch.float64)), words(drawing)
    assert {f"{p:.3f}" for p in weights.tolist()} <= set(said)
    output = f"{(weights * torch.tensor(values)).sum():.2f}"
    assert output in said
    assert drawing.alt.endswith(f"The output is {output}.")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="12"', drawing.to_html())]
    assert widths == pytest.approx([max(0.8, 54 * p) for p in weights.tolist()], abs=0.06)
    assert drawing.to_html().count('class="query tip"') == len(scores)


@pytest.mark.parametrize(
    ("names", "scores", "values", "complaint"),
    [
        (["a"], [1.0], [1.0], "words must be 2 to 4"),
        (["a", "b"], [1.0], [1.0, 2.0], "one score and one value each"),
        (["a", "b"], [1.0, 2.0], [1.0, -2.0], "no value negative"),
    ],
)
def test_one_query_invalid_arguments_raise(names, scores, values, complaint):
    with pytest.raises(ValueError, match=complaint):
        drawings.one_query(names, scores, values)
    with pytest.raises(ValueError, match="query must be the index of one of 2 words, got 2"):
        drawings.one_query(["a", "b"], [0, 1], [0, 1], query=2)


@pytest.mark.parametrize(("n", "width"), [(2, 2), (4, 3), (5, 4)])
def test_fixed_and_growing_memory_state_keeps_its_width_and_rows_grow(n, width):
    html = drawings.fixed_and_growing_memory([f"w{i}" for i in range(n)], width).to_html()
    assert html.count('class="key filled"') == n * (n + 1) // 2
    states = [float(w) for w in re.findall(r'y="28" width="([\d.]+)"', html)]
    assert states == [13 * width] * n


def test_reordered_words_outputs_follow_the_words():
    said = words(drawings.reordered_words(["dog", "bites", "man"], [2, 0, 1]))
    assert said == [*("attention", "dog", "odog", "bites", "obites", "man", "oman"),
                    *("attention", "man", "oman", "dog", "odog", "bites", "obites")]  # fmt: skip


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda: drawings.fixed_and_growing_memory(["a"]), "words must be 2 to 5 and width 2 to 4, got 1 and 3"),
        (lambda: drawings.fixed_and_growing_memory(width=5), "got 4 and 5"),
        (lambda: drawings.reordered_words(["a", "b"], [0, 0]), r"order must name each index once.*\[0, 0\]"),
        (lambda: drawings.reordered_words(["a"], [0]), "words must be 2 to 4"),
    ],
)
def test_invalid_arguments_raise(draw, complaint):
    with pytest.raises(ValueError, match=complaint):
        draw()
