"""What a rule is: who may look at whom, asked for pairs, for tiles, or for the whole picture; and how rules combine."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar, dataclass_transform

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.rules.ranges import clipped, joined, moved, runs
from lessons_lib.shapes import check_size

R = TypeVar("R")


class Seen(Enum):
    """How much of a tile is seen: what an implementation skips, masks, or takes whole."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


class Rule(ABC):
    """Says for a query's position and a key's position whether the one may attend to the other."""

    @abstractmethod
    def allows(self, query: Int[Tensor, "n 1"], key: Int[Tensor, "1 m"]) -> Bool[Tensor, "*batch #n #m"]:
        """Answer for every pair of the positions given; an axis of size 1 stands for all."""

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes before rows and keys: ``(batch, heads)``, each maybe 1, or none where one rule holds for all."""
        return ()

    @property
    def device(self) -> torch.device | None:
        """Where the tensors lie that the rule is made from, if there are any."""
        return None

    @property
    def is_relative(self) -> bool:
        """Whether only the distance of key and query matters, so that tiles along a diagonal are alike."""
        return False

    def check_sizes(self, n: int, m: int) -> None:
        """Refuse to be laid over ``n`` queries and ``m`` keys, with the reason.

        Raises:
            ValueError: if a size is not a positive integer, or this rule was made for others.
        """
        check_size("n", n, at_least=1)
        check_size("m", m, at_least=1)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return which of the first ``m`` keys the queries at positions ``rows`` see at all, in order."""
        return [range(m)] if m else []

    def sees(self, rows: range, keys: range) -> Seen:
        """Return how much of these keys the queries at these positions see."""
        return Seen.SOME

    def of_sequence(self, b: int) -> "Rule":
        """Return the rule of sequence ``b`` of a batch, without the batch's axis."""
        return self

    def part(self, query: int, key: int) -> "Rule":
        """Return the rule of a part of the sequence: its positions count from ``query`` and from ``key``."""
        return Part(self, query, key)

    def tile(
        self, rows: range, keys: range, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch {len(rows)} {len(keys)}"]:
        """Return the table of one tile: the queries at positions ``rows`` against these keys.

        Leading axes that make no difference here may be left out.
        """
        return self._picture(rows.start, len(rows), keys.start, len(keys), device)

    def tensor(
        self, n: int, m: int | None = None, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "*batch {n} m"]:
        """Return the rule's picture over ``n`` queries and ``m`` keys (as many if omitted): True = may attend.

        It lies on ``device``, or where the tensors do that the rule is made from.

        Raises:
            ValueError: as :meth:`check_sizes`.
        """
        m = n if m is None else m
        self.check_sizes(n, m)
        return self._picture(m - n, n, 0, m, device)

    def _picture(self, row: int, n: int, key: int, m: int, device: torch.device | str | None) -> Tensor:
        """The table of ``n`` queries from ``row`` on and ``m`` keys from ``key`` on; sizes may be symbolic."""
        device = self.device if device is None else device
        queries = torch.arange(row, row + n, device=device)[:, None]
        keys = torch.arange(key, key + m, device=device)[None, :]
        allowed = self.allows(queries, keys)
        return allowed.expand(*allowed.shape[:-2], n, m)

    def __and__(self, other: "Rule | Tensor") -> "Rule":
        """Both must allow."""
        return Both(self, as_rule(other))

    def __rand__(self, other: Tensor) -> "Rule":
        return Both(as_rule(other), self)

    def __or__(self, other: "Rule | Tensor") -> "Rule":
        """One suffices."""
        return Either(self, as_rule(other))

    def __ror__(self, other: Tensor) -> "Rule":
        return Either(as_rule(other), self)

    def __invert__(self) -> "Rule":
        """What was hidden is shown, and the other way round."""
        return Not(self)

    def __eq__(self, other: object) -> bool:
        """Whether both are made in the same way from equal parts."""
        if not isinstance(other, Rule) or type(self) is not type(other):
            return False
        return all(map(_equal, parts_of(self), parts_of(other)))

    def __hash__(self) -> int:
        return hash((type(self), *(part for part in parts_of(self) if not isinstance(part, Tensor))))


@dataclass_transform(frozen_default=True, eq_default=False)
def immutable(described: type[R]) -> type[R]:
    """Make a rule of its description: immutable, equal to its like (``Rule.__eq__``), printed as it is written."""
    return dataclass(frozen=True, eq=False)(described)


# --- a given table ----------------------------------------------------------------------------------------------------


@immutable
class Table(Rule):
    """A given Boolean mask: over ``(n, m)``, or with axes for batch and heads before, each of which may be 1.

    A mask of one row (or one column) holds for all. It is kept as it is, not copied: do not write into it.

    >>> Table(torch.eye(3, dtype=torch.bool)).tensor(2, 3).int().tolist()  # the last two rows
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
    def leading(self) -> tuple[int, ...]:
        """The mask's own."""
        return tuple(self.mask.shape[:-2])

    @property
    def device(self) -> torch.device:
        """Where the mask lies."""
        return self.mask.device

    def check_sizes(self, n: int, m: int) -> None:
        """The mask is over these keys, and has a row for each query."""
        super().check_sizes(n, m)
        rows, columns = self.mask.shape[-2:]
        one_column = columns == 1 and (rows == 1 or rows == n == m)  # else nothing tells where the last row stands
        if not (one_column or columns == m) or 1 < rows < n:
            raise ValueError(
                f"mask must broadcast to the scores, (..., {n}, {m}), without enlarging them, "
                f"got {tuple(self.mask.shape)}"
            )

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Look the pair up."""
        mask = self.mask.to(key.device)
        rows = query - self._first if mask.shape[-2] > 1 else torch.zeros_like(query)
        columns = key if mask.shape[-1] > 1 else torch.zeros_like(key)
        return mask[..., rows, columns]

    def _picture(self, row: int, n: int, key: int, m: int, device: torch.device | str | None) -> Tensor:
        mask = self.mask if device is None else self.mask.to(device)
        if mask.shape[-2] > 1:
            mask = mask[..., row - self._first : row - self._first + n, :]
        if mask.shape[-1] > 1:
            mask = mask[..., key : key + m]
        return mask.expand(*mask.shape[:-2], n, m)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the columns in which some row has an entry."""
        seen = self.tile(rows, range(m)).reshape(-1, m).any(dim=0)
        return runs(seen.cpu().numpy())

    def sees(self, rows: range, keys: range) -> Seen:
        """Look at every entry."""
        return seen_in(self.tile(rows, keys))

    def of_sequence(self, b: int) -> Rule:
        """Return the mask of one sequence: over ``(heads, n, m)``, or ``(n, m)`` where one holds for all heads."""
        if self.mask.ndim < 4:
            return self
        mask = self.mask[b if len(self.mask) > 1 else 0]
        return Table(mask[0] if len(mask) == 1 else mask)

    @property
    def _first(self) -> int:
        rows, columns = self.mask.shape[-2:]
        return 0 if columns == 1 else columns - rows


def as_rule(mask: Rule | Tensor, m: int | None = None) -> Rule:
    """Return the rule itself, or a Boolean table as one; a table of one column is spread over ``m`` keys, if given.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(mask, Rule):
        return mask
    table = Table(mask)
    return table if m is None else Table(table.mask.expand(*table.mask.shape[:-1], m))


# --- combined ---------------------------------------------------------------------------------------------------------


class Combined(Rule):
    """What rules made of other rules share."""

    @property
    def leading(self) -> tuple[int, ...]:
        """Those of the parts, laid over one another."""
        shapes = [part.leading for part in self._rules]
        return tuple(torch.broadcast_shapes(*shapes)) if any(shapes) else ()

    @property
    def is_relative(self) -> bool:
        """Whether all parts are."""
        return all(part.is_relative for part in self._rules)

    @property
    def device(self) -> torch.device | None:
        """That of the parts."""
        return next((part.device for part in self._rules if part.device is not None), None)

    def check_sizes(self, n: int, m: int) -> None:
        """Every part has to fit."""
        for part in self._rules:
            part.check_sizes(n, m)

    def part(self, query: int, key: int) -> Rule:
        """Return the same of the parts' rules of a part."""
        return type(self)(*(part.part(query, key) for part in self._rules))  # type: ignore[call-arg]

    def of_sequence(self, b: int) -> Rule:
        """Return the same of the parts' rules of one sequence."""
        return type(self)(*(part.of_sequence(b) for part in self._rules))  # type: ignore[call-arg]

    @property
    def _rules(self) -> list[Rule]:
        return [part for part in parts_of(self) if isinstance(part, Rule)]


@immutable
class Both(Combined):
    """What both rules allow: ``a & b``."""

    a: Rule
    b: Rule

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """And."""
        return self.a.allows(query, key) & self.b.allows(query, key)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return what is in the ranges of both."""
        mine, theirs = self.a.keys(rows, m), self.b.keys(rows, m)
        common = (range(max(x.start, y.start), min(x.stop, y.stop)) for x in mine for y in theirs)
        return [span for span in common if span]

    def sees(self, rows: range, keys: range) -> Seen:
        """None if one sees none, all if both see all."""
        first = self.a.sees(rows, keys)
        if first is Seen.NONE:
            return first
        second = self.b.sees(rows, keys)
        return second if first is Seen.ALL or second is Seen.NONE else first

    def tile(self, rows: range, keys: range, *, device: torch.device | str | None = None) -> Tensor:
        """Return the one rule's table where the other sees all."""
        for one, other in ((self.a, self.b), (self.b, self.a)):
            if one.sees(rows, keys) is Seen.ALL:
                return other.tile(rows, keys, device=device)
        return super().tile(rows, keys, device=device)


@immutable
class Either(Combined):
    """What one of the rules allows: ``a | b``."""

    a: Rule
    b: Rule

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Or."""
        return self.a.allows(query, key) | self.b.allows(query, key)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return what is in the ranges of either."""
        return joined(sorted([*self.a.keys(rows, m), *self.b.keys(rows, m)], key=lambda span: span.start))

    def sees(self, rows: range, keys: range) -> Seen:
        """All if one sees all, none if both see none."""
        first = self.a.sees(rows, keys)
        if first is Seen.ALL:
            return first
        second = self.b.sees(rows, keys)
        return second if first is Seen.NONE or second is Seen.ALL else first


@immutable
class Not(Combined):
    """What a rule hides: ``~a``."""

    a: Rule

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Not."""
        return ~self.a.allows(query, key)

    def sees(self, rows: range, keys: range) -> Seen:
        """None for all, and the other way round."""
        return {Seen.NONE: Seen.ALL, Seen.ALL: Seen.NONE}.get(self.a.sees(rows, keys), Seen.SOME)


@immutable
class Part(Combined):
    """A rule over a whole sequence, as seen by a part of its queries and a part of its keys.

    Query 0 of the part stands at position ``query`` of the whole, key 0 at position ``key``.
    """

    whole: Rule
    query: int
    key: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Ask the whole."""
        return self.whole.allows(query + self.query, key + self.key)

    def check_sizes(self, n: int, m: int) -> None:
        """The whole's sizes are not known here: it was checked where it was given."""
        Rule.check_sizes(self, n, m)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the whole's keys that lie in the part."""
        found = self.whole.keys(moved(rows, self.query), self.key + m)
        return [span for run in found for span in clipped(moved(run, -self.key), m)]

    def sees(self, rows: range, keys: range) -> Seen:
        """Ask the whole."""
        return self.whole.sees(moved(rows, self.query), moved(keys, self.key))

    def part(self, query: int, key: int) -> Rule:
        """Return a part of the whole."""
        return Part(self.whole, self.query + query, self.key + key)

    def of_sequence(self, b: int) -> Rule:
        """Return the part of one sequence's rule."""
        return Part(self.whole.of_sequence(b), self.query, self.key)


def conjuncts(rule: Rule) -> list[Rule]:
    """Return the rules that ``&`` joined, in order: a rule allows what all of these do."""
    return [*conjuncts(rule.a), *conjuncts(rule.b)] if isinstance(rule, Both) else [rule]


# --- parts ------------------------------------------------------------------------------------------------------------


def parts_of(rule: Rule) -> list[Any]:
    """Return what a rule is made of: numbers, tensors, other rules."""
    return [getattr(rule, field.name) for field in fields(rule)]  # type: ignore[arg-type]


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor):
        return torch.equal(mine, theirs.to(mine.device))
    return bool(mine == theirs)


def seen_in(table: "np.ndarray | Tensor") -> Seen:
    """Return how much of a table is True."""
    if table.all():
        return Seen.ALL
    return Seen.SOME if table.any() else Seen.NONE
