"""Tests of the clocks explorer: hands agree with the library's rotary embedding, and the figure follows.

Everything is float64 on both sides; the tolerance leaves room for another machine's ``cos`` and ``pow``.
"""

import math

import pytest
import torch
import traitlets
from torch.testing import assert_close

from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rope_scaling import NTKAware, PositionInterpolation
from lessons_lib.page.widgets import ClocksExplorer

SETTINGS = [
    {},
    {"query": 3, "key": 100, "back": 7, "base": 500.0},
    {"query": 70, "key": 11, "shift": 901, "back": 2, "scaling": "interpolation", "factor": 2.5},
    {"query": 100, "key": 0, "shift": 13, "back": 20, "base": 1e6, "scaling": "ntk", "factor": 8.0},
]
LIBRARYS = {"none": lambda factor: None, "interpolation": PositionInterpolation, "ntk": NTKAware}


def rotary(explorer):
    return RotaryEmbedding(8, base=explorer.base, scaling=LIBRARYS[explorer.scaling](explorer.factor))


def librarys_score(explorer):
    """The dot product of a rotated query and key, whose pairs are (1, 0).

    The key is turned ahead by ``back`` at the trained frequencies.
    """
    rotate, up = rotary(explorer), torch.tensor([[1.0] * 4 + [0.0] * 4], dtype=torch.float64)
    ahead = RotaryEmbedding(8, base=explorer.base)(up, torch.tensor([explorer.back]))
    q = rotate(up, torch.tensor([explorer.query + explorer.shift]))
    k = rotate(ahead, torch.tensor([explorer.key + explorer.shift]))
    return (q @ k.T).item()


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_frequencies_agree_with_the_library(javascript, setting):
    explorer = ClocksExplorer(**setting)
    theirs = rotary(explorer).frequencies(torch.arange(1))
    ours = javascript("clocks.math", "frequencies", explorer.base, explorer.scaling, explorer.factor)
    assert_close(torch.tensor(ours, dtype=torch.float64), theirs, rtol=1e-13, atol=0)
    assert_close(torch.tensor(explorer.frequencies(), dtype=torch.float64), theirs, rtol=1e-13, atol=0)


@pytest.mark.browser
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_scores_agree_with_rotated_vectors(javascript, setting):
    explorer = ClocksExplorer(**setting)
    omega = javascript("clocks.math", "frequencies", explorer.base, explorer.scaling, explorer.factor)
    trained = javascript("clocks.math", "frequencies", explorer.base, "none", 1)
    angles = javascript("clocks.math", "between", omega, trained, explorer.key - explorer.query, explorer.back)
    assert javascript("clocks.math", "score", angles) == pytest.approx(librarys_score(explorer), abs=1e-11)
    assert explorer.score() == pytest.approx(librarys_score(explorer), abs=1e-11)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("+ back * trained[i]", "- back * trained[i]"),
        ("back * trained[i]", "back * w"),
        ("(-i / CLOCKS) / slower", "(-i / CLOCKS) * slower"),
        ("(CLOCKS / (CLOCKS - 1))", "1"),
        ("(-i / CLOCKS)", "(-2 * i / CLOCKS)"),
    ],
)
def test_wrong_arithmetic_is_noticed(altered, right, wrong):
    with altered("clocks.math", right, wrong) as javascript:
        noticed = 0
        for setting in SETTINGS:
            try:
                test_scores_agree_with_rotated_vectors(javascript, setting)
            except AssertionError:
                noticed += 1
    assert noticed


@pytest.mark.browser
def test_angles_of_training_are_known(javascript):
    """A clock that made a full turn knows every angle; a slower one knows distances up to 31, scaled or not."""

    def seen(scaling, factor, distance, base=10_000.0):
        trained = javascript("clocks.math", "frequencies", base, "none", 1)
        omega = javascript("clocks.math", "frequencies", base, scaling, factor)
        return javascript("clocks.math", "seen", omega, trained, distance)

    slower = ClocksExplorer(base=10_000.0).frequencies()[1]
    assert 31 > 2 * math.pi > 31 * slower
    assert seen("none", 1, -31) == seen("none", 1, 0) == [True] * 4
    assert seen("none", 1, -32) == [True, False, False, False]
    assert seen("none", 1, 1) == [True, False, False, False], "a causal model has met no key after its query"
    assert seen("interpolation", 2, -62) == [True] * 4
    assert seen("interpolation", 2, -63) == [True, False, False, False]
    assert seen("ntk", 2, -62) == [True, False, False, True], "only the slowest is stretched by the whole factor"


@pytest.mark.browser
def test_angle_is_known_after_a_full_turn(javascript):
    """At base 20 the slowest clock made half a turn in training; at distance 58 its angle is 6.1, at 62 it is 0.27."""
    omega = javascript("clocks.math", "frequencies", 20.0, "none", 1)
    assert math.pi < 31 * omega[3] < 2 * math.pi < 31 * omega[2]
    for distance, known in ((-58, False), (-62, True)):
        angle = -distance * omega[3] % (2 * math.pi)
        assert (angle < 31 * omega[3]) is known
        assert javascript("clocks.math", "seen", omega, omega, distance) == [True, True, True, known]


