"""Who may look at whom, said as a rule: for a query's position and a key's position, yes or no.

A mask over ``n`` queries and ``m`` keys is a table of ``n * m`` Booleans; the rule behind it is a few numbers. Rules
are immutable values and combine with ``&`` (both must allow), ``|`` (one suffices) and ``~``; a Boolean table may take
part::

    >>> rule = Causal() & Window(3) | GlobalTokens([0])
    >>> rule.tensor(5, 7).shape
    torch.Size([5, 7])

``rule.tensor(n, m)`` is its picture, the table: the specification. What has no room for the table asks about *tiles*
instead, some rows against some keys:

* ``keys``: which keys do these rows see at all? A few ranges; they may name more, never fewer.
* ``sees``: do they see none, some or all of these keys? ``SOME`` is always a safe answer.
* ``tile``: the table of this one tile.

Positions count from the first key. The queries are the *last* ``n`` of them: query ``i`` stands at position
:math:`p_i = i + m - n`, as when decoding with a cache. With fewer keys than queries the first queries stand before the
first key, at negative positions.

A rule that differs from sequence to sequence has the leading axes ``(batch, 1)``, the 1 for the heads, so that its
picture fits scores over ``(batch, heads, n, m)``; :meth:`Rule.of_sequence` is the rule of one of them.

The files, in reading order::

    ranges       ranges of positions, found, cut and joined
    rule         what a rule is, a given table as one, and how rules combine
    by_position  causal, window, dilated, blocks, prefix, global tokens
    by_content   padding at either end, packed documents
    by_layout    a table over blocks; rules drawn by chance
    asking       what implementations ask of a rule, and who asks
"""

from lessons_lib.rules.asking import (
    as_band,
    as_taken_by,
    asks_rules,
    check_over,
    hides_whole_keys,
    rule_over,
    takes_rules,
    tiles,
)
from lessons_lib.rules.by_content import Documents, LeftPadding, Padding
from lessons_lib.rules.by_layout import BigBird, Layout, Random
from lessons_lib.rules.by_position import (
    Band,
    Blocks,
    Causal,
    Dilated,
    Everything,
    GlobalTokens,
    Prefix,
    Window,
)
from lessons_lib.rules.rule import Both, Either, Not, Part, Rule, Seen, Table, as_rule, conjuncts, parts_of

__all__ = [
    "Band",
    "BigBird",
    "Blocks",
    "Both",
    "Causal",
    "Dilated",
    "Documents",
    "Either",
    "Everything",
    "GlobalTokens",
    "Layout",
    "LeftPadding",
    "Not",
    "Padding",
    "Part",
    "Prefix",
    "Random",
    "Rule",
    "Seen",
    "Table",
    "Window",
    "as_band",
    "as_rule",
    "as_taken_by",
    "asks_rules",
    "check_over",
    "conjuncts",
    "hides_whole_keys",
    "parts_of",
    "rule_over",
    "takes_rules",
    "tiles",
]
