"""What the GPU's kernels are told of a mask: a band about the diagonal as two numbers, and how many keys there are."""

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from lessons_lib import rules
from lessons_lib.rules import Causal, Everything, Padding, Rule, Seen, Window, conjuncts


class Band(NamedTuple):
    r"""Query ``i`` stands at position :math:`p_i = i + m - n` and sees the keys close enough to it.

    .. math:: p_i - \text{left} \le j \le p_i + \text{right}

    ``None`` is no bound on that side. It is :class:`lessons_lib.rules.Band` with the sizes that the kernels need.
    """

    n: int
    m: int
    left: int | None
    right: int | None

    @classmethod
    def of(cls, n: int, m: int, *, is_causal: bool, window: int | None) -> "Band":
        """Translate the arguments of ``flash_attention``."""
        rule = (Causal() if is_causal else Everything()) & (Everything() if window is None else Window(window))
        found = as_band(rule, 1, n, m)
        assert found is not None
        return found[0]

    def keys(self, rows: range, length: int | None = None) -> range:
        """Return the keys that at least one of the rows sees, among the first ``length``."""
        seen = self._rule.keys(self._places(rows), self.m if length is None else length)
        return seen[0] if seen else range(0)

    def covers(self, rows: range, keys: range) -> bool:
        """Return whether every one of the rows sees every one of the keys."""
        return self._rule.sees(self._places(rows), keys) is Seen.ALL

    def mask(
        self, rows: range, keys: range, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "{len(rows)} {len(keys)}"]:
        """Return the tile of the mask, True where a row sees a key."""
        return self._rule.tile(self._places(rows), keys, device=device)

    @property
    def _rule(self) -> rules.Band:
        return rules.Band(self.left, self.right)

    def _places(self, rows: range) -> range:
        return range(rows.start + self.m - self.n, rows.stop + self.m - self.n)


def as_band(rule: Rule, b: int, n: int, m: int) -> tuple[Band, Tensor | None] | None:
    """Return the band and the key lengths over ``(b,)`` that a rule comes to, or None if it says anything else."""
    rest = [part for part in conjuncts(rule) if not isinstance(part, Padding)]
    band = rules.as_band(reduce(and_, rest, Everything()), n, m)
    if band is None or min(band.left or 0, band.right or 0) < 0:  # the kernels expect the diagonal inside
        return None
    return Band(n, m, band.left, band.right), lengths_in(rule, b)


def lengths_in(rule: Rule, b: int) -> Tensor | None:
    """Return how many keys each sequence has at most by the paddings that ``&`` joined, or None if there are none."""
    lengths = [part.lengths for part in conjuncts(rule) if isinstance(part, Padding)]
    if not lengths:
        return None
    return reduce(torch.minimum, [each.to(lengths[0].device) for each in lengths]).expand(b)
