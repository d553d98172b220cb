"""Tests of the drawings in ``heads``: one and two heads, keys on a circle, routes."""

import math
import re

import pytest
import torch
from drawn import words

from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings

DRAWINGS = {
    "one_and_two_heads": drawings.one_and_two_heads(),
    "one_and_two_heads of other tokens": drawings.one_and_two_heads(("king", "horse"), (0.25, 0.75)),
    "keys_on_circle": drawings.keys_on_circle(),
    "keys_on_circle of three": drawings.keys_on_circle(3, 2, (0.5, 8)),
    "keys_on_circle of ten": drawings.keys_on_circle(10, 6, (4, 100)),
    "relay_and_direct_route": drawings.relay_and_direct_route(),
    "relay_and_direct_route of three": drawings.relay_and_direct_route(["a", "b", "c"], 0, 1),
}


@pytest.mark.parametrize("weights", [(0.6, 0.4), (0.125, 0.875)])
def test_one_and_two_heads_shows_average_and_single_values(weights):
    drawing = drawings.one_and_two_heads(("cat", "mat"), weights)
    said, (a, b) = words(drawing), weights
    assert {f"{a:.3g} \u00b7 cat + {b:.3g} \u00b7 mat", f"\u00d7 {a:.3g}", f"\u00d7 {b:.3g}"} <= set(said)
    assert {"cat", "mat", "head 1: \u00d7 1", "head 2: \u00d7 1"} <= set(said)
    assert drawing.to_html().count('class="output filled"') == 3


@pytest.mark.parametrize(("n_keys", "target", "lengths"), [(8, 1, (3, 30)), (5, 4, (1, 100))])
def test_keys_on_circle_bars_are_the_softmax_of_the_cosines(n_keys, target, lengths):
    drawing = drawings.keys_on_circle(n_keys, target, lengths)
    cosines = torch.cos(2 * math.pi * (torch.arange(n_keys) - target) / n_keys)
    bars = re.findall(r'<rect [^>]*height="([\d.]+)" rx="1" class="query filled"', drawing.to_html())
    weights = torch.stack([softmax(length * cosines) for length in lengths])
    torch.testing.assert_close(
        torch.tensor([float(bar) for bar in bars]), (46 * weights.flatten()).clamp(min=0.8), atol=0.06, rtol=0
    )
    shares = [f"{100 * row[target]:.0f}%" for row in weights]
    assert [said for said in words(drawing) if said.endswith("%")] == shares
    assert f"gives key {target} {shares[0]}, one of length" in drawing.alt


def test_relay_and_direct_route_has_two_steps_and_one():
    drawing = DRAWINGS["relay_and_direct_route"]
    html = drawing.to_html()
    assert [html.count(f'class="{role} tip"') for role in ("value", "query")] == [2, 1]
    assert "in layer 1 that reads queen, in layer 2 follow reads that" in drawing.alt


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.one_and_two_heads(("a",), (1.0,)), "must be two each, got 1 and 1"),
        (lambda: drawings.one_and_two_heads(("a", "b"), (0.5, 0.6)), "positive and sum to 1"),
        (lambda: drawings.one_and_two_heads(("a", "b"), (1.0, 0.0)), "positive and sum to 1"),
        (lambda: drawings.keys_on_circle(2), "n_keys must be from 3 to 10"),
        (lambda: drawings.keys_on_circle(8, 8), "target one of them, got 8 and 8"),
        (lambda: drawings.keys_on_circle(8, 1, (1.0, 0.0)), "two positive numbers"),
        (lambda: drawings.relay_and_direct_route(["a", "b"]), "words must be from 3 to 7, got 2"),
        (lambda: drawings.relay_and_direct_route(["a", "b", "c"], 1, 2), "in order before the last word"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
