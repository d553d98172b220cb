"""Rules that look up a small table over blocks of positions, and rules drawn at random."""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from lessons_lib.attention.rules.by_position import GlobalTokens, Window
from lessons_lib.attention.rules.coverage import Coverage, coverage_of
from lessons_lib.attention.rules.ranges import clip_range, merge_ranges, true_ranges
from lessons_lib.attention.rules.rule import Rule, Table, immutable, look_up
from lessons_lib.foundations.validation import check_size


@immutable
class BlockSparse(Rule):
    """A small table over blocks of ``block`` positions: which block of queries may attend to which block of keys.

    The last block may be shorter. ``first`` is the position where the first block of queries begins: 0 where queries
    and keys are one sequence.

    >>> BlockSparse(torch.tensor([[True, False], [True, True]]), 2).to_mask(3).int().tolist()
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

    def check_sizes(self, n: int, m: int) -> None:
        """Check that the layout has a row for each block of queries and a column for each block of keys."""
        super().check_sizes(n, m)
        rows = -(-(m - self.first) // self.block)
        inside = m - n >= self.first
        if not inside or rows > self.layout.shape[0] or -(-m // self.block) > self.layout.shape[1]:
            raise ValueError(
                f"layout must cover n={n} queries and m={m} keys by blocks of {self.block}, "
                f"got {tuple(self.layout.shape)}"
            )

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Look the two blocks up in the layout."""
        return look_up(self.layout, (query - self.first) // self.block, key // self.block)

    def key_ranges(self, rows: range, m: int) -> list[range]:
        """Return the blocks of keys in the layout's rows of these queries."""
        first, stop = self._blocks(rows, self.first)
        if stop == first + 1:
            spans = self._spans[first]
        else:
            spans = merge_ranges(
                sorted((span for row in self._spans[first:stop] for span in row), key=lambda x: x.start)
            )
        if spans and spans[-1].stop > m:  # the last block may be shorter
            spans = [part for span in spans for part in clip_range(span, m)]
        return spans

    def coverage(self, rows: range, keys: range) -> Coverage:
        """Look up every pair of blocks in the layout."""
        (first, stop), (first_key, stop_key) = self._blocks(rows, self.first), self._blocks(keys, 0)
        if stop - first == stop_key - first_key == 1:  # the most frequent case, without an array
            return Coverage.FULL if self._entries[first][first_key] else Coverage.EMPTY
        return coverage_of(self._table[first:stop, first_key:stop_key])

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
        """The keys of each block of queries, neighbouring blocks merged into one range."""
        return [[range(x.start * self.block, x.stop * self.block) for x in true_ranges(row)] for row in self._table]


class BigBird(BlockSparse):
    """A symmetric window, ``n_global`` leading global blocks, and ``n_random`` random blocks for each (BigBird [1]_).

    Every number counts blocks. When the rule is made, each block of queries draws its random blocks among those that
    window and global blocks hide from it (all of these, if there are fewer).

    >>> rule = BigBird(8, window=2, n_global=1, n_random=1, generator=torch.Generator().manual_seed(0), block=64)
    >>> rule.to_mask(512).shape
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
        fixed = (Window(window) | GlobalTokens(range(n_global))).to_mask(n_blocks, device=generator.device)
        drawn = _uniform(n_blocks, generator).masked_fill(fixed, -1.0).topk(n_random).indices
        super().__init__(fixed.scatter(-1, drawn, True), block)


class Random(Table):
    """Each pair is allowed with probability ``density``, and a query's own position always, so that no row is empty.

    The pairs are drawn once, when the rule is made, on the generator's device.

    >>> Random(5, 0.5, torch.Generator().manual_seed(0)).to_mask(5).diagonal().all().item()
    True

    Raises:
        ValueError: if ``n`` is not a positive integer or ``density`` is not in ``0 .. 1``.
    """

    def __init__(self, n: int, density: float, generator: torch.Generator) -> None:
        if not 0 <= density <= 1:
            raise ValueError(f"density must be between 0 and 1, got {density}")
        chosen = _uniform(n, generator) < density
        super().__init__(chosen | torch.eye(n, dtype=torch.bool, device=generator.device))


# --- helpers ----------------------------------------------------------------------------------------------------------


def _uniform(n: int, generator: torch.Generator) -> Tensor:
    """Draw one number in [0, 1) for each pair, in float32 so that the default type does not change the mask."""
    check_size("n", n, at_least=1)
    return torch.rand(n, n, generator=generator, device=generator.device, dtype=torch.float32)
