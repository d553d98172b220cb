"""KV caches of a fixed size: no shape changes from step to step, so that ``torch.compile`` makes one graph for all.

:class:`FixedCache` holds all positions up to a limit, :class:`RingCache` the last ones for a layer with a window. The
number of positions so far is a tensor, not a Python number, which a compiled graph would contain as a constant.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.rules import Rule, Table, fields_of
from lessons_lib.foundations.validation import check_size


class FixedCache(KVCache):
    """The keys and values of at most ``size`` positions, in tensors that are allocated once.

    ``append`` writes the new positions and returns *all* ``size`` places, also those that are still free;
    ``resolve_mask`` hides them. A layer attends to ``size`` keys in every step, so that a short text costs as much as a
    long one. Without compilation :class:`~lessons_lib.attention.cache.KVCache` is faster.

    There are no gradients: the tensors are overwritten in place. Use the cache inside ``torch.no_grad()``.

    ::

        >>> cache = FixedCache(2, 4, 10, 8)  # two sequences, four heads
        >>> k, v = cache.append(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8))
        >>> k.shape, len(cache)
        (torch.Size([2, 4, 10, 8]), 5)
        >>> cache.resolve_mask(None, 1).int().tolist()  # of the next query
        [[1, 1, 1, 1, 1, 1, 0, 0, 0, 0]]

    Args:
        b: number of sequences.
        g: number of key/value heads.
        size: largest number of positions.
        d_head: width of a head.
        dtype, device: those of the keys and values; PyTorch's defaults if omitted.

    Raises:
        ValueError: if a size is not a positive integer; in ``append``, if the positions do not fit into the cache, if
            keys or values have another shape, dtype or device, or if they have gradients. In compiled code, where
            values cannot be read, positions that do not fit raise a ``RuntimeError`` instead.
    """

    def __init__(
        self,
        b: int,
        g: int,
        size: int,
        d_head: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        for name, number in {"b": b, "g": g, "size": size, "d_head": d_head}.items():
            check_size(name, number, at_least=1)
        self.size = size
        self.length = torch.zeros((), dtype=torch.long, device=device)
        # Zeros, because a hidden value is multiplied by zero and must be finite.
        self.k = torch.zeros(b, g, size, d_head, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)

    def __len__(self) -> int:
        """Return the number of positions so far, which reads a value from the device."""
        return int(self.length)

    def __copy__(self) -> "FixedCache":
        """Return a copy that can be continued independently; all of its tensors are copied."""
        other = type(self)(*self.k.shape, dtype=self.k.dtype, device=self.k.device)  # type: ignore[call-arg]
        other.k, other.v, other.length = self.k.clone(), self.v.clone(), self.length.clone()
        return other

    @property
    def tensors(self) -> tuple[Float[Tensor, "b g size d_head"], Float[Tensor, "b g size d_head"]]:
        """The keys and values of all places, free ones included."""
        return self.k, self.v

    def crop(self, n: int) -> None:
        """Remove all but the first ``n`` positions.

        Raises:
            ValueError: if ``n`` is not an integer from 0 to the number of positions in the cache.
        """
        check_size("n", n, at_least=0, at_most=len(self))
        self.length.fill_(n)

    def select(self, rows: Int[Tensor, "rows"]) -> None:
        """Keep these rows of the batch, in this order; this makes new tensors.

        The rows are those of :meth:`~lessons_lib.attention.cache.KVCache.select`.
        """
        self._buffer = self.tensors
        super().select(rows)
        assert self._buffer is not None
        (self.k, self.v), self._buffer = self._buffer, None

    def append(
        self, k: Float[Tensor, "b g n d_head"], v: Float[Tensor, "b g n d_head"]
    ) -> tuple[Float[Tensor, "b g m d_head"], Float[Tensor, "b g m d_head"]]:
        """Write the keys and values of the next ``n`` positions and return those of all places."""
        self._check(k, v)
        self._check_room(k.shape[-2])
        places = self.next_positions(k.shape[-2])
        self.k.index_copy_(2, places, k)
        self.v.index_copy_(2, places, v)
        self.length.add_(k.shape[-2])
        return self.k, self.v

    def next_positions(self, n: int, *, device: torch.device | None = None) -> Int[Tensor, "{n}"]:
        """Return the positions of the next ``n`` rows."""
        return self.length + torch.arange(n, device=self.length.device)

    def key_positions(self, n: int) -> Int[Tensor, "m"]:
        """Return the position in each place that the next ``append`` of ``n`` positions returns."""
        return torch.arange(self.size, device=self.length.device)

    def resolve_mask(self, mask: Rule | Bool[Tensor, "..."] | None, n: int) -> Bool[Tensor, "... m"]:
        """Return the table over the next ``n`` queries and all places: what the mask allows, without free places.

        Args:
            mask: a rule, which compares positions; or a Boolean table over the places that ``append`` returns.
            n: number of queries, the next positions.

        Raises:
            ValueError: if the rule was made for other sizes, or contains a table without a row for each position.
        """
        queries, keys = self.next_positions(n)[:, None], self.key_positions(n)[None, :]
        visible = self._holds(queries, keys) & (keys < self.length + n)
        if isinstance(mask, Rule):
            self._check_rule(mask, n)
            return visible & mask.allows(queries, keys)
        return visible if mask is None else visible & mask

    def _holds(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which keys the cache holds for these queries."""
        return torch.ones_like(keys, dtype=torch.bool)

    def _check_rule(self, rule: Rule, n: int) -> None:
        rule.check_sizes(n, self.size)
        _check_tables(rule)

    def _check(self, k: Tensor, v: Tensor) -> None:
        wanted = (*self.k.shape[:2], self.k.shape[3], self.k.dtype, self.k.device)
        for name, new in (("k", k), ("v", v)):
            if new.ndim != 4 or (*new.shape[:2], new.shape[3], new.dtype, new.device) != wanted:
                raise ValueError(
                    f"{name} must fit the cache, {tuple(self.k.shape)} of {self.k.dtype} on {self.k.device}, "
                    f"got {tuple(new.shape)} of {new.dtype} on {new.device}"
                )
        if k.shape != v.shape:
            raise ValueError(f"k and v must have the same shape, got {tuple(k.shape)} and {tuple(v.shape)}")
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError(
                f"k and v must have no gradients in a {type(self).__name__}, which overwrites its tensors; "
                "use torch.no_grad(), or a KVCache"
            )

    def _check_room(self, n: int) -> None:
        """Check that ``n`` more positions fit."""
        if torch.compiler.is_compiling():
            # The graph can raise this error alone. It names no size, since one graph may be for all sizes.
            message = "the positions must fit into the places of the cache"
            torch.ops.aten._assert_async.msg(self.length + n <= self.size, message)
        elif not self.length.is_meta and len(self) + n > self.size:
            raise ValueError(
                f"k and v must fit into the {self.size} places of the cache, got {len(self)} + {n} positions"
            )


