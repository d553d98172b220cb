"""Masks as rules: for the position of a query and the position of a key, may the query attend to the key?

A mask over ``n`` queries and ``m`` keys is a table of ``n * m`` Booleans; the rule behind it is a few numbers. Rules
are immutable values. They combine with ``&`` (both must allow), ``|`` (one is enough) and ``~``, also with a Boolean
table::

    >>> rule = Causal() & Window(3) | GlobalTokens([0])
    >>> rule.to_mask(5, 7).shape
    torch.Size([5, 7])

``rule.to_mask(n, m)`` is the table, the specification. An implementation without memory for the table works on *tiles*,
some queries and some keys:

* ``key_ranges``: the keys that these queries may attend to, as a few ranges. They may contain more keys, never fewer.
* ``coverage``: whether the tile is empty, partial or full. ``PARTIAL`` is always a safe answer.
* ``tile``: the table of this tile.

A rule of your own needs ``allows`` alone, which compares positions element by element; the base class derives the
rest::

    >>> class EvenKeys(Rule):
    ...     def allows(self, query, key):
    ...         return (key <= query) & (key % 2 == 0)
    >>> EvenKeys().key_ranges(range(3, 4), 8)
    [range(0, 1), range(2, 3)]

``rule.mask_mod(n, m)`` and ``rule.block_mask(n, m)`` are the rule for PyTorch's FlexAttention.

Positions count from the first key. The queries are the *last* ``n`` positions: query ``i`` has position
:math:`p_i = i + m - n`, as when decoding with a cache. With fewer keys than queries the first queries have negative
positions, before the first key.

A rule that differs from sequence to sequence has the leading axes ``(batch, 1)``, the 1 for the heads, so that its
table fits scores over ``(batch, heads, n, m)``; :meth:`Rule.for_sequence` is the rule of one sequence.

The files, in reading order::

    ranges       ranges of positions, found, clipped and merged
    coverage     empty, partial or full: how much of a tile is allowed
    rule         the base class, a given table as a rule, and combinations of rules
    by_position  causal, window, dilated, blocks, prefixes, global tokens, image patches
    by_content   padding at either end, packed documents
    by_layout    a table over blocks; rules drawn at random
    support      functions for implementations of attention that take rules
"""

from lessons_lib.attention.rules.by_content import Documents, LeftPadding, Padding
from lessons_lib.attention.rules.by_layout import BigBird, BlockSparse, Random
from lessons_lib.attention.rules.by_position import (
    Band,
    Blocks,
    Causal,
    Dilated,
    Full,
    GlobalTokens,
    Neighbourhood2D,
    Prefix,
    SharedPrefix,
    Window,
)
from lessons_lib.attention.rules.coverage import Coverage
from lessons_lib.attention.rules.rule import And, Not, Or, Part, Rule, Table, as_rule, conjuncts, fields_of, immutable
from lessons_lib.attention.rules.support import (
    as_band,
    check_fits_scores,
    declare_rule_support,
    hides_whole_keys,
    mask_for_implementation,
    rule_for_scores,
    supports_rules,
    tiles,
)

__all__ = [
    "And",
    "Band",
    "BigBird",
    "BlockSparse",
    "Blocks",
    "Causal",
    "Coverage",
    "Dilated",
    "Documents",
    "Full",
    "GlobalTokens",
    "LeftPadding",
    "Neighbourhood2D",
    "Not",
    "Or",
    "Padding",
    "Part",
    "Prefix",
    "Random",
    "Rule",
    "SharedPrefix",
    "Table",
    "Window",
    "as_band",
    "as_rule",
    "check_fits_scores",
    "conjuncts",
    "declare_rule_support",
    "fields_of",
    "hides_whole_keys",
    "immutable",
    "mask_for_implementation",
    "rule_for_scores",
    "supports_rules",
    "tiles",
]
