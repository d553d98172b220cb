"""Tests of the drawings in ``geometry``: scores as projections, outputs in the convex hull."""

import math
import re

import pytest
import torch
from drawn import words

from lessons_lib.attention import attention_weights
from lessons_lib.page import drawings
from lessons_lib.page.drawings.geometry import convex_hull

KEYS = [[1.9, 0.5], [-0.3, 1.2], [-1.6, 0.1], [0.5, -1.0], [1.1, 0.2]]
VALUES = [[2.2, 1.0], [-0.5, 2.2], [-1.8, -1.2], [1.2, -1.9]]
WEIGHTS = [0.45, 0.3, 0.1, 0.15]
DRAWINGS = {
    "projected_scores": drawings.projected_scores([1.5, 0.0], [[1.54, 1.84], [0.89, 0.16], [-1.04, -0.6]]),
    "projected_scores hull": drawings.projected_scores([1.6, 0.0], KEYS, hull=True),
    "projected_scores upwards": drawings.projected_scores([0.0, 2.0], [[0.3, 1.0], [-1.0, -1.0]]),
    "output_in_hull": drawings.output_in_hull(VALUES, WEIGHTS),
    "output_in_hull outside": drawings.output_in_hull(VALUES, WEIGHTS, outside=[2.0, 2.6]),
}


@pytest.mark.parametrize("query", [[1.6, 0.0], [0.2, 1.3]])
def test_projected_scores_shows_dot_products_and_weights(query):
    keys = [[1.0, 1.5], [-1.2, 0.4], [-0.4, -1.6]]
    drawing = drawings.projected_scores(query, keys)
    q, k = torch.tensor([query], dtype=torch.float64), torch.tensor(keys, dtype=torch.float64)
    weights = attention_weights(q, k, scale=1.0)[0]
    for score, weight in zip((q @ k.T)[0].tolist(), weights.tolist(), strict=True):
        assert {f"{score:.2f}".replace("-", "\u2212"), f"{100 * weight:.2g}%"} <= set(words(drawing))
        assert f"the score {score:.2f} and the weight {100 * weight:.2g}%" in drawing.alt
    assert drawing.to_html().count('class="key tip"') == 3


def test_projected_scores_turns_the_query_to_the_right():
    [(x0, y0, x1, y1)] = re.findall(
        r'd="M([\d.]+) ([\d.]+)Q[\d. ]+ ([\d.]+) ([\d.]+)" class="query"',
        DRAWINGS["projected_scores upwards"].to_html(),
    )
    assert y0 == y1
    assert float(x0) < float(x1)


def test_projected_scores_names_the_keys_inside_the_hull():
    assert DRAWINGS["projected_scores hull"].alt.endswith("is outlined; inside it lies key 5.")
    both = drawings.projected_scores([1.0, 0.0], [[2, 1], [-2, 1], [0.1, -2], [1, 0.2], [-1, 0.4]], hull=True)
    assert both.alt.endswith("inside it lie keys 4, 5.")
    assert drawings.projected_scores([1.0, 0.0], KEYS[:3], hull=True).alt.endswith("is outlined.")


def test_output_in_hull_draws_the_weighted_average():
    drawing = DRAWINGS["output_in_hull"]
    x, y = (torch.tensor(WEIGHTS) @ torch.tensor(VALUES)).tolist()
    assert f"The output, at {x:.2f}, {y:.2f}, lies inside it." in drawing.alt
    assert {f"v{j + 1}: {100 * w:.2g}%" for j, w in enumerate(WEIGHTS)} <= set(words(drawing))
    html = drawing.to_html()
    circles = {of: re.findall(rf'<circle cx="([\d.]+)" cy="([\d.]+)" r="[\d.]+" class="{of} ', html) for of in
               ("value", "output")}  # fmt: skip
    on_page = torch.tensor([[float(x) for x in at] for at in circles["value"]])
    shown = torch.tensor([float(x) for x in circles["output"][0]])
    torch.testing.assert_close(torch.tensor(WEIGHTS) @ on_page, shown, rtol=0, atol=0.2)


def test_output_in_hull_connects_the_outside_point_with_the_nearest_one():
    assert "nearest point of the hull, at 1.44, 1.34." in DRAWINGS["output_in_hull outside"].alt
    corner = drawings.output_in_hull([[0, 0], [1, 0], [0, 1]], [0.2, 0.3, 0.5], outside=[-1.0, -1.0])
    assert "at 0.00, 0.00." in corner.alt


def test_convex_hull_returns_corners_counter_clockwise():
    points = [(0.0, 0.0), (2.0, 0.0), (1.0, 0.5), (2.0, 2.0), (0.0, 2.0), (1.0, 0.0)]
    assert convex_hull(points) == [(0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0)]
    draw = torch.Generator().manual_seed(0)
    cloud = [tuple(p) for p in torch.randn(40, 2, generator=draw).tolist()]
    corners = convex_hull(cloud)
    for degrees in range(0, 360, 5):
        u = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        assert max(cloud, key=lambda p: p[0] * u[0] + p[1] * u[1]) in corners


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.projected_scores([1, 0], [[1, 1]]), "keys must be between 2 and 5, got 1"),
        (lambda: drawings.projected_scores([0, 0], KEYS), "query must have two entries that are not both zero"),
        (lambda: drawings.projected_scores([1, 0], [[1, 1], [0, 0]]), r"keys\[1\] must have two entries"),
        (lambda: drawings.projected_scores([1, 0], [[1, 1], [1.01, 0]]), "projections must be at least .* apart"),
        (lambda: drawings.output_in_hull(VALUES[:2], [0.5, 0.5]), "values must be between 3 and 5 pairs"),
        (lambda: drawings.output_in_hull(VALUES, [0.5, 0.5]), "weights must be one for each value"),
        (lambda: drawings.output_in_hull(VALUES, [0.5, 0.5, 0.5, -0.5]), "weights must be one for each value"),
        (lambda: drawings.output_in_hull([[0, 0], [1, 1], [2, 2]], [0.2, 0.3, 0.5]), "must not all lie on one line"),
        (lambda: drawings.output_in_hull(VALUES, WEIGHTS, outside=[0.1, 0.2]), "outside must lie outside the hull"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
