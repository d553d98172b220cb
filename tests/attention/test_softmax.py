"""Softmax, log-sum-exp, the Jacobian and the merge: parity with PyTorch, and the properties that attention needs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

from lessons_lib.attention.softmax import log_sum_exp, merge_attention, softmax, softmax_jacobian

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 7)
temperatures = st.floats(0.05, 20.0)


def scores_and_mask(batch=(2, 3), n=5, m=7):
    """Return random scores, and a mask with at least one allowed entry in each row."""
    mask = torch.rand(*batch, n, m) < 0.6
    mask[..., 0] = True
    return 3 * torch.randn(*batch, n, m), mask


def forbid(scores, mask):
    return scores.masked_fill(~mask, -torch.inf)


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_softmax_and_log_sum_exp_match_pytorch(batch, temperature):
    scores, mask = scores_and_mask(batch)
    assert_close(softmax(scores, temperature=temperature), torch.softmax(scores / temperature, dim=-1))
    assert_close(
        softmax(scores, mask, temperature=temperature), torch.softmax(forbid(scores, mask) / temperature, dim=-1)
    )
    assert_close(log_sum_exp(scores, mask), torch.logsumexp(forbid(scores, mask), dim=-1))


def test_single_row_without_batch():
    scores = torch.randn(7)
    assert_close(softmax(scores), torch.softmax(scores, dim=-1))
    assert_close(log_sum_exp(scores), torch.logsumexp(scores, dim=-1))


def test_gradients_pass_gradcheck():
    scores, mask = scores_and_mask()
    scores.requires_grad_()
    assert gradcheck(lambda s: softmax(s, mask, temperature=0.7), scores)
    assert gradcheck(lambda s: log_sum_exp(s, mask), scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    scores = (4 * torch.randn(5, 701)).to(dtype)
    assert_close(softmax(scores), softmax(scores.float()).to(dtype), rtol=0, atol=0)
    assert_close(log_sum_exp(scores), log_sum_exp(scores.float()), rtol=0, atol=0)


# --- properties -----------------------------------------------------------------------------------------------------


@given(n=sizes, m=sizes, spread=st.floats(0.0, 1e3), seed=seeds)
def test_rows_are_probability_distributions(n, m, spread, seed):
    torch.manual_seed(seed)
    p = softmax(spread * torch.randn(n, m))
    assert (p >= 0).all()
    assert_close(p.sum(-1), torch.ones(n))


@given(m=sizes, shift=st.floats(-1e4, 1e4), temperature=temperatures, seed=seeds)
def test_softmax_is_invariant_to_shift(m, shift, temperature, seed):
    torch.manual_seed(seed)
    scores = torch.randn(3, m)
    # Adding 1e4 rounds the scores by up to 1e-12; dividing by a temperature of 0.05 makes this 2e-11.
    assert_close(
        softmax(scores + shift, temperature=temperature), softmax(scores, temperature=temperature), rtol=1e-9, atol=0
    )
    assert_close(log_sum_exp(scores + shift), log_sum_exp(scores) + shift)


@given(m=sizes, seed=seeds)
def test_softmax_preserves_order(m, seed):
    torch.manual_seed(seed)
    scores, order = torch.randn(m), torch.randperm(m)
    assert_close(softmax(scores[order]), softmax(scores)[order])
    assert torch.equal(softmax(scores).argsort(), scores.argsort())


@given(m=st.integers(2, 7), temperature=temperatures, seed=seeds)
def test_softmax_maximises_score_plus_entropy(m, temperature, seed):
    """Gibbs's principle: softmax(s / T) maximises <p, s> + T H(p), and the maximum is T log sum exp(s / T)."""
    torch.manual_seed(seed)
    scores = torch.randn(m)

    def objective(p):
        return (p * scores).sum(-1) + temperature * torch.special.entr(p).sum(-1)

    best = objective(softmax(scores, temperature=temperature))
    assert_close(best, temperature * log_sum_exp(scores / temperature))
    others = torch.distributions.Dirichlet(torch.ones(m)).sample((101,))
    assert (objective(others) <= best + 1e-12).all()


