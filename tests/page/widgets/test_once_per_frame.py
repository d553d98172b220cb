"""Tests that an explorer computes at most once per animation frame, however many events the reader's hand causes."""

import pytest
from examples import NAMES, example
from thorough import all_but

SLIDE = """async (slider) => {
  const card = slider.closest("div.explorer");
  let saved = 0;
  card.addEventListener("explorer-saved", () => { saved += 1; });
  const [least, most] = [slider.min, slider.max].map(Number);
  const places = [0.9, 0.6, 0.3, 0].map((share) => least + share * (most - least));
  for (const place of Number(slider.value) === least ? places.map((p) => least + most - p) : places) {
    slider.value = place;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }
  const [last, atOnce] = [slider.value, saved];
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [atOnce, saved, slider.value === last];
}"""

DRAG = """async (grip) => {
  const card = grip.closest("div.explorer"), { x, y, width, height } = grip.getBoundingClientRect();
  let saved = 0;
  card.addEventListener("explorer-saved", () => { saved += 1; });
  for (let i = 1; i <= 5; i++)
    grip.dispatchEvent(new PointerEvent("pointermove", {
      pointerId: 1, buttons: 1, clientX: x + width / 2 + 15 * i, clientY: y + height / 2 + 10 * i,
    }));
  const atOnce = saved;
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [atOnce, saved];
}"""

GRIPS = {
    "PlaneExplorer": "[role=slider]",
    "RetrievalExplorer": "[role=slider]",
    "CostExplorer": ".c-grip",
    "GraphExplorer": ".k-knot",
    "ScalingExplorer": ".s-melting",
    "MasksExplorer": "[role=grid]",
    "PatchesExplorer": ".v-paper",
}


@pytest.mark.browser
@pytest.mark.parametrize("name", all_but(NAMES, lambda name: name in NAMES[::3]))
def test_input_events_of_a_slider_within_a_frame_cause_one_computation(name, show):
    with show(example(name)) as page:
        sliders = page.locator("input[type=range]:visible:enabled")
        for i in range(sliders.count()):
            assert sliders.nth(i).evaluate(SLIDE) == [0, 1, True], sliders.nth(i).evaluate("s => s.labels[0].innerText")


@pytest.mark.browser
@pytest.mark.parametrize(("name", "grip"), GRIPS.items(), ids=GRIPS)
def test_pointer_events_of_a_drag_within_a_frame_cause_one_computation(name, grip, show):
    with show(example(name)) as page:
        held = page.locator(f"{grip}:visible").first
        held.scroll_into_view_if_needed()
        box = held.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        assert held.evaluate(DRAG) == [0, 1]
        page.mouse.up()


@pytest.mark.browser
@pytest.mark.parametrize("end", ["change", "pointerup"])
def test_the_last_value_is_computed_at_once_when_the_reader_lets_go(end, show):
    kind, moved = ("input", "input[type=range]") if end == "change" else ("pointermove", ".k-knot")
    script = """(control, [kind, end]) => {
      let saved = 0;
      control.closest("div.explorer").addEventListener("explorer-saved", () => { saved += 1; });
      if (kind === "input") control.value = control.min;
      const there = { pointerId: 1, buttons: 1, clientX: 90, clientY: 90 };
      for (const one of [kind, end]) control.dispatchEvent(new PointerEvent(one, there));
      return saved;
    }"""
    with show(example("GraphExplorer")) as page:
        control = page.locator(f"{moved}:visible").first
        box = control.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        assert control.evaluate(script, [kind, end]) == 1


@pytest.mark.browser
def test_several_traits_changed_together_are_drawn_once(show):
    """Reset sets all traits that differ; a figure that depends on several of them is drawn once."""
    with show(example("CollapseExplorer")) as page:
        for slider in page.get_by_role("slider").all():
            slider.press("Home")
        drawn = page.evaluate(
            """async () => {
              let drawn = 0;
              const line = document.querySelector("path.x-line");
              new MutationObserver((seen) => { drawn += seen.length; }).observe(line, { attributeFilter: ["d"] });
              document.querySelector(".x-reset").click();
              await null;
              return drawn;
            }"""
        )
        assert drawn == 1


TYPED = {
    "BirthExplorer": ["ABCAB", "ABCABC"],
    "GPTExplorer": ["a king", "the cats"],
    "MergesExplorer": ["token", "tokens"],
    "PatternExplorer": ["the king", "the cats"],
}


@pytest.mark.browser
@pytest.mark.parametrize("name", TYPED)
def test_text_typed_within_a_frame_is_computed_once(name, show):
    script = """async (typed, texts) => {
      let saved = 0;
      typed.closest("div.explorer").addEventListener("explorer-saved", () => { saved += 1; });
      for (const text of texts) {
        typed.value = text;
        typed.dispatchEvent(new Event("input", { bubbles: true }));
      }
      const atOnce = saved;
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      return [atOnce, saved, typed.value];
    }"""
    with show(example(name)) as page:
        typed = page.locator("input[type=text], textarea").first  # Birth shows it in its second tab
        assert typed.evaluate(script, TYPED[name]) == [0, 1, TYPED[name][1]]
