"""Each scaling matches transformers, and changes the frequencies that its documentation names."""

import math

import pytest
import torch
from torch.testing import assert_close

from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.attention.rope_scaling import (
    DynamicNTK,
    Llama3,
    NTKAware,
    PositionInterpolation,
    YaRN,
    yarn_attention_factor,
)

# --- parity with transformers ---------------------------------------------------------------------------------------

N_TRAINED = 64
SCALINGS = {
    "default": (None, {"rope_type": "default"}),
    "linear": (PositionInterpolation(3.0), {"rope_type": "linear", "factor": 3.0}),
    "dynamic": (DynamicNTK(3.0, N_TRAINED), {"rope_type": "dynamic", "factor": 3.0}),
    "yarn": (
        YaRN(5.0, N_TRAINED),
        {"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": N_TRAINED},
    ),
    "yarn, all options": (
        YaRN(5.0, N_TRAINED, beta_fast=7.5, beta_slow=0.7, attention_factor=1.3, truncate=False),
        {
            "rope_type": "yarn",
            "factor": 5.0,
            "original_max_position_embeddings": N_TRAINED,
            "beta_fast": 7.5,
            "beta_slow": 0.7,
            "attention_factor": 1.3,
            "truncate": False,
        },
    ),
    "yarn, mscale": (
        YaRN(5.0, N_TRAINED, attention_factor=yarn_attention_factor(5.0, 2.0) / yarn_attention_factor(5.0, 0.7)),
        {
            "rope_type": "yarn",
            "factor": 5.0,
            "original_max_position_embeddings": N_TRAINED,
            "mscale": 2.0,
            "mscale_all_dim": 0.7,
        },
    ),
    "llama3": (
        Llama3(8.0, N_TRAINED, low_freq_factor=1.5, high_freq_factor=5.0),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.5,
            "high_freq_factor": 5.0,
            "original_max_position_embeddings": N_TRAINED,
        },
    ),
}


def rotated_by_transformers(x, positions, parameters, *, base):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    n_max = N_TRAINED if parameters["rope_type"] in ("default", "dynamic") else 5 * N_TRAINED
    config = LlamaConfig(
        hidden_size=x.shape[1] * x.shape[-1],
        num_attention_heads=x.shape[1],
        max_position_embeddings=n_max,
        rope_parameters={"rope_theta": base, **parameters},
    )
    cosines, sines = LlamaRotaryEmbedding(config)(x, positions)
    return apply_rotary_pos_emb(x, x, cosines, sines)[0]


@pytest.mark.parametrize("furthest", [40, 300], ids=["as trained", "beyond"])
@pytest.mark.parametrize("name", SCALINGS)
def test_matches_transformers(name, furthest):
    scaling, parameters = SCALINGS[name]
    x = torch.randn(2, 3, 5, 22, dtype=torch.float32)
    positions = torch.randint(furthest, (2, 5))
    positions[1, 2] = furthest
    rotary = RotaryEmbedding(22, base=1000.0, scaling=scaling)
    theirs = rotated_by_transformers(x, positions, parameters, base=1000.0)
    # Measured 3e-5: transformers rounds angles of up to 300 radians to float32.
    assert_close(rotary(x, positions[:, None, :]), theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "default"])
def test_parity_test_catches_missing_scaling(name):
    _, parameters = SCALINGS[name]
    x, positions = torch.randn(2, 3, 5, 22, dtype=torch.float32), torch.arange(296, 301).expand(2, 5)
    theirs = rotated_by_transformers(x, positions, parameters, base=1000.0)
    assert not torch.allclose(RotaryEmbedding(22, base=1000.0)(x, positions[:, None, :]), theirs, atol=0.1)


# --- properties -----------------------------------------------------------------------------------------------------


def frequencies(scaling, *, d_head=22, base=1000.0, n=5):
    return RotaryEmbedding(d_head, base=base, scaling=scaling).frequencies(torch.arange(n))


def test_position_interpolation_divides_positions():
    x, positions = torch.randn(5, 14), torch.arange(0, 35, 7)
    interpolated = RotaryEmbedding(14, scaling=PositionInterpolation(7.0))(x, positions)
    assert_close(interpolated, RotaryEmbedding(14)(x, torch.arange(5)))


def test_ntk_keeps_highest_frequency_and_divides_lowest():
    ratio = frequencies(None) / frequencies(NTKAware(6.0))
    assert_close(ratio[[0, -1]], torch.tensor([1.0, 6.0]))
    assert (ratio.diff() > 0).all()


