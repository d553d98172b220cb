r"""Dropout of attention weights without a stored mask: whether a weight is kept is a function of its place [1]_ [2]_.

The number of the weight of query :math:`i` and key :math:`j` in head :math:`h` of sequence :math:`b` is

.. math:: u_{bhij} = d(d(d(d(\text{seed}, b), h), i), j), \qquad d(s, t) = \operatorname{mix}(s + (t + 1)\, \gamma),

where :math:`d(s, 0), d(s, 1), \dots` is the stream of the generator SplitMix64 from state :math:`s`, and
:math:`\gamma` is an odd constant. The weight is kept if :math:`u` is in the upper :math:`1 - p` of the range of 64-bit
integers. So the forward and the backward pass agree for tiles of any sizes, and nothing is saved but the seed.

.. [1] Steele et al., *Fast Splittable Pseudorandom Number Generators*, 2014. doi:10.1145/2660193.2660195.
.. [2] Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3*, 2011. doi:10.1145/2063384.2063405.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.flash.tile_shapes import HeadBlock
from lessons_lib.foundations.validation import check_fraction, check_size

_GAMMA = 0x9E3779B97F4A7C15 - 2**64  # constants above 2^63 as signed numbers, which wrap around in products
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def dropout_mask(
    seed: int | Int[Tensor, ""],
    dropout_p: float,
    b: int,
    h: int,
    n: int,
    m: int,
    *,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "{b} {h} {n} {m}"]:
    """Return the mask that :func:`~lessons_lib.flash.interface.flash_attention` drops weights by: True is kept.

    The kept weights are divided by ``1 - dropout_p``. This is the specification, and takes ``b * h * n * m`` bytes.

    >>> mask = dropout_mask(3, 0.25, b=2, h=4, n=50, m=60)
    >>> mask.shape, 0.73 < mask.double().mean() < 0.77
    (torch.Size([2, 4, 50, 60]), tensor(True))
    >>> torch.equal(dropout_mask(3, 0.25, b=1, h=2, n=9, m=7), mask[:1, :2, :9, :7])  # a function of the place
    True

    Raises:
        ValueError: if the probability is not in ``[0, 1)``, a size is not positive or the seed is not one integer.
    """
    check_fraction("dropout_p", dropout_p)
    for name, size in {"b": b, "h": h, "n": n, "m": m}.items():
        check_size(name, size, at_least=1)
    seed = seed_tensor(seed, torch.device("cpu" if device is None else device))
    sequences, heads, rows, keys = (torch.arange(size, device=seed.device) for size in (b, h, n, m))
    return _keeps(_row_states(seed, sequences[:, None, None], heads[:, None], rows)[..., None], keys, dropout_p)


def seed_tensor(seed: int | Tensor | None, device: torch.device) -> Int[Tensor, ""]:
    """Return a seed as a tensor on the device; None draws one from PyTorch's generator for the CPU.

    Raises:
        ValueError: if the seed is not one integer of 64 bits.
    """
    if seed is None:
        return torch.randint(2**63 - 1, (), device="cpu").to(device)
    if isinstance(seed, Tensor):
        if seed.dtype not in (torch.int32, torch.int64) or seed.numel() != 1:
            raise ValueError(f"dropout_seed must be one integer, got {seed.dtype} over {tuple(seed.shape)}")
        return seed.reshape(()).to(device, torch.int64)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"dropout_seed must be an integer of 64 bits, got {seed!r}")
    return torch.tensor(seed, device=device)


class Dropout(NamedTuple):
    """The dropout of some heads of one sequence, tile by tile."""

    p: float
    states: Int[Tensor, "g n group"]  # of the rows' streams
    first_position: int  # the position of the first query
    first_key: int  # the place of the sequence's first key among all keys

    @classmethod
    def of(cls, part: HeadBlock, seeds: Int[Tensor, "r"], p: float, shape: tuple[int, int], b: int) -> "Dropout":
        """Return the dropout of some heads of a sequence, of key/value heads and groups ``shape``; b is the batch."""
        heads = torch.arange(shape[0] * shape[1], device=seeds.device).view(shape)[part.heads]
        rows = torch.arange(part.n, device=seeds.device)
        sequence = torch.tensor(part.sequence % b, device=seeds.device)
        states = _row_states(part.entry(seeds), sequence, heads[:, None], rows[:, None])
        return cls(p, states, part.first_position, part.keys.start)

    def keeps(self, positions: range, keys: range) -> Bool[Tensor, "g rows keys"]:
        """Return which weights of a tile are kept."""
        rows = self.states[:, positions.start - self.first_position : positions.stop - self.first_position]
        first = self.first_key
        places = torch.arange(keys.start + first, keys.stop + first, device=rows.device)
        return _keeps(rows.flatten(1, 2)[..., None], places, self.p)


def _row_states(seed: Tensor, sequence: Tensor, head: Tensor, row: Tensor) -> Tensor:
    return _draw(_draw(_draw(seed, sequence), head), row)


def _keeps(states: Tensor, keys: Tensor, p: float) -> Tensor:
    return _draw(states, keys) >= min(round(p * 2**64), 2**64 - 1) - 2**63


def _draw(state: Tensor, index: Tensor) -> Tensor:
    """Return number ``index`` of the stream of SplitMix64 from a state."""
    x = (index + 1) * _GAMMA + state
    x = _xor_shifted(x, 30) * _FIRST
    x = _xor_shifted(x, 27) * _SECOND
    return _xor_shifted(x, 31)


def _xor_shifted(x: Tensor, bits: int) -> Tensor:
    """Return ``x ^ (x >> bits)`` of the number without sign."""
    return x ^ ((x >> bits) & (2 ** (64 - bits) - 1))
