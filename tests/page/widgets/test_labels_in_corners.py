"""Tests of the labels of six explorers: legible names of axes and lines, on axes that do not move."""

import pytest
from labels import COLLISIONS, collisions, names, smallest, ticks
from thorough import all_but

from lessons_lib.page.widgets import (
    HeadsExplorer,
    MasksExplorer,
    PlaneExplorer,
    RetrievalExplorer,
    ScalingExplorer,
    TemperatureExplorer,
)

KEYS = [[1.8, 0.4], [-0.6, 1.7], [-1.1, -1.2], [0.3, 0.3]]
VALUES = [[2.2, 1.0], [-0.5, 2.2], [-1.8, -1.2], [1.2, -1.9]]
WINDS = {
    "key": [[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]],
    "value": [3.0, 12.0, 25.0, 15.0],
    "labels": ["north", "east", "south", "west"],
}
BESIDE = [*WINDS["key"][:3], [-0.6, -0.8]]  # west next to south
WORDS = ["cat", "tired", "mat", "on", "The"]
LONG = "a tired king near the two small cats that these happy dogs follow waits ."

# The states at which the chapters begin, those that they ask for, and the ends of the sliders.
STATES = {
    "retrieval": RetrievalExplorer([-1.2, -1.6], **WINDS),
    "west next to south": RetrievalExplorer([-1.2, -1.6], **{**WINDS, "key": BESIDE}),
    "a long query to the west": RetrievalExplorer([-12.0, -16.0], **{**WINDS, "key": BESIDE}),
    "a short query to the north": RetrievalExplorer([0.0, 0.1], **WINDS),
    "values far apart": RetrievalExplorer([-20.0, 0.0], **{**WINDS, "value": [3.0, 12.0, 50.0, -50.0]}),
    "temperature": TemperatureExplorer([2.0, 1.5, 0.5, 0.0, -1.0], WORDS),
    "cold": TemperatureExplorer([2.0, 2.0, 0.5, 0.0, -1.0], WORDS, 0.05),
    "hot": TemperatureExplorer([2.0, 1.5, 0.5, 0.0, -1.0], WORDS, 20.0),
    "low scores": TemperatureExplorer([-5.0, -5.0, -4.0, -5.0, -5.0], WORDS, 0.05),
    "plane": PlaneExplorer([1.2, 0.9], KEYS, VALUES),
    "a query beyond its key": PlaneExplorer([2.925, 0.65], KEYS, VALUES, 0.05),
    "key 4 overtakes": PlaneExplorer([1.2, 0.9], [*KEYS[:3], [1.2, 1.2]], VALUES),
    "scaling": ScalingExplorer(width=4, scaling="1"),
    "width 1024": ScalingExplorer(width=1024, scaling="1"),
    "divided by the root": ScalingExplorer(width=4096, scaling="1/sqrt(d)"),
    "times the root": ScalingExplorer(width=4096, scaling="sqrt(d)", n_keys=64),
    "masks": MasksExplorer(n=16, parts=["sliding_window 4"]),
    "the largest mask": MasksExplorer(n=32, parts=["causal"], layers=5, painted=[[0, 0, 0]]),
    "ten positions": MasksExplorer(n=10),
    "heads": HeadsExplorer("the queen that these dogs follow", 5),
    "a long sentence": HeadsExplorer(LONG, 2, ["1.1", "2.3"]),
}
AXES = {
    "retrieval": {"answer", "direction of the query", "soft answer", "hard answer", "query, 2.0 long"},
    "temperature": {"entropy", "expected score", "T = 1.00", "softmax, any T", "as good as the ring"},
    "plane": {"→ first coordinate", "↑ second coordinate", "query", "output"},
    "scaling": {
        "score",
        "weights of one query, stacked",
        "16 keys",
        "width dₖ",
        "norm of the Jacobian",
        "median query",
    },
    "masks": {"query", "key"},
    "heads": {"word", "layer 1", "layer 2"},
}


