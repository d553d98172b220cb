"""Who may look at whom, said as a rule: for a query's position and a key's position, yes or no.

A mask over ``n`` queries and ``m`` keys is a table of ``n * m`` Booleans; the rule behind it is a few numbers. Rules
are immutable values and combine with ``&`` (both must allow), ``|`` (one suffices) and ``~``; a Boolean table may take
part::

    >>> rule = Causal() & Window(3) | GlobalTokens([0])
    >>> rule.tensor(5, 7).shape
    torch.Size([5, 7])

``rule.tensor(n, m)`` is its picture, the table: the specification. What has no room for the table asks about *tiles*
instead, some rows against some keys:

    keys    which keys do these rows see at all?      (a few ranges; may name more, never fewer)
    sees    do they see none, some or all of these?   (``SOME`` is always a safe answer)
    tile    the table of this one tile

Positions count from the first key. The queries are the *last* ``n`` of them: query ``i`` stands at position
:math:`p_i = i + m - n`, as when decoding with a cache. With fewer keys than queries the first queries stand before the
first key, at negative positions.

A rule that differs from sequence to sequence has the leading axes ``(batch, 1)``, the 1 for the heads, so that its
picture fits scores over ``(batch, heads, n, m)``; :meth:`Rule.of_sequence` is the rule of one of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar, dataclass_transform

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.shapes import broadcasts_to, check_integers, check_size

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

# --- what a rule is -------------------------------------------------------------------------------------------------


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
        return self._picture(rows, keys, device)

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
        return self._picture(range(m - n, m), range(m), device)

    def _picture(self, rows: range, keys: range, device: torch.device | str | None) -> Tensor:
        device = self.device if device is None else device
        query = torch.arange(rows.start, rows.stop, device=device)[:, None]
        key = torch.arange(keys.start, keys.stop, device=device)[None, :]
        allowed = self.allows(query, key)
        return allowed.expand(*allowed.shape[:-2], len(rows), len(keys))

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
def _rule(described: type[R]) -> type[R]:
    """Make a rule of its description: immutable, equal to its like (``Rule.__eq__``), printed as it is written."""
    return dataclass(frozen=True, eq=False)(described)


# --- by position ----------------------------------------------------------------------------------------------------


@_rule
class Band(Rule):
    r"""A query at position :math:`p` sees the keys close enough to it.

    .. math:: p - \text{left} \le j \le p + \text{right}

    ``None`` is no bound on that side. :class:`Causal`, :class:`Window` and :class:`Everything` are bands.
    """

    left: int | None
    right: int | None

    @property
    def is_relative(self) -> bool:
        """It is."""
        return True

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare two numbers at most."""
        allowed = torch.ones(len(query), key.shape[-1], dtype=torch.bool, device=key.device)
        if self.left is not None:
            allowed &= key >= query - self.left
        if self.right is not None:
            allowed &= key <= query + self.right
        return allowed

    def keys(self, rows: range, m: int) -> list[range]:
        """Return one range: from the first row's reach to the last row's."""
        start = 0 if self.left is None else max(rows.start - self.left, 0)
        stop = m if self.right is None else min(rows.stop + self.right, m)
        return [range(start, stop)] if start < stop else []

    def sees(self, rows: range, keys: range) -> Seen:
        """Decide by the corners of the tile."""
        first, last = rows.start, rows.stop - 1
        after_left = self.left is None or keys.start >= last - self.left
        before_right = self.right is None or keys.stop - 1 <= first + self.right
        if after_left and before_right:
            return Seen.ALL
        beyond_left = self.left is not None and keys.stop - 1 < first - self.left
        beyond_right = self.right is not None and keys.start > last + self.right
        return Seen.NONE if beyond_left or beyond_right else Seen.SOME

    def part(self, query: int, key: int) -> Rule:
        """Move the bounds."""
        moved = query - key
        if not moved:
            return self
        return Band(
            None if self.left is None else self.left - moved, None if self.right is None else self.right + moved
        )


