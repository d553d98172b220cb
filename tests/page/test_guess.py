"""Tests of guesses: valid questions and answers, values that no option covers, and the guesses of the chapters."""

import json
import math
import re
from html import unescape

import nbformat
import numpy as np
import pytest
import torch
from test_layers import ROOT

from lessons_lib.page import guess as module
from lessons_lib.page.guess import predict, predict_curve, predict_number, show

CHAPTERS = sorted(path for path in (ROOT.parent / "book").glob("[a-z]*/*.ipynb"))


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """What was displayed."""
    seen = []
    monkeypatch.setattr(module, "display", seen.append)
    return seen


def axes(**changes):
    return predict_curve("Which way?", **{"x": (1, 100), "y": (0, 5), "xlabel": "width", "ylabel": "loss"} | changes)


def test_question_is_shown_at_once_and_result_after_reveal(shown):
    guess = predict("How many change?", [1, 4, 8])
    assert (guess.card.answer, guess.value) == (None, None)
    guess.reveal(torch.tensor(8))
    card, truth = shown
    assert card is guess.card
    assert card.answer == {"at": 2, "told": "8", "note": ""}
    assert f'data-guess="{card.key}"' in truth.data
    assert "How many change? <b>8.</b>" in truth.data
    assert json.loads(unescape(re.search(r'data-answer="([^"]*)"', truth.data)[1])) == card.answer
    assert "data-off" not in truth.data


def test_guess_value_is_an_option_of_the_question():
    guess = predict("Does it?", [True, False])
    assert guess.card.about["options"] == ["yes", "no"]
    guess.card.value = 1
    assert guess.value is False
    assert repr(guess) == "ChoiceGuess('Does it?', value=False)"


def test_key_depends_on_the_question():
    keys = [predict(question, [1, 2]).card.key for question in ("Which?", "Which", "Which?")]
    assert keys[0] == keys[2] != keys[1]


# --- one of a few ---------------------------------------------------------------------------------------------------

RANGES = {"some tens": (10, 99), "some thousands": (1000, 9999), "none": 0.0}
LISTS = {"none": [0, 0, 0], "the last": [0, 0, 1]}


@pytest.mark.parametrize(
    ("options", "answer", "at"),
    [
        ([1.5, 1.75, 2], 1.7514, 1),  # rounds to it at the option's own digits
        ([1.5, 1.75, 2], np.float32(2.03), 2),
        (RANGES, torch.tensor(28.0), 0),
        (RANGES, 9999, 1),
        (RANGES, 0, 2),
        (["up", "down"], "down", 1),
        ([True, False], torch.tensor(True), 0),
        (LISTS, [False, False, True], 1),
        ({"a third": (0.3, 0.4), "not a number": math.nan}, torch.tensor(math.nan), 1),
        ({"falls": (0, 0.8), "rises": (0.8, math.inf)}, 1e9, 1),
    ],
)
def test_reveal_answer_that_is_an_option(options, answer, at):
    found, told, note = predict("Which?", options)._found(answer)
    assert (found, told, note) == (at, predict("Which?", options).card.about["options"][at], "")


@pytest.mark.parametrize(
    ("options", "answer", "at", "note"),
    [
        ([1.5, 1.75, 2], 1.63, 1, "nearest answer; precisely it is 1.63"),
        ([1, 4, 8], 1e9, 2, "precisely it is 10⁹"),
        ([1, 4, 8], -math.inf, 0, "precisely it is \u2212∞"),
        ([1, 100], 20, 1, "precisely it is 20"),  # by factors 100 is nearer, by differences 1
        (RANGES, 300, 0, "precisely it is 300"),
        ([1, 4, 8], math.nan, None, "None of the answers"),
        (["up", "down"], "sideways", None, "None of the answers"),
        (LISTS, [1, 0, 0], None, "None of the answers"),
    ],
)
def test_reveal_answer_that_is_no_option_is_shown_with_a_note(shown, options, answer, at, note):
    guess = predict("Which?", options)
    guess.reveal(answer)
    assert guess.card.answer["at"] == at
    assert note in guess.card.answer["note"]
    assert " data-off>" in shown[-1].data


