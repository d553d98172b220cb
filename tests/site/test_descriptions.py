"""Every page of the built site has a title, a description and Open Graph tags."""

import re
from html import unescape

import pytest
from build_book import placeholder_notice
from built_site import HTML

PAGES = sorted(str(page.relative_to(HTML)) for page in HTML.glob("book/**/*.html"))


def said(path: str) -> dict[str, str]:
    found = re.findall(
        r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', (HTML / path).read_text(encoding="utf-8")
    )
    assert len(found) == len(dict(found))
    return {name: unescape(text) for name, text in found}


def letters(text: str) -> str:
    """Return the words only, since quotation marks and dashes differ between a page and its description."""
    return " ".join(re.findall(r"[^\W_]+", text)).lower()


def test_page_has_title_and_description(path):
    tags = said(path)
    assert tags["og:title"]
    assert tags["description"] == tags["og:description"]
    assert 50 <= len(tags["description"]) <= 225
    assert re.search(r"[.?!…][”)]?$", tags["description"])
    assert tags["og:site_name"] == "Attention, understood"
    assert tags["twitter:card"] == ("summary" if placeholder_notice() else "summary_large_image")
    assert ("og:image" in tags) == ("og:url" in tags) == (not placeholder_notice())
    for text in (tags["og:title"], tags["description"]):
        assert not re.search(r"[\\${}`\[\]\0]|\w_\w|<|::|=", text), "a formula, MyST or code"


@pytest.mark.parametrize("path", PAGES)
def test_description_is_text_of_the_page(path):
    page = (HTML / path).read_text(encoding="utf-8")
    body = letters(unescape(re.sub(r"<[^>]+>", " ", page.split("<article", 1)[1])))
    for part in re.split(r"[.;?] ", said(path)["description"].rstrip(".?! …”")):
        if not re.search(r"[√∞\u2080-\u209c\u03b1-\u03c9]", part):  # a formula that the page has in TeX
            assert letters(part) in body


def test_descriptions_are_unique():
    descriptions = [said(path)["description"] for path in PAGES]
    assert len(set(descriptions)) == len(descriptions)


def test_chapters_have_social_cards():
    pictures = {file.stem: file.stat().st_size for file in (HTML / "_static/cards").glob("*.png")}
    assert {"book", "scaling", "masks", "flash", "dynamics"} <= set(pictures)
    assert max(pictures.values()) < 30_000
