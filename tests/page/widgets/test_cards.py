"""Tests of the cards: play, panels on a phone, and the state in the address."""

import json

import pytest
from examples import NAMES, example
from thorough import all_but

from lessons_lib.page.widgets import BirthExplorer, ClocksExplorer, CollapseExplorer, TilesExplorer, WalkExplorer
from lessons_lib.page.widgets.assemble import STATIC

pytestmark = pytest.mark.browser

PLAYED = [  # with the name of the slider, two steps before its end, and the milliseconds of a step
    (WalkExplorer(layers=14), "Layers back", 16, 600),
    (CollapseExplorer(depth=30), "Layers", 32, 600),
    (ClocksExplorer(shift=998), "Both later by", 1000, 120),
    (TilesExplorer(n=4, block_q=2, block_k=2, step=8), "Step, of 10", 10, 1200),
]
every_played = pytest.mark.parametrize(("explorer", "label", "last", "pace"), PLAYED, ids=lambda x: str(x)[:5])
ALONE = "all => all.map((e) => e.innerHTML).filter((html) => /NaN|Infinity|undefined/.test(html)).length"


def playing(page):
    """Stop the clock, press Play, and return the button."""
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    page.get_by_role("button", name="Play").press("Enter")
    return page.get_by_role("button", name="Pause")


# --- time -----------------------------------------------------------------------------------------------------------


@every_played
def test_play_runs_to_the_end_and_restarts_from_the_start(explorer, label, last, pace, show):
    with show(explorer) as page:
        slider = page.get_by_role("slider", name=label)
        pause = playing(page)
        assert int(slider.get_attribute("aria-valuetext")) == last - 1
        page.clock.run_for(pace - 20)
        assert int(slider.get_attribute("aria-valuetext")) == last - 1
        assert pause.count() == 1
        page.clock.run_for(30)
        assert int(slider.get_attribute("aria-valuetext")) == last
        assert pause.count() == 0
        page.get_by_role("button", name="Play").press("Enter")
        assert int(slider.get_attribute("aria-valuetext")) == 0
        pause.press("Enter")
        page.clock.run_for(5 * pace)
        assert int(slider.get_attribute("aria-valuetext")) == 0


@pytest.mark.parametrize(
    ("touch", "goes_on"),
    [
        (lambda page: page.get_by_label("causal").press("Space"), False),
        (lambda page: page.get_by_label("Residual").press("ArrowRight"), False),
        (lambda page: page.get_by_role("button", name="Draw again").click(), False),
        (lambda page: page.evaluate("document.dispatchEvent(new Event('visibilitychange'))"), False),
        (lambda page: page.evaluate("dispatchEvent(new Event('pagehide'))"), False),
        (lambda page: page.get_by_role("button", name="Spread").click(), True),
        (lambda page: page.locator(".x-title").click(), True),
    ],
    ids=["tick", "slider", "button", "hidden", "left", "panel", "title"],
)
def test_play_stops_when_a_control_is_used_or_the_page_is_left(touch, goes_on, show):
    with show(CollapseExplorer(depth=3), width=360) as page:
        pause = playing(page)
        touch(page)
        page.clock.run_for(650)
        assert page.get_by_role("slider", name="Layers").get_attribute("aria-valuetext") == ("5" if goes_on else "4")
        assert pause.count() == goes_on


def test_cleanup_stops_play(mount):
    page = mount(WalkExplorer(layers=3))
    playing(page)
    assert page.evaluate("[model.get('layers'), saved]") == [4, 1]
    page.evaluate("leave()")
    page.clock.run_for(5000)
    assert page.evaluate("[model.get('layers'), saved]") == [4, 1]