class Everything(Band):
    """Every query sees every key.

    >>> Everything().tensor(2, 3).tolist()
    [[True, True, True], [True, True, True]]
    """

    def __init__(self) -> None:
        super().__init__(None, None)

    def __repr__(self) -> str:
        return "Everything()"


class Causal(Band):
    """Each query sees its own position and everything before it.

    >>> Causal().tensor(2, 3).int().tolist()  # the queries are the last two positions
    [[1, 1, 0], [1, 1, 1]]
    """

    def __init__(self) -> None:
        super().__init__(None, 0)

    def __repr__(self) -> str:
        return "Causal()"


class Window(Band):
    """Each query sees the positions less than ``window`` away, on both sides.

    ``window`` counts visible keys on one side, the query's own included. ``Causal() & Window(w)`` shows the ``w`` most
    recent.

    >>> (Causal() & Window(2)).tensor(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    def __init__(self, window: int) -> None:
        check_size("window", window, at_least=1)
        super().__init__(window - 1, window - 1)

    @property
    def window(self) -> int:
        """Number of visible keys to each side, the query's own included."""
        return self.left + 1 if self.left is not None else 0

    def __repr__(self) -> str:
        return f"Window({self.window})"


@_rule
class Dilated(Rule):
    """Each query sees ``window`` positions spaced by ``dilation``, its own the first, on both sides.

    >>> Dilated(2, 3).tensor(7)[3].int().tolist()
    [1, 0, 0, 1, 0, 0, 1]
    """

    window: int
    dilation: int

    def __post_init__(self) -> None:
        check_size("window", self.window, at_least=1)
        check_size("dilation", self.dilation, at_least=1)

    @property
    def is_relative(self) -> bool:
        """It is."""
        return True

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Within reach, and a whole number of steps away."""
        back = query - key
        return (back.abs() < self.window * self.dilation) & (back % self.dilation == 0)

    @property
    def _reach(self) -> Band:
        reach = (self.window - 1) * self.dilation
        return Band(reach, reach)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the span within reach, what lies between the steps included."""
        return self._reach.keys(rows, m)

    def sees(self, rows: range, keys: range) -> Seen:
        """Beyond reach is nothing; within it, some (all, if a step is one)."""
        near = self._reach.sees(rows, keys)
        return Seen.SOME if near is Seen.ALL and self.dilation > 1 else near


