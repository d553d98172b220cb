"""Tests of the patches explorer: predictions agree with the library's Vision Transformer; reproducible models.

Both compute in float64 from the same weights in float32. Measured over 60 images: logits, of up to
12, differ by at most 8e-15, weights by 1.4e-15.
"""

import gzip
import json
import random
from functools import cache
from itertools import pairwise

import pytest
import torch
import train_patches
from labels import collisions, smallest
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.applications.vision import patchify, unpatchify
from lessons_lib.page.widgets import PatchesExplorer
from lessons_lib.page.widgets.assemble import read
from lessons_lib.page.widgets.patches import (
    DIGITS,
    FULL,
    PIXELS,
    SIDE,
    SIZES,
    TRAINED,
    patch_config,
    patch_model,
    patches_record,
    pixel_permutation,
    shown_digits,
)
from lessons_lib.page.widgets.trained import script_data
from lessons_lib.training.datasets import load

RECORD = patches_record()
TEST = slice(RECORD["digits"]["first_test"], None)


def explorers(n):
    """Random digits, half of them modified, with each model in turn."""
    chance = random.Random(3)
    return [
        PatchesExplorer(
            chance.randrange(DIGITS),
            SIZES[i % 3],
            PIXELS[i // 3 % 2],
            ink=[chance.randint(0, FULL) for _ in range(SIDE**2 if i // 6 % 2 else 0)],
        )
        for i in range(n)
    ]


def ink_of(explorer):
    return explorer.ink or shown_digits()[0][explorer.digit].flatten().tolist()


# --- one model in two languages -------------------------------------------------------------------------------------


@cache
def wanted(digit, size, pixels, ink):
    """The library's logits and weights."""
    explorer = PatchesExplorer(digit, size, pixels, ink=ink)
    return explorer.logits(), explorer.weights()


def check_runs(javascript, cases):
    found = javascript.each("patches.math", "run", [(ink_of(e), e.size, e.pixels) for e in cases])
    for explorer, ours in zip(cases, found, strict=True):
        logits, weights = wanted(explorer.digit, explorer.size, explorer.pixels, tuple(explorer.ink))
        assert_close(torch.tensor(ours["logits"], dtype=torch.float64), logits, rtol=0, atol=1e-12)
        assert_close(torch.tensor(ours["weights"], dtype=torch.float64), weights, rtol=0, atol=1e-12)


@pytest.mark.browser
def test_predictions_agree_with_the_library(javascript):
    check_runs(javascript, explorers(24))


@pytest.mark.browser
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("/ FULL)", "/ 15)"),
        ("(patch % across) * size]", "(patch % across)]"),  # patches that overlap
        ("(i % size)", "(i % across)"),
        ("new Int8Array(bytes(int8))", "new Uint8Array(bytes(int8))"),
        ("Math.sqrt(EACH)", "Math.sqrt(WIDTH)"),
        ("(1 + erf(x / Math.SQRT2))", "(1 + Math.tanh(0.8 * x))"),
        (
            "j * WIDTH + head * EACH + c];\n      });",
            "j * WIDTH + c];\n      });",
        ),  # all heads bring the first's values
        ("(from + 1) * WIDTH, (from + 2)", "from * WIDTH, (from + 1)"),  # the summary is moved too
        ('norm(all, x, "encoder.norm")', "x"),
        ("subarray(0, WIDTH)", "subarray(-WIDTH)"),
        ('add(all["positions.weight"].numbers);', ""),
    ],
)
def test_wrong_model_is_noticed(altered, right, wrong):
    with altered("patches.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_runs(javascript, explorers(6))


@pytest.mark.browser
def test_wrong_norm_is_noticed(altered):
    right, wrong = "(b - mean) ** 2, 0) / width", "(b - mean) ** 2, 0) / (width - 1)"
    with altered("layers.math", right, wrong) as javascript, pytest.raises(AssertionError):
        check_runs(javascript, explorers(6))


@pytest.mark.browser
def test_patches_agree_with_the_library(javascript):
    places = torch.arange(SIDE**2).view(SIDE, SIDE)
    for size in SIZES:
        cut = patchify(places, size).tolist()
        assert javascript.each("patches.math", "inside", [(i, size) for i in range(len(cut))]) == cut


@pytest.mark.browser
def test_the_error_function(javascript):
    x = torch.cat([torch.linspace(-7, 7, 1001), torch.tensor([1e-9, 0.0, -1e-300])]).double()
    found = torch.tensor(javascript.each("patches.math", "erf", [[one] for one in x.tolist()]), dtype=torch.float64)
    assert_close(found, torch.erf(x), rtol=1e-14, atol=0)


@pytest.mark.browser
def test_fast_stroke_has_no_gaps(javascript):
    assert javascript("patches.math", "way", 0, 27) == [0, 9, 18, 27]
    assert javascript("patches.math", "way", 12, 12) == [12, 12]
    way = javascript("patches.math", "way", 7, 56 + 2)
    assert (way[0], way[-1]) == (7, 58)
    for a, b in pairwise(way):
        assert max(abs(a // SIDE - b // SIDE), abs(a % SIDE - b % SIDE)) == 1


# --- the models -----------------------------------------------------------------------------------------------------


def test_one_pixel_patches_shuffled_pixels_equal_shuffled_positions():
    """The outputs agree up to rounding for any image, because positions are the only notion of neighbours."""
    for explorer in explorers(12):
        explorer.size, explorer.pixels = 1, "in order"
        in_order = explorer.logits()
        explorer.pixels = "shuffled"
        assert_close(explorer.logits(), in_order, rtol=0, atol=1e-12)
    explorer.size = 2
    assert (explorer.logits() - PatchesExplorer(explorer.digit, ink=explorer.ink).logits()).abs().max() > 0.1


def test_shown_digits_are_the_first_test_digits():
    images, labels = load("digits")
    shown, told = shown_digits()
    assert torch.equal(shown, images[TEST][:DIGITS].long())
    assert torch.equal(told, labels[TEST][:DIGITS])
    assert set(told.tolist()) == set(range(10))
    assert sorted(pixel_permutation().tolist()) == list(range(SIDE**2))


def test_record_describes_the_stored_data():
    seeds = " ".join(map(str, RECORD["seeds"]))
    assert RECORD["command"] == f"python tools/train_patches.py --seeds {seeds} --steps {RECORD['steps']}"
    assert list(RECORD["carried_right"]) == list(RECORD["right"]) == [f"{size} {pixels}" for size, pixels in TRAINED]
    assert RECORD["digits"] == {"learned": train_patches.N_TRAIN, "first_test": 1250, "test": 547}
    for size, pixels in TRAINED:
        name = f"{size} {pixels}"
        assert train_patches.n_correct(patch_model(size, pixels), pixels) == RECORD["carried_right"][name]
        assert abs(RECORD["carried_right"][name] - RECORD["right"][name][0]) <= 8, "what rounding costs"
        assert RECORD["kl_of_rounding"][name] < 1e-3
        assert len(RECORD["right"][name]) == len(RECORD["seeds"])


def test_shuffled_digits_have_about_the_same_accuracy():
    """As the card says after the guess, the numbers differ by at most 20 of 547 for any two seeds."""
    for size in (2, 4):
        there, here = (RECORD["right"][f"{size} {pixels}"] for pixels in PIXELS)
        assert max(there + here) - min(there + here) < 20


def test_prediction_follows_the_drawing():
    explorer = PatchesExplorer(size=2)
    before = explorer.logits()
    explorer.ink = [FULL - one for one in ink_of(explorer)]
    assert (explorer.logits() - before).abs().max() > 1


def test_image_is_cut_as_by_the_library():
    explorer = PatchesExplorer(4, 4, "shuffled")
    flat = shown_digits()[0][4].flatten()[pixel_permutation()].double() / FULL
    assert torch.equal(unpatchify(patchify(flat.view(SIDE, SIDE), 4), (SIDE, SIDE)), explorer.image())


@pytest.mark.thorough
def test_model_is_reproducible(monkeypatch, tmp_path):
    """Run the whole command twice with two steps; the outputs are equal."""
    made = []
    for name in ("first.js", "second.js"):
        monkeypatch.setattr(
            "sys.argv", ["train_patches.py", "--steps", "2", "--seeds", "5", "--out", str(tmp_path / name)]
        )
        threads = torch.get_num_threads()
        torch.set_default_dtype(torch.float32)
        train_patches.main()
        torch.set_num_threads(threads)
        made.append((tmp_path / name).read_text())
    assert made[0] == made[1]
    script = json.loads(made[0].split("export const MODEL = ")[1].removesuffix(";\n"))
    ours = script_data("patches_model.js")
    assert script["record"]["seeds"] == [5]
    assert script["models"].keys() == ours["models"].keys()
    assert [script[name] for name in ("images", "labels", "moved")] == [
        ours[name] for name in ("images", "labels", "moved")
    ]


def test_data_script_is_small_when_compressed():
    assert len(gzip.compress(read("patches_model.js").encode())) < 60_000


# --- traits ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"digit": 30}, "digit.*at most 29"),
        ({"size": 3}, "size.*expected any of"),
        ({"pixels": "sorted"}, "pixels.*expected any of"),
        ({"query": 65}, "query.*at most 64"),
        ({"ink": [0] * 63}, "ink must be 64 whole numbers or none, got 63"),
        ({"ink": [17] * 64}, "ink.*at most 16"),
        ({"guess": "many"}, "guess.*expected any of"),
    ],
)
def test_invalid_arguments_raise(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        PatchesExplorer(**arguments)


@pytest.mark.rejects
@pytest.mark.parametrize(("size", "pixels"), [(3, "in order"), (2, "sorted")])
def test_patch_model_unknown_model_raises(size, pixels):
    with pytest.raises(ValueError, match=r"there are models of sizes \[1, 2, 4\] and pixels .*, got"):
        patch_model(size, pixels)


def test_still_contains_the_predicted_digit():
    explorer = PatchesExplorer(4, 4)
    p = explorer.logits().softmax(-1)
    said = f"digit 4 in 4 patches, pixels in order, is classified as {p.argmax()} with probability {p.max():.2f}"
    assert said in explorer.still()


def test_patch_config_agrees_with_the_model():
    assert patch_model(2).config.n_parameters() == sum(p.numel() for p in patch_model(2).parameters()) == 10_402
    assert patch_config(4) == patch_model(4).config


# --- what a reader does ---------------------------------------------------------------------------------------------


def state(page, trait):
    return page.locator("div.explorer").evaluate("(e, trait) => e.explorer.model.get(trait)", trait)


def figure(page, name):
    return page.get_by_role("row", name=name).locator("td").inner_text()


def pixel(page, place):
    return page.get_by_role("gridcell").nth(place)


def middle(page, place):
    box = pixel(page, place).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def headline(page):
    return page.locator(".x-headline > *").all_inner_texts()


def open_maps(page):
    page.get_by_role("button", name="Attention maps").click()


def logits(page):
    return page.locator(".v-draws .x-grid > .x-value").all_text_contents()[2::3]


@pytest.mark.browser
def test_mouse_draws_and_prediction_follows(show):
    with show(PatchesExplorer(3)) as page:
        was = ink_of(PatchesExplorer(3))
        before = headline(page), logits(page)
        page.get_by_role("button", name="Empty paper").click()
        assert state(page, "ink") == [0] * 64
        page.mouse.move(*middle(page, 10))
        page.mouse.down()
        page.mouse.move(*middle(page, 13), steps=2)
        page.mouse.up()
        page.mouse.move(*middle(page, 40))
        assert [i for i, ink in enumerate(state(page, "ink")) if ink] == [10, 11, 12, 13]
        page.mouse.click(*middle(page, 12))  # wiped off
        assert [i for i, ink in enumerate(state(page, "ink")) if ink] == [10, 11, 13]
        assert (headline(page), logits(page)) != before
        explorer = PatchesExplorer(3, ink=state(page, "ink"))
        p = explorer.logits().softmax(-1)
        assert headline(page)[0] == f"{p.max():.2f}"
        assert headline(page)[1].startswith(f"that it is a {p.argmax()}; before the drawing")
        page.get_by_role("button", name="As it was written").press("Enter")
        assert state(page, "ink") == []
        assert page.evaluate("document.activeElement.getAttribute('role')") == "gridcell"
        assert pixel(page, 12).get_attribute("aria-label") == f"row 2, column 5: ink {was[12]}"


@pytest.mark.browser
def test_keyboard_draws(show):
    with show(PatchesExplorer(0)) as page:
        page.get_by_role("button", name="Empty paper").click()
        pixel(page, 0).focus()
        for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown", "Space", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        assert [i for i, ink in enumerate(state(page, "ink")) if ink] == [9, 17]
        page.keyboard.press("Space")
        assert [i for i, ink in enumerate(state(page, "ink")) if ink] == [9]
        assert page.locator("[role=gridcell][tabindex='0']").count() == 1


@pytest.mark.browser
def test_touch_draws(show, finger):
    with show(PatchesExplorer(0), width=360, has_touch=True) as page:
        page.get_by_role("button", name="Empty paper").click()
        finger(page, middle(page, 17), middle(page, 41))
        assert [i for i, ink in enumerate(state(page, "ink")) if ink] == [17, 25, 33, 41]


@pytest.mark.browser
def test_click_selects_the_query_and_another_digit_resets_the_drawing(show):
    with show(PatchesExplorer(5, 2, ink=[0] * 64)) as page:
        open_maps(page)
        page.locator(".v-cut [data-token='7']").click()
        assert state(page, "query") == 7
        assert page.get_by_text("Query: patch in row 2, column 3.").is_visible()
        page.locator(".v-maps [data-token='0']").nth(5).click()
        assert state(page, "query") == 0
        page.get_by_role("button", name="Draw", exact=True).click()
        page.locator(".v-digit").nth(8).click()
        assert (state(page, "digit"), state(page, "ink")) == (8, [])


@pytest.mark.browser
def test_attention_weights_of_a_head_are_drawn(show):
    explorer = PatchesExplorer(9, 4, query=2)
    with show(explorer) as page:
        shown = page.locator(".v-maps .v-looks").evaluate_all(
            "all => all.map(e => Number(e.getAttribute('fill-opacity')))"
        )
        rows = explorer.weights()[:, 2]
        assert shown == pytest.approx((rows / rows.amax(1, keepdim=True)).flatten().tolist(), abs=6e-4)
        texts = page.locator(".v-maps text").all_text_contents()
        assert texts[1::2] == [f"{most:.2f}" for most in rows.amax(1).tolist()]


@pytest.mark.browser
def test_guess_precedes_shuffled_digits(show):
    with show(PatchesExplorer(2), width=736) as page:
        assert figure(page, "test digits correct, shuffled") == "\u2013"
        page.get_by_role("combobox", name="Pixels").select_option(label="shuffled, all digits in one way")
        for place in (".v-paper", ".v-draws", ".v-cut", ".x-tabs"):
            assert page.locator(place).locator("visible=true").count() == 0
        page.get_by_role("button", name="about as many").press("Enter")
        assert page.locator(".v-paper").is_visible()
        assert page.locator("div.explorer").bounding_box()["height"] <= 800
        said = page.evaluate("document.activeElement.textContent")
        assert said.startswith("You said about as many, within 20. Of 547, with patches of 2 \u00d7 2: ")
        assert all(str(right) in said for size, pixels in TRAINED[1:] for right in RECORD["right"][f"{size} {pixels}"])
        assert figure(page, "test digits correct, shuffled") == f"{RECORD['carried_right']['2 shuffled']} of 547"
        page.get_by_role("button", name="Reset").click()
        assert page.get_by_role("group", name="guess").count() == 0  # it comes with the shuffled pixels
        assert page.locator(".v-paper").is_visible()


@pytest.mark.browser
def test_correct_class_is_marked(show):
    with show(PatchesExplorer(2)) as page:
        label = shown_digits()[1][2].item()
        assert page.locator(".v-right").all_inner_texts() == [f"✓ {label}"]


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 900], lambda width: width == 360))
@pytest.mark.parametrize("size", SIZES)
def test_labels_are_legible(show, width, size):
    with show(PatchesExplorer(2, size, query=3), width=width) as page:
        open_maps(page)
        assert not collisions(page)
        assert smallest(page) >= 11


@pytest.mark.browser
def test_paper_comes_first_and_each_tab_fits_one_screen(show):
    with show(PatchesExplorer(), width=736) as page:
        card, paper = page.locator("div.explorer"), page.locator(".v-paper").bounding_box()
        assert paper["width"] >= 300
        assert all(paper["y"] < control.bounding_box()["y"] for control in page.locator("input:visible").all())
        assert not page.locator(".v-maps").is_visible()
        assert card.bounding_box()["height"] <= 800
        open_maps(page)
        assert page.locator(".v-maps").is_visible()
        assert card.bounding_box()["height"] <= 800


@pytest.mark.browser
def test_another_digit_runs_the_model_once(show):
    """The digit and the drawing change together, so that the old digit is not computed in between."""
    watch = """e => { window.runs = 0; new MutationObserver((all) => { runs += all.length; })
      .observe(e.querySelector(".x-headline > b"), { childList: true }); }"""
    with show(PatchesExplorer(3, ink=[0] * 64)) as page:
        before = page.locator(".x-headline").text_content()
        page.locator("div.explorer").evaluate(watch)
        page.locator(".v-digit").nth(8).click()
        assert page.evaluate("runs") == 1
        assert page.locator(".x-headline").text_content() != before
