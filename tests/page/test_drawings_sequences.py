"""Tests of the drawings in ``sequences``: the reading of a path in CTC, static scores of graph attention."""

import pytest
from drawn import words

from lessons_lib.applications.speech import ctc_collapse
from lessons_lib.page import drawings

DRAWINGS = {
    "ctc_reading": drawings.ctc_reading(["iy", "iy", "–", "ih", "ih", "–", "ih"], blank="–"),  # noqa: RUF001
    "ctc_reading of two": drawings.ctc_reading(["a", "a"], blank="."),
    "ctc_reading of eight": drawings.ctc_reading(["aa", "iy", "uw", "er", "aa", "iy", "uw", "er"], blank="."),
    "static_scores": drawings.static_scores([0.5, 2.0], [1.0, 0.25, 2.0, 1.5]),
    "static_scores of two keys": drawings.static_scores([0.0, 1.0], [0.0, 3.0]),
    "static_scores of six keys": drawings.static_scores([4.0, 1.0], [1, 2, 3, 4, 5, 6]),
}


@pytest.mark.parametrize("path", ["aab.b", "..a.", "abab", "a.a.a."])
def test_ctc_reading_equals_the_library(path):
    drawing = drawings.ctc_reading(list(path), blank=".")
    symbols = sorted({*path, "."})
    collapsed = ctc_collapse([symbols.index(symbol) for symbol in path], blank=symbols.index("."))
    read = [symbols[i] for i in collapsed]
    assert drawing.alt.endswith(f"blanks are dropped: {' '.join(read)}.")
    assert drawing.to_html().count('class="output filled"') == len(read)


def test_ctc_reading_shows_path_and_reading():
    said = words(DRAWINGS["ctc_reading"])
    assert said.count("iy") == 4
    assert said.count("ih") == 7
    assert {"frames", "merged", "read as"} <= set(said)


def test_static_scores_has_two_parts_in_each_bar():
    html = DRAWINGS["static_scores"].to_html()
    assert [html.count(f'class="{role} filled"') for role in ("query", "key")] == [8, 8]
    assert "the highest is key 2" in DRAWINGS["static_scores"].alt


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.ctc_reading(["a"], blank="."), "2 to 8 symbols, got 1"),
        (lambda: drawings.ctc_reading([".", "."], blank="."), "other than the blank"),
        (lambda: drawings.static_scores([1.0], [1.0, 2.0]), "queries must be two"),
        (lambda: drawings.static_scores([1.0, 2.0], [1.0]), "keys from 2 to 6"),
        (lambda: drawings.static_scores([-1.0, 2.0], [1.0, 2.0]), "must not be negative"),
        (lambda: drawings.static_scores([1.0, 2.0], [1.0, 1.0]), "keys must differ"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