def test_scaling_moves_the_preferred_distance():
    """A query that prefers keys 5 back prefers keys 20 back once all frequencies are divided by 4."""
    explorer = ClocksExplorer(query=70, back=5, scaling="interpolation", factor=4.0)
    scores = []
    for explorer.key in range(71):
        scores.append(explorer.score())
    assert 70 - max(range(71), key=scores.__getitem__) == 20
    assert max(scores) == pytest.approx(4)


# --- traits ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"query": 101}, "query.*at most 100, not the int 101"),
        ({"key": -1}, "key.*at least 0"),
        ({"key": 2.5}, "key.*expected a whole number"),
        ({"shift": 1001}, "shift.*at most 1000"),
        ({"back": 21}, "back.*at most 20"),
        ({"base": 9.0}, "base.*at least 10 and at most 1e\\+06"),
        ({"factor": 0.5}, "factor.*at least 1"),
        ({"scaling": "yarn"}, "scaling.*expected any of"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        ClocksExplorer(**arguments)


def test_invalid_assignment_keeps_the_old_value():
    explorer = ClocksExplorer(query=5)
    with pytest.raises(traitlets.TraitError):
        explorer.query = 200
    assert explorer.query == 5


def test_still_contains_the_score():
    explorer = ClocksExplorer(query=7, key=3, shift=10, base=100.0)
    assert "query at 17, key at 13" in explorer.still()
    assert f"score {explorer.score():.2f}" in explorer.still()


# --- what a reader sees ---------------------------------------------------------------------------------------------


def rows(page):
    """Turns, angles, cosines, and whether the angles are known, for the four clocks."""
    cells = page.locator("tr:not(:first-child) td").all_inner_texts()
    return [cells[i : i + 4] for i in range(0, 16, 4)]


def hands(page):
    return page.locator("table path.x-line").evaluate_all("all => all.map(p => p.getAttribute('d'))")


def place_of_ring(page):
    return (
        page.get_by_label("score against the distance")
        .locator("circle")
        .evaluate("c => [c.cx, c.cy].map(v => v.baseVal.value)")
    )


@pytest.mark.browser
def test_common_shift_turns_the_hands_and_keeps_the_score(show):
    with show(ClocksExplorer(query=20, key=12, shift=100)) as page:
        table, turned, ring = rows(page), hands(page), place_of_ring(page)
        page.get_by_label("Both later by").press("ArrowRight")
        assert rows(page) == table
        assert place_of_ring(page) == ring
        assert all(before != after for before, after in zip(turned[:6], hands(page)[:6], strict=True))
        page.get_by_label("Key at").press("ArrowRight")
        assert rows(page) != table
        page.get_by_label("Query at").press("ArrowRight")
        assert rows(page) == table


@pytest.mark.browser
def test_table_agrees_with_the_library(show):
    explorer = ClocksExplorer(query=60, key=20, back=4, base=1000.0)
    with show(explorer) as page:
        turns, angles, cosines, seen = rows(page)
        text = page.get_by_label("score against the distance").text_content()
    for i, omega in enumerate(rotary(explorer).frequencies(torch.arange(1)).tolist()):
        apart = (20 - 60 + 4) * omega
        assert float(turns[i].replace(" k", "e3")) == pytest.approx(2 * math.pi / omega, rel=0.005)
        assert float(cosines[i].replace("\u2212", "-")) == pytest.approx(math.cos(apart), abs=0.006)
        signed = math.degrees(math.remainder(apart, 2 * math.pi))
        assert float(angles[i].rstrip("°").replace("\u2212", "-")) == pytest.approx(signed, abs=0.51)
    assert seen == ["seen", "seen", "new", "new"]
    assert f"score {librarys_score(explorer):.2f}" in text.replace("\u2212", "-")


@pytest.mark.browser
def test_score_is_highest_at_distance_back(show):
    """The ring is highest (its y smallest) when the key is ``back`` positions before the query."""
    with show(ClocksExplorer(query=20, key=10, back=7)) as page:
        heights = {}
        for key in range(10, 18):
            heights[key] = place_of_ring(page)[1]
            page.get_by_label("Key at").press("ArrowRight")
        assert min(heights, key=heights.get) == 13
        assert heights[13] == 14, "all cosines are one: the top of the picture"


@pytest.mark.browser
def test_factor_slider_is_enabled_only_with_a_scaling(show):
    with show(ClocksExplorer()) as page:
        factor = page.get_by_label("by the factor")
        assert factor.is_disabled()
        before = rows(page)
        page.get_by_label("Stretched").select_option("interpolation")
        assert factor.is_enabled()
        assert rows(page) != before
