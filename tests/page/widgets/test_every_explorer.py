"""Tests that every explorer must pass, in Python and on a page without kernel, network or scripts."""

import gzip
import inspect
import re

import numpy as np
import pytest
import torch
import traitlets
from axe_playwright_python.sync_playwright import Axe
from examples import NAMES, changes, example
from thorough import all_but

from lessons_lib.page import palette, widgets
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
LOOK = "root => [...root.querySelectorAll('svg, .x-bar, .x-value')].map(e => e.outerHTML).join() + root.innerText"

every_explorer = pytest.mark.parametrize("name", all_but(NAMES, lambda name: name in NAMES[:6]))


def look(page, index=0):
    return page.locator("div.explorer").nth(index).evaluate(LOOK)


def test_every_explorer_has_an_example():
    assert set(NAMES) == {name for name in widgets.__all__ if name.endswith("Explorer")}


# --- in Python ------------------------------------------------------------------------------------------------------


@every_explorer
def test_constructor_takes_the_traits_in_order(name):
    explorer = example(name)
    parameters = inspect.signature(type(explorer)).parameters
    assert set(parameters) == set(explorer._state())
    assert repr(type(explorer)(*(getattr(explorer, trait) for trait in parameters))) == repr(explorer)
    assert all(parameter.annotation is not parameter.empty for parameter in parameters.values())


def test_subclass_with_one_new_trait_is_a_valid_explorer():
    class Wider(widgets.ScalingExplorer):
        n_heads = Whole(4, min=1).tag(sync=True)

    assert str(inspect.signature(Wider)) == (
        "(width: int = 64, n_keys: int = 16, scaling: str = '1/sqrt(d)', seed: int = 0, n_heads: int = 4)"
    )
    assert Wider(n_heads=7)._state()["n_heads"] == 7
    assert repr(Wider()).endswith("seed=0, n_heads=4)")
    with pytest.raises(ValueError, match=r"n_heads.*at least 1"):
        Wider(n_heads=0)


@pytest.mark.parametrize("given", [torch.tensor, np.array, tuple], ids=["tensor", "array", "tuple"])
def test_lists_accept_tensors_arrays_and_tuples(given):
    explorer = widgets.PlaneExplorer(query=given([1.0, 0.5]), key=given([[1.0, 0.0], [0.0, 2.0]]))
    assert (explorer.query, explorer.key) == ([1.0, 0.5], [[1.0, 0.0], [0.0, 2.0]])


def test_no_two_explorers_share_a_list():
    first, second = widgets.MasksExplorer(), widgets.MasksExplorer()
    first.parts.append("| block 2")
    assert second.parts == ["causal"]


@every_explorer
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_still_is_independent_of_the_default_dtype_and_leaves_the_random_state(name, precision):
    before, wanted = torch.get_rng_state(), example(name).to_html()
    torch.set_default_dtype(precision)
    assert example(name).to_html() == wanted
    assert torch.equal(torch.get_rng_state(), before)


@every_explorer
def test_mimebundle_holds_the_widget_and_the_page(name):
    data, _ = example(name)._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", WIDGET_VIEW}
    assert data["text/html"].startswith(f'<div class="explorer x-{example(name).script}"><style ')
    assert data["text/html"].endswith("</script></div>")


@every_explorer
def test_repr_recreates_the_explorer(name):
    explorer = example(name)
    again = eval(repr(explorer), vars(widgets))
    assert repr(again) == repr(explorer) == explorer._repr_mimebundle_()[0]["text/plain"]
    assert again.to_html() == explorer.to_html()
    assert len(repr(explorer)) < 120


@every_explorer
def test_to_html_is_deterministic(name):
    first, second = example(name), example(name)
    assert first.to_html() == second.to_html()
    assert first.model_id not in first.to_html()
    assert not re.search(r"<\w[^>]*\sid=", first.to_html())
    assert "http" not in first.to_html().replace("http://www.w3.org/2000/svg", "")


@every_explorer
def test_page_is_small_when_compressed(name):
    """Each limit is 21 kB for the scripts, as they are written, and what the data of the explorer add."""
    data = {"HeadsExplorer": 11_500, "RoutingExplorer": 27_000, "PatternExplorer": 124_500, "BirthExplorer": 262_000}
    data |= {"GPTExplorer": 306_500, "PatchesExplorer": 62_500, "PairsExplorer": 128_500, "GraphExplorer": 9_500}
    assert len(gzip.compress(example(name).to_html().encode())) < 21_000 + data.get(name, 0)


@pytest.mark.rejects
@every_explorer
def test_unknown_argument_raises(name):
    with pytest.raises(TypeError, match=f"{name} got an unexpected keyword argument 'nonsense'; it takes .*"):
        type(example(name))(**example(name)._state(), nonsense=1)


