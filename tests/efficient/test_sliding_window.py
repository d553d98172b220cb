"""Tests of sliding-window attention against attention under the mask, and of its linear memory."""

import math
from functools import partial

import pytest
import torch
from efficient_cases import assert_linear, assert_same, largest_and_written, qkv
from torch.autograd import gradcheck
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Window
from lessons_lib.efficient import sliding_window
from lessons_lib.efficient.sliding_window import sliding_window_attention
from lessons_lib.generation.sampling import generate
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8, so that short sequences have a first, an inner and a shorter last block."""
    monkeypatch.setattr(sliding_window, "_BLOCK", 8)


def under_the_mask(window, *, causal=True, **options):
    """The specification: attention under the full mask, restricted to the last queries."""

    def exact(query, key, value, mask=None):
        n, m = query.shape[-2], key.shape[-2]
        allowed = masks.sliding_window(m, window, causal=causal)[m - n :]
        return attention(query, key, value, allowed if mask is None else allowed & mask, **options)

    return exact


# --- equality -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 20, 37, 99])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 37])
def test_sliding_window_attention_equals_attention_under_the_mask(n, window, causal):
    ours = partial(sliding_window_attention, window=window, causal=causal)
    assert_same(ours, under_the_mask(window, causal=causal), qkv(n=n))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize(("n", "window"), [(128, 50), (129, 128), (300, 129), (257, 400)])
def test_sliding_window_attention_equals_attention_with_full_blocks(n, window, causal):
    ours = partial(sliding_window_attention, window=window, causal=causal)
    assert_same(ours, under_the_mask(window, causal=causal), qkv((2,), groups=1, n=n))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
@pytest.mark.parametrize(("n", "m"), [(1, 37), (5, 11), (19, 23), (9, 64)])
def test_sliding_window_attention_queries_are_the_last_positions(n, m, causal):
    for window in (1, 3, 12, 50):
        ours = partial(sliding_window_attention, window=window, causal=causal)
        assert_same(ours, under_the_mask(window, causal=causal), qkv(n=n, m=m))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("batch", "groups"), [((), 1), ((3,), 1), ((1, 4), 2), ((2, 3, 4), 2)], ids=str)
def test_sliding_window_attention_leading_axes(batch, groups):
    assert_same(partial(sliding_window_attention, window=5), under_the_mask(5), qkv(batch, groups=groups, n=19))


def random_mask(*shape):
    return torch.rand(shape) < 0.7


MASKS = {
    "padding": lambda n: masks.padding(torch.tensor([n, n // 2]), n),
    "all keys hidden": lambda n: masks.padding(torch.tensor([n, 0]), n),
    "one for each head": lambda n: random_mask(6, n, n),
    "rows of one": lambda n: random_mask(2, 1, 1, n),
    "columns of one": lambda n: random_mask(2, 6, n, 1),
    "the window itself": lambda n: masks.sliding_window(n, 5),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", MASKS)
def test_sliding_window_attention_additional_mask(mask):
    hides = MASKS[mask](29)
    ours = partial(sliding_window_attention, mask=hides, window=5)
    assert_same(ours, partial(under_the_mask(5), mask=hides), qkv(n=29))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [(29, 29), (6, 1, 29), (2, 1, 29, 1)], ids=str)
def test_sliding_window_attention_bias_and_its_gradient(shape):
    bias, inputs = torch.randn(shape, requires_grad=True), qkv(n=29)
    assert_same(
        lambda *x: sliding_window_attention(*x[:3], window=5, bias=x[3], scale=0.7),
        lambda *x: under_the_mask(5, bias=x[3], scale=0.7)(*x[:3]),
        [*inputs, bias],
    )


@pytest.mark.usefixtures("small_blocks")
def test_sliding_window_attention_dropout():
    query, key, _ = qkv((2,), groups=2, n=29)
    value = torch.eye(29).expand(2, 29, 29)
    weights = under_the_mask(5)(query, key, value)
    dropped = sliding_window_attention(query, key, value, window=5, dropout_p=0.4)
    assert torch.all((dropped == 0) | torch.isclose(dropped, weights / 0.6))
    assert ((dropped == 0) & (weights > 0)).any()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
def test_gradcheck(causal):
    ours = partial(sliding_window_attention, window=3, causal=causal)
    assert gradcheck(ours, qkv((2,), groups=1, n=9, d_k=2, d_v=3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sliding_window_attention_half_precision_is_rounded_once(dtype):
    inputs = [t.detach().to(dtype) for t in qkv(n=200)]
    ours, exact = sliding_window_attention(*inputs, window=9), under_the_mask(9)(*inputs)
    assert ours.dtype == dtype
    assert_close(ours, exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


# --- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
def test_sliding_window_attention_memory_is_linear(causal):
    assert_linear(partial(sliding_window_attention, window=50, causal=causal), lengths=(1024, 2048))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
def test_sliding_window_attention_memory_is_linear_with_many_blocks(causal):
    assert_linear(partial(sliding_window_attention, window=10, causal=causal), lengths=(256, 512))


def test_sliding_window_attention_largest_tensor_is_a_gradient():
    """Blocks are views of the keys and values, and the backward pass concatenates their gradients once."""
    n = 8192  # so long that the scores of a block are smaller than the gradients
    largest, _ = largest_and_written(partial(sliding_window_attention, window=50), *qkv((2,), n=n))
    assert largest <= 2 * n * 7


def attention_by_slices(query, key, value):
    """Correct and simple, but the gradient of each slice is as long as the sequence."""
    blocks = range(0, query.shape[-2], 8)
    spans = [slice(max(0, i - 9), i + 8) for i in blocks]
    hidden = [masks.sliding_window(query.shape[-2], 10)[i : i + 8, span] for i, span in zip(blocks, spans, strict=True)]
    parts = zip(query.split(8, -2), spans, hidden, strict=True)
    return torch.cat([attention(q, key[..., span, :], value[..., span, :], mask) for q, span, mask in parts], dim=-2)


@pytest.mark.parametrize("quadratic", [under_the_mask(10), attention_by_slices], ids=["masked", "sliced"])
def test_memory_count_catches_quadratic_attention(quadratic):
    inputs = qkv((2,), groups=1)
    assert_close(quadratic(*inputs), sliding_window_attention(*inputs, window=10))
    with pytest.raises(AssertionError):
        assert_linear(quadratic, lengths=(256, 512))


# --- inside a layer and a model -------------------------------------------------------------------------------------


def test_sliding_window_attention_as_implementation_of_a_layer():
    layer = MultiHeadAttention(12, 6, n_kv_heads=3, implementation=partial(sliding_window_attention, window=4))
    dense = MultiHeadAttention(12, 6, n_kv_heads=3)
    dense.load_state_dict(layer.state_dict())
    x = torch.randn(2, 31, 12)
    assert_close(layer(x), dense(x, mask=masks.sliding_window(31, 4)))


def test_sliding_window_attention_generates_the_same_with_and_without_cache():
    config = GPTConfig(11, 40, d_model=12, n_layers=2, n_heads=3)
    model = GPT(config, implementation=partial(sliding_window_attention, window=4)).eval()
    prompt = torch.randint(11, (2, 9))
    greedy = {"temperature": 0.0}
    with_cache, without = (generate(model, prompt, 12, use_cache=cache, **greedy) for cache in (True, False))
    assert_close(with_cache, without)


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype)


BAD = {
    "window of 0": ({"window": 0}, "window must be at least 1, got 0"),
    "window of 2.0": ({"window": 2.0}, "window must be an integer, got 2.0"),
    "fewer keys": ({"key": zeros(4, 3), "value": zeros(4, 2)}, "n must be at most m, got 5 and 4"),
    "width": ({"key": zeros(5, 2)}, "query and key must have the same width, got 3 and 2"),
    "rows": ({"value": zeros(6, 2)}, r"key and value must have .* got \(5, 3\) and \(6, 2\)"),
    "no keys": ({"key": zeros(0, 3), "value": zeros(0, 2)}, r"key must be .* each at least 1, got \(0, 3\)"),
    "leading axes": (
        {"query": zeros(1, 4, 5, 3), "key": zeros(1, 3, 5, 3), "value": zeros(1, 3, 5, 2)},
        r"may divide the number of query heads, got \(1, 4, 5, 3\) and \(1, 3, 5, 3\)",
    ),
    "a batch axis that resembles grouped heads": (
        {"query": zeros(4, 5, 3), "key": zeros(2, 5, 3), "value": zeros(2, 5, 2)},
        r"the same leading axes.* got \(4, 5, 3\) and \(2, 5, 3\)",
    ),
    "a batch for the keys alone": (
        {"key": zeros(2, 5, 3), "value": zeros(2, 5, 2)},
        r"query and key must have the same leading axes.* got \(5, 3\) and \(2, 5, 3\)",
    ),
    "dtype": ({"value": zeros(5, 2, dtype=torch.float32)}, "query and value must have the same dtype"),
    "float mask": ({"mask": zeros(5, 5)}, "mask must be Boolean"),
    "long mask": ({"mask": zeros(6, 5, dtype=torch.bool)}, r"mask must broadcast .* \(5, 5\), .* got \(6, 5\)"),
    "long bias": ({"bias": zeros(6, 5)}, r"bias must broadcast .* \(5, 5\), .* got \(6, 5\)"),
    "bias dtype": ({"bias": zeros(5, 5, dtype=torch.float32)}, "bias must be of type torch.float64"),
    "scale": ({"scale": math.nan}, "scale must be finite, got nan"),
    "dropout": ({"dropout_p": 1.0}, r"dropout_p must be in \[0, 1\), got 1.0"),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    change, message = BAD[case]
    given = {"query": zeros(5, 3), "key": zeros(5, 3), "value": zeros(5, 2), "window": 2} | change
    with pytest.raises(ValueError, match=message):
        sliding_window_attention(**given)


# --- wrong implementations ------------------------------------------------------------------------------------------


def reference(query, key, value, *, window, first=1, last=0, pad=0.0, block=8, hide_padding=True):
    """A second implementation of sliding-window attention, with options that introduce known mistakes."""
    n, outs = query.shape[-2], []
    for start in range(0, n, block):
        rows = torch.arange(start, min(start + block, n))[:, None]
        columns = torch.arange(start - window + 1, start + block)
        allowed = (columns > rows - window - (1 - first)) & (columns <= rows + last)
        if hide_padding:
            allowed &= (columns >= 0) & (columns < n)
        inside = ((columns >= 0) & (columns < n))[:, None]
        k, v = (torch.where(inside, x[..., columns.clamp(0, n - 1), :], pad) for x in (key, value))
        outs.append(attention(query[..., start : start + block, :], k, v, allowed))
    return torch.cat(outs, -2)


WRONG = {
    "counts the earlier keys only": {"first": 0},
    "hides the query's own key": {"last": -1},
    "sees the next key": {"last": 1},
    "attends to the padding": {"hide_padding": False},
}


def test_reference_without_mistake_equals_the_specification():
    inputs = qkv(groups=6)
    assert_close(reference(*inputs, window=5), under_the_mask(5)(*inputs))


@pytest.mark.parametrize("wrong", WRONG)
def test_comparison_catches_wrong_sliding_windows(wrong):
    inputs = qkv(groups=6)
    with pytest.raises(AssertionError):
        assert_close(reference(*inputs, window=5, **WRONG[wrong]), under_the_mask(5)(*inputs))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
def test_comparison_catches_a_window_off_by_one(monkeypatch, change, causal):
    monkeypatch.setattr(sliding_window, "Window", lambda window: Window(window + change))
    inputs = qkv()
    with pytest.raises(AssertionError):
        assert_close(
            sliding_window_attention(*inputs, window=5, causal=causal), under_the_mask(5, causal=causal)(*inputs)
        )
