"""Tests of the retrieval explorer: its arithmetic, its traits, and the figure when query or keys move.

Everything is float64 on both sides; the tolerance leaves room for another machine's ``exp``, ``sin`` and ``atan2``.
"""

import math

import pytest
import torch
import traitlets
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.attention.attention import attention, attention_weights
from lessons_lib.page.widgets import RetrievalExplorer

QUERY = [-1.2, -1.6]
WIND = {
    "key": [[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]],
    "value": [3.0, 12.0, 25.0, 15.0],
    "labels": ["north", "east", "south", "west"],
}


def wind(**changed):
    return RetrievalExplorer(**{"query": QUERY, **WIND, **changed})


def close(ours, theirs):
    assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-11, atol=1e-11)


def looked_up(q, k, v):
    return attention(q, k, v[:, None], scale=1.0)[:, 0]


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_soft_answer_agrees_with_attention(javascript):
    for m in (2, 3, 5):
        q, k, v = torch.randn(7, 2) * 3, torch.randn(m, 2), torch.randn(m) * 20
        calls = [[query.tolist(), k.tolist(), v.tolist()] for query in q]
        close(javascript.each("retrieval.math", "answer", calls), looked_up(q, k, v))
        close(javascript.each("retrieval.math", "scores", [call[:2] for call in calls]), q @ k.T)
        close(javascript.each("retrieval.math", "best", calls), v[(q @ k.T).argmax(-1)])


@pytest.mark.browser
def test_slope_agrees_with_autograd(javascript):
    for _ in range(5):
        k, v, length = torch.randn(4, 2), torch.randn(4) * 20, 0.5 + 4 * torch.rand(())
        degrees = (360 * torch.rand(()) - 180).requires_grad_()
        q = length * torch.stack([degrees.deg2rad().cos(), degrees.deg2rad().sin()])
        (slope,) = torch.autograd.grad(looked_up(q[None], k, v)[0], degrees)
        close(javascript("retrieval.math", "perDegree", q.tolist(), k.tolist(), v.tolist()), slope)


