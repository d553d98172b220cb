"""Tests of the drawings in ``interventions``: what replaces a head's output, idle and busy rows."""

import pytest
from drawn import words

from lessons_lib.page import drawings

DRAWINGS = {
    "head_interventions": drawings.head_interventions(),
    "idle_and_busy_rows": drawings.idle_and_busy_rows(),
    "idle_and_busy_rows of two triggers": drawings.idle_and_busy_rows(["start", "k", "b", "m", "c", "w", "d"], "bc"),
    "idle_and_busy_rows of three": drawings.idle_and_busy_rows(["start", "r", "b"], ["b"]),
}


def test_head_interventions_names_each_replacement():
    said = words(DRAWINGS["head_interventions"])
    assert {"zero ablation", "mean ablation", "resampling, patching"} <= set(said)
    assert DRAWINGS["head_interventions"].to_html().count('class="value filled"') == 3


@pytest.mark.parametrize(("triggers", "busy", "idle"), [("b", 1, 3), ("bu", 2, 2)])
def test_idle_and_busy_rows_has_an_arrow_for_each_row(triggers, busy, idle):
    html = drawings.idle_and_busy_rows(["start", "r", "b", "s", "u"], triggers).to_html()
    assert html.count('class="query tip"') == busy
    assert html.count('class="key tip"') == idle


def test_idle_and_busy_rows_says_which_rows_attend_where():
    alt = DRAWINGS["idle_and_busy_rows of two triggers"].alt
    assert "the row of b attends to k, the row of c attends to m" in alt
    assert "the rows of k, m, w, d attend to the first symbol, start" in alt


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("symbols", "triggers", "says"),
    [
        (["start", "b"], "b", "symbols must be from 3 to 7, got 2"),
        (["start", *"abcdefg"], "b", "symbols must be from 3 to 7, got 8"),
        (["start", "b", "c"], "b", "among the symbols from the third on"),
        (["start", "a", "c"], "b", "among the symbols from the third on"),
    ],
)
def test_invalid_arguments_raise(symbols, triggers, says):
    with pytest.raises(ValueError, match=says):
        drawings.idle_and_busy_rows(symbols, triggers)
