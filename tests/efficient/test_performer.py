"""Tests of Performer: unbiased estimates of the softmax kernel, and convergence to exact attention."""

import math
from functools import partial

import pytest
import torch
from efficient_cases import assert_linear, assert_same, qkv
from torch.autograd import gradcheck
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.efficient import performer, relative_error
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention, positive_features
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal_projection(n_features, d_k, generator):
    """Independent normal samples, for comparison with orthogonal ones."""
    return torch.randn(n_features, d_k, generator=generator)


PROJECTION = orthogonal_projection(11, 5, generator(), dtype=torch.float64)


def by_matrix(query, key, value, mask=None, *, causal=False, scale=None, projection=PROJECTION):
    """The specification: the estimated kernel as a matrix, each row divided by its sum."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    root, sign = abs(scale) ** 0.5, math.copysign(1, scale)
    key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    kernel = positive_features(sign * root * query, projection) @ positive_features(root * key, projection).mT
    n, m = kernel.shape[-2:]
    allowed = masks.causal(n, m) if causal else masks.bidirectional(n, m)
    kernel = kernel * (allowed if mask is None else allowed & mask)
    total = kernel.sum(dim=-1, keepdim=True)
    return kernel / total.masked_fill(total == 0, 1) @ value


# --- projections ----------------------------------------------------------------------------------------------------


def test_orthogonal_projection_groups_are_orthogonal():
    projection = orthogonal_projection(13, 5, generator())
    assert projection.shape == (13, 5)
    for start in (0, 5, 10):
        products = projection[start : start + 5] @ projection[start : start + 5].mT
        assert_close(products, products.diagonal().diag())


def test_orthogonal_projection_rows_are_standard_normal():
    """Mean 0, covariance I and squared norms of variance 2 d, for each position in a group."""
    d, draws = 3, 20_000
    for rows in orthogonal_projection(draws * d, d, generator()).unflatten(0, (draws, d)).unbind(1):
        assert (rows.mean(0).abs() < 4.5 / math.sqrt(draws)).all()
        assert ((rows.mT @ rows / draws - torch.eye(d)).abs() < 4.5 * math.sqrt(2 / draws)).all()
        assert rows.square().sum(-1).var().item() == pytest.approx(2 * d, rel=0.1)


def test_orthogonal_projection_depends_on_the_generator_only():
    assert torch.equal(orthogonal_projection(7, 3, generator(1)), orthogonal_projection(7, 3, generator(1)))
    assert not torch.equal(orthogonal_projection(7, 3, generator(1)), orthogonal_projection(7, 3, generator(2)))
    assert orthogonal_projection(7, 3, generator(), dtype=torch.float32).dtype == torch.float32


# --- the kernel -----------------------------------------------------------------------------------------------------

X, Y = (0.4 * torch.randn(rows, 3, generator=generator(rows), dtype=torch.float64) for rows in (5, 7))
SAMPLES = 40_000


def features_of_each(x, omega):
    """``positive_features`` for many projections over ``(draws, r, 3)``, taken as one with ``draws * r`` rows."""
    draws, r, _ = omega.shape
    together = math.sqrt(draws) * positive_features(x, omega.flatten(0, 1))
    return together.unflatten(-1, (draws, r)).movedim(-2, 0)


def estimates(draw=orthogonal_projection, features=features_of_each, r=3):
    """Return one estimate of the kernel between the rows of X and Y for each sample of ``r`` features."""
    omega = draw(SAMPLES * r, 3, generator()).unflatten(0, (SAMPLES, r))
    return features(X, omega) @ features(Y, omega).mT


def bias_in_standard_errors(estimate):
    """Return the largest difference between the mean estimate and the kernel, in standard errors."""
    standard_error = estimate.std(0) / math.sqrt(len(estimate))
    return ((estimate.mean(0) - (X @ Y.mT).exp()).abs() / standard_error).max().item()


def test_positive_features_estimate_the_kernel_without_bias():
    """35 means within 4.5 standard errors; the probability of a false alarm is 1 in 4000."""
    assert bias_in_standard_errors(estimates()) < 4.5


def test_positive_features_variance_equals_the_formula_of_the_paper():
    """The variance with independent samples is exp(2 x.y) (exp(|x + y|^2) - 1) / r."""
    variance = estimates(normal_projection).var(0)
    squared = torch.cdist(X, -Y).square()
    expected = (2 * X @ Y.mT).exp() * (squared.exp() - 1) / 3
    near = squared < 0.6  # for larger values 40000 samples do not determine the variance
    assert near.sum() >= 5
    assert_close(variance[near], expected[near], rtol=0.1, atol=0)


def test_orthogonal_projection_has_less_variance_than_independent_samples():
    """Measured for near pairs, 3 samples in 3 dimensions: 0.92 to 0.97 of the variance of independent samples."""
    near = torch.cdist(X, -Y).square() < 0.6
    orthogonal, independent = (estimates(draw).var(0)[near] for draw in (orthogonal_projection, normal_projection))
    assert (orthogonal < independent).all()
    assert (orthogonal / independent).mean() < 0.97


def signs_from_lapack(n_features, d_k, generator):
    q, _ = torch.linalg.qr(torch.randn(-(-n_features // d_k), d_k, d_k, generator=generator))
    return torch.randn(n_features, d_k, generator=generator).norm(dim=-1, keepdim=True) * q.flatten(0, 1)[:n_features]


def equal_lengths(n_features, d_k, generator):
    projection = orthogonal_projection(n_features, d_k, generator)
    return projection / projection.norm(dim=-1, keepdim=True) * math.sqrt(d_k)


def reference_features(x, omega, *, norm=0.5, root=True):
    return (x @ omega.mT - norm * x.square().sum(-1, keepdim=True)).exp() / (omega.shape[-2] ** 0.5 if root else 1.0)


BIASED = {
    "signs from LAPACK": {"draw": signs_from_lapack},
    "equal lengths": {"draw": equal_lengths},
    "not divided by sqrt(r)": {"features": partial(reference_features, root=False)},
    "omits the factor one half": {"features": partial(reference_features, norm=1.0)},
    "omits the norm": {"features": partial(reference_features, norm=0.0)},
}


def test_reference_features_without_mistake_equal_positive_features():
    assert_close(estimates(features=reference_features), estimates())


@pytest.mark.parametrize("wrong", BIASED)
def test_bias_test_catches_wrong_features(wrong):
    assert bias_in_standard_errors(estimates(**BIASED[wrong])) > 4.5


def trigonometric_features(x, omega):
    """Unbiased features that are not positive: exp(x.y) = exp(|x|^2 / 2 + |y|^2 / 2) E cos(omega.(x - y))."""
    angles, length = x @ omega.mT, x.square().sum(-1, keepdim=True)
    return (length / 2).exp() * torch.cat([angles.sin(), angles.cos()], dim=-1) / omega.shape[-2] ** 0.5


def test_trigonometric_features_estimate_negative_kernels():
    """Sines and cosines are unbiased as well, but some of their estimates of the positive kernel are negative."""
    assert bias_in_standard_errors(estimates(features=trigonometric_features)) < 4.5
    x, y, omega = 2 * torch.randn(20, 5), 2 * torch.randn(20, 5), PROJECTION
    assert (positive_features(x, omega) > 0).all()
    assert (trigonometric_features(x, omega) @ trigonometric_features(y, omega).mT < 0).any()


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("scale", [None, 0.3, -0.2, 0.0])
def test_performer_attention_equals_the_explicit_kernel(causal, scale):
    options = {"causal": causal, "scale": scale}
    assert_same(partial(performer_attention, projection=PROJECTION, **options), partial(by_matrix, **options), qkv())


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_performer_attention_equals_linear_attention_with_its_features(causal):
    query, key, value = qkv()
    root = 5**-0.25
    features = partial(positive_features, projection=PROJECTION)
    exact = linear_attention(root * query, root * key, value, causal=causal, feature_map=features)
    assert_close(performer_attention(query, key, value, projection=PROJECTION, causal=causal), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 8, 1000])
@pytest.mark.parametrize(("n", "m"), [(140, 140), (70, 140)])
def test_performer_attention_causal_ignores_later_keys_of_any_size(dtype, size, n, m):
    """Outputs and gradients of a prefix equal those of the whole sequence. Measured errors: 1.2 eps and 250 eps."""
    given = [x.detach().to(dtype) for x in qkv(n=n, m=m, d_k=64, d_v=3)]
    given[1][..., : m - n // 2, :] *= size
    projection = orthogonal_projection(33, 64, generator(), dtype=dtype)

    def beginning(length, n_kept):
        leaves = [x[..., : x.shape[-2] - n + length, :].clone().requires_grad_() for x in given]
        out = performer_attention(*leaves, projection=projection, causal=True)[..., :n_kept, :]
        upstream = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        gradients = torch.autograd.grad(out, leaves, upstream)
        return out, [g[..., : g.shape[-2] - length + n_kept, :] for g in gradients]

    for n_kept in (3, n // 2, n - 1):
        (whole, gradients), (part, expected) = beginning(n, n_kept), beginning(n_kept, n_kept)
        assert part.any(dim=-1).all()
        tolerance = 8 * torch.finfo(dtype).eps
        assert_close(whole, part, rtol=0, atol=tolerance * part.detach().abs().max())
        for ours, theirs in zip(gradients, expected, strict=True):
            assert_close(ours, theirs, rtol=0, atol=1e3 * torch.finfo(dtype).eps * (1 + theirs.abs().max()))


@pytest.mark.parametrize(("n", "m"), [(1, 23), (140, 151)])
def test_performer_attention_queries_are_the_last_positions(n, m):
    ours = partial(performer_attention, projection=PROJECTION, causal=True)
    assert_same(ours, partial(by_matrix, causal=True), qkv(n=n, m=m))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", [(29, 17), (29, 0)], ids=str)
def test_performer_attention_hidden_keys_do_not_affect_the_shift(causal, lengths):
    """A hidden key of any size does not change the maximum that is subtracted."""
    query, key, value = qkv(n=29)
    mask = masks.padding(torch.tensor(lengths), 29)
    ours = partial(performer_attention, mask=mask, projection=PROJECTION, causal=causal)
    assert_same(ours, partial(by_matrix, mask=mask, causal=causal), [query, key, value])
    with_junk = key.masked_fill(~mask.mT, 1e6)
    assert_close(ours(query, with_junk, value), ours(query, key, value))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradcheck(causal):
    projection = orthogonal_projection(7, 2, generator())
    ours = partial(performer_attention, projection=projection, causal=causal)
    assert gradcheck(ours, qkv((2,), groups=1, n=11, d_k=2, d_v=3))


def mean_error(n_features, draws=6, *, size=0.5, **options):
    """The relative error against exact attention for n=256 and width 16, averaged over samples of the features."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 256, 16) for _ in range(3))
    query, key, g = size * query, size * key, generator()
    exact = attention(query, key, value, masks.causal(256) if options.get("causal") else None)
    return (
        sum(
            relative_error(
                performer_attention(query, key, value, projection=orthogonal_projection(n_features, 16, g), **options),
                exact,
            )
            for _ in range(draws)
        )
        / draws
    )


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_performer_attention_error_falls_as_one_over_sqrt_of_features(causal):
    """Scores of standard deviation 1/4. Measured errors: 0.19 with 256 features and 0.04 with 4096."""
    few, many = (mean_error(r, causal=causal) for r in (256, 4096))
    assert math.log(many / few) / math.log(4096 / 256) == pytest.approx(-0.5, abs=0.1)
    assert many < 0.1


