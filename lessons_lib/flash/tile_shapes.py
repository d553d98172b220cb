"""How the tiles of :mod:`lessons_lib.flash.tiled` lie in memory: their sizes, their buffers, and views of tensors.

Words in this file and its users: a *row* is one query of one head; the query heads of a group share a key/value head,
and their rows lie in one matrix; a *position* is that of a query among the keys.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.attention.rules import Coverage, Rule
from lessons_lib.foundations.validation import promote_half

# Tall tiles are the fastest. Where a rule hides pairs, half of a tile on the diagonal is wasted: there tiles are lower.
ROWS, MASKED_ROWS, KEYS = 1024, 256, 256
# Scores computed at once, of one head or of several; half as many in the backward pass, which holds their gradients
# too: 1 MiB of float32, which stays in the second-level cache.
TILE_SCORES = ROWS * KEYS


class TileSize(NamedTuple):
    """The size of the tiles of one sequence."""

    positions: int  # queries of each head
    keys: int
    is_masked: bool  # whether the rule hides any pair of the sequence


def tile_size(rule: Rule, query: Tensor, key: Tensor, n_scores: int) -> TileSize:
    """Return the size of tiles of at most ``n_scores`` scores, for queries over ``(…, h / g, n, d)``."""
    group, n, m = *query.shape[-3:-1], key.shape[-2]
    is_masked = rule.coverage(range(m - n, m), range(m)) is not Coverage.FULL
    positions = max(1, min(n, (MASKED_ROWS if is_masked else ROWS) // group))
    rows = positions * group
    keys = max(KEYS, MASKED_ROWS * KEYS // rows)  # few queries take more keys at once
    return TileSize(positions, max(1, min(m, keys, n_scores // rows)), is_masked)


class TileBuffer:
    """Memory for one tile of scores of all heads; every tile uses the same memory."""

    def __init__(self, query: Tensor, size: TileSize) -> None:
        self.memory = torch.empty(
            math.prod((*query.shape[:2], size.positions, size.keys)),
            dtype=accumulation_dtype(query),
            device=query.device,
        )
        self.views: dict[tuple[int, ...], Tensor] = {}

    def tile(self, q: Tensor, keys: range) -> Tensor:
        """Return the memory as a tile of the rows of ``q`` and these keys."""
        size = q.shape[1], len(keys)
        if size not in self.views:
            shape = len(q), *size
            self.views[size] = self.memory[: math.prod(shape)].view(shape)
        return self.views[size]


def query_blocks(query: Tensor, key: Tensor, size: TileSize) -> Iterator[tuple[slice, range, slice]]:
    """Yield each block of queries as rows of :func:`flatten_group`, as positions among the keys, and as a slice."""
    _, group, n, _ = query.shape
    offset = key.shape[1] - n  # the last query is at the position of the last key
    for start in range(0, n, size.positions):
        stop = min(start + size.positions, n)
        yield slice(start * group, stop * group), range(start + offset, stop + offset), slice(start, stop)


class HeadBlock(NamedTuple):
    """Some key/value heads of one sequence, computed together, and the keys that the sequence has."""

    sequence: int
    n_sequences: int
    heads: slice
    keys: range
    n: int  # queries of each head

    @property
    def first_position(self) -> int:
        """The position of the first query among the keys: the last one is at the position of the last key."""
        return len(self.keys) - self.n

    def entry(self, shared: Tensor) -> Tensor:
        """Return the sequence's entry in a tensor with one entry for each run of consecutive sequences, or for all."""
        return shared[self.sequence * len(shared) // self.n_sequences]

    def of(self, tensor: Tensor) -> Tensor:
        """View these heads and keys of keys or values over ``(b, g, m, …)``."""
        return tensor[self.sequence, self.heads, self.keys.start : self.keys.stop]


def head_blocks(
    queries: Tensor, key: Tensor, spans: list[tuple[int, int]], rule: Rule, n_scores: int
) -> Iterator[HeadBlock]:
    """Yield blocks of key/value heads whose tiles have at most ``n_scores`` scores together, sequence by sequence.

    The spans are the first key of each sequence and the end of its keys; they are repeated for further sequences.
    """
    b, n_heads, group, n, _ = queries.shape
    size = tile_size(rule, queries, key, n_scores)
    step = max(1, n_scores // (group * size.positions * size.keys))
    for sequence, start in product(range(b), range(0, n_heads, step)):
        keys = range(*spans[sequence % len(spans)])
        yield HeadBlock(sequence, b, slice(start, min(start + step, n_heads)), keys, n)


def by_key_head(tensor: Tensor, key: Tensor) -> Tensor:
    """View ``(b, h, n, …)`` as ``(b, g, h / g, n, …)``: the query heads of a group share a key/value head."""
    return tensor.unflatten(1, (key.shape[1], -1))


def flatten_group(tensor: Tensor) -> Tensor:
    """Return ``(g, h / g, n, …)`` as ``(g, n h / g, …)``: position by position, the queries of the group's heads."""
    return promote_half(tensor).transpose(1, 2).flatten(1, 2)


def unflatten_group(matrices: Tensor, out: Tensor) -> None:
    """Undo :func:`flatten_group`, into ``out``."""
    out.copy_(matrices.unflatten(1, (-1, out.shape[1])).transpose(1, 2))


def block_of(tensor: Tensor, block: slice) -> Tensor:
    """View a block of queries of ``(g, h / g, n, …)`` with the axes of :func:`split_rows`."""
    return tensor[:, :, block].transpose(1, 2)


def split_rows(tile: Tensor, positions: range) -> Tensor:
    """View a tile over ``(g, rows, …)`` as ``(g, positions, h / g, …)``."""
    return tile.unflatten(1, (len(positions), -1))


def kv_blocks(*tensors: Tensor) -> Callable[[range], tuple[Tensor, ...]]:
    """Return a function from keys to the blocks of these tensors, in at least float32; each block is sliced once."""
    promoted = [promote_half(x) for x in tensors]
    blocks: dict[tuple[int, int], tuple[Tensor, ...]] = {}  # PyTorch's compiler does not follow functools.cache

    def block(keys: range) -> tuple[Tensor, ...]:
        ends = keys.start, keys.stop
        if ends not in blocks:
            blocks[ends] = tuple(x[:, keys.start : keys.stop] for x in promoted)
        return blocks[ends]

    return block


def with_ones(tensor: Tensor) -> Tensor:
    """Append a one to each vector."""
    return pad(promote_half(tensor), (0, 1), value=1.0)


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type in which a tensor's numbers are added up: float32 for half precision."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
