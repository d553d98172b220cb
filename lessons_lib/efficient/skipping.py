"""Attention that skips what a rule hides: one function for windows, Longformer, BigBird, prefixes, packed documents."""

from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention import Pattern, attention, attention_pattern, declares_pattern
from lessons_lib.efficient.call_shape import check_heads, check_over_scores, rows_and_columns
from lessons_lib.rules import Rule, Seen, as_rule, conjuncts, takes_rules
from lessons_lib.shapes import check_size

# Smaller blocks pay for Python, larger ones compute more scores that the rule hides.
BLOCK = 128


def _pattern(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, block: int = BLOCK, **options: Any
) -> Pattern:
    return attention_pattern(query, key, mask, **options)  # blocks change nothing


@takes_rules
@declares_pattern(_pattern)
def skipping_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"],
    *,
    block: int = BLOCK,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Attend under a mask as :func:`lessons_lib.attention.attention` does, without the blocks of scores that it hides.

    Queries and keys are cut into blocks of :math:`B`. Each block of queries gathers the blocks of keys of which it sees
    anything, attends to those, and hides what the rule hides inside them; a block that sees nothing returns zeros. So
    there are :math:`B^2` scores for each visit instead of :math:`n m`, on the way forward and on the way back:
    :func:`visited_blocks` counts them. A window :math:`w` has :math:`w / B + 2` visits for each block at most, whatever
    :math:`n`.

    Where the memory matters more than the pieces' simplicity, :func:`lessons_lib.flash.flash_attention` skips by the
    same rules.

    Args:
        mask: the rule. A Boolean table is taken too, but is itself quadratic.
        block: number of positions in a block, :math:`B`. Any ``n`` and ``m``: the last blocks may be shorter.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention`; a bias over ``(n, m)`` is quadratic itself.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention`, or if the leading axes differ by more than grouped
            heads, or ``block`` is not a positive integer.
    """
    check_heads(query, key, value)
    check_over_scores(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    rule = as_rule(mask, m)
    check_size("block", block, at_least=1)
    keys, values = key.split(block, dim=-2), value.split(block, dim=-2)
    biases = _cut(bias, m, block, -(-n // block))
    plan, outs = _Plan(rule, m, block, query.device), []
    for row, q in enumerate(query.split(block, dim=-2)):
        places = range(row * block + m - n, row * block + m - n + q.shape[-2])
        visits = plan.visits(places)
        if not visits:
            outs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        k, v = (torch.cat([blocks[column] for column in visits], dim=-2) for blocks in (keys, values))
        seen = plan.table(places, visits)
        added = None if biases is None else torch.cat([biases[row][column] for column in visits], dim=-1)
        outs.append(attention(q, k, v, seen, scale=scale, bias=added, dropout_p=dropout_p))
    return torch.cat(outs, dim=-2)


def visited_blocks(rule: Rule, n: int, m: int | None = None, *, block: int = BLOCK) -> int:
    """Return how many blocks of scores :func:`skipping_attention` computes, each ``block * block`` or smaller.

    Raises:
        ValueError: if the rule does not fit ``n`` queries and ``m`` keys.
    """
    m = n if m is None else m
    rule.check_sizes(n, m)
    plan = _Plan(rule, m, block, torch.device("cpu"))
    return sum(len(plan.visits(range(start, min(start + block, m)))) for start in range(m - n, m, block))


# --- parts ----------------------------------------------------------------------------------------------------------


class _Plan:
    """Which blocks of keys to visit, and what is hidden there, asked of each of the rules that ``&`` joined.

    Where only distances matter most blocks look alike: what was made for one is kept for the others.
    """

    def __init__(self, rule: Rule, m: int, block: int, device: torch.device) -> None:
        self.rule, self.m, self.block, self.device = rule, m, block, device
        self.parts, self.is_relative, self.made = conjuncts(rule), rule.is_relative, {}

    def visits(self, places: range) -> dict[int, list[Rule]]:
        """Return the blocks that the queries at these places see anything of, and for each the rules that hide some."""
        visits = {}
        for span in self.rule.keys(places, self.m):
            for column in range(span.start // self.block, -(-span.stop // self.block)):
                hiding = None if column in visits else self._hiding(places, self._keys(column))
                if hiding is not None:
                    visits[column] = hiding
        return visits

    def table(self, places: range, visits: dict[int, list[Rule]]) -> Tensor | None:
        """Return the tables of the blocks visited, side by side; None if nothing is hidden in any."""
        if not any(visits.values()):
            return None
        spans = [self._keys(column) for column in visits]
        alike = None
        if self.is_relative:
            alike = (len(places), *((keys.start - places.start, len(keys)) for keys in spans))
            if alike in self.made:
                return self.made[alike]
        shape = (*self.rule.leading, len(places), sum(map(len, spans)))
        table, start = torch.ones(shape, dtype=torch.bool, device=self.device), 0
        for keys, hiding in zip(spans, visits.values(), strict=True):
            if hiding:
                table[..., start : start + len(keys)] = self._tile(places, keys, hiding)
            start += len(keys)
        if alike is not None:
            self.made[alike] = table
        return table

    def _hiding(self, places: range, keys: range) -> list[Rule] | None:
        """The parts that hide some of a block; None if one hides all of it."""
        hiding = []
        for part in self.parts:
            seen = part.sees(places, keys)
            if seen is Seen.NONE:
                return None
            if seen is Seen.SOME:
                hiding.append(part)
        return hiding

    def _tile(self, places: range, keys: range, hiding: list[Rule]) -> Tensor:
        alike = (keys.start - places.start, len(places), len(keys), *map(id, hiding))
        if alike in self.made:
            return self.made[alike]
        tile = reduce(and_, (part.tile(places, keys, device=self.device) for part in hiding))
        if all(part.is_relative for part in hiding):
            self.made[alike] = tile
        return tile

    def _keys(self, column: int) -> range:
        return range(column * self.block, min((column + 1) * self.block, self.m))


def _cut(over_scores: Tensor | None, m: int, block: int, n_rows: int) -> list[tuple[Tensor, ...]] | None:
    """A bias cut into the blocks of scores that it lies over.

    Slices would do, but the gradient of each is as large as the whole: cut like this, it is as large as the block.
    """
    if over_scores is None:
        return None
    over_scores = rows_and_columns(over_scores, m)
    rows = [over_scores] * n_rows if over_scores.shape[-2] == 1 else over_scores.split(block, dim=-2)
    return [row.split(block, dim=-1) for row in rows]
