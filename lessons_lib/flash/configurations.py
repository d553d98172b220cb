"""Tile sizes for the Triton kernels, by device, type and head width: a small table kept by hand.

A larger tile of queries reads the keys less often; a smaller one leaves room on a multiprocessor for a second program,
which computes exponentials while the first multiplies matrices. What each entry asks of a device (shared memory,
spilled registers, tensor-core instructions) is checked without one: the tests compile every default for compute
capability 8.0, 9.0 and 10.0 and read the compiler's own figures; ``benchmarks/compiled_kernels.py`` does so for every
candidate and every mask. Which candidate is the fastest only a device can say.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """How one kernel cuts its matrices, and what it asks of the compiler.

    ``specialize`` gives loading and computing to different warps, in ``attend`` (Hopper and newer; it wants 4 warps).
    ``branch`` lets ``key_value_gradients`` skip the mask of the tiles behind the diagonal, for a few registers (Triton
    3.6.0 makes straight code of it again, which is as right and no faster). With ``host`` the host describes the
    matrices, once for all programs, where keys have no lengths of their own; not with ``specialize``.
    """

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int
    specialize: bool = False
    branch: bool = False
    host: bool = False


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
    64: Configuration(Tile(128, 64, 8, 3), Tile(16, 128, 4, 3), Tile(64, 64, 4, 2, branch=True), Tile(128, 64, 8, 2)),
    128: Configuration(Tile(128, 128, 8, 3), Tile(16, 64, 4, 3), Tile(64, 64, 4, 2, branch=True), Tile(64, 64, 4, 2)),
    256: Configuration(Tile(128, 64, 8, 2), Tile(16, 32, 4, 3), Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
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
# Half precision led by a table: tiles divide its squares, 64 x 64. Four warps fill a tensor core's tile of 64 rows.
TABLED = {width: Configuration(*[Tile(64, 64, 4, 2)] * 4) for width in (64, 128)}
TABLED_AMPERE = TABLED | {256: Configuration(*[Tile(64, 64, 8, 2)] * 4)}
TABLED_HOPPER = TABLED | {
    256: Configuration(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(32, 64, 8, 2), Tile(64, 32, 8, 1))
}
TABLED_BLACKWELL = TABLED | {
    256: Configuration(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1))
}
TABLED_SMALL = TABLED | {
    256: Configuration(Tile(32, 64, 8, 1), Tile(32, 64, 8, 1), Tile(32, 32, 8, 1), Tile(32, 64, 8, 1))
}
# What else is worth timing: for each kernel the candidates that follow the default. Half precision, by the same widths.
AMPERE_OTHERS = {
    64: {"attend": (Tile(128, 64, 4, 3),), "query_gradients": (Tile(64, 64, 4, 2),)},
    128: {"attend": (Tile(128, 32, 4, 3),), "query_gradients": (Tile(64, 64, 4, 2),)},
}
HOPPER_OTHERS = {
    64: {
        "attend": (
            Tile(128, 128, 8, 2),
            Tile(128, 64, 8, 2),
            Tile(64, 128, 4, 2),
            Tile(256, 64, 16, 3),
            Tile(128, 64, 4, 3, specialize=True),
            Tile(128, 128, 4, 2, specialize=True),
            Tile(128, 128, 4, 3, specialize=True),
        ),
        "key_value_gradients": (
            Tile(64, 64, 4, 2),
            Tile(64, 64, 4, 3, branch=True),
            Tile(64, 128, 8, 2, branch=True),
            Tile(64, 128, 8, 2),
            Tile(128, 64, 8, 2, branch=True),
        ),
        "query_gradients": (Tile(64, 64, 4, 2), Tile(128, 64, 8, 3), Tile(64, 128, 4, 2)),
    },
    128: {
        "attend": (
            Tile(128, 128, 8, 2),
            Tile(128, 64, 8, 3),
            Tile(128, 64, 8, 4),
            Tile(64, 64, 4, 3),
            Tile(128, 64, 4, 3, specialize=True),
            Tile(128, 128, 4, 2, specialize=True),
        ),
        "key_value_gradients": (
            Tile(64, 64, 4, 2),
            Tile(64, 128, 8, 2, branch=True),
            Tile(64, 128, 8, 2),
            Tile(64, 128, 8, 3, branch=True),
            Tile(32, 128, 8, 3, branch=True),
        ),
        "query_gradients": (Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(128, 128, 8, 2)),
    },
    256: {
        "attend": (
            Tile(128, 32, 8, 3),
            Tile(128, 32, 4, 2, specialize=True),
            Tile(128, 64, 4, 2, specialize=True),
        ),
        "key_value_gradients": (Tile(32, 64, 8, 2),),
        "query_gradients": (Tile(64, 32, 4, 2), Tile(64, 64, 8, 2)),
    },
}
BLACKWELL_OTHERS = {
    64: {
        "attend": (Tile(128, 64, 4, 3), Tile(128, 128, 4, 3, specialize=True)),
        "query_gradients": (Tile(128, 64, 4, 2),),
    },
    128: {
        "attend": (Tile(128, 128, 8, 3),),
        "query_gradients": (Tile(128, 64, 4, 2), Tile(64, 64, 4, 2)),
    },
}
# The interpreter's time goes by the number of tiles; these are unequal so that the tests meet every kind of edge.
INTERPRETED = Configuration(Tile(64, 32, 4, 1), Tile(16, 32, 4, 1), Tile(32, 64, 4, 1, branch=True), Tile(64, 32, 4, 1))


FAMILIES = {  # by compute capability
    (8, 0): (AMPERE, AMPERE_OTHERS),
    (8, 7): (AMPERE, AMPERE_OTHERS),
    (9, 0): (HOPPER, HOPPER_OTHERS),
    (10, 0): (BLACKWELL, BLACKWELL_OTHERS),
    (10, 3): (BLACKWELL, BLACKWELL_OTHERS),
}
# What the host describes needs the copy engine: on 8.0 it spills 0.1 to 17 KB of registers.
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

    ``by_table`` is for the kernels of :mod:`lessons_lib.flash.table_kernels`, which decode nothing: their
    ``attend_part`` is not used.

    Raises:
        ValueError: if the head is wider than 256.
    """
    table, _ = _family(itemsize, capability)
    if by_table and itemsize < 4:
        table = TABLED_FAMILIES.get(capability, TABLED_SMALL)
    return table[_width(d, table)]


def candidates(kernel: str, d: int, itemsize: int, capability: tuple[int, int]) -> list[Tile]:
    """Return the tiles of one kernel that are worth timing, the one of :func:`configuration` first.

    Raises:
        ValueError: if there is no such kernel, or the head is wider than 256.
    """
    if kernel not in Configuration._fields:
        raise ValueError(f"kernel must be one of {', '.join(Configuration._fields)}, got {kernel!r}")
    table, others = _family(itemsize, capability)
    width = _width(d, table)
    default = getattr(table[width], kernel)
    by_host = itemsize < 4 and capability in WITH_COPY_ENGINE and kernel != "attend_part"
    return [default, *([default._replace(host=True)] if by_host else []), *others.get(width, {}).get(kernel, ())]


def _family(itemsize: int, capability: tuple[int, int]) -> tuple[dict, dict]:
    return (SINGLE, {}) if itemsize == 4 else FAMILIES.get(capability, (SMALL, {}))


def _width(d: int, table: dict) -> int:
    for width in table:
        if d <= width:
            return width
    raise ValueError(f"heads must be at most {max(table)} wide for the Triton kernels, got {d}")