def test_performer_attention_large_scores_need_more_features():
    """The relative variance grows as exp(|x + y|^2): with scores four times as large, the error exceeds 1."""
    assert mean_error(256, size=1.0) > 1 > 5 * mean_error(256, size=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_performer_attention_large_inputs_are_finite(dtype):
    """The exponents reach 200. The shifts keep the features in the range of float32."""
    query, key, value = (t.detach() for t in qkv())
    query, key = query.mul(5).to(dtype), key.mul(5).to(dtype)
    ours = performer_attention(query, key, value.to(dtype), projection=PROJECTION)
    exact = performer_attention(query.double(), key.double(), value.to(dtype).double(), projection=PROJECTION)
    assert ours.dtype == dtype
    assert relative_error(ours.double(), exact) < 8 * torch.finfo(dtype).eps + 1e-4  # 1e-4: exponents of 200 rounded


def test_performer_attention_without_shift_underflows(monkeypatch):
    """Without the shift of queries or of keys, their features underflow in float32."""
    query, key, value = (t.detach().float() for t in qkv())
    for scaled in ((30 * query, key), (query, 30 * key)):
        inputs = *scaled, value
        exact = performer_attention(*[t.double() for t in inputs], projection=PROJECTION)
        assert relative_error(performer_attention(*inputs, projection=PROJECTION).double(), exact) < 1e-2
        with monkeypatch.context() as patch:
            patch.setattr(performer, "_finite_max", lambda log_features, dim: torch.zeros(()))
            assert not relative_error(performer_attention(*inputs, projection=PROJECTION).double(), exact) < 1e-2


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_performer_attention_memory_is_linear(causal):
    assert_linear(partial(performer_attention, projection=PROJECTION, causal=causal))


# --- inside a layer and a model -------------------------------------------------------------------------------------


def test_performer_attention_as_implementation_of_a_layer():
    projection = orthogonal_projection(9, 2, generator())
    layer = MultiHeadAttention(12, 6, n_kv_heads=3, implementation=partial(performer_attention, projection=projection))
    plain = MultiHeadAttention(
        12,
        6,
        n_kv_heads=3,
        implementation=lambda q, k, v, mask, **_: by_matrix(q, k, v, mask, projection=projection),
    )
    plain.load_state_dict(layer.state_dict())
    x, mask = torch.randn(2, 31, 12), masks.padding(torch.tensor([31, 17]), 31)
    assert_close(layer(x, mask=mask), plain(x, mask=mask))


def test_performer_attention_as_implementation_of_a_gpt():
    projection = orthogonal_projection(9, 4, generator())
    implementation = partial(performer_attention, causal=True, projection=projection)
    model = GPT(GPTConfig(11, 40, d_model=12, n_layers=2, n_heads=3), implementation=implementation)
    tokens = torch.randint(11, (2, 31))
    assert_close(model(tokens)[:, :17], model(tokens[:, :17]))


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype)


