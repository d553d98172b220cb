"""Tests of the temperature explorer: its arithmetic, its traits, and the figure when a slider moves."""

import math

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.attention.softmax import log_sum_exp, softmax
from lessons_lib.page.widgets import TemperatureExplorer

SCORES = [2.0, 1.5, 0.5, -1.0]


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_free_energy_is_the_scaled_log_sum_exp(javascript):
    for n, temperature in [(1, 0.05), (3, 0.7), (7, 20.0), (13, 1.0)]:
        scores = torch.randn(n) * 5
        ours = javascript("temperature.math", "freeEnergy", scores.tolist(), temperature)
        assert_close(torch.tensor(ours), temperature * log_sum_exp(scores / temperature), rtol=1e-13, atol=1e-13)


@pytest.mark.browser
def test_softmax_attains_the_free_energy_and_other_weights_do_not(javascript):
    for temperature in (0.05, 1.0, 20.0):
        scores = torch.randn(5) * 3
        most = javascript("temperature.math", "freeEnergy", scores.tolist(), temperature)
        p = softmax(scores, temperature=temperature).tolist()

        def earned(weights, scores=scores, temperature=temperature):
            score = javascript("temperature.math", "expectedScore", weights, scores.tolist())
            return score + temperature * javascript("arithmetic", "entropy", weights)

        assert earned(p) == pytest.approx(most, rel=1e-12)
        others = javascript("temperature.math", "otherWeights", 5, 40)
        assert all(sum(weights) == pytest.approx(1.0) and min(weights) >= 0 for weights in others)
        assert max(map(earned, others)) < most


# --- traits ---------------------------------------------------------------------------------------------------------


