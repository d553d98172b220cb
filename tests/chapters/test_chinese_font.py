"""Tests of pictures with Chinese text: where its lines break, and what is drawn without a font."""

import io
import warnings

import chinese_font
import pytest
import social_cards
from PIL import Image

TITLE = "缩放：为什么要除以 √dₖ？"


@pytest.mark.parametrize(
    ("text", "broad", "expected"),
    [
        ("注意力权重", 5, ["注意力", "权重"]),
        ("注意力，权重", 5, ["注意", "力，权", "重"]),  # punctuation stays with the character before it
        ("训练 GPT 模型", 7, ["训练 GPT", "模型"]),
        ("“引号”之后", 8, ["“引号”之", "后"]),
        ("", 8, [""]),
    ],
)
def test_lines_of_chinese_text(text, broad, expected):
    assert chinese_font.lines(text, broad) == expected


def test_lines_lose_no_character_and_begin_with_no_closing_punctuation():
    text = "到多长时，词对的代价超过词本身？“注意力”（attention）在 ViT、CLIP、BERT 和翻译中做什么？" * 3
    for broad in range(6, 40):
        found = chinese_font.lines(text, broad)
        assert "".join(found).replace(" ", "") == text.replace(" ", "")
        assert not any(line[0] in chinese_font.CLOSING for line in found)
        assert max(map(chinese_font.width, found)) <= max(broad, chinese_font.width("（attention）"))


def test_without_a_font_no_picture_with_chinese_is_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr(chinese_font, "font", lambda: "")
    assert social_cards.draw_card("缩放", TITLE, "读懂注意力") == b""
    social_cards.write_card(tmp_path / "a.png", b"")
    assert not (tmp_path / "a.png").exists()
    english = social_cards.draw_card("Scaling", "Why divide by √dₖ?", "Attention, understood")
    assert Image.open(io.BytesIO(english)).size == (social_cards.WIDTH, social_cards.HEIGHT)


def test_picture_with_chinese_has_a_glyph_for_every_character():
    if not chinese_font.font():
        pytest.skip("this machine has no font for Chinese")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = social_cards.draw_card("缩放", TITLE, "读懂注意力")
    assert Image.open(io.BytesIO(picture)).size == (social_cards.WIDTH, social_cards.HEIGHT)