BAD = {
    "scale": ({"scale": math.inf}, "scale must be finite, got inf"),
    "bias": ({"bias": zeros(5, 5)}, "bias must be None, Performer has no scores"),
    "dropout": ({"dropout_p": 0.1}, "dropout_p must be 0, Performer never computes the weights, got 0.1"),
    "any mask": ({"mask": torch.eye(5) > 0}, "mask must hide each key from all queries or from none"),
    "fewer keys": ({"key": zeros(4, 3), "value": zeros(4, 2), "causal": True}, "n must be at most m, got 5 and 4"),
    "width": ({"key": zeros(5, 2)}, "query and key must have the same width, got 3 and 2"),
    "projection's width": ({"projection": zeros(7, 4)}, r"projection must be .* d_k=3\), got .* over \(7, 4\)"),
    "projection's type": ({"projection": zeros(7, 3).long()}, "projection must be .* got torch.int64"),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    change, message = BAD[case]
    given = {"query": zeros(5, 3), "key": zeros(5, 3), "value": zeros(5, 2), "projection": zeros(7, 3)} | change
    with pytest.raises(ValueError, match=message):
        performer_attention(**given)


@pytest.mark.rejects
def test_orthogonal_projection_invalid_sizes_raise():
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        orthogonal_projection(0, 3, generator())
    with pytest.raises(ValueError, match=r"d_k must be an integer, got 3\.0"):
        orthogonal_projection(3, 3.0, generator())
