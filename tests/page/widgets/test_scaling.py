"""Tests of the scaling explorer: the distribution of its scores, its arithmetic, and its figure."""

import math

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.attention.softmax import softmax, softmax_jacobian
from lessons_lib.page.widgets import ScalingExplorer
from lessons_lib.page.widgets.scaling import SCALES, WIDTHS

# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_jacobian_norm_agrees_with_the_library(javascript):
    """The library's entries p - p^2 carry a rounding error of 1e-16, which the norm cannot undo; measured 1.7e-16."""
    weights = [softmax(torch.randn(n) * spread) for n in (1, 2, 5, 17) for spread in (0.1, 1.0, 6.0)]
    ours = torch.tensor(javascript.each("scaling.math", "jacobianNorm", [[p.tolist()] for p in weights]))
    assert_close(ours, torch.stack([softmax_jacobian(p).norm() for p in weights]), rtol=0, atol=1e-15)


@pytest.mark.browser
@pytest.mark.parametrize("rest", [1e-3, 1e-9, 1e-15, 1e-200])
def test_jacobian_norm_is_accurate_for_one_dominant_weight(javascript, rest):
    """Of two weights 1 - r and r the Jacobian is r (1 - r) [[1, -1], [-1, 1]], whose norm is 2 r (1 - r)."""
    assert javascript("scaling.math", "jacobianNorm", [1 - rest, rest]) == pytest.approx(
        2 * rest * (1 - rest), rel=1e-12
    )


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("rest * rest + restSquared", "rest * rest"),
        ("if (j === i) continue;", ""),
        ("p[i] * p[i] * (", "p[i] * ("),
        ("Math.sqrt(squared)", "squared"),
    ],
)
def test_wrong_norm_is_noticed(altered, right, wrong):
    with altered("scaling.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_jacobian_norm_agrees_with_the_library(javascript)


@pytest.mark.browser
def test_scales_agree_in_python_and_javascript(javascript):
    for scaling, factor in SCALES.items():
        for width in WIDTHS:
            assert javascript("scaling.math", "scale", scaling, width) == pytest.approx(factor(width), rel=1e-15)
            std = factor(width) * math.sqrt(width)
            assert javascript("scaling.math", "scoreStd", scaling, width) == pytest.approx(std, rel=1e-15)


# --- the law of the scores ------------------------------------------------------------------------------------------


def drawn_scores(javascript, width, seed, n_keys=16):
    script = """async ([width, seed, n]) => {
      const { draw, scores } = await import("./scaling.math.js");
      return scores(draw(seed, n), "1", width);
    }"""
    return torch.tensor(javascript.page.evaluate(script, [width, seed, n_keys]), dtype=torch.float64)


@pytest.mark.one_case
@pytest.mark.browser
@pytest.mark.parametrize("width", [1, 2, 4, 64, 4096])
def test_scores_are_distributed_as_products_of_normal_vectors(javascript, width):
    """Kolmogorov and Smirnov, two samples: a thousandth of fair pairs lie further apart than 1.95 sqrt(2 / n).

    One score of each query is compared, so that all are independent; the other sample is ``q @ k`` itself.
    """
    ours = torch.cat([drawn_scores(javascript, width, seed)[:, 0] for seed in range(10)])
    n = len(ours)
    true = (torch.randn(n, width) * torch.randn(n, width)).sum(-1)
    both = torch.cat([ours, true]).sort().values
    share = [torch.searchsorted(sample.sort().values, both, right=True) / n for sample in (ours, true)]
    assert (share[0] - share[1]).abs().max() < 1.95 * math.sqrt(2 / n)


@pytest.mark.browser
def test_scores_of_one_query_share_its_norm(javascript):
    """A shared norm gives E (q.k)^2 (q.k')^2 = E |q|^4 = d (d + 2); without it the value is d^2."""
    width = 2
    scores = torch.cat([drawn_scores(javascript, width, seed, n_keys=2) for seed in range(100)])
    squares = scores[:, 0] ** 2 * scores[:, 1] ** 2
    error = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - width * (width + 2)) < 4 * error
    assert abs(squares.mean() - width**2) > 4 * error


