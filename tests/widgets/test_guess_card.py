"""A guess in a browser: chosen, set, drawn by mouse, finger and keyboard; its arithmetic; its life beside a kernel."""

import math

import pytest

from lessons_lib import guess as module
from lessons_lib.guess import predict, predict_curve, predict_number, show

pytestmark = pytest.mark.browser

PHONE_CONTEXT = {"width": 360, "has_touch": True, "is_mobile": True}


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    monkeypatch.setattr(module, "display", lambda *_: None)


def choice():
    return predict("How many change?", [1, 4, 8, 16]).card


def number(low=1, high=1000, **how):
    return predict_number("How far?", low, high, **{"log": True} | how).card


def curve():
    return predict_curve("Which way?", x=(1, 1024), y=(0, 1), xlabel="width", ylabel="weight", log="x").card


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [0, 0.0625, -1, 99.95, 12345.6, 9.87e9, 1e-4, -1e-9, -3.6e-15])
def test_numbers_are_written_as_in_python(javascript, x):
    assert javascript("guess.math", "show", x) == show(x)


def test_scales_have_round_numbers(javascript):
    assert javascript("guess.math", "ticks", 1, 1000, True) == [1, 10, 100, 1000]
    assert javascript("guess.math", "ticks", 0, 0.06, False) == pytest.approx([0, 0.02, 0.04, 0.06])
    assert javascript("guess.math", "ticks", 3, 8, True) == [3, 8]
    assert len(javascript("guess.math", "ticks", 1e-18, 1, True)) <= 8


@pytest.mark.parametrize(
    ("value", "answer", "about", "good", "remark"),
    [
        (16, 16.5, (1, 1000, True), True, "on the spot"),
        (12, 16, (1, 1000, True), True, "close, a factor of 1.3 too low"),
        (400, 16, (1, 1000, True), False, "a factor of 25 too high"),
        (0.5, 0.45, (0, 1, False), True, "close, 0.05 too high"),
        (0.1, 0.45, (0, 1, False), False, "0.35 too low"),
    ],
)
def test_how_near_a_number_is(javascript, value, answer, about, good, remark):
    about = dict(zip(("low", "high", "log"), about, strict=True))
    assert javascript("guess.math", "numberScore", value, answer, about) == {"good": good, "remark": remark}


UP = [i / 48 for i in range(49)]


@pytest.mark.parametrize(
    ("mine", "truth", "good", "words"),
    [
        (UP, UP, True, "On the spot: 0 %"),
        ([0.9 * v for v in UP], UP, True, "Close: 5 %"),
        ([v / 1.5 for v in UP], UP, True, "The right shape: 17 %"),
        ([v / 2 for v in UP], UP, False, "The right shape: 25 %"),
        (UP[::-1], UP, False, "It goes the other way: 51 %"),
        ([0.5] * 49, UP, False, "Another story: 26 %"),
        ([0.5] * 49, [0.8] * 49, False, "The right shape: 30 %"),
        ([v**6 for v in UP], UP, False, "The right direction, another shape"),
    ],
)
def test_how_near_a_curve_is(javascript, mine, truth, good, words):
    score = javascript("guess.math", "curveScore", mine, truth)
    assert score["remark"].startswith(words)
    assert score["good"] is good


def test_a_measured_curve_is_straight_between_its_points_and_level_beyond_them(javascript):
    assert javascript("guess.math", "sampled", [[0.25, 1], [0.75, 0]], 4) == [1, 1, 0.5, 0, 0]
    assert javascript("guess.math", "sampled", [[0, 2], [1, 4]], 2) == [2, 3, 4]


# --- by hand --------------------------------------------------------------------------------------------------------


def test_one_chooses_and_the_focus_goes_on(show):
    with show(choice()) as page:
        page.get_by_role("button", name="4").press("Enter")
        assert page.locator(".g-verdict").inner_text() == "You said 4. Run on, and it will be compared here."
        assert page.evaluate("document.activeElement.textContent") == "Guess again"
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name="4").is_visible()


