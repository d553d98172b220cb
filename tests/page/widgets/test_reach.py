"""Tests of the reach explorer: masks and reach agree with the library."""

import random

import pytest
import torch
from labels import collisions, smallest
from thorough import all_but

from lessons_lib.attention.rules import BigBird, by_layout
from lessons_lib.page.widgets import ReachExplorer
from lessons_lib.page.widgets.reach import MASKS, N, uniform_matrix

PATTERN = ["way", "window", "step", "n_global", "n_random", "causal", "seed"]


def explorers(n=24, seed=4):
    """Random settings, equally many for each pattern."""
    chance = random.Random(seed)
    return [
        ReachExplorer(
            MASKS[i % len(MASKS)],
            chance.randint(1, 9),
            chance.randint(1, 8),
            chance.randint(0, 8),
            chance.randint(0, 16),
            chance.random() < 0.6,
            chance.randint(1, 8),
            chance.randint(0, 999),
        )
        for i in range(n)
    ]


def pattern(explorer):
    return {trait: getattr(explorer, trait) for trait in PATTERN}


def check_masks(javascript, cases):
    found = javascript.each("sparse.math", "mask", [[pattern(e)] for e in cases])
    for explorer, ours in zip(cases, found, strict=True):
        assert ours == explorer.rule().to_mask(N).tolist()


@pytest.mark.browser
def test_masks_agree_with_the_rules_of_the_library(javascript):
    cases = explorers()
    assert {(e.way, e.causal) for e in cases} == {(way, causal) for way in MASKS for causal in (True, False)}
    check_masks(javascript, cases)


@pytest.mark.browser
def test_reach_of_the_last_word_agrees_with_a_power_of_the_mask(javascript):
    """The library's reach adds the residual stream, which connects each word to itself."""
    for explorer in explorers(12, seed=9):
        mask = explorer.rule().to_mask(N)
        counts = javascript("sparse.math", "reachOfTheLast", mask.tolist())
        steps = (mask | torch.eye(N, dtype=torch.bool)).double()
        power = torch.linalg.matrix_power
        assert counts == [(power(steps, layers)[-1] > 0).sum().item() for layers in range(1, 9)]
        assert counts[explorer.layers - 1] == explorer.reach_of_last()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("< window;", "<= window;"),
        ("< window * step", "<= window * step"),
        ("(i - j) % step === 0", "true"),
        ("isGlobal(i) || isGlobal(j)", "isGlobal(j)"),
        ("return seen ? -1 : draw;", "return draw;"),  # draws what it sees already
        ("(!causal || j <= i)))", "(!causal || j < i + 2)))"),
    ],
)
def test_wrong_mask_is_noticed(altered, right, wrong):
    with altered("sparse.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_masks(javascript, explorers())


def test_random_keys_are_drawn_as_by_the_library(monkeypatch):
    monkeypatch.setattr(by_layout, "_uniform", lambda n, generator: uniform_matrix(37, n, n))
    wanted = BigBird(N, window=4, n_global=2, n_random=5, generator=torch.Generator())
    ours = ReachExplorer("bigbird", 4, n_global=2, n_random=5, causal=False, seed=37)
    assert torch.equal(ours.rule().to_mask(N), wanted.to_mask(N))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"way": "linear"}, "way.*expected any of"),
        ({"window": 61}, "window.*at least 1 and at most 60"),
        ({"step": 0}, "step.*at least 1"),
        ({"n_global": 9}, "n_global.*at most 8"),
        ({"n_random": 17}, "n_random.*at most 16"),
        ({"layers": 9}, "layers.*at most 8"),
        ({"seed": -1}, "seed.*at least 0"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        ReachExplorer(**arguments)


def test_still_contains_pairs_and_reach():
    assert "window: 452 of 3600 pairs are computed; 15 of 60 words" in ReachExplorer("window").still()


def headline(page):
    return page.locator(".f-headline").inner_text()


@pytest.mark.browser
def test_global_word_connects_all_words_in_two_layers_only_without_a_causal_mask(show):
    with show(ReachExplorer()) as page:
        assert headline(page).startswith("16 of 60 words")
        page.get_by_label("causal mask").press("Space")
        assert headline(page).startswith("60 of 60 words can influence the output of the last word through 2 layers")
        page.get_by_role("slider", name="Layers").press("Home")
        assert headline(page).startswith("9 of 60 words can influence the output of the last word through 1 layer,")


@pytest.mark.browser
def test_each_pattern_has_its_budgets_and_the_curve_its_reach(show):
    with show(ReachExplorer(layers=3)) as page:
        for way, budgets in zip(MASKS, (1, 2, 2, 3), strict=True):
            page.get_by_role("combobox", name="Pattern").select_option(way)
            assert page.get_by_role("slider").count() == 1 + budgets  # and the layers
            reach = ReachExplorer(way, layers=3).reach_of_last()
            assert headline(page).startswith(f"{reach} of 60 words")
            assert page.locator("svg text.x-of-first").text_content() == str(reach)
            ring = page.locator("svg circle[r='6']")
            zero, sixty = (
                float(page.locator("svg").nth(1).locator(f"text:text-is('{t}')").first.get_attribute("y")) - 4
                for t in ("0", "60")
            )
            assert float(ring.get_attribute("cy")) == pytest.approx(zero + (sixty - zero) * reach / 60, abs=0.06)


@pytest.mark.browser
def test_play_moves_the_layers_to_the_end(show):
    with show(ReachExplorer(layers=6)) as page:
        page.get_by_role("button", name="Play").press("Enter")
        page.wait_for_function("document.querySelector('.f-headline').innerText.includes('through 8 layers')")


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 900], lambda width: width == 360))
def test_labels_are_legible_and_do_not_overlap(show, width):
    with show(ReachExplorer("bigbird", layers=8), width=width, has_touch=True) as page:
        for tab in ("Pairs", "Reach"):
            if width == 360:
                page.get_by_role("button", name=tab, exact=True).tap()
            assert smallest(page) >= 11
            assert not collisions(page)
