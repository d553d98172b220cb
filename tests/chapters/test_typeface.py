"""Tests of the site's fonts: which characters they have, how much they weigh, and that nothing moves as they arrive."""

import base64
import re
from io import BytesIO
from pathlib import Path

import matplotlib
import pytest
import typeface
from fontTools.ttLib import TTFont

ROOT = Path(__file__).resolve().parents[2]
CSS = (ROOT / "book/_static/typeface.css").read_text(encoding="utf-8")
CORE_FONTS = Path(matplotlib.get_data_path(), "fonts/pdfcorefonts")
# Adobe's widths of Times, Helvetica and Courier are those of Times New Roman, Arial and Courier New.
BEFORE = {
    "Before Book Serif": ("serif", "Times-Roman.afm"),
    "Before Book Sans": ("sans", "Helvetica.afm"),
    "Before Book Code": ("code", "Courier.afm"),
}
# The share of each letter and of the space in English text (per thousand).
SHARES = dict(
    zip(
        " etaoinshrdlcumwfgypbvkjxqz",
        (180, 104, 74, 67, 62, 57, 57, 52, 50, 49, 35, 33, 23, 23, 20, 19, 18, 16, 16, 16, 12, 8, 6, 1, 1, 1, 1),
        strict=True,
    )
)


FACES = {face.name: face for face in typeface.FACES}


def opened(data: bytes) -> TTFont:
    return TTFont(BytesIO(data))


def mean_width(widths: dict[str, float]) -> float:
    return sum(share * widths[letter] for letter, share in SHARES.items()) / sum(SHARES.values())


def declared(family: str) -> dict[str, float]:
    """The adjustments, in percent, of a family of the style sheet."""
    (block,) = re.findall(rf'@font-face {{\s*font-family: "{family}";(.*?)}}', CSS, re.DOTALL)
    return {name: float(value) for name, value in re.findall(r"([\w-]+): ([\d.]+)%", block)}


def test_common_characters_are_the_first_range_of_the_style_sheet():
    ranges = re.findall(r"unicode-range: (.*?);", CSS)
    assert len(ranges) == 2 * len(typeface.FACES)
    common, others = (
        {
            code
            for part in text.split(", ")
            for code in range(int(part[2:].split("-")[0], 16), int(part[2:].split("-")[-1], 16) + 1)
        }
        for text in ranges[:2]
    )
    assert ranges == ranges[:2] * len(typeface.FACES)
    assert common == typeface.COMMON
    assert common & others == set()
    assert common | others == {*range(0x20, 0x7F), *range(0xA0, 0x10000)}


def test_characters_reads_pages_and_scripts(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "page.html").write_text("<p>&sum; &#x3b1;</p>", encoding="utf-8")
    (tmp_path / "_static/script.js").write_text('"\u2192"', encoding="utf-8")
    assert typeface.characters(tmp_path) - typeface.COMMON == {0x2211, 0x3B1, 0x2192}


@pytest.mark.parametrize("name", ["serif-italic", "code"])
def test_reduced_font_has_the_wanted_characters_and_a_fixed_design(name):
    font = opened(typeface.reduced(FACES[name], {ord("a"), ord("\u221a"), ord("\u5230")}))
    assert set(font.getBestCmap()) <= {ord("a"), ord("\u221a")}
    assert ord("a") in font.getBestCmap()
    assert "fvar" not in font
    assert font["name"].getDebugName(1) == FACES[name].family
    assert "Open Font License" in font["name"].getDebugName(13)


def test_reduced_font_keeps_the_weights_of_headings():
    axes = opened(typeface.reduced(FACES["sans"], {ord("a")}))["fvar"].axes
    assert [(axis.axisTag, axis.minValue, axis.maxValue) for axis in axes] == [("wght", 400, 700)]


def test_stored_font_is_made_once_for_each_set_of_characters(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(typeface, "reduced", lambda face, wanted: made.append(wanted) or b"font")
    for wanted in ({1, 2}, {2, 1}, {1}):
        assert typeface.stored(FACES["code"], wanted, tmp_path) == b"font"
    assert made == [{1, 2}, {1}]


def test_style_sheet_of_the_site_contains_the_named_fonts(tmp_path):
    (tmp_path / "serif.woff2").write_bytes(b"font of text")
    css = typeface.with_fonts(CSS, tmp_path, {"serif"})
    data = base64.b64encode(b"font of text").decode()
    (rule,) = re.findall(
        rf'@font-face {{\s*font-family: "Book Serif"; font-weight: 400;[^}}]*{re.escape(data)}[^}}]*}}', css
    )
    assert "U+20-7E" in rule
    assert css.replace(f"data:font/woff2;base64,{data}", "fonts/serif.woff2") == CSS


def test_missing_package_of_a_font_raises():
    face = typeface.Face("serif", "Book Serif", "fontpkg_none", "None.ttf", {})
    with pytest.raises(FileNotFoundError, match="fontpkg_none must be installed: pip install"):
        typeface.reduced(face, {ord("a")})


@pytest.mark.parametrize("family", BEFORE)
def test_the_font_shown_before_has_the_same_widths_and_heights(family):
    name, core = BEFORE[family]
    font = opened(typeface.reduced(FACES[name], typeface.COMMON))
    size, names, hhea = font["head"].unitsPerEm, font.getBestCmap(), font["hhea"]
    own = mean_width({letter: font["hmtx"][names[ord(letter)]][0] / size for letter in SHARES})
    metrics = re.findall(r"^C (\d+) ; WX (\d+) ;", (CORE_FONTS / core).read_text(encoding="latin-1"), re.MULTILINE)
    before = {chr(int(code)): int(width) / 1000 for code, width in metrics}
    adjust = own / mean_width(before)
    expected = {
        "size-adjust": adjust,
        "ascent-override": hhea.ascent / size / adjust,
        "descent-override": -hhea.descent / size / adjust,
        "line-gap-override": hhea.lineGap / size / adjust,
    }
    assert declared(family) == {key: round(100 * value, 1) for key, value in expected.items()}
