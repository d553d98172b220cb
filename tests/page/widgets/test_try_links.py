"""Tests of the Try links: each sets what it names, on a page and in a notebook, and nothing else."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from thorough import all_but

from lessons_lib.page import widgets
from lessons_lib.page.widgets import MasksExplorer, PlaneExplorer, RoutingExplorer, ScalingExplorer, WalkExplorer

BOOK = Path(__file__).parents[3] / "book"
EXPLORERS = BOOK / "explorers.ipynb"
STATE = "e => Object.fromEntries(Object.keys(e.explorer.start).map(name => [name, e.explorer.model.get(name)]))"
NOT_DRAWN = "e => /NaN|Infinity|undefined/.test(e.querySelector('.x-body').innerHTML)"
TOP = "e => Math.round(e.getBoundingClientRect().top)"
FAR = (
    '<p><a href="#explore=walk&amp;layers=5&amp;causal=true">five causal layers</a></p><div style="height: {}px"></div>'
)


def sources(notebook, kind):
    """The sources of a notebook's cells of one type."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def shown(notebook):
    """Every explorer as a notebook shows it, by the name of its script."""
    names, found = vars(widgets).copy(), {}
    for source in sources(notebook, "code"):
        if re.search(r"^\w+Explorer\(", source, re.MULTILINE):
            *before, last = ast.parse(source).body
            exec(compile(ast.Module(before, []), notebook.name, "exec"), names)
            explorer = eval(ast.unparse(last), names)
            found[explorer.script] = explorer
    return found


EVERY = shown(EXPLORERS)
LINKING = sorted(
    path
    for path in BOOK.rglob("*.ipynb")
    if "](#explore=" in (text := path.read_text(encoding="utf-8")) or "(<#explore=" in text
)
every_explorer = pytest.mark.parametrize("name", EVERY)
browser_cases = pytest.mark.parametrize("name", all_but(EVERY, lambda name: name in {"masks", "plane", "gpt"}))


# --- in Python --------------------------------------------------------------------------------------------------------


@every_explorer
def test_explorer_has_two_to_four_try_links_with_valid_values(name):
    explorer = EVERY[name]
    tries = explorer.card.tries
    assert {words: explorer.refused(values) for words, values in tries.items()} == dict.fromkeys(tries, "")
    assert 2 <= len(explorer.try_links()) <= 4
    assert all(3 < len(words) <= 45 for words in tries)
    states = [json.dumps({**explorer._state(), **values}, sort_keys=True) for values in [{}, *tries.values()]]
    assert len(set(states)) == len(states), "a link sets the first state, or that of another link"


def test_refused_names_the_rule_that_a_value_breaks():
    explorer = MasksExplorer()
    assert explorer.refused({"n": 8, "parts": ["block 2", "& causal"]}) == ""
    assert "at most 32" in explorer.refused({"n": 33})
    assert "parts[0] must name one of" in explorer.refused({"parts": ["zzz 5"]})
    assert explorer.refused({"width": 3}) == "MasksExplorer has no trait width"
    assert (explorer.n, explorer.parts) == (12, ["causal"])


def test_try_link_that_does_not_fit_the_data_is_left_out():
    two = PlaneExplorer(query=[1.0, 0.5], key=[[1.0, 0.0], [0.0, 2.0]], value=[[1.0, 0.0], [0.0, 1.0]])
    assert list(two.try_links()) == ["A long query", "Only the angle counts"]
    assert [words for words, *_ in two._card["tries"]] == list(two.try_links())


def test_address_holds_texts_as_they_are_and_other_values_in_json():
    assert ScalingExplorer().address({"width": 64, "scaling": "1/d"}) == "#explore=scaling&width=64&scaling=1%2Fd"
    assert MasksExplorer().address({"parts": ["block 2", "& causal"]}) == (
        "#explore=masks&parts=%5B%22block+2%22%2C%22%26+causal%22%5D"
    )


