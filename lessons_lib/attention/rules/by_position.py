"""Rules that depend on positions alone: bands, dilated windows, blocks, prefixes, global tokens, image patches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lessons_lib.attention.rules.coverage import Coverage
from lessons_lib.attention.rules.ranges import clip_range, merge_ranges
from lessons_lib.attention.rules.rule import Rule, immutable, look_up
from lessons_lib.foundations.validation import check_size


@immutable
class Band(Rule):
    r"""A query at position :math:`p` may attend to the keys :math:`j` in a band about the diagonal.

    .. math:: p - \text{left} \le j \le p + \text{right}

    ``None`` is no bound on that side. :class:`Causal`, :class:`Window` and :class:`Full` are bands.

    >>> Band(1, 0).to_mask(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    left: int | None
    right: int | None

    @property
    def is_relative(self) -> bool:
        """True: the rule compares distances."""
        return True

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare the key's position with both bounds."""
        after_left = None if self.left is None else key >= query - self.left
        before_right = None if self.right is None else key <= query + self.right
        if after_left is None or before_right is None:
            one = before_right if after_left is None else after_left
            return torch.ones_like(key, dtype=torch.bool) if one is None else one
        return after_left & before_right

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return one range: from the left bound of the first query to the right bound of the last."""
        start = 0 if self.left is None else max(rows.start - self.left, 0)
        stop = m if self.right is None else min(rows.stop + self.right, m)
        return [range(start, stop)] if start < stop else []

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Compare the corners of the tile with the bounds."""
        first, last = rows.start, rows.stop - 1
        after_left = self.left is None or keys.start >= last - self.left
        before_right = self.right is None or keys.stop - 1 <= first + self.right
        if after_left and before_right:
            return Coverage.FULL
        beyond_left = self.left is not None and keys.stop - 1 < first - self.left
        beyond_right = self.right is not None and keys.start > last + self.right
        return Coverage.EMPTY if beyond_left or beyond_right else Coverage.PARTIAL

    def shifted(self, query: int, key: int) -> Rule:
        """Return the band with its bounds moved."""
        shift = query - key
        if not shift:
            return self
        return Band(
            None if self.left is None else self.left - shift,
            None if self.right is None else self.right + shift,
        )


class Full(Band):
    """Every query may attend to every key.

    >>> Full().to_mask(2, 3).tolist()
    [[True, True, True], [True, True, True]]
    """

    def __init__(self) -> None:
        super().__init__(None, None)

    def __repr__(self) -> str:
        return "Full()"


class Causal(Band):
    """Each query may attend to its own position and all earlier ones.

    >>> Causal().to_mask(2, 3).int().tolist()  # the queries are the last two positions
    [[1, 1, 0], [1, 1, 1]]
    """

    def __init__(self) -> None:
        super().__init__(None, 0)

    def __repr__(self) -> str:
        return "Causal()"


class Window(Band):
    """Each query may attend to the positions less than ``window`` away, on both sides.

    ``window`` counts the allowed keys on one side, the query's own included. ``Causal() & Window(w)`` allows the ``w``
    most recent keys.

    >>> (Causal() & Window(2)).to_mask(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    def __init__(self, window: int) -> None:
        check_size("window", window, at_least=1)
        super().__init__(window - 1, window - 1)

    @property
    def window(self) -> int:
        """Number of allowed keys on each side, the query's own included."""
        return self.left + 1 if self.left is not None else 0

    def __repr__(self) -> str:
        return f"Window({self.window})"


@immutable
class Dilated(Rule):
    """Each query may attend to ``window`` positions spaced by ``dilation``, its own the first, on both sides.

    >>> Dilated(2, 3).to_mask(7)[3].int().tolist()
    [1, 0, 0, 1, 0, 0, 1]
    """

    window: int
    dilation: int

    def __post_init__(self) -> None:
        check_size("window", self.window, at_least=1)
        check_size("dilation", self.dilation, at_least=1)

    @property
    def is_relative(self) -> bool:
        """True: the rule compares distances."""
        return True

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Check that the distance is a multiple of the dilation, and below ``window`` steps."""
        distance = query - key
        return (distance.abs() < self.window * self.dilation) & (distance % self.dilation == 0)

    @property
    def _reach(self) -> Band:
        reach = (self.window - 1) * self.dilation
        return Band(reach, reach)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the range from the first allowed key to the last, the keys between the steps included."""
        return self._reach.key_ranges(rows, m)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return EMPTY outside that range; inside it PARTIAL, or FULL if the dilation is 1."""
        near = self._reach.coverage(rows, keys)
        return Coverage.PARTIAL if near is Coverage.FULL and self.dilation > 1 else near


@immutable
class Blocks(Rule):
    """The sequence is cut into blocks of ``size`` positions, and each query may attend to its own block.

    >>> Blocks(2).to_mask(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """

    size: int

    def __post_init__(self) -> None:
        check_size("size", self.size, at_least=1)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare the two blocks."""
        return query // self.size == key // self.size

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the blocks of the queries."""
        start, stop = self._blocks(rows)
        return clip_range(range(start * self.size, stop * self.size), m)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL if all positions are in one block, EMPTY if no block has queries and keys."""
        (first, stop), (first_key, stop_key) = self._blocks(rows), self._blocks(keys)
        if max(first, first_key) >= min(stop, stop_key):
            return Coverage.EMPTY
        return Coverage.FULL if stop - first == stop_key - first_key == 1 else Coverage.PARTIAL

    def _blocks(self, positions: range) -> tuple[int, int]:
        return positions.start // self.size, (positions.stop - 1) // self.size + 1


@immutable
class Prefix(Rule):
    """Every query may attend to the first ``prefix`` positions, and causally to the rest: a prompt, then an answer.

    >>> Prefix(2).to_mask(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """

    prefix: int

    def __post_init__(self) -> None:
        check_size("prefix", self.prefix, at_least=0)

    def check_sizes(self, n: int, m: int) -> None:
        """Check that the prefix is not longer than the keys."""
        super().check_sizes(n, m)
        check_size("prefix", self.prefix, at_least=0, at_most=m)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Check that the key is in the prefix, or not after the query."""
        return (key < self.prefix) | (key <= query)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the prefix and everything up to the last query."""
        return clip_range(range(max(self.prefix, rows.stop)), m)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Compare the corners of the tile with the bounds."""
        if keys.stop <= max(self.prefix, rows.start + 1):
            return Coverage.FULL
        return Coverage.EMPTY if keys.start >= max(self.prefix, rows.stop) else Coverage.PARTIAL


@immutable
class GlobalTokens(Rule):
    """The given positions attend to all keys, and all queries attend to them; nothing else is allowed.

    Join it to another rule with ``|``.

    >>> GlobalTokens([1]).to_mask(3).int().tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """

    positions: Sequence[int]

    def __post_init__(self) -> None:
        for position in self.positions:
            check_size("positions", position, at_least=0)
        object.__setattr__(self, "positions", tuple(sorted(set(self.positions))))

    def check_sizes(self, n: int, m: int) -> None:
        """Check that every position is one of the keys."""
        super().check_sizes(n, m)
        for position in self.positions:
            check_size("positions", position, at_least=0, at_most=m - 1)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Check whether the query or the key is global."""
        return self._contains(query) | self._contains(key)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return all keys if a query is global, else the global keys."""
        if any(position in rows for position in self.positions):
            return clip_range(range(m), m)
        return merge_ranges(range(position, position + 1) for position in self.positions if position < m)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL if all queries or all keys are global, EMPTY if none are."""
        global_rows, global_keys = (sum(p in span for p in self.positions) for span in (rows, keys))
        if len(rows) == global_rows or len(keys) == global_keys:
            return Coverage.FULL
        return Coverage.PARTIAL if global_rows or global_keys else Coverage.EMPTY

    def _contains(self, positions: Tensor) -> Tensor:
        """Compare with each run of global positions: FlexAttention's kernels have no ``torch.isin``."""
        found = torch.zeros_like(positions, dtype=torch.bool)
        for run in merge_ranges(range(position, position + 1) for position in self.positions):
            found = found | ((positions >= run.start) & (positions < run.stop))
        return found


@immutable
class Neighbourhood2D(Rule):
    """Each patch of an image may attend to the patches at most ``radius`` rows and ``radius`` columns away.

    The sequence holds the patches row by row, ``width`` in each row: position ``p`` is in row ``p // width`` and column
    ``p % width``. At the edges of the image the neighbourhood is smaller. With a class token before the patches, use
    ``Neighbourhood2D(width, radius).shifted(-1, -1) | GlobalTokens([0])``.

    >>> Neighbourhood2D(3, 1).to_mask(9)[0].reshape(3, 3).int().tolist()  # what the first patch may attend to
    [[1, 1, 0], [1, 1, 0], [0, 0, 0]]

    Raises:
        ValueError: if ``width`` is not a positive integer, or ``radius`` not an integer of at least 0.
    """

    width: int
    radius: int

    def __post_init__(self) -> None:
        check_size("width", self.width, at_least=1)
        check_size("radius", self.radius, at_least=0)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Compare the distances of rows and columns with the radius."""
        rows = (query // self.width - key // self.width).abs()
        columns = (query % self.width - key % self.width).abs()
        return (rows <= self.radius) & (columns <= self.radius)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the columns within the radius in each image row within the radius."""
        allowed: dict[int, list[range]] = {}
        for row, columns in self._image_rows(rows):
            start, stop = max(columns.start - self.radius, 0), min(columns.stop + self.radius, self.width)
            for other in range(row - self.radius, row + self.radius + 1):
                allowed.setdefault(other, []).append(range(other * self.width + start, other * self.width + stop))
        spans = sorted((span for row in allowed.values() for span in row), key=lambda span: span.start)
        return [part for span in merge_ranges(spans) for part in clip_range(span, m)]

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Compare the farthest patches with the radius, then the parts of image rows that the tile has."""
        mine, theirs = self._image_rows(rows), self._image_rows(keys)
        height = max(mine[-1][0] - theirs[0][0], theirs[-1][0] - mine[0][0])
        (left, right), (key_left, key_right) = _columns(mine), _columns(theirs)
        if max(height, right - key_left, key_right - left) <= self.radius:
            return Coverage.FULL
        near = any(
            abs(row - other) <= self.radius
            and max(columns.start - others.stop, others.start - columns.stop) < self.radius
            for row, columns in mine
            for other, others in theirs
        )
        return Coverage.PARTIAL if near else Coverage.EMPTY

    def _image_rows(self, positions: range) -> list[tuple[int, range]]:
        """Return the image rows of these positions, each with the range of its columns."""
        first, last = positions.start // self.width, (positions.stop - 1) // self.width
        return [
            (row, range(max(positions.start - row * self.width, 0), min(positions.stop - row * self.width, self.width)))
            for row in range(first, last + 1)
        ]


@immutable
class SharedPrefix(Rule):
    """Several continuations of one prompt in one sequence: each token may attend to the prompt and its continuation.

    The first ``prefix`` positions are the prompt, then come continuations of the given ``lengths``. Everything is
    causal, and no token may attend to another continuation. So one pass computes the prompt once for all continuations.
    Their tokens' positions count on from the prompt: pass :attr:`positions` to a model with position encodings.

    >>> SharedPrefix(2, [1, 2]).to_mask(5).int().tolist()
    [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]
    >>> SharedPrefix(2, [1, 2]).positions
    tensor([0, 1, 2, 2, 3])

    Raises:
        ValueError: if ``prefix`` or a length is not an integer of at least 0.
    """

    prefix: int
    lengths: Sequence[int]

    def __post_init__(self) -> None:
        check_size("prefix", self.prefix, at_least=0)
        for length in self.lengths:
            check_size("lengths", length, at_least=0)
        object.__setattr__(self, "lengths", tuple(self.lengths))
        starts = [0] * self.prefix
        for length in self.lengths:
            starts += [len(starts)] * length
        object.__setattr__(self, "_starts", torch.tensor(starts, dtype=torch.int64))
        object.__setattr__(self, "_start_numbers", starts)

    @property
    def positions(self) -> Tensor:
        """The position of each token after the prompt and its own continuation, over ``(m,)``."""
        starts = self._starts  # type: ignore[attr-defined]
        return torch.arange(len(starts)) - (starts - self.prefix).clamp(min=0)

    def check_sizes(self, n: int, m: int) -> None:
        """Check that prompt and continuations together are the keys, and no query is before the first key."""
        super().check_sizes(n, m)
        if m != self.prefix + sum(self.lengths) or n > m:
            raise ValueError(
                f"prefix and lengths must add up to m={m} keys for n={n} queries of at most m, "
                f"got {self.prefix} and {self.lengths}"
            )

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Check that the key is not after the query, and in the prompt or the query's continuation."""
        start = look_up(self._starts, query)  # type: ignore[attr-defined]
        return (key <= query) & ((key < self.prefix) | (key >= start))

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the prompt, and everything from the first query's continuation up to the last query."""
        start = self._start_numbers[rows.start]  # type: ignore[attr-defined]
        spans = merge_ranges([range(min(self.prefix, rows.stop)), range(start, rows.stop)])
        return [part for span in spans for part in clip_range(span, m)]

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL if no key is after the first query or before the last query's continuation, prompt aside."""
        last_start = self._start_numbers[rows.stop - 1]  # type: ignore[attr-defined]
        if keys.stop <= rows.start + 1 and (keys.stop <= self.prefix or last_start <= max(keys.start, self.prefix)):
            return Coverage.FULL
        spans = self.key_ranges(rows, keys.stop)
        return Coverage.PARTIAL if spans and spans[-1].stop > keys.start else Coverage.EMPTY


# --- helpers ----------------------------------------------------------------------------------------------------------


def _columns(image_rows: list[tuple[int, range]]) -> tuple[int, int]:
    """Return the first and the last column of any of the image rows."""
    return min(columns.start for _, columns in image_rows), max(columns.stop for _, columns in image_rows) - 1
