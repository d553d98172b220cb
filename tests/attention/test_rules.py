"""Tests of the rules: tables against definitions, tiles against tables, FlexAttention, and rules with allows alone."""

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from lessons_lib.attention import masks, rules
from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import (
    And,
    Band,
    BigBird,
    Blocks,
    BlockSparse,
    Causal,
    Coverage,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    LeftPadding,
    Neighbourhood2D,
    Not,
    Or,
    Padding,
    Part,
    Prefix,
    Random,
    Rule,
    SharedPrefix,
    Table,
    Window,
    as_rule,
    check_fits_scores,
    conjuncts,
    declare_rule_support,
    immutable,
    mask_for_implementation,
    tiles,
)
from lessons_lib.attention.rules import coverage as coverage_file
from lessons_lib.efficient.skipping import skipping_attention, visited_blocks
from lessons_lib.flash import flash_attention

M = 13  # keys; rules that are made for a number of keys are made for this one


def seed(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def entries(n: int, m: int, may_attend) -> torch.Tensor:
    """Return the table whose entry (i, j) is ``may_attend(p, j)``, with the query's position p = i + m - n."""
    return torch.tensor([[bool(may_attend(i + m - n, j)) for j in range(m)] for i in range(n)])


PACKED = [0, 0, 0, 0, 3, 3, 5, 5, 5, 5, 5, 9, 9]
MIXED = [1, 2, 1, 1, 2, 2, 3, 1, 1, 3, 3, 3, 2]
LAYOUT = torch.rand(4, 4, generator=seed(3)) < 0.5
TABLE = torch.rand(M, M, generator=seed(4)) < 0.4


def within(ids: list[int], allowed):
    """The definition of ``Documents`` with an inner rule: positions count the earlier tokens of the same document."""
    place = [ids[:p].count(ids[p]) for p in range(len(ids))]
    return lambda p, j: ids[p] == ids[j] and allowed(place[p], place[j])


def is_near(p: int, j: int, width: int, radius: int) -> bool:
    (row, column), (key_row, key_column) = divmod(p, width), divmod(j, width)
    return abs(row - key_row) <= radius and abs(column - key_column) <= radius


CONTINUATION = [0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3]  # 0 is the prompt

# The definition of each rule, pair by pair, in plain Python.
DEFINED = {
    "everything": (Full(), lambda p, j: True),
    "causal": (Causal(), lambda p, j: j <= p),
    "window": (Window(3), lambda p, j: abs(p - j) < 3),
    "causal window": (Causal() & Window(4), lambda p, j: 0 <= p - j < 4),
    "band": (Band(2, 5), lambda p, j: -5 <= p - j <= 2),
    "dilated": (Dilated(3, 2), lambda p, j: p - j in {-4, -2, 0, 2, 4}),
    "blocks": (Blocks(4), lambda p, j: p // 4 == j // 4),
    "prefix": (Prefix(5), lambda p, j: j < 5 or j <= p),
    "global tokens": (GlobalTokens([7, 0]), lambda p, j: bool({p, j} & {0, 7})),
    "padding": (Padding(torch.tensor(9)), lambda p, j: j < 9),
    "left padding": (LeftPadding(torch.tensor(4)), lambda p, j: j >= 4),
    "packed documents": (Documents(torch.tensor(PACKED)), lambda p, j: PACKED[p] == PACKED[j]),
    "mixed documents": (Documents(torch.tensor(MIXED)), lambda p, j: MIXED[p] == MIXED[j]),
    "causal documents": (Documents(torch.tensor(PACKED), Causal()), within(PACKED, lambda p, j: j <= p)),
    "prefix in each document": (
        Documents(torch.tensor(PACKED), Prefix(2)),
        within(PACKED, lambda p, j: j < max(2, p + 1)),
    ),
    "window in mixed documents": (
        Documents(torch.tensor(MIXED), Window(2)),
        within(MIXED, lambda p, j: abs(p - j) < 2),
    ),
    "neighbourhood": (Neighbourhood2D(4, 1), lambda p, j: is_near(p, j, 4, 1)),
    "wide neighbourhood": (Neighbourhood2D(3, 2), lambda p, j: is_near(p, j, 3, 2)),
    "own patch": (Neighbourhood2D(5, 0), lambda p, j: p == j),
    "shared prefix": (
        SharedPrefix(3, [4, 1, 0, 5]),
        lambda p, j: j <= p and CONTINUATION[j] in (0, CONTINUATION[p]),
    ),
    "layout": (BlockSparse(LAYOUT, 4), lambda p, j: LAYOUT[p // 4, j // 4]),
    "table": (Table(TABLE), lambda p, j: TABLE[p, j]),
    "both": (Prefix(3) & Blocks(5), lambda p, j: (j < 3 or j <= p) and p // 5 == j // 5),
    "either": (Window(2) | GlobalTokens([5]), lambda p, j: abs(p - j) < 2 or 5 in (p, j)),
    "not": (~Causal(), lambda p, j: j > p),
    "not all of it": (~(Window(4) & ~Blocks(3)), lambda p, j: not (abs(p - j) < 4 and p // 3 != j // 3)),
    "part of nothing": (Part(Causal() & Window(5), 2, 0), lambda p, j: 0 <= p + 2 - j < 5),
}
EXACT = set(DEFINED) - {"dilated", "not all of it", "both", "either"}  # rules whose ``coverage`` is exact
EXACT_KEYS = EXACT - {"not"}  # rules whose ``key_ranges`` are exact


@pytest.fixture(params=DEFINED, name="case")
def _case(request) -> tuple[str, Rule, torch.Tensor]:
    rule, allows = DEFINED[request.param]
    return request.param, rule, entries(M, M, allows)


def spans(limit: int):
    return st.tuples(st.integers(0, limit - 1), st.integers(1, limit)).map(
        lambda pair: range(pair[0], min(pair[0] + pair[1], limit))
    )


# --- tables ---------------------------------------------------------------------------------------------------------


def test_to_mask_equals_definition(case):
    _, rule, table = case
    assert torch.equal(rule.to_mask(M), table)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_to_mask_queries_are_the_last_positions(case, n):
    _, rule, table = case
    assert torch.equal(rule.to_mask(n, M), table[-n:])


def test_to_mask_with_more_queries_than_keys():
    assert torch.equal(Causal().to_mask(7, 3), entries(7, 3, lambda p, j: j <= p))
    assert torch.equal(Window(3).to_mask(7, 3), entries(7, 3, lambda p, j: abs(p - j) < 3))


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        (masks.bidirectional(5, 7), Full()),
        (masks.causal(5, 7), Causal()),
        (masks.sliding_window(7, 3), Causal() & Window(3)),
        (masks.sliding_window(7, 3, causal=False), Window(3)),
        (masks.dilated(7, 3, 2), Causal() & Dilated(3, 2)),
        (masks.block(7, 3), Blocks(3)),
        (masks.prefix(7, 3), Prefix(3)),
        (masks.global_tokens(7, [1, 4]), GlobalTokens([4, 1])),
        (masks.padding(torch.tensor([3, 7]), 7).expand(2, 1, 5, 7), Padding(torch.tensor([3, 7]))),
        (masks.documents(torch.tensor([[1, 1, 2], [3, 4, 4]])), Documents(torch.tensor([[1, 1, 2], [3, 4, 4]]))),
        (masks.documents(torch.tensor([1, 1, 1, 2]), Prefix(2)), Documents(torch.tensor([1, 1, 1, 2]), Prefix(2))),
        (masks.neighbourhood_2d(3, 4, 1), Neighbourhood2D(4, 1)),
        (masks.shared_prefix(2, [3, 1]), SharedPrefix(2, [3, 1])),
        (masks.longformer(7, window=2, global_positions=[3]), Window(2) | GlobalTokens([3])),
        (masks.random_sparse(7, 0.4, seed(5)), Random(7, 0.4, seed(5))),
        (
            masks.big_bird(12, window=1, n_global=1, n_random=1, generator=seed(6), block=3),
            BigBird(4, window=1, n_global=1, n_random=1, generator=seed(6), block=3),
        ),
    ],
)
def test_functions_of_masks_return_tables_of_rules(table, rule):
    assert torch.equal(table, rule.to_mask(*table.shape[-2:]))


# --- tiles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINED)
@given(rows=spans(M), keys=spans(M))
def test_tile_and_coverage_agree_with_definition(name, rows, keys):
    rule, allows = DEFINED[name]
    part = entries(M, M, allows)[rows.start : rows.stop, keys.start : keys.stop]
    assert torch.equal(rule.tile(rows, keys), part)
    seen = rule.coverage(rows, keys)
    if seen is Coverage.FULL:
        assert part.all()
    if seen is Coverage.EMPTY:
        assert not part.any()
    if name in EXACT and seen is Coverage.PARTIAL:
        assert part.any()
        assert not part.all()


@pytest.mark.parametrize("name", DEFINED)
@given(rows=spans(M), m=st.integers(1, M))
def test_key_ranges_contain_all_allowed_keys(name, rows, m):
    rule, allows = DEFINED[name]
    seen = set(entries(M, M, allows)[rows.start : rows.stop, :m].any(dim=0).nonzero().flatten().tolist())
    ranges = rule.key_ranges(rows, m)
    named = [key for span in ranges for key in span]
    assert named == sorted(set(named)), "in order, none twice"
    assert seen <= set(named) <= set(range(m))
    if name in EXACT_KEYS:
        assert seen == set(named)


@pytest.mark.parametrize("block", [1, 3, 8])
def test_tiles_cover_all_allowed_keys_once(case, block):
    _, rule, table = case
    for start in range(0, M, 4):
        rows = range(start, min(start + 4, M))
        visited = torch.zeros(M, dtype=torch.bool)
        for keys, seen in tiles(rule, rows, M, block):
            assert 1 <= len(keys) <= block
            assert not visited[keys.start : keys.stop].any(), "no key is visited twice"
            assert seen is not Coverage.EMPTY
            visited[keys.start : keys.stop] = True
        assert (visited >= table[rows.start : rows.stop].any(dim=0)).all()


def test_tiles_of_a_band_are_few_in_a_long_sequence():
    visited = list(tiles(Causal() & Window(256), range(10_000, 10_128), 12_288, 128))
    assert [keys.start for keys, _ in visited] == [9745, 9873, 10001]
    assert [seen for _, seen in visited] == [Coverage.PARTIAL, Coverage.FULL, Coverage.PARTIAL]
    assert len(list(tiles(Causal(), range(0, 128), 12_288, 128))) == 1


def test_tiles_merge_near_ranges():
    rule = GlobalTokens([0, 3, 40])
    assert [keys for keys, _ in tiles(rule, range(50, 60), 64, 16)] == [range(4), range(40, 41)]


# --- batches --------------------------------------------------------------------------------------------------------

BATCH = {
    "padding": Padding(torch.tensor([M, 4, 0])),
    "left padding": LeftPadding(torch.tensor([0, 4, 11])),
    "documents": Documents(torch.tensor([PACKED, MIXED, [0] * M])),
    "windows in documents": Documents(torch.tensor([PACKED, MIXED, [0] * M]), Window(3)),
    "table": Table(torch.rand(3, 1, M, M, generator=seed(7)) < 0.5),
    "rows for all": Table(torch.rand(3, 1, 1, M, generator=seed(8)) < 0.5),
}


@pytest.fixture(params=BATCH, name="batched")
def _batched(request) -> Rule:
    return BATCH[request.param] & Causal() | GlobalTokens([2])


def test_batched_rule_has_an_axis_for_the_heads(batched):
    assert batched.batch_shape == (3, 1)
    assert batched.to_mask(5, M).shape == (3, 1, 5, M)


def test_for_sequence_equals_its_part_of_the_table(batched):
    table = batched.to_mask(5, M)
    for b in range(3):
        assert batched.for_sequence(b).batch_shape == ()
        assert torch.equal(batched.for_sequence(b).to_mask(5, M), table[b, 0])


def test_tiles_of_a_batch_cover_all_sequences(batched):
    table = batched.to_mask(M).any(dim=0)[0]
    for rows in (range(0, 4), range(5, 12)):
        seen = table[rows.start : rows.stop].any(dim=0)
        named = torch.zeros(M, dtype=torch.bool)
        for span in batched.key_ranges(rows, M):
            named[span.start : span.stop] = True
        assert (named >= seen).all()
        for keys in (range(0, 3), range(4, 11), range(12, 13)):
            part = batched.tile(rows, keys)
            answer = batched.coverage(rows, keys)
            assert answer is Coverage.PARTIAL or part.all() == part.any() == (answer is Coverage.FULL)


def test_table_may_differ_between_heads():
    mask = torch.rand(2, 5, M, M) < 0.5
    rule = Table(mask)
    assert rule.batch_shape == (2, 5)
    assert torch.equal(rule.for_sequence(1).to_mask(M), mask[1])
    assert torch.equal(Table(mask[:1]).for_sequence(1).to_mask(M), mask[0])


# --- combinations ---------------------------------------------------------------------------------------------------


def test_combined_rules_equal_combined_tables(case):
    _, rule, table = case
    other = Blocks(5)
    assert torch.equal((rule & other).to_mask(M), table & other.to_mask(M))
    assert torch.equal((rule | other).to_mask(M), table | other.to_mask(M))
    assert torch.equal((~rule).to_mask(M), ~table)


def test_coverage_of_combination_with_a_full_or_empty_part():
    rows, keys = range(4, 8), range(5, 9)  # a causal query sees some of these
    assert Causal().coverage(rows, keys) is Coverage.PARTIAL
    for a, b in ((Causal(), Full()), (Full(), Causal())):
        assert (a | b).coverage(rows, keys) is Coverage.FULL
        assert (a & b).coverage(rows, keys) is Coverage.PARTIAL
    for a, b in ((Causal(), ~Full()), (~Full(), Causal())):
        assert (a | b).coverage(rows, keys) is Coverage.PARTIAL
        assert (a & b).coverage(rows, keys) is Coverage.EMPTY


def test_tables_combine_with_rules():
    assert torch.equal((Causal() & TABLE).to_mask(M), TABLE & masks.causal(M))
    assert torch.equal((Causal() | TABLE).to_mask(M), TABLE | masks.causal(M))
    assert torch.equal((TABLE & Causal()).to_mask(M), TABLE & masks.causal(M))
    assert torch.equal((TABLE | Causal()).to_mask(M), TABLE | masks.causal(M))
    assert as_rule(TABLE) == Table(TABLE)
    assert torch.equal(as_rule(TABLE[:5, :1], M).to_mask(5, M), TABLE[:5, :1].expand(5, M))
    assert torch.equal(Table(TABLE[:, :1]).to_mask(M), TABLE[:, :1].expand(M, M))
    assert as_rule(Causal()) == Causal()


def test_conjuncts_split_and_only():
    assert conjuncts(Causal() & (Window(3) & Blocks(2))) == [Causal(), Window(3), Blocks(2)]
    assert conjuncts(Causal() | Window(3)) == [Causal() | Window(3)]
    assert conjuncts(~(Causal() & Window(3))) == [~(Causal() & Window(3))]


def test_rules_are_immutable_values():
    assert Causal() & Window(3) == Causal() & Window(3)
    assert Window(3) != Window(4)
    assert Window(1) != Dilated(1, 1)
    assert Padding(torch.tensor([1, 2])) == Padding(torch.tensor([1, 2]))
    assert Padding(torch.tensor([1, 2])) != Padding(torch.tensor([1, 3]))
    assert len({Causal(), Causal(), Full()}) == 2
    assert repr(Causal() & Window(3)) == "And(a=Causal(), b=Window(3))"
    with pytest.raises(AttributeError):
        Dilated(2, 3).window = 4
    assert Documents(torch.tensor([1]), Prefix(2)) != Documents(torch.tensor([1]), Prefix(1))
    assert repr(Full()) == "Full()"
    lengths = torch.tensor([2, 3])
    rule = Padding(lengths)
    lengths += 1
    assert rule.lengths.tolist() == [2, 3]


@pytest.mark.parametrize(("query", "key"), [(3, 5), (5, 0), (4, 4), (0, 0)])
def test_shifted_equals_part_of_the_table(case, query, key):
    _, rule, table = case
    part = rule.shifted(query, key)
    assert torch.equal(part.tile(range(0, 7), range(0, 6)), table[query : query + 7, key : key + 6])
    assert torch.equal(
        part.shifted(1, 1).tile(range(0, 7), range(0, 6)), table[query + 1 : query + 8, key + 1 : key + 7]
    )


def test_shifted_band_is_a_band():
    assert (Causal() & Window(4)).shifted(10, 8) == Band(None, 2) & Band(1, 5)
    assert Causal().shifted(9, 9) == Causal()


def test_part_agrees_with_the_whole():
    whole = (Prefix(4) | Documents(torch.tensor(PACKED))) & ~GlobalTokens([6])
    table = whole.to_mask(M)
    part = Part(whole, 3, 5)
    assert torch.equal(part.tile(range(0, 7), range(0, 6)), table[3:10, 5:11])
    for rows, keys in ((range(0, 2), range(1, 4)), (range(4, 7), range(0, 6))):
        inside = table[rows.start + 3 : rows.stop + 3, keys.start + 5 : keys.stop + 5]
        answer = part.coverage(rows, keys)
        assert answer is Coverage.PARTIAL or inside.all() == inside.any() == (answer is Coverage.FULL)
    assert all(0 <= span.start < span.stop <= 6 for span in part.key_ranges(range(0, 7), 6))


# --- implementations and devices ------------------------------------------------------------------------------------


def test_mask_for_returns_a_rule_only_if_supported():
    from functools import partial

    def plain(query, key, value, mask=None, **options):
        return mask

    marked = declare_rule_support(lambda query, key, value, mask=None, **options: mask)
    rule = Causal()
    assert mask_for_implementation(marked, rule, 3, 5) is rule
    assert mask_for_implementation(partial(partial(marked)), rule, 3, 5) is rule
    assert torch.equal(mask_for_implementation(plain, rule, 3, 5), masks.causal(3, 5))
    assert mask_for_implementation(marked, TABLE, 3, 5) is TABLE
    assert mask_for_implementation(plain, None, 3, 5) is None


@pytest.mark.parametrize(
    "rule", [Causal() & Window(2), Blocks(2), Prefix(2), GlobalTokens([1]), Dilated(2, 2)], ids=repr
)
def test_to_mask_is_on_the_requested_device(rule):
    assert rule.to_mask(5, device="meta").device.type == "meta"
    assert rule.to_mask(5).device.type == "cpu"
    assert rule.to_mask(5).dtype == torch.bool


# --- FlexAttention --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [M, 5])
def test_mask_mod_equals_to_mask(case, n):
    _, rule, _ = case
    table = create_mask(rule.mask_mod(n, M), None, None, n, M, device="cpu")
    assert torch.equal(table[0, 0], rule.to_mask(n, M))


def test_mask_mod_of_a_batch_equals_to_mask(batched):
    table = create_mask(batched.mask_mod(5, M), 3, None, 5, M, device="cpu")
    assert torch.equal(table, batched.to_mask(5, M))
    assert torch.equal(create_mask(batched.mask_mod(5, M), 3, 2, 5, M, device="cpu")[:, 1:], table)


@pytest.mark.parametrize("shape", [(2, 3, M, M), (1, 3, M, M), (3, M, M), (2, 1, 1, M)], ids=str)
def test_mask_mod_of_a_table_uses_batch_and_head(shape):
    rule = Table(torch.rand(*shape, generator=seed(9)) < 0.5)
    table = create_mask(rule.mask_mod(5, M), 2, 3, 5, M, device="cpu")
    assert torch.equal(table, rule.to_mask(5, M).expand(2, 3, 5, M))


def test_mask_mod_with_more_queries_than_keys():
    table = create_mask((Causal() & Window(3)).mask_mod(7, 3), None, None, 7, 3, device="cpu")
    assert torch.equal(table[0, 0], (Causal() & Window(3)).to_mask(7, 3))


def test_allows_runs_on_single_positions_under_vmap(case):
    _, rule, table = case
    position = torch.arange(M)
    in_rows = torch.vmap(torch.vmap(rule.allows, in_dims=(None, 0)), in_dims=(0, None))
    assert torch.equal(in_rows(position, position), table)
    blocks = create_block_mask(lambda b, h, q, k: rule.allows(q, k), None, None, M, M, device="cpu", BLOCK_SIZE=4)
    assert torch.equal(blocks.to_dense(), rule.block_mask(M, block_size=4).to_dense())


def test_allows_broadcasts_positions_of_any_shape(case):
    _, rule, table = case
    p, j = torch.tensor([3, 0, 12]), torch.tensor([5, 0, 11])
    assert torch.equal(rule.allows(p, j).expand(3), table[p, j])
    assert torch.equal(rule.allows(p[:, None, None], j).expand(3, 1, 3), table[p[:, None, None], j])
    assert bool(rule.allows(p[0], j[0])) == bool(table[3, 5])


@pytest.fixture
def eager_flex_attention(monkeypatch):
    """Run FlexAttention without tracing, which it otherwise does even where it does not compile."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.usefixtures("eager_flex_attention")
def test_flex_attention_under_block_mask_equals_attention(case):
    _, rule, _ = case
    assert_flex_attention_equals_attention(rule)


@pytest.mark.usefixtures("eager_flex_attention")
def test_flex_attention_under_block_mask_of_a_batch_equals_attention(batched):
    assert batched.block_mask(5, M).shape == (3, 1, 5, M)
    assert batched.block_mask(5, M, heads=2).shape == (3, 2, 5, M)
    assert_flex_attention_equals_attention(batched)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["global tokens", "shared prefix", "documents", "table"])
def test_traced_flex_attention_under_block_mask_equals_attention(name):
    jaxtyping.config.update("jaxtyping_disable", True)  # shapes are checked by changing a list, which no trace may do
    torch.compiler.reset()
    rule = DEFINED[name][0] if name in DEFINED else BATCH[name]
    assert_flex_attention_equals_attention(rule & ~Window(1) | Neighbourhood2D(4, 1))


def assert_flex_attention_equals_attention(rule: Rule, n: int = 5) -> None:
    q, k, v = (torch.randn(3, 2, size, 16) for size in (n, M, M))
    out = flex_attention(q, k, v, block_mask=rule.block_mask(n, M, block_size=4))
    torch.testing.assert_close(out, attention(q, k, v, rule))


def test_block_mask_has_the_blocks_of_the_rule():
    blocks = (Causal() & Window(4)).block_mask(16, block_size=(4, 2))
    assert blocks.shape == (1, 1, 16, 16)
    assert blocks.BLOCK_SIZE == (4, 2)
    assert blocks.to_dense()[0, 0].tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 1],
    ]


def test_to_moves_all_tensors_of_a_rule():
    rule = ~(Documents(torch.tensor(PACKED), Table(TABLE)) & Causal()) | SharedPrefix(3, [10])
    moved = rule.to("meta")
    assert moved.device.type == "meta"
    assert rule.device.type == "cpu"
    assert moved.allows(torch.arange(M, device="meta")[:, None], torch.arange(M, device="meta")).is_meta
    assert Causal().to("meta") == Causal()


# --- rules with allows alone ----------------------------------------------------------------------------------------


@immutable
class Only(Rule):
    """A user's rule, which has the table of another rule and overrides nothing but ``allows``."""

    like: Table

    def allows(self, query, key):
        return rules.rule.look_up(self.like.mask, query, key)


class Recent(Rule):
    """A user's rule without fields; ``pairs`` counts for how many pairs it is evaluated."""

    def __init__(self):
        self.pairs = 0

    def allows(self, query, key):
        self.pairs += query.numel() * key.numel()
        return (key <= query) & (key > query - 20)


@given(rows=spans(M), keys=spans(M), value=st.integers(0, 2**31), density=st.floats(0, 1))
def test_base_class_answers_are_exact(rows, keys, value, density):
    table = torch.rand(M, M, generator=seed(value)) < density
    rule = Only(Table(table))
    part = table[rows.start : rows.stop]
    if value % 2:  # one answer must not depend on those before
        rule.coverage(rows, range(keys.start + 1))
    assert rule.key_ranges(rows, keys.stop) == rules.ranges.true_ranges(part[:, : keys.stop].any(dim=0).numpy())
    assert rule.coverage(rows, keys) is coverage_file.coverage_of(part[:, keys.start : keys.stop])
    assert torch.equal(rule.tile(rows, keys), part[:, keys.start : keys.stop])


@pytest.mark.parametrize("n", [64, 50])
def test_rule_with_allows_alone_visits_the_blocks_of_its_table(n):
    m, block = 64, 8
    table = Recent().to_mask(n, m)
    needed = sum(bool(part.any()) for rows in table.split(block) for part in rows.split(block, dim=1))
    assert visited_blocks(Recent(), n, m, block=block) == needed < len(table.split(block)) * m // block
    q, k, v = (torch.randn(2, 3, size, 16) for size in (n, m, m))
    torch.testing.assert_close(skipping_attention(q, k, v, Recent(), block=block), attention(q, k, v, table))
    torch.testing.assert_close(flash_attention(q, k, v, Recent(), backend="tiled"), attention(q, k, v, table))


def test_rule_with_allows_alone_is_evaluated_once_per_pair():
    rule, n, block = Recent(), 64, 8
    assert visited_blocks(rule, n, block=block) == visited_blocks(Causal() & Window(20), n, block=block)
    assert rule.pairs == n * n
    visited_blocks(rule, n, block=block)
    list(tiles(rule, range(8), n, block))
    assert rule.pairs == n * n, "the answers are remembered"
    assert visited_blocks(rule & Blocks(32), n, block=block) < visited_blocks(rule, n, block=block)
    assert rule.pairs == n * n
    rule.key_ranges(range(8), n + 8)
    assert rule.pairs == n * n + 8 * 8, "only new keys are evaluated"


def test_remembered_answers_are_bounded(monkeypatch):
    monkeypatch.setattr(coverage_file, "MOST_RANGES", 10)
    monkeypatch.setattr(coverage_file, "MOST_PAIRS", 100)
    rule = Recent()
    for _ in range(2):
        assert visited_blocks(rule, 64, block=8) == visited_blocks(Causal() & Window(20), 64, block=8)
    cache = vars(rule)["_scans"]
    assert cache._n_ranges == sum(map(coverage_file._n_ranges, cache._scans.values())) <= 10
    assert rule.pairs == 2 * 64 * 64, "dropped answers are computed again"


@immutable
class Stride(Rule):
    """A user's rule with a field."""

    step: int

    def allows(self, query, key):
        return (query - key) % self.step == 0


def test_rules_of_a_user_are_values():
    assert Stride(2) == Stride(2) != Stride(3)
    assert hash(Stride(2)) == hash(Stride(2))
    first, second = Recent(), Recent()
    first.key_ranges(range(4), 4)
    second.pairs = first.pairs
    assert first == second, "remembered answers are not a part of the value"
    assert hash(first) == hash(second)
    assert repr(Stride(2) & Causal()) == "And(a=Stride(step=2), b=Causal())"


def test_base_class_answers_without_values_are_safe(monkeypatch):
    rule = Stride(2)
    with torch.device("meta"):
        assert rule.coverage(range(4), range(4)) is Coverage.PARTIAL
        assert rule.key_ranges(range(4), 6) == [range(6)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert rule.coverage(range(1), range(1)) is Coverage.PARTIAL
        assert rule.key_ranges(range(4), 6) == [range(6)]
    assert rule.coverage(range(1), range(1)) is Coverage.FULL
    assert rule.key_ranges(range(1), 4) == [range(0, 1), range(2, 3)]


# --- single rules ---------------------------------------------------------------------------------------------------


def test_documents_inner_rule_differs_from_the_rule_of_the_sequence():
    ids = torch.tensor(PACKED)
    inside, outside = Documents(ids, Prefix(2)), Documents(ids) & Prefix(2)
    assert inside.to_mask(M)[4].nonzero().flatten().tolist() == [4, 5]
    assert outside.to_mask(M)[4].nonzero().flatten().tolist() == [4]
    assert torch.equal(Documents(ids, Causal()).to_mask(M), (Documents(ids) & Causal()).to_mask(M))
    assert Documents(ids) == Documents(ids, Full())


def test_shared_prefix_computes_each_continuation_as_if_alone():
    rule = SharedPrefix(3, [4, 2])
    q, k, v = (torch.randn(9, 8) for _ in range(3))
    together = attention(q, k, v, rule)
    for tokens in ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 7, 8]):
        torch.testing.assert_close(together[tokens], attention(q[tokens], k[tokens], v[tokens], Causal()))
        assert rule.positions[tokens].tolist() == list(range(len(tokens)))


def test_neighbourhood_with_a_class_token():
    rule = Neighbourhood2D(3, 1).shifted(-1, -1) | GlobalTokens([0])
    table = rule.to_mask(10)
    assert table[0].all()
    assert table[:, 0].all()
    assert torch.equal(table[1:, 1:], Neighbourhood2D(3, 1).to_mask(9))


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "window must be at least 1, got 0"),
        (lambda: Window(2.0), r"window must be an integer, got 2\.0"),
        (lambda: Dilated(2, 0), "dilation must be at least 1, got 0"),
        (lambda: Blocks(0), "size must be at least 1, got 0"),
        (lambda: Prefix(-1), "prefix must be at least 0, got -1"),
        (lambda: GlobalTokens([-1]), "positions must be at least 0, got -1"),
        (lambda: Padding([3]), r"lengths must be integers over \(\) or \(batch,\), got list"),
        (lambda: Padding(torch.tensor([3.0])), r"lengths must be integers over \(\) or \(batch,\), got torch.float64"),
        (lambda: LeftPadding(torch.tensor([[3]])), r"n_padding must be integers over .* got torch.int64 over \(1, 1\)"),
        (lambda: Documents(torch.tensor(3)), r"ids must be integers over .* got torch.int64 over \(\)"),
        (lambda: Documents(torch.tensor([1]), 2), "inner must be a rule, got int"),
        (
            lambda: Documents(torch.tensor([1]), Padding(torch.tensor([1]))),
            r"inner must be the same for all sequences and heads, got axes \(1, 1\)",
        ),
        (lambda: Documents(torch.tensor([1, 1, 2]), Prefix(3)).to_mask(3), "prefix must be at most 2, got 3"),
        (lambda: Neighbourhood2D(0, 1), "width must be at least 1, got 0"),
        (lambda: Neighbourhood2D(3, -1), "radius must be at least 0, got -1"),
        (lambda: SharedPrefix(-1, [2]), "prefix must be at least 0, got -1"),
        (lambda: SharedPrefix(2, [1.0]), r"lengths must be an integer, got 1\.0"),
        (lambda: SharedPrefix(2, [1]).to_mask(4), r"add up to m=4 keys for n=4 queries of at most m, got 2 and \(1,\)"),
        (lambda: Padding(torch.tensor([6])).mask_mod(5), r"lengths must be in 0 \.\. m = 5, got \[6\]"),
        (
            lambda: Padding(torch.tensor([1, 2])).block_mask(5, batch=3),
            r"batch and heads must fit the rule's axes \(2, 1\), got batch=3 and heads=None",
        ),
        (
            lambda: Table(torch.ones(2, 2, 2, 3, 3, dtype=torch.bool)).mask_mod(3),
            r"at most the axes \(batch, heads\), got \(2, 2, 2\)",
        ),
        (lambda: BlockSparse(torch.ones(2, 2), 3), r"layout must be a Boolean matrix, got torch.float64 over \(2, 2\)"),
        (lambda: Table(torch.ones(2, 2)), "mask must be Boolean, True where a query may attend, got torch.float64"),
        (lambda: Table(None), "mask must be Boolean, True where a query may attend, got NoneType"),
        (lambda: Random(3, 1.5, seed()), r"density must be between 0 and 1, got 1\.5"),
        (lambda: Causal() & 3, "mask must be Boolean, True where a query may attend, got int"),
        (lambda: Causal().to_mask(0), "n must be at least 1, got 0"),
        (lambda: Prefix(6).to_mask(5), "prefix must be at most 5, got 6"),
        (lambda: GlobalTokens([5]).to_mask(5), "positions must be at most 4, got 5"),
        (lambda: Padding(torch.tensor([6])).to_mask(5), r"lengths must be in 0 \.\. m = 5, got \[6\]"),
        (lambda: Documents(torch.tensor([1, 1])).to_mask(3), r"document of each of 3 keys and 3 queries, .* \(2,\)"),
        (lambda: Documents(torch.tensor([1, 1])).to_mask(3, 2), "document of each of 2 keys and 3 queries"),
        (
            lambda: BlockSparse(LAYOUT, 2).to_mask(9),
            r"layout must cover n=9 queries and m=9 keys by blocks of 2, got \(4, 4\)",
        ),
        (lambda: Table(TABLE).to_mask(7), r"mask must broadcast to the scores, \(..., 7, 7\).* got \(13, 13\)"),
        (lambda: Table(TABLE[:, :1]).to_mask(5, M), r"mask must broadcast .* got \(13, 1\)"),
        (lambda: And(Causal(), Prefix(6)).to_mask(5), "prefix must be at most 5, got 6"),
        (
            lambda: check_fits_scores(Padding(torch.tensor([1, 2, 3])), (2, 4, 5, 5)),
            r"mask must broadcast to the scores, \(2, 4, 5, 5\), .* got a rule over \(3, 1, 5, 5\)",
        ),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- the tests themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("coverage", lambda self, rows, keys: Coverage.FULL if keys.stop <= rows.stop else Coverage.PARTIAL),
        ("coverage", lambda self, rows, keys: Coverage.EMPTY if keys.start >= rows.stop - 1 else Coverage.PARTIAL),
        ("key_ranges", lambda self, rows, m: [range(rows.start)] if rows.start else []),
    ],
    ids=["full too early", "empty too early", "without the query's own key"],
)
def test_wrong_tile_answers_are_caught(method, wrong):
    answers = type("Wrong", (Causal,), {method: wrong})()
    table = Causal().to_mask(M)
    noticed = False
    for rows in (range(0, 4), range(3, 7)):
        named = [key for span in answers.key_ranges(rows, M) for key in span]
        noticed |= not set(table[rows.start : rows.stop].any(dim=0).nonzero().flatten().tolist()) <= set(named)
        for keys in (range(0, 3), range(2, 7), range(6, 9)):
            part = table[rows.start : rows.stop, keys.start : keys.stop]
            answer = answers.coverage(rows, keys)
            noticed |= (answer is Coverage.FULL and not part.all()) or (answer is Coverage.EMPTY and bool(part.any()))
    assert noticed


def test_every_rule_has_a_definition_here():
    named = {type(rule) for rule, _ in DEFINED.values()} | {Random, BigBird, And, Or, Not, Part, Rule}
    assert {c for c in vars(rules).values() if isinstance(c, type) and issubclass(c, Rule)} <= named
