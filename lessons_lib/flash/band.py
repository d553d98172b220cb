"""What the GPU's kernels are told of a mask: a band about the diagonal as two numbers, and how many keys there are."""

from typing import NamedTuple

import torch
from torch import Tensor

from lessons_lib import rules
from lessons_lib.rules import Padding, Rule, conjuncts


class Band(NamedTuple):
    r"""Query ``i`` stands at position :math:`p_i = i + m - n` and sees the keys close enough to it.

    .. math:: p_i - \text{left} \le j \le p_i + \text{right}

    ``None`` is no bound on that side, and a bound that hides nothing is ``None``: a single causal query, at the last
    key, sees all.
    """

    n: int
    m: int
    left: int | None
    right: int | None

    @classmethod
    def of(cls, n: int, m: int, *, is_causal: bool, window: int | None) -> "Band":
        """Translate the arguments of ``flash_attention``: a window counts the query's own key, a distance does not."""
        reach = None if window is None else window - 1
        return cls.between(n, m, reach, 0 if is_causal else reach)

    @classmethod
    def between(cls, n: int, m: int, left: int | None, right: int | None) -> "Band":
        """Leave out a bound that hides nothing from ``n`` queries on ``m`` keys."""
        return cls(
            n,
            m,
            left=None if left is None or left >= m - 1 else left,
            right=None if right is None or right >= n - 1 else right,
        )


def as_band(rule: Rule, b: int, n: int, m: int) -> tuple[Band, Tensor | None] | None:
    """Return the band and the key lengths over ``(b,)`` that a rule comes to, or None if it says anything else."""
    left = right = lengths = None
    for part in conjuncts(rule):
        if isinstance(part, rules.Band):
            left, right = _smaller(left, part.left), _smaller(right, part.right)
        elif isinstance(part, Padding):
            mine = part.lengths.expand(b)
            lengths = mine if lengths is None else torch.minimum(lengths, mine.to(lengths.device))
        else:
            return None
    if min(left or 0, right or 0) < 0:  # the diagonal lies outside: the kernels expect it inside
        return None
    return Band.between(n, m, left, right), lengths


def _smaller(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
