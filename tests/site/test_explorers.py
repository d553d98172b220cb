"""Every explorer on every page: alive from a server and from files, moved by keyboard, at home in both themes."""

import pytest
from built_site import HTML, Seen

pytestmark = pytest.mark.browser

PAGES = sorted(
    str(page.relative_to(HTML))
    for page in HTML.glob("book/**/*.html")
    if 'class="explorer' in page.read_text(encoding="utf-8")
)
# What a slider should move: pictures and tables, not its own number nor what is said to a screen reader.
LOOK = "root => [...root.querySelectorAll('svg, td')].map(e => e.outerHTML).join()"
NAME = "c => c.ariaLabel || [...(c.labels ?? [])].map(label => label.innerText).join(' ') || c.innerText"


def test_explorers_are_on_the_site():
    assert {"book/explorers.html", "book/attention/scaling.html"} <= set(PAGES)


@pytest.mark.parametrize(
    ("path", "from_files"), [*((path, False) for path in PAGES), ("book/explorers.html", True)], ids=str
)
def test_every_slider_moves_something(visit, path, from_files):
    """From a server; and from files too, on the page that has them all."""
    with visit(path, from_files=from_files, formulas=False) as page:
        explorers = page.locator("div.explorer")
        for i in range(explorers.count()):
            explorer = explorers.nth(i)
            sliders = explorer.locator("input[type=range]:visible:enabled")
            assert sliders.count() > 0
            for j in range(sliders.count()):
                slider = sliders.nth(j)
                before = explorer.evaluate(LOOK)
                slider.focus()
                key = "ArrowRight" if slider.evaluate("s => Number(s.value) < Number(s.max)") else "ArrowLeft"
                for _ in range(5):
                    slider.press(key)
                page.wait_for_function(
                    f"([root, before]) => ({LOOK})(root) !== before",
                    arg=[explorer.element_handle(), before],
                    timeout=5000,
                )
        assert page.seen == Seen()


@pytest.mark.parametrize("path", PAGES)
def test_every_control_has_a_name(visit, path):
    with visit(path, formulas=False) as page:
        controls = page.locator("div.explorer").locator("input, select, button")
        for i in range(controls.count()):
            name = controls.nth(i).evaluate(NAME)
            assert name.strip(), controls.nth(i).evaluate("c => c.outerHTML")


@pytest.mark.parametrize("path", PAGES)
def test_without_scripts_a_figure_and_a_sentence_remain(visit, path):
    with visit(path, java_script_enabled=False) as page:
        explorers = page.locator("div.explorer")
        for i in range(explorers.count()):
            assert explorers.nth(i).locator("svg[role=img]").first.is_visible()
            assert len(explorers.nth(i).inner_text().split()) > 5


@pytest.mark.parametrize("path", PAGES)
def test_dark_mode_reaches_the_explorers_at_once(visit, path):
    """No light plate stays behind an explorer, and its text follows the theme."""
    with visit(path, color_scheme="light", formulas=False) as page:
        explorer = page.locator("div.explorer").first
        colours = "e => [getComputedStyle(e).color, getComputedStyle(e.closest('.output')).backgroundColor]"
        light = explorer.evaluate(colours)
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        dark = explorer.evaluate(colours)
    assert light[0] != dark[0]
    assert dark[1] in {"rgba(0, 0, 0, 0)", "transparent"}
