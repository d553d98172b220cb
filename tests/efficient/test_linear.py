"""Tests that the full, causal and recurrent forms of linear attention agree, and that their memory is linear."""

from functools import partial

import pytest
import torch
from efficient_cases import assert_linear, assert_same, largest_and_written, qkv
from torch.autograd import gradcheck
from torch.nn.functional import elu
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.efficient import linear, relative_error
from lessons_lib.efficient.linear import (
    LinearState,
    average_by_features,
    elu_plus_one,
    linear_attention,
    linear_attention_step,
)
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 8, so that short sequences have a first, an inner and a shorter last chunk."""
    monkeypatch.setattr(linear, "_CHUNK", 8)


def by_matrix(query, key, value, mask=None, *, causal=False, feature_map=elu_plus_one):
    """The specification: the matrix of weights, each row divided by its sum."""
    n, m = query.shape[-2], key.shape[-2]
    if query.ndim > 2:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    weights = feature_map(query) @ feature_map(key).mT
    allowed = masks.causal(n, m) if causal else masks.bidirectional(n, m)
    weights = weights * (allowed if mask is None else allowed & mask)
    total = weights.sum(dim=-1, keepdim=True)
    return (weights / total.masked_fill(total == 0, 1)) @ value


def step_by_step(query, key, value, *, sizes=None, **options):
    """The recurrent form: position by position, or in steps of the given sizes."""
    sizes = [1] * query.shape[-2] if sizes is None else sizes
    outs, state = [], None
    for q, k, v in zip(*(x.split(sizes, dim=-2) for x in (query, key, value)), strict=True):
        out, state = linear_attention_step(q, k, v, state, **options)
        outs.append(out)
    return torch.cat(outs, dim=-2)


# --- equality -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 37])
@pytest.mark.parametrize(("batch", "groups"), [((), 1), ((3,), 1), ((4,), 2), ((2, 6), 3)], ids=str)
def test_linear_attention_equals_explicit_weights(n, causal, batch, groups):
    inputs = qkv(batch, groups=groups, n=n)
    assert_same(partial(linear_attention, causal=causal), partial(by_matrix, causal=causal), inputs)


@pytest.mark.parametrize("n", [128, 129, 300])
def test_linear_attention_equals_explicit_weights_with_full_chunks(n):
    assert_same(partial(linear_attention, causal=True), partial(by_matrix, causal=True), qkv((2,), groups=1, n=n))


@pytest.mark.usefixtures("small_chunks")
def test_linear_attention_full_causal_and_recurrent_forms_agree():
    """All keys are visible to the last query, so the full and causal outputs agree there."""
    inputs = qkv()
    causal = linear_attention(*inputs, causal=True)
    assert_close(causal[..., -1:, :], linear_attention(*inputs)[..., -1:, :])
    assert_same(step_by_step, partial(linear_attention, causal=True), inputs)


@pytest.mark.parametrize("sizes", [[37], [36, 1], [5, 19, 13]], ids=str)
def test_linear_attention_step_of_any_size(sizes):
    assert_same(partial(step_by_step, sizes=sizes), partial(by_matrix, causal=True), qkv())


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("n", "m"), [(1, 23), (5, 11), (19, 23)])
def test_linear_attention_queries_are_the_last_positions(n, m):
    assert_same(partial(linear_attention, causal=True), partial(by_matrix, causal=True), qkv(n=n, m=m))
    assert_same(linear_attention, by_matrix, qkv(n=m, m=n))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_attention_other_feature_map(causal):
    features = partial(torch.nn.functional.pad, pad=(0, 1), value=1.0)  # a polynomial kernel
    options = {"causal": causal, "feature_map": lambda x: features(x.square())}
    assert_same(partial(linear_attention, **options), partial(by_matrix, **options), qkv())


MASKS = {
    "padding": lambda n: masks.padding(torch.tensor([n, n // 3]), n),
    "all keys hidden": lambda n: masks.padding(torch.tensor([n, 0]), n),
    "one for each head": lambda n: torch.rand(6, 1, n) < 0.7,
}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("mask", MASKS)
def test_linear_attention_mask_hides_keys(mask, causal):
    hides = MASKS[mask](29)
    ours = partial(linear_attention, mask=hides, causal=causal)
    assert_same(ours, partial(by_matrix, mask=hides, causal=causal), qkv(n=29))


@pytest.mark.usefixtures("small_chunks")
def test_linear_attention_mask_may_contain_the_causal_mask():
    mask = masks.causal(19, 29) & masks.padding(torch.tensor([29, 21]), 29)
    ours = partial(linear_attention, mask=mask, causal=True)
    assert_same(ours, partial(by_matrix, mask=mask), qkv(n=19, m=29))


def test_linear_attention_mask_with_equal_rows():
    mask = (torch.rand(29) < 0.7).expand(19, 29)
    assert_same(partial(linear_attention, mask=mask), partial(by_matrix, mask=mask), qkv(n=19, m=29))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_gradcheck(causal):
    assert gradcheck(partial(linear_attention, causal=causal), qkv((2,), groups=1, n=11, d_k=2, d_v=3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_attention_half_precision_is_rounded_once(dtype, causal):
    inputs = [t.detach().to(dtype) for t in qkv(n=200)]
    ours = linear_attention(*inputs, causal=causal)
    exact = by_matrix(*[t.double() for t in inputs], causal=causal)
    assert ours.dtype == dtype
    assert_close(ours.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)  # 1e-5: float32 sums of 200


# --- properties ------------------------------------------------------------------------------------------------------


def test_elu_plus_one_equals_the_formula_of_the_paper():
    x = torch.linspace(-5, 5, 101, requires_grad=True)
    assert_same(elu_plus_one, lambda x: elu(x) + 1, [x])
    assert (elu_plus_one(torch.tensor([-700.0, -40.0, 0.0])) > 0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_attention_of_equal_values_returns_them(causal):
    """The denominator makes the weights sum to one."""
    query, key, value = qkv()
    constant = value[..., :1, :].expand_as(value)
    out = linear_attention(query, key, constant, causal=causal)
    assert_close(out, constant[..., :1, :].repeat_interleave(2, dim=-3).expand_as(out))


def test_linear_attention_causal_ignores_later_keys():
    query, key, value = qkv()
    before = linear_attention(query, key, value, causal=True)
    changed = [torch.cat([x[..., :20, :], 100 * torch.randn_like(x[..., 20:, :])], dim=-2) for x in (key, value)]
    after = linear_attention(query, *changed, causal=True)
    assert_close(after[..., :20, :], before[..., :20, :])
    assert not torch.allclose(after[..., 20:, :], before[..., 20:, :])


def test_linear_attention_differs_from_softmax_attention():
    """Measured relative error for n=256, width 16 and standard normal inputs: 0.78. Zeros would have the error 1."""
    inputs = qkv((8,), groups=8, n=256, d_k=16, d_v=16)
    assert 0.7 < relative_error(linear_attention(*inputs), attention(*inputs)) < 0.85


def test_linear_state_size_is_constant():
    query, key, value = qkv((2, 6), groups=3, n=100, d_k=5, d_v=7)
    _, early = linear_attention_step(query[..., :1, :], key[..., :1, :], value[..., :1, :])
    _, late = linear_attention_step(query, key, value)
    assert early.n_bytes == late.n_bytes == 2 * 6 * 5 * (7 + 1) * 8


def test_linear_attention_step_does_not_modify_its_state():
    inputs = [x.detach() for x in qkv(n=3)]
    _, state = linear_attention_step(*inputs)
    before = [part.clone() for part in state]
    linear_attention_step(*inputs, state)
    assert_close(list(state), before)


# --- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_attention_memory_is_linear(causal):
    assert_linear(partial(linear_attention, causal=causal), lengths=(512, 1024, 2048))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_linear_attention_largest_tensor_is_the_sequence_or_a_chunk(causal):
    """No tensor has n * n or n * d * d numbers. The values have 2 * n * 7, the weights of a chunk 2 * 128 * 128."""
    n = 2048
    largest, _ = largest_and_written(partial(linear_attention, causal=causal), *qkv((2,), groups=2, n=n, d_k=5, d_v=7))
    assert largest <= max(2 * n * 7, 2 * 128 * 128) < 2 * n * 5 * 7


def all_states_in_memory(query, key, value):
    """Correct causal linear attention that keeps the state of every position in memory."""
    states = (elu_plus_one(key)[..., :, None] * value[..., None, :]).cumsum(dim=-3)
    totals = elu_plus_one(key).cumsum(dim=-2)
    features = elu_plus_one(query)
    return torch.einsum("bnr,bnrd->bnd", features, states) / (features * totals).sum(-1, keepdim=True)


def test_memory_count_catches_quadratic_attention():
    inputs = qkv((2,), groups=2, n=512)
    assert_close(all_states_in_memory(*inputs), linear_attention(*inputs, causal=True))
    assert largest_and_written(all_states_in_memory, *inputs)[0] >= 2 * 512 * 5 * 7
    with pytest.raises(AssertionError):
        assert_linear(partial(by_matrix, causal=True))


# --- inside a layer and a model -------------------------------------------------------------------------------------


def test_linear_attention_as_implementation_of_a_layer():
    layer = MultiHeadAttention(12, 6, n_kv_heads=3, implementation=linear_attention)
    plain = MultiHeadAttention(12, 6, n_kv_heads=3, implementation=lambda q, k, v, mask, **_: by_matrix(q, k, v, mask))
    plain.load_state_dict(layer.state_dict())
    x, mask = torch.randn(2, 31, 12), masks.padding(torch.tensor([31, 17]), 31)
    assert_close(layer(x, mask=mask), plain(x, mask=mask))


def test_linear_attention_as_implementation_of_a_gpt():
    model = GPT(
        GPTConfig(11, 40, d_model=12, n_layers=2, n_heads=3), implementation=partial(linear_attention, causal=True)
    )
    tokens = torch.randint(11, (2, 31))
    assert_close(model(tokens)[:, :17], model(tokens[:, :17]))


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype)


BAD = {
    "scale": ({"scale": 0.5}, "scale must be None, linear attention has no scores; scale inside feature_map, got 0.5"),
    "bias": ({"bias": zeros(5, 5)}, "bias must be None, linear attention has no scores"),
    "dropout": ({"dropout_p": 0.1}, "dropout_p must be 0, linear attention never computes the weights, got 0.1"),
    "any mask": (
        {"mask": torch.eye(5) > 0},
        r"mask must hide each key from all .* \(causal=True hides the future\), got another mask",
    ),
    "a causal mask": ({"mask": masks.causal(5)}, "mask must hide each key from all queries or from none"),
    "a mask that shows the future": (
        {"mask": masks.bidirectional(5), "causal": True},
        "except for the keys that causal=True hides, got another mask",
    ),
    "float mask": ({"mask": zeros(1, 5)}, "mask must be Boolean"),
    "long mask": ({"mask": zeros(1, 6, dtype=torch.bool)}, r"mask must broadcast .* \(5, 5\), .* got \(1, 6\)"),
    "fewer keys": ({"key": zeros(4, 3), "value": zeros(4, 2), "causal": True}, "n must be at most m, got 5 and 4"),
    "width": ({"key": zeros(5, 2)}, "query and key must have the same width, got 3 and 2"),
    "heads": (
        {"query": zeros(6, 5, 3), "key": zeros(4, 5, 3), "value": zeros(4, 5, 2)},
        r"may divide the number of query heads, got \(6, 5, 3\) and \(4, 5, 3\)",
    ),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    change, message = BAD[case]
    given = {"query": zeros(5, 3), "key": zeros(5, 3), "value": zeros(5, 2)} | change
    with pytest.raises(ValueError, match=message):
        linear_attention(**given)


@pytest.mark.rejects
def test_linear_attention_step_invalid_state_raises():
    inputs = zeros(2, 1, 3), zeros(2, 1, 3), zeros(2, 1, 5)
    with pytest.raises(ValueError, match="query and key must have the same number of rows, got 1 and 2"):
        linear_attention_step(inputs[0], zeros(2, 2, 3), zeros(2, 2, 5))
    with pytest.raises(ValueError, match=r"value_sum must be \(2, 3, 5\), got \(4, 3, 5\); .* state=None"):
        linear_attention_step(*inputs, LinearState(zeros(4, 3, 5), zeros(4, 3)))
    with pytest.raises(ValueError, match="key_features and value_sum must have the same dtype"):
        linear_attention_step(*inputs, LinearState(zeros(2, 3, 5).float(), zeros(2, 3)))


@pytest.mark.rejects
def test_average_by_features_different_widths_raise():
    with pytest.raises(ValueError, match="query and key must have the same width, got 4 and 3"):
        average_by_features(zeros(5, 4), zeros(5, 3), zeros(5, 2))


# --- wrong implementations ------------------------------------------------------------------------------------------


def reference(query, key, value, *, before_use=True, normalise=True, features=elu_plus_one, decay=1.0, total=True):
    """A second implementation of the recurrent form, with options that introduce known mistakes."""
    q, k, outs = features(query), features(key), []
    s, z = torch.zeros(5, 7), torch.zeros(5)
    for i in range(len(q)):
        if before_use:
            s, z = decay * s + torch.outer(k[i], value[i]), decay * z + k[i]
        weight = q[i] @ z if total else q[i] @ k[i]
        outs.append(q[i] @ s / (weight if normalise and weight else 1.0))
        if not before_use:
            s, z = s + torch.outer(k[i], value[i]), z + k[i]
    return torch.stack(outs)


WRONG = {
    "updates the state after its use": {"before_use": False},
    "omits the denominator": {"normalise": False},
    "divides by its own weight": {"total": False},
    "omits the one added to elu": {"features": elu},
    "uses relu features": {"features": torch.relu},
    "lets the state decay": {"decay": 0.9},
}


def test_reference_without_mistake_equals_linear_attention():
    inputs = qkv(())
    assert_close(reference(*inputs), linear_attention(*inputs, causal=True))


@pytest.mark.parametrize("wrong", WRONG)
def test_comparison_catches_wrong_linear_attention(wrong):
    inputs = qkv(())
    result = reference(*inputs, **WRONG[wrong])
    assert result.isfinite().all()
    with pytest.raises(AssertionError):
        assert_close(result, by_matrix(*inputs, causal=True))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("mistake", ["drops the state", "state without the last key", "chunk without causal mask"])
def test_comparison_catches_wrong_chunks(monkeypatch, mistake):
    step = linear._causal_chunk

    def wrong(query_features, key_features, value, state, log_scale):
        if mistake == "chunk without causal mask":
            monkeypatch.setattr(torch.Tensor, "tril", lambda weights: weights)
        out, after = step(query_features, key_features, value, state, log_scale)
        if mistake == "drops the state":
            after = LinearState(*map(torch.zeros_like, after))
        elif mistake == "state without the last key":
            after = LinearState(
                *(
                    whole - last
                    for whole, last in zip(
                        after, linear._state_of(key_features[..., -1:, :], value[..., -1:, :]), strict=True
                    )
                )
            )
        return out, after

    monkeypatch.setattr(linear, "_causal_chunk", wrong)
    inputs = qkv()
    wrong_out = linear_attention(*inputs, causal=True)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        assert_close(wrong_out, by_matrix(*inputs, causal=True))
