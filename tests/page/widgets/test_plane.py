"""Tests of the plane explorer: its arithmetic, its traits, and the figure when a point or a slider moves.

Everything is float64 on both sides; the tolerance leaves room for another machine's ``exp`` and ``atan2``.
"""

import math

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.analysis.geometry import angles, cosine_similarity
from lessons_lib.attention.attention import attention, attention_weights
from lessons_lib.page.widgets import PlaneExplorer

QUERY, KEYS = [1.2, 0.9], [[1.8, 0.4], [-0.6, 1.7], [-1.1, -1.2], [0.3, 0.3]]
VALUES = [[2.2, 1.0], [-0.5, 2.2], [-1.8, -1.2], [1.2, -1.9]]


def close(ours, theirs):
    assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-12, atol=1e-12)


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_scores_and_angles_agree_with_the_library(javascript):
    for m in (1, 3, 5):
        q, k = torch.randn(1, 2), torch.randn(m, 2)
        close(javascript("plane.math", "scores", q[0].tolist(), k.tolist(), "dot"), (q @ k.T)[0])
        close(javascript("plane.math", "scores", q[0].tolist(), k.tolist(), "cosine"), cosine_similarity(q, k)[0])
        close(javascript.each("plane.math", "angle", [[q[0].tolist(), key.tolist()] for key in k]), angles(q, k)[0])


@pytest.mark.browser
def test_small_angles_keep_their_digits(javascript):
    turned = [math.cos(1e-9), math.sin(1e-9)]
    assert javascript("plane.math", "angle", [1.0, 0.0], turned) == pytest.approx(math.degrees(1e-9), rel=1e-9)
    assert javascript("plane.math", "angle", [1.0, 0.0], [-2.0, 0.0]) == 180


@pytest.mark.browser
def test_output_agrees_with_attention(javascript):
    q, k, v = torch.randn(1, 2), torch.randn(5, 2), torch.randn(5, 2)
    scores = javascript("plane.math", "scores", q[0].tolist(), k.tolist(), "dot")
    p = javascript("arithmetic", "softmax", scores, 0.7)
    close(javascript("plane.math", "average", p, v.tolist()), attention(q, k, v, scale=1 / 0.7)[0])


@pytest.mark.browser
def test_hull_contains_all_points_and_has_no_redundant_corner(javascript):
    for m in (3, 4, 6, 11):
        points = torch.randn(m, 2)
        corners = torch.tensor(javascript("plane.math", "hull", points.tolist()), dtype=torch.float64)
        assert all((corner == points).all(-1).any() for corner in corners)
        assert (outside(corners, points) <= 1e-12).all()
        for j in range(len(corners)):
            others = torch.cat([corners[:j], corners[j + 1 :]])
            assert len(others) < 3 or (outside(others, corners[j : j + 1]) > 0).any()


def outside(corners, points):
    """The distance of each point to the right of each edge of a counter-clockwise polygon."""
    edges = corners.roll(-1, 0) - corners
    offsets = points[:, None] - corners
    return edges[:, 1] * offsets[..., 0] - edges[:, 0] * offsets[..., 1]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("points", "n_corners"),
    [
        ([[1.0, 2.0]], 1),
        ([[0.0, 0.0], [1.0, 1.0]], 2),
        ([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], 2),
    ],
)
def test_hull_of_collinear_points(javascript, points, n_corners):
    assert len(javascript("plane.math", "hull", points)) == n_corners


@pytest.mark.browser
def test_a_stretched_vector_keeps_its_direction(javascript):
    v = torch.randn(2)
    close(javascript("plane.math", "stretched", v.tolist(), 2.5), 2.5 * v / v.norm())


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Math.hypot(...query) * Math.hypot(...key)", "Math.hypot(...key)"),
        ("a[0] * b[0] + a[1] * b[1]", "a[0] * b[0] - a[1] * b[1]"),
        ("* 180) / Math.PI;\n}", ") / Math.PI;\n}"),
    ],
)
def test_wrong_arithmetic_is_noticed(altered, right, wrong):
    with altered("plane.math", right, wrong) as javascript, pytest.raises(AssertionError, match="not close"):
        test_scores_and_angles_agree_with_the_library(javascript)


