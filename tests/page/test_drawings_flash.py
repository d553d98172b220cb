"""Tests of the drawings in ``flash``: traffic between two memories, a softmax in two parts."""

import re

import pytest
import torch
from drawn import words

from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings

DRAWINGS = {
    "memory_passes": drawings.memory_passes(),
    "merged_parts": drawings.merged_parts([1, 2, 0.5, 1.5, 3, 0], 4),
    "merged_parts of three": drawings.merged_parts([-2.25, 4, 3.5], 1),
    "merged_parts of eight": drawings.merged_parts([0, -1.25, 2, 3, 0.5, 1, -0.75, 2.5], 6),
}


def test_memory_passes_writes_and_reads_each_square_matrix_once():
    drawing = drawings.memory_passes()
    said = words(drawing)
    assert [said.count(name) for name in "QKVOSA"] == [2, 2, 2, 2, 1, 1]
    tips = re.findall(r'd="M([\d.]+) ([\d.]+)L[^"]*" class="((?:\w+ )?tip)"', drawing.to_html())
    up = [(float(x), look) for x, y, look in tips if float(y) < 70]
    down = [(float(x), look) for x, y, look in tips if 70 < float(y) < 100]
    assert [look for _, look in up].count("tip") == [look for _, look in down].count("tip") == 2  # S and A, both ways
    assert sum(look == "output tip" for _, _, look in tips) == 2
    assert len(tips) == 12


@pytest.mark.parametrize(("scores", "n_first"), [([1.0, 2.0, 0.5, 1.5, 3.0, 0.0], 4), ([-2.25, 4.0, 3.5], 1)])
def test_merged_parts_shows_weights_shares_and_the_softmax_of_the_row(scores, n_first):
    said, row = words(drawings.merged_parts(scores, n_first)), torch.tensor(scores).double()
    parts = row[:n_first], row[n_first:]
    weights = softmax(row)
    for part, merged in zip(parts, (weights[:n_first], weights[n_first:]), strict=True):
        assert f"\u2113 = {part.logsumexp(0):.2f}".replace("-", "\u2212") in said
        share = (part.logsumexp(0) - row.logsumexp(0)).exp()
        assert f"share {share:.2f}" in said
        torch.testing.assert_close(softmax(part) * share, merged)
        shown = [f"{p:.2f}" for p in [*softmax(part).tolist(), *merged.tolist()]]
        start = said.index(shown[0])
        assert said[start : start + len(shown)] == shown


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.merged_parts([1.0, 2.0], 1), "scores must be between 3 and 8, got 2"),
        (lambda: drawings.merged_parts([1.0] * 9, 1), "scores must be between 3 and 8, got 9"),
        (lambda: drawings.merged_parts([1.0] * 4, 0), "n_first must be between 1 and 3, got 0"),
        (lambda: drawings.merged_parts([1.0] * 4, 4), "n_first must be between 1 and 3, got 4"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
