"""Tests of the walk explorer: script and library agree; its traits; the figure when a layer is added.

Everything is float64 on both sides; the tolerance leaves room for another machine's ``exp``, ``log`` and ``cos``.
"""

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.analysis.information import effective_count
from lessons_lib.analysis.markov import ergodicity_coefficient, rollout, stationary_distribution
from lessons_lib.attention.masks import bidirectional, causal
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets import WalkExplorer
from lessons_lib.page.widgets.walk import STEPS

SETTINGS = [
    {},
    {"n": 7, "start": 3, "layers": 6, "causal": True, "seed": 5},
    {"n": 5, "start": 4, "layers": 16, "temperature": 0.3, "residual": 0.6, "same": True, "seed": 2**31 - 1},
    {"n": 13, "start": 0, "layers": 0, "causal": True, "temperature": 9.0},
    {"n": 3, "start": 1, "layers": 2, "causal": True, "residual": 1.0, "same": True},
]


def close(ours, theirs):
    assert_close(torch.tensor(ours, dtype=torch.float64), theirs.double(), rtol=1e-11, atol=1e-12)


def layers_of(javascript, explorer):
    """The library's attention weights for the scores that the script draws, in the order of the walk."""
    drawn = torch.tensor(javascript("walk.math", "draw", explorer.seed, explorer.n), dtype=torch.float64)
    if explorer.same:
        drawn = drawn[:1].expand_as(drawn)
    mask = causal(explorer.n) if explorer.causal else bidirectional(explorer.n)
    return softmax(drawn, mask, temperature=explorer.temperature)


# --- one walk in two languages ----------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_walk_agrees_with_rollout(javascript, setting):
    explorer = WalkExplorer(**setting)
    layers = layers_of(javascript, explorer)
    ours = javascript("walk.math", "walks", layers.tolist(), explorer.residual)
    assert len(ours) == STEPS + 1
    close(ours[0], torch.eye(explorer.n))
    for t in range(1, STEPS + 1):
        close(ours[t], rollout(layers[:t].flip(0), residual=explorer.residual))  # the walker meets the last one first
    close(explorer.mass().tolist(), torch.tensor(ours)[explorer.layers, explorer.start])


@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_weights_agree_with_the_library(javascript, setting):
    explorer = WalkExplorer(**setting)
    drawn = javascript("walk.math", "draw", explorer.seed, explorer.n)
    mask = causal(explorer.n) if explorer.causal else None
    for scores in drawn[:3]:
        ours = javascript("walk.math", "weights", scores, explorer.causal, explorer.temperature)
        close(ours, softmax(torch.tensor(scores), mask, temperature=explorer.temperature))


@pytest.mark.browser
def test_distance_is_the_ergodicity_coefficient(javascript):
    for n in (1, 2, 5, 11):
        rows = softmax(torch.randn(n, n) * 3)
        assert javascript("walk.math", "apart", rows.tolist()) == pytest.approx(
            ergodicity_coefficient(rows).item(), abs=1e-13
        )


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("mass * a[k][j]", "mass * a[j][k]"),
        ("residual * before[i][j]", "residual * Number(i === j)"),
        ("(1 - residual) * sum(", "sum("),
        ("before[i].map", "before[j].map"),
    ],
)
def test_wrong_walk_is_noticed(altered, right, wrong):
    with altered("walk.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_walk_agrees_with_rollout(javascript, SETTINGS[2])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"), [("i + 1) : row", "i) : row"), ("temperature);\n    return", "1);\n    return")]
)
def test_wrong_weights_are_noticed(altered, right, wrong):
    with altered("walk.math", right, wrong) as javascript, pytest.raises((AssertionError, ValueError)):
        test_weights_agree_with_the_library(javascript, SETTINGS[1] | {"temperature": 2.0})


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n": 17}, "n.*at least 2 and at most 16, not the int 17"),
        ({"n": 1}, "n.*at least 2"),
        ({"n": 5, "start": 5}, r"start must be one of the tokens 0 .. n - 1 = 4, got 5"),
        ({"start": -1}, "start.*at least 0"),
        ({"layers": 17}, "layers.*at most 16"),
        ({"temperature": 0.0}, "temperature.*at least 0.05"),
        ({"residual": 1.1}, "residual.*at most 1"),
        ({"causal": "yes"}, "causal"),
        ({"seed": -1}, "seed.*at least 0"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        WalkExplorer(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = WalkExplorer(n=6, start=5)
    for trait, wrong in [("n", 5), ("start", 6), ("residual", -0.1)]:
        with pytest.raises(traitlets.TraitError):
            setattr(explorer, trait, wrong)
    assert (explorer.n, explorer.start, explorer.residual) == (6, 5, 0.0)


def test_still_contains_the_distribution():
    explorer = WalkExplorer(n=4, start=2, layers=3)
    for token, share in enumerate(explorer.mass()):
        assert f"token {token} {share:.2f}" in explorer.still()


# --- what a reader sees -----------------------------------------------------------------------------------------------


def table(page):
    """Mass on the start token, mass on token 0, effective number of tokens, largest distance of two walkers."""
    return [float(text) for text in page.locator("td").all_inner_texts()]


def expected_table(javascript, explorer):
    rows = torch.tensor(javascript("walk.math", "walks", layers_of(javascript, explorer).tolist(), explorer.residual))
    p = rows[explorer.layers][explorer.start].double()
    distance = ergodicity_coefficient(rows[explorer.layers].double())
    return [p[explorer.start].item(), p[0].item(), effective_count(p / p.sum()).item(), distance.item()]


@pytest.mark.browser
def test_the_table_follows_every_control(javascript, show):
    explorer = WalkExplorer(n=8, start=5, layers=2)
    with show(explorer) as page:
        assert table(page) == pytest.approx(expected_table(javascript, explorer), abs=6e-4)
        moves = [
            (lambda: page.get_by_label("Layers back").press("ArrowRight"), "layers", 3),
            (lambda: page.get_by_label("From token").press("ArrowLeft"), "start", 4),
            (lambda: page.get_by_label("causal").check(), "causal", True),
            (lambda: page.get_by_label("Residual share").press("ArrowRight"), "residual", 0.05),
            (lambda: page.get_by_label("the same weights").check(), "same", True),
            (lambda: page.get_by_role("button", name="Draw again").click(), "seed", 1),
        ]
        for move, trait, value in moves:
            move()
            setattr(explorer, trait, value)
            assert table(page) == pytest.approx(expected_table(javascript, explorer), abs=6e-4), trait


@pytest.mark.browser
def test_a_residual_share_delays_and_the_same_chain_ends_at_its_stationary_distribution(javascript, show):
    explorer = WalkExplorer(n=8, start=5, layers=16, same=True)
    at_last = stationary_distribution(layers_of(javascript, explorer)[0])
    with show(explorer) as page:
        assert table(page)[1] == pytest.approx(at_last[0].item(), abs=1e-3)
        assert table(page)[3] == 0
        page.get_by_label("Residual share").press("End")
        assert table(page)[0] == table(page)[3] == 1


@pytest.mark.browser
@pytest.mark.parametrize("n", [2, 16])
def test_extreme_values_draw_without_nan(n, show):
    for temperature in (0.05, 20.0):
        with show(WalkExplorer(n=n, start=0, causal=True, temperature=temperature)) as page:
            for slider in page.get_by_role("slider").all():
                for key in ("Home", "End"):
                    slider.press(key)
            drawn = page.locator(".x-body").inner_html()
            assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}
