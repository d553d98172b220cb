"""Tests of entropy, divergence and mutual information: definitions, inequalities, gradients, precision and errors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import grad, gradcheck
from torch.distributions import Categorical
from torch.distributions import kl_divergence as torch_kl
from torch.testing import assert_close

from lessons_lib.analysis.information import (
    cross_entropy,
    effective_count,
    entropy,
    kl_divergence,
    mutual_information,
    pointwise_mutual_information,
)
from lessons_lib.analysis.markov import check_row_stochastic
from lessons_lib.attention.softmax import softmax

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 7)


def distributions(*shape, zeros=0.0):
    """Random distributions over the last axis; the share ``zeros`` of the entries is exactly zero."""
    p = torch.rand(shape).masked_fill(torch.rand(shape) < zeros, 0.0)
    p[..., 0] += 0.1
    return p / p.sum(-1, keepdim=True)


def joints(*shape, zeros=0.0):
    return distributions(*shape[:-2], shape[-2] * shape[-1], zeros=zeros).unflatten(-1, shape[-2:])


def by_hand(p, q):
    """-sum p log q, term by term, with 0 log 0 = 0."""
    return -sum(a * (math.log(b) if b else -math.inf) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a)


# --- definitions ----------------------------------------------------------------------------------------------------


def test_measures_of_one_row_by_hand():
    p, q = torch.tensor([0.5, 0.25, 0.25, 0.0]), torch.tensor([0.25, 0.25, 0.25, 0.25])
    assert_close(entropy(p), torch.tensor(1.5 * math.log(2)))
    assert_close(effective_count(p), torch.tensor(2**1.5))
    assert_close(cross_entropy(p, q), torch.tensor(math.log(4)))
    assert_close(kl_divergence(p, q), torch.tensor(0.5 * math.log(2)))
    assert kl_divergence(q, p) == cross_entropy(q, p) == torch.inf


@given(m=sizes, zeros=st.floats(0, 0.9), seed=seeds)
def test_measures_equal_their_definitions(m, zeros, seed):
    torch.manual_seed(seed)
    p, q = distributions(3, m, zeros=zeros), distributions(3, m, zeros=zeros)
    assert_close(entropy(p), torch.tensor([by_hand(row, row) for row in p]))
    crossed = torch.tensor([by_hand(*rows) for rows in zip(p, q, strict=True)])
    assert_close(cross_entropy(p, q), crossed)
    assert_close(kl_divergence(p, q), crossed - entropy(p))
    assert_close(effective_count(p), entropy(p).exp())


def test_measures_equal_pytorch():
    p, q = distributions(2, 3, 7), distributions(2, 3, 7)
    assert_close(entropy(p), Categorical(p).entropy())
    assert_close(kl_divergence(p, q), torch_kl(Categorical(p), Categorical(q)))
    target = torch.randint(7, (5,))
    logits = torch.randn(5, 7)
    one_hot = torch.nn.functional.one_hot(target, 7).to(logits)
    assert_close(
        cross_entropy(one_hot, softmax(logits)), torch.nn.functional.cross_entropy(logits, target, reduction="none")
    )


def test_divergences_broadcast_one_reference_row():
    p, uniform = distributions(2, 5, 7), torch.full((7,), 1 / 7)
    assert_close(kl_divergence(p, uniform), math.log(7) - entropy(p))
    assert cross_entropy(uniform, p).shape == (2, 5)


def test_mutual_information_of_a_binary_channel():
    """A fair bit through a channel with error probability 1/4 has 1 - H(1/4) bits of mutual information."""
    joint = torch.tensor([[3.0, 1.0], [1.0, 3.0]]) / 8
    noise = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert_close(mutual_information(joint), torch.tensor(math.log(2) - noise))
    assert_close(pointwise_mutual_information(joint), torch.tensor([[1.5, 0.5], [0.5, 1.5]]).log())


# --- properties -----------------------------------------------------------------------------------------------------


@given(m=sizes, zeros=st.floats(0, 0.9), seed=seeds)
def test_entropy_lies_between_zero_and_log_m(m, zeros, seed):
    torch.manual_seed(seed)
    p = distributions(m, zeros=zeros)
    assert -1e-15 <= entropy(p) <= math.log(m) + 1e-15
    assert 1 - 1e-14 <= effective_count(p) <= m * (1 + 1e-14)
    assert_close(entropy(torch.full((m,), 1 / m)), torch.tensor(math.log(m)))
    assert (entropy(torch.eye(m)) == 0).all()


@given(m=sizes, zeros=st.floats(0, 0.9), seed=seeds)
def test_kl_divergence_is_positive_unless_p_equals_q(m, zeros, seed):
    torch.manual_seed(seed)
    p, q = distributions(m, zeros=zeros), distributions(m, zeros=zeros)
    assert kl_divergence(p, q) >= -1e-15
    assert_close(kl_divergence(p, p), torch.tensor(0.0))
    # Pinsker: a divergence is at least half the squared distance, so it is positive for different rows.
    assert kl_divergence(p, q) >= (p - q).abs().sum() ** 2 / 2 - 1e-15


@given(n=sizes, m=sizes, zeros=st.floats(0, 0.8), seed=seeds)
def test_mutual_information_equals_divergence_from_independence_and_mean_pmi(n, m, zeros, seed):
    torch.manual_seed(seed)
    joint = joints(n, m, zeros=zeros)
    product = joint.sum(-1)[:, None] * joint.sum(-2)[None, :]
    information = mutual_information(joint)
    assert information >= -1e-14
    assert_close(information, kl_divergence(joint.flatten(), product.flatten()))
    pmi = pointwise_mutual_information(joint)
    assert_close(information, (joint * pmi.masked_fill(joint == 0, 0.0)).sum())
    assert_close(mutual_information(joint.mT), information)
    assert information <= min(entropy(joint.sum(-1)), entropy(joint.sum(-2))) + 1e-14


@given(n=sizes, m=sizes, seed=seeds)
def test_mutual_information_of_independent_variables_is_zero(n, m, seed):
    torch.manual_seed(seed)
    joint = distributions(n)[:, None] * distributions(m)
    assert_close(mutual_information(joint), torch.tensor(0.0))
    assert_close(pointwise_mutual_information(joint), torch.zeros(n, m), rtol=0, atol=1e-12)


def test_measures_accept_leading_axes():
    joint = joints(2, 3, 5, 7)
    assert mutual_information(joint).shape == (2, 3)
    assert pointwise_mutual_information(joint).shape == (2, 3, 5, 7)
    assert_close(mutual_information(joint)[1, 2], mutual_information(joint[1, 2]))
    assert entropy(distributions(2, 3, 7)).shape == (2, 3)


# --- gradients and precision ----------------------------------------------------------------------------------------


def test_gradcheck():
    scores_p, scores_q = (torch.randn(3, 7, requires_grad=True) for _ in range(2))
    assert gradcheck(lambda s: entropy(softmax(s)), scores_p)
    assert gradcheck(lambda s: effective_count(softmax(s)), scores_p)
    assert gradcheck(lambda s, t: kl_divergence(softmax(s), softmax(t)), (scores_p, scores_q))
    assert gradcheck(lambda s: mutual_information(softmax(s.flatten()).view(3, 7)), scores_p)
    assert gradcheck(lambda s: pointwise_mutual_information(softmax(s.flatten()).view(3, 7)), scores_p)


@pytest.mark.parametrize("measure", [entropy, effective_count, lambda p: kl_divergence(p, p)])
def test_entropy_gradients_are_finite_at_masked_weights(measure):
    """Masked weights are exactly zero, and their scores get a zero gradient."""
    scores = torch.randn(5, 5, requires_grad=True)
    (gradient,) = grad(measure(softmax(scores, torch.ones(5, 5, dtype=torch.bool).tril())).sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient.triu(1) == 0).all()


def test_cross_entropy_gradient_at_zero_probability_is_minus_log_q():
    p, q = torch.tensor([1.0, 0.0, 0.0], requires_grad=True), torch.tensor([0.25, 0.25, 0.5])
    (gradient,) = grad(cross_entropy(p, q), p)
    assert_close(gradient, -q.log())


def test_mutual_information_gradients_are_finite_at_zeros():
    joint = torch.tensor([[0.5, 0.0, 0.0], [0.25, 0.25, 0.0]], requires_grad=True)
    pmi = pointwise_mutual_information(joint)
    (of_information,) = grad(mutual_information(joint), joint)
    (of_pmi,) = grad(pmi[joint > 0].sum(), joint)
    assert of_information.isfinite().all()
    assert of_pmi.isfinite().all()


def test_pointwise_mutual_information_of_an_impossible_pair_is_minus_infinity():
    joint = torch.tensor([[0.5, 0.0, 0.0], [0.25, 0.25, 0.0]])
    pmi = pointwise_mutual_information(joint)
    assert torch.equal(pmi == -torch.inf, joint == 0)
    assert not pmi.isnan().any()


def test_mutual_information_small_marginals_do_not_underflow():
    """In float32 the product of two marginals of 1e-30 is zero, and the divergence would be infinite."""
    joint = torch.tensor([[1.0, 0.0], [0.0, 1e-30]], dtype=torch.float32)
    assert mutual_information(joint).item() == pytest.approx(1e-30 * math.log(1e30), rel=1e-5)
    assert_close(pointwise_mutual_information(joint)[1, 1], torch.tensor(30 * math.log(10), dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    """One rounding has an error of at most eps / 2. The extra 0.01 is for the float32 error, measured below 0.001."""
    p, q = (softmax(3 * torch.randn(11, 701)).to(dtype) for _ in range(2))
    exact, crossed = torch.special.entr(p.double()).sum(-1), -torch.xlogy(p.double(), q.double()).sum(-1)
    for measured, wanted in [
        (entropy(p), exact),
        (effective_count(p), exact.exp()),
        (cross_entropy(p, q), crossed),
        (kl_divergence(p, q), crossed - exact),
    ]:
        assert measured.dtype == dtype
        assert_close(measured.double(), wanted, rtol=0.51 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_entropy_of_a_certain_outcome_is_zero_in_half_precision(dtype):
    """Adding 1e-8 inside the logarithm adds 0 in float16, and a certain outcome gives NaN."""
    assert entropy(torch.eye(7, dtype=dtype)).tolist() == [0.0] * 7


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("m", [2, 31, 4093])
def test_entropy_accepts_softmax_of_every_precision(dtype, m):
    for spread in (0.0, 1.0, 30.0):
        entropy(softmax((spread * torch.randn(11, m)).to(dtype)))


# --- errors ---------------------------------------------------------------------------------------------------------

half = torch.tensor([0.5, 0.5], dtype=torch.float64)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 4e-11), (torch.float32, 2e-5), (torch.float16, 1e-2), (torch.bfloat16, 4e-2)],
    ids=str,
)
@pytest.mark.parametrize(
    "accepts",
    [entropy, lambda p: mutual_information(p[None]), lambda p: check_row_stochastic("a", p[None])],
    ids=["a row", "a table", "a chain"],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_tolerance_of_sums_is_the_same_in_all_functions(accepts, dtype, tolerance, sign):
    """An error of half the tolerance passes and of twice the tolerance does not.

    A tolerance of ``eps ** (1 / 2)`` or ``eps`` would fail.
    """
    accepts(torch.tensor([0.5, 0.5 + sign * tolerance / 2], dtype=dtype))
    with pytest.raises(ValueError, match="must sum to one within"):
        accepts(torch.tensor([0.5, 0.5 + sign * tolerance * 2], dtype=dtype))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: entropy(torch.tensor([1.5, -0.5])), r"p must have no negative entries and no NaN, .* entry of -0\.5"),
        (lambda: entropy(torch.tensor([math.nan, 1.0])), "no negative entries and no NaN"),
        (lambda: entropy(torch.tensor([0.5, 0.4])), r"p must sum to one within 4e-11 \(torch.float64\), got 0\.9"),
        (lambda: entropy(torch.tensor([0.5, 0.499]).float()), r"within 2e-05 \(torch.float32\), got 0\.99"),
        (lambda: entropy(torch.tensor([math.inf, 0.0])), "must sum to one within .*, got inf"),
        (
            lambda: effective_count(torch.tensor([[0.5, 0.5], [0.0, 0.0]])),
            r"sums to zero: .* leave .* p\[p\.sum\(-1\) > 0\]",
        ),
        (lambda: entropy(torch.tensor([0, 1])), "p must hold floating-point numbers, got torch.int64"),
        (lambda: entropy(torch.tensor(1.0)), r"p must have 1 or more axes, got shape \(\)"),
        (lambda: kl_divergence(half, torch.tensor([0.5, 0.6])), r"q must sum to one within .*, got 1\.1"),
        (lambda: cross_entropy(torch.tensor([0.5, 0.6]), half), r"p must sum to one within .*, got 1\.1"),
        (lambda: kl_divergence(half, torch.tensor([1.0])), r"same number of outcomes .*, got \(2,\) and \(1,\)"),
        (lambda: kl_divergence(half.expand(3, 2), half.expand(4, 2)), r"that broadcast, got \(3, 2\) and \(4, 2\)"),
        (lambda: kl_divergence(half, half.float()), "p and q must have the same dtype"),
        (lambda: mutual_information(torch.full((2, 3), 0.5)), r"joint must sum to one within .*, got 3\.0"),
        (lambda: mutual_information(half), r"joint must have 2 or more axes, got shape \(2,\)"),
        (lambda: pointwise_mutual_information(torch.zeros(2, 3)), r"joint must sum to one within .*, got 0\.0"),
    ],
)
def test_invalid_arguments_raise(measure, message):
    with pytest.raises(ValueError, match=message):
        measure()


# --- wrong implementations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda p, q: entropy(p) - cross_entropy(p, q), id="wrong sign"),
        pytest.param(lambda p, q: kl_divergence(q, p), id="swaps p and q"),
        pytest.param(lambda p, q: kl_divergence(p, q) / math.log(2), id="in bits"),
        pytest.param(lambda p, q: (p * (p / q).log()).mean(-1), id="mean instead of sum"),
        pytest.param(lambda p, q: (p * (p / (q + 1e-8)).log()).sum(-1), id="adds 1e-8"),
        pytest.param(lambda p, q: cross_entropy(p, q), id="omits the entropy of p"),
    ],
)
def test_comparison_with_pytorch_catches_wrong_divergences(wrong):
    p, q = distributions(3, 7), distributions(3, 7)
    with pytest.raises(AssertionError):
        assert_close(wrong(p, q), torch_kl(Categorical(p), Categorical(q)))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda joint: entropy(joint.sum(-1)) + entropy(joint.sum(-2)), id="omits the joint entropy"),
        pytest.param(lambda joint: pointwise_mutual_information(joint).mean(), id="PMI averaged without weights"),
        pytest.param(lambda joint: entropy(joint.sum(-1)) - entropy(joint.flatten()), id="minus H(Y | X)"),
    ],
)
def test_other_definitions_of_mutual_information_differ(wrong):
    joint = joints(5, 7)
    with pytest.raises(AssertionError):
        assert_close(wrong(joint), mutual_information(joint))
