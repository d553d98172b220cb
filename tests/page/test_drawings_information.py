"""Tests of the drawings in ``information``: questions, levels, temperatures."""

import re

import pytest
import torch
from drawn import words

from lessons_lib.analysis.information import effective_count, entropy
from lessons_lib.attention.softmax import softmax
from lessons_lib.page import drawings
from lessons_lib.page.drawings.information import _level_lines

DRAWINGS = {
    "yes_no_questions": drawings.yes_no_questions(),
    "yes_no_questions of two": drawings.yes_no_questions(["cat", "mat"]),
    "yes_no_questions of five": drawings.yes_no_questions("ABCDE"),
    "score_and_entropy_levels": drawings.score_and_entropy_levels(),
    "score_and_entropy_levels of two": drawings.score_and_entropy_levels((0, 3.5, -1), (0.1, 10)),
    "weights_by_temperature": drawings.weights_by_temperature(),
    "weights_by_temperature of two": drawings.weights_by_temperature((-2.5, 1.25), (0.3, 7)),
}


@pytest.mark.parametrize(("labels", "mean"), [("AB", "1"), ("ABC", "1.5"), ("ABCD", "1.75"), ("ABCDE", "1.875")])
def test_yes_no_questions_average_is_the_entropy_in_bits(labels, mean):
    drawing = drawings.yes_no_questions(labels)
    said = words(drawing)
    weights = torch.tensor([2.0**-n for n in [*range(1, len(labels)), len(labels) - 1]])
    assert float(mean) == pytest.approx(entropy(weights).item() / torch.tensor(2.0).log().item())
    assert f"average number of questions: {mean}" in said
    assert f"{mean} on average" in drawing.alt
    assert [text for text in said if text.startswith("question")] == [
        f"question {i + 1}: is it {label}?" for i, label in enumerate(labels[:-1])
    ]
    widths = [float(x) for x in re.findall(r'<rect [^>]*width="([\d.]+)"[^>]*class="key filled"', drawing.to_html())]
    assert [width + 1 for width in widths] == pytest.approx([394 * p for p in weights.tolist()], abs=0.1)


@pytest.mark.parametrize("scores", [(2.0, 1.0, 0.0), (0.0, 3.0, 1.0)])
@pytest.mark.parametrize("temperature", [0.25, 1.0, 5.0])
def test_level_lines_have_the_same_sum_of_score_and_entropy(scores, temperature):
    row = torch.tensor(scores, dtype=torch.float64)
    largest = temperature * (row / temperature).logsumexp(-1)
    for line in _level_lines(row, temperature):
        weights = torch.stack(line)
        losses = largest - (weights @ row + temperature * entropy(weights))
        assert losses.max() - losses.min() < 0.02
        assert min(abs(losses.mean() - loss) for loss in (0.1, 0.4, 0.9)) < 0.02


def test_score_and_entropy_levels_marks_the_softmax():
    drawing = DRAWINGS["score_and_entropy_levels"]
    said = words(drawing)
    for t in (0.5, 1.0, 4.0):
        p = softmax(torch.tensor([2.0, 1.0, 0.0]), temperature=t).tolist()
        assert ", ".join(f"{100 * x:.0f}%" for x in p) in said
        assert f"at temperature {t:g} the softmax has the weights {', '.join(f'{x:.2f}' for x in p)}" in drawing.alt
    assert [said.count(text) for text in ("score 2", "1", "0")] == [3, 3, 3]
    assert drawing.to_html().count('class="output filled"') == 3
    assert "&lt;1%, 100%, &lt;1%" in words(DRAWINGS["score_and_entropy_levels of two"])


def test_weights_by_temperature_draws_each_weight():
    scores, temperatures = [2.0, 1.5, 0.5, 0.0, -1.0], [0.1, 0.5, 1.0, 3.0, 30.0]
    drawing = DRAWINGS["weights_by_temperature"]
    p = torch.stack([softmax(torch.tensor(scores), temperature=t) for t in temperatures])
    widths = re.findall(r'<rect [^>]*width="([\d.]+)"[^>]*class="value filled"', drawing.to_html())
    drawn = torch.tensor([float(width) for width in widths]).view(5, 5)
    longest = 320 / 5 - 8
    torch.testing.assert_close(drawn, (longest * p).clamp(min=0.8), rtol=0, atol=0.06)
    said = words(drawing)
    assert [text for text in said if text in ("1.0", "2.2", "3.4", "4.7", "5.0")] == [
        f"{count:.1f}" for count in effective_count(p).tolist()
    ]
    assert {"score 2", "1.5", "0.5", "0", "\u22121"} <= set(said)
    assert f"at 3 they are {', '.join(f'{x:.2f}' for x in p[3].tolist())}, effective count 4.7" in drawing.alt


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.yes_no_questions("A"), "labels must be between 2 and 5, got 1"),
        (lambda: drawings.yes_no_questions("ABCDEF"), "labels must be between 2 and 5, got 6"),
        (lambda: drawings.score_and_entropy_levels((1, 2)), "three different numbers at most 8 apart, got \\[1, 2\\]"),
        (lambda: drawings.score_and_entropy_levels((1, 2, 2)), "three different numbers"),
        (lambda: drawings.score_and_entropy_levels((1, 2, 20)), "three different numbers"),
        (lambda: drawings.score_and_entropy_levels(temperatures=(1,)), "two or three numbers between 0.1 and 10"),
        (lambda: drawings.score_and_entropy_levels(temperatures=(0.01, 1)), "two or three numbers between 0.1 and 10"),
        (lambda: drawings.weights_by_temperature((1,)), "scores must be between 2 and 6"),
        (lambda: drawings.weights_by_temperature((1, 2), (1,)), "temperatures between 2 and 5 positive numbers"),
        (lambda: drawings.weights_by_temperature((1, 2), (0, 1)), "temperatures between 2 and 5 positive numbers"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
