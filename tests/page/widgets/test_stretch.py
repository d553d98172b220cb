"""Tests of the stretch explorer: clocks agree with the library's scaled rotary embedding, losses with the record."""

import json
import math
import re
from itertools import product

import pytest
import torch
import write_stretch
from labels import collisions, smallest
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.attention.positions import RotaryEmbedding, rotary_frequencies
from lessons_lib.attention.rope_scaling import yarn_attention_factor
from lessons_lib.page.widgets import StretchExplorer
from lessons_lib.page.widgets.stretch import LONGEST, METHODS, TRAINED, WIDTHS
from tests.page.widgets.test_budget import shown

CASES = [
    StretchExplorer(base, width, method, factor, length)
    for base, width, method, (factor, length) in product(
        (10.0, 14.1, 1e4, 1e6), (4, 16, 128), METHODS, ((1.0, 65), (2.5, 300), (8.0, 512), (128.0, 40), (128.0, 512))
    )
]


def setting(explorer):
    return {name: getattr(explorer, name) for name in ("base", "width", "method", "factor", "length")}


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_clocks_agree_with_the_library(javascript):
    """In float64 on both sides; the largest relative difference was 4e-16, ``pow`` of another machine may differ."""
    for explorer, found in zip(
        CASES, javascript.each("stretch.math", "clocks", [[setting(e)] for e in CASES]), strict=True
    ):
        rotary = RotaryEmbedding(explorer.width, base=explorer.base, scaling=explorer.scaling())
        now, trained = rotary.frequencies(torch.arange(1)), rotary_frequencies(explorer.base, explorer.width)
        ours = {name: torch.tensor([clock[name] for clock in found], dtype=torch.float64) for name in found[0]}
        for name, wanted in {
            "now": now,
            "trained": trained,
            "seen": TRAINED * trained,
            "plain": explorer.length * trained,
            "reach": explorer.length * now,
        }.items():
            assert_close(ours[name], wanted, rtol=1e-12, atol=0)
        clocks = explorer.clocks()
        assert_close(
            torch.tensor([clock[:4] for clock in clocks]).double(),
            torch.stack([ours[name] for name in ("trained", "now", "seen", "reach")], 1),
            rtol=1e-6,
            atol=0,
        )
        assert [clock["isNew"] for clock in found] == [clock.is_new for clock in clocks]


