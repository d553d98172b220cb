"""A tile table equals the mask of its rule, read by query or by key, and equal squares share a picture."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lessons_lib.attention.rules import (
    BigBird,
    Causal,
    Coverage,
    Documents,
    Full,
    GlobalTokens,
    LeftPadding,
    Padding,
    Prefix,
    Random,
    Rule,
    Table,
    Window,
)
from lessons_lib.flash.block_mask import SIDE, TileTable, Visits, cached_tile_table, make_tile_table

N, M = 131, 197  # three and four squares; the last one is smaller


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


PACKED = torch.tensor([[0] * 60 + [1] * 137, [3] * 64 + [4] * 133])
RULES = {
    "everything": Full(),
    "causal": Causal(),
    "anticausal": ~Causal(),
    "window": Window(70),
    "causal window": Causal() & Window(10),
    "prefix": Prefix(30),
    "longformer": GlobalTokens([3, 150]) | Window(5),
    "bigbird": BigBird(4, window=1, n_global=1, n_random=1, generator=generator(), block=50),
    "documents": Causal() & Documents(PACKED),
    "padding": Padding(torch.tensor([0, 130])),
    "left padding": Causal() & LeftPadding(torch.tensor([0, 130])),
    "table of heads": Table(torch.rand(2, 3, N, M, generator=generator()) > 0.5),
    "sparse table": Table(torch.rand(3, N, M, generator=generator()) > 0.9995),
    "random": Random(M, 0.01, generator()),
}


def picture(table: TileTable, visits: Visits, n: int, m: int) -> Tensor:
    """Return the mask of a table, square by square, read by query or by key."""
    by_query = visits is table.by_query
    (b, h, _), bits = visits.starts.shape, torch.arange(SIDE)
    drawn = torch.zeros(b, h, -(-n // SIDE) * SIDE, -(-m // SIDE) * SIDE, dtype=torch.bool)
    for sequence in range(b):
        for head in range(h):
            starts = visits.starts[sequence, head].tolist()
            for mine, (start, stop) in enumerate(pairwise(starts)):
                for theirs, which in zip(visits.where[start:stop], visits.which[start:stop], strict=True):
                    row, column = (mine, theirs) if by_query else (theirs, mine)
                    square = drawn[sequence, head, row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
                    assert not square.any(), "a square is visited twice"
                    square.copy_((table.pictures[which][:, None] >> bits) & 1 if which >= 0 else torch.ones(()))
    assert not drawn[..., m:].any(), "keys that do not exist are seen"
    return drawn[..., :n, :m]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("side", ["by_query", "by_key"])
def test_tile_table_equals_the_mask_of_its_rule(name, side):
    rule = RULES[name]
    table = make_tile_table(rule, N, M)
    drawn = picture(table, getattr(table, side), N, M)
    torch.testing.assert_close(drawn, rule.to_mask(N, M).expand(drawn.shape))


@pytest.mark.parametrize("name", ["everything", "causal", "longformer", "table of heads"])
def test_tile_table_with_more_queries_than_keys(name):
    rule = RULES[name] if name != "table of heads" else Table(torch.rand(2, 3, M, N, generator=generator()) > 0.5)
    table = (
        make_tile_table(rule & Window(1000), M, N) if name != "longformer" else make_tile_table(GlobalTokens([3]), M, N)
    )
    wanted = (rule & Window(1000) if name != "longformer" else GlobalTokens([3])).to_mask(M, N)
    drawn = picture(table, table.by_query, M, N)
    assert torch.equal(drawn, wanted.expand(drawn.shape))


def test_equal_squares_share_a_picture():
    """A causal window needs two pictures: the square on the diagonal and the square at the left end of the window."""
    few, many = (make_tile_table(Causal() & Window(64), n, n) for n in (4 * SIDE, 400 * SIDE))
    assert len(few.pictures) == len(many.pictures) == 2
    assert len(many.by_query.where) == 2 * 400 - 1


def test_hidden_squares_are_not_computed():
    asked = []

    class Watched(Rule):
        def allows(self, query: Tensor, key: Tensor) -> Tensor:
            asked.append((query, key))
            return (query // 300) == (key // 300)

        def keys(self, rows: range, m: int) -> list[range]:
            return [range(rows.start // 300 * 300, min(-(-rows.stop // 300) * 300, m))]

        def coverage(self, rows: range, keys: range) -> Coverage:
            return Coverage.PARTIAL

    make_tile_table(Watched(), 3000, 3000)
    assert len(asked) < 3000 // SIDE * 2 * (300 // SIDE + 2)


@pytest.mark.parametrize("name", ["everything", "causal", "causal window"])
def test_cache_lengths_align_queries_per_sequence(name):
    rule, lengths = RULES[name], [100, 0, 197, 7]
    table = make_tile_table(rule, 20, M, cache_lengths=torch.tensor(lengths))
    drawn = picture(table, table.by_key, 20, M)
    for b, length in enumerate(lengths):
        if length:
            assert torch.equal(drawn[b, 0, :, :length], rule.to_mask(20, length))
        assert not drawn[b, :, :, length:].any()


def test_rule_that_hides_everything_has_no_visits():
    table = make_tile_table(~Full(), 5, 7)
    assert len(table.by_query.where) == 0
    assert table.pictures.shape == (1, SIDE)


def test_cached_tile_table_returns_the_same_object():
    rule, device = Causal() & Documents(PACKED), torch.device("cpu")
    table = cached_tile_table(rule, N, M, device)
    assert cached_tile_table(rule, N, M, device) is table
    assert cached_tile_table(rule, N - 1, M, device) is not table
    assert rule == Causal() & Documents(PACKED), "what is kept is no part of the rule"
