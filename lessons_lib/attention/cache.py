"""KV caches: the keys and values of earlier positions, kept so that decoding computes each of them once.

:class:`KVCache` keeps every position; :class:`StreamingCache` keeps a fixed number of them. A cache belongs to one
layer, a :class:`~lessons_lib.attention.multihead.MultiHeadAttention`, and to one batch of sequences.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.attention.rules import Rule
from lessons_lib.foundations.validation import check_size, values_can_be_read


class KVCache:
    """The keys and values of all positions that one layer has processed.

    The cache holds two tensors over ``(b, g, n, d_head)``. Each position takes ``2 * g * d_head`` numbers in each
    sequence and each layer, whatever the number of query heads; grouped-query attention makes ``g`` small to save this
    memory. Keys are stored as the queries meet them, after ``process_qk`` (for instance with their rotation applied).

    Without gradients, keys and values are written into a buffer that doubles when it is full, so that the cost of
    appending a position does not grow with the length. The buffer takes up to twice the memory of the positions in it.
    While gradients are recorded, every ``append`` makes new tensors instead, since a graph may still need the old ones.
    A copy (``copy.copy``) can be continued independently of the original.

    ::

        >>> cache = KVCache()
        >>> k, v = cache.append(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8))  # two sequences, four heads
        >>> k, v = cache.append(torch.randn(2, 4, 1, 8), torch.randn(2, 4, 1, 8))
        >>> k.shape, len(cache)
        (torch.Size([2, 4, 6, 8]), 6)
    """

    def __init__(self) -> None:
        self._buffer: tuple[Tensor, Tensor] | None = None
        self._length = 0

    def __len__(self) -> int:
        """Return the number of positions in the cache."""
        return self._length

    def __copy__(self) -> "KVCache":
        """Return a cache that shares the stored positions, but not the free rows of the buffer behind them.

        The copy allocates a buffer of its own when it is appended to.
        """
        other = type(self)()
        other._buffer, other._length = self.tensors, self._length
        return other

    @property
    def tensors(self) -> tuple[Float[Tensor, "b g n d_head"], Float[Tensor, "b g n d_head"]] | None:
        """The keys and values of all positions in the cache, or None if nothing has been appended yet."""
        if self._buffer is None:
            return None
        k, v = self._buffer
        return k[..., : len(self), :], v[..., : len(self), :]

    def crop(self, n: int) -> None:
        """Remove all but the first ``n`` positions.

        Raises:
            ValueError: if ``n`` is not an integer from 0 to the number of positions in the cache.
        """
        check_size("n", n, at_least=0, at_most=len(self))
        kept = self.tensors
        # Drop the other rows of the buffer: a copy of the cache may use them, and would see what is written to them.
        self._buffer = None if kept is None or not n else (kept[0][..., :n, :], kept[1][..., :n, :])
        self._length = n

    def select(self, rows: Int[Tensor, "rows"]) -> None:
        """Keep these rows of the batch, in this order; a row may be selected several times, or not at all.

        Beam search reorders and duplicates its hypotheses in this way.

        Raises:
            ValueError: if the cache is empty, or ``rows`` is not a non-empty vector of indices into its batch.
        """
        kept = self.tensors
        if kept is None:
            raise ValueError("rows can be selected only from a cache that holds positions, got an empty cache")
        b = kept[0].shape[0]
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool or not rows.numel():
            raise ValueError(f"rows must be a vector of at least one integer index into the batch, got {rows}")
        if values_can_be_read(rows) and ((rows < 0) | (rows >= b)).any():
            raise ValueError(f"rows must be from 0 to {b - 1}, got {rows.tolist()}")
        self._buffer = kept[0][rows], kept[1][rows]

    @property
    def n_bytes(self) -> int:
        """The memory of the keys and values in bytes, without the free rows of the buffer."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors or ())

    def next_positions(self, n: int, *, device: torch.device | None = None) -> Int[Tensor, "{n}"]:
        """Return the positions of the next ``n`` rows, which follow those in the cache.

        >>> KVCache().next_positions(3)
        tensor([0, 1, 2])
        """
        return torch.arange(len(self), len(self) + n, device=device)

    def resolve_mask(self, mask: Rule | Bool[Tensor, "..."] | None, n: int) -> Rule | Bool[Tensor, "..."] | None:
        """Return the mask for the next ``n`` queries and the keys that ``append`` returns: unchanged.

        A cache with free places hides these, see :mod:`lessons_lib.attention.fixed_cache`.
        """
        return mask

    def append(
        self, k: Float[Tensor, "b g n d_head"], v: Float[Tensor, "b g n d_head"]
    ) -> tuple[Float[Tensor, "b g m d_head"], Float[Tensor, "b g m d_head"]]:
        """Append the keys and values of the next ``n`` positions and return those of all ``m`` positions so far.

        Raises:
            ValueError: if ``k`` and ``v`` do not have one shape ``(b, g, n, d_head)``, or if their batch size, number
                of heads, width, dtype or device differs from that of the positions in the cache.
        """
        if k.ndim != 4 or k.shape != v.shape:
            raise ValueError(f"k and v must both be (b, g, n, d_head), got {tuple(k.shape)} and {tuple(v.shape)}")
        kept = self.tensors
        if self._buffer is None or kept is None:
            self._buffer = k, v
        else:
            for name, new, old in zip("kv", (k, v), kept, strict=True):
                if not _differ_in_length_only(new, old):
                    raise ValueError(
                        f"{name} must continue what the cache keeps, {_describe(old)}, got {_describe(new)}; "
                        "a new batch needs a new cache"
                    )
            if torch.is_grad_enabled():
                self._buffer = torch.cat([kept[0], k], dim=-2), torch.cat([kept[1], v], dim=-2)
            else:
                self._buffer = _append_rows(self._buffer[0], len(self), k), _append_rows(self._buffer[1], len(self), v)
        self._length += k.shape[-2]
        assert self.tensors is not None
        return self.tensors