@pytest.mark.browser
def test_scores_depend_on_the_seed(javascript):
    assert torch.equal(drawn_scores(javascript, 8, seed=3), drawn_scores(javascript, 8, seed=3))
    assert not torch.equal(drawn_scores(javascript, 8, seed=3), drawn_scores(javascript, 8, seed=4))


# --- traits ---------------------------------------------------------------------------------------------------------


def test_repr_lists_the_traits():
    assert repr(ScalingExplorer()) == "ScalingExplorer(width=64, n_keys=16, scaling='1/sqrt(d)', seed=0)"


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"width": 100}, "width.*expected any of .*64.* not the int 100"),
        ({"width": 8192}, "width.*expected any of"),
        ({"scaling": "1/sqrt(dk)"}, r"scaling.*expected any of .*1/sqrt\(d\).* not the str '1/sqrt\(dk\)'"),
        ({"n_keys": 1}, "n_keys.*expected a whole number at least 2 and at most 64, not the int 1"),
        ({"n_keys": 2.5}, "n_keys.*expected a whole number"),
        ({"seed": -1}, "seed.*at least 0"),
        ({"seed": True}, "seed.*not the bool True"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        ScalingExplorer(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = ScalingExplorer(width=16)
    with pytest.raises(traitlets.TraitError, match="width"):
        explorer.width = 17
    assert explorer.width == 16


# --- what a reader sees ---------------------------------------------------------------------------------------------


def table(page):
    """Rows of entropy share, largest weight, norm; columns of this query, median, mean; powers of ten read back."""
    raised = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹·", "-0123456789x")
    cells = [
        text.translate(raised).replace("x10", "e")
        for text in page.locator("table td + td, th + td").all_text_contents()
    ]
    return torch.tensor([float(cell) for cell in cells]).reshape(3, 3)


def expected_table(javascript, width, scaling, seed=0):
    from lessons_lib.analysis.information import entropy

    p = softmax(SCALES[scaling](width) * drawn_scores(javascript, width, seed))
    measures = torch.stack([entropy(p) / math.log(16), p.amax(-1), softmax_jacobian(p).flatten(-2).norm(dim=-1)])
    return torch.stack([measures[:, 0], measures.quantile(0.5, dim=-1), measures.mean(-1)], dim=-1)


@pytest.mark.browser
def test_the_table_follows_width_scale_and_seed(javascript, show):
    with show(ScalingExplorer(width=64, scaling="1")) as page:
        slider, choice = page.get_by_label("Width dₖ"), page.get_by_label("Scale")
        assert_close(table(page), expected_table(javascript, 64, "1"), rtol=0, atol=6e-4)
        slider.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext") == "128"
        assert_close(table(page), expected_table(javascript, 128, "1"), rtol=0, atol=6e-4)
        choice.select_option("1/sqrt(d)")
        assert_close(table(page), expected_table(javascript, 128, "1/sqrt(d)"), rtol=0, atol=6e-4)
        page.get_by_role("button", name="Draw again").press("Enter")
        assert_close(table(page), expected_table(javascript, 128, "1/sqrt(d)", seed=1), rtol=0, atol=6e-4)
        page.get_by_role("button", name="Draw again").click()
        assert_close(table(page), expected_table(javascript, 128, "1/sqrt(d)", seed=2), rtol=0, atol=6e-4)


@pytest.mark.browser
def test_weights_are_stacked_with_the_largest_first(javascript):
    p = softmax(torch.randn(9) * 3).tolist()
    ends = javascript("scaling.math", "bands", p)
    assert [high - low for low, high in ends] == pytest.approx(sorted(p, reverse=True))
    assert [low for low, _ in ends] == pytest.approx([0.0, *[high for _, high in ends[:-1]]])
    assert ends[-1][1] == pytest.approx(1)


def stack(page):
    """The weights of the framed stack, as shares of its height."""
    heights = "all => all.map((e) => Number(e.getAttribute('height')))"
    found = torch.tensor(page.locator(".s-bar").evaluate_all(heights), dtype=torch.float64)
    return found / found.sum()


@pytest.mark.browser
def test_stack_and_headline_follow_the_width(javascript, show):
    with show(ScalingExplorer(width=64, scaling="1")) as page:
        for width in (64, 128):
            p = softmax(drawn_scores(javascript, width, 0)[0]).sort(descending=True).values
            assert_close(stack(page), p, rtol=0, atol=1e-3)
            assert page.locator(".x-headline b").inner_text() == f"{p[0]:.2f}"
            page.get_by_label("Width dₖ").press("ArrowRight")


@pytest.mark.browser
def test_click_and_drag_in_the_stack_select_the_width(show):
    with show(ScalingExplorer(width=64, scaling="1")) as page:
        box = page.locator("svg.s-melting").bounding_box()
        scale, middle = box["width"] / 320, box["y"] + box["height"] / 2
        slider = page.get_by_label("Width dₖ")
        page.mouse.move(box["x"] + 29 * scale, middle)
        assert slider.get_attribute("aria-valuetext") == "64"
        page.mouse.down()
        assert slider.get_attribute("aria-valuetext") == "1"
        page.mouse.move(box["x"] + 300 * scale, middle)
        assert slider.get_attribute("aria-valuetext") == "4096"
        page.mouse.up()
        page.mouse.move(box["x"] + 29 * scale, middle)
        assert slider.get_attribute("aria-valuetext") == "4096"


@pytest.mark.browser
def test_bars_melt_into_one_without_a_scale_only(show):
    with show(ScalingExplorer(width=1, scaling="1")) as page:
        page.get_by_label("Width dₖ").press("Home")
        assert stack(page).max() < 0.5
        page.get_by_label("Width dₖ").press("End")
        assert stack(page).max() > 0.99
        page.get_by_label("Scale").select_option("1/sqrt(d)")
        assert stack(page).max() < 0.5


@pytest.mark.browser
def test_correct_scale_keeps_the_weights_similar_at_every_width(show):
    with show(ScalingExplorer(width=1, scaling="1/sqrt(d)")) as page:
        slider = page.get_by_label("Width dₖ")
        slider.press("Home")
        for _ in range(2, 13):
            slider.press("ArrowRight")
        largest = table(page)[1, 1]
        slider.press("End")
        assert abs(table(page)[1, 1] - largest) < 0.01
        page.get_by_label("Scale").select_option("1")
        assert table(page)[1, 1] > 0.999
        page.get_by_label("Scale").select_option("1/d")
        assert table(page)[1, 1] < 0.07


@pytest.mark.browser
@pytest.mark.parametrize("scaling", SCALES)
def test_extreme_values_draw_without_nan(scaling, show):
    for width in (1, 4096):
        for n_keys in (2, 64):
            with show(ScalingExplorer(width=width, n_keys=n_keys, scaling=scaling)) as page:
                drawn = page.locator(".x-body").inner_html()
                assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}


@pytest.mark.browser
def test_score_curve_widens_on_a_fixed_axis(show):
    half = """root => {
      const [line] = root.querySelectorAll("svg .x-line.x-first");
      const points = line.getAttribute("d").slice(1).split("L").map((p) => p.split(" ").map(Number));
      const top = Math.min(...points.map(([, y]) => y));
      return points.filter(([, y]) => y < (top + 126) / 2).length / points.length;
    }"""
    with show(ScalingExplorer(width=1, scaling="1")) as page:
        shares = []
        for _ in range(6):
            shares.append(page.locator("div.explorer").evaluate(half))
            page.get_by_label("Width dₖ").press("ArrowRight")
        assert shares == sorted(set(shares))
        widths = [
            2 * math.sqrt(2 * math.log(2)) * math.sqrt(2**i) / 32 for i in range(6)
        ]  # of the frame, from -16 to 16
        assert shares == pytest.approx(widths, abs=0.02)
