"""Tests of the drawings in ``block``: the logit lens, units of a feed-forward layer, gradients behind a norm."""

import math
import re

import pytest
import torch
from drawn import words

from lessons_lib.foundations.norms import RMSNorm
from lessons_lib.page import drawings

READINGS = [(0.02, 0.93), (0.11, 0.8), (0.4, 0.5), (0.9, 0.05), (1.0, 0.0)]
KEYS, VALUES = [(1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0)], [0.5, 0.5, -0.5, -0.5]
DRAWINGS = {
    "logit_lens": drawings.logit_lens(READINGS, ("sees, follows ...", "see, follow ...")),
    "logit_lens of one block": drawings.logit_lens([(0.5, 0.5), (0.0, 1.0)]),
    "feedforward_units": drawings.feedforward_units(KEYS, VALUES, (1.0, -1.0)),
    "feedforward_units of one": drawings.feedforward_units([(0.25, -1.5)], [-0.75], (-2.0, -2.0)),
    "norm_gradients": drawings.norm_gradients(),
    "norm_gradients steep": drawings.norm_gradients(25.0, 2.2),
    "norm_gradients flat": drawings.norm_gradients(15.0, 2.5),
}


def test_logit_lens_shows_both_probabilities_after_each_block():
    said = words(DRAWINGS["logit_lens"])
    assert [word for word in said if word.endswith("%")] == [f"{p:.0%}" for pair in READINGS for p in pair]
    assert re.findall(r"\d+%", DRAWINGS["logit_lens"].alt) == [f"{p:.0%}" for pair in READINGS for p in pair]
    assert said.count("+") == 4
    assert said.count("block 4") == 2


@pytest.mark.parametrize("readings", [[(0.5, 0.5)], [(0.5, 0.4)] * 6, [(0.7, 0.4)] * 2, [(-0.1, 0.4)] * 2])
def test_logit_lens_invalid_readings_raise(readings):
    with pytest.raises(ValueError, match="readings must be 2 to 5 pairs of probabilities"):
        drawings.logit_lens(readings)


def test_logit_lens_invalid_names_raise():
    with pytest.raises(ValueError, match="names must be two"):
        drawings.logit_lens(READINGS, ("one",))


@pytest.mark.parametrize("x", [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)])
def test_feedforward_units_shows_activations_and_their_sum(x):
    drawing = drawings.feedforward_units(KEYS, VALUES, x)
    activations = (torch.tensor(KEYS) @ torch.tensor(x)).relu()
    total = (activations * torch.tensor(VALUES)).sum().item()
    shown = [float(word.split(" = ")[1]) for word in words(drawing) if word.startswith("ReLU")]
    assert shown == activations.tolist()
    assert words(drawing)[6].replace("\u2212", "-") == f"{total:.3g}"
    assert f"lead to the sum {total:.3g}" in drawing.alt


@pytest.mark.parametrize(
    ("keys", "values", "x"),
    [([], [], (1.0, 1.0)), (KEYS, VALUES[:3], (1.0, 1.0)), ([(1.0,)], [1.0], (1.0, 1.0)), (KEYS, VALUES, (1.0,))],
)
def test_feedforward_units_invalid_arguments_raise(keys, values, x):
    with pytest.raises(ValueError, match="keys must be 1 to 5 pairs"):
        drawings.feedforward_units(keys, values, x)


@pytest.mark.parametrize("factor", [2.0, 2.4])
def test_norm_gradients_shows_lengths_of_the_gradients_of_an_rms_norm(factor):
    radial, tangent = (torch.tensor(v, dtype=torch.float64) for v in ((0.6, 0.8), (-0.8, 0.6)))
    norm = RMSNorm(2, eps=0.0).double()
    lengths = []
    for times in (1.0, factor):
        x = (1.6 * math.sqrt(2) * times * radial).requires_grad_()  # the root mean square of the drawing is 1.6
        (norm(x) * (0.6 * radial + 1.5 * tangent)).sum().backward()
        assert abs(x.grad @ x.detach()) < 1e-12
        lengths.append(f"{x.grad.norm():.2f}")
    drawing = drawings.norm_gradients(20.0, factor)
    assert [word[-4:] for word in words(drawing) if word.startswith("at ") and ":" in word] == lengths
    assert re.findall(r"\d\.\d\d", drawing.alt) == lengths


@pytest.mark.parametrize(("angle", "factor"), [(10.0, 2.0), (30.0, 2.0), (20.0, 1.0), (20.0, 3.0)])
def test_norm_gradients_invalid_arguments_raise(angle, factor):
    with pytest.raises(ValueError, match=r"angle must be in 15 \.\. 25"):
        drawings.norm_gradients(angle, factor)
