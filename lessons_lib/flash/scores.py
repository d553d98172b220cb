"""What becomes of a product ``q · k`` before the softmax, where the queries stand, and who can compute it."""

from typing import NamedTuple

import torch
from torch import Tensor

from lessons_lib.attention import check_changes
from lessons_lib.flash.inputs import described
from lessons_lib.rules import Rule


class Scores(NamedTuple):
    r"""The changes of a score, in the order and with the meaning of :mod:`lessons_lib.attention`.

    .. math:: s_{ij} = \operatorname{cap}\left(\tau\, q_i \cdot k_j\right) - \sigma_h\, |p_i - j|, \qquad
              A_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_k e^{s_{ik}}}
    """

    scale: float
    softcap: float | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether a score is the product and the scale, and nothing else."""
        return not self.changes

    @property
    def changes(self) -> list[str]:
        """The names of what else was asked for."""
        return [name for name in ("softcap", "slopes", "sinks") if getattr(self, name) is not None]

    def check(self, q: Tensor, m: int) -> None:
        """Refuse changes that do not fit the heads of these queries over ``(b, h, n, d)``.

        Raises:
            ValueError: as :func:`lessons_lib.attention.attention`.
        """
        if self.plain:
            return
        check_changes(q, q.new_empty(()).expand(*q.shape[:3], m), self.softcap, self.slopes, self.sinks)


def check_cache_lengths(cache_lengths: Tensor, b: int, m: int, rule: Rule, key_lengths: Tensor | None) -> None:
    """Refuse lengths that do not count the keys of each sequence, and what cannot be said beside them.

    Lengths on a GPU are not read here, for that would wait for it.

    Raises:
        ValueError: as :func:`lessons_lib.flash.flash_attention`.
    """
    if key_lengths is not None:
        raise ValueError(
            "key_lengths and cache_lengths must not both be given: the former hide keys and move no query, the latter "
            "move the queries to the end of each sequence's keys"
        )
    if cache_lengths.dtype not in (torch.int32, torch.int64) or cache_lengths.shape != (b,):
        raise ValueError(
            f"cache_lengths must be integers over (batch,) = ({b},), got {cache_lengths.dtype} over "
            f"{tuple(cache_lengths.shape)}"
        )
    if rule.device is not None:
        raise ValueError(
            "with cache_lengths the mask must be a rule about positions, such as Causal() & Window(256): one made from "
            f"a tensor was made for one number of keys, got {described(rule)}"
        )
    if cache_lengths.device.type == "cpu":
        lengths_of(cache_lengths, m)


def lengths_of(cache_lengths: Tensor, m: int) -> list[int]:
    """Read the lengths.

    Raises:
        ValueError: if one is negative or above the number of keys.
    """
    lengths = cache_lengths.tolist()
    if not all(0 <= length <= m for length in lengths):
        raise ValueError(f"cache_lengths must be in 0 .. m = {m}, got {lengths}")
    return lengths