@pytest.mark.parametrize(("motion", "gliding", "last"), [("no-preference", "0.3s", "5"), ("reduce", "0s", "2")])
def test_reduced_motion_shows_steps_without_transition(motion, gliding, last, show):
    with show(ClocksExplorer(), reduced_motion=motion) as page:
        playing(page)
        assert page.locator("svg rect").first.evaluate("r => getComputedStyle(r).transitionDuration") == gliding
        page.clock.run_for(510)
        assert page.get_by_label("Both later by").get_attribute("aria-valuetext") == last


def test_live_region_announces_the_end_of_play_only(show):
    with show(WalkExplorer(layers=13)) as page:
        region = page.locator("[aria-live]")
        first = region.text_content()
        playing(page)
        page.clock.run_for(1100)
        assert region.text_content() == first
        page.clock.run_for(1000)
        assert region.text_content().startswith("16 layers back")


# --- panels ---------------------------------------------------------------------------------------------------------


@every_played
def test_phone_shows_one_panel_and_desktop_and_print_show_all(explorer, label, last, pace, show):
    with show(explorer, width=360) as page:
        panels, tabs = page.locator(".x-panels > .x-panel"), page.locator(".x-tabs button")
        named = tabs.count()
        assert panels.count() == named
        for i in range(named):
            tabs.nth(i).click()
            assert [panels.nth(j).is_visible() for j in range(named)] == [i == j for j in range(named)]
            assert [tab.get_attribute("aria-pressed") for tab in tabs.all()].index("true") == i
        page.emulate_media(media="print")
        assert panels.locator("visible=true").count() == named
        assert page.locator("button:visible").count() == 0
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 900, "height": 900})
        assert all(panel.is_visible() for panel in panels.all())
        assert not tabs.first.is_visible()


@every_played
def test_phone_shows_a_figure_beside_every_control(explorer, label, last, pace, show):
    """The bar of the page takes 56 of the 740 pixels, and the playing slider stays below it."""
    box = "e => { const b = e.getBoundingClientRect(); return [b.top, b.bottom, b.width]; }"
    with show(explorer, width=360) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        top, bottom, _ = page.locator(".x-controls").evaluate(box)
        room = 740 - 56 - (bottom - top)
        above, below, _ = page.locator(".x-panels svg:visible").first.evaluate(box)
        for control in page.locator("input:visible, select:visible").all():
            highest, lowest, _ = control.evaluate(box)
            if highest > below:
                assert lowest - above <= room, control.evaluate("c => c.parentElement.innerText")
        assert below - above <= room
        slider_widths = [slider.evaluate(box)[2] for slider in page.locator(".x-settings input[type=range]").all()]
        assert all(width > 280 for width in slider_widths)


def test_tabs_show_a_group_and_on_a_phone_one_panel_of_it_and_in_print_all(show):
    with show(BirthExplorer()) as page:
        panels, tabs = page.locator(".x-tabbed > .x-panel"), page.locator(".x-tabs button:visible")
        assert tabs.all_inner_texts() == ["Attention maps", "Next symbol", "Training"]
        seen = []
        for tab in tabs.all():
            tab.press("Enter")
            assert tab.get_attribute("aria-pressed") == "true"
            seen.append([panel.is_visible() for panel in panels.all()])
        assert list(map(sum, zip(*seen, strict=True))) == [1] * panels.count()
        assert list(map(sum, seen)) == [3, 2, 1]
        page.set_viewport_size({"width": 360, "height": 740})
        assert tabs.all_inner_texts() == ["Layer 1", "Layer 2", "Next", "Training"]
        counts = []
        for tab in tabs.all():
            tab.click()
            assert page.locator(".x-tabs [aria-pressed=true]:visible").all_inner_texts() == [tab.inner_text()]
            counts.append(panels.locator("visible=true").count())
        assert counts == [2, 2, 2, 1]  # with the panel of the group that has no name
        page.emulate_media(media="print")
        assert panels.locator("visible=true").count() == panels.count() == 6


# --- the address ----------------------------------------------------------------------------------------------------

STATE = "e => Object.fromEntries(Object.keys(e.explorer.start).map((name) => [name, e.explorer.model.get(name)]))"


