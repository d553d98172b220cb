"""Tests of the drawings in ``masking``: the order of mask and softmax, layers of windows."""

import re

import pytest
import torch
from drawn import words

from lessons_lib.attention import masks
from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings

DRAWINGS = {
    "mask_orders": drawings.mask_orders([0.5, 0.0, 2.0, 1.0], [True, True, True, False]),
    "mask_orders of two": drawings.mask_orders([0.0, 4.5], [True, False]),
    "mask_orders of five": drawings.mask_orders([-1.25, 3, 0.5, 2, 4], [True, False, True, False, False]),
    "window_layers": drawings.window_layers(),
    "window_layers that reach the first input": drawings.window_layers(4, 4, 12),
}


@pytest.mark.parametrize(
    ("scores", "mask"),
    [
        ([0.5, 0.0, 2.0, 1.0], [True, True, True, False]),
        ([-1.25, 3.0, 0.5, 2.0, 4.0], [True, False, True, False, False]),
    ],
)
def test_mask_orders_shows_each_step_and_the_sum_that_is_left(scores, mask):
    drawing = drawings.mask_orders(scores, mask)
    said, row, allowed = words(drawing), torch.tensor(scores).double(), torch.tensor(mask).bool()
    before, after = softmax(row, allowed), softmax(row) * allowed
    weights = [[f"{p:.2f}" if p else "0" for p in shares.tolist()] for shares in (before, softmax(row), after)]
    starts = [i + 1 for i, text in enumerate(said) if text in ("weights", "masked weights")]
    assert [said[i : i + len(scores)] for i in starts] == weights
    assert said.count("\u2212\u221e") == mask.count(0)
    assert said[-1] == f"sum {after.sum():.2f}"
    assert f"which sum to {after.sum():.2f}" in drawing.alt
    assert f"sum {row.exp()[allowed].sum():.3g}" in said
    assert drawing.to_html().count('class="fine"') == 8 + 4 * mask.count(0)  # eight grids, and the hidden squares


@pytest.mark.parametrize(("n_layers", "window", "n"), [(3, 3, 10), (1, 2, 4), (4, 4, 12)])
def test_window_layers_fills_what_the_mask_reaches(n_layers, window, n):
    drawing = drawings.window_layers(n_layers, window, n)
    layers = [masks.reach(masks.sliding_window(n, window), depth)[-1].tolist() for depth in range(n_layers + 1)]
    circles = re.findall(r"<circle [^>]*>", drawing.to_html())
    assert ["query filled" in circle for circle in circles] == [one for layer in layers for one in layer]
    counts = [text for text in words(drawing) if " of " in text]
    assert counts == [f"{sum(layer)} of {n}" for layer in layers]
    assert drawing.alt.endswith(f"of the inputs, {min(n, 1 + n_layers * (window - 1))}.")


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.mask_orders([1.0], [True]), "scores must be between 2 and 5, got 1"),
        (lambda: drawings.mask_orders([1.0] * 6, [True] * 6), "scores must be between 2 and 5, got 6"),
        (lambda: drawings.mask_orders([1.0, 2.0], [True]), "mask must hide some of 2 keys"),
        (lambda: drawings.mask_orders([1.0, 2.0], [True, True]), "mask must hide some of 2 keys"),
        (lambda: drawings.mask_orders([1.0, 2.0], [False, False]), "mask must hide some of 2 keys"),
        (lambda: drawings.window_layers(0), "n_layers must be between 1 and 4, got 0"),
        (lambda: drawings.window_layers(2, 5), "window must be between 2 and 4, got 5"),
        (lambda: drawings.window_layers(2, 3, 13), "n must be between 4 and 12, got 13"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
