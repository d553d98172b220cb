"""Tests of the measurements in visits.py: pages with one fault each, and one without faults."""

import pytest
from browsing import serve
from visits import WIDE, Seen, measure

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><html lang="en">
<head><meta charset="utf-8"><title>a page</title><link rel="icon" href="data:,"><style>
  html {{ background: white; color: black; }} html[data-theme=dark] {{ background: black; color: white; }}
  .output {{ background: transparent; }} .k {{ color: inherit; }} {style}
</style></head><body><main><h1>A page</h1>{body}
<div class="output"><div class="explorer"><label>width <input type="range"></label></div></div>
<div class="highlight"><pre><span class="k">def</span> <span class="k">if</span> <span class="n">name</span></pre></div>
</main></body></html>"""


@pytest.fixture
def look(browser, tmp_path):
    """Measure the test page with a fault in its body or style."""
    context = browser.new_context(viewport=WIDE, color_scheme="light")

    def looked(body="", style=""):
        (tmp_path / "page.html").write_text(PAGE.format(body=body, style=style))
        (tmp_path / "script.js").write_text("/* fetched */")
        with serve(tmp_path) as address:
            return measure(context, tmp_path, address, "page.html")

    yield looked
    context.close()


def test_measure_page_without_faults(look):
    found = look()
    assert found.seen == Seen()
    assert found.too_wide == found.nameless == []
    assert found.violations == {"light": [], "dark": []}
    assert found.colours["light"] == [["rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"]]
    assert found.colours["dark"] == [["rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"]]
    assert len(found.weights) == 1


def test_measure_records_external_requests_and_errors(look):
    outside = look('<img alt="" src="https://example.org/a.png">').seen
    assert outside.external == outside.failed == ["https://example.org/a.png"]
    missing = look('<script src="gone.js"></script>').seen
    assert any(said.startswith("404 ") for said in missing.failed)
    assert missing.external == []
    assert look("<script>console.error('ouch')</script>").seen.errors == ["ouch"]
    assert look("<script>throw new Error('oh')</script>").seen.errors == ["oh"]


def test_measure_records_late_requests(look):
    """A visit does not wait for a timer, but the timer fires while the page is measured."""
    found = look("<script>setTimeout(() => fetch('https://example.org/late').catch(() => 0), 9)</script>")
    assert found.seen.external == ["https://example.org/late"]


def test_measure_waits_for_and_counts_fetched_files(look):
    found = look("<script>fetch('script.js')</script>")
    assert found.seen == Seen()
    assert sorted(url.rsplit("/", 1)[1] for url in found.weights) == ["page.html", "script.js"]


def test_measure_finds_elements_wider_than_a_phone(look):
    width, *wide = look('<p style="width: 500px">broad</p>').too_wide
    assert width == "508 px"
    assert wide == ['<p style="width: 500px">broad</p>']


def test_measure_finds_controls_without_a_name(look):
    assert look('<div class="explorer"><input type="range" min="7"></div>').nameless == ['<input type="range" min="7">']


def test_measure_finds_explorers_that_ignore_the_theme(look):
    plate = look(style="html[data-theme=dark] .output { background: grey; }").colours
    assert plate["dark"][0][1] == "rgb(128, 128, 128)"
    text = look(style=".explorer { color: blue; }").colours
    assert text["light"][0][0] == text["dark"][0][0]


@pytest.mark.parametrize(
    ("style", "themes"),
    [
        (".fault { color: #bbb; }", {"light"}),
        ("html[data-theme=dark] .fault { color: #444; }", {"dark"}),
        (".fault { color: #808080 } html { background: #777 !important; }", {"light", "dark"}),
        ("html[data-theme=dark] .n { color: #333; }", {"dark"}),
    ],
    ids=["light", "dark", "both", "a word of code"],
)
def test_measure_finds_low_contrast(look, style, themes):
    violations = look('<p class="fault">pale</p>', style).violations
    assert {theme for theme, found in violations.items() if found} == themes
    assert all("color-contrast" in fault for found in violations.values() for fault in found)


def test_measure_finds_other_violations(look):
    (fault,) = look('<img src="data:,">').violations["light"]
    assert fault.startswith("image-alt at img")
