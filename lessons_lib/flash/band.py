"""Which keys a query sees on the flash path: a band about the diagonal, held as two numbers instead of ``n x m``.

Every question that a kernel asks about its mask is arithmetic on these numbers: which keys a block of queries needs
at all, and whether a tile of scores lies wholly inside the band (then nothing in it has to be hidden).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor


class Band(NamedTuple):
    r"""Query ``i`` stands at position :math:`p_i = i + m - n` and sees the keys close enough to it.

    .. math:: p_i - \text{left} \le j \le p_i + \text{right}

    So the last query stands at the last key, as when decoding with a cache. ``None`` is no bound on that side, and a
    bound that hides nothing is ``None``: a single causal query, at the last key, sees all.
    """

    n: int
    m: int
    left: int | None
    right: int | None

    @classmethod
    def of(cls, n: int, m: int, *, is_causal: bool, window: int | None) -> "Band":
        """Translate the arguments of ``flash_attention``: a window counts the query's own key, a distance does not."""
        left = right = None if window is None else window - 1
        right = 0 if is_causal else right
        return cls(
            n,
            m,
            left=None if left is None or left >= m - 1 else left,
            right=None if right is None or right >= n - 1 else right,
        )

    def keys(self, rows: range, length: int | None = None) -> range:
        """Return the keys that at least one of the rows sees, among the first ``length``."""
        first, last = rows.start + self.m - self.n, rows.stop - 1 + self.m - self.n
        length = self.m if length is None else length
        start = 0 if self.left is None else max(first - self.left, 0)
        stop = length if self.right is None else min(last + self.right + 1, length)
        return range(start, max(start, stop))

    def covers(self, rows: range, keys: range) -> bool:
        """Return whether every one of the rows sees every one of the keys."""
        first, last = rows.start + self.m - self.n, rows.stop - 1 + self.m - self.n
        return (self.left is None or last - self.left <= keys.start) and (
            self.right is None or keys.stop - 1 <= first + self.right
        )

    def mask(
        self, rows: range, keys: range, *, device: torch.device | str | None = None
    ) -> Bool[Tensor, "{len(rows)} {len(keys)}"]:
        """Return the tile of the mask, True where a row sees a key."""
        i = torch.arange(rows.start, rows.stop, device=device)[:, None] + self.m - self.n
        j = torch.arange(keys.start, keys.stop, device=device)[None, :]
        seen = torch.ones(len(rows), len(keys), dtype=torch.bool, device=device)
        if self.left is not None:
            seen &= j >= i - self.left
        if self.right is not None:
            seen &= j <= i + self.right
        return seen
