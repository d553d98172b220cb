"""Candidate tiles, and their notation on the command line."""

from collections.abc import Iterable

from lessons_lib.flash import configurations
from lessons_lib.flash.configurations import Configuration, Tile, configuration

KERNELS = Configuration._fields
CHOICES = set(Tile._field_defaults)  # the Boolean options of a tile
Tiles = dict[tuple[str, int], Tile]  # by kernel and width of the head
# The candidates if the library's list has no more than its default: those of Hopper, and these for decoding. Some of
# them do not fit on other devices, which is recorded.
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
    """Return the candidates, the library's default first; the library's own list if it has more than one entry."""
    kept = getattr(configurations, "candidates", None)
    listed = [] if kept is None else list(kept(kernel, width, 2, capability))
    if len(listed) > 1:
        return listed
    own = getattr(configuration(width, 2, capability), kernel)
    return [own, *(tile for tile in PROPOSED[kernel, width] if tile != own)]


def parse_tile(text: str) -> tuple[tuple[str, int], Tile]:
    """Parse ``attend:128=128,64,8,3``; Boolean options follow by name: ``attend:128=128,64,8,3,host``.

    Raises:
        ValueError: if the text has another form.
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
    """Return a tile in the notation of :func:`parse_tile`."""
    chosen = [name for name in sorted(CHOICES) if getattr(tile, name)]
    return f"{key[0]}:{key[1]}={','.join([*map(str, tile[:4]), *chosen])}"


def parse_tiles(texts: Iterable[str]) -> Tiles:
    """Parse several tiles; the last one for a kernel and a width counts."""
    return dict(map(parse_tile, texts))
