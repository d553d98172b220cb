"""Tests of the collapse explorer: script and library agree on the stack; traits; the figure.

Everything is float64 on both sides. A stack that keeps its tokens apart carries rounding on from layer to layer, so
tolerances are for eight layers at most; colder or deeper stacks are tested by what they do.
"""

import math
import re
from itertools import pairwise

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.analysis.diagnostics import attention_entropy, token_spread
from lessons_lib.analysis.geometry import cosine_similarity, effective_rank
from lessons_lib.attention.attention import attention_weights
from lessons_lib.attention.masks import bidirectional, causal
from lessons_lib.foundations.norms import RMSNorm
from lessons_lib.page.widgets import CollapseExplorer
from lessons_lib.page.widgets.collapse import LAYERS, TOKENS, WIDTH

SETTINGS = [
    {"depth": 3},
    {"depth": 8, "residual": 1.0, "norm": "before", "seed": 5},
    {"depth": 8, "residual": 0.65, "causal": True, "temperature": 0.5, "seed": 2**31 - 1},
    {"depth": 6, "residual": 0.3, "norm": "before", "causal": True, "temperature": 3.0},
    {"depth": 0},
]


def close(ours, theirs):
    assert_close(torch.as_tensor(ours, dtype=torch.float64), theirs.double(), rtol=1e-9, atol=1e-10)


def unit(x):
    return RMSNorm(WIDTH, eps=0.0).double()(x).detach()


def drawn(javascript, seed):
    found = javascript("collapse.math", "draw", seed)
    layers = [{name: torch.tensor(matrix, dtype=torch.float64) for name, matrix in y.items()} for y in found["layers"]]
    return torch.tensor(found["tokens"], dtype=torch.float64), layers


def mask_of(explorer):
    return causal(TOKENS) if explorer.causal else bidirectional(TOKENS)


def weights_of(explorer, x, layer):
    normed = unit(x)
    return attention_weights(
        normed @ layer["bilinear"], normed, mask_of(explorer), scale=1 / WIDTH / explorer.temperature
    )


def streams_of(explorer, tokens, layers):
    """The same stack, built from the library."""
    found = [tokens]
    for layer in layers[:LAYERS]:
        x = found[-1]
        x = explorer.residual * x + weights_of(explorer, x, layer) @ unit(x) @ layer["values"]
        found.append(unit(x) if explorer.norm == "after" else x)
    return torch.stack(found)


def streams_in(javascript, explorer):
    given = javascript("collapse.math", "draw", explorer.seed)
    return torch.tensor(
        javascript(
            "collapse.math", "streams", given, explorer.residual, explorer.norm, explorer.causal, explorer.temperature
        ),
        dtype=torch.float64,
    )


# --- one stack in two languages ---------------------------------------------------------------------------------------


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_stack_agrees_with_the_library(javascript, setting):
    explorer = CollapseExplorer(**setting)
    reached = slice(explorer.depth + 1)
    ours = streams_in(javascript, explorer)
    assert ours.shape == (LAYERS + 1, TOKENS, WIDTH)
    close(ours[reached], streams_of(explorer, *drawn(javascript, explorer.seed))[reached])
    close(explorer.spreads(), token_spread(ours[reached]))


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_measures_agree_with_the_library(javascript, setting):
    explorer = CollapseExplorer(**setting)
    x = streams_in(javascript, explorer)[explorer.depth]
    close(javascript("collapse.math", "spread", x.tolist()), token_spread(x))
    alike = (cosine_similarity(x, x).sum() - TOKENS) / (TOKENS * (TOKENS - 1))
    close(javascript("collapse.math", "alike", x.tolist()), alike)
    close(javascript("collapse.math", "effectiveRank", x.tolist()), effective_rank(x))
    raw = javascript("collapse.math", "draw", explorer.seed)["layers"][explorer.depth]
    ours = javascript("collapse.math", "weights", x.tolist(), raw, explorer.causal, explorer.temperature)
    layer = {name: torch.tensor(matrix, dtype=torch.float64) for name, matrix in raw.items()}
    close(ours, weights_of(explorer, x, layer))
    entropy = attention_entropy(torch.tensor(ours, dtype=torch.float64)[None, None], mask_of(explorer))
    close(javascript("collapse.math", "undecided", ours, explorer.causal), entropy[0])


