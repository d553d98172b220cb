"""Tests of guesses in a browser: choice, number and curve by mouse, touch and keyboard; arithmetic; a live kernel."""

import math

import pytest

from lessons_lib.page import guess as module
from lessons_lib.page.guess import predict, predict_curve, predict_number, show

pytestmark = pytest.mark.browser

PHONE_CONTEXT = {"width": 360, "has_touch": True, "is_mobile": True}


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    monkeypatch.setattr(module, "display", lambda *_: None)


def choice():
    return predict("How many change?", [1, 4, 8, 16]).card


TRENDS = ["falls", "stays about the same", "rises"]


def trend():
    return predict("What does the loss do?", TRENDS).card


def number(low=1, high=1000, **how):
    return predict_number("How far?", low, high, **{"log": True} | how).card


def curve():
    return predict_curve("Which way?", x=(1, 1024), y=(0, 1), xlabel="width", ylabel="weight", log="x").card


# --- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [0, 0.0625, -1, 99.95, 12345.6, 9.87e9, 1e-4, -1e-9, -3.6e-15])
def test_numbers_are_formatted_as_in_python(javascript, x):
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
def test_nearness_of_a_number_in_words(javascript, value, answer, about, good, remark):
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
def test_nearness_of_a_curve_in_words(javascript, mine, truth, good, words):
    score = javascript("guess.math", "curveScore", mine, truth)
    assert score["remark"].startswith(words)
    assert score["good"] is good


def test_measured_curve_is_interpolated_linearly_and_constant_beyond(javascript):
    assert javascript("guess.math", "sampled", [[0.25, 1], [0.75, 0]], 4) == [1, 1, 0.5, 0, 0]
    assert javascript("guess.math", "sampled", [[0, 2], [1, 4]], 2) == [2, 3, 4]


# --- by hand --------------------------------------------------------------------------------------------------------


def test_choice_moves_the_focus_to_the_next_button(show):
    with show(choice()) as page:
        page.get_by_role("button", name="4").press("Enter")
        assert page.locator(".g-verdict").inner_text() == "You said 4. Run on, and it will be compared here."
        assert page.evaluate("document.activeElement.textContent") == "Guess again"
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name="4").is_visible()


def test_number_can_be_set_by_keyboard(show):
    with show(number(unit="nats")) as page:
        slider = page.get_by_role("slider")
        assert slider.get_attribute("aria-valuetext") == "not set yet"
        assert page.locator(".g-commit").is_disabled()
        slider.press("End")
        assert slider.get_attribute("aria-valuetext") == "1000 nats"
        slider.press("Enter")
        assert page.locator(".g-verdict strong").inner_text() == "1000 nats"


def test_click_in_the_middle_of_the_slider_counts(show):
    with show(number()) as page:
        page.get_by_role("slider").click()
        assert page.locator(".g-commit").inner_text() == "I say 32"


ASKED = """window.asked = 0;
const { get } = Object.getOwnPropertyDescriptor(Element.prototype, "clientWidth");
Object.defineProperty(Element.prototype, "clientWidth", { get() {
  if (document.readyState === "loading") asked += 1;
  return get.call(this);
} });"""