@pytest.mark.browser
def test_temperature_agrees_with_rotated_vectors(javascript):
    """YaRN scales queries and keys by the same factor, which divides every score."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 16, generator=generator, dtype=torch.float64)
    for explorer in [StretchExplorer(method=method, factor=factor) for method in METHODS for factor in (1.0, 3.0, 8.0)]:
        frequencies = RotaryEmbedding(16, scaling=explorer.scaling())
        here, there = torch.tensor([7]), torch.tensor([7])
        ratio = (frequencies(q, here) @ frequencies(k, there).T) / (q @ k.T)
        found = javascript("stretch.math", "temperature", setting(explorer))
        assert 1 / found == pytest.approx(ratio.item(), rel=1e-12)
        assert found == pytest.approx(yarn_attention_factor(explorer.factor) ** -2 if explorer.method == "yarn" else 1)


@pytest.mark.thorough
@pytest.mark.browser
def test_new_angles_are_beyond_those_of_training(javascript):
    """Positions 0 to 63 are known; a clock that made a full turn knows every angle."""
    found = javascript.each("stretch.math", "clocks", [[setting(e)] for e in CASES])
    beyond = javascript.each("stretch.math", "unseen", [[clock] for clocks in found for clock in clocks])
    cases = [(explorer.length, clock) for explorer in CASES for clock in explorer.clocks()]
    for (length, clock), interval in zip(cases, beyond, strict=True):
        at = torch.arange(length, dtype=torch.float64) * clock.now % (2 * math.pi)
        fresh = (at >= clock.seen * (1 + 1e-9)) & (clock.seen < 2 * math.pi)
        if interval is None:
            assert not fresh.any()
        else:
            assert interval == pytest.approx([clock.seen, min(clock.reach, 2 * math.pi)])
            assert fresh.any() or clock.reach - clock.seen <= clock.now * (1 + 1e-6)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(-2 * i) / width", "-i / width"),
        ("factor ** (width / (width - 2))", "factor"),
        ("omega.map((w) => w / factor)", "omega.map((w) => w)"),
        ("Math.ceil(((width", "Math.floor(((width"),
        ("w * (1 - share) + (w / factor) * share", "w * share + (w / factor) * (1 - share)"),
        ("seen < TURN &&", ""),
        ("seen * (1 + 1e-9)", "seen"),
        ("setting.length * omega[i]", "setting.length * trained"),
    ],
)
def test_wrong_clock_is_noticed(altered, right, wrong):
    with altered("stretch.math", right, wrong) as javascript, pytest.raises(AssertionError):
        test_clocks_agree_with_the_library(javascript)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"), [("** -2", "** -1"), ("0.1 * Math", "Math"), ('method === "yarn" ? (1', "factor > 1 ? (1")]
)
def test_wrong_temperature_is_noticed(altered, right, wrong):
    with altered("stretch.math", right, wrong) as javascript, pytest.raises(AssertionError):
        test_temperature_agrees_with_rotated_vectors(javascript)


def new(**given):
    return [i for i, clock in enumerate(StretchExplorer(**given).clocks(), 1) if clock.is_new]


def test_which_clocks_are_new():
    assert new() == [4, 5, 6, 7, 8], "the first three go once round in training"
    assert new(length=65) == [4, 5, 6, 7, 8]
    assert new(length=64) == []
    assert new(method="interpolation") == new(method="yarn") == []
    assert new(method="ntk") == [4, 5, 6, 7], "the slowest alone is slowed by the whole factor"
    assert new(method="ntk", factor=16.0) == [4, 5, 6]
    assert new(method="ntk", factor=127.0) == [4], "the fourth is slowed by the factor to the power of three sevenths"
    assert new(method="ntk", factor=128.0) == []
    assert new(method="interpolation", factor=7.5) == [4, 5, 6, 7, 8]
    assert new(base=14.1) == []
    assert new(base=14.3) == [8]


# --- the record -----------------------------------------------------------------------------------------------------


def record():
    return json.loads(write_stretch.RECORD.read_text(encoding="utf-8"))


def test_losses_agree_with_the_record():
    """After another run of ``benchmarks/stretching.py``: ``python tools/write_stretch.py``."""
    assert write_stretch.OUT.read_text(encoding="utf-8") == write_stretch.script(record()["runs"])


def check_losses(javascript):
    names = {"none": "", "interpolation": "interpolation", "ntk": "NTK", "yarn": "YaRN"}
    runs, calls, lines = record()["runs"], [["window", 4, False], ["window", 8, True]], ["RoPE, window of 64"] * 2
    for (method, name), factor, practised in product(names.items(), (2, 4, 8), (False, True)):
        when = "practised" if practised else "as it is"
        if factor == 8 or not practised:
            calls.append([method, factor, practised])
            lines.append(
                f"RoPE, {name} by {factor}, {when}" if name else "RoPE" + practised * ", not slowed, practised"
            )
    for line, found in zip(lines, javascript.each("stretch.math", "recorded", calls), strict=True):
        assert found == [pytest.approx(runs[f"{line}, seed {seed}"], abs=0.0051) for seed in range(3)]
    found = javascript.page.evaluate("async () => ({...(await import('./stretch.math.js'))})")
    assert found["LENGTHS"] == record()["lengths"]
    assert (found["TRAINED"], found["LONGEST"], found["WIDTHS"]) == (TRAINED, LONGEST, WIDTHS)
    losses = [[2.0, 1.0, 3.0, 4.0, 5.0], [3.0, 1.5, 3.0, 0.0, 7.0], [4.0, 2.0, 0.0, 2.0, 9.0]]
    assert javascript("stretch.math", "means", losses) == [3.0, 1.5, 2.0, 2.0, 7.0]
    for x, nearest in ((1, 2), (2.8, 2), (2.9, 4), (5.6, 4), (5.7, 8), (16, 8)):
        assert javascript("stretch.math", "nearest", [2, 4, 8], x) == nearest


@pytest.mark.browser
def test_figure_shows_the_recorded_losses(javascript):
    check_losses(javascript)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (": Number(practised)]", ": 0]"),
        ("3 * place - 2", "3 * place - 3"),
        ("practised ? place :", ""),
        ("3 * row + seed", "3 * seed + row"),
        (") / 100", ") / 10"),
        ('method === "window" ? 2', 'method === "window" ? 1'),
        ("/ seeds.length", "/ 2"),
        ("Math.log(one / x)", "one - x"),
    ],
)
def test_wrong_losses_are_noticed(altered, right, wrong):
    with altered("stretch.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_losses(javascript)


@pytest.mark.rejects
def test_a_loss_has_three_digits():
    assert [write_stretch.digits(loss) for loss in (0, 1.716, 9.99)] == ["000", "172", "999"]
    for loss in (-0.01, 9.996):
        with pytest.raises(ValueError, match=rf"a loss must be from 0 to 9\.99 nats, got {loss}"):
            write_stretch.digits(loss)


# --- traits ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"base": 9.0}, "base.*at least 10 and at most 1e\\+06"),
        ({"width": 2}, "width.*expected any of"),
        ({"method": "llama3"}, "method.*expected any of .*yarn"),
        ({"factor": 0.5}, "factor.*at least 1 and at most 128"),
        ({"length": 513}, "length.*at least 16 and at most 512"),
        ({"clock": 0}, "clock.*at least 1 and at most 64"),
        ({"guess": "window"}, "guess.*expected any of"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        StretchExplorer(**arguments)


def test_still_contains_the_number_of_new_clocks():
    assert "64 tokens, 512 read, as trained: 5 of 8 clocks reach new angles" in StretchExplorer().still()
    still = StretchExplorer(method="ntk", width=128, length=300).still()
    assert "300 read, NTK-aware by 8: 30 of 64 clocks" in still
    assert "nan" not in still


# --- what a reader sees ---------------------------------------------------------------------------------------------


def cells(page):
    """The rows of the selected clock."""
    rows = page.locator("table:not(.x-numbers) tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}


def new_angles(page):
    return page.locator(".x-headline b").inner_text()


def open_losses(page):
    page.get_by_role("button", name="Loss").locator("visible=true").click()


@pytest.mark.browser
def test_methods_scale_the_clocks_and_show_the_factor(show):
    with show(StretchExplorer()) as page:
        method, factor = page.get_by_label("Method"), page.get_by_label("by the factor")
        assert factor.is_disabled()
        assert new_angles(page) == "5 of 8"
        assert page.locator("rect.s-new").count() == 5
        assert page.locator(".s-plain").count() == 0
        assert cells(page)["turns made"] == ["0.32", "2.58"]
        assert "As fast as in training; 244° of its angles are new." in page.locator("div.explorer").inner_text()
        method.select_option("interpolation")
        assert factor.is_enabled()
        assert new_angles(page) == "0 of 8"
        assert shown(page) == {
            "slower, fastest … slowest": "8.00 … 8.00",
            "neighbours, fastest clock": "57.3° → 7.16°",
            "temperature of the scores": "1.00",
        }
        assert page.locator("rect.s-new").count() == 0
        assert page.locator("svg .s-plain").count() >= 8
        method.select_option("ntk")
        assert new_angles(page) == "4 of 8"
        assert shown(page)["slower, fastest … slowest"] == "1.00 … 8.00"
        assert cells(page)["tokens for a turn"] == ["199", "484"]
        method.select_option("yarn")
        assert shown(page)["temperature of the scores"] == "0.69"
        assert cells(page)["between neighbours"] == ["1.81°", "0.23°"]
        page.get_by_label("Tokens read").press("Home")
        assert cells(page)["tokens"] == ["64", "16"]
        page.get_by_role("button", name="Reset").click()
        assert new_angles(page) == "5 of 8"


@pytest.mark.browser
def test_clock_can_be_selected_by_bar_and_by_slider(show):
    with show(StretchExplorer(width=128, clock=1)) as page:
        drawing = page.get_by_label("turns of each clock in training and now")
        assert "clock 1" in cells(page)
        box = drawing.bounding_box()
        for share, clock in ((0.985, 64), (0.109, 1), (0.5, 29)):
            page.mouse.click(box["x"] + share * box["width"], box["y"] + 0.7 * box["height"])
            assert f"clock {clock}" in cells(page)
        slider = page.get_by_label("Clock shown")
        slider.press("ArrowRight")
        assert "clock 30" in cells(page)
        page.get_by_label("Width of a head").press("Home")
        assert "clock 2" in cells(page), "a head of width 4 has no more"
        assert slider.get_attribute("max") == "2"
        assert slider.input_value() == "2"


@pytest.mark.browser
def test_dial_marks_are_the_angles_of_all_distances(show):
    """Inner marks are angles of training, outer marks those reached now; new angles are orange."""
    with show(StretchExplorer(length=400, clock=4)) as page:
        paths = page.locator(".s-marks").evaluate_all("all => all.map(p => p.getAttribute('d'))")
    found = [
        torch.tensor([[float(x) for x in mark.split()] for mark in re.findall(r"M([-\d.]+ [-\d.]+)L", path)])
        for path in paths
    ]
    clock = StretchExplorer(length=400).clocks()[3]
    turned = torch.arange(400, dtype=torch.float64) * clock.now
    fresh = turned % (2 * math.pi) >= clock.seen
    assert (len(found[0]), len(found[1]), len(found[2])) == (64, (~fresh).sum(), fresh.sum())
    for marks, angles, r in (
        (found[0], turned[:64], 72),
        (found[1], turned[~fresh], 86),
        (found[2], turned[fresh], 86),
    ):
        wanted = torch.stack([100 + r * angles.sin(), 100 - r * angles.cos()], 1)
        assert_close(marks.double(), wanted, rtol=0, atol=0.006)


@pytest.mark.browser
def test_guess_precedes_the_losses(show):
    with show(StretchExplorer()) as page:
        drawing = page.get_by_label("recorded losses by the number of characters read")
        more = page.get_by_label("40 more steps at 512")
        open_losses(page)
        assert drawing.locator(".x-line").count() == 0
        assert not drawing.is_visible()
        assert not more.is_visible()
        page.get_by_role("group", name="your guess").get_by_role("button", name="NTK-aware").press("Enter")
        assert drawing.is_visible()
        answer = page.get_by_text("You said NTK-aware.")
        assert answer.evaluate("a => a === document.activeElement")
        losses = dict(re.findall(r"(as trained|interpolation|NTK-aware|YaRN) (\d\.\d\d)", answer.inner_text()))
        runs = record()["runs"]
        for name, line in {"as trained": "RoPE", "YaRN": "RoPE, YaRN by 8, as it is"}.items():
            mean = sum(runs[f"{line}, seed {seed}"][-1] for seed in range(3)) / 3
            assert float(losses[name]) == pytest.approx(mean, abs=0.011)
        curves = drawing.evaluate("d => d.innerHTML")
        more.press("Space")
        assert drawing.evaluate("d => d.innerHTML") != curves
        assert "factor 8." in page.locator("div.explorer").inner_text()
        page.get_by_role("button", name="Reset").click()
        assert not drawing.is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", all_but([360, 1440], lambda width: width == 360))
def test_labels_are_legible_and_do_not_overlap(method, width, show):
    for factor, practised in ((2.0, False), (8.0, False), (4.0, True)):
        explorer = StretchExplorer(1e4, 64, method, factor, practised=practised, guess="none")
        with show(explorer, width=width) as page:
            assert smallest(page) >= 11
            assert not collisions(page)
            open_losses(page)
            assert smallest(page) >= 11
            assert not collisions(page)


@pytest.mark.browser
def test_both_tabs_fit_one_screen_of_a_laptop(show):
    with show(StretchExplorer(method="yarn", guess="ntk"), width=1280) as page:
        for name in ("Clocks", "Loss"):
            page.get_by_role("button", name=name, exact=True).locator("visible=true").click()
            assert page.locator("div.explorer").bounding_box()["height"] < 800


@pytest.mark.browser
def test_the_extremes_draw_without_a_hole_and_within_their_axes(show):
    least = StretchExplorer(10.0, 4, "yarn", 1.0, 16, 1, guess="yarn")
    most = StretchExplorer(1e6, 128, "interpolation", 128.0, 512, 64, practised=True, guess="ntk")
    with show(least, most) as page:
        drawn = page.locator("body").inner_text() + "".join(
            page.locator("svg").evaluate_all("a => a.map(s => s.outerHTML)")
        )
        assert not {word for word in ("NaN", "Infinity", "undefined") if word in drawn}
        inside = """d => { const all = [...d.querySelectorAll("rect, path.x-line")].map((e) => e.getBBox());
          return [Math.min(...all.map((b) => b.y)), Math.max(...all.map((b) => b.y + b.height))]; }"""
        for name in ("turns of each clock in training and now", "recorded losses by the number of characters read"):
            for i in range(2):
                if name.startswith("recorded"):
                    page.get_by_role("button", name="Loss").locator("visible=true").nth(i).click()
                top, bottom = page.get_by_label(name).nth(i).evaluate(inside)
                assert top >= 25.999
                assert bottom <= 206.001
