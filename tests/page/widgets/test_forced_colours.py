"""Tests with forced colours (Windows high contrast): bars and swatches stay visible."""

import pytest
from examples import NAMES, example

from lessons_lib.page.widgets import Hero

# What is drawn by a background alone, and looks like what it lies on: nothing is forced upon a bar that stands out.
LOST = """(card) => [...card.querySelectorAll(".x-bar, .x-key, .x-zero, .g-head i, .h-track i")].filter((e) => {
  const { width, height } = e.getBoundingClientRect();
  const { backgroundColor, backgroundImage } = getComputedStyle(e);
  const [r, g, b, a] = (backgroundColor.match(/[\\d.]+/g) ?? [255, 255, 255]).map(Number);
  return width > 1 && height > 1 && backgroundImage === "none" && (a === 0 || Math.min(r, g, b) > 230);
}).map((e) => e.outerHTML)"""


@pytest.mark.browser
def test_bars_and_swatches_stay_visible_in_forced_colours(show):
    explorers = [*map(example, NAMES), Hero()]
    with show(*explorers, forced_colors="active", reduced_motion="reduce") as page:
        assert page.evaluate("matchMedia('(forced-colors: active)').matches")
        drawn = page.locator(".x-bar, .x-key, .h-track i")
        assert drawn.count() > 30
        for card in page.locator("div.explorer, div.hero").all():
            assert card.evaluate(LOST) == []


@pytest.mark.browser
def test_selected_items_have_a_frame_in_forced_colours(show):
    frame = "e => getComputedStyle(e).outlineStyle"
    with show(example("MasksExplorer"), example("PlaneExplorer"), width=390, forced_colors="active") as page:
        chosen = page.locator("[aria-pressed=true]:visible").first
        other = page.locator("[aria-pressed=false]:visible").first
        assert chosen.evaluate(frame) == "solid"
        assert other.evaluate(frame) == "none"
