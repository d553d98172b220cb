"""Tests of the steps explorer: its arithmetic agrees with the library; buttons, query and sliders move the figure."""

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.attention.attention import attention
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets import StepsExplorer

CAT = {"words": ["The", "cat", "sat"], "scores": [[0.0, 2, 0], [0, 0, 2], [0, 3, 0]], "values": [0.0, 4, 1]}


def cat(**changed):
    return StepsExplorer(**{**CAT, "query": 2, **changed})


def close(ours, theirs):
    assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-11, atol=1e-12)


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_row_agrees_with_attention(javascript):
    for n in (2, 3, 5):
        scores, values = 8 * torch.rand(6, n) - 4, 10 * torch.rand(n)
        found = javascript.each("steps.math", "row", [[s.tolist(), values.tolist()] for s in scores])
        close([row["exponentials"] for row in found], scores.exp())
        close([row["total"] for row in found], scores.exp().sum(-1))
        close([row["weights"] for row in found], softmax(scores))
        close([row["products"] for row in found], softmax(scores) * values)
        close([row["output"] for row in found], attention(scores, torch.eye(n), values[:, None], scale=1.0)[:, 0])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("e / total", "e"),
        ("scores.map(Math.exp)", "scores.map((s) => Math.exp(s / 2))"),
        ("p * values[j]", "values[j]"),
        ("output: sum(products)", "output: sum(values)"),
    ],
)
def test_wrong_row_is_noticed(altered, right, wrong):
    with altered("steps.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_row_agrees_with_attention(javascript)


# --- traits ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"words": ["cat"]}, "length 2 <= L <= 5"),
        ({"scores": [[0.0, 1.0], [1.0, 0.0]]}, "scores must be 3 rows of 3, one for each word"),
        ({"scores": [[0.0, 1.0]] * 3}, "scores must be 3 rows of 3"),
        ({"scores": [[0.0, 1.0, 4.5]] * 3}, "at least -4 and at most 4"),
        ({"values": [1.0, 2.0]}, "values must be 3, one for each word"),
        ({"values": [1.0, 2.0, -1.0]}, "at least 0 and at most 10"),
        ({"query": 3}, "query must be the index of one of the 3 words, got 3"),
        ({"step": 5}, "step.*at least 1 and at most 4"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        cat(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = cat()
    for trait, wrong in [("query", 3), ("values", [1.0]), ("scores", [[0.0, 1.0]] * 3), ("step", 0)]:
        with pytest.raises(traitlets.TraitError):
            setattr(explorer, trait, wrong)
    assert (explorer.query, explorer.step, explorer.values) == (2, 1, CAT["values"])


def test_output_is_the_weighted_average_of_the_values():
    for query in range(3):
        explorer = cat(query=query)
        assert explorer.output() == pytest.approx((explorer.weights() @ torch.tensor(CAT["values"]).double()).item())


def test_still_contains_weights_and_output():
    still = cat().still()
    assert "the weights of sat on The, cat, sat are 0.045, 0.909, 0.045; the output is 3.68" in still
    assert all(f">{shown}<" in still for shown in ("0.909", "0.045", "output for sat: 3.68"))


# --- what a reader sees ---------------------------------------------------------------------------------------------


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-"))


def column(page, index):
    """The three numbers of a column, None where it is not shown yet."""
    cells = page.locator(".x-cell")
    found = [cells.nth(5 * j + index) for j in range(3)]
    return [number(cell.inner_text()) if cell.is_visible() else None for cell in found]


@pytest.mark.browser
def test_a_button_goes_through_the_steps_and_starts_again(show):
    with show(cat()) as page:
        following = page.locator("button.x-next")
        labels, expected = [], [1, 2, 3, 5, 1]  # the columns that each step shows
        for shown in expected:
            labels.append(following.inner_text())
            assert [column(page, c)[0] is not None for c in range(5)] == [c < shown for c in range(5)]
            following.press("Enter")
        assert labels == ["Next: exponentials", "Next: weights", "Next: average", "Start again", "Next: exponentials"]
        page.get_by_role("button", name="Back").press("Enter")
        assert page.get_by_role("button", name="Back").is_disabled()


@pytest.mark.browser
@pytest.mark.parametrize("query", [0, 1, 2])
def test_numbers_agree_with_the_library(query, show):
    explorer = cat(query=query, step=4)
    scores, p = torch.tensor(CAT["scores"][query]), explorer.weights()
    with show(explorer) as page:
        assert column(page, 0) == scores.tolist()
        assert column(page, 1) == pytest.approx(scores.exp().tolist(), abs=0.051)
        assert column(page, 2) == pytest.approx(p.tolist(), abs=6e-4)
        assert column(page, 4) == pytest.approx((p * torch.tensor(CAT["values"]).double()).tolist(), abs=6e-3)
        assert number(page.locator(".x-sum b").inner_text()) == pytest.approx(explorer.output(), abs=6e-3)
        assert f"Output for {CAT['words'][query]}" in page.locator(".x-facts").inner_text()


@pytest.mark.browser
def test_a_higher_score_takes_weight_from_the_others_and_the_query_changes_the_row(show):
    with show(cat(step=4)) as page:
        before = column(page, 2)
        page.get_by_label("Score of The").press("End")
        after = column(page, 2)
        assert after[0] > before[0]
        assert after[1] < before[1]
        assert sum(after) == pytest.approx(1, abs=2e-3)
        page.get_by_label("Query").select_option("cat")
        assert column(page, 0) == CAT["scores"][1]
        page.get_by_label("Score of cat").press("Home")
        assert column(page, 0) == [0, -4, 2]
        page.get_by_label("Query").select_option("sat")
        assert column(page, 0) == [4, 3, 0]


@pytest.mark.browser
def test_small_exponentials_are_not_shown_as_zero(show):
    with show(cat(scores=[[-4.0, -4.0, -4.0]] * 3, step=2)) as page:
        assert column(page, 1) == pytest.approx([0.018] * 3)
        assert "The 0.018, cat 0.018, sat 0.018. Their sum is 0.055" in page.locator(".x-facts").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize(("motion", "seconds"), [("no-preference", "0.4s"), ("reduce", "0s")])
def test_bars_move_unless_the_reader_prefers_reduced_motion(motion, seconds, show):
    with show(cat(), reduced_motion=motion) as page:
        assert page.locator(".x-track rect").first.evaluate("e => getComputedStyle(e).transitionDuration") == seconds
        page.locator("button.x-next").click()
        page.wait_for_function("[...document.querySelectorAll('.x-track rect')][6].getBoundingClientRect().width > 20")


@pytest.mark.browser
def test_traits_of_other_lengths_do_not_break_the_figure(mount):
    page = mount(cat(step=4))
    page.evaluate("model.set('words', ['a', 'b', 'c', 'd'])")
    page.evaluate("model.set('words', ['a', 'b'])")
    page.evaluate("model.set('scores', [[1, 2]])")
    assert page.locator(".x-name").all_inner_texts() == ["a", "b"]
    drawn = page.locator("main").inner_html()
    assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}
