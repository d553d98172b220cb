"""A rule that is a band about the diagonal, as the Triton kernels take it: two numbers and the key lengths."""

from functools import reduce
from operator import and_
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from lessons_lib.attention import rules
from lessons_lib.attention.rules import Causal, Coverage, Full, Padding, Rule, Window, conjuncts


class KernelBand(NamedTuple):
    r"""A band about the diagonal, for ``n`` queries and ``m`` keys; query ``i`` is at position :math:`p_i = i + m - n`.

    The query attends to the keys ``j`` with

    .. math:: p_i - \text{left} \le j \le p_i + \text{right}

    ``None`` means that there is no bound on that side. The class is :class:`lessons_lib.attention.rules.Band` with the
    sizes that the kernels need.
    """

    n: int
    m: int
    left: int | None
    right: int | None

    @classmethod
    def of(cls, n: int, m: int, *, is_causal: bool, window: int | None) -> "KernelBand":
        """Return the band of these options of ``flash_attention``."""
        rule = (Causal() if is_causal else Full()) & (Full() if window is None else Window(window))
        found = kernel_band(rule, 1, n, m)
        assert found is not None
        return found[0]

    def key_range(self, rows: range, length: int | None = None) -> range:
        """Return the keys, among the first ``length``, to which at least one of the rows attends."""
        ranges = self._rule.key_ranges(self._positions(rows), self.m if length is None else length)
        return ranges[0] if ranges else range(0)

    def covers(self, rows: range, keys: range) -> bool:
        """Return whether every one of the rows attends to every one of the keys."""
        return self._rule.coverage(self._positions(rows), keys) is Coverage.FULL

    def mask(
        self, rows: range, keys: range, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "{len(rows)} {len(keys)}"]:
        """Return the tile of the mask, True where a row attends to a key."""
        return self._rule.tile(self._positions(rows), keys, device=device)

    @property
    def _rule(self) -> rules.Band:
        return rules.Band(self.left, self.right)

    def _positions(self, rows: range) -> range:
        return range(rows.start + self.m - self.n, rows.stop + self.m - self.n)


def kernel_band(rule: Rule, b: int, n: int, m: int) -> tuple[KernelBand, Tensor | None] | None:
    """Return a rule as a band and key lengths over ``(b,)``, or None if the rule is not of this form."""
    rest = [part for part in conjuncts(rule) if not isinstance(part, Padding)]
    band = rules.as_band(reduce(and_, rest, Full()), n, m)
    if band is None or min(band.left or 0, band.right or 0) < 0:  # the kernels expect the diagonal inside
        return None
    return KernelBand(n, m, band.left, band.right), padding_lengths(rule, b)


def padding_lengths(rule: Rule, b: int) -> Tensor | None:
    """Return the smallest length of each sequence among the ``Padding`` rules that ``&`` joined, None without any."""
    lengths = [part.lengths for part in conjuncts(rule) if isinstance(part, Padding)]
    if not lengths:
        return None
    return reduce(torch.minimum, [each.to(lengths[0].device) for each in lengths]).expand(b)
