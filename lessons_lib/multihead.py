"""Multi-head attention: several attentions side by side, each in a subspace of its own; with groups and a cache.

One layer covers self-attention, cross-attention (``context``), grouped-query and multi-query attention
(``n_kv_heads``) and step-by-step decoding (``cache``). What it averages with can be looked at: ``weights``.
"""

import inspect
import warnings
from collections.abc import Callable
from copy import copy

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from lessons_lib.attention import attention, pattern_of
from lessons_lib.rules import Rule, as_taken_by, asks_rules
from lessons_lib.shapes import check_share, check_size, values_can_be_read


class KVCache:
    """The keys and values of the positions that one layer has seen, so that decoding computes each of them once.

    It holds two tensors over ``(b, g, n, d_head)``: every position costs ``2 * g * d_head`` numbers in each sequence
    and each layer, whatever the number of query heads. Making ``g`` small is what grouped heads are for. Keys are kept
    as they meet the queries, with their position applied.

    Without gradients they are written into a buffer that doubles when it is full, so that adding a position costs the
    same at any length, and the buffer takes up to twice what is kept. Where gradients are recorded, every call makes
    new tensors instead, since a graph may still need the old ones. A copy (``copy.copy``) goes its own way.
    """

    def __init__(self) -> None:
        self._buffer: tuple[Tensor, Tensor] | None = None
        self._n_seen = 0

    def __len__(self) -> int:
        """The number of positions seen."""
        return self._n_seen

    def __copy__(self) -> "KVCache":
        """Share what is kept, but not the room behind it: whoever appends to the copy first moves elsewhere."""
        other = type(self)()
        other._buffer, other._n_seen = self.kept, self._n_seen
        return other

    @property
    def kept(self) -> tuple[Float[Tensor, "b g n d_head"], Float[Tensor, "b g n d_head"]] | None:
        """The keys and values of all positions seen; None before the first."""
        if self._buffer is None:
            return None
        k, v = self._buffer
        return k[..., : len(self), :], v[..., : len(self), :]

    def cut(self, n: int) -> None:
        """Forget all but the first ``n`` positions, as if the others had never been seen.

        Raises:
            ValueError: if ``n`` is not a whole number from 0 to the number of positions seen.
        """
        check_size("n", n, at_least=0, at_most=len(self))
        kept = self.kept
        # Without the room behind: a copy may share it, and would see what is written there.
        self._buffer = None if kept is None or not n else (kept[0][..., :n, :], kept[1][..., :n, :])
        self._n_seen = n

    def pick(self, rows: Int[Tensor, "rows"]) -> None:
        """Go on with these rows of the batch, in this order; a row may be taken several times, or not at all.

        Raises:
            ValueError: if they are not the numbers of rows that are kept.
        """
        kept = self.kept
        if kept is None:
            raise ValueError("rows can be picked from what is kept; nothing is kept yet")
        b = kept[0].shape[0]
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool or not rows.numel():
            raise ValueError(f"rows must be the numbers of some rows, one axis of them, got {rows}")
        if values_can_be_read(rows) and ((rows < 0) | (rows >= b)).any():
            raise ValueError(f"rows must be from 0 to {b - 1}, got {rows.tolist()}")
        self._buffer = kept[0][rows], kept[1][rows]

    @property
    def n_bytes(self) -> int:
        """Memory that the keys and values take, without the room that the buffer has left."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.kept or ())

    def append(
        self, k: Float[Tensor, "b g n d_head"], v: Float[Tensor, "b g n d_head"]
    ) -> tuple[Float[Tensor, "b g m d_head"], Float[Tensor, "b g m d_head"]]:
        """Add the keys and values of the next ``n`` positions and return those of all ``m`` seen so far.

        Raises:
            ValueError: if they are not a pair of one shape over ``(b, g, n, d_head)``, or do not continue what is kept
                (another batch, number of heads, width, type or device).
        """
        if k.ndim != 4 or k.shape != v.shape:
            raise ValueError(f"k and v must both be (b, g, n, d_head), got {tuple(k.shape)} and {tuple(v.shape)}")
        kept = self.kept
        if self._buffer is None or kept is None:
            self._buffer = k, v
        else:
            for name, new, old in zip("kv", (k, v), kept, strict=True):
                if _all_but_length(new) != _all_but_length(old):
                    raise ValueError(
                        f"{name} must continue what the cache keeps, {_described(old)}, got {_described(new)}; "
                        "a new batch needs a new cache"
                    )
            if torch.is_grad_enabled():
                self._buffer = torch.cat([kept[0], k], dim=-2), torch.cat([kept[1], v], dim=-2)
            else:
                self._buffer = _with_rows(self._buffer[0], len(self), k), _with_rows(self._buffer[1], len(self), v)
        self._n_seen += k.shape[-2]
        assert self.kept is not None
        return self.kept


class StreamingCache(KVCache):
    """A cache of fixed size for a text without end: the first positions and the last ones, the others forgotten [2]_.

    What it keeps stands at places 0, 1, 2, ... *of the cache*, without a gap where something was forgotten: whenever a
    position leaves, those behind it move up by one, and with rotary positions their keys are turned back by one step.
    So no distance exceeds the size, however long the text, and the next position is ``len(cache)``, as always. Each
    key is turned back at most ``window`` times, so rounding does not add up without end.

    A token sees at most ``n_first + window`` keys, its own included. They are computed once and never again: deeper
    layers hold, through keys of the layers below, traces of what was forgotten.

    ::

        >>> from lessons_lib.positions import RotaryEmbedding
        >>> cache = StreamingCache(1, 3, turn=RotaryEmbedding(8))
        >>> for _ in range(100):
        ...     seen, _ = cache.append(*torch.randn(2, 1, 2, 1, 8))
        >>> seen.shape[-2], len(cache)
        (4, 3)

    Args:
        n_first: how many of the first positions stay for ever.
        window: how many keys a token sees beside these, its own included.
        turn: ``turn(k, positions)`` turns keys by so many places, as a
            :class:`~lessons_lib.positions.RotaryEmbedding` does; None for keys that carry no place (ALiBi tells
            distances by the place in the cache). Learned and sinusoidal positions are part of what a key is made
            from: they cannot be moved.

    Raises:
        ValueError: if a size is out of range; in ``append``, if several positions come at once and do not fit.

    .. [2] Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2023. arXiv:2309.17453.
    """

    def __init__(self, n_first: int, window: int, *, turn: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        check_size("n_first", n_first, at_least=0)
        check_size("window", window, at_least=1)
        super().__init__()
        self.n_first, self.window, self.turn = n_first, window, turn

    def __copy__(self) -> "StreamingCache":
        """As the plain cache's."""
        other = StreamingCache(self.n_first, self.window, turn=self.turn)
        other._buffer, other._n_seen = self.kept, self._n_seen
        return other

    def append(
        self, k: Float[Tensor, "b g n d_head"], v: Float[Tensor, "b g n d_head"]
    ) -> tuple[Float[Tensor, "b g m d_head"], Float[Tensor, "b g m d_head"]]:
        """Add the next positions and return all that they see; then forget what the next one is not to see."""
        size, n = self.n_first + self.window, k.shape[-2]
        if n > 1 and len(self) + n > size:
            raise ValueError(f"k and v must come one position at a time once {size} are full, got {n}")
        all_k, all_v = super().append(k, v)
        if len(self) == size:
            behind = all_k[..., self.n_first + 1 :, :]
            if self.turn is not None and behind.shape[-2]:
                behind = self.turn(behind, torch.full((behind.shape[-2],), -1, device=k.device))
            first, n_left = slice(self.n_first), len(self) - 1
            self._buffer = (
                torch.cat([all_k[..., first, :], behind], dim=-2),
                torch.cat([all_v[..., first, :], all_v[..., self.n_first + 1 :, :]], dim=-2),
            )
            self._n_seen = n_left
        return all_k, all_v