@pytest.mark.rejects
@pytest.mark.parametrize(("name", "missing"), [("Plane", "key"), ("Retrieval", "labels"), ("Temperature", "scores")])
def test_missing_required_trait_raises(name, missing):
    explorer = example(f"{name}Explorer")
    given = {trait: value for trait, value in explorer._state().items() if trait != missing}
    with pytest.raises(
        TypeError, match=f"{name}Explorer missing a required argument: '{missing}'; it takes .*{missing}"
    ):
        type(explorer)(**given)


@every_explorer
def test_traits_can_be_observed_and_linked(name):
    first, second = example(name), example(name)
    for trait, value in changes(name).items():
        heard = []
        first.observe(heard.append, trait)
        linked = traitlets.link((first, trait), (second, trait))
        setattr(first, trait, value)
        assert [change["new"] for change in heard] == [value] == [getattr(second, trait)], trait
        linked.unlink()
    assert first.to_html() == second.to_html() != example(name).to_html()


def test_still_of_the_base_class_raises():
    class Bare(Explorer):
        script = "temperature"
        card = Card("", "", "")

    with pytest.raises(NotImplementedError):
        Bare().to_html()


# --- on a page ------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@every_explorer
def test_every_control_moves_by_keyboard(name, show):
    with show(example(name)) as page:
        sliders = page.locator("input[type=range]:visible")
        assert sliders.count()
        for i in range(sliders.count()):
            before = look(page)
            sliders.nth(i).focus()
            page.keyboard.press("ArrowLeft")
            assert look(page) != before, sliders.nth(i).evaluate("s => s.parentElement.innerText")
        for control in page.locator("select:visible").all():
            before = look(page)
            control.focus()
            page.keyboard.press("ArrowUp" if control.evaluate("s => s.selectedIndex") else "ArrowDown")
            assert look(page) != before


@pytest.mark.browser
@pytest.mark.one_case  # all explorers share one kit
@every_explorer
def test_every_slider_moves_by_mouse(name, show):
    with show(example(name)) as page:
        sliders = page.locator("input[type=range]:visible")
        for i in range(sliders.count()):
            looks = set()
            for share in (0.05, 0.95):
                box = sliders.nth(i).bounding_box()
                page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
                looks.add(look(page))
            assert len(looks) == 2


@pytest.mark.browser
@pytest.mark.one_case  # all explorers share one kit
@every_explorer
def test_two_explorers_on_a_page_are_independent(name, show):
    with show(example(name), example(name)) as page:
        before = look(page)
        assert look(page, 1) == before
        page.locator("div.explorer").nth(1).locator("input[type=range]").first.press("ArrowLeft")
        assert look(page) == before
        assert look(page, 1) != before


@pytest.mark.browser
@every_explorer
def test_live_region_announces_after_a_pause(name, show):
    with show(example(name)) as page:
        region = page.locator("[aria-live=polite]")
        assert region.count() == 1
        page.wait_for_function("document.querySelector('[aria-live]').textContent")
        first = region.text_content()
        slider = {"ClocksExplorer": 1}.get(name, 0)  # its first one moves both words, and what is said stays true
        page.locator("input[type=range]").nth(slider).press("ArrowLeft")
        page.wait_for_function("first => document.querySelector('[aria-live]').textContent !== first", arg=first)


@pytest.mark.browser
@pytest.mark.one_case  # tests/site/test_pages.py looks at all of them
@every_explorer
def test_axe_finds_no_violation_and_dark_mode_applies_at_once(name, show):
    colours = "root => [getComputedStyle(root).getPropertyValue('--first'), getComputedStyle(root).colorScheme]"
    light, dark = "", "background: #14181e; color: #ced6dd"
    with show(example(name)) as page:
        assert page.locator(".x-still").count() == 0
        before = page.locator("div.explorer").evaluate(colours)
        for theme, style in (("light", light), ("dark", dark)):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            page.evaluate("style => { document.body.style = style; }", style)
            found = (
                Axe().run(page, options={"rules": {"page-has-heading-one": {"enabled": False}}}).response["violations"]
            )
            assert not [(theme, v["id"], node["html"][:120]) for v in found for node in v["nodes"]]
        assert page.locator("div.explorer").evaluate(colours) == [palette.DARK_QUERY, "dark"] != before


def right_edge(page):
    return max(page.locator("div.explorer *").evaluate_all("all => all.map(e => e.getBoundingClientRect().right)"))


@pytest.mark.browser
@every_explorer
def test_without_scripts_picture_and_sentence_remain_and_fit_a_phone(name, show):
    explorer = example(name)
    with show(explorer, width=360, java_script_enabled=False) as page:
        assert page.locator("svg[role=img]").is_visible()
        assert len(page.locator("svg[role=img]").get_attribute("aria-label").split()) > 3
        assert explorer.card.sentence in page.locator("div.explorer").inner_text()
        assert right_edge(page) <= 360


