"""Rules that look up a small table over blocks, and rules drawn by chance."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from lessons_lib.rules.by_position import GlobalTokens, Window
from lessons_lib.rules.ranges import clipped, joined, runs
from lessons_lib.rules.rule import Rule, Seen, Table, immutable, seen_in
from lessons_lib.shapes import check_size


@immutable
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
            spans = self._spans[first]
        else:
            spans = joined(sorted((span for row in self._spans[first:stop] for span in row), key=lambda x: x.start))
        if spans and spans[-1].stop > m:  # the last block may be shorter
            spans = [part for span in spans for part in clipped(span, m)]
        return spans

    def sees(self, rows: range, keys: range) -> Seen:
        """Look up every pair of blocks."""
        (first, stop), (first_key, stop_key) = self._blocks(rows, self.first), self._blocks(keys, 0)
        if stop - first == stop_key - first_key == 1:  # the usual question, answered without an array
            return Seen.ALL if self._entries[first][first_key] else Seen.NONE
        return seen_in(self._table[first:stop, first_key:stop_key])

    def _blocks(self, positions: range, first: int) -> tuple[int, int]:
        return (positions.start - first) // self.block, (positions.stop - 1 - first) // self.block + 1

    @cached_property
    def _table(self) -> np.ndarray:
        return self.layout.cpu().numpy()

    @cached_property
    def _entries(self) -> list[list[bool]]:
        return self._table.tolist()

    @cached_property
    def _spans(self) -> list[list[range]]:
        """What each block of queries looks at, neighbouring blocks as one range."""
        return [[range(x.start * self.block, x.stop * self.block) for x in runs(row)] for row in self._table]


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


# --- parts ------------------------------------------------------------------------------------------------------------


def uniform(n: int, generator: torch.Generator) -> Tensor:
    """Draw one number in [0, 1) for each pair, in float32 so that the default type does not change the mask."""
    check_size("n", n, at_least=1)
    return torch.rand(n, n, generator=generator, device=generator.device, dtype=torch.float32)
