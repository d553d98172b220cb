"""Tests of the drawings in ``positions``: causal averages, equal distances, penalties."""

import re

import pytest
import torch
from drawn import words

from lessons_lib.attention import AlibiBias, RotaryEmbedding, attention_weights
from lessons_lib.attention.masks import causal
from lessons_lib.page import drawings

DOG = ["dog", "bites", "man", "today"]
MAN = ["man", "bites", "dog", "today"]
DRAWINGS = {
    "causal_averages": drawings.causal_averages(DOG, MAN),
    "causal_averages of two": drawings.causal_averages(["night", "day"], ["day", "night"]),
    "same_distance": drawings.same_distance(),
    "same_distance behind": drawings.same_distance(1, 3, later=9, angle=25),
    "alibi_penalties": drawings.alibi_penalties(),
    "alibi_penalties of two": drawings.alibi_penalties(2, 1.0),
}


def test_causal_averages_fills_the_words_up_to_each_row():
    drawing = drawings.causal_averages(DOG, MAN)
    assert "man averages over dog bites man, today averages over dog bites man today" in drawing.alt
    assert "dog averages over man bites dog" in drawing.alt
    assert drawing.alt.endswith("at the same position in both orders: today.")
    assert words(drawing).count("dog") == 4
    shades = [float(full) for full in re.findall(r"--full:([\d.]+)", drawing.to_html())]
    assert shades[:16] == [0.6 * seen for row in causal(4).tolist() for seen in row]
    assert shades[16:20] == [0, 0, 0.6, 0]  # man comes first, in the third column


@pytest.mark.parametrize("second", [["dog", "bites"], ["dog", "bites", "man", "now"]])
def test_causal_averages_other_words_raise(second):
    with pytest.raises(ValueError, match="two orders of the same"):
        drawings.causal_averages(DOG, second)


def test_same_distance_keeps_the_angle():
    drawing = drawings.same_distance(5, 2, later=10, angle=30)
    assert "at positions 15 and 12 the query has turned by 450 degrees and the key by 360" in drawing.alt
    assert drawing.alt.endswith("the angle from the key to the query is 90 degrees.")
    assert words(drawing).count("angle between them: 90°") == 2
    rotary = RotaryEmbedding(2)
    x = torch.tensor([[1.0, 0.0]])
    near, far = (rotary(x, torch.tensor([q])) @ rotary(x, torch.tensor([k])).T for q, k in ((5, 2), (15, 12)))
    torch.testing.assert_close(near, far)


@pytest.mark.parametrize(("query", "key", "later"), [(2, 2, 4), (3, 1, 0)])
def test_same_distance_invalid_positions_raise(query, key, later):
    with pytest.raises(ValueError, match="different positions"):
        drawings.same_distance(query, key, later=later)


def test_alibi_penalties_are_those_of_the_library():
    drawing = drawings.alibi_penalties(4, 0.25)
    place = torch.arange(4)
    bias = AlibiBias(1, slopes=[0.25])(place, place)[0]
    said = words(drawing)
    assert {f"{x:g}".replace("-", "\u2212") for x in (bias[causal(4)] + 0.0).tolist()} <= set(said)
    weights = attention_weights(torch.zeros(4, 2), torch.zeros(4, 2), causal(4), bias=bias)
    assert {f"{p:.2f}" for p in weights[-1].tolist()} <= set(said)
    assert "multiplies a weight by 0.78" in drawing.alt


@pytest.mark.parametrize(("n", "slope"), [(1, 0.5), (6, 0.5), (4, 0.0)])
def test_alibi_penalties_invalid_arguments_raise(n, slope):
    with pytest.raises(ValueError, match="n must be from 2 to 5"):
        drawings.alibi_penalties(n, slope)