@pytest.mark.browser
@every_explorer
def test_phone_has_no_horizontal_scroll_and_controls_are_at_least_24_pixels(name, show):
    sizes = "all => all.map(c => [c.outerHTML, c.getBoundingClientRect().width, c.getBoundingClientRect().height])"
    with show(example(name), width=360) as page:
        assert right_edge(page) <= 360
        measured = page.locator("input:visible, select:visible, button:visible").evaluate_all(sizes)
        assert measured
        assert not [(control, width, height) for control, width, height in measured if min(width, height) < 24]


@pytest.mark.browser
@pytest.mark.parametrize("name", all_but(NAMES, lambda name: name in {"RoutingExplorer", "TilesExplorer"}))
def test_card_fits_one_screen_of_a_laptop(name, show):
    """With DejaVu Sans, which is wide, the cards are 450 to 850 px high; other fonts may wrap at other words."""
    with show(example(name), width=1280) as page:
        assert page.locator("div.explorer").bounding_box()["height"] < 880


@pytest.mark.browser
@every_explorer
def test_dragging_does_not_move_the_controls(name, show):
    """Text may change while the reader drags, but the controls must not move."""
    places = "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })"
    with show(example(name)) as page:
        controls = page.locator("input[type=range]:visible")
        before = controls.evaluate_all(places)
        for i in range(controls.count()):
            for key in ("Home", "End"):
                controls.nth(i).press(key)
                assert controls.evaluate_all(places) == before


STATE = "e => Object.fromEntries(Object.keys(e.explorer.start).map((name) => [name, e.explorer.model.get(name)]))"


@pytest.mark.browser
@every_explorer
def test_reset_restores_the_initial_state_and_keys_do_not_propagate(name, show):
    explorer = example(name)
    with show(explorer) as page:
        page.evaluate("window.heard = 0; document.addEventListener('keydown', () => { heard += 1; })")
        root = page.locator("div.explorer")
        for slider in page.locator("input[type=range]:visible:enabled").all():
            slider.press("ArrowLeft" if slider.evaluate("s => s.value > s.min") else "ArrowRight")
        for tick in page.locator("input[type=checkbox]").all():
            tick.press("Space")
        assert root.evaluate(STATE) != explorer._state()
        page.get_by_role("button", name="Reset").press("Enter")
        assert root.evaluate(STATE) == explorer._state()
        assert page.evaluate("heard") == 0
        assert page.locator("[data-lm-suppress-shortcuts]").count() == 1
        page.keyboard.press("Control+b")
        assert page.evaluate("heard") in {1, 2}  # Control is a key too
        assert page.locator("[data-lm-suppress-shortcuts]").count() == 0


@every_explorer
def test_explorers_share_scripts(name):
    """A file that two explorers share has the same key in both, so a page needs it once."""
    scripts = [
        dict(re.findall(r'<script data-part="(.*?)">(.*?)</script>', example(n).to_html(), re.DOTALL))
        for n in (name, NAMES[0])
    ]
    shared = {key.split("-")[0] for key in scripts[0].keys() & scripts[1].keys()}
    assert {"kit", "page_model"} <= shared
    assert all(scripts[0][key] == scripts[1][key] for key in scripts[0].keys() & scripts[1].keys())


# --- in a live notebook ---------------------------------------------------------------------------------------------


@pytest.mark.browser
@every_explorer
def test_every_trait_set_from_python_changes_the_picture(name, mount):
    assert set(changes(name)) == set(example(name)._state())
    page = mount(example(name))
    for trait, value in changes(name).items():
        before = page.locator("main").evaluate(LOOK)
        page.evaluate("([trait, value]) => model.set(trait, value)", [trait, value])
        assert page.locator("main").evaluate(LOOK) != before, trait
        assert page.evaluate("saved") == 0, "what came from outside is not sent back"


@pytest.mark.browser
@pytest.mark.one_case  # all explorers share one kit
@every_explorer
def test_a_moved_slider_is_saved(name, mount):
    page = mount(example(name))
    page.locator("input[type=range]:visible").first.press("ArrowLeft")
    assert page.evaluate("saved") == 1


@pytest.mark.browser
@every_explorer
def test_cleanup_removes_listeners_and_content(name, mount):
    page = mount(example(name))
    assert page.evaluate("window.late = heard(), late.length") > 0
    assert page.locator("main").inner_html() != ""
    page.evaluate("leave()")
    assert page.evaluate("heard().length") == 0
    page.evaluate("late.forEach((f) => f())")  # a change that was already on its way
    assert page.locator("main").inner_html() == ""