@pytest.mark.browser
def test_effective_rank_is_accurate_for_nearly_equal_tokens(javascript):
    direction, noise = torch.randn(1, WIDTH, dtype=torch.float64), torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    for size in (0.0, 1e-9, 1e-3, 1.0):
        x = direction + size * noise
        assert javascript("collapse.math", "effectiveRank", x.tolist()) == pytest.approx(
            effective_rank(x).item(), rel=1e-6
        )


@pytest.mark.browser
def test_initial_scores_have_unit_variance(javascript):
    tokens, layers = drawn(javascript, 0)
    scores = torch.stack([tokens @ layer["bilinear"] @ tokens.T / WIDTH for layer in layers])
    assert scores.std().item() == pytest.approx(1.0, abs=0.05)
    assert tokens.square().mean(-1).sqrt().sub(1).abs().max() < 1e-12


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("residual * value + mixed", "value + mixed"),
        ('norm === "after" ? units(next) : next', "units(next)"),
        ("units(x)), layer.values", "x), layer.values"),
        ("const normed = units(x);", "const normed = x;"),
        ("scores.slice(0, i + 1)", "scores.slice(0, i)"),
        ("dot(queries[i], key) / WIDTH", "dot(queries[i], key)"),
        ("1 / Math.sqrt(WIDTH)", "1 / WIDTH"),
    ],
)
def test_wrong_stack_is_noticed(altered, right, wrong):
    with altered("collapse.math", right, wrong) as javascript, pytest.raises((AssertionError, ValueError)):
        test_stack_agrees_with_the_library(javascript, SETTINGS[3])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("value - mean[c]", "value"),
        ("lengths[i] * lengths[j]", "lengths[i] ** 2"),
        ("Math.atan2(2 * c, a - b) / 2", "Math.atan2(c, a - b) / 2"),
        ("causal ? i + 1 : row.length", "row.length"),
    ],
)
def test_wrong_measure_is_noticed(altered, right, wrong):
    with altered("collapse.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not"):
        test_measures_agree_with_the_library(javascript, SETTINGS[3])


# --- the map of directions --------------------------------------------------------------------------------------------


def on_sphere(javascript, stack):
    return torch.tensor(javascript("collapse.math", "onSphere", stack.tolist()), dtype=torch.float64)


def check_map(javascript, stack):
    """Distances from the centre are exact; in three dimensions so are all angles at the centre."""
    directions = stack / stack.norm(dim=-1, keepdim=True)
    mean = directions.mean(-2, keepdim=True)
    mean = mean / mean.norm(dim=-1, keepdim=True)
    along = (directions * mean).sum(-1, keepdim=True)
    aside = directions - along * mean
    far = aside.norm(dim=-1, keepdim=True)
    points = on_sphere(javascript, stack)
    assert_close(points.norm(dim=-1, keepdim=True), torch.sin(torch.atan2(far, along) / 2), rtol=1e-9, atol=1e-12)
    if stack[..., 3:].abs().max() == 0:
        around, drawn = aside / far, points / points.norm(dim=-1, keepdim=True)
        assert_close(drawn @ drawn.mT, around @ around.mT, rtol=0, atol=1e-6)


@pytest.mark.browser
def test_map_of_directions_is_exact_in_three_dimensions(javascript):
    generator = torch.Generator().manual_seed(3)
    stack = torch.randn(5, TOKENS, WIDTH, dtype=torch.float64, generator=generator)
    check_map(javascript, stack)
    stack[..., 3:] = 0
    check_map(javascript, stack)


