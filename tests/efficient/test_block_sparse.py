"""Tests of block-sparse attention against attention under the expanded layout, of the layouts and of the cost."""

from functools import partial

import pytest
import torch
from efficient_cases import assert_linear, assert_same, qkv
from torch.autograd import gradcheck
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.efficient import skipping
from lessons_lib.efficient.block_sparse import (
    big_bird_layout,
    block_sparse_attention,
    expand_layout,
    longformer_layout,
    visited_layout_blocks,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_layout(n_blocks, m_blocks):
    """A random layout; the last block of queries has no visible keys."""
    layout = torch.rand(n_blocks, m_blocks) < 0.4
    layout[-1] = False
    return layout


def longformer(n_blocks):
    return longformer_layout(n_blocks, window=2, global_blocks=[1])


def big_bird(n_blocks):
    return big_bird_layout(n_blocks, window=2, n_global=1, n_random=1, generator=generator())


def expanded(layout, block, *, causal=False, **options):
    """The specification: attention under the full mask."""

    def exact(query, key, value, mask=None):
        allowed = expand_layout(layout, block, query.shape[-2], key.shape[-2], causal=causal)
        return attention(query, key, value, allowed if mask is None else allowed & mask, **options)

    return exact


# --- equality -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [longformer, big_bird, lambda n: random_layout(n, n)], ids=["lf", "bb", "any"])
@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize(("n", "block"), [(1, 4), (40, 4), (37, 4), (37, 5), (37, 64), (9, 1)])
def test_block_sparse_attention_equals_attention_under_the_expanded_layout(n, block, layout, causal):
    rows = -(-n // block)
    layout = layout(rows) if rows > 2 else torch.ones(rows, rows, dtype=torch.bool)
    ours = partial(block_sparse_attention, layout=layout, block=block, causal=causal)
    assert_same(ours, expanded(layout, block, causal=causal), qkv(n=n))


def test_block_sparse_attention_different_numbers_of_queries_and_keys():
    layout = random_layout(4, 7)
    ours = partial(block_sparse_attention, layout=layout, block=5)
    assert_same(ours, expanded(layout, 5), qkv(n=17, m=31))


@pytest.mark.parametrize(("batch", "groups"), [((), 1), ((3,), 1), ((1, 4), 2), ((2, 3, 4), 2)], ids=str)
def test_block_sparse_attention_leading_axes(batch, groups):
    layout = big_bird(5)
    ours = partial(block_sparse_attention, layout=layout, block=4)
    assert_same(ours, expanded(layout, 4), qkv(batch, groups=groups, n=19))


MASKS = {
    "padding": lambda n: masks.padding(torch.tensor([n, n // 3]), n),
    "all keys hidden": lambda n: masks.padding(torch.tensor([n, 0]), n),
    "one for each head": lambda n: torch.rand(6, n, n) < 0.7,
    "columns of one": lambda n: torch.rand(2, 6, n, 1) < 0.7,
    "the future": lambda n: masks.causal(n),
}


@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize("mask", MASKS)
def test_block_sparse_attention_additional_mask(mask, causal):
    layout, hides = big_bird(6), MASKS[mask](29)
    ours = partial(block_sparse_attention, mask=hides, layout=layout, block=5, causal=causal)
    assert_same(ours, partial(expanded(layout, 5, causal=causal), mask=hides), qkv(n=29))


@pytest.mark.parametrize("shape", [(29, 29), (6, 1, 29), (2, 1, 29, 1)], ids=str)
def test_block_sparse_attention_bias_and_its_gradient(shape):
    bias, layout = torch.randn(shape, requires_grad=True), big_bird(6)
    assert_same(
        lambda *x: block_sparse_attention(*x[:3], layout=layout, block=5, bias=x[3], scale=0.7),
        lambda *x: expanded(layout, 5, bias=x[3], scale=0.7)(*x[:3]),
        [*qkv(n=29), bias],
    )


def test_block_sparse_attention_dropout():
    query, key, _ = qkv((2,), groups=2, n=29)
    value, layout = torch.eye(29).expand(2, 29, 29), longformer(6)
    weights = expanded(layout, 5)(query, key, value)
    dropped = block_sparse_attention(query, key, value, layout=layout, block=5, dropout_p=0.4)
    assert torch.all((dropped == 0) | torch.isclose(dropped, weights / 0.6))
    assert ((dropped == 0) & (weights > 0)).any()


def test_gradcheck():
    ours = partial(block_sparse_attention, layout=random_layout(3, 3), block=3)
    assert gradcheck(ours, qkv((2,), groups=1, n=8, d_k=2, d_v=3))


def test_block_sparse_attention_as_implementation_of_a_layer():
    layout = longformer(7)
    layer = MultiHeadAttention(
        12, 6, n_kv_heads=3, implementation=partial(block_sparse_attention, layout=layout, block=5)
    )
    dense = MultiHeadAttention(12, 6, n_kv_heads=3)
    dense.load_state_dict(layer.state_dict())
    x = torch.randn(2, 31, 12)
    assert_close(layer(x), dense(x, mask=expand_layout(layout, 5, 31)))


# --- layouts --------------------------------------------------------------------------------------------------------


def test_big_bird_layout_expands_to_its_mask():
    counts = {"window": 2, "n_global": 1, "n_random": 2}
    layout = big_bird_layout(9, **counts, generator=generator(3))
    assert torch.equal(expand_layout(layout, 4, 36), masks.big_bird(36, **counts, block=4, generator=generator(3)))


def test_longformer_layout_with_blocks_of_one_is_its_mask():
    layout = longformer_layout(23, window=3, global_blocks=[0, 7])
    assert torch.equal(expand_layout(layout, 1, 23), masks.longformer(23, window=3, global_positions=[0, 7]))


def test_longformer_layout_contains_the_mask_over_positions():
    """A window of w blocks of B holds at least (w - 1) B + 1 positions on each side of every query."""
    layout = longformer_layout(9, window=3, global_blocks=[0, 4])
    positions = [*range(4), *range(16, 20)]
    of_positions = masks.longformer(36, window=2 * 4 + 1, global_positions=positions)
    assert not (of_positions & ~expand_layout(layout, 4, 36)).any()


def test_expand_layout_definition():
    layout = random_layout(3, 4)
    mask = expand_layout(layout, 5, 13, 18)
    assert all(mask[i, j] == layout[i // 5, j // 5] for i in range(13) for j in range(18))


# --- cost -----------------------------------------------------------------------------------------------------------


def record_score_shapes(monkeypatch):
    """Record the size of the scores of every call that reaches attention."""
    sizes = []

    def record(query, key, *rest, **options):
        sizes.append((query.shape[-2], key.shape[-2]))
        return attention(query, key, *rest, **options)

    monkeypatch.setattr(skipping, "attention", record)
    return sizes


@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize("layout", [longformer, big_bird, lambda n: random_layout(n, n)], ids=["lf", "bb", "any"])
def test_visited_layout_blocks_are_the_computed_blocks(monkeypatch, layout, causal):
    layout, sizes = layout(8), record_score_shapes(monkeypatch)
    block_sparse_attention(*qkv(n=8 * 4), layout=layout, block=4, causal=causal)
    assert sum(n * m for n, m in sizes) == visited_layout_blocks(layout, causal=causal) * 4 * 4
    assert visited_layout_blocks(layout, causal=causal) == (layout.tril() if causal else layout).sum()


def test_visited_layout_blocks_grow_linearly():
    """Window 2 and one global block: 3 n - 2 blocks in the band, and n - 2 more in the global row and column each."""
    for n in (8, 16, 1024):
        assert visited_layout_blocks(longformer_layout(n, window=2, global_blocks=[0])) == (3 * n - 2) + 2 * (n - 2)
    for n in (16, 32, 1024):
        layout = big_bird_layout(n, window=2, n_global=1, n_random=3, generator=generator())
        assert visited_layout_blocks(layout) == (3 * n - 2) + 2 * (n - 2) + 3 * (n - 1)
    assert visited_layout_blocks(torch.ones(16, 16, dtype=torch.bool)) == 256


@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize("layout", [longformer, big_bird], ids=["longformer", "bigbird"])
def test_block_sparse_attention_memory_is_linear(layout, causal):
    def ours(query, key, value):
        return block_sparse_attention(query, key, value, layout=layout(len(query[0]) // 16), block=16, causal=causal)

    assert_linear(ours, lengths=(512, 1024))


def test_memory_count_catches_quadratic_attention():
    with pytest.raises(AssertionError):
        assert_linear(lambda q, k, v: expanded(longformer(len(q[0]) // 16), 16)(q, k, v))


# --- errors ---------------------------------------------------------------------------------------------------------


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(shape, dtype=dtype)


BAD = {
    "float layout": ({"layout": zeros(3, 3)}, r"layout must be Boolean .* \(3, 3\) for n=5, m=5 and block=2"),
    "small layout": ({"layout": zeros(2, 3, dtype=torch.bool)}, r"\(3, 3\) for n=5, .* torch.bool over \(2, 3\)"),
    "a layout for each head": ({"layout": zeros(1, 3, 3, dtype=torch.bool)}, r"layout must .* \(1, 3, 3\)"),
    "block of 0": ({"block": 0}, "block must be at least 1, got 0"),
    "causal": (
        {"key": zeros(6, 3), "value": zeros(6, 2), "causal": True},
        "causal needs as many keys as queries, got 5 queries and 6 keys",
    ),
    "width": ({"key": zeros(5, 2)}, "query and key must have the same width, got 3 and 2"),
    "float mask": ({"mask": zeros(5, 5)}, "mask must be Boolean"),
    "long mask": ({"mask": zeros(6, 5, dtype=torch.bool)}, r"mask must broadcast .* \(5, 5\), .* got \(6, 5\)"),
    "long bias": ({"bias": zeros(6, 5)}, r"bias must broadcast .* \(5, 5\), .* got \(6, 5\)"),
    "dropout": ({"dropout_p": -1.0}, r"dropout_p must be in \[0, 1\), got -1.0"),
}


@pytest.mark.rejects
@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case):
    change, message = BAD[case]
    given = {"query": zeros(5, 3), "key": zeros(5, 3), "value": zeros(5, 2), "block": 2, "layout": torch.eye(3) > 0}
    with pytest.raises(ValueError, match=message):
        block_sparse_attention(**given | change)


@pytest.mark.rejects
def test_visited_layout_blocks_invalid_layout_raises():
    with pytest.raises(ValueError, match=r"layout must be a Boolean matrix, got torch.bool over \(2, 3, 3\)"):
        visited_layout_blocks(torch.ones(2, 3, 3, dtype=torch.bool))


# --- wrong implementations ------------------------------------------------------------------------------------------


def reference(query, key, value, layout, *, block=4, causal=True, transpose=False, within=True, shift=0):
    """A second implementation of causal block-sparse attention, with options that introduce known mistakes."""
    n = query.shape[-2]
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    layout = layout.mT if transpose else layout
    allowed = layout[i // block, ((j + shift) // block).clamp(max=len(layout) - 1)]
    order = j <= i if within else j // block <= i // block
    scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~(allowed & order), -torch.inf)
    return torch.softmax(scores, -1) @ value


WRONG = {
    "transposes the layout": {"transpose": True},
    "sees the future inside a block": {"within": False},
    "cuts blocks one position off": {"shift": 1},
}


def test_reference_without_mistake_equals_the_specification():
    inputs, layout = qkv(groups=6, n=29), big_bird(8)
    assert_close(reference(*inputs, layout), expanded(layout, 4, causal=True)(*inputs))


@pytest.mark.parametrize("wrong", WRONG)
def test_comparison_catches_wrong_block_sparse_attention(wrong):
    inputs, layout = qkv(groups=6, n=29), big_bird(8) | torch.eye(8, dtype=torch.bool)
    with pytest.raises(AssertionError):
        assert_close(reference(*inputs, layout, **WRONG[wrong]), expanded(layout, 4, causal=True)(*inputs))
