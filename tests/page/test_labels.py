"""Tests of labels at the line: beside their own line, across no other, with the axes as they are when drawn."""

from itertools import combinations, pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from lessons_lib.page.labels import label_lines
from lessons_lib.page.palette import COLOURS


@pytest.fixture(autouse=True)
def no_window():
    mpl.use("Agg")
    yield
    plt.close("all")


X = np.linspace(0, 10, 31)
APART = {"rising": X, "falling": 10 - X, "level": 0 * X + 12, "a curve with a long name": 20 - (X - 5) ** 2 / 10}
CLOSE = {"first": X, "second": X + 0.2, "third": X + 0.4, "fourth": X + 0.6}


def labelled(curves):
    _, ax = plt.subplots(figsize=(4.4, 2.7), layout="constrained")
    for name, y in curves.items():
        ax.plot(X, y, label=name, color=COLOURS[len(ax.lines)])
    return label_lines(ax)


def boxes(ax):
    """Where the labels and the lines are, on the canvas."""
    ax.figure.canvas.draw()
    lines = {line.get_label(): line.get_transform().transform(line.get_xydata()) for line in ax.lines}
    for name, corners in lines.items():
        lines[name] = np.concatenate([np.linspace(a, b, 50) for a, b in pairwise(corners)])
    return {text.get_text(): text.get_window_extent() for text in ax.texts}, lines


def between(box, dots):
    """The distance of a box from the nearest dot."""
    beyond = np.maximum([box.x0, box.y0] - dots, dots - [box.x1, box.y1])
    return np.linalg.norm(np.maximum(beyond, 0), axis=1).min()


def assert_told_apart(ax):
    labels, lines = boxes(ax)
    assert set(labels) <= set(lines)
    for name, box in labels.items():
        assert 0 < between(box, lines[name]) < 15
        assert all(between(box, dots) > between(box, lines[name]) for other, dots in lines.items() if other != name)
        assert ax.bbox.x0 <= box.x0 < box.x1 <= ax.bbox.x1
        assert ax.bbox.y0 <= box.y0 < box.y1 <= ax.bbox.y1
    assert not any(a.overlaps(b) for a, b in combinations(labels.values(), 2))


def test_label_is_beside_its_own_line_and_crosses_none():
    ax = labelled(APART)
    assert [text.get_text() for text in ax.texts] == list(APART)
    assert_told_apart(ax)


def test_labels_follow_changes_of_the_axes():
    ax = labelled(APART)
    before, _ = boxes(ax)
    ax.set(ylim=(-10, 40))
    assert_told_apart(ax)
    after, _ = boxes(ax)
    assert all(before[name].bounds != after[name].bounds for name in before)


def test_vertical_line_has_a_label():
    _, ax = plt.subplots(figsize=(4.4, 2.7), layout="constrained")
    ax.plot(X, X, label="rising")
    ax.axvline(7, label="here")
    assert_told_apart(label_lines(ax))


def test_close_curves_are_labelled_at_their_ends():
    ax = labelled(CLOSE)
    labels, lines = boxes(ax)
    assert all(box.x0 > ax.bbox.x1 for box in labels.values())
    assert all(box.x1 <= ax.figure.bbox.x1 for box in labels.values())
    assert sorted(labels, key=lambda name: labels[name].y0) == list(CLOSE)
    assert not any(a.overlaps(b) for a, b in combinations(labels.values(), 2))
    middle = np.mean([box.y0 + box.height / 2 for box in labels.values()])
    assert middle == pytest.approx(np.mean([dots[-1, 1] for dots in lines.values()]), abs=1)


def test_end_of_a_curve_is_on_the_right_in_either_direction():
    _, ax = plt.subplots(figsize=(4.4, 2.7), layout="constrained")
    for name, y in CLOSE.items():
        ax.plot(X[::-1], y[::-1], label=name)
    labels, lines = boxes(label_lines(ax))
    ends = np.mean([dots[dots[:, 0].argmax(), 1] for dots in lines.values()])
    assert np.mean([box.y0 + box.height / 2 for box in labels.values()]) == pytest.approx(ends, abs=1)


def test_curves_with_close_ends_have_a_legend():
    ax = labelled({name: (y - X) * (10 - X) / 10 for name, y in CLOSE.items()} | {"hump": 5 * np.sin(X) * (10 - X)})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*CLOSE, "hump"]
    assert not ax.texts


def test_labels_avoid_unlabelled_lines():
    _, ax = plt.subplots(figsize=(4.4, 2.7), layout="constrained")
    ax.plot(X, 0 * X, label="level")
    ax.plot(X, 0 * X + 0.2)
    label_lines(ax)
    labels, lines = boxes(ax)
    assert list(labels) == ["level"]
    assert min(between(labels["level"], dots) for dots in lines.values()) > 0


@pytest.mark.parametrize("colour", COLOURS)
def test_label_has_enough_contrast(colour):
    _, ax = plt.subplots()
    ax.plot(X, X, label="a", color=colour)
    rgb = np.array(to_rgb(label_lines(ax).texts[0].get_color()))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    assert 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05) >= 4.5
