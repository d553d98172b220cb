"""Tests of the masks explorer: script and library agree; cells painted by mouse, by keyboard and from Python."""

import gzip

import pytest
import torch
import traitlets

from lessons_lib.attention import masks
from lessons_lib.attention.masks import (  # the names of which the figure's line of Python is made
    bidirectional,
    block,
    causal,
    dilated,
    documents,
    global_tokens,
    prefix,
    sliding_window,
)
from lessons_lib.page.widgets import MasksExplorer
from lessons_lib.page.widgets.masks import KINDS

PYTHON = {
    function.__name__: function
    for function in (bidirectional, block, causal, dilated, documents, global_tokens, prefix, sliding_window)
} | {"torch": torch}

COMPOSITIONS = [
    ["causal"],
    ["bidirectional"],
    ["sliding_window"],
    ["sliding_window 1"],
    ["two_sided_window 3"],
    ["dilated 3 2"],
    ["dilated 1 5"],
    ["block 3"],
    ["documents 4 1 3"],
    ["documents"],
    ["prefix 0"],
    ["prefix 31"],
    ["global_tokens 0 5 30"],
    ["causal", "& two_sided_window 3"],
    ["sliding_window 2", "| dilated 2 4"],
    ["block 4", "| global_tokens 0", "& causal"],
    ["block 4", "& causal", "| global_tokens 0", "& documents 7 2"],
]
SIZES = [2, 7, 12, 32]


def bools(mask):
    return torch.tensor(mask, dtype=torch.bool)


# --- two languages, one meaning ---------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("parts", COMPOSITIONS, ids=" ".join)
def test_figure_and_trait_agree_with_the_library(javascript, parts):
    for n in SIZES:
        shown = javascript("masks.math", "expression", n, parts)
        library = eval(shown, PYTHON.copy())
        assert torch.equal(bools(javascript("masks.math", "compose", n, parts)), library), shown
        assert torch.equal(bools(MasksExplorer(n, parts).mask), library), shown


def test_every_kind_is_among_the_compositions():
    named = {part.split()[-len(part.split()) + (part[0] in "&|")] for parts in COMPOSITIONS for part in parts}
    assert named == set(KINDS) - {"random_sparse"}


@pytest.mark.browser
def test_random_masks_agree_in_python_and_javascript_and_have_the_density_of_the_library(javascript):
    n, density = 32, 0.3
    counts = []
    for seed in range(20):
        ours = bools(MasksExplorer(n, [f"random_sparse {density} {seed}"]).mask)
        assert torch.equal(ours, bools(javascript("masks.math", "compose", n, [f"random_sparse {density} {seed}"])))
        assert ours.diagonal().all()
        counts.append(masks.density(ours))
    expected = density + (1 - density) / n
    error = (expected * (1 - expected) / (20 * n * n)) ** 0.5
    assert abs(torch.stack(counts).mean() - expected) < 4 * error


@pytest.mark.browser
def test_expression_has_the_brackets_that_python_needs(javascript):
    """In Python & binds before |, in the figure parts combine from left to right, so the shown line needs brackets."""
    assert javascript("masks.math", "expression", 4, ["causal", "| block 2", "& prefix 1"]) == (
        "(causal(4) | block(4, 2)) & prefix(4, 1)"
    )
    assert javascript("masks.math", "expression", 4, ["causal", "& block 2", "| prefix 1"]) == (
        "causal(4) & block(4, 2) | prefix(4, 1)"
    )


def random_masks():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(n, n, generator=generator) < share for n in (1, 2, 7, 19) for share in (0.0, 0.1, 0.3, 1.0)]


def check_reach(javascript):
    for mask in random_masks():
        for n_layers in (0, 1, 2, 5):
            ours = bools(javascript("masks.math", "reach", mask.tolist(), n_layers))
            assert torch.equal(ours, masks.reach(mask, n_layers)), "reach differs"


