"""A rule's picture is its definition, and what it says about tiles is what the picture shows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib import masks, rules
from lessons_lib.rules import (
    Band,
    BigBird,
    Blocks,
    Both,
    Causal,
    Dilated,
    Documents,
    Either,
    Everything,
    GlobalTokens,
    Layout,
    LeftPadding,
    Padding,
    Part,
    Prefix,
    Random,
    Rule,
    Seen,
    Table,
    Window,
    as_rule,
    as_taken_by,
    check_over,
    conjuncts,
    takes_rules,
    tiles,
)

M = 13  # keys; rules that are made for a number of keys are made for this one


def seed(value: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def entries(n: int, m: int, may_attend) -> torch.Tensor:
    """The table whose entry (i, j) is ``may_attend(p, j)``, with the query's position p = i + m - n."""
    return torch.tensor([[bool(may_attend(i + m - n, j)) for j in range(m)] for i in range(n)])


PACKED = [0, 0, 0, 0, 3, 3, 5, 5, 5, 5, 5, 9, 9]
MIXED = [1, 2, 1, 1, 2, 2, 3, 1, 1, 3, 3, 3, 2]
LAYOUT = torch.rand(4, 4, generator=seed(3)) < 0.5
TABLE = torch.rand(M, M, generator=seed(4)) < 0.4

