"""Tests of the drawings in ``context``: angles that are new in a long text, a cache of fixed size."""

import math

import pytest
import torch
from drawn import words

from lessons_lib.attention import NTKAware, RotaryEmbedding
from lessons_lib.page import drawings
from lessons_lib.page.widgets import StretchExplorer

DRAWINGS = {
    "new_angles": drawings.new_angles(),
    "new_angles of the slowest": drawings.new_angles(4, factor=2.0, trained=32, read=100),
    "streaming_cache": drawings.streaming_cache(),
    "streaming_cache of two first": drawings.streaming_cache(2, 3, 11),
}


@pytest.mark.parametrize(("method", "row"), [("none", "as trained"), ("ntk", "NTK by 8"), ("yarn", "YaRN by 8")])
def test_new_angles_agrees_with_the_explorer(method, row):
    told = drawings.new_angles(4, factor=8.0).alt
    told = told[told.index(row) :].split(";")[0]
    clocks = StretchExplorer(method=method, factor=8.0, length=512).clocks()
    assert [f"pair {i} " in told for i in range(4, 8)] == [clock.is_new for clock in clocks[4:]]


def test_new_angles_are_the_angles_beyond_training():
    drawing = drawings.new_angles(3, factor=8.0, trained=64, read=128)
    now = RotaryEmbedding(16, scaling=NTKAware(8.0)).frequencies(torch.arange(1))
    plain = RotaryEmbedding(16).frequencies(torch.arange(1))
    assert 128 * now[3] < 64 * plain[3]  # NTK reaches 156 tokens
    assert "NTK by 8, new angles: none" in drawing.alt
    new = math.degrees(64 * plain[4])
    assert f"pair 4 {new:.0f} degrees" in drawing.alt
    assert f"{new:.0f}° new" in words(drawing)
    assert words(drawing).count("none new") == 8


def test_new_angles_marks_no_more_than_one_turn():
    assert "pair 2 360" in drawings.new_angles(2).alt  # completed in training
    assert "pair 3 244 degrees" in drawings.new_angles(2).alt  # 360 less the 116 that training shows


@pytest.mark.parametrize(("first", "factor", "read"), [(5, 8.0, 512), (-1, 8.0, 512), (2, 0.5, 512), (2, 8.0, 64)])
def test_new_angles_invalid_arguments_raise(first, factor, read):
    with pytest.raises(ValueError, match="first must be"):
        drawings.new_angles(first, factor=factor, read=read)


def test_streaming_cache_counts_positions_without_a_gap():
    drawing = drawings.streaming_cache(2, 3, 11)
    assert "positions 0, 1, 9, 10, 11 of the text" in drawing.alt
    assert "counted 0, 1, 2, 3, 4" in drawing.alt
    assert "positions in the cache: the first key is 4 back" in words(drawing)
    assert drawing.to_html().count('class="key tip"') == 5


@pytest.mark.parametrize(("n_first", "window", "now"), [(0, 4, 9), (1, 1, 9), (1, 4, 4), (1, 4, 12)])
def test_streaming_cache_invalid_sizes_raise(n_first, window, now):
    with pytest.raises(ValueError, match="n_first must be"):
        drawings.streaming_cache(n_first, window, now)