class MultiHeadAttention(nn.Module):
    r"""Attend :math:`h` times in parallel, each time in a subspace, and add up what the heads bring back.

    .. math::
        \operatorname{MHA}(X, C) = \sum_{i=1}^{h} A_i\, C\, W^V_{g(i)}\, W^O_i, \qquad
        A_i = \operatorname{softmax}\!\left(\frac{X W^Q_i \left(C W^K_{g(i)}\right)^{\!\top}}{\sqrt{d_\text{head}}}
              \right)

    :math:`C = X` unless a context is given. Concatenating the heads and multiplying by ``w_o`` is this sum, computed
    in one product. With :math:`g < h` key/value heads, consecutive query heads share one [2]_; :math:`g = 1` is
    multi-query attention [3]_.

    It has :math:`2 (h + g)\, d_\text{head}\, d_\text{model}` weights: with :math:`g = h` and
    :math:`h\, d_\text{head} = d_\text{model}` these are :math:`4 d_\text{model}^2`, however many heads there are.
    Biases add :math:`(h + 2g)\, d_\text{head} + d_\text{model}`.

    Args:
        d_model: width of the vectors that come in and go out.
        n_heads: number of query heads :math:`h`.
        n_kv_heads: number of key/value heads :math:`g`; must divide ``n_heads``. As many as query heads if omitted.
        d_head: width of a head. If omitted, ``d_model / n_heads``, which must be whole.
        bias: whether the four projections have biases.
        dropout: probability of dropping a weight, in training only.
        prepare: what queries and keys go through, after the split into heads and before they meet, as
            ``q, k = prepare(q, k, positions)``; it must keep their shapes. For instance
            ``RotaryEmbedding(d_head).prepare``, :class:`AddPositions` or :class:`~lessons_lib.stabilise.QKNorm`. It is
            told the positions of one sequence, so such a layer takes no context.
        implementation: computes the attention: any function with the call shape of
            :func:`lessons_lib.attention.attention`, which is the specification. It receives
            ``(q, k, v, mask, bias=…, dropout_p=…)`` with queries over ``(b, h, n, d_head)`` and keys and values over
            ``(b, g, m, d_head)``, not repeated. For ``weights`` and :func:`lessons_lib.diagnostics.observe` it declares
            its weights, see :func:`lessons_lib.attention.declares_pattern`; the implementations of this library do, and
            a ``functools.partial`` of one declares them with what it fixes.
        position: the older form of ``prepare``, called as ``position(x, positions)`` on queries and on keys;
            deprecated.

    Raises:
        ValueError: if a size is not a positive integer, if the head counts do not divide as said, if dropout is not
            in ``[0, 1)``, or if ``prepare`` cannot be called with queries, keys and positions.

    .. [1] Vaswani et al., *Attention Is All You Need*, 2017, section 3.2.2. arXiv:1706.03762.
    .. [2] Ainslie et al., *GQA*, 2023. arXiv:2305.13245.
    .. [3] Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019. arXiv:1911.02150.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        prepare: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        implementation: Callable[..., Tensor] = attention,
        position: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        for name, size in {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_kv_heads}.items():
            check_size(name, size, at_least=1)
        if n_heads % n_kv_heads:
            raise ValueError(f"n_kv_heads must divide n_heads, got n_kv_heads={n_kv_heads}, n_heads={n_heads}")
        if d_head is None:
            if d_model % n_heads:
                raise ValueError(
                    f"n_heads must divide d_model, got n_heads={n_heads}, d_model={d_model}; or give d_head itself"
                )
            d_head = d_model // n_heads
        check_size("d_head", d_head, at_least=1)
        check_share("dropout", dropout)
        if position is not None:
            prepare = _prepare_from(position, prepare)
        if prepare is not None:
            _check_prepare(prepare)

        self.d_model, self.n_heads, self.n_kv_heads, self.d_head = d_model, n_heads, n_kv_heads, d_head
        self.dropout, self.prepare, self.implementation = dropout, prepare, implementation
        self.w_q = nn.Linear(d_model, n_heads * d_head, bias=bias)
        self.w_k = nn.Linear(d_model, n_kv_heads * d_head, bias=bias)
        self.w_v = nn.Linear(d_model, n_kv_heads * d_head, bias=bias)
        self.w_o = nn.Linear(n_heads * d_head, d_model, bias=bias)
        self.register_load_state_dict_pre_hook(_take_older_names)

    def forward(
        self,
        x: Float[Tensor, "b n d_model"],
        context: Float[Tensor, "b m d_model"] | None = None,
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: KVCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
        bias: Float[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n d_model"]:
        """Let each position of ``x`` gather from ``x`` itself, or from ``context``.

        Args:
            x: what the queries are made from, and without ``context`` the keys and values too.
            context: what the keys and values are made from instead (cross-attention).
            mask: a rule, or True where a query may attend to a key: over ``(n, m)``, or with axes for batch and heads,
                each of
                which may be 1. Three axes are refused: nothing would tell a batch from heads.
            cache: what earlier calls left; the new keys and values are added to it, and ``m`` counts both. The layer
                hides nothing by itself: a decoder passes ``Causal()``. After an error start a new one.
            positions: where the rows of ``x`` stand, for ``prepare``, over ``(n,)`` or ``(b, n)``. If omitted they
                follow on from the cache.
            bias: added to the scores of each head, for instance ALiBi's.

        Raises:
            ValueError: if a shape does not fit, if context comes with a cache or to a layer with ``prepare``, if
                positions come to a layer without, or if ``prepare`` changes a shape.
        """
        q, k, v = self._heads(x, context, mask, cache, positions)
        dropout_p = self.dropout if self.training else 0.0
        mask = as_taken_by(self.implementation, mask, q.shape[2], k.shape[2], device=x.device)
        out = self.implementation(q, k, v, mask, bias=bias, dropout_p=dropout_p)
        return self.w_o(rearrange(out, "b h n d -> b n (h d)"))

    def weights(
        self,
        x: Float[Tensor, "b n d_model"],
        context: Float[Tensor, "b m d_model"] | None = None,
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: KVCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
        bias: Float[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """Return the pattern of every head: the weights that ``forward`` averages with, before dropout.

        The arguments and errors are those of ``forward``, but the cache stays as it is. What ``implementation`` hides
        or changes by itself, such as a causal mask or a cap on the scores, is part of the weights.

        Raises:
            ValueError: as ``forward``, or if the implementation does not declare its weights, see
                :func:`lessons_lib.attention.pattern_of`.
        """
        pattern = pattern_of(self.implementation)
        q, k, _ = self._heads(x, context, mask, copy(cache), positions)
        return pattern(q, k, mask, bias=bias).weights

    def _heads(
        self,
        x: Tensor,
        context: Tensor | None,
        mask: Rule | Tensor | None,
        cache: KVCache | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The queries over ``(b, h, n, d_head)``; all keys and values, the cache's included, over ``(b, g, m, …)``."""
        self._check(x, context, mask, cache, positions)
        source = x if context is None else context
        q = rearrange(self.w_q(x), "b n (h d) -> b h n d", h=self.n_heads)
        k = rearrange(self.w_k(source), "b m (g d) -> b g m d", g=self.n_kv_heads)
        v = rearrange(self.w_v(source), "b m (g d) -> b g m d", g=self.n_kv_heads)
        if self.prepare is not None:
            if positions is None:
                seen = 0 if cache is None else len(cache)
                positions = torch.arange(seen, seen + x.shape[1], device=x.device)
            positions = rearrange(positions, "... n -> ... 1 n") if positions.ndim == 2 else positions
            shapes = q.shape, k.shape
            q, k = self.prepare(q, k, positions)
            if (q.shape, k.shape) != shapes:
                raise ValueError(
                    f"prepare must keep the shapes of queries and keys, {tuple(map(tuple, shapes))}, "
                    f"got {tuple(q.shape)} and {tuple(k.shape)}"
                )
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _check(
        self,
        x: Tensor,
        context: Tensor | None,
        mask: Rule | Tensor | None,
        cache: KVCache | None,
        positions: Tensor | None,
    ) -> None:
        for name, rows in {"x": x, "context": x if context is None else context}.items():
            if rows.ndim != 3 or rows.shape[-1] != self.d_model or rows.shape[0] != x.shape[0]:
                raise ValueError(
                    f"{name} must be (b, rows, d_model={self.d_model}) with one b for all, got {tuple(rows.shape)}"
                )
        if context is not None and cache is not None:
            raise ValueError("a cache continues the sequence itself; give context or cache, not both")
        if context is not None and self.prepare is not None:
            raise ValueError("prepare relates places of one sequence; make a layer without it to attend to a context")
        if isinstance(mask, Tensor) and mask.ndim == 3:
            raise ValueError(
                f"mask must be (n, m) or (b, h, n, m), where 1 may stand for b or h, got {tuple(mask.shape)}; "
                "write mask[:, None] for one mask per sequence, mask[None] for one per head"
            )
        if positions is not None:
            if self.prepare is None:
                raise ValueError("positions were given to a layer without prepare, which would ignore them")
            if positions.shape not in ((x.shape[1],), (1, x.shape[1]), x.shape[:2]):
                raise ValueError(
                    f"positions must be (n,) or (b, n) for x over {tuple(x.shape[:2])}, got {tuple(positions.shape)}"
                )