@pytest.mark.browser
def test_map_of_directions_turns_as_little_as_possible(javascript):
    """A layer that changes no token moves no point, and one that mirrors or turns them is undone."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64, generator=generator)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=generator)).Q
    points = on_sphere(javascript, torch.stack([x, x, x @ turn, 3 * x]))
    assert_close(points, points[:1].expand_as(points), rtol=0, atol=1e-3)


def check_map_and_turns(javascript):
    test_map_of_directions_is_exact_in_three_dimensions(javascript)
    test_map_of_directions_turns_as_little_as_possible(javascript)


@pytest.mark.browser
def test_map_of_equal_or_opposite_tokens_has_no_nan(javascript):
    x = torch.ones(TOKENS, WIDTH, dtype=torch.float64)
    opposite = x * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(TOKENS // 2)[:, None]
    points = on_sphere(javascript, torch.stack([x, opposite]))
    assert points[0].abs().max() < 1e-7
    assert points.isfinite().all()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Math.atan2(far, along[i]) / 2", "Math.atan2(far, along[i])"),
        ("value - along[i] * mean[c]", "value - mean[c]"),
        ("value - share * one[c]", "value"),
        ("sin * x + cos * mirror * y", "sin * x - cos * mirror * y"),
        ("? -1 : 1", "? 1 : -1"),
    ],
)
def test_wrong_map_is_noticed(altered, right, wrong):
    with altered("collapse.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not"):
        check_map_and_turns(javascript)


# --- traits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"depth": 33}, "depth.*at least 0 and at most 32, not the int 33"),
        ({"residual": 1.1}, "residual.*at most 1"),
        ({"temperature": 0.0}, "temperature.*at least 0.05"),
        ({"norm": "both"}, "norm"),
        ({"causal": "yes"}, "causal"),
        ({"seed": -1}, "seed.*at least 0"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        CollapseExplorer(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = CollapseExplorer(depth=4)
    with pytest.raises(traitlets.TraitError):
        explorer.depth = 40
    assert explorer.depth == 4


def test_still_contains_the_spread():
    explorer = CollapseExplorer(depth=3)
    assert f"after 3 layers: {explorer.spreads()[3]:.2g}" in explorer.still()


def test_still_curve_extends_beyond_the_current_depth_to_rounding_errors():
    below = next(t for t, spread in enumerate(CollapseExplorer(depth=32).spreads()) if spread < 1e-12)
    for depth in (2, 9):
        (line,) = re.findall(r'd="(M[^"VH]*L[^"VH]*)"', CollapseExplorer(depth=depth).still())
        assert line.count("L") == below
    (line,) = re.findall(r'd="(M[^"VH]*L[^"VH]*)"', CollapseExplorer(depth=2, residual=1.0).still())
    assert line.count("L") == 32


# --- what a reader sees -----------------------------------------------------------------------------------------------


def table(page):
    """Mean cosine, spread, effective rank, entropy of the next layer's attention."""
    page.wait_for_function("!document.querySelector('[aria-busy]')")  # the table follows one frame after the drawing
    powers = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    texts = page.locator("td").all_inner_texts()
    return [float(text.replace("·10", "e").translate(powers).replace("\u2212", "-")) for text in texts]


def expected_table(javascript, explorer):
    tokens, layers = drawn(javascript, explorer.seed)
    x = streams_of(explorer, tokens, layers)[explorer.depth]
    alike = (cosine_similarity(x, x).sum() - TOKENS) / (TOKENS * (TOKENS - 1))
    entropy = attention_entropy(weights_of(explorer, x, layers[explorer.depth])[None, None], mask_of(explorer))[0]
    return [alike.item(), token_spread(x).item(), effective_rank(x).item(), entropy.item()]


def slider(page, name):
    return page.get_by_role("slider", name=name)


@pytest.mark.browser
def test_the_table_follows_every_control(javascript, show):
    explorer = CollapseExplorer(depth=3)
    with show(explorer) as page:
        assert table(page) == pytest.approx(expected_table(javascript, explorer), abs=6e-3)
        moves = [
            (lambda: slider(page, "Layers").press("ArrowRight"), "depth", 4),
            (lambda: slider(page, "Residual").press("End"), "residual", 1.0),
            (lambda: page.get_by_role("combobox").select_option("before"), "norm", "before"),
            (lambda: page.get_by_label("causal").check(), "causal", True),
            (lambda: page.get_by_role("button", name="Draw again").click(), "seed", 1),
        ]
        for move, trait, value in moves:
            move()
            setattr(explorer, trait, value)
            assert table(page) == pytest.approx(expected_table(javascript, explorer), abs=6e-3), trait


PLACES = """() => [...document.querySelectorAll('.l-token')].map((dot) =>
  dot.style.transform.match(/-?[\\d.]+/g).map(Number))"""