# What each rule says, pair by pair, in words of its own.
DEFINED = {
    "everything": (Everything(), lambda p, j: True),
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
    "layout": (Layout(LAYOUT, 4), lambda p, j: LAYOUT[p // 4, j // 4]),
    "table": (Table(TABLE), lambda p, j: TABLE[p, j]),
    "both": (Prefix(3) & Blocks(5), lambda p, j: (j < 3 or j <= p) and p // 5 == j // 5),
    "either": (Window(2) | GlobalTokens([5]), lambda p, j: abs(p - j) < 2 or 5 in (p, j)),
    "not": (~Causal(), lambda p, j: j > p),
    "not all of it": (~(Window(4) & ~Blocks(3)), lambda p, j: not (abs(p - j) < 4 and p // 3 != j // 3)),
    "part of nothing": (Part(Causal() & Window(5), 2, 0), lambda p, j: 0 <= p + 2 - j < 5),
}
EXACT = set(DEFINED) - {"dilated", "mixed documents", "not all of it", "both", "either"}  # of ``sees``
EXACT_KEYS = EXACT - {"not"}


@pytest.fixture(params=DEFINED, name="case")
def _case(request) -> tuple[str, Rule, torch.Tensor]:
    rule, allows = DEFINED[request.param]
    return request.param, rule, entries(M, M, allows)


def spans(limit: int):
    return st.tuples(st.integers(0, limit - 1), st.integers(1, limit)).map(
        lambda pair: range(pair[0], min(pair[0] + pair[1], limit))
    )


# --- the picture ----------------------------------------------------------------------------------------------------


def test_a_rule_s_picture_is_its_definition(case):
    _, rule, table = case
    assert torch.equal(rule.tensor(M), table)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_the_queries_are_the_last_positions(case, n):
    _, rule, table = case
    assert torch.equal(rule.tensor(n, M), table[-n:])


def test_queries_before_the_first_key_see_no_earlier_one():
    assert torch.equal(Causal().tensor(7, 3), entries(7, 3, lambda p, j: j <= p))
    assert torch.equal(Window(3).tensor(7, 3), entries(7, 3, lambda p, j: abs(p - j) < 3))


@pytest.mark.parametrize(
    ("picture", "rule"),
    [
        (masks.bidirectional(5, 7), Everything()),
        (masks.causal(5, 7), Causal()),
        (masks.sliding_window(7, 3), Causal() & Window(3)),
        (masks.sliding_window(7, 3, causal=False), Window(3)),
        (masks.dilated(7, 3, 2), Causal() & Dilated(3, 2)),
        (masks.block(7, 3), Blocks(3)),
        (masks.prefix(7, 3), Prefix(3)),
        (masks.global_tokens(7, [1, 4]), GlobalTokens([4, 1])),
        (masks.padding(torch.tensor([3, 7]), 7).expand(2, 1, 5, 7), Padding(torch.tensor([3, 7]))),
        (masks.documents(torch.tensor([[1, 1, 2], [3, 4, 4]])), Documents(torch.tensor([[1, 1, 2], [3, 4, 4]]))),
        (masks.longformer(7, window=2, global_positions=[3]), Window(2) | GlobalTokens([3])),
        (masks.random_sparse(7, 0.4, seed(5)), Random(7, 0.4, seed(5))),
        (
            masks.big_bird(12, window=1, n_global=1, n_random=1, generator=seed(6), block=3),
            BigBird(4, window=1, n_global=1, n_random=1, generator=seed(6), block=3),
        ),
    ],
)
def test_the_functions_of_masks_are_pictures_of_rules(picture, rule):
    assert torch.equal(picture, rule.tensor(*picture.shape[-2:]))


# --- tiles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINED)
@given(rows=spans(M), keys=spans(M))
def test_a_tile_is_a_part_of_the_picture(name, rows, keys):
    rule, allows = DEFINED[name]
    part = entries(M, M, allows)[rows.start : rows.stop, keys.start : keys.stop]
    assert torch.equal(rule.tile(rows, keys), part)
    seen = rule.sees(rows, keys)
    if seen is Seen.ALL:
        assert part.all()
    if seen is Seen.NONE:
        assert not part.any()
    if name in EXACT and seen is Seen.SOME:
        assert part.any()
        assert not part.all()


@pytest.mark.parametrize("name", DEFINED)
@given(rows=spans(M), m=st.integers(1, M))
def test_keys_are_all_that_the_rows_see(name, rows, m):
    rule, allows = DEFINED[name]
    seen = set(entries(M, M, allows)[rows.start : rows.stop, :m].any(dim=0).nonzero().flatten().tolist())
    ranges = rule.keys(rows, m)
    named = [key for span in ranges for key in span]
    assert named == sorted(set(named)), "in order, none twice"
    assert seen <= set(named) <= set(range(m))
    if name in EXACT_KEYS:
        assert seen == set(named)


@pytest.mark.parametrize("block", [1, 3, 8])
def test_tiles_cover_what_is_seen_and_leave_out_what_is_not(case, block):
    _, rule, table = case
    for start in range(0, M, 4):
        rows = range(start, min(start + 4, M))
        visited = torch.zeros(M, dtype=torch.bool)
        for keys, seen in tiles(rule, rows, M, block):
            assert 1 <= len(keys) <= block
            assert not visited[keys.start : keys.stop].any(), "no key is visited twice"
            assert seen is not Seen.NONE
            visited[keys.start : keys.stop] = True
        assert (visited >= table[rows.start : rows.stop].any(dim=0)).all()


def test_a_band_visits_few_tiles_of_a_long_sequence():
    visited = list(tiles(Causal() & Window(256), range(10_000, 10_128), 12_288, 128))
    assert [keys.start for keys, _ in visited] == [9745, 9873, 10001]
    assert [seen for _, seen in visited] == [Seen.SOME, Seen.ALL, Seen.SOME]
    assert len(list(tiles(Causal(), range(0, 128), 12_288, 128))) == 1


def test_near_ranges_are_taken_together():
    rule = GlobalTokens([0, 3, 40])
    assert [keys for keys, _ in tiles(rule, range(50, 60), 64, 16)] == [range(4), range(40, 41)]


# --- batches --------------------------------------------------------------------------------------------------------

BATCH = {
    "padding": Padding(torch.tensor([M, 4, 0])),
    "left padding": LeftPadding(torch.tensor([0, 4, 11])),
    "documents": Documents(torch.tensor([PACKED, MIXED, [0] * M])),
    "table": Table(torch.rand(3, 1, M, M, generator=seed(7)) < 0.5),
    "rows for all": Table(torch.rand(3, 1, 1, M, generator=seed(8)) < 0.5),
}


@pytest.fixture(params=BATCH, name="batched")
def _batched(request) -> Rule:
    return BATCH[request.param] & Causal() | GlobalTokens([2])


def test_a_batch_has_an_axis_for_the_heads(batched):
    assert batched.leading == (3, 1)
    assert batched.tensor(5, M).shape == (3, 1, 5, M)


def test_the_rule_of_one_sequence_is_its_part_of_the_picture(batched):
    table = batched.tensor(5, M)
    for b in range(3):
        assert batched.of_sequence(b).leading == ()
        assert torch.equal(batched.of_sequence(b).tensor(5, M), table[b, 0])


def test_tiles_of_a_batch_cover_all_its_sequences(batched):
    table = batched.tensor(M).any(dim=0)[0]
    for rows in (range(0, 4), range(5, 12)):
        seen = table[rows.start : rows.stop].any(dim=0)
        named = torch.zeros(M, dtype=torch.bool)
        for span in batched.keys(rows, M):
            named[span.start : span.stop] = True
        assert (named >= seen).all()
        for keys in (range(0, 3), range(4, 11), range(12, 13)):
            part = batched.tile(rows, keys)
            answer = batched.sees(rows, keys)
            assert answer is Seen.SOME or part.all() == part.any() == (answer is Seen.ALL)


def test_a_table_may_differ_from_head_to_head():
    mask = torch.rand(2, 5, M, M) < 0.5
    rule = Table(mask)
    assert rule.leading == (2, 5)
    assert torch.equal(rule.of_sequence(1).tensor(M), mask[1])
    assert torch.equal(Table(mask[:1]).of_sequence(1).tensor(M), mask[0])


# --- combinations ---------------------------------------------------------------------------------------------------


def test_rules_combine_as_their_pictures_do(case):
    _, rule, table = case
    other = Blocks(5)
    assert torch.equal((rule & other).tensor(M), table & other.tensor(M))
    assert torch.equal((rule | other).tensor(M), table | other.tensor(M))
    assert torch.equal((~rule).tensor(M), ~table)


def test_one_part_that_sees_all_or_nothing_decides():
    rows, keys = range(4, 8), range(5, 9)  # a causal query sees some of these
    assert Causal().sees(rows, keys) is Seen.SOME
    for a, b in ((Causal(), Everything()), (Everything(), Causal())):
        assert (a | b).sees(rows, keys) is Seen.ALL
        assert (a & b).sees(rows, keys) is Seen.SOME
    for a, b in ((Causal(), ~Everything()), (~Everything(), Causal())):
        assert (a | b).sees(rows, keys) is Seen.SOME
        assert (a & b).sees(rows, keys) is Seen.NONE


def test_a_table_may_take_part():
    assert torch.equal((Causal() & TABLE).tensor(M), TABLE & masks.causal(M))
    assert torch.equal((Causal() | TABLE).tensor(M), TABLE | masks.causal(M))
    assert torch.equal((TABLE & Causal()).tensor(M), TABLE & masks.causal(M))
    assert torch.equal((TABLE | Causal()).tensor(M), TABLE | masks.causal(M))
    assert as_rule(TABLE) == Table(TABLE)
    assert torch.equal(as_rule(TABLE[:5, :1], M).tensor(5, M), TABLE[:5, :1].expand(5, M))
    assert torch.equal(Table(TABLE[:, :1]).tensor(M), TABLE[:, :1].expand(M, M))
    assert as_rule(Causal()) == Causal()


def test_the_parts_of_a_conjunction_are_found_and_of_nothing_else():
    assert conjuncts(Causal() & (Window(3) & Blocks(2))) == [Causal(), Window(3), Blocks(2)]
    assert conjuncts(Causal() | Window(3)) == [Causal() | Window(3)]
    assert conjuncts(~(Causal() & Window(3))) == [~(Causal() & Window(3))]


def test_rules_are_values():
    assert Causal() & Window(3) == Causal() & Window(3)
    assert Window(3) != Window(4)
    assert Window(1) != Dilated(1, 1)
    assert Padding(torch.tensor([1, 2])) == Padding(torch.tensor([1, 2]))
    assert Padding(torch.tensor([1, 2])) != Padding(torch.tensor([1, 3]))
    assert len({Causal(), Causal(), Everything()}) == 2
    assert repr(Causal() & Window(3)) == "Both(a=Causal(), b=Window(3))"
    with pytest.raises(AttributeError):
        Dilated(2, 3).window = 4
    lengths = torch.tensor([2, 3])
    rule = Padding(lengths)
    lengths += 1
    assert rule.lengths.tolist() == [2, 3]


@pytest.mark.parametrize(("query", "key"), [(3, 5), (5, 0), (4, 4), (0, 0)])
def test_the_rule_of_a_part_is_a_part_of_the_picture(case, query, key):
    _, rule, table = case
    part = rule.part(query, key)
    assert torch.equal(part.tile(range(0, 7), range(0, 6)), table[query : query + 7, key : key + 6])
    assert torch.equal(part.part(1, 1).tile(range(0, 7), range(0, 6)), table[query + 1 : query + 8, key + 1 : key + 7])


def test_a_part_of_a_band_is_a_band():
    assert (Causal() & Window(4)).part(10, 8) == Band(None, 2) & Band(1, 5)
    assert Causal().part(9, 9) == Causal()


def test_a_part_sees_what_the_whole_does():
    whole = (Prefix(4) | Documents(torch.tensor(PACKED))) & ~GlobalTokens([6])
    table = whole.tensor(M)
    part = Part(whole, 3, 5)
    assert torch.equal(part.tile(range(0, 7), range(0, 6)), table[3:10, 5:11])
    for rows, keys in ((range(0, 2), range(1, 4)), (range(4, 7), range(0, 6))):
        inside = table[rows.start + 3 : rows.stop + 3, keys.start + 5 : keys.stop + 5]
        answer = part.sees(rows, keys)
        assert answer is Seen.SOME or inside.all() == inside.any() == (answer is Seen.ALL)
    assert all(0 <= span.start < span.stop <= 6 for span in part.keys(range(0, 7), 6))


# --- who takes what -------------------------------------------------------------------------------------------------


def test_who_asks_rules_is_given_the_rule_and_who_does_not_the_table():
    from functools import partial

    def plain(query, key, value, mask=None, **options):
        return mask

    marked = takes_rules(lambda query, key, value, mask=None, **options: mask)
    rule = Causal()
    assert as_taken_by(marked, rule, 3, 5) is rule
    assert as_taken_by(partial(partial(marked)), rule, 3, 5) is rule
    assert torch.equal(as_taken_by(plain, rule, 3, 5), masks.causal(3, 5))
    assert as_taken_by(marked, TABLE, 3, 5) is TABLE
    assert as_taken_by(plain, None, 3, 5) is None


@pytest.mark.parametrize(
    "rule", [Causal() & Window(2), Blocks(2), Prefix(2), GlobalTokens([1]), Dilated(2, 2)], ids=repr
)
def test_a_picture_lies_where_it_is_asked_for(rule):
    assert rule.tensor(5, device="meta").device.type == "meta"
    assert rule.tensor(5).device.type == "cpu"
    assert rule.tensor(5).dtype == torch.bool


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
        (lambda: LeftPadding(torch.tensor([[3]])), r"filling must be integers over .* got torch.int64 over \(1, 1\)"),
        (lambda: Documents(torch.tensor(3)), r"ids must be integers over .* got torch.int64 over \(\)"),
        (lambda: Layout(torch.ones(2, 2), 3), r"layout must be a Boolean matrix, got torch.float64 over \(2, 2\)"),
        (lambda: Table(torch.ones(2, 2)), "mask must be Boolean, True where a query may attend, got torch.float64"),
        (lambda: Table(None), "mask must be Boolean, True where a query may attend, got NoneType"),
        (lambda: Random(3, 1.5, seed()), r"density must be between 0 and 1, got 1\.5"),
        (lambda: Causal() & 3, "mask must be Boolean, True where a query may attend, got int"),
        (lambda: Causal().tensor(0), "n must be at least 1, got 0"),
        (lambda: Prefix(6).tensor(5), "prefix must be at most 5, got 6"),
        (lambda: GlobalTokens([5]).tensor(5), "positions must be at most 4, got 5"),
        (lambda: Padding(torch.tensor([6])).tensor(5), r"lengths must be in 0 \.\. m = 5, got \[6\]"),
        (lambda: Documents(torch.tensor([1, 1])).tensor(3), r"document of each of 3 keys and 3 queries, .* \(2,\)"),
        (lambda: Documents(torch.tensor([1, 1])).tensor(3, 2), "document of each of 2 keys and 3 queries"),
        (
            lambda: Layout(LAYOUT, 2).tensor(9),
            r"layout must cover n=9 queries and m=9 keys by blocks of 2, got \(4, 4\)",
        ),
        (lambda: Table(TABLE).tensor(7), r"mask must broadcast to the scores, \(..., 7, 7\).* got \(13, 13\)"),
        (lambda: Table(TABLE[:, :1]).tensor(5, M), r"mask must broadcast .* got \(13, 1\)"),
        (lambda: Both(Causal(), Prefix(6)).tensor(5), "prefix must be at most 5, got 6"),
        (
            lambda: check_over(Padding(torch.tensor([1, 2, 3])), (2, 4, 5, 5)),
            r"mask must broadcast to the scores, \(2, 4, 5, 5\), .* got a rule over \(3, 1, 5, 5\)",
        ),
    ],
)
def test_nonsense_is_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- the tests themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("sees", lambda self, rows, keys: Seen.ALL if keys.stop <= rows.stop else Seen.SOME),
        ("sees", lambda self, rows, keys: Seen.NONE if keys.start >= rows.stop - 1 else Seen.SOME),
        ("keys", lambda self, rows, m: [range(rows.start)] if rows.start else []),
    ],
    ids=["all too early", "none too early", "not the query's own key"],
)
def test_wrong_answers_about_tiles_would_be_noticed(method, wrong):
    answers = type("Wrong", (Causal,), {method: wrong})()
    table = Causal().tensor(M)
    noticed = False
    for rows in (range(0, 4), range(3, 7)):
        named = [key for span in answers.keys(rows, M) for key in span]
        noticed |= not set(table[rows.start : rows.stop].any(dim=0).nonzero().flatten().tolist()) <= set(named)
        for keys in (range(0, 3), range(2, 7), range(6, 9)):
            part = table[rows.start : rows.stop, keys.start : keys.stop]
            answer = answers.sees(rows, keys)
            noticed |= (answer is Seen.ALL and not part.all()) or (answer is Seen.NONE and bool(part.any()))
    assert noticed


def test_every_rule_of_the_package_is_defined_here():
    named = {type(rule) for rule, _ in DEFINED.values()} | {Random, BigBird, Either, Both, Rule}
    assert {c for c in vars(rules).values() if isinstance(c, type) and issubclass(c, Rule)} <= named