class RingCache(FixedCache):
    """The last ``window`` keys and values of a layer with a window, in tensors that are allocated once.

    A new position takes the place of the oldest one, so that a text may be longer than the cache. ``append`` returns
    the ``window`` places as they were, followed by the ``n`` new rows; several may come at once. ``resolve_mask`` hides
    all keys that are not among the ``window`` last ones of a query, its own included, and so is
    :class:`~lessons_lib.attention.rules.Window` beside a causal mask. ``crop`` is not possible: what was overwritten is
    lost.

    >>> cache = RingCache(1, 2, 3, 8)
    >>> for _ in range(100):
    ...     k, v = cache.append(*torch.randn(2, 1, 2, 1, 8))
    >>> k.shape[-2], len(cache)
    (4, 100)

    Args:
        b, g, d_head, dtype, device: as for :class:`FixedCache`.
        window: number of keys that a query attends to, its own included.
    """

    def __init__(
        self,
        b: int,
        g: int,
        window: int,
        d_head: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_size("window", window, at_least=1)
        super().__init__(b, g, window, d_head, dtype=dtype, device=device)
        self.window = window

    def crop(self, n: int) -> None:
        """Refuse to remove positions.

        Raises:
            ValueError: always, unless ``n`` is the number of positions so far.
        """
        if n != len(self):
            raise ValueError(f"a RingCache cannot be cropped, its earlier keys are overwritten, got {n}; use a KVCache")

    def append(
        self, k: Float[Tensor, "b g n d_head"], v: Float[Tensor, "b g n d_head"]
    ) -> tuple[Float[Tensor, "b g m d_head"], Float[Tensor, "b g m d_head"]]:
        """Return the keys and values of the last ``window`` positions and of the next ``n``, which are written."""
        self._check(k, v)
        all_k, all_v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        n = k.shape[2]
        kept = max(0, n - self.window)  # the last new rows, at most the window
        places = self.next_positions(n)[kept:] % self.window
        self.k.index_copy_(2, places, k[:, :, kept:])
        self.v.index_copy_(2, places, v[:, :, kept:])
        self.length.add_(n)
        return all_k, all_v

    def key_positions(self, n: int) -> Int[Tensor, "m"]:
        """Return the position in each place that the next ``append`` returns; negative for a free one."""
        newest = self.length - 1
        places = torch.arange(self.window, device=self.length.device)
        return torch.cat([newest - (newest - places) % self.window, self.next_positions(n)])

    def _holds(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (keys >= 0) & (queries - keys < self.window)

    def _check_rule(self, rule: Rule, n: int) -> None:
        """Check the rule; the number of keys is unlimited, so its sizes are not."""
        _check_tables(rule)


# --- helpers --------------------------------------------------------------------------------------------------------


def _check_tables(rule: Rule) -> None:
    """Check that each table inside a rule has a row for each position: which rows are meant would be unknown."""
    if isinstance(rule, Table) and 1 < rule.mask.shape[-2] != rule.mask.shape[-1]:
        raise ValueError(
            "a table inside a rule must have one row, or one for each position, beside a cache of fixed size, "
            f"got {tuple(rule.mask.shape)}"
        )
    for part in fields_of(rule):
        if isinstance(part, Rule):
            _check_tables(part)
