"""Tests of the drawings in ``encoders``: an image as tokens, translation with and without attention."""

import re

import pytest
from drawn import words

from lessons_lib.page import drawings

DRAWINGS = {
    "image_as_tokens": drawings.image_as_tokens(),
    "image_as_tokens of four": drawings.image_as_tokens(2),
    "image_as_tokens of sixteen": drawings.image_as_tokens(4),
    "bottleneck_and_attention": drawings.bottleneck_and_attention(),
    "bottleneck_and_attention of three": drawings.bottleneck_and_attention(3),
    "bottleneck_and_attention of seven": drawings.bottleneck_and_attention(7),
}


@pytest.mark.parametrize("n", [2, 3, 4])
def test_image_as_tokens_numbers_the_patches_and_draws_an_arrow_for_each_token(n):
    drawing = drawings.image_as_tokens(n)
    assert [text for text in words(drawing) if text.isdigit()] == [str(i + 1) for i in range(n * n)]
    assert len(re.findall(r' tip"', drawing.to_html())) == n * n + 2  # tokens into the encoder, and the class
    assert f"a row of {n * n} boxes" in drawing.alt


@pytest.mark.parametrize("n", [3, 7])
def test_bottleneck_and_attention_has_an_arrow_from_every_state(n):
    drawing = drawings.bottleneck_and_attention(n)
    html = drawing.to_html()
    assert len(re.findall(r'class="query tip"', html)) == n
    assert len(re.findall(r'class="value tip"', html)) == 1
    assert f"arrows from all {n} states" in drawing.alt


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.image_as_tokens(1), "n must be between 2 and 4, got 1"),
        (lambda: drawings.image_as_tokens(5), "n must be between 2 and 4, got 5"),
        (lambda: drawings.bottleneck_and_attention(2), "n must be between 3 and 7, got 2"),
        (lambda: drawings.bottleneck_and_attention(8), "n must be between 3 and 7, got 8"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