def test_temperature_limits_are_argmax_and_uniform():
    scores = torch.tensor([1.0, 3.0, 2.0, 3.0, -5.0])
    assert_close(softmax(scores, temperature=1e-300), torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]))
    assert_close(softmax(scores, temperature=1e300), torch.full((5,), 0.2))
    mask = torch.tensor([True, False, True, False, True])
    assert_close(softmax(scores, mask, temperature=1e300), torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0]) / 3)


@given(m=st.integers(2, 7), t=temperatures, factor=st.floats(1.0, 4.0), seed=seeds)
def test_entropy_grows_with_temperature(m, t, factor, seed):
    torch.manual_seed(seed)
    scores = torch.randn(m)
    colder, hotter = (torch.special.entr(softmax(scores, temperature=T)).sum() for T in (t, t * factor))
    assert hotter >= colder - 1e-12


def test_derivative_of_entropy_is_variance_over_temperature_cubed():
    """dH/dT = Var_p(s) / T^3, by a central difference whose error is of order step^2 = 1e-8."""
    scores, t, step = torch.randn(7), 1.7, 1e-4

    def entropy(temperature):
        return torch.special.entr(softmax(scores, temperature=temperature)).sum()

    p = softmax(scores, temperature=t)
    variance = (p * scores**2).sum() - (p * scores).sum() ** 2
    assert_close((entropy(t + step) - entropy(t - step)) / (2 * step), variance / t**3, rtol=1e-6, atol=0)


# --- the Jacobian ---------------------------------------------------------------------------------------------------


def test_jacobian_matches_autograd():
    scores = torch.randn(7)
    assert_close(softmax_jacobian(softmax(scores)), torch.autograd.functional.jacobian(softmax, scores))
    p = softmax(torch.randn(2, 3, 7))
    assert softmax_jacobian(p).shape == (2, 3, 7, 7)
    assert_close(softmax_jacobian(p)[1, 2], softmax_jacobian(p[1, 2]))


@given(m=sizes, seed=seeds)
def test_jacobian_is_symmetric_positive_semidefinite_with_zero_row_sums(m, seed):
    torch.manual_seed(seed)
    jacobian = softmax_jacobian(softmax(3 * torch.randn(m)))
    assert torch.equal(jacobian, jacobian.mT)
    assert_close(jacobian.sum(-1), torch.zeros(m))
    eigenvalues = torch.linalg.eigvalsh(jacobian)
    assert eigenvalues[0] > -1e-15
    assert eigenvalues[-1] <= 0.5 + 1e-15  # so softmax is 1/2-Lipschitz


# --- edge cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["mask", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_fully_masked_row_has_zero_weights_and_gradients(how, dtype):
    mask = torch.tensor([[True, False, True], [False, False, False]])
    scores = torch.randn(2, 3, dtype=dtype)
    if how == "-inf":
        scores, mask = forbid(scores, mask), None
    scores.requires_grad_()
    p, lse = softmax(scores, mask), log_sum_exp(scores, mask)
    assert_close(p[1], torch.zeros(3, dtype=dtype))
    assert lse[1] == -torch.inf
    for output in (p, lse):
        (grad,) = torch.autograd.grad(output, scores, torch.randn_like(output))
        assert grad.isfinite().all()
        assert (grad[1] == 0).all()
        assert (grad[0] != 0).any()


