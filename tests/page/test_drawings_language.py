"""Tests of the drawings in ``language``: parts of the loss, shifted targets, cuts before sampling, merges."""

import math

import pytest
import torch
from drawn import words

from lessons_lib.generation import top_k_top_p_mask
from lessons_lib.page import drawings

TRUTH = [0.7, 0.2, 0.1]
MODELS = {"the truth": TRUTH, "all alike": [1 / 3] * 3, "too sure": [0.96, 0.02, 0.02]}
FEW = [0.6, 0.38, *[0.02 / 22] * 22]
MANY = [0.1, *[0.05] * 17, *[0.05 / 6] * 6]
CUTS = {"top_k": 4, "top_p": 0.9, "min_p": 0.1}
DRAWINGS = {
    "loss_parts": drawings.loss_parts(TRUTH, MODELS),
    "loss_parts of the truth alone": drawings.loss_parts([0.5, 0.5], {"the truth": [0.5, 0.5]}),
    "shifted_targets": drawings.shifted_targets(),
    "shifted_targets of three": drawings.shifted_targets(["a", "cat", "sleeps"]),
    "shifted_targets of six": drawings.shifted_targets(["the", "queen", "that", "dogs", "follow", "smiles"]),
    "sampling_cuts": drawings.sampling_cuts({"after the queens": FEW, "after a": MANY}, **CUTS),
    "sampling_cuts of one": drawings.sampling_cuts({"one": FEW}, **CUTS, n_bars=24),
    "byte_pair_steps": drawings.byte_pair_steps([[*" island"], [*" isl", "an", "d"], [*" isl", "and"], [" island"]]),
    "byte_pair_steps of a long word": drawings.byte_pair_steps([[*"constitutionally"], [*"constitu", "tionally"]]),
}


def test_loss_parts_shows_the_cross_entropy_of_each_model():
    drawing = DRAWINGS["loss_parts"]
    entropy = -sum(p * math.log(p) for p in TRUTH)
    assert f"{entropy:.2f} nats" in drawing.alt
    for name, model in MODELS.items():
        loss = -sum(p * math.log(q) for p, q in zip(TRUTH, model, strict=True))
        assert {name, f"{loss:.2f}"} <= set(words(drawing))
        assert f"{name}, loss {loss:.2f}, of which {loss - entropy:.2f} is D" in drawing.alt
    assert drawing.to_html().count('class="value filled"') == len(MODELS)
    assert drawing.to_html().count('class="query filled"') == len(MODELS) - 1


def test_shifted_targets_are_the_inputs_one_later():
    said = words(DRAWINGS["shifted_targets of six"])
    pairs = list(zip(said[3::2], said[4::2], strict=True))
    assert pairs == [
        ("queen", "the"),
        ("that", "queen"),
        ("dogs", "that"),
        ("follow", "dogs"),
        ("smiles", "follow"),
    ]
    assert "to output 3 from input the and queen and that: its target is dogs" in DRAWINGS["shifted_targets of six"].alt


@pytest.mark.parametrize("row", [FEW, MANY])
def test_sampling_cuts_count_what_the_sampler_keeps(row):
    drawing = drawings.sampling_cuts({"row": row}, **CUTS)
    logits = torch.tensor(row).double().log()
    top_p = int(top_k_top_p_mask(logits, top_p=0.9).sum())
    min_p = sum(p >= 0.1 * max(row) for p in row)
    assert [text for text in words(drawing) if text.startswith("keeps")] == [f"keeps {n}" for n in (4, top_p, min_p)]
    assert f"top-p with p = 0.9 keeps {top_p}, min-p with p = 0.1 keeps {min_p}" in drawing.alt


def test_byte_pair_steps_count_the_pieces():
    drawing = DRAWINGS["byte_pair_steps"]
    assert [text for text in words(drawing) if "piece" in text] == ["7 pieces", "6 pieces", "5 pieces", "1 piece"]
    assert "\u2423 i s l an d" in drawing.alt
    assert drawing.alt.endswith("begins as 7 pieces and ends as 1.")


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawings.loss_parts(TRUTH, {}), "models must be between 1 and 4, got 0"),
        (lambda: drawings.loss_parts(TRUTH, {"two": [0.5, 0.5]}), "'two' must be 3 positive probabilities"),
        (lambda: drawings.loss_parts([1.0, 0.0], {"one": [0.5, 0.5]}), "'truth' must be 2 positive probabilities"),
        (lambda: drawings.loss_parts(TRUTH, {"sum": [0.5, 0.5, 0.5]}), "with sum 1"),
        (lambda: drawings.shifted_targets(["a", "cat"]), "words must be between 3 and 6, got 2"),
        (lambda: drawings.shifted_targets(["a"] * 7), "words must be between 3 and 6, got 7"),
        (lambda: drawings.sampling_cuts({}, **CUTS), "rows must be 1 or 2, got 0"),
        (lambda: drawings.sampling_cuts({"one": FEW}, top_k=0, top_p=0.9, min_p=0.1), "top_k in 1 .. n_bars"),
        (lambda: drawings.sampling_cuts({"one": FEW[:8]}, **CUTS), "'one' must be at least 16 probabilities"),
        (lambda: drawings.byte_pair_steps([["a", "b"]]), "steps must be 2 to 7 divisions"),
        (lambda: drawings.byte_pair_steps([["a", "b"], ["a", "b"]]), "fewer and fewer pieces"),
        (lambda: drawings.byte_pair_steps([["a", "b"], ["ac"]]), "fewer and fewer pieces"),
    ],
)
def test_invalid_arguments_raise(call, says):
    with pytest.raises(ValueError, match=says):
        call()