@pytest.mark.parametrize("notebook", LINKING, ids=lambda path: path.stem)
def test_links_in_the_text_have_values_that_their_explorer_takes(notebook, monkeypatch):
    monkeypatch.syspath_prepend(BOOK / "_ext")
    explore_links, explorers = import_module("explore_links"), shown(notebook)
    found = [link for text in sources(notebook, "markdown") for link in explore_links.LINK.finditer(text)]
    assert found
    for link in found:
        values = dict(parse_qsl((link["quoted"] or link["plain"])[1:]))
        explorer = explorers[values.pop("explore")]
        traits = {name: v if isinstance(getattr(explorer, name), str) else json.loads(v) for name, v in values.items()}
        assert explorer.refused(traits) == "", link[0]


# --- in the browser ---------------------------------------------------------------------------------------------------


@pytest.mark.browser
@browser_cases
def test_try_links_and_their_addresses_set_what_they_name(name, book):
    """One link after the other, so that each begins where another one ended; then each as the address of a page."""
    explorer = EVERY[name]
    page = book(explorer)
    card = page.locator("div.explorer")
    for words, values in explorer.try_links().items():
        wanted = {**explorer._state(), **values}
        link = card.get_by_role("link", name=words, exact=True)
        link.focus()
        place = link.evaluate(TOP)
        link.press("Enter")
        assert card.evaluate(STATE) == wanted
        assert not card.evaluate(NOT_DRAWN)
        assert link.evaluate("e => e === document.activeElement")
        assert link.evaluate(TOP) == place
        again = book(explorer, at=str(link.get_attribute("href")))
        assert again.locator("div.explorer").evaluate(STATE) == wanted
        again.close()
    card.get_by_role("button", name="Reset").click()
    assert card.evaluate(STATE) == explorer._state()


@pytest.mark.browser
def test_try_link_keeps_the_guess_and_resets_other_controls(book):
    page = book(RoutingExplorer(balance="none", guess=3))
    card = page.locator("div.explorer")
    card.evaluate("e => { e.explorer.model.set('guess', 5); e.explorer.model.set('story', 4); }")
    card.get_by_role("link", name="Two experts for each word").click()
    state = card.evaluate(STATE)
    assert (state["guess"], state["story"], state["top_k"], state["balance"]) == (5, 0, 2, "none")


@pytest.mark.browser
def test_try_link_sets_the_traits_of_a_notebook(mount):
    page = mount(WalkExplorer(layers=3))
    page.get_by_role("link", name="16 causal layers").click()
    assert page.evaluate("[model.get('layers'), model.get('causal'), saved]") == [16, True, 1]
    assert page.evaluate("location.hash") == ""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_link_in_the_text_sets_the_explorer_in_view_without_scrolling(book, width):
    page = book(WalkExplorer(layers=1), before=FAR.format(100))
    page.set_viewport_size({"width": width, "height": 1600})
    entries = page.evaluate("history.length")
    page.get_by_role("link", name="five causal layers").press("Enter")
    page.wait_for_function("document.querySelector('.explorer').explorer.model.get('layers') === 5")
    assert page.locator("div.explorer").evaluate(STATE)["causal"] is True
    page.wait_for_function("location.hash === '#explore=walk&layers=5&causal=true'")
    assert page.evaluate("[scrollY, history.length]") == [0, entries]


@pytest.mark.browser
def test_link_in_the_text_scrolls_to_an_explorer_out_of_view_and_back_returns(book):
    page = book(WalkExplorer(layers=1), before=FAR.format(5000))
    card = page.locator("div.explorer")
    page.get_by_role("link", name="five causal layers").click()
    page.wait_for_function("scrollY > 4000")
    assert card.evaluate(STATE)["layers"] == 5
    assert abs(card.evaluate(TOP)) < 40 or page.evaluate("scrollY + innerHeight >= document.body.scrollHeight - 1")
    page.go_back()
    page.wait_for_function("scrollY === 0")
    assert card.evaluate(STATE)["layers"] == 5
