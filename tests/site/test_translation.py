"""Build the site in each language, and compare its finished pages with the English ones.

The notebooks of all finished pages run for it. It is left out where ``ENGLISH_ONLY`` is set, as in ``.ci/run``, and
runs weekly.
"""

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import catalogs
import pytest
from browsing import serve
from bs4 import BeautifulSoup, Comment, Tag
from build_language import build
from built_site import HTML
from language_runs import with_translated_words
from messages import numbers

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif("ENGLISH_ONLY" in os.environ, reason="other languages are built weekly"),
]

HAN = re.compile("[\u4e00-\u9fff]")
# What code prints is not translated; titles of papers stay as they are.
NOT_PROSE = (
    "script, style, pre, code, .cell_output, .hero, .guess, .explorer, .drawing, details.hide, .math, mjx-container, "
    "li em"
)
SHOWN_BY_CODE = "table.numbers th, .guess p, .guess li, p.g-truth, .drawing text"
SENTENCE = re.compile(r"\b[a-z]+ [a-z]+ [a-z]+ [a-z]+\b")


# What people type into the search of the Chinese site, and a page among the first results. English words find a
# translated page, too.
ASKED = {
    "注意力权重": "book/attention/",
    "掩码": "book/attention/masks.html",
    "位置编码": "book/attention/positions.html",
    "除以根号": "book/attention/scaling.html",
    "缩放": "book/attention/scaling.html",
    "记号": "book/notation.html",
    "why divide by the square root": "book/attention/scaling.html",
    "perplexity": "book/transformer/train-gpt.html",
}
# Names of file formats, keys, the other language, and words that are not translated.
KEPT = re.compile(r"English|Ctrl|K|\.(?:ipynb|pdf)|GPT|Transformer|(?:\d+\. )?FlashAttention|RoPE|MyST|Colab|Binder|ln")
SHOWN = ("title", "aria-label", "placeholder", "alt")


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
        pages = [article(read(site / f"{name}.html")) for site in (english, other)]
        first, second = (
            sum((numbers(one.get_text()) for one in page.select(".pasted-text, table.numbers td")), Counter())
            for page in pages
        )
        assert first == second, name  # a sentence may name them in another order


def test_words_of_code_are_translated(both):
    _, other, language = both
    names = [path.with_suffix("").as_posix() for path in with_translated_words(language)]
    assert "book/attention/scaling" in names
    for name in (*names, "book/questions"):  # with drawings of chapters that ran in English
        page = article(read(other / f"{name}.html"))
        texts = [one.get_text(" ") for one in page.select(SHOWN_BY_CODE)]
        texts += [str(one["aria-label"]) for one in page.select(".drawing svg[aria-label]")]
        assert not texts or any(HAN.search(text) for text in texts), name
        assert [text for text in texts if SENTENCE.search(text) and not HAN.search(text)] == [], name


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


def frame_of(page: BeautifulSoup) -> BeautifulSoup:
    """Return what stands around the article of a page and its list of sections, without the titles of pages."""
    for part in page.select("article, script, style, .bd-links, .prev-next-area, .prev-next-footer, .bd-toc-nav, svg"):
        part.decompose()
    return page


@pytest.mark.parametrize("name", ["book/attention/scaling", "search", "404", "explorers/scaling"])
def test_frame_of_a_page_is_translated(both, name):
    _, other, _ = both
    page = frame_of(read(other / f"{name}.html"))
    texts = [str(text).strip() for text in (page.body or page).find_all(string=True) if not isinstance(text, Comment)]
    texts += [str(one[attribute]) for attribute in SHOWN for one in page.select(f"body [{attribute}]")]
    left = {text for text in texts if re.search("[A-Za-z]{2}", text) and not HAN.search(text)}
    assert {text for text in left if not KEPT.fullmatch(text)} == set()


def test_head_of_a_page_names_its_language(both):
    _, other, language = both
    for name in ("book/attention/scaling", "book/reference/attention"):
        page = read(other / f"{name}.html")
        locales = [tag["content"] for tag in page.select('meta[property="og:locale"]')]
        is_finished = name in catalogs.finished(language)
        assert language_of(page) == (language.replace("_", "-") if is_finished else "en")
        assert locales == ([language] if is_finished else [])
        words = str(page.select_one('meta[name="description"]'))
        assert "\u3002 " not in words


@pytest.mark.browser
def test_search_finds_words_of_both_languages(both, browser):
    english, _, language = both
    with serve(english) as address:
        page = browser.new_page()
        page.goto(f"{address}/{language}/search.html")
        field, results = page.locator(".bd-search-container input"), page.locator("#search-results a")
        wrong = {}
        for asked, wanted in ASKED.items():
            field.fill("")
            page.wait_for_function("!document.querySelector('#search-results a')")
            field.fill(asked)
            results.first.wait_for()
            found = results.evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
            if not any(wanted in address for address in found[:3]):
                wrong[asked] = found[:3]
        page.close()
    assert wrong == {}


def test_index_of_the_search_has_an_entry_for_each_english_one(both):
    _, other, language = both

    def entries(site: Path) -> dict[str, dict[str, str]]:
        text = (site / "_static/search-index.js").read_text(encoding="utf-8")
        listed = json.loads(text.removeprefix("window.SEARCH_INDEX = ").removesuffix(";\n"))
        return {entry["address"]: entry for entry in listed}

    first, second = entries(HTML), entries(other)
    pages = [{address for address in found if "reference/" not in address} for found in (first, second)]
    assert pages[0] == pages[1]
    for address in {f"{name}.html" for name in catalogs.finished(language)} & first.keys():
        assert HAN.search(second[address]["heading"])
    untranslated = [address for address in first if address.startswith("book/reference/") and "#lessons" in address]
    assert [address for address in untranslated if first[address]["heading"] != second[address]["heading"]] == []
