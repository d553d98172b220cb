"""Tests that skipping hidden blocks changes the cost of attention and not its result, for every kind of rule."""

from functools import partial

import pytest
import torch
from efficient_cases import assert_linear, assert_same, qkv
from torch.testing import assert_close

from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import (
    BigBird,
    Blocks,
    Causal,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    LeftPadding,
    Padding,
    Prefix,
    Rule,
    Table,
    Window,
)
from lessons_lib.efficient import skipping
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention
from lessons_lib.efficient.skipping import skipping_attention, visited_blocks


def generator_of(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


IDS = torch.tensor([[0] * 20 + [1] * 14 + [2] * 3, [5] * 7 + [4] * 24 + [5] * 6])
RULES = {
    "full": Full(),
    "causal": Causal(),
    "window": Causal() & Window(6),
    "longformer": Window(3) | GlobalTokens([0, 20]),
    "big bird": BigBird(10, window=1, n_global=1, n_random=1, generator=generator_of(2), block=4),
    "prefix": Prefix(9),
    "documents": Causal() & Documents(IDS),
    "dilated": Dilated(3, 4),
    "blocks": Blocks(5) | Window(2),
    "padding": Padding(torch.tensor([37, 11])),
    "ragged": LeftPadding(torch.tensor([3, 30])) & Causal(),
    "not": ~Window(9),
    "no keys for the first queries": Causal() & ~Window(12),
    "table": Table(torch.rand(2, 6, 37, 37, generator=generator_of(4)) < 0.2),
}


@pytest.mark.parametrize("n", [37, 17], ids="{} queries".format)
@pytest.mark.parametrize("block", [4, 8, 64])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_skipping_attention_equals_attention_under_the_mask_of_the_rule(rule, block, n):
    rule = Table(rule.mask[..., -n:, :]) if isinstance(rule, Table) else rule
    ours = partial(skipping_attention, mask=rule, block=block)
    assert_same(ours, partial(attention, mask=rule.to_mask(n, 37)), qkv(n=n, m=37))


def test_skipping_attention_accepts_a_boolean_table():
    table = Prefix(9).to_mask(37)
    assert_same(partial(skipping_attention, mask=table, block=8), partial(attention, mask=table), qkv())


@pytest.mark.parametrize(
    ("rule", "visits"),
    [
        (Full(), 64),
        (Causal(), 36),
        (Causal() & Window(2), 15),
        (Window(9), 22),
        (Blocks(16), 16),
        (Documents(torch.arange(64) // 8), 8),
        (Window(2) | GlobalTokens([0]), 22 + 6 + 6),
        (Prefix(9), 36 + 1),
    ],
    ids=repr,
)
def test_skipping_attention_computes_blocks_with_visible_keys_only(monkeypatch, rule, visits):
    sizes = []

    def record(query, key, *rest, **options):
        sizes.append(query.shape[-2] * key.shape[-2])
        return attention(query, key, *rest, **options)

    monkeypatch.setattr(skipping, "attention", record)
    skipping_attention(*qkv(n=64), rule, block=8)
    assert sum(sizes) == visits * 8 * 8
    assert visited_blocks(rule, 64, block=8) == visits


def test_skipping_attention_passes_no_mask_for_fully_visible_blocks(monkeypatch):
    masks = []
    monkeypatch.setattr(skipping, "attention", lambda q, k, v, mask, **on: (masks.append(mask), attention(q, k, v))[1])
    skipping_attention(*qkv(n=32), Blocks(8) | Prefix(32), block=8)
    assert masks == [None] * 4


@pytest.mark.parametrize(
    "rule",
    [Causal() & Window(20), Window(9) | GlobalTokens([0]), Blocks(30), Causal() & Documents(torch.arange(2048) // 50)],
    ids=["window", "longformer", "blocks", "documents"],
)
def test_skipping_attention_memory_is_linear(rule):
    def ours(query, key, value):
        n = query.shape[-2]
        fitting = Causal() & Documents(torch.arange(n) // 50) if "Documents" in repr(rule) else rule
        return skipping_attention(query, key, value, fitting, block=16)

    assert_linear(ours, lengths=(512, 1024))


def test_memory_count_catches_quadratic_attention():
    with pytest.raises(AssertionError):
        assert_linear(partial(skipping_attention, mask=Causal(), block=16), lengths=(512, 1024))


def test_layer_passes_the_rule_to_skipping_attention(monkeypatch):
    monkeypatch.setattr(Rule, "to_mask", lambda *_, **__: pytest.fail("a rule was turned into a table"))
    layer = MultiHeadAttention(12, 6, n_kv_heads=3, implementation=skipping_attention)
    layer(torch.randn(2, 31, 12), mask=Causal() & Window(4))


FEATURES = {
    "linear": linear_attention,
    "Performer": partial(performer_attention, projection=orthogonal_projection(8, 5, generator_of())),
}


@pytest.mark.parametrize("variant", FEATURES)
@pytest.mark.parametrize(
    ("rule", "causal"),
    [
        (Causal(), True),
        (Causal() & Padding(torch.tensor([37, 11])), True),
        (LeftPadding(torch.tensor([3, 30])) & Causal(), True),
        (Padding(torch.tensor([37, 11])), False),
        (Full(), False),
        (Table(Padding(torch.tensor([37, 11])).to_mask(37)), False),
    ],
)
def test_linear_variants_accept_rules_that_hide_whole_keys(variant, rule, causal):
    inputs = qkv()
    ours = FEATURES[variant](*inputs, rule, causal=causal)
    assert_close(ours, FEATURES[variant](*inputs, rule.to_mask(37), causal=causal))


@pytest.mark.rejects
@pytest.mark.parametrize("variant", FEATURES)
@pytest.mark.parametrize(("rule", "causal"), [(Causal(), False), (Window(3), False), (Causal() & Blocks(4), True)])
def test_linear_variants_other_rules_raise(variant, rule, causal):
    with pytest.raises(ValueError, match="mask must hide each key from all queries or from none"):
        FEATURES[variant](*qkv(), rule, causal=causal)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, "block must be at least 1, got 0"),
        ({"mask": Prefix(6)}, "prefix must be at most 5, got 6"),
        ({"mask": Padding(torch.tensor([3, 4]))}, r"mask must broadcast .* got a rule over \(2, 1, 5, 5\)"),
        ({"mask": torch.ones(5, 5)}, "mask must be Boolean"),
        ({"mask": "causal"}, "mask must be Boolean, True where a query may attend, got str"),
        ({"value": torch.zeros(6, 2, dtype=torch.float64)}, r"key and value must have .* got \(5, 3\) and \(6, 2\)"),
    ],
)
def test_invalid_arguments_raise(change, message):
    given = {"query": torch.zeros(5, 3), "key": torch.zeros(5, 3), "value": torch.zeros(5, 2), "mask": Causal()}
    with pytest.raises(ValueError, match=message):
        skipping_attention(**given | change)
