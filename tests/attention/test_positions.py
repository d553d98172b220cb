"""Position encodings: parity with the papers' formulas and other libraries' code, and invariances."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from lessons_lib.attention.positions import (
    ROPE_BASE,
    AlibiBias,
    LearnedPositions,
    RotaryEmbedding,
    change_pairing,
    sinusoidal,
)
from lessons_lib.transformer.configuration import GPTConfig

seeds = st.integers(0, 2**31)
pairings = st.sampled_from(["half", "interleaved"])


def rotated_by_hand(x, positions, *, base=10_000.0, pairing="half"):
    """Rotate one pair at a time, as in the definition."""
    d = x.shape[-1]
    out = torch.empty_like(x)
    for row, position in enumerate(positions.tolist()):
        for i in range(d // 2):
            angle = position * base ** (-2 * i / d)
            a, b = (i, i + d // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            out[..., row, a] = x[..., row, a] * math.cos(angle) - x[..., row, b] * math.sin(angle)
            out[..., row, b] = x[..., row, a] * math.sin(angle) + x[..., row, b] * math.cos(angle)
    return out


# --- sinusoidal -----------------------------------------------------------------------------------------------------


def test_sinusoidal_equals_formula():
    n, d = 53, 14
    table = sinusoidal(n, d)
    assert table.shape == (n, d)
    for t in range(n):
        for i in range(d // 2):
            angle = t / 10_000 ** (2 * i / d)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_products_depend_on_distance_only():
    n, d = 211, 34
    products = sinusoidal(n, d) @ sinusoidal(n, d).T
    frequencies = 10_000.0 ** (-torch.arange(0, d, 2) / d)
    distances = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    assert_close(products, torch.cos(distances[..., None] * frequencies).sum(-1))


def test_sinusoidal_has_default_dtype_and_is_rounded_once():
    exact = sinusoidal(1009, 6)
    torch.set_default_dtype(torch.float32)
    assert_close(sinusoidal(1009, 6), exact.float(), rtol=0, atol=0)


# --- learned --------------------------------------------------------------------------------------------------------


def test_learned_positions_match_embedding():
    ours, theirs = LearnedPositions(11, 3), nn.Embedding(11, 3)
    theirs.load_state_dict(ours.state_dict())
    positions = torch.randint(11, (2, 5))
    assert_close(ours(positions), theirs(positions), rtol=0, atol=0)
    assert ours(torch.arange(11)).shape == (11, 3)


def test_learned_positions_use_uint8_as_indices():
    learned = LearnedPositions(300, 3)  # more positions than a uint8 can index
    positions = torch.tensor([[1, 0, 200], [0, 1, 1]])
    assert_close(learned(positions.to(torch.uint8)), learned(positions), rtol=0, atol=0)


def test_learned_positions_have_small_initial_values():
    assert 0.018 < LearnedPositions(1009, 7).weight.std().item() < 0.022


# --- rotary: definition and properties ------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rotary_equals_definition(batch, pairing):
    x, positions = torch.randn(*batch, 5, 14), torch.tensor([0, 1, 7, 3, 1000])
    rotary = RotaryEmbedding(14, base=500.0, pairing=pairing)
    assert_close(rotary(x, positions), rotated_by_hand(x, positions, base=500.0, pairing=pairing))
    assert_close(rotary(x), rotated_by_hand(x, torch.arange(5), base=500.0, pairing=pairing))


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_partial_rotary_rotates_the_first_coordinates_only(pairing):
    x, k, positions = torch.randn(2, 3, 5, 14), torch.randn(2, 1, 5, 14), torch.tensor([3, 0, 7, 1, 20])
    partial = RotaryEmbedding(14, base=500.0, pairing=pairing, d_rotary=6)
    expected = [
        torch.cat([rotated_by_hand(each[..., :6], positions, base=500.0, pairing=pairing), each[..., 6:]], dim=-1)
        for each in (x, k)
    ]
    assert_close(partial(x, positions), expected[0])
    assert_close(partial.process_qk(x, k, positions), tuple(expected))
    assert RotaryEmbedding(14, d_rotary=14)(x).equal(RotaryEmbedding(14)(x))
    assert len(partial.frequencies(positions)) == 3


def test_rotary_accepts_positions_per_sequence():
    x, positions = torch.randn(2, 3, 5, 14), torch.randint(100, (2, 5))
    rotary = RotaryEmbedding(14)
    batched = rotary(x, positions[:, None, :])
    assert_close(batched, torch.stack([rotary(x[b], positions[b]) for b in range(2)]))


@given(
    query_at=st.integers(0, 10**5),
    key_at=st.integers(0, 10**5),
    shift=st.integers(0, 10**5),
    pairing=pairings,
    seed=seeds,
)
def test_rotary_scores_depend_on_distance_only(query_at, key_at, shift, pairing, seed):
    torch.manual_seed(seed)
    q, k, rotary = torch.randn(1, 22), torch.randn(1, 22), RotaryEmbedding(22, pairing=pairing)

    def score(offset):
        return rotary(q, torch.tensor([query_at + offset])) @ rotary(k, torch.tensor([key_at + offset])).mT

    # An angle of 2e5 radians is rounded by 3e-11 in float64; a score is a sum of 22 products of size 1.
    assert_close(score(shift), score(0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("start", [0, 1_000, 100_000])
def test_rotary_scores_depend_on_distance_only_in_float32(start):
    q, k = torch.randn(1, 64, dtype=torch.float32), torch.randn(1, 64, dtype=torch.float32)
    rotary = RotaryEmbedding(64)

    def score(q_, k_):
        return rotary(q_, torch.tensor([start + 5])) @ rotary(k_, torch.tensor([start + 2])).mT

    at_start_in_double = rotary(q.double(), torch.tensor([5])) @ rotary(k.double(), torch.tensor([2])).mT
    # Measured 2e-6; with angles in float32 8e-4 at 1e5, with angles in bfloat16 1.4 at 1000.
    assert_close(score(q, k).double(), at_start_in_double, rtol=0, atol=5e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    x, positions, rotary = torch.randn(5, 22).to(dtype), torch.randint(10**5, (5,)), RotaryEmbedding(22)
    assert_close(rotary(x, positions), rotary(x.float(), positions).to(dtype), rtol=0, atol=0)


@given(pairing=pairings, base=st.floats(2.0, 1e6), seed=seeds)
def test_rotary_preserves_norm(pairing, base, seed):
    torch.manual_seed(seed)
    x, positions = torch.randn(2, 5, 14), torch.randint(10**5, (5,))
    assert_close(RotaryEmbedding(14, base=base, pairing=pairing)(x, positions).norm(dim=-1), x.norm(dim=-1))


def test_rotary_at_position_zero_and_at_fractions():
    x, rotary = torch.randn(1, 14), RotaryEmbedding(14)
    assert_close(rotary(x), x, rtol=0, atol=0)
    twice = rotary(rotary(x, torch.tensor([0.25])), torch.tensor([0.5]))
    assert_close(twice, rotary(x, torch.tensor([0.75])))


def test_rotary_is_periodic_in_wavelength():
    rotary, x = RotaryEmbedding(2), torch.randn(1, 2)
    assert_close(rotary(x, torch.tensor([2 * math.pi])), x)  # the highest frequency is one radian per token


def test_rotary_embeddings_with_equal_arguments_are_equal():
    assert RotaryEmbedding(22) == RotaryEmbedding(22, base=ROPE_BASE) != RotaryEmbedding(22, base=500.0)
    assert hash(RotaryEmbedding(22)) == hash(RotaryEmbedding(22))


# --- rotary: pairings -----------------------------------------------------------------------------------------------


@given(h=st.sampled_from([1, 2, 5]), half=st.integers(1, 4), seed=seeds)
def test_change_pairing_preserves_scores(h, half, seed):
    torch.manual_seed(seed)
    d, n, width = 2 * half, 7, 3
    x, w_q, w_k = torch.randn(n, width), torch.randn(h * d, width), torch.randn(h * d, width)

    def scores(w_q, w_k, pairing):
        rotary = RotaryEmbedding(d, pairing=pairing)
        q, k = (rotary((x @ w.T).reshape(n, h, d).transpose(0, 1)) for w in (w_q, w_k))
        return q @ k.mT

    convert = {"source": "interleaved", "target": "half"}
    converted = scores(change_pairing(w_q, h, **convert), change_pairing(w_k, h, **convert), "half")
    assert_close(converted, scores(w_q, w_k, "interleaved"))


def test_change_pairing_matches_transformers_and_is_invertible():
    h, d, width = 3, 10, 7
    weight = torch.randn(h * d, width)
    # From Meta's checkpoints to Hugging Face's: `permute` in transformers' convert_llama_weights_to_hf.py.
    published = weight.view(h, d // 2, 2, width).transpose(1, 2).reshape(h * d, width)
    converted = change_pairing(weight, h, source="interleaved", target="half")
    assert_close(converted, published, rtol=0, atol=0)
    assert_close(change_pairing(converted, h, source="half", target="interleaved"), weight, rtol=0, atol=0)
    assert_close(change_pairing(weight, h, source="half", target="half"), weight, rtol=0, atol=0)


def test_change_pairing_of_vector():
    x = torch.arange(6)
    assert change_pairing(x, 1, source="interleaved", target="half").tolist() == [0, 2, 4, 1, 3, 5]


# --- ALiBi ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("h", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_slopes_match_bloom_and_mpt(h):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    n = 7
    ours = AlibiBias(h)(torch.arange(n), torch.arange(n), dtype=torch.float32)
    assert ours.shape == (h, n, n)
    # Bloom adds slope * j, we subtract slope * (i - j): each row differs by a constant, here ours on the diagonal.
    bloom = build_alibi_tensor(torch.ones(1, n, dtype=torch.int64), h, torch.float32)
    assert_close(ours.tril(), (bloom - bloom.mT).tril())
    # MPT returns the last row, whose query attends to every key.
    assert_close(ours[:, -1:, :], build_mpt_alibi_tensor(h, n))


def test_alibi_slopes_equal_formula():
    assert AlibiBias(8).slopes == tuple(2.0**-i for i in range(1, 9))
    assert AlibiBias(3).slopes == (2.0**-4, 2.0**-8, 2.0**-2)


@pytest.mark.parametrize("given", [(0.0, 1.5, 0.25), [0.0, 1.5, 0.25]], ids=type)
def test_alibi_with_given_slopes(given):
    alibi = AlibiBias(3, slopes=given)
    assert alibi.slopes == (0.0, 1.5, 0.25)
    bias = alibi(torch.arange(4), torch.arange(7) - 2)
    for h, slope in enumerate((0.0, 1.5, 0.25)):
        for i in range(4):
            for j in range(7):
                assert bias[h, i, j].item() == -slope * abs(i - (j - 2))


def test_alibi_biases_with_equal_slopes_are_equal():
    assert AlibiBias(3) == AlibiBias(3, slopes=AlibiBias(3).slopes)
    assert AlibiBias(3) != AlibiBias(3, slopes=[0.5, 0.25, 0.125])
    assert hash(AlibiBias(2, slopes=[0.5, 0.25])) == hash(AlibiBias(2, slopes=(0.5, 0.25)))


def possibly_wrong_alibi(slopes, mistake, query_positions, key_positions):
    distance = (query_positions[:, None] - key_positions).double()
    distance = {"signed distance": distance, "squared distance": distance**2}.get(mistake, distance.abs())
    slopes = torch.tensor(AlibiBias(3).slopes if mistake == "default slopes" else slopes)
    return (1 if mistake == "wrong sign" else -1) * slopes[:, None, None] * distance


@pytest.mark.parametrize("mistake", [None, "signed distance", "squared distance", "default slopes", "wrong sign"])
def test_alibi_test_catches_wrong_biases(mistake):
    slopes, positions = (0.0, 1.5, 0.25), (torch.arange(4), torch.arange(7) - 2)
    bias = possibly_wrong_alibi(slopes, mistake, *positions)
    assert torch.equal(AlibiBias(3, slopes=slopes)(*positions), bias) == (mistake is None)


def test_alibi_is_symmetric_and_accepts_positions_per_sequence():
    h, n, m = 3, 5, 7
    query_positions, key_positions = torch.randint(50, (2, n)), torch.randint(50, (2, m))
    bias = AlibiBias(h)(query_positions, key_positions)
    assert bias.shape == (2, h, n, m)
    assert bias.dtype == torch.float64
    slope, i, j = AlibiBias(h).slopes[1], 3, 6
    assert bias[1, 1, i, j].item() == -slope * abs(query_positions[1, i] - key_positions[1, j]).item()
    assert_close(bias, AlibiBias(h)(key_positions, query_positions).mT)
    assert_close(AlibiBias(h)(query_positions[0], key_positions)[1], AlibiBias(h)(query_positions[0], key_positions[1]))


# --- default base ---------------------------------------------------------------------------------------------------


def test_default_base_is_rope_base_everywhere():
    assert ROPE_BASE == RotaryEmbedding(6).base == GPTConfig(7, 8, 12, 1, 2, position="rotary").rope_base
    assert torch.equal(sinusoidal(5, 6), sinusoidal(5, 6, base=ROPE_BASE))


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sinusoidal(5, 7), "d_model must be even: coordinates come in pairs, got 7"),
        (lambda: sinusoidal(0, 6), "n must be at least 1, got 0"),
        (lambda: sinusoidal(5, 6, base=1.0), r"base must be finite and above 1, got 1\.0"),
        (lambda: LearnedPositions(0, 3), "n_max must be at least 1, got 0"),
        (lambda: RotaryEmbedding(7), "d_head must be even: coordinates come in pairs, got 7"),
        (lambda: RotaryEmbedding(6, base=float("inf")), "base must be finite and above 1, got inf"),
        (lambda: RotaryEmbedding(6, d_rotary=3), "d_rotary must be even"),
        (lambda: RotaryEmbedding(6, d_rotary=8), "d_rotary must be"),
        (lambda: RotaryEmbedding(6, pairing="halves"), "pairing must be one of 'half', 'interleaved', got 'halves'"),
        (lambda: AlibiBias(0), "n_heads must be at least 1, got 0"),
        (lambda: AlibiBias(3, slopes=[0.5, 0.25]), r"slopes must be 3 finite numbers, .*, got \[0\.5, 0\.25\]"),
        (lambda: AlibiBias(2, slopes=[0.5, -0.25]), r"slopes must be 2 finite .*, none negative, got \[0\.5, -0\.25\]"),
        (lambda: AlibiBias(2, slopes=[0.5, math.inf]), r"slopes must be 2 finite numbers, .*, got \[0\.5, inf\]"),
        (lambda: AlibiBias(2, slopes=[0.5, math.nan]), r"slopes must be 2 finite numbers, .*, got \[0\.5, nan\]"),
        (lambda: AlibiBias(1, slopes=0.5), r"slopes must be 1 finite numbers, .*, got 0\.5"),
        (lambda: AlibiBias(1, slopes=[None]), r"slopes must be 1 finite numbers, .*, got \[None\]"),
        (lambda: AlibiBias(3)(torch.arange(2), torch.arange(2), dtype=torch.int64), "dtype must be a floating-point"),
        (lambda: AlibiBias(3)(torch.zeros(2, 5), torch.zeros(3, 5)), r"must broadcast, got \(2, 5\) and \(3, 5\)"),
        (lambda: change_pairing(torch.randn(9, 2), 3, source="half", target="half"), r"n_heads=3 and shape \(9, 2\)"),
        (lambda: change_pairing(torch.randn(8, 2), 2, source="half", target="x"), "target must be one of 'half', "),
    ],
)
def test_invalid_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("x", "positions", "message"),
    [
        (torch.ones(5, 8), None, r"x must be \(\*batch, n, d_head\) with d_head=6, got \(5, 8\)"),
        (torch.ones(6), None, r"with d_head=6, got \(6,\)"),
        (torch.ones(5, 6, dtype=torch.int64), None, r"x must hold floating-point numbers, got torch\.int64"),
        (torch.ones(5, 6), torch.arange(4), r"one entry for each row of x and broadcast to \(5,\), got \(4,\)"),
        (torch.ones(5, 6), torch.ones(2, 5), r"broadcast to \(5,\), got \(2, 5\)"),
        (torch.ones(2, 3, 5, 6), torch.ones(2, 5), r"\(batch, n\) becomes \(batch, 1, n\)"),
        (torch.ones(5, 6), torch.ones(5, dtype=torch.bool), r"positions must be integers, .*, got torch\.bool"),
        (torch.ones(5, 6), torch.ones(5, dtype=torch.bfloat16), r"in at least float32, got torch\.bfloat16"),
        (torch.ones(5, 6), torch.tensor(3), "positions must have one entry for each token"),
    ],
)
def test_invalid_inputs_of_rotary_raise(x, positions, message):
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(6)(x, positions)


@pytest.mark.rejects
def test_learned_positions_out_of_range_raise():
    with pytest.raises(ValueError, match=r"positions must be in 0 \.\. 6: .*, got 0 \.\. 7; build with a larger n_max"):
        LearnedPositions(7, 3)(torch.arange(8))
    with pytest.raises(ValueError, match=r"got -1 \.\. 0"):
        LearnedPositions(7, 3)(torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match=r"positions must be integers, got torch\.float64"):
        LearnedPositions(7, 3)(torch.zeros(2))


# --- wrong implementations, which the tests above must catch --------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda x, p: RotaryEmbedding(14)(x), id="ignores the positions"),
        pytest.param(lambda x, p: RotaryEmbedding(14)(x, -p), id="rotates in the opposite direction"),
        pytest.param(lambda x, p: RotaryEmbedding(14)(x, p + 1), id="counts from one"),
        pytest.param(lambda x, p: RotaryEmbedding(14, pairing="interleaved")(x, p), id="uses the other pairing"),
        pytest.param(lambda x, p: RotaryEmbedding(14, base=10_001.0)(x, p), id="uses another base"),
        pytest.param(
            lambda x, p: RotaryEmbedding(16)(nn.functional.pad(x, (0, 2)), p)[..., :14], id="divides by d + 2"
        ),
    ],
)
def test_rotary_definition_catches_wrong_rotations(wrong):
    x, positions = torch.randn(3, 5, 14), torch.tensor([4, 1, 7, 3, 1000])
    with pytest.raises(AssertionError):
        assert_close(wrong(x, positions), rotated_by_hand(x, positions))
