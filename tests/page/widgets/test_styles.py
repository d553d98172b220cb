"""Tests of styles: the style of one explorer applies to no other, in any order on a page."""

import pytest
from controls import misplaced
from examples import NAMES, example
from frames import next_frame
from thorough import all_but

from lessons_lib.page.widgets import assemble

WIDTHS = [390, 768, 1280]
# What each element of a card looks like: where it lies, and what styles say of it.
LOOKS = """(card) => {
  const origin = card.getBoundingClientRect();
  const said = ["display", "color", "fill", "stroke", "strokeWidth", "opacity", "fontSize", "fontWeight", "cursor",
    "backgroundColor", "backgroundImage", "borderTopWidth", "textAlign", "whiteSpace", "paintOrder"];
  return [...card.querySelectorAll(".x-body, .x-body *")].map((e) => {
    const box = e.getClientRects()[0], style = getComputedStyle(e);
    const place = box ? [box.x - origin.x, box.y - origin.y, box.width, box.height] : [0, 0, 0, 0];
    return [[e.tagName, e.getAttribute("class") ?? "", ...said.map((name) => style[name])].join(" "), place];
  });
}"""
ALONE = """(alone) => { for (const style of document.querySelectorAll("style"))
  style.media = alone === null || style.parentElement === alone ? "all" : "not all"; }"""


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but(WIDTHS, lambda width: width == 390))
def test_explorer_style_does_not_depend_on_other_explorers(width, show):
    """Each card repeats the common style after the own styles of earlier cards, as outputs of a notebook do."""
    with show(*map(example, NAMES), width=width) as page:
        cards = page.locator("div.explorer").all()
        among = [card.evaluate(LOOKS) for card in cards]
        for name, card, seen in zip(NAMES, cards, among, strict=True):
            page.evaluate(ALONE, card.element_handle())
            for (look, place), (other, elsewhere) in zip(card.evaluate(LOOKS), seen, strict=True):
                assert (name, other, elsewhere) == (name, look, pytest.approx(place, abs=0.1))


@pytest.mark.thorough
@pytest.mark.browser
def test_parts_of_a_control_share_a_line_and_do_not_overlap(show):
    with show(*map(example, NAMES)) as page:
        cards = page.locator("div.explorer").all()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            next_frame(page)
            found = {name: misplaced(card) for name, card in zip(NAMES, cards, strict=True)}
            assert {name: controls for name, controls in found.items() if controls} == {}, width


@pytest.mark.browser
def test_notebook_card_has_the_class_of_its_style(mount):
    explorer = example("GraphExplorer")
    page = mount(explorer)
    assert page.locator("main").get_attribute("class") == "explorer x-graph"
    assert ".explorer.x-graph{" in explorer._css


def test_style_sheets_nest_own_rules_in_the_class(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "STATIC", tmp_path)
    (tmp_path / "explorer.css").write_text(".explorer { color: red; }\n")
    (tmp_path / "good.css").write_text("/* Larger. */\n.x-control { width: 0.5rem; }\n")
    assert assemble.style_sheets("good") == {
        "explorer": ".explorer { color: red; }\n",
        "good": ".explorer.x-good{/* Larger. */\n.x-control { width: 0.5rem; }\n}",
    }
    assert assemble.style_sheets("other") == {"explorer": ".explorer { color: red; }\n"}
