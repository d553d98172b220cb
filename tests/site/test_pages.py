"""Every page in a real browser with the network off: it loads, is quiet, fits a phone, and anyone can use it."""

import re

import pytest
from built_site import HTML, ROOT
from visits import Seen, each_of

pytestmark = pytest.mark.browser

NOTEBOOKS = [*ROOT.glob("book/*.ipynb"), *ROOT.glob("book/[a-z]*/*.ipynb")]
CHAPTERS = {f"{path.relative_to(ROOT).with_suffix('')}.html" for path in NOTEBOOKS}


def test_a_page_is_quiet_and_asks_for_nothing_elsewhere(measured):
    assert measured.seen == Seen()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(measured, theme):
    assert measured.violations[theme] == []


def test_a_page_fits_a_phone(measured):
    assert measured.too_wide == []


@each_of(sorted(CHAPTERS))
def test_a_chapter_weighs_less_than_a_megabyte(measured):
    assert len(measured.weights) > 3
    heaviest = sorted(measured.weights.items(), key=lambda item: -item[1])[:5]
    assert sum(measured.weights.values()) < 1_000_000, heaviest


def test_a_page_names_its_icon(path):
    """Of one that does not a browser asks /favicon.ico, once in its life: only the first test would notice."""
    icon = re.search(r'<link rel="(?:shortcut )?icon" href="([^"]+)"', (HTML / path).read_text(encoding="utf-8"))
    assert icon is not None
    assert icon[1].startswith("data:") or (HTML / path).parent.joinpath(icon[1]).exists()


def test_search_works_without_network(visit):
    with visit("search.html?q=softmax") as page:
        page.locator("#search-results li a[href*='notation']").first.wait_for()  # they come one by one


def test_no_page_is_left_out_of_the_contents():
    assert (HTML / "index.html").exists()
    pages = {str(p.relative_to(HTML)) for p in HTML.glob("book/**/*.html")}
    sidebar = (HTML / "book/intro.html").read_text(encoding="utf-8")
    unreachable = [p for p in pages - {"book/intro.html"} if p.removeprefix("book/") not in sidebar]
    assert not unreachable
