"""What every page of the site says of itself, as chat programs and search engines read it."""

import re
from html import unescape

import pytest
from build_book import without_address
from built_site import HTML

PAGES = sorted(str(page.relative_to(HTML)) for page in HTML.glob("book/**/*.html"))


def said(path: str) -> dict[str, str]:
    found = re.findall(
        r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', (HTML / path).read_text(encoding="utf-8")
    )
    assert len(found) == len(dict(found))
    return {name: unescape(text) for name, text in found}


def letters(text: str) -> str:
    """The words alone: quotation marks and dashes differ between a page and what is said of it."""
    return " ".join(re.findall(r"[^\W_]+", text)).lower()


def test_a_page_says_what_it_is(path):
    tags = said(path)
    assert tags["og:title"]
    assert tags["description"] == tags["og:description"]
    assert 50 <= len(tags["description"]) <= 225
    assert re.search(r"[.?!…][”)]?$", tags["description"])
    assert tags["og:site_name"] == "Attention, understood"
    assert tags["twitter:card"] == ("summary" if without_address() else "summary_large_image")
    assert ("og:image" in tags) == ("og:url" in tags) == (not without_address())
    for text in (tags["og:title"], tags["description"]):
        assert not re.search(r"[\\${}`\[\]\0]|\w_\w|<|::|=", text), "a formula, MyST or code"


@pytest.mark.parametrize("path", PAGES)
def test_it_says_it_in_sentences_of_its_own(path):
    page = (HTML / path).read_text(encoding="utf-8")
    body = letters(unescape(re.sub(r"<[^>]+>", " ", page.split("<article", 1)[1])))
    for part in re.split(r"[.;?] ", said(path)["description"].rstrip(".?! …”")):
        if not re.search(r"[√∞\u2080-\u209c\u03b1-\u03c9]", part):  # a formula that the page has in TeX
            assert letters(part) in body


def test_no_two_pages_say_the_same():
    descriptions = [said(path)["description"] for path in PAGES]
    assert len(set(descriptions)) == len(descriptions)


def test_every_chapter_has_a_picture():
    pictures = {file.stem: file.stat().st_size for file in (HTML / "_static/cards").glob("*.png")}
    assert {"book", "scaling", "masks", "flash", "dynamics"} <= set(pictures)
    assert max(pictures.values()) < 30_000