def test_dynamic_ntk_grows_with_the_sequence():
    dynamic = DynamicNTK(3.0, N_TRAINED)
    assert_close(frequencies(dynamic, n=N_TRAINED), frequencies(None), rtol=0, atol=0)
    # At twice the trained length, a factor of 3 acts as a factor of 3 * 2 - 2 = 4.
    assert_close(frequencies(dynamic, n=2 * N_TRAINED), frequencies(NTKAware(4.0)))


def test_yarn_ramp_can_end_beyond_last_pair():
    """If every pair completes a rotation in the trained length, the ramp ends beyond the last pair, d_head // 2 - 1."""
    d_head, base, n_trained, factor = 16, 100.0, 4096, 4.0
    frequencies = YaRN(factor, n_trained).frequencies(base, d_head, torch.arange(1))
    fast, slow = (d_head / 2 * math.log(n_trained / (2 * math.pi * beta)) / math.log(base) for beta in (32.0, 1.0))
    assert d_head // 2 - 1 < math.ceil(slow) < d_head - 1
    for pair, frequency in enumerate(frequencies.tolist()):
        trained = base ** (-2 * pair / d_head)
        interpolated = min(max((pair - math.floor(fast)) / (math.ceil(slow) - math.floor(fast)), 0.0), 1.0)
        assert frequency == pytest.approx(trained * (1 - interpolated) + trained / factor * interpolated)
    assert frequencies[-1] > base ** (-2 * (d_head // 2 - 1) / d_head) / factor


@pytest.mark.parametrize("scaling", [YaRN(6.0, 512), Llama3(6.0, 512)], ids=["yarn", "llama3"])
def test_high_frequencies_are_kept_and_low_frequencies_divided(scaling):
    trained, scaled = frequencies(None, d_head=46), frequencies(scaling, d_head=46)
    rotations = 512 * trained / (2 * math.pi)
    assert (rotations > 32).any()
    assert (rotations < 1).any()
    assert_close(scaled[rotations > 32], trained[rotations > 32])
    low = rotations < 0.5  # YaRN's ramp ends at an integer pair, which completes less than one rotation
    assert_close(scaled[low], trained[low] / 6.0)
    assert ((trained / scaled).diff() >= 0).all()


@pytest.mark.parametrize(
    "scaling",
    [PositionInterpolation(1.0), NTKAware(1.0), YaRN(1.0, 512), Llama3(1.0, 512)],
    ids=str,
)
def test_factor_of_one_changes_nothing(scaling):
    x = torch.randn(7, 22)
    assert_close(RotaryEmbedding(22, scaling=scaling)(x), RotaryEmbedding(22)(x))


def test_yarn_multiplies_vectors_by_attention_factor():
    x, rotary = torch.randn(7, 22), RotaryEmbedding(22, scaling=YaRN(6.0, 512))
    assert yarn_attention_factor(6.0) == pytest.approx(0.1 * math.log(6.0) + 1.0)
    assert_close(rotary(x).norm(dim=-1), yarn_attention_factor(6.0) * x.norm(dim=-1))


def test_scalings_with_equal_arguments_are_equal():
    assert RotaryEmbedding(22, scaling=YaRN(6.0, 512)) == RotaryEmbedding(22, scaling=YaRN(6.0, 512))
    assert RotaryEmbedding(22, scaling=YaRN(6.0, 512)) != RotaryEmbedding(22, scaling=YaRN(6.0, 511))
    assert hash(YaRN(6.0, 512)) == hash(YaRN(6.0, 512))


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RotaryEmbedding(2, scaling=NTKAware(2.0)), "d_head must be at least 4 for an NTK scaling"),
        (lambda: PositionInterpolation(0.5), r"factor must be finite and at least 1, got 0\.5"),
        (lambda: NTKAware(float("nan")), "factor must be finite and at least 1, got nan"),
        (lambda: DynamicNTK(2.0, 0), "n_trained must be at least 1, got 0"),
        (lambda: YaRN(2.0, 64, beta_fast=1.0, beta_slow=1.0), r"beta_fast must be finite and above 1\.0, got 1\.0"),
        (lambda: YaRN(2.0, 64, attention_factor=0.0), r"attention_factor must be finite and above 0, got 0\.0"),
        (lambda: Llama3(2.0, 64, low_freq_factor=5.0), r"high_freq_factor must be finite and above 5\.0, got 4\.0"),
    ],
)
def test_invalid_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()