def test_curve_asks_for_no_layout_while_the_page_is_read_and_fits_its_place(browser, tmp_path):
    """Asking would lay out the page above it, a fifth of a second of a slow phone."""
    page = browser.new_page(viewport={"width": 620, "height": 800})
    page.add_init_script(ASKED)
    (tmp_path / "page.html").write_text(f"<!doctype html>{curve().to_html()}", encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    drawn = "Number(document.querySelector('.g-pad svg').getAttribute('width'))"
    fits = f"{drawn} === document.querySelector('.g-ask').clientWidth"
    page.wait_for_function(fits)
    assert page.evaluate("asked") == 0
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function(fits)
    page.close()


def test_curve_can_be_drawn_by_keyboard(show):
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


def test_fast_mouse_stroke_has_no_gaps_and_stays_within_the_axes(show):
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


def test_right_mouse_button_does_not_draw(show):
    with show(curve()) as page:
        page.locator(".g-pad").click(button="right", position={"x": 200, "y": 90})
        assert not page.locator(".g-mine-line").get_attribute("d")


# Taller than the screen, so that a page could scroll under the finger.
TALL = "document.querySelector('main').style.padding = '300px 0 2000px'"


@pytest.mark.parametrize("start", ["pad", "pen"])
def test_touch_draws_without_scrolling(show, finger, start):
    """A stroke from the pen may start vertically; elsewhere it must start sideways and may be steep afterwards."""
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


def test_scrolling_touch_does_not_draw(show, finger):
    with show(curve(), **PHONE_CONTEXT) as page:
        page.evaluate(TALL)
        pad = page.locator(".g-pad").bounding_box()
        x, y = pad["x"] + 180, pad["y"] + 150
        finger(page, (x, y), (x, y - 160))
        page.wait_for_function("scrollY > 50")
        assert not page.locator(".g-mine-line").get_attribute("d")


def test_touch_targets_are_large_enough_and_nothing_is_clipped(show):
    long = predict("Which?", {"some hundred thousands": 1, "stays about the same": 2, "no": 3}).card
    with show(choice(), number(), curve(), long, **PHONE_CONTEXT) as page:
        small = """[...document.querySelectorAll(".guess :is(button, input, .g-pen)")].filter((e) => !e.hidden)
            .map((e) => [e.textContent, e.getBoundingClientRect().height]).filter(([, h]) => h < 43.9)"""
        assert page.evaluate(small) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_live_card_replaces_the_still_question(show):
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
        (trend, 0, lambda: answered(predict("?", TRENDS), "falls"), "✓You said “falls”: right.", True),
        (
            trend,
            0,
            lambda: answered(predict("?", TRENDS), "stays about the same"),
            "You said “falls”; the answer is “stays about the same”.",
            False,
        ),
        (choice, 1, lambda: answered(predict("?", [1, 4]), math.nan), "You said 4; it is not a number. None", False),
        (number, 40, lambda: answered(predict_number("?", 1, 1000, log=True), 16), "a factor of 2.5 too high.", False),
        (
            number,
            900,
            lambda: answered(predict_number("?", 1, 1000, log=True), 5000),
            "it is 5000, on the spot. That lies beyond the scale.",
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
def test_card_shows_the_comparison_after_reveal(mount, card, value, answer, words, right):
    page = mount(card())
    page.evaluate("v => { model.set('value', v); }", value)
    assert "Run on" in page.locator(".g-verdict").inner_text()
    page.evaluate("a => { model.set('answer', a); }", answer())
    assert words in page.locator(".g-verdict").inner_text()
    assert (page.locator(".g-right").count() == 1) is right


def test_answer_is_sent_to_the_kernel_and_keys_do_not_propagate(mount):
    page = mount(number())
    page.evaluate("window.keys = []; document.addEventListener('keydown', (e) => keys.push(e.key))")
    page.get_by_role("slider").press("End")
    page.keyboard.press("Enter")
    assert page.evaluate("[model.get('value'), saved, keys]") == [1000, 1, []]


def test_cleanup_removes_listeners_and_content(mount):
    for card in (choice, number, curve):
        page = mount(card())
        page.evaluate("leave()")
        assert page.evaluate("[heard().length, document.querySelectorAll('.g-card').length]") == [0, 0]
        page.evaluate("document.querySelector('main').replaceChildren()")


def test_rotated_phone_redraws_curves_without_animation(show):
    with show(curve()) as page:
        pen = page.get_by_role("slider")
        pen.press("PageUp")
        pen.press("End")
        pen.press("Enter")
        before = page.locator(".g-mine-line").get_attribute("d")
        page.set_viewport_size({"width": 400, "height": 900})
        page.wait_for_function("d => document.querySelector('.g-mine-line').getAttribute('d') !== d", arg=before)
        assert page.locator(".g-moves").count() == 0
