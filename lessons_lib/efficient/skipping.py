"""Attention that skips hidden blocks of scores, for any rule: windows, Longformer, BigBird, prefixes, documents."""

from functools import reduce
from operator import and_
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.attention.attention import WeightsAndMask, attention, attention_weights_and_mask, declare_weights
from lessons_lib.attention.rules import Coverage, Rule, as_rule, conjuncts, declare_rule_support
from lessons_lib.efficient.validation import check_heads, check_mask_and_bias, expand_columns
from lessons_lib.foundations.validation import check_size

# Smaller blocks spend more time in Python; larger blocks compute more hidden scores.
_BLOCK = 128


def _weights_and_mask(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, block: int = _BLOCK, **options: Any
) -> WeightsAndMask:
    return attention_weights_and_mask(query, key, mask, **options)  # the block size does not change the weights


@declare_rule_support
@declare_weights(_weights_and_mask)
def skipping_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"],
    *,
    block: int = _BLOCK,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Attend under a mask as :func:`lessons_lib.attention.attention.attention` does, without the blocks of scores
    that it hides.

    Queries and keys are split into blocks of :math:`B` positions. Each block of queries concatenates the blocks of
    keys with at least one visible key, and attends to them under the rule. A block of queries without visible keys
    returns zeros. Each visited block has :math:`B^2` scores, in the forward and in the backward pass;
    :func:`visited_blocks` counts the visited blocks. With a window :math:`w`, each block of queries visits at most
    :math:`w / B + 2` blocks of keys, for every :math:`n`.

    :func:`lessons_lib.flash.interface.flash_attention` skips by the same rules and needs less memory. This function is
    simpler to read.

    ::

        >>> from lessons_lib.attention.rules import Causal, Window
        >>> q, k, v = torch.randn(3, 2, 8, 500, 64)
        >>> skipping_attention(q, k, v, Causal() & Window(100)).shape
        torch.Size([2, 8, 500, 64])

    Args:
        query, key, value: as :func:`lessons_lib.attention.attention.attention`.
        mask: the rule, or a Boolean table, which takes quadratic memory itself.
        block: number of positions in a block, :math:`B`. It need not divide ``n`` or ``m``: the last block may be
            shorter.
        scale, bias, dropout_p: as :func:`lessons_lib.attention.attention.attention`; a bias over ``(n, m)`` takes
            quadratic memory itself.

    Raises:
        ValueError: as :func:`lessons_lib.attention.attention.attention`, or if the leading axes differ by more than
            grouped heads, or ``block`` is not a positive integer.
    """
    check_heads(query, key, value)
    check_mask_and_bias(query, key, mask, bias)
    n, m = query.shape[-2], key.shape[-2]
    rule = as_rule(mask, m)
    check_size("block", block, at_least=1)
    keys, values = key.split(block, dim=-2), value.split(block, dim=-2)
    biases = _split_bias(bias, m, block, -(-n // block))
    plan, outs = _BlockPlan(rule, m, block, query.device), []
    for row, q in enumerate(query.split(block, dim=-2)):
        positions = range(row * block + m - n, row * block + m - n + q.shape[-2])
        visits = plan.visits(positions)
        if not visits:
            outs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        k, v = (torch.cat([blocks[column] for column in visits], dim=-2) for blocks in (keys, values))
        visible = plan.table(positions, visits)
        added = None if biases is None else torch.cat([biases[row][column] for column in visits], dim=-1)
        outs.append(attention(q, k, v, visible, scale=scale, bias=added, dropout_p=dropout_p))
    return torch.cat(outs, dim=-2)


def visited_blocks(rule: Rule, n: int, m: int | None = None, *, block: int = _BLOCK) -> int:
    """Return the number of blocks of scores that :func:`skipping_attention` computes, of at most ``block * block``.

    ::

        >>> from lessons_lib.attention.rules import Causal
        >>> visited_blocks(Causal(), 64, block=8)  # of 8 * 8 blocks
        36

    Raises:
        ValueError: if the rule does not fit ``n`` queries and ``m`` keys.
    """
    m = n if m is None else m
    rule.check_sizes(n, m)
    plan = _BlockPlan(rule, m, block, torch.device("cpu"))
    return sum(len(plan.visits(range(start, min(start + block, m)))) for start in range(m - n, m, block))


# --- parts ----------------------------------------------------------------------------------------------------------


class _BlockPlan:
    """The blocks of keys that each block of queries visits, and the masks inside them.

    The rule is split into the rules that ``&`` joined, because most blocks need only some of them. Rules that depend on
    distances alone have equal masks in most blocks, so these masks are cached.
    """

    def __init__(self, rule: Rule, m: int, block: int, device: torch.device) -> None:
        self.rule, self.m, self.block, self.device = rule, m, block, device
        self.parts, self.is_relative, self.cache = conjuncts(rule), rule.is_relative, {}

    def visits(self, positions: range) -> dict[int, list[Rule]]:
        """Return the blocks with a key visible to these queries, and for each block the rules that hide some keys."""
        visits = {}
        for span in self.rule.key_ranges(positions, self.m):
            for column in range(span.start // self.block, -(-span.stop // self.block)):
                hiding = None if column in visits else self._partial_rules(positions, self._keys(column))
                if hiding is not None:
                    visits[column] = hiding
        return visits

    def table(self, positions: range, visits: dict[int, list[Rule]]) -> Tensor | None:
        """Return the masks of the visited blocks, concatenated along the keys; None if they hide nothing."""
        if not any(visits.values()):
            return None
        spans = [self._keys(column) for column in visits]
        cache_key = None
        if self.is_relative:
            cache_key = (len(positions), *((keys.start - positions.start, len(keys)) for keys in spans))
            if cache_key in self.cache:
                return self.cache[cache_key]
        shape = (*self.rule.batch_shape, len(positions), sum(map(len, spans)))
        table, start = torch.ones(shape, dtype=torch.bool, device=self.device), 0
        for keys, hiding in zip(spans, visits.values(), strict=True):
            if hiding:
                table[..., start : start + len(keys)] = self._tile(positions, keys, hiding)
            start += len(keys)
        if cache_key is not None:
            self.cache[cache_key] = table
        return table

    def _partial_rules(self, positions: range, keys: range) -> list[Rule] | None:
        """Return the rules that hide some keys of a block; None if a rule hides the whole block."""
        hiding = []
        for part in self.parts:
            coverage = part.coverage(positions, keys)
            if coverage is Coverage.EMPTY:
                return None
            if coverage is Coverage.PARTIAL:
                hiding.append(part)
        return hiding

    def _tile(self, positions: range, keys: range, hiding: list[Rule]) -> Tensor:
        cache_key = (keys.start - positions.start, len(positions), len(keys), *map(id, hiding))
        if cache_key in self.cache:
            return self.cache[cache_key]
        tile = reduce(and_, (part.tile(positions, keys, device=self.device) for part in hiding))
        if all(part.is_relative for part in hiding):
            self.cache[cache_key] = tile
        return tile

    def _keys(self, column: int) -> range:
        return range(column * self.block, min((column + 1) * self.block, self.m))


def _split_bias(bias: Tensor | None, m: int, block: int, n_rows: int) -> list[tuple[Tensor, ...]] | None:
    """Split a bias into the blocks of scores that it is added to.

    ``split`` is used instead of slices, because the gradient of a slice has the size of the whole bias.
    """
    if bias is None:
        return None
    bias = expand_columns(bias, m)
    rows = [bias] * n_rows if bias.shape[-2] == 1 else bias.split(block, dim=-2)
    return [row.split(block, dim=-1) for row in rows]