class StreamingCache(KVCache):
    """A KV cache of fixed size for a text without end: it keeps the first positions and the most recent ones [1]_.

    Positions are counted *in the cache*, as 0, 1, 2, ..., without a gap where a position was evicted. Whenever a
    position is evicted, the position of every later entry falls by one; with rotary positions their keys are rotated
    back by one step. So no distance exceeds the size of the cache, however long the text, and the next position is
    ``len(cache)``, as in :class:`KVCache`. Each key is rotated back at most ``window`` times, so that rounding errors
    cannot accumulate without end.

    A token attends to at most ``n_first + window`` keys, its own included. Keys and values are computed once and never
    again: in deeper layers they were computed from positions that have been evicted since, and still depend on them.

    ::

        >>> from lessons_lib.attention.positions import RotaryEmbedding
        >>> cache = StreamingCache(1, 3, turn=RotaryEmbedding(8))
        >>> for _ in range(100):
        ...     k, v = cache.append(*torch.randn(2, 1, 2, 1, 8))
        >>> k.shape[-2], len(cache)
        (4, 3)

    Args:
        n_first: how many of the first positions are never evicted.
        window: how many further keys a token attends to, its own included.
        turn: ``turn(k, positions)`` rotates each key by the given number of positions, as a
            :class:`~lessons_lib.attention.positions.RotaryEmbedding` does. None for keys that do not depend on their
            position; ALiBi computes distances from the positions in the cache. Learned and sinusoidal positions cannot
            be changed after the key is computed, because the key is computed from them.

    Raises:
        ValueError: if a size is out of range; in ``append``, if several positions come at once and do not fit.

    .. [1] Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2023. arXiv:2309.17453.
    """

    def __init__(self, n_first: int, window: int, *, turn: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        check_size("n_first", n_first, at_least=0)
        check_size("window", window, at_least=1)
        super().__init__()
        self.n_first, self.window, self.turn = n_first, window, turn

    def __copy__(self) -> "StreamingCache":
        """Return a copy that can be continued independently, see :meth:`KVCache.__copy__`."""
        other = StreamingCache(self.n_first, self.window, turn=self.turn)
        other._buffer, other._length = self.tensors, self._length
        return other

    def append(
        self, k: Float[Tensor, "b g n d_head"], v: Float[Tensor, "b g n d_head"]
    ) -> tuple[Float[Tensor, "b g m d_head"], Float[Tensor, "b g m d_head"]]:
        """Append the next positions and return all that they attend to; if the cache is then full, evict a position.

        The evicted position is the oldest one of the window, to which the next token does not attend.
        """
        size, n = self.n_first + self.window, k.shape[-2]
        if n > 1 and len(self) + n > size:
            raise ValueError(f"k and v must come one position at a time once {size} are full, got {n}")
        all_k, all_v = super().append(k, v)
        if len(self) == size:
            later = all_k[..., self.n_first + 1 :, :]
            if self.turn is not None and later.shape[-2]:
                later = self.turn(later, torch.full((later.shape[-2],), -1, device=k.device))
            first = slice(self.n_first)
            self._buffer = (
                torch.cat([all_k[..., first, :], later], dim=-2),
                torch.cat([all_v[..., first, :], all_v[..., self.n_first + 1 :, :]], dim=-2),
            )
            self._length = size - 1
        return all_k, all_v


# --- helpers --------------------------------------------------------------------------------------------------------


def _append_rows(buffer: Tensor, n_used: int, new: Tensor) -> Tensor:
    """Write ``new`` after the first ``n_used`` rows and return the buffer, or a new one of up to twice that length."""
    n = n_used + new.shape[-2]
    # A tensor made in inference mode can be written to in inference mode only.
    writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
    if n > buffer.shape[-2] or not writable:
        longer = buffer.new_empty(*buffer.shape[:-2], max(n, 2 * n_used), buffer.shape[-1])
        longer[..., :n_used, :] = buffer[..., :n_used, :]
        buffer = longer
    buffer[..., n_used:n, :] = new
    return buffer


def _differ_in_length_only(new: Tensor, old: Tensor) -> bool:
    without_length = [(x.shape[:-2], x.shape[-1], x.dtype, x.device) for x in (new, old)]
    return without_length[0] == without_length[1]


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"
