"""Rules that ask where query and key stand: bands about the diagonal, steps, blocks, a prefix, global tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.rules.ranges import clipped, joined
from lessons_lib.rules.rule import Rule, Seen, immutable
from lessons_lib.shapes import check_size


@immutable
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
        allowed = torch.ones(query.shape[0], key.shape[-1], dtype=torch.bool, device=key.device)
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


@immutable
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


@immutable
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
        return clipped(range(start * self.size, stop * self.size), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if everything lies in one block."""
        (first, stop), (first_key, stop_key) = self._blocks(rows), self._blocks(keys)
        if max(first, first_key) >= min(stop, stop_key):
            return Seen.NONE
        return Seen.ALL if stop - first == stop_key - first_key == 1 else Seen.SOME

    def _blocks(self, positions: range) -> tuple[int, int]:
        return positions.start // self.size, (positions.stop - 1) // self.size + 1


@immutable
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
        return clipped(range(max(self.prefix, rows.stop)), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """Decide by the corners of the tile."""
        if keys.stop <= max(self.prefix, rows.start + 1):
            return Seen.ALL
        return Seen.NONE if keys.start >= max(self.prefix, rows.stop) else Seen.SOME


@immutable
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
            return clipped(range(m), m)
        return joined(range(position, position + 1) for position in self.positions if position < m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if every row or every key is global."""
        global_rows, global_keys = (sum(p in span for p in self.positions) for span in (rows, keys))
        if len(rows) == global_rows or len(keys) == global_keys:
            return Seen.ALL
        return Seen.SOME if global_rows or global_keys else Seen.NONE

    def _holds(self, positions: Tensor) -> Tensor:
        return torch.isin(positions, torch.tensor(self.positions, dtype=torch.int64, device=positions.device))
