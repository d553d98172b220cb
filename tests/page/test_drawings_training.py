"""Tests of the drawings in ``training``: averaged tokens, positions of the norm."""

import math
import re

import pytest
import torch
from drawn import words

from lessons_lib.analysis.diagnostics import token_spread
from lessons_lib.page import drawings

DRAWINGS = {
    "averaged_tokens": drawings.averaged_tokens(),
    "averaged_tokens of two": drawings.averaged_tokens((10, 170)),
    "averaged_tokens of six": drawings.averaged_tokens((0, 20, 45, 90, 120, 180)),
    "norm_positions": drawings.norm_positions(),
}


@pytest.mark.parametrize("angles", [(0, 40, 90, 150), (10, 170), (5, 5, 120)])
def test_averaged_tokens_shows_the_spread_of_tokens_averages_and_sums(angles):
    drawing = drawings.averaged_tokens(angles)
    radians = torch.tensor([math.radians(angle) for angle in angles], dtype=torch.float64)
    tokens = torch.stack([radians.cos(), radians.sin()], -1)
    averages = (tokens @ tokens.mT / math.sqrt(2)).softmax(-1) @ tokens
    spreads = [f"{token_spread(x):.2f}" for x in (tokens, averages, tokens + averages)]
    assert [word.removeprefix("spread ") for word in words(drawing) if word.startswith("spread")] == spreads
    assert re.findall(r"\d\.\d\d", drawing.alt) == spreads
    assert drawing.to_html().count("tip") >= 3 * len(angles) + 2


@pytest.mark.parametrize("angles", [(10,), tuple(range(7)), (0, 181), (-1, 20)])
def test_averaged_tokens_invalid_angles_raise(angles):
    with pytest.raises(ValueError, match="angles must be between 2 and 6 numbers from 0 to 180"):
        drawings.averaged_tokens(angles)


def test_norm_positions_names_both_and_draws_one_norm_each():
    said = words(drawings.norm_positions())
    assert said.count("norm") == said.count("f") == said.count("+") == 2
    assert {"Post-LN", "Pre-LN", "norm(x + f(x))", "x + f(norm(x))"} <= set(said)
