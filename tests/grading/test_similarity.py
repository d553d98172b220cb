"""Tests of grading.similarity: notes on identical answers and shortcut functions."""

import nbformat
import pytest

pytest.importorskip("nbgrader")
from pathlib import Path

from students import BACKWARD, SOFTMAX, answers

from grading.similarity import same_answers, shortcut_notes

ROOT = Path(__file__).resolve().parents[2]
RENAMED = BACKWARD.replace("back_to_p", "dp").replace("root", "r").replace("    p = ", "    # the weights\n    p = ")
OTHER = BACKWARD.replace("return back_to_s", "grad = 1.0\n    return grad * back_to_s")
LONG = " ".join(f"word{i}" for i in range(30))


@pytest.fixture(scope="module")
def released():
    return nbformat.read(ROOT / "book/exercises/scaling/scaling.ipynb", as_version=4)


@pytest.fixture(scope="module")
def master():
    return nbformat.read(ROOT / "assignments/source/scaling/scaling.ipynb", as_version=4)


def test_same_answers_ignores_names_layout_and_comments(released):
    handed_in = {"ada": answers(), "bob": answers(backward=RENAMED), "cyd": answers(backward=OTHER)}
    same = same_answers({name: hands_in(released) for name, hands_in in handed_in.items()}, released)
    assert "backward is the same as that of bob" in same["ada"]
    assert "backward is the same as that of ada" in same["bob"]
    assert not [note for notes in same.values() for note in notes if "cyd" in note and note.startswith("backward")]
    assert not [note for notes in same.values() for note in notes if note.startswith("scale ")], "too short to compare"


def test_same_answers_compares_words_of_texts(released):
    texts = {
        "ada": LONG,
        "bob": LONG.upper().replace(" ", ",\n"),
        "cyd": LONG + " and more",
        "dan": "It is 4.",
        "eve": "It is 4.",
    }
    same = same_answers({name: answers(moments=text)(released) for name, text in texts.items()}, released)
    noted = {name for name, notes in same.items() if any(note.startswith("moments") for note in notes)}
    assert noted == {"ada", "bob"}


def test_same_answers_names_three_students(released):
    same = same_answers({name: answers(moments=LONG)(released) for name in "abcde"}, released)
    assert "moments is the same as that of b, c, d and 1 more" in same["a"]


@pytest.mark.parametrize(("n_same", "n", "noted"), [(5, 9, True), (6, 9, False), (7, 70, True), (8, 70, False)])
def test_same_answers_ignores_common_answers(n_same, n, noted, released):
    other = answers(moments=LONG)(released)
    class_of = {f"{i:02}": other if i < n_same else released for i in range(n)}
    assert bool(same_answers(class_of, released)) is noted


def test_same_answers_ignores_untouched_answers(released):
    assert same_answers({"ada": released, "bob": released}, released) == {}


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("def stable_softmax(s, t):\n    return torch.softmax(s / t, -1)", "softmax uses softmax"),
        ("def stable_softmax(s, t):\n    return getattr(torch, 'softmax')(s / t, -1)", "softmax uses softmax"),
        (
            "import lessons_lib.attention.softmax as l\ndef stable_softmax(s, t):\n    return l.stable(s / t)",
            "softmax uses lessons_lib, softmax",
        ),
        ("def softmax(s):\n    return s\ndef stable_softmax(s, t):\n    return softmax(s / t)", None),
        (SOFTMAX, None),
        ("def stable_softmax(", None),
    ],
)
def test_shortcut_notes_name_shortcut_functions(text, noted, released, master):
    assert shortcut_notes(answers(softmax=text)(released), master) == ([noted] if noted else [])


def test_shortcut_notes_name_autograd(released, master):
    text = "def attention_backward(q, k, v, g):\n    return torch.func.vjp(lambda *a: a, q, k, v)[1](g)"
    assert shortcut_notes(answers(backward=text)(released), master) == ["backward uses vjp"]


def test_shortcut_notes_are_empty_for_model_answers(master):
    assert shortcut_notes(master, master) == []
