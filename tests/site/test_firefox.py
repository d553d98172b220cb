"""Tests in Firefox: menus, guesses of each kind, an explorer with touch and mouse, and formulas.

All tests run in one process, since the browser starts slowly.
"""

import os
from functools import partial

import pytest
from bidi import MISSING, find_firefox, firefox
from browsing import serve

pytestmark = pytest.mark.xdist_group("firefox")
MASKS, GEOMETRY = "book/attention/masks.html", "book/attention/geometry.html"
PHONE, WIDE = (360, 740), (1440, 900)
KEY = '.explorer [role="slider"][aria-label^="key 2"]'
STATE = "document.querySelector('.explorer').explorer.model.get('key')[1]"


@pytest.fixture(scope="session")
def reader():
    """A headless Firefox. If there is none, the test is skipped, or fails if REQUIRE_FIREFOX=1 is set."""
    if find_firefox() is None:
        (pytest.fail if os.environ.get("REQUIRE_FIREFOX") == "1" else pytest.skip)(MISSING)
    with firefox() as browser:
        yield browser


@pytest.fixture
def opened(reader, site):
    """Open a page at a size. After the test, check that there were no errors and no external requests."""
    reader.errors.clear()
    reader.asked.clear()

    def visit(path, size):
        reader.resize(*size)
        reader.visit(f"{site}/{path}")
        reader.run("() => localStorage.clear()")
        return reader

    yield visit
    assert reader.errors == []
    assert reader.asked
    assert [url for url in reader.asked if not url.startswith((site, "data:", "blob:"))] == []


def test_menus_open_on_tap_and_links_work(opened):
    page = opened(MASKS, PHONE)
    for name in ("secondary", "primary"):
        menu = f"document.querySelector('#pst-{name}-sidebar-modal')"
        page.until(f"{menu}.open", partial(page.tap, f".{name}-toggle"))
        page.wait_for(f"[...{menu}.querySelectorAll('a')].filter((a) => a.checkVisibility()).length > 3")
        if name == "secondary":
            page.run(f"() => {menu}.close()")
    page.tap("#pst-primary-sidebar-modal a[href*='geometry']")
    page.wait_for("location.pathname.endsWith('geometry.html') && document.readyState === 'complete'")


def test_menu_collapses_on_click(opened):
    page = opened(MASKS, WIDE)
    folded = "document.querySelector('#pst-primary-sidebar').classList.contains('pst-sidebar-hidden')"
    for now in (folded, f"!{folded}"):
        page.until(now, partial(page.tap, ".primary-toggle", kind="mouse"))


def test_formulas_are_typeset(opened):
    page = opened(MASKS, PHONE)
    written = page.run("() => document.querySelectorAll('.math').length")
    assert written > 20
    assert page.run("() => document.querySelectorAll('mjx-container').length") >= written
    assert page.run("() => document.querySelectorAll('mjx-merror').length") == 0
    assert page.run("() => document.fonts.check('16px MJXTEX-I')")
    assert page.run("() => document.documentElement.scrollWidth") <= PHONE[0]


GUESS = "[...document.querySelectorAll('.guess:has(%s)')].at(0)"


def test_guesses_of_each_kind_accept_touch(opened):
    page = opened(MASKS, PHONE)
    covered = page.run("() => document.querySelectorAll('.g-away').length")
    assert covered > 0
    parts = {"choice": ".g-option", "number": ".g-range", "curve": ".g-pad"}
    for kind, part in parts.items():
        page.run(f"() => {{ {GUESS % part}.dataset.mine = '{kind}'; }}")

    def answered(kind):
        return f"/(it|answer) is|: right/.test(document.querySelector('[data-mine={kind}] .g-verdict')?.innerText)"

    page.until(answered("choice"), partial(page.tap, "[data-mine=choice] .g-option"))

    chosen = "!document.querySelector('[data-mine=number] .g-commit').disabled"
    page.until(chosen, partial(page.drag, "[data-mine=number] .g-range", (0, 0), (40, 0)))
    page.until(answered("number"), partial(page.tap, "[data-mine=number] .g-commit"))

    line = [(-110, -20), (-40, 0), (60, 20), (140, 25)]
    drawn = "!document.querySelector('[data-mine=curve] .g-commit').disabled"
    page.until(drawn, partial(page.drag, "[data-mine=curve] .g-pad", *line))
    end = "document.querySelector('[data-mine=curve] .g-true-line')"
    page.until(end, partial(page.tap, "[data-mine=curve] .g-commit"))
    assert page.run("() => document.querySelectorAll('.g-away').length") < covered


@pytest.mark.parametrize(("size", "kind"), [(PHONE, "touch"), (WIDE, "mouse")], ids=["finger", "mouse"])
def test_dragging_a_key_does_not_scroll_the_page(opened, size, kind):
    page = opened(GEOMETRY, size)
    page.middle(KEY)  # waits until it does not move
    (x, y), top = page.run(f"() => {STATE}"), page.run("() => scrollY")
    moved = f"{STATE}[0] > {x + 0.1} && {STATE}[1] > {y + 0.3}"
    page.until(moved, partial(page.drag, KEY, (0, 0), (10, -30), kind=kind))
    assert page.run("() => scrollY") == top


FAULTS = """<!doctype html><html lang="en"><title>faults</title><link rel="icon" href="data:,">
<script>console.error("ouch")</script><script>throw new Error("oh")</script><script src="gone.js"></script>
<img alt="" src="http://example.org/a.png">"""


def test_firefox_records_faults(reader, tmp_path):
    (tmp_path / "page.html").write_text(FAULTS)
    reader.errors.clear()
    reader.asked.clear()
    with serve(tmp_path) as address:
        reader.visit(f"{address}/page.html")
        reader.wait_for_errors("ouch", "oh", "404", "NS_ERROR")
    assert "http://example.org/a.png" in reader.asked
