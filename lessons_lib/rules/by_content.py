"""Rules that ask what stands at a position: padding at either end, and documents packed into one sequence."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lessons_lib.rules.ranges import clipped, runs
from lessons_lib.rules.rule import Rule, Seen, immutable
from lessons_lib.shapes import check_integers, values_can_be_read


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
        if values_can_be_read(self.bounds) and not all(0 <= bound <= m for bound in self._numbers):
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


@immutable
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
        return clipped(range(self._most), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if the shortest sequence has all of them, none if the longest has none."""
        if keys.stop <= self._least:
            return Seen.ALL
        return Seen.NONE if keys.start >= self._most else Seen.SOME


@immutable
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
        return clipped(range(self._least, m), m)

    def sees(self, rows: range, keys: range) -> Seen:
        """All if they lie behind the most filling, none if within the least."""
        if keys.start >= self._most:
            return Seen.ALL
        return Seen.NONE if keys.stop <= self._least else Seen.SOME


@immutable
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
        return runs(wanted)

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