# --- traits ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"key": []}, "length 1 <= L <= 6"),
        ({"key": [[1.0, 0.0]] * 7}, "length 1 <= L <= 6"),
        ({"key": [[1.0, 0.0, 0.0]]}, "length 2 <= L <= 2"),
        ({"key": [[1.0, math.nan]]}, "a finite number"),
        ({"key": [[0.0, 0.05]]}, r"key must be between 0.1 and 3 long, got \[0.0, 0.05\], 0.05 long"),
        ({"query": [3.0, 1.0]}, "query must be between 0.1 and 3 long"),
        ({"value": [[0.0, 0.0]]}, "value must be as many as key, got 1 values for 2 keys"),
        ({"value": [[0.0, 0.0], [0.0, 3.5]]}, "at most 3"),
        ({"temperature": 0.0}, "at least 0.05"),
        ({"similarity": "euclid"}, "similarity"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        PlaneExplorer(**{"query": [1.0, 0.0], "key": [[1.0, 0.0], [0.0, 1.0]], **arguments})


def test_length_bounds_tolerate_rounding():
    PlaneExplorer(query=[3 * math.cos(0.3), 3 * math.sin(0.3)], key=[[0.1 * math.cos(1.1), 0.1 * math.sin(1.1)]])


def test_invalid_assignment_keeps_the_old_value():
    explorer = PlaneExplorer(QUERY, KEYS)
    for trait, wrong in [("query", [0.0, 0.0]), ("key", [[9.0, 9.0]]), ("value", [[1.0, 1.0]])]:
        with pytest.raises(traitlets.TraitError):
            setattr(explorer, trait, wrong)
    assert (explorer.query, explorer.key, explorer.value) == (QUERY, KEYS, None)


def test_still_contains_the_weights():
    for similarity in ("dot", "cosine"):
        explorer = PlaneExplorer(QUERY, KEYS, VALUES, temperature=0.5, similarity=similarity)
        for j, p in enumerate(expected(explorer), start=1):
            assert f"key {j} {p:.2f}" in explorer.still()


def expected(explorer):
    q, k = torch.tensor([explorer.query]), torch.tensor(explorer.key)
    if explorer.similarity == "cosine":
        q, k = q / q.norm(), k / k.norm(dim=-1, keepdim=True)
    return attention_weights(q, k, scale=1 / explorer.temperature)[0].tolist()


# --- what a reader sees ---------------------------------------------------------------------------------------------


def numbers(texts):
    return [float(text.replace("\u2212", "-").removesuffix("°")) for text in texts]


def weights(page):
    return numbers(page.locator(".x-grid .x-track + .x-value").all_inner_texts())


def position(page, name):
    return numbers(page.get_by_label(name, exact=True).get_attribute("aria-valuetext").split(", "))


@pytest.mark.browser
def test_table_agrees_with_the_library(show):
    for similarity in ("dot", "cosine"):
        explorer = PlaneExplorer(QUERY, KEYS, temperature=0.4, similarity=similarity)
        with show(explorer) as page:
            assert weights(page) == pytest.approx(expected(explorer), abs=0.0006)


@pytest.mark.browser
def test_a_longer_query_is_a_lower_temperature(show):
    longer, colder = PlaneExplorer([1.0, 0.0], KEYS), PlaneExplorer([1.0, 0.0], KEYS)
    with show(longer, colder) as page:
        for _ in range(10):
            page.get_by_label("Length of query").first.press("ArrowRight")
        length = numbers([page.get_by_label("Length of query").first.get_attribute("aria-valuetext")])
        assert length == [2.0]
    assert expected(PlaneExplorer([2.0, 0.0], KEYS)) == expected(PlaneExplorer([1.0, 0.0], KEYS, temperature=0.5))


@pytest.mark.browser
def test_lengths_do_not_move_cosines(show):
    with show(PlaneExplorer(QUERY, KEYS, similarity="cosine")) as page:
        before = weights(page)
        for name in ("Length of query", "length of key 2"):
            page.get_by_label(name).press("End")
            assert weights(page) == before
        page.get_by_label("Score").select_option("dot")
        assert weights(page) != before


@pytest.mark.browser
def test_dragged_key_stays_within_the_disc(show):
    with show(PlaneExplorer(QUERY, KEYS, VALUES)) as page:
        page.get_by_label("key 3", exact=True).scroll_into_view_if_needed()
        plane = page.get_by_label("query and keys").bounding_box()
        per_unit = plane["width"] / 6.6
        middle = (plane["x"] + plane["width"] / 2, plane["y"] + plane["height"] / 2)

        def drag(to):
            x, y = position(page, "key 3")
            page.mouse.move(middle[0] + x * per_unit, middle[1] - y * per_unit)
            page.mouse.down()
            page.mouse.move(middle[0] + to[0] * per_unit, middle[1] - to[1] * per_unit, steps=3)
            page.mouse.up()
            return position(page, "key 3")

        assert drag((2.0, -1.0)) == pytest.approx([2.0, -1.0], abs=0.03)
        assert weights(page) == pytest.approx(
            expected(PlaneExplorer(QUERY, [*KEYS[:2], [2.0, -1.0], KEYS[3]])), abs=0.01
        )
        assert math.hypot(*drag((3.2, -3.2))) == pytest.approx(3.0, abs=0.01)


@pytest.mark.browser
def test_arrow_keys_move_every_point_and_the_output_follows_the_values(show):
    with show(PlaneExplorer(QUERY, KEYS, VALUES)) as page:
        for name in ("query", "key 1", "key 4", "value 2"):
            before = position(page, name)
            page.get_by_label(name, exact=True).press("ArrowUp")
            page.get_by_label(name, exact=True).press("ArrowLeft")
            assert position(page, name) == pytest.approx([before[0] - 0.1, before[1] + 0.1], abs=0.011)
        place = "c => [c.cx.baseVal.value, c.cy.baseVal.value]"
        output = page.get_by_label("values and output").locator("circle.x-dot")
        before = output.evaluate(place)
        page.get_by_label("value 1", exact=True).press("ArrowDown")
        assert output.evaluate(place) != before


@pytest.mark.browser
def test_key_dragged_by_touch_does_not_scroll_the_page(show, finger):
    with show(PlaneExplorer(QUERY, KEYS, VALUES), width=360, has_touch=True, is_mobile=True) as page:
        page.locator("main").evaluate("m => { m.style.paddingBottom = '1500px'; }")
        box = page.get_by_label("key 3", exact=True).locator("circle").last.bounding_box()
        start, (x, y) = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2), position(page, "key 3")
        per_unit = page.get_by_label("query and keys").bounding_box()["width"] / 6.6
        finger(page, start, (start[0], start[1] - per_unit))
        assert position(page, "key 3") == pytest.approx([x, y + 1], abs=0.03)
        assert page.evaluate("scrollY") == 0