@pytest.mark.parametrize(
    ("options", "answer"), [([1, 2], "two"), (["a", "b"], 1), ([1, 2], None), (LISTS, 1), ([1, 2], True)]
)
def test_reveal_answer_of_another_kind_raises(options, answer):
    with pytest.raises(TypeError, match=r"answer must be a (number|word|list), as the options are, got"):
        predict("Which?", options).reveal(answer)


@pytest.mark.parametrize("options", [[1], list(range(7)), [1, 1, 2]])
def test_predict_invalid_options_raise(options):
    with pytest.raises(ValueError, match="options must be 2 to 6"):
        predict("Which?", options)


def test_predict_empty_question_raises():
    with pytest.raises(ValueError, match="question must not be empty"):
        predict("", [1, 2])


# --- a number -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "at", "told", "note"),
    [
        (torch.tensor([0.5]), 0.5, "0.5 nats", ""),
        (7, 4, "7 nats", "beyond the scale"),
        (-1e-9, 0, "\u221210⁻⁹ nats", "beyond the scale"),
        (math.inf, 4, "∞ nats", "beyond the scale"),
        (math.nan, None, "not a number", "No place on the scale"),
    ],
)
def test_reveal_number_beyond_the_scale_is_clipped(shown, answer, at, told, note):
    guess = predict_number("How much?", 0, 4, unit="nats")
    guess.reveal(answer)
    assert guess.card.answer["at"] == at
    assert guess.card.answer["told"] == told
    assert note in guess.card.answer["note"]
    assert (" data-off>" in shown[-1].data) == bool(note)


@pytest.mark.parametrize("answer", ["1", None, True, [1, 2], torch.ones(2)])
def test_reveal_answer_that_is_no_number_raises(answer):
    with pytest.raises(TypeError, match="answer must be a number, got"):
        predict_number("How much?", 0, 4).reveal(answer)


@pytest.mark.parametrize(("low", "high", "log"), [(2, 1, False), (0, 1, True), (-1, 1, True), (0, math.inf, False)])
def test_predict_number_invalid_scale_raises(low, high, log):
    with pytest.raises(ValueError, match="low and high must be finite"):
        predict_number("How much?", low, high, log=log)


# --- a curve --------------------------------------------------------------------------------------------------------


def test_reveal_curve_accepts_tensors_and_names_ends_and_peak(shown):
    guess = axes()
    guess.reveal(torch.tensor([1, 10, 100]), torch.tensor([0.5, 4.0, 1.25]))
    assert guess.card.answer["at"] == [[1, 10, 100], [0.5, 4, 1.25]]
    assert "0.5 at width = 1; 4 at width = 10; 1.25 at width = 100." in shown[-1].data
    assert "data-off" not in shown[-1].data


@pytest.mark.parametrize(
    ("x", "y", "at"),
    [
        ([1, 10, 100], [0, 9, -1], [[1, 10, 100], [0, 5, 0]]),
        ([0.5, 1, 100], [1, 2, 3], [[1, 100], [2, 3]]),
        ([1, 2, 3], [1, math.nan, 2], [[1, 3], [1, 2]]),
        ([1, 2, 3], [1, math.inf, 2], [[1, 2, 3], [1, 5, 2]]),
        ([200, 300], [1, 2], None),
    ],
)
def test_reveal_curve_beyond_the_axes_is_clipped_or_left_out(shown, x, y, at):
    guess = axes()
    guess.reveal(x, y)
    assert guess.card.answer["at"] == at
    assert " data-off>" in shown[-1].data


def test_reveal_curve_tolerates_rounding_at_the_axes(shown):
    axes().reveal([1, 100], [5 + 1e-9, -1e-9])
    assert "data-off" not in shown[-1].data


