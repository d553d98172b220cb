"""Tests of cosine similarity, angles and effective rank: comparison with PyTorch, known values, numerical accuracy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

from lessons_lib.analysis.geometry import angles, cosine_similarity, effective_rank, score_decomposition
from lessons_lib.attention.attention import attention_weights
from lessons_lib.attention.softmax import softmax

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 6)


def pair(batch=(2, 3), n=5, m=7, d=4):
    return torch.randn(*batch, n, d), torch.randn(*batch, m, d)


# --- cosines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_cosine_similarity_equals_pytorch(batch):
    q, k = pair(batch)
    expected = torch.nn.functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
    assert_close(cosine_similarity(q, k), expected)
    assert_close(cosine_similarity(q, k[..., :1, :].expand_as(k)), expected[..., :1].expand_as(expected))


@given(n=sizes, m=sizes, d=sizes, stretch=st.floats(1e-30, 1e30), seed=seeds)
def test_cosine_similarity_and_angles_ignore_norms(n, m, d, stretch, seed):
    torch.manual_seed(seed)
    q, k = pair((), n, m, d)
    cosines = cosine_similarity(q, k)
    assert (cosines.abs() <= 1).all()
    assert_close(cosine_similarity(stretch * q, k), cosines)
    assert_close(angles(q, stretch * k), angles(q, k))


def test_cosine_similarity_is_clamped_to_one():
    q = torch.randn(1009, 7)
    directions = q / q.norm(dim=-1, keepdim=True)
    assert (directions @ directions.mT).max() > 1  # without the clamp rounding exceeds one
    assert cosine_similarity(q, q).max() == 1
    assert cosine_similarity(q, -q).min() == -1


@pytest.mark.parametrize("length", [1e-25, 1.0, 1e25])
def test_cosine_similarity_very_large_and_small_norms_do_not_overflow(length):
    q = length * torch.tensor([[3.0, 4.0]], dtype=torch.float32)
    assert_close(cosine_similarity(q, q), torch.ones(1, 1, dtype=torch.float32))
    assert angles(q, -q) == 180


@given(n=sizes, m=sizes, d=sizes, seed=seeds)
def test_score_decomposition_product_is_the_score(n, m, d, seed):
    torch.manual_seed(seed)
    q, k = pair((3,), n, m, d)
    query_norms, key_norms, cosines = score_decomposition(q, k)
    assert query_norms.shape == (3, n, 1)
    assert key_norms.shape == (3, 1, m)
    assert_close(query_norms * key_norms * cosines, q @ k.mT)


def test_score_decomposition_query_norm_is_an_inverse_temperature():
    q, k = pair((), d=4)
    parts = score_decomposition(q, k)
    for i in range(5):
        temperature = 1 / parts.query_norms[i].item()
        weights = softmax(parts.key_norms * parts.cosines[i], temperature=temperature)
        assert_close(weights, attention_weights(q[i : i + 1], k, scale=1.0))


# --- angles ---------------------------------------------------------------------------------------------------------


def on_circle(degrees):
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=-1)


def test_angles_known_values():
    q, k = on_circle([0.0]), 3 * on_circle([0.0, 30.0, 90.0, 180.0, 270.0, 359.0])
    assert_close(angles(q, k), torch.tensor([[0.0, 30.0, 90.0, 180.0, 90.0, 1.0]]))


@given(degrees=st.floats(0, 180))
def test_angles_in_the_plane_are_recovered(degrees):
    assert_close(angles(on_circle([77.0]), on_circle([77.0 + degrees])).item(), degrees, rtol=0, atol=1e-12)


@pytest.mark.parametrize("small", [1e-3, 1e-6, 1e-9])
def test_angles_near_0_and_180_degrees_are_accurate(small):
    """Near 0 degrees the cosine is 1 - small^2 / 2. For 1e-9 it rounds to 1, whose arc cosine is 0 degrees."""
    q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, small], [-1.0, small]])
    exact = math.degrees(math.atan(small))
    near, far = angles(q, k)[0].tolist()
    assert near == pytest.approx(exact, rel=1e-12)
    assert 180 - far == pytest.approx(exact, rel=1e-4)  # 180 itself is rounded to 3e-14
    if small == 1e-9:
        assert cosine_similarity(q, k).arccos()[0, 0] == 0


def test_angles_equal_the_arc_cosine_of_the_cosine_similarity():
    q, k = pair()
    assert_close(angles(q, k).deg2rad().cos(), cosine_similarity(q, k))


def test_angles_of_random_directions_in_high_dimension_are_near_90_degrees():
    """Mean 90 degrees, deviation about 1 / sqrt(d) radians; 2 percent is five standard errors of a deviation."""
    d = 512
    measured = angles(torch.randn(211, d), torch.randn(223, d))
    assert abs(measured.mean().item() - 90) < 0.2
    assert measured.std().item() == pytest.approx(math.degrees(1 / math.sqrt(d)), rel=0.02)


# --- effective rank -------------------------------------------------------------------------------------------------


def test_effective_rank_known_values():
    q, _ = torch.linalg.qr(torch.randn(2, 7, 3))
    assert_close(effective_rank(5 * q), torch.full((2,), 3.0))
    assert_close(effective_rank(torch.randn(1, 5).expand(7, 5)), torch.tensor(1.0))
    assert_close(effective_rank(torch.diag(torch.tensor([3.0, 1.0]))), torch.tensor(4 / 3**0.75))


@given(n=sizes, d=sizes, rank=sizes, stretch=st.floats(1e-3, 1e3), seed=seeds)
def test_effective_rank_lies_between_one_and_the_rank(n, d, rank, stretch, seed):
    torch.manual_seed(seed)
    x = torch.randn(n, rank) @ torch.randn(rank, d)
    # Singular values that are zero on paper are 1e-16 of the largest, and add 1e-14 at most.
    assert 1 - 1e-12 <= effective_rank(x) <= min(n, d, rank) + 1e-12
    assert_close(effective_rank(stretch * x.mT), effective_rank(x))


def test_effective_rank_of_a_batch():
    x = torch.randn(2, 3, 7, 5)
    assert effective_rank(x).shape == (2, 3)
    assert_close(effective_rank(x)[1, 2], effective_rank(x[1, 2]))


# --- precision and gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    q, k = (t.to(dtype) for t in pair())
    for measure in (cosine_similarity, angles):
        assert_close(measure(q, k), measure(q.float(), k.float()).to(dtype), rtol=0, atol=0)
    assert_close(effective_rank(q), effective_rank(q.float()).to(dtype), rtol=0, atol=0)


def test_gradcheck():
    q, k = (t.requires_grad_() for t in pair((2,)))
    assert gradcheck(cosine_similarity, (q, k))
    assert gradcheck(angles, (q, k))
    assert gradcheck(score_decomposition, (q, k))
    assert gradcheck(effective_rank, (q,))


def test_gradients_are_finite_for_equal_queries_and_keys():
    q = torch.randn(3, 5, requires_grad=True)
    (angles(q, q).sum() + cosine_similarity(q, q).sum()).backward()
    assert q.grad.isfinite().all()


# --- errors ---------------------------------------------------------------------------------------------------------

ones = torch.ones(5, 4, dtype=torch.float64)


@pytest.mark.rejects
@pytest.mark.parametrize("measure", [cosine_similarity, angles, score_decomposition])
@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        (torch.zeros(1, 4).double(), ones, "q holds a zero vector, which has no direction"),
        (ones, torch.zeros(1, 4).double(), "k holds a zero vector, which has no direction"),
        (ones, ones[:, :3], r"of one width, got \(5, 4\) and \(5, 3\)"),
        (ones, ones[0], r"must be \(\*batch, rows, width\) .* got \(5, 4\) and \(4,\)"),
        (ones[None].expand(2, 5, 4), ones[None].expand(3, 5, 4), r"must broadcast, got \(2, 5, 4\) and \(3, 5, 4\)"),
        (ones, ones.float(), "q and k must have the same dtype"),
        (ones.long(), ones.long(), "q must hold floating-point numbers, got torch.int64"),
    ],
)
def test_invalid_arguments_raise(measure, q, k, message):
    with pytest.raises(ValueError, match=message):
        measure(q, k)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, 4), "x holds a matrix of zeros"),
        (torch.stack([torch.eye(3), torch.zeros(3, 3)]), "x holds a matrix of zeros"),
        (torch.full((3, 4), math.nan), "x must hold finite numbers"),
        (torch.ones(4), r"x must hold finite numbers over \(\*batch, n, d\), got shape \(4,\)"),
        (torch.ones(3, 4, dtype=torch.int64), "x must hold floating-point numbers, got torch.int64"),
    ],
)
def test_effective_rank_invalid_arguments_raise(x, message):
    with pytest.raises(ValueError, match=message):
        effective_rank(x)


# --- wrong implementations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda q, k: q @ k.mT, id="forgets the norms"),
        pytest.param(lambda q, k: cosine_similarity(q, k) ** 2, id="squares"),
        pytest.param(lambda q, k: q @ k.mT / (q.norm() * k.norm()), id="norm of the matrix, not of its rows"),
        pytest.param(lambda q, k: cosine_similarity(q - q.mean(-1, keepdim=True), k), id="centres first"),
    ],
)
def test_comparison_with_pytorch_catches_wrong_cosine_similarity(wrong):
    q, k = pair(())
    with pytest.raises(AssertionError):
        assert_close(wrong(q, k), torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda s: (s**2).sum() ** 2 / (s**4).sum(), id="participation ratio"),
        pytest.param(lambda s: torch.special.entr(s**2 / (s**2).sum()).sum().exp(), id="squared singular values"),
        pytest.param(lambda s: torch.special.entr(s / s.sum()).sum(), id="forgets the exponential"),
        pytest.param(lambda s: (s > 1e-12).sum().double(), id="the rank itself"),
    ],
)
def test_other_definitions_of_effective_rank_differ(wrong):
    x = torch.randn(7, 5)
    with pytest.raises(AssertionError):
        assert_close(wrong(torch.linalg.svdvals(x)), effective_rank(x))