@pytest.mark.browser
def test_reach_agrees_with_the_library(javascript):
    check_reach(javascript)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("i === j || mask[i][j]", "mask[i][j]"),  # no residual stream
        ("may && before[k][j]", "may && before[j][k]"),
        ("before[k][j]", "layer[k][j]"),
        ("l < layers", "l <= layers"),
    ],
)
def test_wrong_reach_is_noticed(altered, right, wrong):
    with altered("masks.math", right, wrong) as javascript, pytest.raises(AssertionError, match="reach differs"):
        check_reach(javascript)


@pytest.mark.browser
def test_density_and_fully_masked_rows(javascript):
    for mask in random_masks():
        assert javascript("masks.math", "density", mask.tolist()) == pytest.approx(
            masks.density(mask).item(), abs=1e-15
        )
        assert javascript("masks.math", "deadRows", mask.tolist()) == (~mask.any(-1)).nonzero().flatten().tolist()


# --- traits -----------------------------------------------------------------------------------------------------------


def test_repr_lists_the_traits():
    assert repr(MasksExplorer()) == "MasksExplorer(n=12, parts=['causal'], layers=1)"
    assert repr(MasksExplorer(painted=[(0, 1, 1)])).endswith("painted=[[0, 1, 1]])")


def test_mask_follows_the_traits_and_can_be_observed():
    explorer = MasksExplorer(n=3)
    seen = []
    explorer.observe(lambda change: seen.append(bools(change["new"])), "mask")
    explorer.parts = ["bidirectional"]
    explorer.painted = [[2, 0, 0], [9, 9, 1]]
    assert torch.equal(seen[0], masks.bidirectional(3))
    assert bools(explorer.mask).tolist() == [[True] * 3, [True] * 3, [False, True, True]]
    assert torch.equal(seen[-1], bools(explorer.mask))
    with pytest.raises(traitlets.TraitError, match="read-only"):
        explorer.mask = [[True]]


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n": 33}, "n.*at least 2 and at most 32, not the int 33"),
        ({"layers": 0}, "layers.*at least 1"),
        ({"parts": []}, "parts.*1 <= L"),
        ({"parts": ["causal"] + ["& causal"] * 4}, "parts.*<= 4"),
        ({"parts": ["& causal"]}, r"parts\[0\] must not begin with an operation, got '& causal'"),
        ({"parts": ["causal", "block 2"]}, r"parts\[1\] must begin with '& ' or '| ', got 'block 2'"),
        ({"parts": ["casual"]}, r"parts\[0\] must name one of causal, .*, got 'casual'"),
        ({"parts": ["block two"]}, r"parts\[0\] takes numbers after its name.*, got 'block two'"),
        ({"parts": ["block  2"]}, "separated by single spaces"),
        ({"parts": ["block 2 3"]}, r"parts\[0\] takes 1 numbers after block, got 'block 2 3'"),
        ({"parts": ["dilated 3"]}, "takes 2 numbers after dilated"),
        ({"parts": ["sliding_window 0"]}, r"numbers of at least 1, got 'sliding_window 0'"),
        ({"parts": ["block 2.5"]}, "takes whole numbers, got 'block 2.5'"),
        ({"parts": ["random_sparse 1.5 0"]}, "a density of at most 1"),
        ({"parts": ["random_sparse 0.5 0.5"]}, "takes whole numbers"),
        ({"painted": [[0, 32, 1]]}, "painted.*at most 31"),
        ({"painted": [[0, 1]]}, "painted.*3 <= L"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        MasksExplorer(**arguments)


# --- what a reader sees and does --------------------------------------------------------------------------------------


def shown(page):
    """The classes of the cells of the matrix."""
    rows = page.get_by_role("row").filter(has=page.get_by_role("gridcell"))
    classes = rows.evaluate_all("rows => rows.map(r => [...r.children].map(c => c.classList.contains('x-may')))")
    return bools(classes)


def cell(page, query, key):
    return page.get_by_role("gridcell", name=f"query {query}, key {key}:")


@pytest.mark.browser
def test_controls_change_the_parts(show):
    with show(MasksExplorer(n=6)) as page:
        page.get_by_role("button", name="Add a part").press("Enter")
        assert torch.equal(shown(page), causal(6) | global_tokens(6, [0]))
        page.get_by_label("kind of part 2").select_option("two_sided_window")
        page.get_by_label("how part 2 is joined").select_option("&")
        window = page.get_by_role("slider", name="window", exact=True)
        window.press("Home")
        window.press("ArrowRight")
        assert torch.equal(shown(page), causal(6) & sliding_window(6, 2, causal=False))
        assert page.locator("code").inner_text() == "causal(6) & sliding_window(6, 2, causal=False)"
        page.get_by_label("Positions n").press("End")
        assert torch.equal(shown(page), sliding_window(32, 2))
        page.get_by_role("button", name="remove part 1").click()
        assert torch.equal(shown(page), sliding_window(32, 2, causal=False))


@pytest.mark.browser
def test_lists_of_numbers_can_be_typed(show):
    with show(MasksExplorer(n=7, parts=["documents 3"])) as page:
        lengths = page.get_by_label("lengths")
        lengths.fill("2 0, 3 and some")
        lengths.press("Enter")
        assert lengths.input_value() == "2 1 3"
        assert torch.equal(shown(page), documents(torch.tensor([0, 0, 1, 2, 2, 2, 3])))


@pytest.mark.browser
def test_cells_are_painted_by_keyboard(show):
    with show(MasksExplorer(n=5)) as page:
        page.get_by_role("gridcell").first.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Space", "End", "Enter"):
            page.keyboard.press(key)
        expected = causal(5)
        expected[2, 1], expected[2, 4] = False, True
        assert torch.equal(shown(page), expected)
        assert page.locator("[tabindex='0']").count() == 1
        assert page.evaluate("document.activeElement.ariaLabel") == "query 2, key 4: may attend"
        page.keyboard.press("ArrowRight")  # the edge holds
        assert page.evaluate("document.activeElement.ariaLabel") == "query 2, key 4: may attend"
        page.keyboard.press("Space")  # back to the composition: no paint left there
        assert "1 painted" in page.locator("code").inner_text()
        page.get_by_role("button", name="Clear the paint").click()
        assert torch.equal(shown(page), causal(5))


@pytest.mark.browser
def test_cells_are_painted_by_dragging(show):
    with show(MasksExplorer(n=5)) as page:
        boxes = [cell(page, 1, key).bounding_box() for key in (2, 4)]
        start, end = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
        page.mouse.move(*start)
        page.mouse.down()
        page.mouse.move(*end, steps=8)
        page.mouse.up()
        page.mouse.move(*start)  # the hand without the brush paints nothing
        expected = causal(5)
        expected[1, 2:] = True
        assert torch.equal(shown(page), expected)


def middle(page, query, key):
    box = cell(page, query, key).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.browser
def test_fast_stroke_has_no_gaps_and_only_the_main_button_paints(show):
    with show(MasksExplorer(n=13)) as page:
        start, end = middle(page, 1, 2), middle(page, 1, 12)
        page.mouse.move(*start)
        page.mouse.down(button="right")
        page.mouse.move(*end)
        page.mouse.up(button="right")
        assert torch.equal(shown(page), causal(13))
        page.mouse.move(*start)
        page.mouse.down()
        page.mouse.move(*end)  # one event for eleven cells
        page.mouse.up()
        expected = causal(13)
        expected[1, 2:] = True
        assert torch.equal(shown(page), expected)


# Back to the top, and again if the swipe's momentum carries the page on: only then is a place where it was measured.
STAYS_AT_THE_TOP = """async () => {
  scrollTo(0, 0);
  for (let frame = 0; frame < 10; frame++) {
    await new Promise(requestAnimationFrame);
    if (scrollY) return false;
  }
  return true;
}"""


@pytest.mark.browser
def test_scrolling_touch_paints_nothing_and_tap_and_hold_paint(show, finger):
    with show(MasksExplorer(n=5), width=360, has_touch=True, is_mobile=True) as page:
        page.locator("main").evaluate("m => { m.style.paddingBottom = '1500px'; }")
        below, above = middle(page, 4, 2), middle(page, 1, 2)
        finger(page, below, above)
        assert page.evaluate("scrollY") > 30
        assert torch.equal(shown(page), causal(5))
        page.wait_for_timeout(600)  # as long as a hand takes: Chromium drops a tap at once after a swipe
        page.wait_for_function(STAYS_AT_THE_TOP)
        finger(page, middle(page, 0, 1))
        top = page.evaluate("scrollY")
        expected = causal(5)
        expected[0, 1] = True
        assert torch.equal(shown(page), expected)
        finger(page, middle(page, 1, 2), middle(page, 1, 4), hold=0.5)
        expected[1, 2:] = True
        assert torch.equal(shown(page), expected)
        assert page.evaluate("scrollY") == top


@pytest.mark.browser
def test_cancelled_stroke_is_undone(show):
    with show(MasksExplorer(n=5)) as page:
        page.mouse.move(*middle(page, 0, 3))
        page.mouse.down()
        page.mouse.move(*middle(page, 0, 4))
        page.get_by_role("grid").dispatch_event("pointercancel")
        assert torch.equal(shown(page), causal(5))


@pytest.mark.browser
def test_focus_is_kept_when_parts_change(show):
    with show(MasksExplorer(n=6, parts=["causal", "| block 2", "& dilated 3 2"])) as page:
        focused = "(document.activeElement.ariaLabel ?? document.activeElement.closest('label')?.innerText ?? 'body')"
        page.get_by_label("kind of part 2").focus()
        page.keyboard.press("ArrowUp")
        assert page.evaluate(focused).startswith("kind of part 2")
        page.get_by_role("button", name="remove part 2").press("Enter")
        assert page.evaluate(focused) == "remove part 2"
        page.get_by_role("button", name="remove part 2").press("Enter")
        assert page.evaluate("document.activeElement.closest('.explorer') !== null")


@pytest.mark.browser
def test_added_parts_have_different_kinds(show):
    with show(MasksExplorer(n=6, parts=["sliding_window 4"])) as page:
        for _ in range(3):
            page.get_by_role("button", name="Add a part").click()
        code = "(sliding_window(6, 4) | global_tokens(6, [0])) & causal(6) | block(6, 4)"
        assert page.locator("code").inner_text() == code


@pytest.mark.browser
def test_reach_and_fully_masked_rows_are_shown_and_announced(show):
    with show(MasksExplorer(n=6, parts=["sliding_window 2"], painted=[[0, 0, 0]])) as page:
        assert page.locator(".x-table td").all_inner_texts()[2] == "1"
        assert page.locator("svg .x-dead").text_content() == "∅"
        assert cell(page, 5, 2).get_attribute("aria-label").endswith("hidden")
        layers = page.get_by_label("Layers L")
        layers.press("ArrowRight")
        layers.press("ArrowRight")
        assert cell(page, 5, 2).get_attribute("aria-label").endswith("within reach")
        assert cell(page, 5, 1).get_attribute("aria-label").endswith("hidden")


@pytest.mark.browser
def test_largest_mask_fits_a_phone_and_is_small(show):
    explorer = MasksExplorer(32, ["random_sparse 0.5 0"])
    assert len(gzip.compress(explorer.to_html().encode())) < 20_500
    with show(explorer, width=360) as page:
        assert page.get_by_role("gridcell").count() == 1024
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.browser
def test_columns_have_equal_height_in_the_initial_state(show):
    with show(MasksExplorer(n=16, parts=["sliding_window 4"]), width=790) as page:
        left, right = page.locator(".x-numbers").bounding_box(), page.locator(".x-right").bounding_box()
        assert abs(left["y"] + left["height"] - right["y"] - right["height"]) < 24


@pytest.mark.browser
def test_focus_is_kept_when_painted_cells_are_cleared(show):
    with show(MasksExplorer(n=5, painted=[[0, 3, 1]])) as page:
        page.get_by_role("button", name="Clear the paint").press("Enter")
        assert torch.equal(shown(page), causal(5))
        assert page.evaluate("document.activeElement.ariaLabel") == "query 0, key 0: may attend"
