"""Random numbers for still pictures, equal to those of ``static/arithmetic.js``."""

import math
from collections.abc import Iterator


def uniform(seed: int) -> Iterator[float]:
    """Yield uniform random numbers in (0, 1) from the generator mulberry32, as in ``static/arithmetic.js``."""
    state = seed
    while True:
        state = (state + 0x6D2B79F5) & 0xFFFFFFFF
        z = (state ^ state >> 15) * (state | 1) & 0xFFFFFFFF
        z ^= (z + ((z ^ z >> 7) * (z | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF
        yield ((z ^ z >> 14) + 0.5) / 2**32


def normal(random: Iterator[float]) -> float:
    """Return one standard normal number, made from two uniform ones (Box and Muller)."""
    return math.sqrt(-2 * math.log(next(random))) * math.cos(2 * math.pi * next(random))