def test_large_scores_do_not_overflow():
    scores = torch.tensor([[1e300, 1e300, -1e300], [-1e300, -1e300, -1e300]])
    assert_close(softmax(scores), torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    assert_close(log_sum_exp(scores), torch.tensor([1e300, -1e300]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_or_infinity_gives_nan_unless_masked(bad):
    scores = torch.tensor([[bad, 1.0, 2.0], [0.0, 1.0, 2.0]])
    assert softmax(scores)[0].isnan().all()
    assert log_sum_exp(scores)[0].isnan()
    assert_close(softmax(scores)[1], torch.softmax(scores[1], -1))
    allowed = torch.tensor([False, True, True])
    assert_close(softmax(scores, allowed)[0, 1:], torch.softmax(scores[0, 1:], -1))


def test_softmax_does_not_modify_input():
    scores, mask = scores_and_mask()
    before = scores.clone()
    softmax(scores, mask)
    log_sum_exp(scores, mask)
    assert torch.equal(scores, before)


# --- merging --------------------------------------------------------------------------------------------------------


def part(scores, values):
    """Return the output of attention over some of the keys, and its log-sum-exp."""
    return softmax(scores) @ values, log_sum_exp(scores)


def three_parts(batch=(2, 3), n=5, sizes=(2, 7, 3), d_v=4):
    scores = [3 * torch.randn(*batch, n, m) for m in sizes]
    values = [torch.randn(*batch, m, d_v) for m in sizes]
    return scores, values, [part(s, v) for s, v in zip(scores, values, strict=True)]


def test_merge_attention_equals_attention_over_all_keys():
    scores, values, (a, b, c) = three_parts()
    out, lse = merge_attention(*merge_attention(*a, *b), *c)
    whole = torch.cat(scores, dim=-1)
    assert_close(out, torch.softmax(whole, dim=-1) @ torch.cat(values, dim=-2))
    assert_close(lse, torch.logsumexp(whole, dim=-1))


@given(n=sizes, d_v=sizes, spread=st.floats(0.0, 300.0), seed=seeds)
def test_merge_attention_is_commutative_and_associative(n, d_v, spread, seed):
    torch.manual_seed(seed)
    a, b, c = ((torch.randn(n, d_v), spread * torch.randn(n)) for _ in range(3))
    assert_close(merge_attention(*a, *b), merge_attention(*b, *a))
    assert_close(merge_attention(*merge_attention(*a, *b), *c), merge_attention(*a, *merge_attention(*b, *c)))


def test_merge_with_empty_part_changes_nothing():
    _, _, (a, _, _) = three_parts()
    nothing = torch.zeros_like(a[0]), torch.full_like(a[1], -torch.inf)
    for merged in (merge_attention(*a, *nothing), merge_attention(*nothing, *a)):
        assert_close(merged, a, rtol=0, atol=0)
    assert_close(merge_attention(*nothing, *nothing), nothing, rtol=0, atol=0)


def test_merge_attention_passes_gradcheck():
    _, _, (a, b, _) = three_parts()
    inputs = [t.detach().requires_grad_() for t in (*a, *b)]
    assert gradcheck(merge_attention, inputs)
    out_a, _, out_b, lse_b = inputs
    lse_a = torch.full_like(lse_b, -torch.inf).requires_grad_()
    out, lse = merge_attention(out_a, lse_a, out_b, lse_b)
    grads = torch.autograd.grad(out.sum() + lse.sum(), (out_a, lse_a, out_b, lse_b))
    assert all(grad.isfinite().all() for grad in grads)
    assert_close(grads[2], torch.ones_like(out_b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_merge_attention_computes_half_precision_in_float32(dtype):
    out_a, out_b = torch.randn(2, 5, 4).to(dtype), torch.randn(2, 5, 4).to(dtype)
    lse_a, lse_b = torch.randn(2, 5).float(), torch.randn(2, 5).float()
    out, lse = merge_attention(out_a, lse_a, out_b, lse_b)
    exact, exact_lse = merge_attention(out_a.float(), lse_a, out_b.float(), lse_b)
    assert_close(out, exact.to(dtype), rtol=0, atol=0)
    assert_close(lse, exact_lse, rtol=0, atol=0)
    assert_close(
        merge_attention(out_a, lse_a.to(dtype), out_b, lse_b.to(dtype)),
        merge_attention(out_a, lse_a.to(dtype).float(), out_b, lse_b.to(dtype).float()),
        rtol=0,
        atol=0,
    )


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan, 1e-320])
def test_invalid_temperature_raises(temperature):
    with pytest.raises(ValueError, match=r"temperature must be positive and finite \(in float64\), got"):
        softmax(torch.randn(2, 3), temperature=temperature)


@pytest.mark.rejects
def test_temperature_below_float32_range_raises():
    with pytest.raises(ValueError, match=r"positive and finite \(in float32\), got 1e-300"):
        softmax(torch.randn(2, 3).half(), temperature=1e-300)


@pytest.mark.rejects
@pytest.mark.parametrize("function", [softmax, log_sum_exp])
@pytest.mark.parametrize(
    ("scores", "mask", "message"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3), "mask must be Boolean.* got torch.float32; .* are a bias"),
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.int64), "mask must be Boolean.* got torch.int64"),
        (torch.zeros(2, 3), torch.ones(3, 2, dtype=torch.bool), r"the scores, \(2, 3\), .* got \(3, 2\)"),
        (torch.zeros(2, 3, 3), torch.ones(2, 1, 3, 3, dtype=torch.bool), r"without enlarging.* got \(2, 1, 3, 3\)"),
        (torch.zeros(1, 3), torch.ones(2, 3, dtype=torch.bool), r"without enlarging them, got \(2, 3\)"),
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool, device="meta"), "same device, got cpu and meta"),
        (torch.zeros(2, 3, dtype=torch.int64), None, "scores must hold floating-point numbers, got torch.int64"),
        (torch.zeros(2, 0), None, r"scores must hold at least one entry per row, got shape \(2, 0\)"),
        (torch.tensor(1.0), None, r"at least one entry per row, got shape \(\)"),
    ],
)
def test_invalid_arguments_raise(function, scores, mask, message):
    with pytest.raises(ValueError, match=message):
        function(scores, mask)