def test_a_number_is_set_with_the_keys(show):
    with show(number(unit="nats")) as page:
        slider = page.get_by_role("slider")
        assert slider.get_attribute("aria-valuetext") == "not set yet"
        assert page.locator(".g-commit").is_disabled()
        slider.press("End")
        assert slider.get_attribute("aria-valuetext") == "1000 nats"
        slider.press("Enter")
        assert page.locator(".g-verdict strong").inner_text() == "1000 nats"


def test_the_middle_of_the_slider_may_be_meant(show):
    with show(number()) as page:
        page.get_by_role("slider").click()
        assert page.locator(".g-commit").inner_text() == "I say 32"


def test_a_curve_is_drawn_with_the_keys(show):
    with show(curve()) as page:
        pen = page.get_by_role("slider")
        pen.press("PageDown")
        assert pen.get_attribute("aria-valuetext") == "width 1: 0.4"
        for _ in range(12):
            pen.press("Shift+ArrowRight")
            pen.press("Shift+ArrowUp")
        assert page.locator(".g-mine-line").get_attribute("d").count("L") == 48
        pen.press("Enter")
        assert page.locator(".g-verdict").inner_text().startswith("Your curve is kept")


def test_a_curve_drawn_fast_with_the_mouse_has_no_holes_and_stays_on_its_axes(show):
    with show(curve()) as page:
        box = page.locator(".g-pad").bounding_box()
        page.mouse.move(box["x"] + 55, box["y"] + 150)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 60)
        page.mouse.move(box["x"] + 1200, box["y"] - 90)
        page.mouse.up()
        line = page.locator(".g-mine-line").get_attribute("d")
        assert line.count("L") == 48
        assert line.count("M") == 1
        assert "NaN" not in line
        page.locator(".g-commit").click()
        assert page.locator(".g-shown .g-mine-line").count() == 1


def test_the_right_button_draws_nothing(show):
    with show(curve()) as page:
        page.locator(".g-pad").click(button="right", position={"x": 200, "y": 90})
        assert not page.locator(".g-mine-line").get_attribute("d")


# Taller than the screen, so that a page could scroll under the finger.
TALL = "document.querySelector('main').style.padding = '300px 0 2000px'"


@pytest.mark.parametrize("start", ["pad", "pen"])
def test_a_finger_draws_without_scrolling(show, finger, start):
    """From the pen a curve may begin straight up; elsewhere it begins sideways and is then as steep as one likes."""
    with show(curve(), **PHONE_CONTEXT) as page:
        page.evaluate(TALL)
        pad, pen = (page.locator(name).bounding_box() for name in (".g-pad", ".g-pen"))
        left, middle = pen["x"] + 22, pen["y"] + 22
        first = [(left, middle - 60)] if start == "pen" else [(left + 30, middle + 50)]
        at = (left, middle) if start == "pen" else (left, middle + 50)
        right = pad["x"] + pad["width"] - 10
        finger(page, at, *first, (left + 90, middle + 40), (left + 150, middle - 60), (right, middle))
        assert page.evaluate("scrollY") == 0
        assert page.locator(".g-mine-line").get_attribute("d").count("L") == 48
        assert page.locator(".g-commit").is_enabled()


def test_a_finger_that_scrolls_past_draws_nothing(show, finger):
    with show(curve(), **PHONE_CONTEXT) as page:
        page.evaluate(TALL)
        pad = page.locator(".g-pad").bounding_box()
        x, y = pad["x"] + 180, pad["y"] + 150
        finger(page, (x, y), (x, y - 160))
        page.wait_for_function("scrollY > 50")
        assert not page.locator(".g-mine-line").get_attribute("d")


