"""Every explorer on every page works from a server and from files, with the keyboard, and in both themes."""

import pytest
from built_site import HTML
from controls import misplaced
from thorough import all_but
from visits import OPEN_FOLDS, TWO_FRAMES, Seen, each_of

pytestmark = pytest.mark.browser

PAGES = sorted(
    str(page.relative_to(HTML))
    for page in HTML.glob("book/**/*.html")
    if 'class="explorer' in page.read_text(encoding="utf-8")
)
EXPLORERS = "book/explorers.html"  # has every explorer
FIRST = ("book/attention/scaling.html", "book/transformer/train-gpt.html")
every_page = each_of(PAGES)
some_pages_first = pytest.mark.parametrize("path", all_but(PAGES, lambda path: path in (EXPLORERS, *FIRST)))
# A slider must change a figure or a table, not only its own number or the text for screen readers.
LOOK = "[...card.querySelectorAll('svg, td')].map(e => e.outerHTML).join()"
# Take hold of a slider, and return its value, the key that moves it, and the key that moves it to the same end.
HOLD = f"""(slider) => {{
  const card = slider.closest('div.explorer');
  card.remembered = {LOOK};
  slider.focus();
  return [slider.value, ...(Number(slider.value) < Number(slider.max) ? ['ArrowRight', 'End'] : ['ArrowLeft', 'Home'])];
}}"""
HAS_CHANGED = f"""() => {{
  const card = document.activeElement.closest('div.explorer');
  return card.remembered !== {LOOK};
}}"""


def test_explorer_pages_are_found():
    assert {EXPLORERS, *FIRST} <= set(PAGES)


@pytest.mark.parametrize(
    ("path", "from_files"),
    all_but([*((path, False) for path in PAGES), (EXPLORERS, True)], lambda path, files: files),
    ids=str,
)
def test_every_slider_changes_the_figure(visit, path, from_files):
    """All pages are opened from a server, and the page with all explorers also from files."""
    with visit(path, from_files=from_files) as page:
        page.evaluate(OPEN_FOLDS)
        for explorer in page.locator("div.explorer").all():
            explorer.scroll_into_view_if_needed()
            explorer.locator(".x-body").wait_for()  # a trained model is fetched when its explorer is near the window
            asked = explorer.get_by_role("group", name="your guess").get_by_role("button")
            if asked.count():  # the figure is covered until the question is answered
                asked.first.click()
            sliders = explorer.locator("input[type=range]:visible:enabled")
            assert sliders.count() > 0
            for j in range(sliders.count()):
                before, key, end = sliders.nth(j).evaluate(HOLD)
                for _ in range(5):  # one step may be too small for a visible change
                    page.keyboard.press(key)
                    if page.evaluate(HAS_CHANGED):
                        break
                else:  # some values have an effect only if they are large
                    page.keyboard.press(end)
                    page.wait_for_function(HAS_CHANGED)
                sliders.nth(j).fill(before)
        assert page.seen.rest(page) == Seen()


@some_pages_first
def test_controls_have_accessible_names(measured):
    assert measured.nameless == []


def test_parts_of_controls_are_aligned_and_do_not_overlap(visit):
    """Tested on the page with all explorers, where one explorer's style could affect another, at three widths."""
    with visit(EXPLORERS) as page:
        explorers = page.locator("div.explorer").all()
        for explorer in explorers:
            explorer.scroll_into_view_if_needed()
            explorer.locator(".x-body").wait_for()
        assert len(explorers) > 15
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(TWO_FRAMES)
            found = {explorer.locator(".x-title").inner_text(): misplaced(explorer) for explorer in explorers}
            assert {title: controls for title, controls in found.items() if controls} == {}, width


@some_pages_first
def test_explorers_without_javascript_show_a_figure_and_text(without_scripts, path):
    explorers = without_scripts(path).explorers
    assert explorers
    for is_visible, text in explorers:
        assert is_visible
        assert len(text.split()) > 5


@every_page
def test_explorers_follow_the_theme_immediately(measured):
    """In the dark theme an explorer has no light background, and its text changes colour."""
    assert measured.colours["light"]
    for light, dark in zip(measured.colours["light"], measured.colours["dark"], strict=True):
        assert light[0] != dark[0]
        assert dark[1] in {"rgba(0, 0, 0, 0)", "transparent"}
