"""Tests of the stationary distribution, the spectral gap, the ergodicity coefficient and attention rollout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lessons_lib.analysis.markov import ergodicity_coefficient, rollout, spectral_gap, stationary_distribution

BATCHES = [(), (2,), (2, 3)]
sizes = st.integers(1, 9)
temperatures = st.floats(0.1, 10.0)
seeds = st.integers(0, 2**31)


def chain(*batch, n=7, m=None, temperature=1.0):
    return (torch.randn(*batch, n, n if m is None else m) / temperature).softmax(-1)


def causal_chain(*batch, n=7, temperature=1.0):
    future = torch.ones(n, n).triu(1).bool()
    return (torch.randn(*batch, n, n) / temperature).masked_fill(future, -torch.inf).softmax(-1)


def permutation(*order):
    return torch.eye(len(order))[list(order)]


# --- stationary distribution ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("make", [chain, causal_chain])
def test_stationary_distribution_is_the_limit_of_matrix_powers(make, batch):
    a = make(*batch)
    limit = torch.linalg.matrix_power(a, 2**12)  # each row is the limit distribution of a walk from that token
    pi = stationary_distribution(a)
    assert_close(pi[..., None, :].expand_as(limit), limit, rtol=1e-10, atol=1e-12)


@given(n=sizes, temperature=temperatures, seed=seeds)
def test_stationary_distribution_is_unchanged_by_a_step(n, temperature, seed):
    torch.manual_seed(seed)
    a = chain(n=n, temperature=temperature)
    pi = stationary_distribution(a)
    assert (pi > 0).all()  # Perron-Frobenius: positive weights have a positive distribution
    assert_close(pi.sum(), torch.tensor(1.0))
    assert_close(pi @ a, pi, rtol=1e-11, atol=0)


@given(n=sizes, temperature=temperatures, seed=seeds)
def test_stationary_distribution_of_a_causal_chain_is_token_zero(n, temperature, seed):
    torch.manual_seed(seed)
    a = causal_chain(n=n, temperature=temperature)
    assert_close(stationary_distribution(a), torch.eye(n)[0], rtol=0, atol=0)


@given(n=st.integers(2, 9), seed=seeds)
def test_stationary_distribution_follows_a_permutation_of_tokens(n, seed):
    """The absorbing token may be at any position; the elimination must find it."""
    torch.manual_seed(seed)
    a, order = causal_chain(n=n), torch.randperm(n)
    expected = stationary_distribution(a)[order]
    assert_close(stationary_distribution(a[order][:, order]), expected, rtol=0, atol=0)


def test_stationary_distribution_of_two_states_by_hand():
    a = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
    assert_close(stationary_distribution(a), torch.tensor([0.8, 0.2]))


def test_stationary_distribution_of_a_periodic_chain_is_uniform():
    assert_close(stationary_distribution(permutation(1, 2, 3, 4, 0)), torch.full((5,), 0.2))


def test_stationary_distribution_of_transient_tokens_is_zero():
    """Tokens 1 and 3 step only to each other; tokens 0 and 2 can step to them."""
    a = torch.tensor(
        [[0.5, 0.0, 0.5, 0.0], [0.0, 0.3, 0.0, 0.7], [0.2, 0.2, 0.2, 0.4], [0.0, 0.6, 0.0, 0.4]],
    )
    assert_close(stationary_distribution(a), torch.tensor([0.0, 6 / 13, 0.0, 7 / 13]))


def test_stationary_distribution_small_entries_are_accurate():
    """The step to token 1 has probability 1e-30. An eigenvector routine would return rounding noise of 1e-17."""
    a = torch.tensor([[1.0, 1e-30], [0.25, 0.75]])
    assert_close(stationary_distribution(a)[1], torch.tensor(4e-30), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_have_the_dtype_of_the_input(dtype):
    a = chain(2, n=5).to(dtype)
    exact = a.double() / a.double().sum(-1, keepdim=True)  # rounded rows do not sum to one
    eps = torch.finfo(dtype).eps
    for measure in (stationary_distribution, spectral_gap, ergodicity_coefficient, lambda a: rollout([a, a])):
        assert measure(a).dtype == dtype
        assert_close(measure(a).double(), measure(exact), rtol=2 * eps, atol=2 * eps)


@pytest.mark.rejects
@pytest.mark.parametrize(
    "a",
    [
        permutation(0, 1, 2),
        torch.block_diag(torch.full((2, 2), 0.5), torch.full((3, 3), 1 / 3)),
        torch.tensor([[1.0, 0.0, 0.0], [0.3, 0.4, 0.3], [0.0, 0.0, 1.0]]),
        torch.stack([torch.full((3, 3), 1 / 3), torch.eye(3)]),
    ],
    ids=["identity", "blocks", "two absorbing tokens", "one of a batch"],
)
def test_stationary_distribution_not_unique_raises(a):
    with pytest.raises(ValueError, match="no token is reached from every other"):
        stationary_distribution(a)


# --- spectral gap ---------------------------------------------------------------------------------------------------


def test_spectral_gap_of_two_states_by_hand():
    a = torch.tensor([[0.9, 0.1], [0.4, 0.6]])  # eigenvalues 1 and 0.9 + 0.6 - 1
    assert_close(spectral_gap(a), torch.tensor(0.5))


@given(n=st.integers(2, 9), temperature=temperatures, seed=seeds)
def test_spectral_gap_of_a_causal_chain_comes_from_its_diagonal(n, temperature, seed):
    torch.manual_seed(seed)
    a = causal_chain(n=n, temperature=temperature)
    assert_close(spectral_gap(a), 1 - a.diagonal()[1:].max(), rtol=0, atol=1e-14)


def test_spectral_gap_of_uniform_causal_attention_is_one_half():
    n = 11
    a = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    assert_close(torch.linalg.eigvals(a).real.sort(descending=True).values, 1 / torch.arange(1, n + 1))
    assert_close(spectral_gap(a), torch.tensor(0.5))


def test_spectral_gap_uses_the_modulus_of_complex_eigenvalues():
    """A walk in a circle with probability 0.9 has the eigenvalues 0.1 + 0.9 exp(2 pi i k / 3) for k = 0, 1, 2."""
    a = 0.1 * torch.eye(3) + 0.9 * permutation(1, 2, 0)
    second = 0.1 + 0.9 * torch.exp(torch.tensor(2j * torch.pi / 3))
    assert second.real < 0  # a gap from the real part would exceed one
    assert_close(spectral_gap(a), 1 - second.abs())


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 3, 4, 0)], ids=["identity", "circle"])
def test_spectral_gap_of_a_permutation_is_zero(order):
    assert_close(spectral_gap(permutation(*order)), torch.tensor(0.0))


def test_spectral_gap_of_equal_rows_is_one():
    assert_close(spectral_gap(torch.tensor([0.2, 0.3, 0.5]).expand(3, 3)), torch.tensor(1.0))
    assert_close(spectral_gap(torch.ones(2, 1, 1)), torch.ones(2))


def test_spectral_gap_is_the_rate_of_convergence():
    a = chain(n=13, temperature=0.5)
    pi, rate = stationary_distribution(a), 1 - spectral_gap(a)
    left = [(torch.linalg.matrix_power(a, t) - pi).abs().max() for t in (20, 40)]
    assert_close((left[1] / left[0]) ** (1 / 20), rate, rtol=0.1, atol=0)


# --- ergodicity coefficient -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_ergodicity_coefficient_equals_both_formulas(batch):
    a = chain(*batch, n=5, m=11)
    pairs = a[..., :, None, :], a[..., None, :, :]
    half_distance = (pairs[0] - pairs[1]).abs().sum(-1).amax((-2, -1)) / 2
    one_minus_overlap = 1 - torch.minimum(*pairs).sum(-1).amin((-2, -1))
    assert_close(ergodicity_coefficient(a), half_distance)
    assert_close(ergodicity_coefficient(a), one_minus_overlap)


def test_ergodicity_coefficient_extreme_values():
    assert_close(ergodicity_coefficient(torch.tensor([0.2, 0.3, 0.5]).expand(4, 3)), torch.tensor(0.0))
    assert_close(ergodicity_coefficient(permutation(1, 2, 0)), torch.tensor(1.0))


@given(n=sizes, m=sizes, k=sizes, temperature=temperatures, seed=seeds)
def test_ergodicity_coefficient_is_submultiplicative(n, m, k, temperature, seed):
    torch.manual_seed(seed)
    a, b = chain(n=n, m=m, temperature=temperature), chain(n=m, m=k, temperature=temperature)
    assert ergodicity_coefficient(a @ b) <= ergodicity_coefficient(a) * ergodicity_coefficient(b) + 1e-14


@given(n=st.integers(2, 9), temperature=temperatures, seed=seeds)
def test_ergodicity_coefficient_bounds_contraction_and_second_eigenvalue(n, temperature, seed):
    torch.manual_seed(seed)
    a, (p, q) = chain(n=n, temperature=temperature), chain(n=2, m=n)
    coefficient = ergodicity_coefficient(a)
    assert (p @ a - q @ a).abs().sum() <= coefficient * (p - q).abs().sum() + 1e-14
    assert 1 - spectral_gap(a) <= coefficient + 1e-12


# --- rollout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5])
def test_rollout_equals_the_product_by_hand(residual, batch):
    first, second, third = layers = [chain(*batch) for _ in range(3)]
    mixed = [residual * torch.eye(7) + (1 - residual) * a for a in (first, second, third)]
    expected = mixed[2] @ mixed[1] @ mixed[0]
    assert_close(rollout(layers, residual=residual), expected)
    assert_close(rollout(torch.stack(layers), residual=residual), expected)


def test_rollout_default_residual_is_one_half():
    layers = [chain(2), chain(2)]
    assert_close(rollout(layers), rollout(layers, residual=0.5), rtol=0, atol=0)


def test_rollout_with_residual_one_is_the_identity():
    assert_close(rollout([chain(), chain()], residual=1.0), torch.eye(7))


@given(n=sizes, depth=st.integers(1, 5), residual=st.floats(0.0, 1.0), seed=seeds)
def test_rollout_is_row_stochastic_and_causal(n, depth, residual, seed):
    torch.manual_seed(seed)
    flow = rollout([causal_chain(n=n) for _ in range(depth)], residual=residual)
    assert_close(flow.sum(-1), torch.ones(n))
    assert (flow.triu(1) == 0).all()


# --- errors ---------------------------------------------------------------------------------------------------------

MEASURES = [stationary_distribution, spectral_gap, ergodicity_coefficient, lambda a: rollout([a])]


@pytest.mark.rejects
@pytest.mark.parametrize("measure", MEASURES, ids=["stationary", "gap", "ergodicity", "rollout"])
@pytest.mark.parametrize(
    ("a", "message"),
    [
        (torch.full((3, 3), 0.3), r"must be row-stochastic: every row must sum to one .*, got 0\.9"),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "a fully masked query has no next step"),
        (torch.tensor([[1.5, -0.5], [0.5, 0.5]]), r"no negative entries and no NaN, got a smallest entry of -0\.5"),
        (torch.full((2, 2), torch.nan), "no negative entries and no NaN"),
        (torch.ones(2, 2, dtype=torch.int64), r"must hold floating-point numbers, got torch\.int64"),
        (torch.ones(1), r"must be \(\*batch, n, m\) with at least one entry, got \(1,\)"),
        (torch.ones(0, 2, 2), "with at least one entry"),
    ],
    ids=["rows", "empty row", "negative", "nan", "integers", "vector", "nothing"],
)
def test_not_row_stochastic_raises(measure, a, message):
    with pytest.raises(ValueError, match=message):
        measure(a)


@pytest.mark.rejects
@pytest.mark.parametrize("measure", [stationary_distribution, spectral_gap, lambda a: rollout([a])])
def test_not_square_raises(measure):
    with pytest.raises(ValueError, match=r"must be square, so that one step can follow another, got \(3, 4\)"):
        measure(torch.full((3, 4), 0.25))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, "layers must hold at least one matrix, got none"),
        ([torch.eye(3)], {"residual": 1.1}, r"residual must be in \[0, 1\], got 1\.1"),
        ([torch.eye(3), torch.eye(4)], {}, r"layers must have one shape, got \(3, 3\) and \(4, 4\)"),
        ([torch.eye(3), torch.eye(3).half()], {}, r"layers\[0\] and layers\[1\] must have the same dtype"),
        ([torch.eye(3), torch.zeros(3, 3)], {}, r"layers\[1\] must be row-stochastic"),
    ],
)
def test_rollout_invalid_arguments_raise(layers, options, message):
    with pytest.raises(ValueError, match=message):
        rollout(layers, **options)


# --- wrong implementations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda layers: layers[0] @ layers[1], id="first layer last"),
        pytest.param(lambda layers: rollout(layers[::-1]), id="reversed"),
        pytest.param(lambda layers: rollout(layers, residual=0.0), id="omits the residual"),
        pytest.param(lambda layers: rollout([a.mT for a in layers]), id="reads columns"),
    ],
)
def test_product_by_hand_catches_wrong_rollouts(wrong):
    layers = [sum(torch.eye(7)[torch.randperm(7)] for _ in range(3)) / 3 for _ in range(2)]  # columns sum to one too
    by_hand = (layers[1] + torch.eye(7)) / 2 @ (layers[0] + torch.eye(7)) / 2
    assert torch.allclose(rollout(layers), by_hand)
    assert not torch.allclose(wrong(layers), by_hand)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda a: torch.full((7,), 1 / 7), id="the right eigenvector"),
        pytest.param(lambda a: a.mean(-2), id="the mean row"),
        pytest.param(lambda a: stationary_distribution(rollout([a, a]).mT.softmax(-1)), id="another chain"),
    ],
)
def test_invariance_under_a_step_catches_wrong_stationary_distributions(wrong):
    a = chain()
    assert not torch.allclose(wrong(a) @ a, wrong(a))