def test_targets_are_large_enough_for_a_finger_and_nothing_is_cut(show):
    long = predict("Which?", {"some hundred thousands": 1, "stays about the same": 2, "no": 3}).card
    with show(choice(), number(), curve(), long, **PHONE_CONTEXT) as page:
        small = """[...document.querySelectorAll(".guess :is(button, input, .g-pen)")].filter((e) => !e.hidden)
            .map((e) => [e.textContent, e.getBoundingClientRect().height]).filter(([, h]) => h < 43.9)"""
        assert page.evaluate(small) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_still_question_makes_room_for_the_live_one(show):
    with show(choice()) as page:
        assert page.locator(".x-still").count() == 0
        assert page.locator(".g-question").count() == 1
    with show(choice(), java_script_enabled=False) as page:
        assert page.get_by_text("How many change?").is_visible()
        assert page.locator("li").count() == 4


# --- beside a kernel ------------------------------------------------------------------------------------------------


def answered(guess, *answer):
    guess.reveal(*answer)
    return guess.card.answer


@pytest.mark.parametrize(
    ("card", "value", "answer", "words", "right"),
    [
        (choice, 1, lambda: answered(predict("?", [1, 4, 8, 16]), 4), "✓You said 4: right.", True),
        (choice, 1, lambda: answered(predict("?", [1, 4, 8, 16]), 8), "You said 4; it is 8.", False),
        (
            choice,
            1,
            lambda: answered(predict("?", [1, 4, 8, 16]), 9.5),
            "You said 4; it is 8. That is the nearest answer; precisely it is 9.5.",
            False,
        ),
        (choice, 1, lambda: answered(predict("?", [1, 4]), math.nan), "You said 4; it is not a number. None", False),
        (number, 40, lambda: answered(predict_number("?", 1, 1000, log=True), 16), "a factor of 2.5 too high.", False),
        (
            number,
            900,
            lambda: answered(predict_number("?", 1, 1000, log=True), 5000),
            "it is 5000: on the spot. That lies beyond the scale.",
            True,
        ),
        (
            curve,
            [0.25] * 49,
            lambda: answered(predict_curve("?", (1, 1024), (0, 1), xlabel="", ylabel=""), [1, 1024], [0.5, 2.0]),
            "most at width 1024: there you said 0.25; it is 1. A part of it lies beyond the axes.",
            False,
        ),
    ],
)
def test_the_card_compares_when_the_kernel_reveals(mount, card, value, answer, words, right):
    page = mount(card())
    page.evaluate("v => { model.set('value', v); }", value)
    assert "Run on" in page.locator(".g-verdict").inner_text()
    page.evaluate("a => { model.set('answer', a); }", answer())
    assert words in page.locator(".g-verdict").inner_text()
    assert (page.locator(".g-right").count() == 1) is right


def test_what_is_said_reaches_the_kernel_and_keys_stay_in_the_card(mount):
    page = mount(number())
    page.evaluate("window.keys = []; document.addEventListener('keydown', (e) => keys.push(e.key))")
    page.get_by_role("slider").press("End")
    page.keyboard.press("Enter")
    assert page.evaluate("[model.get('value'), saved, keys]") == [1000, 1, []]


def test_leaving_leaves_nothing_behind(mount):
    for card in (choice, number, curve):
        page = mount(card())
        page.evaluate("leave()")
        assert page.evaluate("[heard().length, document.querySelectorAll('.g-card').length]") == [0, 0]
        page.evaluate("document.querySelector('main').replaceChildren()")


def test_a_turned_phone_draws_the_curves_again_without_a_show(show):
    with show(curve()) as page:
        pen = page.get_by_role("slider")
        pen.press("PageUp")
        pen.press("End")
        pen.press("Enter")
        before = page.locator(".g-mine-line").get_attribute("d")
        page.set_viewport_size({"width": 400, "height": 900})
        page.wait_for_function("d => document.querySelector('.g-mine-line').getAttribute('d') !== d", arg=before)
        assert page.locator(".g-moves").count() == 0
