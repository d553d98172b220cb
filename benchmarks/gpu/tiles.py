"""Tiles to try: which are worth timing, and how they are written on a command line."""

from collections.abc import Iterable

from lessons_lib.flash import configurations
from lessons_lib.flash.configurations import Configuration, Tile, configuration

KERNELS = Configuration._fields
CHOICES = set(Tile._field_defaults)  # what a tile does or does not, beside its sizes
Tiles = dict[tuple[str, int], Tile]  # by kernel and width of the head
# What to time beside the library's own where its list holds no other: Hopper's, and for decoding these. Elsewhere some
# will not fit, and are recorded as such.
PROPOSED: dict[tuple[str, int], tuple[Tile, ...]] = {
    (kernel, width): tuple(configurations.candidates(kernel, width, 2, (9, 0))[1:])
    for kernel in KERNELS
    if kernel != "attend_part"
    for width in (64, 128, 256)
} | {
    ("attend_part", 64): (Tile(16, 64, 4, 3), Tile(16, 128, 4, 4), Tile(16, 128, 8, 3)),
    ("attend_part", 128): (Tile(16, 64, 4, 4), Tile(16, 128, 4, 3), Tile(16, 128, 8, 2)),
    ("attend_part", 256): (Tile(16, 64, 4, 2), Tile(16, 32, 4, 4)),
}


def candidates(kernel: str, width: int, capability: tuple[int, int]) -> list[Tile]:
    """The tiles worth timing, the library's own first; the library's list where it keeps one that is longer."""
    kept = getattr(configurations, "candidates", None)
    listed = [] if kept is None else list(kept(kernel, width, 2, capability))
    if len(listed) > 1:
        return listed
    own = getattr(configuration(width, 2, capability), kernel)
    return [own, *(tile for tile in PROPOSED[kernel, width] if tile != own)]


def parse_tile(text: str) -> tuple[tuple[str, int], Tile]:
    """Read ``attend:128=128,64,8,3``; what a tile chooses to do follows by name: ``attend:128=128,64,4,3,specialize``.

    Raises:
        ValueError: if it says anything else.
    """
    where, _, said = text.partition("=")
    kernel, _, width = where.partition(":")
    sizes, chosen = said.split(",")[:4], said.split(",")[4:]
    numbers = [width, *sizes]
    if kernel not in KERNELS or len(numbers) != 5 or not all(map(str.isdigit, numbers)) or not set(chosen) <= CHOICES:
        raise ValueError(
            f"a tile is KERNEL:WIDTH=QUERIES,KEYS,WARPS,STAGES with KERNEL one of {', '.join(KERNELS)}, "
            f"and then any of {', '.join(sorted(CHOICES))}, got {text!r}"
        )
    block_q, block_k, num_warps, num_stages = map(int, sizes)
    return (kernel, int(width)), Tile(block_q, block_k, num_warps, num_stages, **dict.fromkeys(chosen, True))


def tile_text(key: tuple[str, int], tile: Tile) -> str:
    """Write a tile as :func:`parse_tile` reads it."""
    chosen = [name for name in sorted(CHOICES) if getattr(tile, name)]
    return f"{key[0]}:{key[1]}={','.join([*map(str, tile[:4]), *chosen])}"


def parse_tiles(texts: Iterable[str]) -> Tiles:
    """Read several; the last one for a kernel and a width holds."""
    return dict(map(parse_tile, texts))
