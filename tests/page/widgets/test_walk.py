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
from lessons_lib.page.widgets.arithmetic import uniform
from lessons_lib.page.widgets.walk import STEPS

WALKERS = 40

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


def stepped(javascript, explorer):
    """The walkers' tokens, a row for each layer, by the same random numbers."""
    random, tokens = uniform(explorer.seed + 1), [explorer.start] * WALKERS
    found = [tokens]
    for layer in layers_of(javascript, explorer):
        chain = explorer.residual * torch.eye(explorer.n) + (1 - explorer.residual) * layer
        tokens = [place_of(next(random), chain[token], token, explorer.residual) for token in tokens]
        found.append(tokens)
    return found


def place_of(chance, row, token, residual):
    """The numbers below the residual share leave the walker where it is; above it each token has its share."""
    if chance <= residual:
        return token
    row = row - residual * torch.eye(len(row))[token]
    return int((residual + row.cumsum(-1) < chance - 1e-12).sum().clamp(max=len(row) - 1))


def walkers_in(javascript, explorer):
    layers = layers_of(javascript, explorer).tolist()
    return javascript("walk.math", "walkers", layers, explorer.residual, explorer.start, explorer.seed + 1)


@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_walkers_step_by_the_weights(javascript, setting):
    explorer = WalkExplorer(**setting)
    assert walkers_in(javascript, explorer) == stepped(javascript, explorer)


@pytest.mark.browser
def test_walkers_are_distributed_as_the_mass(javascript):
    """Over 25 seeds, within four standard errors."""
    explorer = WalkExplorer(n=5, start=2, layers=3, residual=0.3, same=True)
    layers = layers_of(javascript, explorer).tolist()
    calls = [(layers, 0.3, 2, seed) for seed in range(25)]
    ends = [token for paths in javascript.each("walk.math", "walkers", calls) for token in paths[3]]
    mass = explorer.mass()
    found = torch.tensor(ends).bincount(minlength=5) / len(ends)
    assert ((found - mass).abs() < 4 * (mass * (1 - mass) / len(ends)).sqrt()).all()


@pytest.mark.browser
@pytest.mark.parametrize(("right", "wrong"), [("(1 - residual);", "1;"), ("a[token], residual", "a[0], residual")])
def test_wrong_step_is_noticed(altered, right, wrong):
    with altered("walk.math", right, wrong) as javascript, pytest.raises(AssertionError):
        test_walkers_step_by_the_weights(javascript, SETTINGS[2])


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


DOTS = """() => [...document.querySelectorAll('.w-walker')].map((dot) =>
  Number(dot.style.transform.match(/[\\d.]+/)[0]))"""


@pytest.mark.browser
def test_walkers_are_dots_that_step_to_their_tokens(javascript, show):
    explorer = WalkExplorer(n=7, start=6, layers=0)
    paths = stepped(javascript, explorer)
    with show(explorer) as page:
        for tokens in paths[:5]:
            lefts = torch.tensor(page.evaluate(DOTS), dtype=torch.float64)
            assert ((lefts - 34) / ((312 - 34) / 7)).floor().int().tolist() == tokens
            page.get_by_label("Layers back").press("ArrowRight")
        page.get_by_label("From token").press("Home")
        assert page.evaluate(DOTS) != lefts.tolist()


@pytest.mark.browser
def test_pile_of_all_walkers_is_as_high_as_the_mass(show):
    with show(WalkExplorer(n=10, start=3, layers=0)) as page:
        page.wait_for_function("document.getAnimations().length === 0")
        tops = [dot.bounding_box()["y"] for dot in page.locator(".w-walker").all()]
        bar = page.locator("rect.x-fill").nth(3).bounding_box()
        assert bar["y"] < min(tops) < bar["y"] + 0.1 * bar["height"]


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
