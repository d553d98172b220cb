"""Rules that depend on what is at a position: padding at either end, and documents packed into one sequence."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lessons_lib.attention.rules.by_position import Full
from lessons_lib.attention.rules.coverage import Coverage
from lessons_lib.attention.rules.ranges import clip_range, true_ranges
from lessons_lib.attention.rules.rule import Rule, immutable, look_up
from lessons_lib.foundations.validation import check_integers, values_can_be_read


class _PerSequence(Rule):
    """The base class of rules that look up a tensor with one row for each sequence, or with a single one for all."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Look the pairs up for every sequence."""
        n_axes = max(query.ndim, key.ndim)
        sequences = torch.arange((*self.batch_shape, 1)[0], device=key.device).reshape(-1, 1, *[1] * n_axes)
        return self._allows_in(sequences if self.batch_shape else None, query, key)

    def _allows_at(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if not self.batch_shape:
            return self._allows_in(None, query, key)
        return self._allows_in(batch if self.batch_shape[0] > 1 else torch.zeros_like(batch), query, key)

    def _allows_in(self, sequence: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
        """Look the pairs up in these sequences; None where one row holds for all."""
        raise NotImplementedError


class _Bounded(_PerSequence):
    """The base class of both kinds of padding: one bound for each sequence of a batch, or a single one for all."""

    name: str

    @property
    def bounds(self) -> Tensor:
        """The bounds as they were given."""
        return getattr(self, self.name)

    def __post_init__(self) -> None:
        check_integers(self.name, self.bounds, "", "batch")
        object.__setattr__(self, self.name, self.bounds.detach().clone())

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """``(batch, 1)``, or none for a single bound."""
        return (*self.bounds.shape, 1) if self.bounds.ndim else ()

    def check_sizes(self, n: int, m: int) -> None:
        """Check that no bound lies beyond the keys."""
        super().check_sizes(n, m)
        if values_can_be_read(self.bounds) and not all(0 <= bound <= m for bound in self._numbers):
            raise ValueError(f"{self.name} must be in 0 .. m = {m}, got {self._numbers}")

    def for_sequence(self, b: int) -> Rule:
        """Return the rule of sequence ``b``, with a single bound."""
        return type(self)(self.bounds[b]) if self.bounds.ndim else self  # type: ignore[call-arg]

    def _bounds_in(self, sequence: Tensor | None, device: torch.device) -> Tensor:
        return self.bounds.to(device) if sequence is None else look_up(self.bounds, sequence)

    @cached_property
    def _numbers(self) -> list[int]:
        return self.bounds.reshape(-1).tolist()

    @property
    def _smallest(self) -> int:
        return min(self._numbers, default=0)

    @property
    def _largest(self) -> int:
        return max(self._numbers, default=0)


@immutable
class Padding(_Bounded):
    """Sequence ``b`` of the batch has ``lengths[b]`` real keys, and no query may attend to the keys after them.

    The leading axes are ``(batch, 1)`` for lengths over ``(batch,)``, none for a single length. Padded *queries* still
    attend; the caller has to drop their outputs.

    >>> Padding(torch.tensor([3, 5])).to_mask(4, 5).shape
    torch.Size([2, 1, 4, 5])

    Raises:
        ValueError: if lengths are not integers with at most one axis.
    """

    lengths: Int[Tensor, "*batch"]
    name = "lengths"

    def _allows_in(self, sequence: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
        return key < self._bounds_in(sequence, key.device)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the keys of the longest sequence."""
        return clip_range(range(self._largest), m)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL if the shortest sequence has all of the keys, EMPTY if the longest has none."""
        if keys.stop <= self._smallest:
            return Coverage.FULL
        return Coverage.EMPTY if keys.start >= self._largest else Coverage.PARTIAL


@immutable
class LeftPadding(_Bounded):
    """The first ``n_padding[b]`` keys of sequence ``b`` are padding: prompts of different lengths end together.

    >>> LeftPadding(torch.tensor([1, 0])).to_mask(1, 3)[0].int().tolist()
    [[[0, 1, 1]]]

    Raises:
        ValueError: if n_padding does not hold integers with at most one axis.
    """

    n_padding: Int[Tensor, "*batch"]
    name = "n_padding"

    def _allows_in(self, sequence: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
        return key >= self._bounds_in(sequence, key.device)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the keys of the sequence with the least padding."""
        return clip_range(range(self._smallest, m), m)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return FULL if the keys are after the most padding, EMPTY if they are within the least."""
        if keys.start >= self._largest:
            return Coverage.FULL
        return Coverage.EMPTY if keys.stop <= self._smallest else Coverage.PARTIAL


@immutable
class Documents(_PerSequence):
    """Each query may attend to the keys of its own document: documents packed into one sequence stay separate.

    ``ids`` name the document of every key, over ``(m,)`` or ``(batch, m)``; the queries are the last of the keys.

    ``inner`` is a rule inside each document, where positions count from the document's first token. ``Documents(ids,
    Prefix(2))`` has a prefix in every document, ``Documents(ids) & Prefix(2)`` a single one for the whole sequence.

    >>> Documents(torch.tensor([4, 4, 7])).to_mask(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    >>> from lessons_lib.attention.rules import Prefix
    >>> Documents(torch.tensor([4, 7, 7, 7]), Prefix(2)).to_mask(4)[1:, 1:].int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]

    Raises:
        ValueError: if ids are not integers over ``(m,)`` or ``(batch, m)``, or ``inner`` is not a rule that is the same
            for all sequences and heads.
    """

    ids: Int[Tensor, "*batch m"]
    inner: Rule = Full()

    def __post_init__(self) -> None:
        check_integers("ids", self.ids, "m", "batch m")
        if not isinstance(self.inner, Rule):
            raise ValueError(f"inner must be a rule, got {type(self.inner).__name__}")
        if self.inner.batch_shape:
            raise ValueError(f"inner must be the same for all sequences and heads, got axes {self.inner.batch_shape}")
        object.__setattr__(self, "ids", self.ids.detach().clone())
        object.__setattr__(self, "_places", None if self._is_plain else _places(self.ids))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """``(batch, 1)``, or none for ids over ``(m,)``."""
        return (len(self.ids), 1) if self.ids.ndim == 2 else ()

    def check_sizes(self, n: int, m: int) -> None:
        """Check that each key has an id, no query is before the first key, and ``inner`` fits the longest document."""
        super().check_sizes(n, m)
        if m != self.ids.shape[-1] or n > m:
            raise ValueError(
                f"ids must name the document of each of {m} keys and {n} queries, got {tuple(self.ids.shape)}"
            )
        if not self._is_plain and values_can_be_read(self.ids):
            longest = int(self._place_numbers.max()) + 1
            self.inner.check_sizes(longest, longest)

    def _allows_in(self, sequence: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
        batch = () if sequence is None else (sequence,)
        same = look_up(self.ids, *batch, query) == look_up(self.ids, *batch, key)
        if self._is_plain:
            return same
        places = self._places  # type: ignore[attr-defined]
        return same & self.inner.allows(look_up(places, *batch, query), look_up(places, *batch, key))

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the keys that ``inner`` allows in each document of the queries."""
        wanted = np.zeros(m, dtype=bool)
        for b, (order, ids) in enumerate(zip(self._order, self._sorted, strict=True)):
            for document, places in self._places_by_document(b, rows).items():
                members = order[np.searchsorted(ids, document, "left") : np.searchsorted(ids, document, "right")]
                members = members[: np.searchsorted(members, m)]
                for span in self.inner.key_ranges(places, len(members)):
                    wanted[members[span.start : span.stop]] = True
        return true_ranges(wanted)

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Return the coverage of ``inner`` in the documents that queries and keys share: as exact as that."""
        answers = {self._coverage_in(b, rows, keys) for b in range(len(self._numbers))}
        return answers.pop() if len(answers) == 1 else Coverage.PARTIAL

    def for_sequence(self, b: int) -> Rule:
        """Return the rule of the ids of sequence ``b``."""
        return Documents(self.ids[b], self.inner) if self.ids.ndim == 2 else self

    @property
    def _is_plain(self) -> bool:
        return isinstance(self.inner, Full)

    def _coverage_in(self, b: int, rows: range, keys: range) -> Coverage:
        mine, theirs = self._places_by_document(b, rows), self._places_by_document(b, keys)
        answers = {self.inner.coverage(mine[document], theirs[document]) for document in mine.keys() & theirs.keys()}
        if len(mine) > 1 or len(theirs) > 1 or not answers:  # some query and key are of different documents
            answers.add(Coverage.EMPTY)
        return answers.pop() if len(answers) == 1 else Coverage.PARTIAL

    def _places_by_document(self, b: int, positions: range) -> dict[int, range]:
        """Return the documents at these positions, each with the range of its tokens' positions in the document."""
        ids = self._numbers[b, positions.start : positions.stop].tolist()
        places = self._place_numbers[b, positions.start : positions.stop].tolist()
        first, last = dict(zip(reversed(ids), reversed(places), strict=True)), dict(zip(ids, places, strict=True))
        return {document: range(first[document], last[document] + 1) for document in first}

    @cached_property
    def _numbers(self) -> np.ndarray:
        return self.ids.reshape(-1, self.ids.shape[-1]).cpu().numpy()

    @cached_property
    def _place_numbers(self) -> np.ndarray:
        return _places(self.ids).reshape(self._numbers.shape).cpu().numpy()

    @cached_property
    def _order(self) -> np.ndarray:
        """The positions of each sequence, sorted by their document."""
        return self._numbers.argsort(axis=-1, kind="stable")

    @cached_property
    def _sorted(self) -> np.ndarray:
        return np.take_along_axis(self._numbers, self._order, axis=-1)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _places(ids: Tensor) -> Tensor:
    """Return each token's position in its document: the number of earlier tokens with the same id."""
    order = ids.argsort(dim=-1, stable=True)
    grouped = ids.gather(-1, order)
    index = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
    begins = torch.cat([torch.ones_like(grouped[..., :1], dtype=torch.bool), grouped.diff(dim=-1) != 0], dim=-1)
    first = index.where(begins, 0).cummax(dim=-1).values
    return torch.zeros_like(index).scatter(-1, order, index - first)
