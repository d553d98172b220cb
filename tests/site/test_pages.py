"""Every page in a real browser with the network off: it loads, is quiet, fits a phone, and anyone can use it."""

import gzip

import pytest
from axe_playwright_python.sync_playwright import Axe
from built_site import HTML, ROOT

pytestmark = pytest.mark.browser

# Serious violations that are not ours to mend, by rule and place.
BASELINE = [
    ("summary-name", "toctree-toggle"),  # sphinx-book-theme folds the sidebar with a summary that holds only an icon
    ("definition-list", "lessons_lib"),  # Sphinx sets a signature of several lines as a list within a list's term
]
NOTEBOOKS = [*ROOT.glob("book/*.ipynb"), *ROOT.glob("book/[a-z]*/*.ipynb")]
CHAPTERS = sorted(f"{path.relative_to(ROOT).with_suffix('')}.html" for path in NOTEBOOKS)


# axe's time grows faster than a page, so it does not look twice at what is alike: formulas are MathJax's own, explorers
# are examined one by one in tests/widgets, code below on one page, and of the hundreds of entries of the reference and
# of the index the first dozen.
ONE_OF_MANY = """() => {
  for (const e of document.querySelectorAll('.math, .explorer, div.highlight')) e.remove();
  for (const e of [...document.querySelectorAll('dl.py, .genindextable li, .modindextable tr')].slice(12)) e.remove();
}"""


def known(rule: str, node: dict) -> bool:
    place = f"{node['target'][0]} {node['html']}"
    return any(rule == listed and part in place for listed, part in BASELINE)


def serious_violations(page, **options) -> list[str]:
    found = Axe().run(page, options={"resultTypes": ["violations"], "preload": False, **options}).response["violations"]
    return [
        f"{violation['id']} at {node['target'][0]}: {node['html'][:120]}"
        for violation in found
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
        if not known(violation["id"], node)
    ]


def in_dark_mode(page) -> None:
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate("Promise.all(document.getAnimations().map(animation => animation.finished))")  # colours that fade


def test_axe_finds_nothing_serious(visit, path):
    with visit(path, color_scheme="light", formulas=False) as page:
        page.evaluate(ONE_OF_MANY)
        assert serious_violations(page) == []
        in_dark_mode(page)
        assert serious_violations(page, runOnly=["color-contrast"]) == []


def test_code_can_be_read_in_both_themes(visit):
    with visit("book/attention/scaling.html", color_scheme="light", formulas=False) as page:
        page.evaluate("document.body.replaceChildren(...document.querySelectorAll('div.highlight'))")
        assert serious_violations(page, runOnly=["color-contrast"]) == []
        in_dark_mode(page)
        assert serious_violations(page, runOnly=["color-contrast"]) == []


def test_a_page_fits_a_phone(visit, path):
    with visit(path, width=360) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("path", CHAPTERS)
def test_a_chapter_weighs_less_than_a_megabyte(visit, path):
    with visit("genindex.html") as page:  # a page to attach to before the first request
        responses = []
        page.on("response", lambda response: responses.append(response))  # Playwright marks what it is given
        page.goto(page.url.replace("genindex.html", path))
        page.wait_for_load_state("networkidle")
        weights = {response.url: len(gzip.compress(response.body())) for response in responses if response.ok}
    assert len(weights) > 3
    assert sum(weights.values()) < 1_000_000, sorted(weights.items(), key=lambda item: -item[1])[:5]


def test_search_works_without_network(visit):
    with visit("search.html?q=softmax") as page:
        page.locator("#search-results li").first.wait_for()
        assert "notation" in page.locator("#search-results").inner_html()


def test_no_page_is_left_out_of_the_contents():
    assert (HTML / "index.html").exists()
    pages = {str(p.relative_to(HTML)) for p in HTML.glob("book/**/*.html")}
    sidebar = (HTML / "book/intro.html").read_text(encoding="utf-8")
    unreachable = [p for p in pages - {"book/intro.html"} if p.removeprefix("book/") not in sidebar]
    assert not unreachable
