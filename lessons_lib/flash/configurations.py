"""Tile sizes for the Triton kernels, by device, type and head width: a small table kept by hand.

A larger tile of queries reads the keys less often, so tiles are as large as shared memory and registers allow. What
each entry asks of a device (shared memory, spilled registers, tensor-core instructions) is checked without one: the
tests compile every entry for compute capability 8.0, 9.0 and 10.0 and read the compiler's own figures.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """How one kernel cuts its matrices, and what it asks of the compiler.

    ``specialize`` gives loading and computing to different warps (Hopper and newer; it wants 4 warps).
    """

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int
    specialize: bool = False


class Configuration(NamedTuple):
    """One tile for each kernel."""

    attend: Tile
    attend_part: Tile
    key_value_gradients: Tile
    query_gradients: Tile


# Half precision. Keys: the widest head that the row is for. Values in the order of the kernels above.
AMPERE = {  # 163 KiB of shared memory
    64: Configuration(Tile(128, 128, 8, 2), Tile(16, 128, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 64, 8, 3), Tile(16, 64, 4, 3), Tile(32, 128, 8, 2), Tile(128, 64, 8, 2)),
    256: Configuration(Tile(64, 64, 4, 2), Tile(16, 32, 4, 3), Tile(32, 64, 8, 2), Tile(64, 64, 8, 2)),
}
HOPPER = {  # 227 KiB
    64: Configuration(Tile(128, 128, 8, 2), Tile(16, 128, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 128, 8, 2), Tile(16, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    256: Configuration(Tile(128, 64, 8, 2), Tile(16, 32, 4, 3), Tile(32, 64, 8, 2), Tile(128, 32, 8, 2)),
}
BLACKWELL = {  # 227 KiB
    64: Configuration(Tile(128, 128, 8, 2), Tile(16, 128, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 128, 8, 2), Tile(16, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    256: Configuration(Tile(128, 64, 8, 2), Tile(16, 32, 4, 3), Tile(32, 64, 8, 1), Tile(128, 32, 8, 2)),
}
SMALL = {  # 99 KiB: consumer devices, and any that this table does not know
    64: Configuration(Tile(128, 64, 4, 3), Tile(16, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 64, 8, 2), Tile(16, 64, 4, 2), Tile(32, 128, 8, 2), Tile(64, 64, 8, 2)),
    256: Configuration(Tile(64, 32, 8, 2), Tile(16, 32, 4, 2), Tile(16, 64, 8, 2), Tile(64, 32, 8, 1)),
}
# float32, any device. Each number is multiplied as the sum of two tf32 numbers, which takes twice the registers: even
# from the smallest tiles heads wider than 64 spill 1 to 5 KiB on the way back, on Hopper and newer.
SINGLE = {
    64: Configuration(Tile(64, 32, 4, 2), Tile(16, 32, 4, 2), Tile(32, 64, 8, 2), Tile(64, 16, 4, 2)),
    128: Configuration(Tile(16, 32, 4, 2), Tile(16, 32, 4, 2), Tile(16, 16, 4, 2), Tile(16, 32, 4, 2)),
    256: Configuration(Tile(16, 16, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 2), Tile(16, 16, 4, 1)),
}
# The interpreter's time goes by the number of tiles; these are unequal so that the tests meet every kind of edge.
INTERPRETED = Configuration(Tile(64, 32, 4, 1), Tile(16, 32, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1))


def configuration(d: int, itemsize: int, capability: tuple[int, int]) -> Configuration:
    """Return the tiles for heads of width ``d``, numbers of ``itemsize`` bytes and a device's compute capability.

    Raises:
        ValueError: if the head is wider than 256.
    """
    families = {(8, 0): AMPERE, (8, 7): AMPERE, (9, 0): HOPPER, (10, 0): BLACKWELL, (10, 3): BLACKWELL}
    table = SINGLE if itemsize == 4 else families.get(capability, SMALL)
    for width, tiles in table.items():
        if d <= width:
            return tiles
    raise ValueError(f"heads must be at most {max(table)} wide for the Triton kernels, got {d}")