@pytest.mark.rejects
def test_jacobian_of_integers_raises():
    with pytest.raises(ValueError, match="p must hold floating-point numbers"):
        softmax_jacobian(torch.tensor([0, 1]))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out_b": torch.zeros(5, 3)}, r"out_a and out_b must have the same shape, got \(5, 4\) and \(5, 3\)"),
        ({"lse_a": torch.zeros(5, 1)}, r"lse_a must have one entry per query, \(5,\), got \(5, 1\)"),
        ({"lse_b": torch.zeros(4)}, r"lse_b must have one entry per query, \(5,\), got \(4,\)"),
        ({"out_b": torch.zeros(5, 4).half()}, "out_a and out_b must have the same dtype"),
        ({"lse_a": torch.zeros(5).half()}, "lse_a and lse_b must have the same dtype"),
    ],
)
def test_merge_of_incompatible_parts_raises(change, message):
    shapes = {"out_a": (5, 4), "lse_a": (5,), "out_b": (5, 4), "lse_b": (5,)}
    parts = {name: torch.zeros(shape, dtype=torch.float32) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        merge_attention(**parts | change)


# --- wrong implementations, which the tests above must catch --------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda s, mask: torch.softmax(forbid(s, mask), dim=-2), id="wrong axis"),
        pytest.param(lambda s, mask: torch.softmax(s, dim=-1) * mask, id="masks after the softmax"),
        pytest.param(lambda s, mask: torch.softmax(s * mask, dim=-1), id="masks with zeros"),
        pytest.param(lambda s, mask: torch.softmax(s.masked_fill(mask, -torch.inf), dim=-1), id="inverts the mask"),
        pytest.param(lambda s, mask: forbid(s, mask).sigmoid(), id="sigmoid"),
    ],
)
def test_parity_test_catches_wrong_implementations(wrong):
    scores, mask = scores_and_mask()
    mask[..., -1] = False  # so that the inverted mask allows an entry, too
    with pytest.raises(AssertionError):
        assert_close(wrong(scores, mask), softmax(scores, mask))


def plain_mean(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


def shares_from_logarithms(out_a, lse_a, out_b, lse_b):
    share = (lse_a / (lse_a + lse_b))[..., None]
    return share * out_a + (1 - share) * out_b, torch.logaddexp(lse_a, lse_b)


def logarithms_to_base_two(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid((lse_a - lse_b) * math.log(2))[..., None]
    return share * out_a + (1 - share) * out_b, torch.logaddexp2(lse_a, lse_b)


def larger_denominator(out_a, lse_a, out_b, lse_b):
    return merge_attention(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


@pytest.mark.parametrize(
    "wrong",
    [plain_mean, shares_from_logarithms, logarithms_to_base_two, larger_denominator],
)
def test_merge_test_catches_wrong_merges(wrong):
    scores, values, (a, b, _) = three_parts()
    whole = part(torch.cat(scores[:2], dim=-1), torch.cat(values[:2], dim=-2))
    with pytest.raises(AssertionError):
        assert_close(wrong(*a, *b), whole)
