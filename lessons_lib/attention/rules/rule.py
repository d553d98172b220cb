"""The base class of rules, a given Boolean table as a rule, and the combinations of rules: and, or, not, a part."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.attention.rules.coverage import Coverage, KeyScan, ScanCache
from lessons_lib.attention.rules.ranges import clip_range, merge_ranges, shift_range
from lessons_lib.foundations.validation import broadcasts_to, check_size, values_can_be_read

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

R = TypeVar("R")
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # FlexAttention's: of b, h, q_idx and kv_idx
CACHES = {"_scans", "_tables"}  # attributes that are no part of a rule's value; the second is flash.block_mask's


class Rule(ABC):
    """Decides for the position of a query and the position of a key whether the query may attend to the key.

    A subclass needs :meth:`allows` alone. A rule that differs from sequence to sequence has a :attr:`batch_shape`
    besides; :meth:`key_ranges` and :meth:`coverage` may be overridden by answers that are computed faster.

    >>> class EvenKeys(Rule):
    ...     def allows(self, query, key):
    ...         return (key <= query) & (key % 2 == 0)
    >>> EvenKeys().to_mask(3).int().tolist()
    [[1, 0, 0], [1, 0, 0], [1, 0, 1]]
    """

    @abstractmethod
    def allows(self, query: Int[Tensor, "*#pairs"], key: Int[Tensor, "*#pairs"]) -> Bool[Tensor, "..."]:
        """Return True for each pair of positions where the query may attend to the key, element by element.

        The positions may have any shapes that broadcast together: ``(n, 1)`` and ``(1, m)`` for a table, single
        numbers under ``torch.vmap``. The result broadcasts to the pairs, after the axes of :attr:`batch_shape`.
        Positions are to be compared and looked up in tensors; Python's ``if`` cannot be used on them.
        """

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The axes before queries and keys: ``(batch, heads)``, each of which may be 1, or none if all are alike."""
        return ()

    @property
    def device(self) -> torch.device | None:
        """The device of the rule's tensors, None if it has none."""
        parts = (part.device for part in fields_of(self) if isinstance(part, Tensor | Rule))
        return next((device for device in parts if device is not None), None)

    @property
    def is_relative(self) -> bool:
        """Whether only the distance of query and key matters, so that tiles along a diagonal are equal."""
        return False

    def check_sizes(self, n: int, m: int) -> None:
        """Check that the rule can be applied to ``n`` queries and ``m`` keys.

        Raises:
            ValueError: if a size is not a positive integer, or the rule was made for other sizes.
        """
        check_size("n", n, at_least=1)
        check_size("m", m, at_least=1)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the keys, of the first ``m``, that at least one query at the positions ``rows`` may attend to.

        The ranges are in order and do not overlap. They may contain more keys, never fewer. This implementation is
        exact: it evaluates :meth:`allows` once for these pairs and remembers the result.
        """
        scan = self._scan(rows, m)
        if scan is None:
            return [range(m)] if m else []
        return [part for span in scan.by_some for part in clip_range(span, m)]

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return how much of the tile of these query and key positions is allowed; PARTIAL is always a safe answer.

        This implementation is exact: it evaluates :meth:`allows` once for these pairs and remembers the result.
        """
        scan = self._scan(rows, keys.stop)
        return Coverage.PARTIAL if scan is None else scan.coverage(keys)

    def for_sequence(self, b: int) -> "Rule":
        """Return the rule of sequence ``b`` of a batch, without the axis for the batch."""
        return self

    def shifted(self, query: int, key: int) -> "Rule":
        """Return the rule of a part of the sequence, whose query 0 is at position ``query`` and key 0 at ``key``."""
        return Part(self, query, key)

    def to(self, device: torch.device | str) -> "Rule":
        """Return the rule with its tensors on a device; a rule whose tensors are there, or without any, is returned."""
        moved = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor | Rule)}
        if all(part is vars(self)[name] for name, part in moved.items()):
            return self
        rule = copy(self)
        vars(rule).update(moved)
        return rule

    def tile(
        self, rows: range, keys: range, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch {len(rows)} {len(keys)}"]:
        """Return the table of one tile: the queries at positions ``rows`` and these keys.

        Leading axes may be left out where the sequences do not differ.
        """
        return self._table_from(rows.start, len(rows), keys.start, len(keys), device)

    def to_mask(
        self, n: int, m: int | None = None, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch {n} m"]:
        """Return the Boolean table over ``n`` queries and ``m`` keys (``n`` if omitted): True = may attend.

        The table is made on ``device``, by default that of the rule's tensors.

        Raises:
            ValueError: as :meth:`check_sizes`.
        """
        m = n if m is None else m
        self.check_sizes(n, m)
        return self._table_from(m - n, n, 0, m, device)

    def mask_mod(self, n: int, m: int | None = None, *, device: torch.device | str | None = None) -> MaskMod:
        """Return the rule as a function ``(b, h, q_idx, kv_idx)`` of FlexAttention, for ``n`` queries and ``m`` keys.

        FlexAttention counts queries from 0; as everywhere here, the ``n`` queries are the last of ``m`` positions.
        The rule's tensors are moved to ``device``, if given. It has to be the device of the queries and keys.

        >>> from torch.nn.attention.flex_attention import create_mask
        >>> class Past(Rule):
        ...     def allows(self, query, key):
        ...         return key <= query
        >>> create_mask(Past().mask_mod(2, 3), B=1, H=1, Q_LEN=2, KV_LEN=3, device="cpu")[0, 0].int().tolist()
        [[1, 1, 0], [1, 1, 1]]

        Raises:
            ValueError: as :meth:`check_sizes`, or if the rule has more leading axes than batch and heads.
        """
        m = n if m is None else m
        self.check_sizes(n, m)
        self._check_batch_and_heads()
        rule, first = self if device is None else self.to(device), m - n
        return lambda b, h, q_idx, kv_idx: rule._allows_at(b, h, q_idx + first, kv_idx)

    def block_mask(
        self,
        n: int,
        m: int | None = None,
        *,
        batch: int | None = None,
        heads: int | None = None,
        device: torch.device | str | None = None,
        block_size: int | tuple[int, int] = 128,
    ) -> "BlockMask":
        """Return the rule as FlexAttention's ``BlockMask``, for ``n`` queries and ``m`` keys.

        ``flex_attention(q, k, v, block_mask=rule.block_mask(n, device=q.device))`` attends under the rule. PyTorch
        makes a table over ``(batch, heads, n, m)`` on the way and keeps the list of blocks.

        >>> class Past(Rule):
        ...     def allows(self, query, key):
        ...         return key <= query
        >>> Past().block_mask(4, block_size=2).to_dense()[0, 0].tolist()
        [[1, 0], [1, 1]]

        Args:
            batch, heads: sizes of the block mask, by default those of :attr:`batch_shape`, 1 for all if it has none.
            device: by default that of the rule's tensors, or the CPU.
            block_size: positions in a block, or those of queries and of keys.

        Raises:
            ValueError: as :meth:`mask_mod`, or if ``batch`` or ``heads`` does not fit :attr:`batch_shape`.
        """
        from torch.nn.attention.flex_attention import create_block_mask  # slow to import, and not always needed

        m = n if m is None else m
        device = torch.device("cpu" if self.device is None else self.device) if device is None else device
        mask_mod = self.mask_mod(n, m, device=device)
        own_batch, own_heads = (1, 1, *self.batch_shape)[-2:]
        sizes = own_batch if batch is None else batch, own_heads if heads is None else heads
        if not broadcasts_to(self.batch_shape, sizes):
            raise ValueError(
                f"batch and heads must fit the rule's axes {self.batch_shape}, got batch={batch} and heads={heads}"
            )
        return create_block_mask(mask_mod, *sizes, n, m, device=device, BLOCK_SIZE=block_size)

    def _allows_at(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """:meth:`allows` for one sequence and one head; all four are single numbers, under ``torch.vmap``."""
        allowed = self.allows(query, key)
        return look_up(allowed, *_fit((batch, head), self.batch_shape)) if self.batch_shape else allowed

    def _check_batch_and_heads(self) -> None:
        if len(self.batch_shape) > 2:
            raise ValueError(f"the rule must have at most the axes (batch, heads), got {self.batch_shape}")

    def _scan(self, rows: range, m: int) -> KeyScan | None:
        """Return which of the first ``m`` keys these queries may attend to, None where values cannot be read."""
        if not values_can_be_read():
            return None
        return vars(self).setdefault("_scans", ScanCache()).scan(rows, m, self.tile)

    def _table_from(self, query: int, n: int, key: int, m: int, device: torch.device | str | None) -> Tensor:
        """Return the table of ``n`` queries from position ``query`` on and ``m`` keys from ``key`` on."""
        device = self.device if device is None else device
        queries = torch.arange(query, query + n, device=device)[:, None]
        keys = torch.arange(key, key + m, device=device)[None, :]
        allowed = self.allows(queries, keys)
        return allowed.expand(*allowed.shape[:-2], n, m)

    def __and__(self, other: "Rule | Tensor") -> "Rule":
        """Return the rule that allows what both allow."""
        return And(self, as_rule(other))

    def __rand__(self, other: Tensor) -> "Rule":
        return And(as_rule(other), self)

    def __or__(self, other: "Rule | Tensor") -> "Rule":
        """Return the rule that allows what at least one of the two allows."""
        return Or(self, as_rule(other))

    def __ror__(self, other: Tensor) -> "Rule":
        return Or(as_rule(other), self)

    def __invert__(self) -> "Rule":
        """Return the rule that allows what this one hides."""
        return Not(self)

    def __eq__(self, other: object) -> bool:
        """Whether both rules are of the same class and have equal fields."""
        if not isinstance(other, Rule) or type(self) is not type(other):
            return False
        mine, theirs = fields_of(self), fields_of(other)
        return len(mine) == len(theirs) and all(map(_equal, mine, theirs))

    def __hash__(self) -> int:
        return hash((type(self), *(part for part in fields_of(self) if not isinstance(part, Tensor))))


@dataclass_transform(frozen_default=True, eq_default=False)
def immutable(cls: type[R]) -> type[R]:
    """Make a class with annotated fields an immutable rule: a frozen dataclass, compared by ``Rule.__eq__``.

    >>> @immutable
    ... class Stride(Rule):
    ...     step: int
    ...     def allows(self, query, key):
    ...         return (query - key) % self.step == 0
    >>> Stride(2), Stride(2) == Stride(2)
    (Stride(step=2), True)
    """
    return dataclass(frozen=True, eq=False)(cls)


# --- a given table ----------------------------------------------------------------------------------------------------


@immutable
class Table(Rule):
    """A given Boolean mask: over ``(n, m)``, or with axes for batch and heads before, each of which may be 1.

    A mask of one row (or one column) holds for all queries (or keys). The mask is not copied: do not write into it.

    >>> Table(torch.eye(3, dtype=torch.bool)).to_mask(2, 3).int().tolist()  # the last two rows
    [[0, 1, 0], [0, 0, 1]]

    Raises:
        ValueError: if the mask is not Boolean, or has no axis.
    """

    mask: Bool[Tensor, "*batch rows m"]

    def __post_init__(self) -> None:
        if not isinstance(self.mask, Tensor) or self.mask.dtype != torch.bool:
            received = self.mask.dtype if isinstance(self.mask, Tensor) else type(self.mask).__name__
            raise ValueError(
                f"mask must be Boolean, True where a query may attend, got {received}; "
                "numbers to be added to the scores are a bias"
            )
        if self.mask.ndim < 1:
            raise ValueError("mask must be over (n, m), got a single number")
        if self.mask.ndim == 1:
            object.__setattr__(self, "mask", self.mask[None])

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the mask."""
        return tuple(self.mask.shape[:-2])

    def check_sizes(self, n: int, m: int) -> None:
        """Check that the mask is over these keys, and has a row for each query."""
        super().check_sizes(n, m)
        rows, columns = self.mask.shape[-2:]
        one_column = columns == 1 and (rows == 1 or rows == n == m)  # else the last row's position is unknown
        if not (one_column or columns == m) or 1 < rows < n:
            raise ValueError(
                f"mask must broadcast to the scores, (..., {n}, {m}), without enlarging them, "
                f"got {tuple(self.mask.shape)}"
            )

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Look the pair up in the mask."""
        return look_up(self.mask, *[None] * len(self.batch_shape), *self._row_and_column(query, key))

    def _allows_at(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return look_up(self.mask, *_fit((batch, head), self.batch_shape), *self._row_and_column(query, key))

    def _row_and_column(self, query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
        return _fit((query - self._first, key), self.mask.shape[-2:])

    def _table_from(self, query: int, n: int, key: int, m: int, device: torch.device | str | None) -> Tensor:
        mask = self.mask if device is None else self.mask.to(device)
        if mask.shape[-2] > 1:
            mask = mask[..., query - self._first : query - self._first + n, :]
        if mask.shape[-1] > 1:
            mask = mask[..., key : key + m]
        return mask.expand(*mask.shape[:-2], n, m)

    def for_sequence(self, b: int) -> Rule:
        """Return the mask of one sequence: over ``(heads, n, m)``, or ``(n, m)`` where one holds for all heads."""
        if self.mask.ndim < 4:
            return self
        mask = self.mask[b if len(self.mask) > 1 else 0]
        return Table(mask[0] if len(mask) == 1 else mask)

    @property
    def _first(self) -> int:
        """The position of the query that the first row of the mask belongs to."""
        rows, columns = self.mask.shape[-2:]
        return 0 if columns == 1 else columns - rows


def as_rule(mask: Rule | Tensor, m: int | None = None) -> Rule:
    """Return a rule unchanged, and a Boolean table as a :class:`Table`; one column is expanded to ``m`` keys, if given.

    >>> as_rule(torch.tensor([[True], [False]]), 2).to_mask(2).int().tolist()
    [[1, 1], [0, 0]]

    Raises:
        ValueError: if the mask is neither a rule nor a Boolean table.
    """
    if isinstance(mask, Rule):
        return mask
    table = Table(mask)
    return table if m is None else Table(table.mask.expand(*table.mask.shape[:-1], m))


# --- combinations -----------------------------------------------------------------------------------------------------


class Combined(Rule):
    """The base class of rules made of other rules."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Combine the answers of the parts."""
        return self._combine(*(part.allows(query, key) for part in self._rules))

    def _allows_at(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self._combine(*(part._allows_at(batch, head, query, key) for part in self._rules))

    def _combine(self, *allowed: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the parts, broadcast together."""
        shapes = [part.batch_shape for part in self._rules]
        return tuple(torch.broadcast_shapes(*shapes)) if any(shapes) else ()

    @property
    def is_relative(self) -> bool:
        """Whether all parts are relative."""
        return all(part.is_relative for part in self._rules)

    def check_sizes(self, n: int, m: int) -> None:
        """Check the sizes for every part."""
        for part in self._rules:
            part.check_sizes(n, m)

    def shifted(self, query: int, key: int) -> Rule:
        """Return the same combination of the shifted parts."""
        return type(self)(*(part.shifted(query, key) for part in self._rules))  # type: ignore[call-arg]

    def for_sequence(self, b: int) -> Rule:
        """Return the same combination of the parts' rules of sequence ``b``."""
        return type(self)(*(part.for_sequence(b) for part in self._rules))  # type: ignore[call-arg]

    @property
    def _rules(self) -> list[Rule]:
        return [part for part in fields_of(self) if isinstance(part, Rule)]


@immutable
class And(Combined):
    """The rule that allows what both rules allow: ``a & b``."""

    a: Rule
    b: Rule

    def _combine(self, *allowed: Tensor) -> Tensor:
        return allowed[0] & allowed[1]

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the intersection of the ranges of both."""
        mine, theirs = self.a.key_ranges(rows, m), self.b.key_ranges(rows, m)
        common = (range(max(x.start, y.start), min(x.stop, y.stop)) for x in mine for y in theirs)
        return [span for span in common if span]

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return EMPTY if one of the two is empty, FULL if both are full."""
        first = self.a.coverage(rows, keys)
        if first is Coverage.EMPTY:
            return first
        second = self.b.coverage(rows, keys)
        return second if first is Coverage.FULL or second is Coverage.EMPTY else first

    def tile(self, rows: range, keys: range, *, device: torch.device | str | None = None) -> Tensor:
        """Return the table of one rule alone where the other allows the whole tile."""
        for one, other in ((self.a, self.b), (self.b, self.a)):
            if one.coverage(rows, keys) is Coverage.FULL:
                return other.tile(rows, keys, device=device)
        return super().tile(rows, keys, device=device)


@immutable
class Or(Combined):
    """The rule that allows what at least one of two rules allows: ``a | b``."""

    a: Rule
    b: Rule

    def _combine(self, *allowed: Tensor) -> Tensor:
        return allowed[0] | allowed[1]

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the union of the ranges of both."""
        return merge_ranges(
            sorted([*self.a.key_ranges(rows, m), *self.b.key_ranges(rows, m)], key=lambda span: span.start)
        )

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL if one of the two is full, EMPTY if both are empty."""
        first = self.a.coverage(rows, keys)
        if first is Coverage.FULL:
            return first
        second = self.b.coverage(rows, keys)
        return second if first is Coverage.EMPTY or second is Coverage.FULL else first


@immutable
class Not(Combined):
    """The rule that allows what another rule hides: ``~a``."""

    a: Rule

    def _combine(self, *allowed: Tensor) -> Tensor:
        return ~allowed[0]

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return all keys: the ranges of the other rule do not tell which keys it hides."""
        return [range(m)] if m else []

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL where the other rule is empty, EMPTY where it is full."""
        return {Coverage.EMPTY: Coverage.FULL, Coverage.FULL: Coverage.EMPTY}.get(
            self.a.coverage(rows, keys), Coverage.PARTIAL
        )


@immutable
class Part(Combined):
    """A rule over a whole sequence, applied to a part of its queries and a part of its keys.

    Query 0 of the part is at position ``query`` of the whole, key 0 at position ``key``.
    """

    whole: Rule
    query: int
    key: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Apply the whole rule to the positions in the whole sequence."""
        return self.whole.allows(query + self.query, key + self.key)

    def _allows_at(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.whole._allows_at(batch, head, query + self.query, key + self.key)

    def check_sizes(self, n: int, m: int) -> None:
        """Check that the sizes are positive. The whole's sizes are unknown here and were checked before."""
        Rule.check_sizes(self, n, m)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the whole's ranges, clipped to the part."""
        found = self.whole.key_ranges(shift_range(rows, self.query), self.key + m)
        return [part for span in found for part in clip_range(shift_range(span, -self.key), m)]

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return the whole's coverage at these positions."""
        return self.whole.coverage(shift_range(rows, self.query), shift_range(keys, self.key))

    def shifted(self, query: int, key: int) -> Rule:
        """Return a part of the whole rule."""
        return Part(self.whole, self.query + query, self.key + key)

    def for_sequence(self, b: int) -> Rule:
        """Return the part of the rule of sequence ``b``."""
        return Part(self.whole.for_sequence(b), self.query, self.key)


def conjuncts(rule: Rule) -> list[Rule]:
    """Return the rules that ``&`` joined, in order: a rule allows what all of its conjuncts allow."""
    return [*conjuncts(rule.a), *conjuncts(rule.b)] if isinstance(rule, And) else [rule]


# --- helpers ----------------------------------------------------------------------------------------------------------


def fields_of(rule: Rule) -> list[Any]:
    """Return the values that define a rule: numbers, tensors, other rules."""
    if is_dataclass(rule):
        return [getattr(rule, field.name) for field in fields(rule)]
    return [value for name, value in vars(rule).items() if name not in CACHES]


def look_up(table: Tensor, *index: Tensor | None) -> Tensor:
    """Return ``table[index]`` for a tensor of positions in each axis, or None for the whole axis.

    ``table[i]`` reads an ``i`` without axes as a Python number, which is not possible under ``torch.vmap``.
    """
    device = next(positions.device for positions in index if positions is not None)
    return torch.ops.aten.index(table.to(device), list(index))


def _fit(index: tuple[Tensor, ...], shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Return the positions in the last axes of an index, 0 wherever the axis has size 1 and holds for all."""
    if not shape:
        return ()
    own = zip(index[-len(shape) :], shape, strict=True)
    return tuple(position if size > 1 else torch.zeros_like(position) for position, size in own)


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return torch.equal(mine, theirs.to(mine.device))
    return bool(mine == theirs)
