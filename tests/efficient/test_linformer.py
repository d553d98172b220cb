"""Tests of Linformer against its definition, and against exact attention where the projection loses nothing."""

from functools import partial

import pytest
import torch
from efficient_cases import assert_linear, assert_same, qkv
from torch.autograd import gradcheck
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.efficient import relative_error
from lessons_lib.efficient.linformer import LinformerAttention


def linformer(e, f=None):
    """A ``LinformerAttention`` with given projections."""
    layer = LinformerAttention(e.shape[1], e.shape[0])
    layer.load_state_dict({"e": e, "f": e if f is None else f})
    return layer


def block_means(r, m):
    """The projection that averages ``m / r`` consecutive positions."""
    return torch.eye(r).repeat_interleave(m // r, dim=1) * r / m


def by_definition(query, key, value, e, f, scale=None):
    """softmax(Q (E K)^T scale) (F V), written with einsum."""
    share = query.shape[-3] // key.shape[-3]
    keys = torch.einsum("rm,bhmd->bhrd", e, key).repeat_interleave(share, dim=1)
    values = torch.einsum("rm,bhmd->bhrd", f, value).repeat_interleave(share, dim=1)
    scores = torch.einsum("bhnd,bhrd->bhnr", query, keys) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return torch.einsum("bhnr,bhrd->bhnd", torch.softmax(scores, dim=-1), values)


# --- equality -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, 0.7])
def test_linformer_equals_its_definition(scale):
    layer = LinformerAttention(23, 11)
    inputs = [*qkv(n=37, m=23), layer.e, layer.f]
    assert_same(lambda *x: layer(*x[:3], scale=scale), partial(by_definition, scale=scale), inputs)


@pytest.mark.parametrize(("batch", "groups"), [((), 1), ((3,), 1), ((1, 4), 2), ((2, 3, 4), 2)], ids=str)
def test_linformer_is_exact_if_the_projection_is_the_identity(batch, groups):
    layer = linformer(torch.eye(23))
    assert_same(layer, attention, qkv(batch, groups=groups, n=37, m=23))


def test_linformer_is_exact_if_the_projection_is_a_permutation():
    assert_same(linformer(torch.eye(23)[torch.randperm(23)]), attention, qkv(n=37, m=23))


def test_linformer_is_exact_for_block_means_of_equal_keys():
    """If three neighbouring keys and values are equal, their mean gives the same output as the three."""
    query, key, value = qkv(n=37, m=7)
    key, value = (x.repeat_interleave(3, dim=-2) for x in (key, value))
    assert_close(linformer(block_means(7, 21))(query, key, value), attention(query, key, value))


def test_linformer_error_falls_with_the_number_of_projected_keys():
    """Averages of neighbours, for keys and values that change slowly. Measured errors: 0.63, 0.20, 0.05, 0."""
    query, key, value = qkv((2, 6), groups=6, n=37, m=96)
    key, value = (
        torch.nn.functional.avg_pool1d(x.flatten(0, 1).mT, 9, 1, 4).mT.unflatten(0, (2, 6)) for x in (key, value)
    )
    key = 4 * key
    exact = attention(query, key, value)
    errors = [relative_error(linformer(block_means(r, 96))(query, key, value), exact) for r in (4, 16, 48, 96)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 3 * errors[2]
    assert errors[-1] < 1e-14


def test_gradcheck():
    layer = LinformerAttention(7, 3)
    query, key, value = qkv((2,), groups=1, n=5, m=7, d_k=2, d_v=3)
    call = lambda q, k, v, e, f: torch.func.functional_call(layer, {"e": e, "f": f}, (q, k, v))  # noqa: E731
    assert gradcheck(call, (query, key, value, layer.e, layer.f))


def test_linformer_dropout():
    query, key, _ = qkv((2,), groups=2, n=37, m=11)
    value, layer = torch.eye(11).expand(2, 11, 11), linformer(torch.eye(11))
    weights, dropped = layer(query, key, value), layer(query, key, value, dropout_p=0.4)
    assert torch.all((dropped == 0) | torch.isclose(dropped, weights / 0.6))
    assert (dropped == 0).any()


# --- properties ------------------------------------------------------------------------------------------------------


def test_linformer_is_not_causal():
    """Each projected value depends on the last position, so changing that position changes the first output."""
    layer = LinformerAttention(23, 11)
    query, key, value = qkv(n=23)
    changed = torch.cat([value[..., :-1, :], value[..., -1:, :] + 1], dim=-2)
    assert not torch.allclose(layer(query, key, changed)[..., 0, :], layer(query, key, value)[..., 0, :])


def test_linformer_initial_projection_keeps_the_variance_of_a_key():
    """50 x 400 projections of 97 keys. The standard error of the weights dominates: 5 sqrt(2 / 4850) is 0.1."""
    layer = LinformerAttention(97, 50)
    for projection in (layer.e, layer.f):
        assert (projection @ torch.randn(97, 400)).var().item() == pytest.approx(1, abs=0.1)


def test_linformer_memory_is_linear():
    assert_linear(lambda q, k, v: linformer(torch.ones(16, k.shape[-2]) / 16)(q, k, v), lengths=(512, 1024, 2048))


def test_linformer_parameters_belong_to_the_layer():
    layer = MultiHeadAttention(12, 6, n_kv_heads=3, implementation=LinformerAttention(31, 7))
    assert {"implementation.e", "implementation.f"} <= {name for name, _ in layer.named_parameters()}
    layer(torch.randn(2, 31, 12)).sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


BAD = {
    "another length": ({"key": zeros(6, 3), "value": zeros(6, 2)}, "made for m=5 keys, got 6"),
    "causal mask": ({"mask": masks.causal(5)}, "mask must be None, Linformer projects .* neither causal"),
    "padding": ({"mask": masks.padding(torch.tensor(3), 5)}, "nor padding masks"),
    "bias": ({"bias": zeros(5, 5)}, "bias must be None, Linformer has no scores"),
    "dropout": ({"dropout_p": 1.0}, r"dropout_p must be in \[0, 1\), got 1.0"),
    "scale": ({"scale": float("nan")}, "scale must be finite, got nan"),
    "width": ({"key": zeros(5, 2)}, "query and key must have the same width, got 3 and 2"),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    change, message = BAD[case]
    given = {"query": zeros(5, 3), "key": zeros(5, 3), "value": zeros(5, 2)} | change
    with pytest.raises(ValueError, match=message):
        LinformerAttention(5, 2)(**given)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("m", "r", "message"),
    [(0, 1, "m must be at least 1"), (5, 0, "r must be at least 1"), (5, 6, "r must be at most 5")],
)
def test_invalid_sizes_raise(m, r, message):
    with pytest.raises(ValueError, match=message):
        LinformerAttention(m, r)


# --- wrong implementations ------------------------------------------------------------------------------------------

WRONG = {
    "projects the width": lambda q, k, v, e, f: attention(q @ e[:5, :5], k @ e[:5, :5], v),
    "one projection for both": lambda q, k, v, e, f: by_definition(q, k, v, e, e),
    "swaps the projections": lambda q, k, v, e, f: by_definition(q, k, v, f, e),
    "scales by the number of projected keys": lambda q, k, v, e, f: by_definition(q, k, v, e, f, scale=11**-0.5),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_definition_catches_wrong_linformers(wrong):
    layer, inputs = LinformerAttention(23, 11), qkv(n=37, m=23)
    with pytest.raises(AssertionError):
        assert_close(layer(*inputs), WRONG[wrong](*inputs, layer.e, layer.f))
