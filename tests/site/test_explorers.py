"""Every explorer on every page: alive from a server and from files, moved by keyboard, at home in both themes."""

import pytest
from built_site import HTML
from controls import misplaced
from thorough import all_but
from visits import Seen, each_of

pytestmark = pytest.mark.browser

PAGES = sorted(
    str(page.relative_to(HTML))
    for page in HTML.glob("book/**/*.html")
    if 'class="explorer' in page.read_text(encoding="utf-8")
)
EXPLORERS = "book/explorers.html"  # every explorer
FIRST = ("book/attention/scaling.html", "book/transformer/train-gpt.html")
every_page = each_of(PAGES)
some_pages_first = pytest.mark.parametrize("path", all_but(PAGES, lambda path: path in FIRST))
# What a slider should move: pictures and tables, not its own number nor what is said to a screen reader.
LOOK = "[...root.querySelectorAll('svg, td')].map(e => e.outerHTML).join()"
REMEMBER = f"(root) => {{ root.remembered = {LOOK}; }}"
HAS_CHANGED = f"(root) => root.remembered !== {LOOK}"


def test_explorers_are_on_the_site():
    assert {EXPLORERS, *FIRST} <= set(PAGES)


@pytest.mark.parametrize(
    ("path", "from_files"),
    all_but([*((path, False) for path in PAGES), (EXPLORERS, True)], lambda path, _: path in (*FIRST, EXPLORERS)),
    ids=str,
)
def test_every_slider_moves_something(visit, path, from_files):
    """From a server; and from files too, on the page that has them all."""
    with visit(path, from_files=from_files, formulas=False) as page:
        explorers = page.locator("div.explorer")
        for i in range(explorers.count()):
            explorer = explorers.nth(i)
            explorer.scroll_into_view_if_needed()
            explorer.locator(".x-body").wait_for()  # a trained model is fetched when the reader comes near
            asked = explorer.get_by_role("group", name="your guess").get_by_role("button")
            if asked.count():  # what it shows is covered until one has answered
                asked.first.click()
            sliders = explorer.locator("input[type=range]:visible:enabled")
            assert sliders.count() > 0
            for j in range(sliders.count()):
                slider = sliders.nth(j)
                explorer.evaluate(REMEMBER)
                slider.focus()
                before = slider.input_value()
                key = "ArrowRight" if slider.evaluate("s => Number(s.value) < Number(s.max)") else "ArrowLeft"
                for _ in range(5):  # a step may be too small to see
                    slider.press(key)
                    if explorer.evaluate(HAS_CHANGED):
                        break
                else:  # some numbers decide nothing until they are large
                    slider.press("End" if key == "ArrowRight" else "Home")
                    page.wait_for_function(HAS_CHANGED, arg=explorer.element_handle())
                slider.fill(before)
        assert page.seen.rest(page) == Seen()


@some_pages_first
def test_every_control_has_a_name(measured):
    assert measured.nameless == []


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_parts_of_a_control_share_a_line_and_none_lies_on_another(visit, width):
    """On the page that has all explorers, where one's style could reach another."""
    with visit("book/explorers.html", formulas=False) as page:
        page.set_viewport_size({"width": width, "height": 900})
        found = {}
        for explorer in page.locator("div.explorer").all():
            explorer.scroll_into_view_if_needed()
            explorer.locator(".x-body").wait_for()
            found[explorer.locator(".x-title").inner_text()] = misplaced(explorer)
    assert len(found) > 15
    assert {title: controls for title, controls in found.items() if controls} == {}


@every_page
def test_without_scripts_a_figure_and_a_sentence_remain(visit, path):
    with visit(path, java_script_enabled=False) as page:
        explorers = page.locator("div.explorer")
        for i in range(explorers.count()):
            assert explorers.nth(i).locator("svg[role=img]").first.is_visible()
            assert len(explorers.nth(i).inner_text().split()) > 5


@every_page
def test_dark_mode_reaches_the_explorers_at_once(measured):
    """No light plate stays behind an explorer, and its text follows the theme."""
    assert measured.colours["light"]
    for light, dark in zip(measured.colours["light"], measured.colours["dark"], strict=True):
        assert light[0] != dark[0]
        assert dark[1] in {"rgba(0, 0, 0, 0)", "transparent"}