@_rule
class Blocks(Rule):
    """The sequence is cut into blocks of ``size``, and each sees itself alone.

    >>> Blocks(2).tensor(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        check_size("size", self.size, at_least=1)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """One block."""
        return query // self.size == key // self.size

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the blocks that the rows lie in."""
        start, stop = self._blocks(rows)
        return _clipped(range(start * self.size, stop * self.size), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if everything lies in one block."""
        (first, stop), (first_key, stop_key) = self._blocks(rows), self._blocks(keys)
        if max(first, first_key) >= min(stop, stop_key):
            return Seen.NONE
        return Seen.ALL if stop - first == stop_key - first_key == 1 else Seen.SOME

    def _blocks(self, positions: range) -> tuple[int, int]:
        return positions.start // self.size, (positions.stop - 1) // self.size + 1


@_rule
class Prefix(Rule):
    """Everyone sees the first ``prefix`` positions, and the rest is causal: a prompt, then an answer.

    >>> Prefix(2).tensor(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    prefix: int

    def __post_init__(self) -> None:
        check_size("prefix", self.prefix, at_least=0)

    def check_sizes(self, n: int, m: int) -> None:
        """The prefix has to lie within the keys."""
        super().check_sizes(n, m)
        check_size("prefix", self.prefix, at_least=0, at_most=m)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Before the prefix ends, or not after the query."""
        return (key < self.prefix) | (key <= query)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return everything up to the last row, and the prefix."""
        return _clipped(range(max(self.prefix, rows.stop)), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """Decide by the corners of the tile."""
        if keys.stop <= max(self.prefix, rows.start + 1):
            return Seen.ALL
        return Seen.NONE if keys.start >= max(self.prefix, rows.stop) else Seen.SOME


@_rule
class GlobalTokens(Rule):
    """The given positions see all and are seen by all, and no one else sees anything: made to be joined with ``|``.

    >>> GlobalTokens([1]).tensor(3).int().tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """

    positions: Sequence[int]

    def __post_init__(self) -> None:
        for position in self.positions:
            check_size("positions", position, at_least=0)
        object.__setattr__(self, "positions", tuple(sorted(set(self.positions))))

    def check_sizes(self, n: int, m: int) -> None:
        """Every position has to lie within the keys."""
        super().check_sizes(n, m)
        for position in self.positions:
            check_size("positions", position, at_least=0, at_most=m - 1)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """The one or the other is global."""
        return self._holds(query) | self._holds(key)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return all for a global row, else the global keys one by one."""
        if any(position in rows for position in self.positions):
            return _clipped(range(m), m)
        return _joined(range(position, position + 1) for position in self.positions if position < m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if every row or every key is global."""
        global_rows, global_keys = (sum(p in span for p in self.positions) for span in (rows, keys))
        if len(rows) == global_rows or len(keys) == global_keys:
            return Seen.ALL
        return Seen.SOME if global_rows or global_keys else Seen.NONE

    def _holds(self, positions: Tensor) -> Tensor:
        return torch.isin(positions, torch.tensor(self.positions, dtype=torch.int64, device=positions.device))


# --- by content -----------------------------------------------------------------------------------------------------


class _Bounded(Rule):
    """What the two kinds of padding share: one bound for each sequence of a batch, or a single one for all."""

    name: str

    @property
    def bounds(self) -> Tensor:
        """The bounds as they were given."""
        return getattr(self, self.name)

    def __post_init__(self) -> None:
        check_integers(self.name, self.bounds, "", "batch")
        object.__setattr__(self, self.name, self.bounds.detach().clone())

    @property
    def leading(self) -> tuple[int, ...]:
        """``(batch, 1)``, or none."""
        return (*self.bounds.shape, 1) if self.bounds.ndim else ()

    @property
    def device(self) -> torch.device:
        """Where the bounds lie."""
        return self.bounds.device

    def check_sizes(self, n: int, m: int) -> None:
        """No bound lies beyond the keys."""
        super().check_sizes(n, m)
        if not all(0 <= bound <= m for bound in self._numbers):
            raise ValueError(f"{self.name} must be in 0 .. m = {m}, got {self._numbers}")

    def of_sequence(self, b: int) -> Rule:
        """Return the rule of one bound."""
        return type(self)(self.bounds[b]) if self.bounds.ndim else self  # type: ignore[call-arg]

    def _over_scores(self, key: Tensor) -> Tensor:
        """The bounds, to be compared with positions over ``(batch, 1, 1, m)``."""
        bounds = self.bounds.to(key.device)
        return bounds[:, None, None, None] if bounds.ndim else bounds

    @cached_property
    def _numbers(self) -> list[int]:
        return self.bounds.reshape(-1).tolist()

    @property
    def _least(self) -> int:
        return min(self._numbers, default=0)

    @property
    def _most(self) -> int:
        return max(self._numbers, default=0)


@_rule
class Padding(_Bounded):
    """Sequence ``b`` of the batch has ``lengths[b]`` real keys, and no query sees the rest.

    The leading axes are ``(batch, 1)`` for lengths over ``(batch,)``, none for a single length. Padded *queries* still
    attend; their outputs are for the caller to drop.

    >>> Padding(torch.tensor([3, 5])).tensor(4, 5).shape
    torch.Size([2, 1, 4, 5])

    Raises:
        ValueError: if lengths are not integers with at most one axis.
    """

    lengths: Int[Tensor, "*batch"]
    name = "lengths"

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Before the end."""
        return key < self._over_scores(key)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return those of the longest sequence."""
        return _clipped(range(self._most), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if the shortest sequence has all of them, none if the longest has none."""
        if keys.stop <= self._least:
            return Seen.ALL
        return Seen.NONE if keys.start >= self._most else Seen.SOME


@_rule
class LeftPadding(_Bounded):
    """The first ``filling[b]`` keys of sequence ``b`` are filling that no query sees: ragged prompts end together.

    >>> LeftPadding(torch.tensor([1, 0])).tensor(1, 3)[0].int().tolist()
    [[[0, 1, 1]]]

    Raises:
        ValueError: if filling does not hold integers with at most one axis.
    """

    filling: Int[Tensor, "*batch"]
    name = "filling"

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Behind the filling."""
        return key >= self._over_scores(key)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return those of the sequence with the least filling."""
        return _clipped(range(self._least, m), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if they lie behind the most filling, none if within the least."""
        if keys.start >= self._most:
            return Seen.ALL
        return Seen.NONE if keys.stop <= self._least else Seen.SOME


@_rule
class Documents(Rule):
    """A query sees the keys of its own document: several documents packed into one sequence stay apart.

    ``ids`` name the document of every key, over ``(m,)`` or ``(batch, m)``; the queries are the last of them.

    >>> Documents(torch.tensor([4, 4, 7])).tensor(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    Raises:
        ValueError: if ids are not integers over ``(m,)`` or ``(batch, m)``.
    """

    ids: Int[Tensor, "*batch m"]

    def __post_init__(self) -> None:
        check_integers("ids", self.ids, "m", "batch m")
        object.__setattr__(self, "ids", self.ids.detach().clone())

    @property
    def leading(self) -> tuple[int, ...]:
        """``(batch, 1)``, or none."""
        return (len(self.ids), 1) if self.ids.ndim == 2 else ()

    @property
    def device(self) -> torch.device:
        """Where the ids lie."""
        return self.ids.device

    def check_sizes(self, n: int, m: int) -> None:
        """There is one id for every key, and no query stands before the first."""
        super().check_sizes(n, m)
        if m != self.ids.shape[-1] or n > m:
            raise ValueError(
                f"ids must name the document of each of {m} keys and {n} queries, got {tuple(self.ids.shape)}"
            )

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """One document."""
        ids = self.ids.to(key.device)
        same = ids[..., query] == ids[..., key]
        return same[:, None] if self.ids.ndim == 2 else same

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the keys of the documents that the rows belong to."""
        wanted = np.zeros(m, dtype=bool)
        for ids in self._numbers:
            wanted |= np.isin(ids[:m], ids[rows.start : rows.stop])
        return _runs(wanted)

    def sees(self, rows: range, keys: range) -> Seen:
        """Compare the smallest and largest ids: exact where documents lie one after another."""
        answers = set()
        for ids in self._numbers:
            mine, theirs = ids[rows.start : rows.stop], ids[keys.start : keys.stop]
            low, high, least, most = mine.min(), mine.max(), theirs.min(), theirs.max()
            if high < least or most < low:
                answers.add(Seen.NONE)
            else:
                answers.add(Seen.ALL if low == high == least == most else Seen.SOME)
        return answers.pop() if len(answers) == 1 else Seen.SOME

    def of_sequence(self, b: int) -> Rule:
        """Return the rule of one sequence's ids."""
        return Documents(self.ids[b]) if self.ids.ndim == 2 else self

    @cached_property
    def _numbers(self) -> np.ndarray:
        return self.ids.reshape(-1, self.ids.shape[-1]).cpu().numpy()


# --- by table -------------------------------------------------------------------------------------------------------


@_rule
class Layout(Rule):
    """A small table over blocks of ``block`` positions says which block of queries may look at which block of keys.

    The last block may be shorter. ``first`` is the position where the first block of queries begins: 0 where queries
    and keys are one sequence.

    >>> Layout(torch.tensor([[True, False], [True, True]]), 2).tensor(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]

    Raises:
        ValueError: if the layout is not a Boolean matrix or the block not a positive integer.
    """

    layout: Bool[Tensor, "n_blocks m_blocks"]
    block: int
    first: int = 0

    def __post_init__(self) -> None:
        check_size("block", self.block, at_least=1)
        if self.layout.dtype != torch.bool or self.layout.ndim != 2:
            raise ValueError(
                f"layout must be a Boolean matrix, got {self.layout.dtype} over {tuple(self.layout.shape)}"
            )
        object.__setattr__(self, "layout", self.layout.detach().clone())

    @property
    def device(self) -> torch.device:
        """Where the layout lies."""
        return self.layout.device

    def check_sizes(self, n: int, m: int) -> None:
        """There is one row for each block of queries and one column for each of keys."""
        super().check_sizes(n, m)
        rows = -(-(m - self.first) // self.block)
        inside = m - n >= self.first
        if not inside or rows > self.layout.shape[0] or -(-m // self.block) > self.layout.shape[1]:
            raise ValueError(
                f"layout must cover n={n} queries and m={m} keys by blocks of {self.block}, "
                f"got {tuple(self.layout.shape)}"
            )

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Look the two blocks up."""
        return self.layout.to(key.device)[(query - self.first) // self.block, key // self.block]

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the blocks that a row's block looks at."""
        first, stop = self._blocks(rows, self.first)
        if stop == first + 1:
            columns = self._columns[first]
        else:
            columns = sorted({column for row in self._columns[first:stop] for column in row})
        size = self.block
        return _joined(range(c * size, min((c + 1) * size, m)) for c in columns if c * size < m)

    def sees(self, rows: range, keys: range) -> Seen:
        """Look up every pair of blocks."""
        (first, stop), (first_key, stop_key) = self._blocks(rows, self.first), self._blocks(keys, 0)
        if stop - first == stop_key - first_key == 1:  # the usual question, answered without an array
            return Seen.ALL if first_key in self._columns[first] else Seen.NONE
        return _seen_in(self._table[first:stop, first_key:stop_key])

    def _blocks(self, positions: range, first: int) -> tuple[int, int]:
        return (positions.start - first) // self.block, (positions.stop - 1 - first) // self.block + 1

    @cached_property
    def _table(self) -> np.ndarray:
        return self.layout.cpu().numpy()

    @cached_property
    def _columns(self) -> list[list[int]]:
        return [np.flatnonzero(row).tolist() for row in self._table]


class BigBird(Layout):
    """A symmetric window, ``n_global`` leading global blocks, and ``n_random`` random ones for each (BigBird [1]_).

    Every count is a count of blocks. Each block draws its random ones, when the rule is made, among those that the
    other two parts hide from it (all of these, if fewer are left).

    >>> rule = BigBird(8, window=2, n_global=1, n_random=1, generator=torch.Generator().manual_seed(0), block=64)
    >>> rule.tensor(512).shape
    torch.Size([512, 512])

    Raises:
        ValueError: if a count is out of range.

    .. [1] Zaheer et al., *Big Bird*, 2020. arXiv:2007.14062.
    """

    def __init__(
        self, n_blocks: int, *, window: int, n_global: int, n_random: int, generator: torch.Generator, block: int = 1
    ) -> None:
        check_size("n_blocks", n_blocks, at_least=1)
        check_size("n_global", n_global, at_least=0, at_most=n_blocks)
        check_size("n_random", n_random, at_least=0, at_most=n_blocks)
        fixed = (Window(window) | GlobalTokens(range(n_global))).tensor(n_blocks, device=generator.device)
        drawn = uniform(n_blocks, generator).masked_fill(fixed, -1.0).topk(n_random).indices
        super().__init__(fixed.scatter(-1, drawn, True), block)


@_rule
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

    def _picture(self, rows: range, keys: range, device: torch.device | str | None) -> Tensor:
        mask = self.mask if device is None else self.mask.to(device)
        if mask.shape[-2] > 1:
            mask = mask[..., rows.start - self._first : rows.stop - self._first, :]
        if mask.shape[-1] > 1:
            mask = mask[..., keys.start : keys.stop]
        return mask.expand(*mask.shape[:-2], len(rows), len(keys))

    def keys(self, rows: range, m: int) -> list[range]:
        """Return the columns in which some row has an entry."""
        seen = self.tile(rows, range(m)).reshape(-1, m).any(dim=0)
        return _runs(seen.cpu().numpy())

    def sees(self, rows: range, keys: range) -> Seen:
        """Look at every entry."""
        return _seen_in(self.tile(rows, keys))

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


class Random(Table):
    """Each pair is allowed with probability ``density``, and each query itself always, so that no row is empty.

    It is drawn once, when the rule is made, on the generator's device.

    >>> Random(5, 0.5, torch.Generator().manual_seed(0)).tensor(5).diagonal().all().item()
    True

    Raises:
        ValueError: if ``n`` is not a positive integer or ``density`` is not in ``0 .. 1``.
    """

    def __init__(self, n: int, density: float, generator: torch.Generator) -> None:
        if not 0 <= density <= 1:
            raise ValueError(f"density must be between 0 and 1, got {density}")
        chosen = uniform(n, generator) < density
        super().__init__(chosen | torch.eye(n, dtype=torch.bool, device=generator.device))


# --- combined -------------------------------------------------------------------------------------------------------


class _Combined(Rule):
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


@_rule
class Both(_Combined):
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


@_rule
class Either(_Combined):
    """What one of the rules allows: ``a | b``."""

    a: Rule
    b: Rule

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Or."""
        return self.a.allows(query, key) | self.b.allows(query, key)

    def keys(self, rows: range, m: int) -> list[range]:
        """Return what is in the ranges of either."""
        return _joined(sorted([*self.a.keys(rows, m), *self.b.keys(rows, m)], key=lambda span: span.start))

    def sees(self, rows: range, keys: range) -> Seen:
        """All if one sees all, none if both see none."""
        first = self.a.sees(rows, keys)
        if first is Seen.ALL:
            return first
        second = self.b.sees(rows, keys)
        return second if first is Seen.NONE or second is Seen.ALL else first


@_rule
class Not(_Combined):
    """What a rule hides: ``~a``."""

    a: Rule

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Not."""
        return ~self.a.allows(query, key)

    def sees(self, rows: range, keys: range) -> Seen:
        """None for all, and the other way round."""
        return {Seen.NONE: Seen.ALL, Seen.ALL: Seen.NONE}.get(self.a.sees(rows, keys), Seen.SOME)


@_rule
class Part(_Combined):
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
        found = self.whole.keys(_moved(rows, self.query), self.key + m)
        return [span for run in found for span in _clipped(_moved(run, -self.key), m)]

    def sees(self, rows: range, keys: range) -> Seen:
        """Ask the whole."""
        return self.whole.sees(_moved(rows, self.query), _moved(keys, self.key))

    def part(self, query: int, key: int) -> Rule:
        """Return a part of the whole."""
        return Part(self.whole, self.query + query, self.key + key)

    def of_sequence(self, b: int) -> Rule:
        """Return the part of one sequence's rule."""
        return Part(self.whole.of_sequence(b), self.query, self.key)


# --- rules and tables -----------------------------------------------------------------------------------------------


def as_rule(mask: Rule | Tensor, m: int | None = None) -> Rule:
    """Return the rule itself, or a Boolean table as one; a table of one column is spread over ``m`` keys, if given.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(mask, Rule):
        return mask
    table = Table(mask)
    return table if m is None else Table(table.mask.expand(*table.mask.shape[:-1], m))


def takes_rules(implementation: F) -> F:
    """Mark an implementation of attention that asks a rule about tiles, and never for the whole table."""
    implementation.takes_rules = True  # type: ignore[attr-defined]
    return implementation


def as_taken_by(
    implementation: Callable[..., Any],
    mask: Rule | Tensor | None,
    n: int,
    m: int,
    *,
    device: torch.device | str | None = None,
) -> Rule | Tensor | None:
    """Return the mask as the implementation takes it: a rule if it asks rules (:func:`takes_rules`), else the table."""
    return mask.tensor(n, m, device=device) if isinstance(mask, Rule) and not asks_rules(implementation) else mask


def asks_rules(implementation: Callable[..., Any]) -> bool:
    """Return whether it was marked with :func:`takes_rules`; a ``functools.partial`` takes what its function takes."""
    while hasattr(implementation, "func"):
        implementation = implementation.func  # type: ignore[attr-defined]
    return getattr(implementation, "takes_rules", False)


def check_over(mask: Rule, scores: Sequence[int]) -> None:
    """Refuse a rule that does not fit scores of this shape ``(*batch, n, m)``. Its own tensors may lie anywhere.

    Raises:
        ValueError: if the sizes are not those the rule was made for, or its leading axes would enlarge the scores.
    """
    *leading, n, m = scores
    mask.check_sizes(n, m)
    if not broadcasts_to(mask.leading, leading):
        raise ValueError(
            f"mask must broadcast to the scores, {tuple(scores)}, without enlarging them, "
            f"got a rule over {(*mask.leading, n, m)}"
        )


def conjuncts(rule: Rule) -> list[Rule]:
    """Return the rules that ``&`` joined, in order: a rule allows what all of these do."""
    return [*conjuncts(rule.a), *conjuncts(rule.b)] if isinstance(rule, Both) else [rule]


def hides_whole_keys(rule: Rule) -> bool:
    """Return whether the rule says nothing but which keys exist: the same for every query."""
    return all(isinstance(part, Padding | LeftPadding | Everything) for part in conjuncts(rule))


def as_band(rule: Rule, n: int, m: int) -> Band | None:
    """Return the one band that a rule comes to over ``n`` queries and ``m`` keys, or None if it is anything else.

    A bound that hides nothing there is left out: a single causal query, at the last key, sees all.
    """
    left = right = None
    for part in conjuncts(rule):
        if not isinstance(part, Band):
            return None
        left, right = _smaller(left, part.left), _smaller(right, part.right)
    return Band(
        None if left is None or left >= m - 1 else left,
        None if right is None or right >= n - 1 else right,
    )


def tiles(rule: Rule, rows: range, m: int, block: int) -> Iterator[tuple[range, Seen]]:
    """Cut what the rows see of ``m`` keys into ranges of at most ``block`` keys; those seen by no row are left out.

    Ranges less than half a block apart are taken together: a small tile costs as much as a large one.
    """
    for span in _joined(rule.keys(rows, m), gap=block // 2):
        for start in range(span.start, span.stop, block):
            keys = range(start, min(start + block, span.stop))
            seen = rule.sees(rows, keys)
            if seen is not Seen.NONE:
                yield keys, seen


# --- parts ----------------------------------------------------------------------------------------------------------


def uniform(n: int, generator: torch.Generator) -> Tensor:
    """Draw one number in [0, 1) for each pair, in float32 so that the default type does not change the mask."""
    check_size("n", n, at_least=1)
    return torch.rand(n, n, generator=generator, device=generator.device, dtype=torch.float32)


def parts_of(rule: Rule) -> list[Any]:
    """Return what a rule is made of: numbers, tensors, other rules."""
    return [getattr(rule, field.name) for field in fields(rule)]  # type: ignore[arg-type]


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor):
        return mine.shape == theirs.shape and torch.equal(mine, theirs.to(mine.device))
    return bool(mine == theirs)


def _runs(wanted: np.ndarray) -> list[range]:
    """The ranges where a row of Booleans is True."""
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).tolist()
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _clipped(span: range, m: int) -> list[range]:
    """The part of the range that lies in ``0 .. m - 1``, or nothing."""
    start, stop = max(span.start, 0), min(span.stop, m)
    return [range(start, stop)] if start < stop else []


def _joined(spans: Iterable[range], *, gap: int = 0) -> list[range]:
    """Ranges in order, with those that touch, overlap or lie at most ``gap`` apart made one."""
    joined: list[range] = []
    for span in spans:
        if joined and span.start <= joined[-1].stop + gap:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, span.stop))
        else:
            joined.append(span)
    return joined


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _moved(span: range, by: int) -> range:
    return range(span.start + by, span.stop + by)


def _seen_in(table: "np.ndarray | Tensor") -> Seen:
    if table.all():
        return Seen.ALL
    return Seen.SOME if table.any() else Seen.NONE