def rounded(state):
    """The state with five digits, because an address keeps six."""
    return json.loads(json.dumps(state), parse_float=lambda x: f"{float(x):.5g}")


@pytest.mark.parametrize("name", all_but(NAMES, lambda name: name in NAMES[:4]))
def test_changed_state_is_stored_in_the_address_and_restored(name, book):
    other, explorer = WalkExplorer(n=4, start=1), example(name)
    page = book(other, explorer)
    card = page.locator("div.explorer").nth(1)
    card.locator("input[type=range]:visible:enabled").first.press("ArrowLeft")
    for tick in card.locator("input[type=checkbox]:visible").all():
        tick.press("Space")
    page.wait_for_function("location.hash")
    page.evaluate(
        "new Promise((done) => setTimeout(done, 400))"
    )  # behind the page's own timer, which writes the address
    wanted, address = card.evaluate(STATE), page.evaluate("location.hash")
    assert wanted != explorer._state()
    again = book(other, explorer, at=address)
    assert rounded(again.locator("div.explorer").nth(1).evaluate(STATE)) == rounded(wanted)
    assert again.locator("div.explorer").first.evaluate(STATE) == other._state()


NONSENSE = [
    "explore=walk&n=5",
    "explore=walk&layers=1e99&temperature=-1e99&seed=0.5&start=-3",
    "explore=walk&layers=%E0%A4%A&causal=2&nothing=1&__proto__=1&constructor=1",
    "explore=walk&layers=null&temperature=[1]&same={}",
    "explore=tiles&order=constructor&memory=100&step=99999999&n=-1",
    "explore=plane&query=[1]",
    "explore=plane&key=[[1,2]]&value=[]",
    "explore=retrieval&labels=[]&key=[[1e9,-1e9]]",
    'explore=masks&parts=["zzz 5"]&painted=[[1]]',
    "explore=heads&words=<script>alert(1)</script>&off=[5]&query=15",
    "explore=clocks.7&shift=5",
    "explore=__proto__",
    "a-heading",
]


@pytest.mark.one_case
@pytest.mark.parametrize("address", NONSENSE)
def test_invalid_address_is_ignored(address, book):
    """Neither the named explorer nor another one changes."""
    named = [name for name in NAMES if f"explore={name.removesuffix('Explorer').lower()}" in address]
    explorers = [*map(example, named), WalkExplorer()]
    page = book(*explorers, at=f"#{address}")
    assert page.locator("div.explorer .x-body").evaluate_all(ALONE) == 0
    assert page.locator("div.explorer .x-body").count() == len(explorers)
    page.evaluate("location.hash = '#explore=walk&layers=2'")
    page.wait_for_function(
        "[...document.querySelectorAll('.explorer')].some(e => e.explorer.model.get('layers') === 2)"
    )


def test_numbers_in_the_address_are_clipped_to_their_bounds(book):
    page = book(WalkExplorer(), at="#explore=walk&layers=99&residual=-4&seed=0.5")
    state = page.locator("div.explorer").evaluate(STATE)
    assert (state["layers"], state["residual"], state["seed"]) == (16, 0, 0)


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_case  # all explorers share one kit
@pytest.mark.parametrize("name", NAMES)
def test_title_and_question_come_from_the_card(name, show):
    """Both are defined in the Python class, and no script repeats them."""
    card = example(name).card
    assert card.question.endswith("?")
    assert len(card.question) <= 75
    for source in STATIC.glob("*.js"):
        assert not {card.title, card.question} & set(json.dumps(source.read_text(encoding="utf-8")).split('\\"'))
    assert example(name).to_html().index(card.question) < example(name).to_html().index("<script")
    with show(example(name)) as page:
        assert page.locator(".x-title").inner_text() == card.title
        assert page.locator(".x-question").inner_text() == card.question
        assert page.get_by_role("group", name=card.title).count() == 1
