"""Tile sizes for the Triton kernels, by device, type and head width: a small table maintained by hand.

A larger tile of queries reads the keys less often. A smaller tile leaves room on a multiprocessor for a second program,
which computes exponentials while the first one multiplies matrices. What each entry needs from a device (shared memory,
spilled registers, tensor-core instructions) is checked without a GPU: the tests compile every default for compute
capability 8.0, 9.0 and 10.0 and read the compiler's figures; ``benchmarks/compiled_kernels.py`` does so for every
candidate and every mask. Which candidate is the fastest can be measured on a device only.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """The tile of one kernel and its compiler options.

    With ``host`` the host makes the descriptors of the matrices, once for all programs, if sequences have no key
    lengths.
    """

    block_q: int  # queries
    block_k: int  # keys
    num_warps: int  # of one program
    num_stages: int  # tiles that are loaded ahead, in Triton's pipeline
    host: bool = False


class Configuration(NamedTuple):
    """One tile for each kernel."""

    attend: Tile
    attend_part: Tile
    key_value_gradients: Tile
    query_gradients: Tile


# Half precision. The key is the widest head for which an entry is used. Tiles are in the order of Configuration.
AMPERE = {  # 163 KiB of shared memory
    64: Configuration(Tile(128, 128, 8, 2), Tile(16, 128, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 64, 8, 3), Tile(16, 64, 4, 3), Tile(32, 128, 8, 2), Tile(128, 64, 8, 2)),
    256: Configuration(Tile(64, 64, 4, 2), Tile(16, 32, 4, 3), Tile(32, 64, 8, 2), Tile(64, 64, 8, 2)),
}
HOPPER = {  # 227 KiB; half precision was timed on an H100, with Triton 3.6
    64: Configuration(Tile(64, 128, 4, 2), Tile(16, 128, 4, 3), Tile(64, 64, 4, 2, host=True), Tile(64, 64, 4, 2)),
    128: Configuration(Tile(128, 128, 8, 3, host=True), Tile(16, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    256: Configuration(Tile(128, 64, 8, 2, host=True), Tile(16, 32, 4, 3), Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
}
BLACKWELL = {  # 227 KiB
    64: Configuration(Tile(128, 128, 8, 2), Tile(16, 128, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 128, 8, 2), Tile(16, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    256: Configuration(Tile(128, 64, 8, 2), Tile(16, 32, 4, 3), Tile(32, 64, 8, 1), Tile(128, 32, 8, 2)),
}
OTHER_DEVICES = {  # 99 KiB: consumer devices, and all devices without an entry in FAMILIES
    64: Configuration(Tile(128, 64, 4, 3), Tile(16, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 64, 8, 2), Tile(16, 64, 4, 2), Tile(32, 128, 8, 2), Tile(64, 64, 8, 2)),
    256: Configuration(Tile(64, 32, 8, 2), Tile(16, 32, 4, 2), Tile(16, 64, 8, 2), Tile(64, 32, 8, 1)),
}
# float32, any device. Each number is multiplied as the sum of two tf32 numbers, which takes twice the registers. Even
# with the smallest tiles, heads wider than 64 spill 1 to 5 KiB in the backward pass, on Hopper and newer.
FLOAT32 = {
    64: Configuration(Tile(64, 32, 4, 2), Tile(16, 32, 4, 2), Tile(32, 64, 8, 2), Tile(64, 16, 4, 2)),
    128: Configuration(Tile(16, 32, 4, 2), Tile(16, 32, 4, 2), Tile(16, 16, 4, 2), Tile(16, 32, 4, 2)),
    256: Configuration(Tile(16, 16, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 2), Tile(16, 16, 4, 1)),
}
# Half precision with a tile table: tiles divide its squares, 64 x 64. Four warps fill a tensor-core tile of 64 rows.
TABLED = {width: Configuration(*[Tile(64, 64, 4, 2)] * 4) for width in (64, 128)}
TABLED_AMPERE = TABLED | {256: Configuration(*[Tile(64, 64, 8, 2)] * 4)}
TABLED_HOPPER = TABLED | {
    256: Configuration(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(32, 64, 8, 2), Tile(64, 32, 8, 1))
}
TABLED_BLACKWELL = TABLED | {
    256: Configuration(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1))
}
TABLED_OTHER_DEVICES = TABLED | {
    256: Configuration(Tile(32, 64, 8, 1), Tile(32, 64, 8, 1), Tile(32, 32, 8, 1), Tile(32, 64, 8, 1))
}
# Further candidates worth timing, for each kernel, after the default. Half precision, by the same widths.
AMPERE_OTHERS = {
    64: {"attend": (Tile(128, 64, 4, 3),), "query_gradients": (Tile(64, 64, 4, 2),)},
    128: {"attend": (Tile(128, 32, 4, 3),), "query_gradients": (Tile(64, 64, 4, 2),)},
}
HOPPER_OTHERS = {
    64: {
        "attend": (Tile(128, 64, 8, 3), Tile(128, 64, 8, 2), Tile(64, 64, 4, 3), Tile(64, 128, 4, 3)),
        "key_value_gradients": (Tile(64, 64, 4, 3), Tile(64, 128, 8, 2)),
        "query_gradients": (Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(64, 128, 4, 2)),
    },
    128: {
        "attend": (Tile(128, 128, 8, 2), Tile(128, 64, 8, 3), Tile(128, 64, 8, 4), Tile(64, 64, 4, 3)),
        "key_value_gradients": (Tile(64, 128, 8, 2), Tile(64, 128, 8, 3)),
        "query_gradients": (Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(128, 128, 8, 2)),
    },
    256: {
        "attend": (Tile(128, 32, 8, 3),),
        "key_value_gradients": (Tile(32, 64, 8, 2),),
        "query_gradients": (Tile(64, 32, 4, 2), Tile(64, 64, 8, 2)),
    },
}
BLACKWELL_OTHERS = {
    64: {
        "attend": (Tile(128, 64, 4, 3),),
        "query_gradients": (Tile(128, 64, 4, 2),),
    },
    128: {
        "attend": (Tile(128, 128, 8, 3),),
        "query_gradients": (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2)),
    },
}
# The interpreter's time grows with the number of tiles. Sizes differ, so that the tests meet every kind of edge.
INTERPRETED = Configuration(Tile(64, 32, 4, 1), Tile(16, 32, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1))


FAMILIES = {  # by compute capability
    (8, 0): (AMPERE, AMPERE_OTHERS),
    (8, 7): (AMPERE, AMPERE_OTHERS),
    (9, 0): (HOPPER, HOPPER_OTHERS),
    (10, 0): (BLACKWELL, BLACKWELL_OTHERS),
    (10, 3): (BLACKWELL, BLACKWELL_OTHERS),
}
# Descriptors from the host need the copy engine: on 8.0 they spill 0.1 to 17 KB of registers.
WITH_COPY_ENGINE = {(9, 0), (10, 0), (10, 3)}
TABLED_FAMILIES = {
    (8, 0): TABLED_AMPERE,
    (8, 7): TABLED_AMPERE,
    (9, 0): TABLED_HOPPER,
    (10, 0): TABLED_BLACKWELL,
    (10, 3): TABLED_BLACKWELL,
}


def configuration(d: int, itemsize: int, capability: tuple[int, int], *, by_table: bool = False) -> Configuration:
    """Return the tiles for heads of width ``d``, numbers of ``itemsize`` bytes and a device's compute capability.

    ``by_table`` is for the kernels of :mod:`lessons_lib.flash.block_mask_kernels`. They have no kernel for decoding, so
    their ``attend_part`` is not used.

    >>> configuration(128, 2, (9, 0)).attend
    Tile(block_q=128, block_k=128, num_warps=8, num_stages=3, host=True)

    Raises:
        ValueError: if the head is wider than 256.
    """
    table, _ = _family(itemsize, capability)
    if by_table and itemsize < 4:
        table = TABLED_FAMILIES.get(capability, TABLED_OTHER_DEVICES)
    return table[_width(d, table)]


def candidates(kernel: str, d: int, itemsize: int, capability: tuple[int, int]) -> list[Tile]:
    """Return the tiles of one kernel that are worth timing; the tile of :func:`configuration` is the first.

    Raises:
        ValueError: if there is no such kernel, or the head is wider than 256.
    """
    if kernel not in Configuration._fields:
        raise ValueError(f"kernel must be one of {', '.join(Configuration._fields)}, got {kernel!r}")
    table, others = _family(itemsize, capability)
    width = _width(d, table)
    default = getattr(table[width], kernel)
    choice = itemsize < 4 and capability in WITH_COPY_ENGINE and kernel != "attend_part"
    return [
        default,
        *([default._replace(host=not default.host)] if choice else []),
        *others.get(width, {}).get(kernel, ()),
    ]


def _family(itemsize: int, capability: tuple[int, int]) -> tuple[dict, dict]:
    return (FLOAT32, {}) if itemsize == 4 else FAMILIES.get(capability, (OTHER_DEVICES, {}))


def _width(d: int, table: dict) -> int:
    for width in table:
        if d <= width:
            return width
    raise ValueError(f"heads must be at most {max(table)} wide for the Triton kernels, got {d}")
