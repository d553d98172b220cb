"""Every page in a browser without network: it loads without errors, fits a phone, and is accessible."""

import re

import pytest
from built_site import HTML, ROOT
from thorough import all_but
from visits import PHONE, TWO_FRAMES, WIDE, Seen, each_of

pytestmark = pytest.mark.browser

NOTEBOOKS = [*ROOT.glob("book/*.ipynb"), *ROOT.glob("book/[a-z]*/*.ipynb")]
CHAPTERS = {f"{path.relative_to(ROOT).with_suffix('')}.html" for path in NOTEBOOKS}


def test_page_has_no_errors_and_no_external_requests(measured):
    assert measured.seen == Seen()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_has_no_serious_accessibility_violations(violations, theme):
    assert violations[theme] == []


def test_page_fits_a_phone(measured):
    assert measured.too_wide == []


@each_of(sorted(CHAPTERS))
def test_chapter_opens_within_450_kilobytes(measured, path):
    """Compressed, fonts included, without scrolling; the page of all explorers is no chapter."""
    assert len(measured.weights) > 3
    heaviest = sorted(measured.weights.items(), key=lambda item: -item[1])[:5]
    most = 480_000 if path == "book/explorers.html" else 450_000
    assert sum(measured.weights.values()) < most, heaviest


def test_page_has_an_icon(path):
    """Otherwise the browser requests /favicon.ico, but only once, so that only the first test would fail."""
    icon = re.search(r'<link rel="(?:shortcut )?icon" href="([^"]+)"', (HTML / path).read_text(encoding="utf-8"))
    assert icon is not None
    assert icon[1].startswith("data:") or (HTML / path).parent.joinpath(icon[1]).exists()


def test_page_has_a_touch_icon(path):
    touch = re.search(r'<link rel="apple-touch-icon" href="([^"]+)"', (HTML / path).read_text(encoding="utf-8"))
    assert (touch is None) == (path == "index.html")  # which redirects
    assert touch is None or (HTML / path).parent.joinpath(touch[1]).exists()


def test_fonts_of_the_site_are_small():
    sizes = {path.name: path.stat().st_size for path in HTML.glob("_static/fonts/*.woff2")}
    assert len(sizes) == 10
    assert sum(sizes.values()) <= 130_000, sizes


def test_text_and_headings_have_the_fonts_of_the_site(visit):
    with visit("book/notation.html") as page:
        loaded = page.evaluate("[...document.fonts].filter((font) => font.status === 'loaded').map((f) => f.family)")
        assert {"Book Serif", "Book Sans"} <= set(loaded)
        for selector, family in (("p", '"Book Serif"'), ("h1", '"Book Sans"')):
            used = page.locator(f".bd-article {selector}").first.evaluate("(e) => getComputedStyle(e).fontFamily")
            assert used.startswith(family)


def test_search_works_offline(visit):
    with visit("search.html?q=softmax") as page:
        page.locator("#search-results li a[href*='notation']").first.wait_for()  # results appear one after another


def test_every_page_is_in_the_sidebar():
    assert (HTML / "index.html").exists()
    pages = {str(p.relative_to(HTML)) for p in HTML.glob("book/**/*.html") if p.parent.name != "questions"}
    sidebar = (HTML / "book/intro.html").read_text(encoding="utf-8")
    unreachable = [p for p in pages - {"book/intro.html"} if p.removeprefix("book/") not in sidebar]
    assert not unreachable


@pytest.mark.browser
@pytest.mark.parametrize("path", ["book/notation.html", "book/run.html"])
def test_tables_and_commands_are_as_wide_as_the_text(visit, path):
    with visit(path) as page:
        boxes = page.locator(".pst-scrollable-table-container, .bd-article pre")
        assert boxes.count() >= 2
        assert all(box.evaluate("e => e.scrollWidth <= e.clientWidth") for box in boxes.all())


SHIFTS = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });"""


OFTEN = {
    f"book/{page}.html" for page in ("intro", "explorers", "attention/masks", "transformer/block", "efficient/flash")
}
ARRIVALS = [("book/intro.html", PHONE), *((path, WIDE) for path in sorted(CHAPTERS | {"book/intro.html"}))]


@pytest.mark.parametrize(("path", "size"), all_but(ARRIVALS, lambda path, size: path in OFTEN))
def test_layout_hardly_shifts_while_a_page_loads(browser, site, path, size):
    """At most 0.05, half of what counts as good (https://web.dev/articles/cls), when the fonts come last of all."""
    context = browser.new_context(viewport=size)
    held = []
    context.route("**/*.woff2", lambda font: font.continue_() if held is None else held.append(font))
    page = context.new_page()
    page.add_init_script(SHIFTS)
    page.goto(f"{site}/{path}", wait_until="domcontentloaded")
    page.evaluate(TWO_FRAMES)
    assert held
    waiting, held = held, None
    for font in waiting:
        font.continue_()
    page.wait_for_load_state("load")
    page.evaluate("document.fonts.ready")
    page.evaluate(TWO_FRAMES)
    assert page.evaluate("window.shifts") <= 0.05
    context.close()


NOT_REACHABLE = """() => [...document.querySelectorAll(".bd-article pre")]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth && e.tabIndex !== 0).length"""


def test_code_that_scrolls_is_reachable_by_keyboard_when_its_fold_opens(browser, site):
    """The site's code fits its column, so that here it is made narrow first."""
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(f"{site}/book/attention/masks.html")
    page.add_style_tag(content=".bd-article details pre { white-space: pre; width: 6rem; overflow: auto; }")
    opened = page.evaluate("""() => {
      document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
      return [...document.querySelectorAll("details pre")].filter((e) => e.scrollWidth > e.clientWidth).length;
    }""")
    assert opened
    page.wait_for_function(f"!({NOT_REACHABLE})()")
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_has_its_theme_before_it_is_drawn(browser, site, theme):
    """The theme's last script sets it, too late: a page that is dark would be white first."""
    context = browser.new_context(viewport=WIDE, color_scheme=theme)
    context.route("**/scripts/*theme.js*", lambda script: script.abort())
    page = context.new_page()
    page.goto(f"{site}/book/notation.html", wait_until="domcontentloaded")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    context.close()