@pytest.mark.browser
def test_a_direction_and_a_length_make_a_vector(javascript):
    close(javascript("retrieval.math", "pointing", -90, 2.5), torch.tensor([0.0, -2.5]))
    close(javascript("retrieval.math", "pointing", 60, 2), torch.tensor([1.0, math.sqrt(3)]))


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("query[0] * key[0] + query[1] * key[1]", "query[0] * key[0] - query[1] * key[1]"),
        ("p * values[j]));", "p * p * values[j]));"),
        ("s.indexOf(Math.max(...s))", "s.indexOf(Math.min(...s))"),
    ],
)
def test_wrong_answer_is_noticed(altered, right, wrong):
    with altered("retrieval.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_soft_answer_agrees_with_attention(javascript)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"), [("(values[j] - o)", "values[j] * (1 - p)"), ("[-query[1], query[0]]", "[query[1], -query[0]]")]
)
def test_wrong_slope_is_noticed(altered, right, wrong):
    with altered("retrieval.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_slope_agrees_with_autograd(javascript)


# --- traits ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"key": [[1.0, 0.0]]}, "length 2 <= L <= 6"),
        ({"key": [[1.0, 0.0, 0.0]] * 4}, "length 2 <= L <= 2"),
        ({"key": [[2.0, 1.0], *WIND["key"][1:]]}, r"key must be at most 2 long, got \[2.0, 1.0\], 2.23607 long"),
        ({"query": [0.0, 0.0]}, r"query must be between 0.1 and 20 long, got \[0.0, 0.0\], 0 long"),
        ({"query": [math.nan, 0.0]}, "a finite number"),
        ({"value": [1.0, 2.0]}, "value must be as many as key, got 2 for 4 keys"),
        ({"labels": ["a", "b", "c", "d", "e"]}, "labels must be as many as key, got 5 for 4 keys"),
        ({"value": [1.0, 2.0, 3.0, 50.5]}, "at most 50"),
        ({"labels": [1, 2, 3, 4]}, "labels"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        wind(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = wind()
    for trait, wrong in [("query", [30.0, 0.0]), ("key", [[3.0, 0.0]] * 4), ("value", [1.0])]:
        with pytest.raises(traitlets.TraitError):
            setattr(explorer, trait, wrong)
    assert (explorer.query, explorer.key, explorer.value) == (QUERY, WIND["key"], WIND["value"])


def expected(explorer):
    q, k, v = torch.tensor([explorer.query]), torch.tensor(explorer.key), torch.tensor(explorer.value)
    return attention_weights(q, k, scale=1.0)[0].tolist(), looked_up(q, k, v).item()


def test_still_contains_the_answer():
    for query in (QUERY, [0.1, 0.0], [0.0, 20.0]):
        explorer = wind(query=query)
        assert f"answer {expected(explorer)[1]:.2f}" in explorer.still()
    assert "answer 7.00" in wind(value=[7.0] * 4).still()


# --- what a reader sees ---------------------------------------------------------------------------------------------


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-").removesuffix("°"))


def weights(page):
    return [number(text) for text in page.locator(".x-grid .x-track + .x-value").all_inner_texts()]


def facts(page):
    """The soft answer, its change for one degree, and the value of the best key."""
    return [number(text) for text in page.locator(".x-facts b").all_inner_texts()]


@pytest.mark.browser
def test_weights_and_answers_agree_with_the_library(show):
    for query in (QUERY, [4.0, 3.0]):
        explorer = wind(query=query)
        with show(explorer) as page:
            p, answer = expected(explorer)
            assert weights(page) == pytest.approx(p, abs=6e-4)
            assert facts(page)[0] == pytest.approx(answer, abs=6e-3)
            assert facts(page)[2] == WIND["value"][p.index(max(p))]


@pytest.mark.browser
def test_long_query_selects_the_best_key_and_short_query_averages(show):
    with show(wind()) as page:
        page.get_by_label("Length of query").press("End")
        soft, _, hard = facts(page)
        assert hard == 25
        assert abs(soft - hard) < 0.3
        page.get_by_label("Length of query").press("Home")
        assert facts(page)[0] == pytest.approx(13.75, abs=0.5)
        assert abs(facts(page)[1]) < 0.02


@pytest.mark.browser
def test_turning_follows_the_slope(show):
    with show(wind()) as page:
        before, slope, _ = facts(page)
        page.get_by_role("slider", name="Direction").press("ArrowRight")
        assert facts(page)[0] - before == pytest.approx(slope, abs=0.03)


@pytest.mark.browser
def test_every_point_moves_by_arrow_keys_and_stays_within_its_bounds(show):
    with show(wind()) as page:
        for name in ("key north", "key west", "query"):
            before = page.get_by_label(name, exact=True).get_attribute("aria-valuetext")
            page.get_by_label(name, exact=True).press("ArrowUp")
            page.get_by_label(name, exact=True).press("ArrowLeft")
            assert page.get_by_label(name, exact=True).get_attribute("aria-valuetext") != before
        for _ in range(15):
            page.get_by_label("key north", exact=True).press("ArrowUp")
        assert page.get_by_label("key north", exact=True).get_attribute("aria-valuetext").endswith("2.00 long")
        assert page.get_by_label("Length of query").get_attribute("aria-valuetext") == "2.00"


@pytest.mark.browser
def test_a_key_is_dragged_and_the_query_turned_by_mouse(show):
    with show(wind()) as page:
        dial = page.get_by_label("query and keys")
        dial.scroll_into_view_if_needed()
        box = dial.bounding_box()
        unit, middle = box["width"] / 5.4, (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

        def drag(start, end):
            page.mouse.move(middle[0] + start[0] * unit, middle[1] - start[1] * unit)
            page.mouse.down()
            page.mouse.move(middle[0] + end[0] * unit, middle[1] - end[1] * unit, steps=3)
            page.mouse.up()

        drag((1.0, 0.0), (1.2, 1.1))
        moved = [WIND["key"][0], [1.2, 1.1], *WIND["key"][2:]]
        assert weights(page) == pytest.approx(expected(wind(key=moved))[0], abs=0.01)
        drag((-1.32, -1.76), (1.5, 1.5))
        turned = wind(key=moved, query=[math.sqrt(2), math.sqrt(2)])
        assert weights(page) == pytest.approx(expected(turned)[0], abs=0.01)


@pytest.mark.browser
def test_equal_values_draw_a_level_line(show):
    with show(wind(value=[7.0] * 4)) as page:
        assert facts(page) == [7, 0, 7]
        assert "NaN" not in page.locator(".x-body").inner_html()


@pytest.mark.browser
def test_table_has_a_row_for_each_key_and_label(mount):
    page = mount(wind())
    page.evaluate(
        "state => { for (const [name, value] of Object.entries(state)) model.set(name, value); }",
        {"value": [1.0, 2.0], "labels": ["a", "b"], "key": [[0.5, 0.5], [0.0, -1.0]]},
    )
    assert page.locator(".x-name").all_inner_texts() == ["a", "b"]
    assert len(weights(page)) == 2


def middle_of(page, name):
    box = page.get_by_label(name, exact=True).locator("circle").last.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.browser
def test_points_dragged_by_touch_do_not_scroll_the_page(show, finger):
    with show(wind(), width=360, has_touch=True, is_mobile=True) as page:
        page.locator("main").evaluate("m => { m.style.paddingBottom = '1500px'; }")
        x, y = middle_of(page, "key south")
        unit = page.get_by_label("query and keys").bounding_box()["width"] / 5.4
        finger(page, (x, y), (x, y - 1.5 * unit))
        assert page.get_by_label("key south", exact=True).get_attribute("aria-valuetext") == "90°, 0.50 long"
        x, y = middle_of(page, "query")
        finger(page, (x, y), (x, y - 60))
        assert page.get_by_label("query", exact=True).get_attribute("aria-valuetext").endswith("2.00 long")
        assert page.evaluate("scrollY") == 0


@pytest.mark.browser
def test_an_answer_that_rises_is_seen_to_rise(show):
    ring = "document.querySelector('svg[role=img] circle').cy.baseVal.value"
    with show(wind()) as page:
        for value in page.get_by_label("value of").all():
            before, low = facts(page)[0], page.evaluate(ring)
            value.press("End")
            assert facts(page)[0] > before
            assert page.evaluate(ring) < low
        ticks = page.get_by_label("the answer against").locator("text").all_text_contents()
        assert len(set(ticks)) == len(ticks)
        page.get_by_role("button", name="Reset").click()
        assert page.evaluate("document.querySelectorAll('.x-grid input')[0].max") == "40"


@pytest.mark.browser
def test_query_shows_its_length_and_turns_by_degrees(show):
    with show(wind(query=[4.0, 0.0])) as page:
        query = page.get_by_label("query", exact=True)
        hand = "document.querySelector('path.x-line').getAttribute('d')"
        for key, said in [("ArrowRight", "1°"), ("ArrowUp", "6°"), ("ArrowLeft", "5°"), ("ArrowDown", "0°")]:
            query.press(key)
            assert query.get_attribute("aria-valuetext") == f"{said}, 4.00 long"
        short = page.evaluate(hand)
        page.get_by_label("Length of query").press("End")
        assert page.evaluate(hand) != short


@pytest.mark.browser
def test_labels_do_not_overlap(show):
    """A query between west and south, as in the chapter."""
    near = [WIND["key"][0], WIND["key"][1], [0.1, -1.0], [-0.1, -1.0]]
    with show(wind(key=near, query=[0.0, -2.0])) as page:
        boxes = [t.bounding_box() for t in page.get_by_label("query and keys").locator("text").all()]
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert (
                    a["x"] + a["width"] <= b["x"]
                    or b["x"] + b["width"] <= a["x"]
                    or a["y"] + a["height"] <= b["y"] + 4
                    or b["y"] + b["height"] <= a["y"] + 4
                )


@pytest.mark.browser
def test_hand_shows_the_length_of_the_query(show):
    hand = "document.querySelector('path.x-line').getTotalLength()"
    with show(wind()) as page:
        words = page.get_by_label("query and keys").locator("text").last
        lengths = []
        for key, said in [("Home", "query, 0.1 long"), ("End", "query, 20.0 long")]:
            page.get_by_label("Length of query").press(key)
            assert words.text_content() == said
            lengths.append(page.evaluate(hand))
        unit = 50  # of the drawing; a length of 20 reaches the rim, at 2.2
        assert lengths == pytest.approx([2.2 * unit * math.log(1.1) / math.log(21), 2.2 * unit], abs=0.2)


@pytest.mark.browser
@pytest.mark.parametrize("theme", all_but(["light", "dark"], lambda theme: theme == "light"))
def test_query_keys_values_and_answer_have_the_colours_of_their_roles(show, theme):
    used = """root => {
      const of = (selector, what) => getComputedStyle(root.querySelector(selector))[what];
      const role = (name) => {
        const probe = root.appendChild(document.createElement("i"));
        probe.style.color = `var(--${name})`;
        const found = getComputedStyle(probe).color;
        probe.remove();
        return found;
      };
      return [
        [of("[aria-label='query'] .x-dot", "stroke"), role("query")],
        [of("[aria-label='key east'] circle + circle", "fill"), role("key")],
        [of(".x-bar", "backgroundColor"), role("key")],
        [of("svg[role=img] path.x-line:not(.x-dashed)", "stroke"), role("output")],
        [of("svg[role=img] .x-dot", "stroke"), role("output")],
        [of("svg[role=img] path[style*='--value']", "stroke"), role("value")],
      ];
    }"""
    with show(wind(), theme=theme) as page:
        colours = page.locator("div.explorer").evaluate(used)
        assert len({role for _, role in colours}) == 4
        assert all(ours == role for ours, role in colours)


@pytest.mark.browser
def test_on_a_phone_dial_and_curve_are_in_sight_with_their_sliders(show):
    with show(wind(), width=360, has_touch=True, is_mobile=True) as page:
        controls = page.locator(".x-controls").bounding_box()
        curve = page.get_by_label("the answer against").bounding_box()
        rows = page.locator(".x-grid").bounding_box()
        assert curve["y"] + curve["height"] - controls["y"] < 740 - 56  # a bar of the page lies above
        assert rows["y"] + rows["height"] - curve["y"] < 740 - 56 - controls["height"]
