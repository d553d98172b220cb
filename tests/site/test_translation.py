"""Build the site in each language, and compare its finished pages with the English ones."""

import re
import shutil
from pathlib import Path

import catalogs
import pytest
from bs4 import BeautifulSoup, Tag
from build_language import build
from built_site import HTML

pytestmark = pytest.mark.thorough

HAN = re.compile("[\u4e00-\u9fff]")
# What code writes is not translated yet; titles of papers stay as they are.
NOT_PROSE = (
    "script, style, pre, code, .cell_output, .hero, .guess, .explorer, .drawing, details.hide, .math, mjx-container"
)
SENTENCE = re.compile(r"\b[a-z]+ [a-z]+ [a-z]+ [a-z]+\b")


@pytest.fixture(scope="module", params=catalogs.languages())
def both(request, tmp_path_factory) -> tuple[Path, Path, str]:
    """Return the English pages, the site in another language below them, and the language."""
    english = tmp_path_factory.mktemp("english")
    for page in catalogs.finished(request.param):
        (english / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HTML / f"{page}.html", english / f"{page}.html")
    assert build(request.param, english) == 0
    return english, english / request.param, request.param


def read(path: Path) -> BeautifulSoup:
    """Return a page."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def language_of(page: BeautifulSoup) -> str:
    """Return the language that a page names."""
    assert page.html is not None
    return str(page.html["lang"])


def article(page: BeautifulSoup) -> Tag:
    """Return the article of a page."""
    found = page.select_one("article.bd-article")
    assert found is not None
    return found


def test_finished_pages_are_translated_and_linked(both):
    english, other, language = both
    code = language.replace("_", "-")
    for name in catalogs.finished(language):
        first, second = read(english / f"{name}.html"), read(other / f"{name}.html")
        assert (language_of(first), language_of(second)) == ("en", code), name
        for page, path, target in ((first, english, code), (second, other, "en")):
            switch = page.select_one("a.language-switch")
            assert switch is not None, name
            assert switch["hreflang"] == target
            assert (path / name).parent.joinpath(str(switch["href"])).resolve().is_file(), (name, switch["href"])
            assert {str(link["hreflang"]) for link in page.select("link[hreflang]")} == {"en", code}


def test_sections_keep_their_anchors(both):
    english, other, language = both
    for name in catalogs.finished(language):
        ids = [
            [one["id"] for one in article(read(site / f"{name}.html")).select("section[id]")]
            for site in (english, other)
        ]
        assert ids[0] == ids[1], name


def test_numbers_are_equal(both):
    english, other, language = both
    for name in catalogs.finished(language):
        texts = [
            [one.get_text() for one in article(read(site / f"{name}.html")).select(".pasted-text, table.numbers td")]
            for site in (english, other)
        ]
        assert sorted(texts[0]) == sorted(texts[1]), name


def test_no_english_sentence_is_left(both):
    _, other, language = both
    for name in catalogs.finished(language):
        page = article(read(other / f"{name}.html"))
        for part in page.select(NOT_PROSE):
            part.decompose()
        blocks = [
            block for block in page.select("p, li, td, th, h1, h2, h3, h4, figcaption") if not block.select("p, li")
        ]
        left = [text for block in blocks if SENTENCE.search(text := block.get_text(" ")) and not HAN.search(text)]
        assert left == [], name