class AddPositions(nn.Module):
    r"""Tell queries and keys their places by adding a vector to each, and values none: a layer's ``prepare``.

    .. math:: s_{ij} = \frac{(q_i + u_i) \cdot (k_j + w_j)}{\sqrt{d_\text{head}}}

    What a head moves then says nothing of where it was. With :math:`u = w` alone, the part that depends on places,
    :math:`u_i \cdot w_j`, would be symmetric, and no head could look *back*; so the two are given one by one.

    Args:
        to_queries, to_keys: from positions to vectors of the head's width, for instance
            :class:`~lessons_lib.positions.LearnedPositions`; all heads share them.
    """

    def __init__(self, to_queries: Callable[[Tensor], Tensor], to_keys: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.to_queries, self.to_keys = to_queries, to_keys

    def forward(
        self, q: Float[Tensor, "b h n d_head"], k: Float[Tensor, "b g n d_head"], positions: Num[Tensor, "*#rows n"]
    ) -> tuple[Float[Tensor, "b h n d_head"], Float[Tensor, "b g n d_head"]]:
        """Add the vectors."""
        return q + self.to_queries(positions).to(q.dtype), k + self.to_keys(positions).to(k.dtype)


# --- parts ----------------------------------------------------------------------------------------------------------


def _with_rows(buffer: Tensor, n_kept: int, new: Tensor) -> Tensor:
    """The buffer with ``new`` behind its first ``n_kept`` rows: itself if there is room, or one twice as long."""
    n = n_kept + new.shape[-2]
    # What was made in inference mode can be written to in inference mode alone.
    writable = torch.is_inference_mode_enabled() or not buffer.is_inference()
    if n > buffer.shape[-2] or not writable:
        longer = buffer.new_empty(*buffer.shape[:-2], max(n, 2 * n_kept), buffer.shape[-1])
        longer[..., :n_kept, :] = buffer[..., :n_kept, :]
        buffer = longer
    buffer[..., n_kept:n, :] = new
    return buffer


def as_layers_take(
    module: nn.Module, mask: Rule | Tensor | None, n: int, m: int, device: torch.device
) -> Rule | Tensor | None:
    """Return the mask as the attention layers inside ``module`` take it, so that a table is made once for all of them.

    If each of them asks rules a rule stays one.
    """
    layers = (layer for layer in module.modules() if isinstance(layer, MultiHeadAttention))
    if not isinstance(mask, Rule) or all(asks_rules(layer.implementation) for layer in layers):
        return mask
    return mask.tensor(n, m, device=device)


def _all_but_length(kept: Tensor) -> tuple:
    return kept.shape[:-2], kept.shape[-1], kept.dtype, kept.device


def _described(kept: Tensor) -> str:
    return f"{tuple(kept.shape)} of {kept.dtype} on {kept.device}"


def _check_prepare(prepare: Callable[..., object]) -> None:
    """Refuse what cannot be called with three things, such as a rotary embedding itself or ALiBi's bias."""
    try:
        signature = inspect.signature(prepare.forward if isinstance(prepare, nn.Module) else prepare)
    except ValueError:  # compiled code need not have one
        return
    try:
        signature.bind("q", "k", "positions")
    except TypeError as error:
        raise ValueError(
            f"prepare must be callable as prepare(q, k, positions), got {prepare!r} ({error}); "
            "of a rotary embedding give the method .prepare; what AlibiBias returns goes to forward as bias"
        ) from error


# --- what was called otherwise --------------------------------------------------------------------------------------


class _ForEach(nn.Module):
    """The older ``position(x, positions)`` as a ``prepare``."""

    def __init__(self, position: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.position = position

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.position(q, positions), self.position(k, positions)


def _prepare_from(
    position: Callable[[Tensor, Tensor], Tensor], prepare: object
) -> Callable[..., tuple[Tensor, Tensor]]:
    if prepare is not None:
        raise ValueError("position is the older name of prepare; give prepare alone")
    if hasattr(position, "slopes"):
        raise ValueError("position must rotate queries and keys; what AlibiBias returns goes to forward as bias")
    warnings.warn(
        "position=f is deprecated: give prepare=g with g(q, k, positions) -> (q, k); a rotary embedding has a .prepare",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(position, "prepare", None) or _ForEach(position)


def _take_older_names(layer: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Load what was saved when ``prepare`` was ``position``."""
    here = f"{prefix}prepare.position." if isinstance(layer.prepare, _ForEach) else f"{prefix}prepare."
    for name in [name for name in state if name.startswith(f"{prefix}position.")]:
        state[here + name.removeprefix(f"{prefix}position.")] = state.pop(name)
