"""Tests of the drawings in ``modern``: two blocks, latent attention."""

import pytest
from drawn import words

from lessons_lib.page import drawings

DRAWINGS = {
    "block_changes": drawings.block_changes(),
    "latent_attention": drawings.latent_attention(),
    "latent_attention of two heads": drawings.latent_attention(2),
    "latent_attention of four heads": drawings.latent_attention(4),
}


def test_block_changes_names_two_sums_and_the_parts_of_each_block():
    said = words(drawings.block_changes())
    assert said.count("+") == 4
    assert said.count("layer norm") == said.count("RMS norm") == said.count("feed-forward") == 2
    assert {"2017", "Llama 3", "attention", "attention, RoPE", "ReLU", "SwiGLU", "token + sines"} <= set(said)


@pytest.mark.parametrize("n_heads", [2, 3, 4])
def test_latent_attention_stores_two_vectors_and_makes_no_keys(n_heads):
    drawing = drawings.latent_attention(n_heads)
    html = drawing.to_html()
    assert html.count('class="output filled"') == 2
    assert html.count('class="dashed"') == n_heads
    assert {f"head {i + 1}: k{i + 1}, v{i + 1}" for i in range(n_heads)} <= set(words(drawing))
    assert f"values of {n_heads} heads" in drawing.alt


@pytest.mark.parametrize("n_heads", [1, 5])
def test_latent_attention_invalid_heads_raise(n_heads):
    with pytest.raises(ValueError, match="n_heads must be between 2 and 4"):
        drawings.latent_attention(n_heads)