def test_reveal_curve_is_sorted_and_thinned():
    found, *_ = axes()._found([100, 1], [2, 3])
    assert found == [[1, 100], [3, 2]]
    x = np.linspace(1, 100, 1001)
    (xs, _), *_ = axes()._found(x, np.zeros(1001))
    assert (len(xs), xs[0], xs[-1]) == (module.POINTS, 1, 100)


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1, 2, 3]), ([1], [1])])
def test_reveal_curve_x_and_y_of_different_lengths_raise(x, y):
    with pytest.raises(ValueError, match="x and y must be equally many"):
        axes().reveal(x, y)


@pytest.mark.parametrize(("x", "y"), [(1, [1, 2]), ("ab", [1, 2]), ([1, 2], ["a", "b"])])
def test_reveal_curve_values_that_are_no_numbers_raise(x, y):
    with pytest.raises(TypeError, match=r"[xy] must be a "):
        axes().reveal(x, y)


@pytest.mark.parametrize("changes", [{"x": (2, 1)}, {"x": (0, 1), "log": "x"}, {"y": (0, math.nan)}, {"log": "z"}])
def test_predict_curve_invalid_axes_raise(changes):
    with pytest.raises(ValueError, match=r"(x|y|log) must"):
        axes(**changes)


# --- what a page gets -----------------------------------------------------------------------------------------------


def test_still_contains_question_and_options():
    still = predict("How <many>?", {"one & a half": 1.5, "two": 2}).card.to_html()
    assert "How &lt;many&gt;?" in still
    assert "<li>one &amp; a half</li><li>two</li>" in still
    assert "Between 0 and 4 nats." in predict_number("?", 0, 4, unit="nats").card.to_html()
    assert "loss over width" in axes().card.to_html()


def test_question_text_does_not_end_the_script():
    state = predict("</script><b>", ["</script>", "<!--"]).card.to_html().rpartition("<script>")[2]
    assert state.count("</script>") == 1
    assert "<!--" not in state


def test_mimebundle_holds_the_widget_and_the_page():
    data, _ = predict("Which?", [1, 2]).card._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert data["text/plain"] == "GuessCard('choice', 'Which?')"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (0.0625, "0.0625"),
        (-1.005, "\u22121"),
        (99.95, "100"),
        (12345.6, "12346"),
        (9.87e9, "9.9\u00d710⁹"),
        (1e-4, "10⁻⁴"),
        (-3.55e-15, "\u22123.6\u00d710⁻¹⁵"),
    ],
)
def test_show_formats_numbers(number, text):
    assert show(number) == text


# --- in the book ----------------------------------------------------------------------------------------------------


def cells(notebook):
    return nbformat.read(notebook, as_version=4).cells


@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda path: path.stem)
def test_chapters_questions_have_own_cells_and_later_reveals(notebook):
    asking = 0
    code = [cell for cell in cells(notebook) if cell.cell_type == "code"]
    for i, cell in enumerate(code):
        asked = re.findall(r"^(\w+) = predict", cell.source, re.MULTILINE)
        asked = asked or re.findall(r"^(\w+) = (?:[\[({].*\n?.*)?predict", cell.source, re.MULTILINE)
        asked = asked or re.findall(r"^(\w*guess\w*) = [\[({]", cell.source, re.MULTILINE)
        if not re.search(r"(?<![\w.])predict(_number|_curve)?\(", cell.source):
            continue
        asking += 1
        assert asked, cell.source
        assert "remove-input" in cell.metadata.get("tags", []), cell.source
        later = "\n".join(other.source for other in code[i + 1 :])
        for name in asked:
            assert re.search(rf"\b({name}|guess)\.reveal\(", later), f"{name} is never revealed"
    text = "\n".join(cell.source for cell in cells(notebook) if cell.cell_type == "markdown")
    assert asking > 2
    assert "Guess first" not in text, "a question that cannot be answered in the page"


@pytest.mark.parametrize("notebook", CHAPTERS, ids=lambda path: path.stem)
def test_chapters_have_a_curve_to_draw(notebook):
    assert any("predict_curve(" in cell.source for cell in cells(notebook))