@pytest.mark.browser
def test_tokens_fall_to_the_centre_over_the_layers(show):
    with show(CollapseExplorer(depth=0)) as page:
        widths = []
        for _ in range(7):
            places = torch.tensor(page.evaluate(PLACES))
            assert places.shape == (TOKENS, 2)
            widths.append((places - torch.tensor([160.0, 152.0])).norm(dim=-1).max().item())
            slider(page, "Layers").press("ArrowRight")
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > 80
        assert widths[-1] < 0.2


@pytest.mark.browser
def test_slider_events_within_a_frame_are_computed_once_and_statistics_follow(show):
    """Of a hundred values within a frame only the last is drawn; the table follows one frame after the drawing."""
    with show(CollapseExplorer(depth=3)) as page:
        page.wait_for_function("!document.querySelector('[aria-busy]')")
        early, drawn, busy = slider(page, "Residual").evaluate(
            """async (slider) => {
              const card = slider.closest("div.explorer"), line = card.querySelector("path.x-line");
              let drawn = 0;
              new MutationObserver((seen) => { drawn += seen.length; }).observe(line, { attributes: true });
              for (let i = 1; i <= 100; i++) {
                slider.value = i / 100;
                slider.dispatchEvent(new Event("input"));
              }
              const early = drawn;
              await new Promise(requestAnimationFrame);
              return [early, drawn, card.querySelector("[aria-busy]") !== null];
            }""",
        )
        assert (early, drawn, busy) == (0, 1, True)
        assert table(page)[1] == pytest.approx(CollapseExplorer(depth=3, residual=1.0).spreads()[-1], abs=6e-4)


@pytest.mark.browser
def test_pure_attention_collapses_tokens_and_pre_norm_residual_does_not(show):
    with show(CollapseExplorer(depth=32)) as page:
        cosine, spread, rank, entropy = table(page)
        assert (cosine, rank, entropy) == (1, 1, 1)
        assert spread < 1e-12
        slider(page, "Residual").press("End")
        assert table(page)[1] < 1e-2  # slower, but still: the norm after the sum shrinks what is old
        page.get_by_role("combobox").select_option("before")
        assert table(page)[1] > 0.15


@pytest.mark.browser
def test_curve_ends_where_only_rounding_errors_are_left(show):
    points = "document.querySelector('[aria-label^=spread] path.x-line').getAttribute('d').split('L').length"
    with show(CollapseExplorer(depth=2)) as page:
        beyond = sum(spread < 1e-12 for spread in CollapseExplorer(depth=LAYERS).spreads())
        assert beyond > 5
        assert page.evaluate(points) == LAYERS + 1 - beyond + 1  # up to the first of them
        assert page.get_by_text("below rounding").count() == 1
        slider(page, "Residual").press("End")
        assert page.evaluate(points) == LAYERS + 1
        page.wait_for_function("!document.querySelector('[aria-busy]')")
        assert page.get_by_text("below rounding").count() == 0


@pytest.mark.browser
def test_low_temperature_also_collapses_tokens(show):
    """A low temperature keeps the tokens distinct longer, and its attention has low entropy."""
    with show(CollapseExplorer(depth=0, temperature=0.05)) as page:
        assert table(page)[3] < 0.15
        for _ in range(3):
            slider(page, "Layers").press("ArrowRight")
        _, cold_spread, _, cold_entropy = table(page)
        slider(page, "Temperature T").press("End")
        _, hot_spread, _, hot_entropy = table(page)
        assert hot_entropy > 0.99 > cold_entropy
        assert hot_spread < cold_spread


@pytest.mark.browser
@pytest.mark.parametrize("norm", ["after", "before"])
def test_extreme_values_draw_without_nan(norm, show):
    for temperature in (0.05, 20.0):
        with show(CollapseExplorer(norm=norm, causal=True, temperature=temperature)) as page:
            for slider in page.get_by_role("slider").all():
                for key in ("Home", "End"):
                    slider.press(key)
            drawn_now = page.locator(".x-body").inner_html()
            assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn_now}


def test_spread_decays_doubly_exponentially_without_a_mask():
    """The logarithm falls faster in each layer, down to rounding errors."""
    logs = [math.log(spread) for spread in CollapseExplorer(depth=4).spreads()]
    falls = [before - after for before, after in pairwise(logs)]
    assert falls == sorted(falls)
    assert falls[-1] > 5