def test_repr_lists_the_traits():
    assert repr(TemperatureExplorer([2, 1])) == "TemperatureExplorer(scores=[2.0, 1.0], temperature=1.0)"


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"scores": []}, "scores.*length.*1 <= L"),
        ({"scores": [1.0, math.nan]}, "scores.*expected a finite number, not the float nan"),
        ({"scores": [1.0, "two"]}, "scores.*expected a finite number, not the str 'two'"),
        ({"scores": [1.0], "labels": ["a", "b"]}, "labels must be as many as scores, got 2 labels for 1 scores"),
        ({"scores": [1.0], "temperature": 0.0}, "temperature.*at least 0.05 and at most 20, not the float 0.0"),
        ({"scores": [1.0], "temperature": 20.1}, "temperature.*at most 20, not the float 20.1"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        TemperatureExplorer(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = TemperatureExplorer(SCORES, labels=list("abcd"))
    for trait, wrong in [("temperature", -1.0), ("labels", ["one"]), ("scores", [1.0])]:
        with pytest.raises(traitlets.TraitError):
            setattr(explorer, trait, wrong)
    assert (explorer.temperature, explorer.labels, explorer.scores) == (1.0, list("abcd"), SCORES)


def test_scores_and_labels_can_change_together():
    explorer = TemperatureExplorer(SCORES, labels=list("abcd"))
    with explorer.hold_trait_notifications():
        explorer.scores = [1.0, 2.0]
        explorer.labels = ["x", "y"]
    assert explorer.scores == [1.0, 2.0]


# --- what a reader sees ---------------------------------------------------------------------------------------------


def numbers(texts):
    return [float(text.replace("\u2212", "-")) for text in texts]


def weights(page):
    return numbers(page.locator(".x-grid").first.locator(".x-track + .x-value").all_inner_texts())


def balance(page):
    return numbers(page.locator(".x-grid").nth(1).locator(".x-value").all_inner_texts())


@pytest.mark.browser
def test_bars_follow_the_temperature(show):
    with show(TemperatureExplorer(SCORES)) as page:
        slider = page.get_by_label("Temperature T")
        for key in ("Home", "End", "PageDown"):
            slider.press(key)
            temperature = numbers([slider.get_attribute("aria-valuetext")])[0]
            p = softmax(torch.tensor(SCORES), temperature=temperature)
            assert weights(page) == pytest.approx(p.tolist(), abs=0.003)  # the written T has two decimals
            shares = "bars => bars.map(b => b.clientWidth / b.parentElement.clientWidth)"
            widths = page.locator(".x-grid").first.locator(".x-bar").evaluate_all(shares)
            assert widths == pytest.approx(p.tolist(), abs=0.01)
            score, rest, whole = balance(page)
            assert score + rest == pytest.approx(whole, abs=0.011)
        assert slider.get_attribute("min") == str(math.log(0.05))


@pytest.mark.browser
def test_a_score_raised_by_keyboard_gets_more_weight(show):
    with show(TemperatureExplorer([0.0, 0.0, 0.0], labels=["a", "b", "c"])) as page:
        assert weights(page) == [0.333] * 3
        page.get_by_label("score of b").press("ArrowRight")
        p = softmax(torch.tensor([0.0, 0.1, 0.0])).tolist()
        assert weights(page) == pytest.approx(p, abs=0.0006)
        page.get_by_label("score of b").press("End")
        assert weights(page)[1] > 0.98


@pytest.mark.browser
def test_figure_has_a_row_for_each_score(mount):
    page = mount(TemperatureExplorer([1.0, 2.0]))
    for scores in ([3.0], [0.0, 0.0, 0.0, 9.5], [1.0, 2.0]):
        page.evaluate("scores => model.set('scores', scores)", scores)
        assert page.get_by_role("slider").count() == 1 + len(scores)
        assert weights(page) == pytest.approx(softmax(torch.tensor(scores)).tolist(), abs=0.0006)
    assert page.get_by_label("score of 1").get_attribute("max") == "10"


@pytest.mark.browser
def test_one_score_or_equal_scores_draw_without_nan(show):
    for scores in ([1.0], [2.0, 2.0, 2.0]):
        with show(TemperatureExplorer(scores)) as page:
            page.get_by_label("Temperature T").press("End")
            assert "NaN" not in page.content()
            assert "Infinity" not in page.locator("main").inner_html().split("<script>")[0]


@pytest.mark.browser
@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["live", "still"])
def test_labels_are_escaped(show, java_script_enabled):
    labels = ["<b>x</b>", '"&amp;', "</script>"]
    with show(TemperatureExplorer([1.0, 2.0, 3.0], labels=labels), java_script_enabled=java_script_enabled) as page:
        for label in labels:
            assert page.locator("div.explorer").get_by_text(label, exact=True).count() > 0


@pytest.mark.browser
def test_balance_bars_start_at_zero(show):
    places = "[...document.querySelectorAll('.x-grid')].at(-1).querySelectorAll('.x-zero, .x-bar')"
    edges = f"[...{places}].map(e => {{ const b = e.getBoundingClientRect(); return [b.left, b.right]; }})"
    with show(TemperatureExplorer(scores=[-4.0, -5.0, -5.0], temperature=0.05)) as page:
        (bar, zero), (whole, other) = [page.evaluate(edges)[i : i + 2] for i in (0, 4)]
        assert zero[1] == pytest.approx(other[1])
        for negative in (bar, whole):
            assert negative[0] < negative[1] - 50
            assert negative[1] == pytest.approx(zero[1], abs=1.5)


@pytest.mark.browser
def test_balance_keeps_its_zero_and_scale(show):
    edges = """[
      ...[...document.querySelectorAll('.x-zero')].map((e) => e.getBoundingClientRect().left),
      [...document.querySelectorAll('.x-grid')].at(-1).lastElementChild.innerText,
    ]"""
    with show(TemperatureExplorer(SCORES)) as page:
        before = page.evaluate(edges)
        assert before[:3] == [before[0]] * 3
        assert before[3].split() == ["\u22125", "0", "5"]
        for slider in page.locator("input[type=range]").all():
            for key in ("Home", "End"):
                slider.press(key)
                assert page.evaluate(edges) == before


@pytest.mark.browser
def test_ring_is_labelled_with_its_temperature(show):
    near = """() => {
      const [text] = [...document.querySelectorAll("svg text")].filter((t) => t.textContent.startsWith("T ="));
      const [a, b] = [text, document.querySelector("svg .x-dot")].map((e) => e.getBoundingClientRect());
      const across = Math.min(Math.abs(a.left - b.right), Math.abs(b.left - a.right));
      return [text.textContent, across, Math.abs(a.bottom - b.bottom)];
    }"""
    with show(TemperatureExplorer(SCORES)) as page:
        for key, words in [("Home", "T = 0.05"), ("End", "T = 20.00")]:
            page.get_by_label("Temperature T").press(key)
            text, across, down = page.evaluate(near)
            assert text == words
            assert across < 12
            assert down < 20