@pytest.mark.browser
@pytest.mark.parametrize("state", all_but(STATES, lambda state: state in list(STATES)[::3]))
def test_labels_do_not_overlap_and_are_legible_on_a_phone(state, show):
    with show(STATES[state], width=360) as page:
        assert smallest(page) >= 11
        assert not collisions(page)
        if page.get_by_role("button", name="Values and output").is_visible():
            page.get_by_role("button", name="Values and output").click()
            assert not collisions(page)


@pytest.mark.browser
@pytest.mark.parametrize("name", AXES)
def test_axes_and_lines_are_labelled(name, show):
    with show(STATES[name]) as page:
        assert names(page) >= AXES[name]


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("name", ["retrieval", "temperature", "plane", "scaling", "heads"])
def test_no_slider_moves_an_axis(name, show):
    with show(STATES[name]) as page:
        before = ticks(page)
        assert len(before) > 3
        for slider in page.locator("input[type=range]").all():
            for key in ("Home", "End"):
                slider.press(key)
                assert ticks(page) == before


OUTSIDE = """(card) => [...card.querySelectorAll("svg text")].filter((t) => t.textContent && t.getClientRects().length)
  .filter((t) => {
    const [box, frame] = [t.getBoundingClientRect(), card.getBoundingClientRect()];
    return box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom;
  }).map((t) => t.textContent)"""
# The texts that the dashed line of the temperature runs through.
CROSSED = """(card) => {
  const line = card.querySelector("path.x-dashed.x-second"), across = line.getScreenCTM();
  const places = Array.from({ length: 200 }, (_, i) =>
    line.getPointAtLength((i / 199) * line.getTotalLength()).matrixTransform(across));
  return [...line.ownerSVGElement.querySelectorAll("text.x-over")].filter((t) => {
    const { left, right, top, bottom } = t.getBoundingClientRect(), third = (bottom - top) / 3;
    return places.some(({ x, y }) => x > left && x < right && y > top + third && y < bottom - third);
  }).map((t) => t.textContent);
}"""


def at_the_ends(page):
    """Move the sliders that stay above the figure to every combination of their ends."""
    sliders = page.locator(".x-controls input[type=range]").all()
    for ends in range(2 ** len(sliders)):
        for i, slider in enumerate(sliders):
            slider.press("End" if ends >> i & 1 else "Home")
        yield [slider.get_attribute("aria-valuetext") for slider in sliders]


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 900])
@pytest.mark.parametrize("state", ["retrieval", "west next to south", "plane", "temperature"])
def test_labels_are_not_clipped_or_hidden_at_slider_ends(state, width, show):
    with show(STATES[state], width=width) as page:
        card = page.locator("div.explorer")
        for ends in at_the_ends(page):
            assert (ends, card.evaluate(OUTSIDE), collisions(page)) == (ends, [], [])


ROUND = f"""(card, lengths) => {{
  const found = [], clipped = {OUTSIDE}, overlapping = {COLLISIONS};
  for (const length of lengths) for (let degrees = -180; degrees <= 180; degrees += 3) {{
    const angle = (degrees * Math.PI) / 180;
    card.explorer.model.set("query", [length * Math.cos(angle), length * Math.sin(angle)]);
    const wrong = [...clipped(card), ...overlapping(card, 4)];
    if (wrong.length) found.push([length, degrees, wrong]);
  }}
  return found;
}}"""


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 900])
@pytest.mark.parametrize(("state", "lengths"), [("retrieval", [0.1, 2, 20]), ("plane", [0.5, 1.5, 3])])
def test_labels_fit_in_every_direction_of_the_query(state, lengths, width, show):
    with show(STATES[state], width=width) as page:
        assert page.locator("div.explorer").evaluate(ROUND, lengths) == []


@pytest.mark.browser
def test_dashed_line_of_the_temperature_crosses_no_label(show):
    with show(STATES["temperature"]) as page:
        for ends in at_the_ends(page):
            assert (ends, page.locator("div.explorer").evaluate(CROSSED)) == (ends, [])
