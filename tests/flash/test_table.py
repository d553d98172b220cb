"""A table of tiles says exactly what its rule says, whichever side reads it, and shares what looks alike."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lessons_lib.flash.table import SIDE, TileTable, Visits, kept_table_of, table_of
from lessons_lib.rules import (
    BigBird,
    Causal,
    Documents,
    Everything,
    GlobalTokens,
    LeftPadding,
    Padding,
    Prefix,
    Random,
    Rule,
    Seen,
    Table,
    Window,
)

N, M = 131, 197  # three and four squares, the last of each cut off


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


PACKED = torch.tensor([[0] * 60 + [1] * 137, [3] * 64 + [4] * 133])
RULES = {
    "everything": Everything(),
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
    """Draw what a table says, square by square, read from one side."""
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
def test_a_table_draws_its_rules_picture(name, side):
    rule = RULES[name]
    table = table_of(rule, N, M)
    drawn = picture(table, getattr(table, side), N, M)
    torch.testing.assert_close(drawn, rule.tensor(N, M).expand(drawn.shape))


@pytest.mark.parametrize("name", ["everything", "causal", "longformer", "table of heads"])
def test_more_queries_than_keys(name):
    rule = RULES[name] if name != "table of heads" else Table(torch.rand(2, 3, M, N, generator=generator()) > 0.5)
    table = table_of(rule & Window(1000), M, N) if name != "longformer" else table_of(GlobalTokens([3]), M, N)
    wanted = (rule & Window(1000) if name != "longformer" else GlobalTokens([3])).tensor(M, N)
    drawn = picture(table, table.by_query, M, N)
    assert torch.equal(drawn, wanted.expand(drawn.shape))


def test_what_looks_alike_shares_a_picture():
    """A window needs the diagonal square, the one it leaves on the left, and the two squares that the end cuts off."""
    few, many = (table_of(Causal() & Window(64), n, n) for n in (4 * SIDE, 400 * SIDE))
    assert len(few.pictures) == len(many.pictures) == 2
    assert len(many.by_query.where) == 2 * 400 - 1


def test_squares_seen_by_nobody_are_not_asked_for():
    asked = []

    class Watched(Rule):
        def allows(self, query: Tensor, key: Tensor) -> Tensor:
            asked.append((query, key))
            return (query // 300) == (key // 300)

        def keys(self, rows: range, m: int) -> list[range]:
            return [range(rows.start // 300 * 300, min(-(-rows.stop // 300) * 300, m))]

        def sees(self, rows: range, keys: range) -> Seen:
            return Seen.SOME

    table_of(Watched(), 3000, 3000)
    assert len(asked) < 3000 // SIDE * 2 * (300 // SIDE + 2)


@pytest.mark.parametrize("name", ["everything", "causal", "causal window"])
def test_with_cache_lengths_each_sequence_ends_at_its_own_key(name):
    rule, lengths = RULES[name], [100, 0, 197, 7]
    table = table_of(rule, 20, M, cache_lengths=torch.tensor(lengths))
    drawn = picture(table, table.by_key, 20, M)
    for b, length in enumerate(lengths):
        if length:
            assert torch.equal(drawn[b, 0, :, :length], rule.tensor(20, length))
        assert not drawn[b, :, :, length:].any()


def test_a_rule_that_shows_nothing_makes_an_empty_list():
    table = table_of(~Everything(), 5, 7)
    assert len(table.by_query.where) == 0
    assert table.pictures.shape == (1, SIDE)


def test_the_layers_of_a_model_share_one_table():
    rule, device = Causal() & Documents(PACKED), torch.device("cpu")
    table = kept_table_of(rule, N, M, device)
    assert kept_table_of(rule, N, M, device) is table
    assert kept_table_of(rule, N - 1, M, device) is not table
    assert rule == Causal() & Documents(PACKED), "what is kept is no part of the rule"