@pytest.mark.browser
def test_keys_are_the_values_by_default(show):
    with show(PlaneExplorer([1.0, 0.0], [[1.0, 1.0], [1.0, -1.0]])) as page:
        output = page.get_by_label("values and output").locator("circle.x-dot")
        x, y = output.evaluate("c => [c.cx.baseVal.value, c.cy.baseVal.value]")
        assert (x, y) == pytest.approx((150 + 300 / 6.6, 150), abs=1e-4)


@pytest.mark.browser
def test_table_has_a_row_for_each_key(mount):
    page = mount(PlaneExplorer(QUERY, KEYS[:2]))
    for keys in (KEYS[:1], KEYS, KEYS[:3]):
        page.evaluate("keys => model.set('key', keys)", keys)
        assert len(weights(page)) == len(keys)
        assert weights(page) == pytest.approx(expected(PlaneExplorer(QUERY, keys)), abs=0.0006)


@pytest.mark.browser
def test_lowest_temperature_draws_without_nan(show):
    with show(PlaneExplorer([3.0, 0.0], KEYS)) as page:
        page.get_by_label("Temperature T").press("Home")
        assert "NaN" not in page.locator(".x-body").inner_html()


@pytest.mark.browser
def test_phone_shows_one_plane_beside_its_sliders(show):
    with show(PlaneExplorer(QUERY, KEYS, VALUES), width=360) as page:
        first, second = page.get_by_label("query and keys"), page.get_by_label("values and output")
        assert first.is_visible()
        assert not second.is_visible()
        sliders, plane = page.locator(".x-controls").bounding_box(), first.bounding_box()
        assert plane["y"] + plane["height"] - sliders["y"] < 740 - 56
        page.get_by_role("button", name="Values and output").press("Enter")
        assert second.is_visible()
        assert not first.is_visible()
        page.get_by_label("Length of query").press("End")
        assert second.is_visible()
