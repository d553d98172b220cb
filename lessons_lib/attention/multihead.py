"""Multi-head attention: several attention heads in parallel, each in a subspace of its own.

One layer covers self-attention, cross-attention (``context``), grouped-query and multi-query attention
(``n_kv_heads``) and step-by-step decoding (``cache``). Its method ``weights`` returns the attention weights.
"""

import inspect
from collections.abc import Callable
from copy import copy
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from lessons_lib.attention.attention import attention, get_weights_function
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.rules import Rule, mask_for_implementation, supports_rules
from lessons_lib.foundations.validation import check_fraction, check_size


class MultiHeadAttention(nn.Module):
    r"""A layer of :math:`h` attention heads in parallel, each in a subspace; it returns the sum of their outputs [1]_.

    .. math::
        \operatorname{MHA}(X, C) = \sum_{i=1}^{h} A_i\, C\, W^V_{g(i)}\, W^O_i, \qquad
        A_i = \operatorname{softmax}\!\left(\frac{X W^Q_i \left(C W^K_{g(i)}\right)^{\!\top}}{\sqrt{d_\text{head}}}
              \right)

    :math:`C = X` unless a context is given. Concatenating the head outputs and multiplying by ``w_o`` computes this sum
    in one product. With :math:`g < h` key/value heads, consecutive query heads share a key/value head (grouped-query
    attention [2]_); :math:`g = 1` is multi-query attention [3]_.

    The layer has :math:`2 (h + g)\, d_\text{head}\, d_\text{model}` weights. With :math:`g = h` and
    :math:`h\, d_\text{head} = d_\text{model}` these are :math:`4 d_\text{model}^2`, whatever the number of heads.
    Biases add :math:`(h + 2g)\, d_\text{head} + d_\text{model}`; with ``bias="qkv"`` there is no
    :math:`d_\text{model}`.

    ::

        >>> from lessons_lib.attention.rules import Causal
        >>> layer = MultiHeadAttention(64, n_heads=8, n_kv_heads=2)
        >>> x = torch.randn(2, 5, 64)  # two sequences of five tokens
        >>> layer(x, mask=Causal()).shape
        torch.Size([2, 5, 64])
        >>> layer.weights(x, mask=Causal()).shape
        torch.Size([2, 8, 5, 5])
        >>> layer(x, context=torch.randn(2, 7, 64)).shape
        torch.Size([2, 5, 64])

    Args:
        d_model: width of the input and output vectors.
        n_heads: number of query heads :math:`h`.
        n_kv_heads: number of key/value heads :math:`g`; must divide ``n_heads``. As many as query heads if omitted.
        d_head: width of a head. If omitted, ``d_model / n_heads``, which must be an integer.
        bias: whether the four projections have biases; ``"qkv"`` for all but the output projection (Qwen2).
        dropout: probability of dropping an attention weight, in training only.
        process_qk: a function ``q, k = process_qk(q, k, positions)`` that is applied to queries and keys after the
            split into heads and before their dot products; it must keep their shapes. For instance
            ``RotaryEmbedding(d_head).process_qk``, :class:`AddPositions` or
            :class:`~lessons_lib.transformer.stabilise.QKNorm`. It receives the positions of one sequence, so a layer
            with ``process_qk`` takes no context.
        implementation: computes the attention: any function with the signature of
            :func:`lessons_lib.attention.attention.attention`, which is the specification. It is called with
            ``(q, k, v, mask, bias=…, dropout_p=…)``, queries over ``(b, h, n, d_head)`` and keys and values over
            ``(b, g, m, d_head)``, not repeated. For ``weights`` and :func:`lessons_lib.analysis.diagnostics.observe`
            it must declare its attention weights, see :func:`lessons_lib.attention.attention.declare_weights`. The
            implementations of this library do, and so does a ``functools.partial`` of them.

    Raises:
        ValueError: if a size is not a positive integer, if ``n_kv_heads`` does not divide ``n_heads``, if ``d_head`` is
            omitted and ``n_heads`` does not divide ``d_model``, if dropout is not in ``[0, 1)``, or if ``process_qk``
            cannot be called with queries, keys and positions.

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
        bias: bool | Literal["qkv"] = False,
        dropout: float = 0.0,
        process_qk: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
        implementation: Callable[..., Tensor] = attention,
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
        check_fraction("dropout", dropout)
        if bias not in (False, True, "qkv"):
            raise ValueError(f"bias must be False, True or 'qkv', got {bias!r}")
        if process_qk is not None:
            _check_process_qk(process_qk)

        self.d_model, self.n_heads, self.n_kv_heads, self.d_head = d_model, n_heads, n_kv_heads, d_head
        self.dropout, self.process_qk, self.implementation = dropout, process_qk, implementation
        self.w_q = nn.Linear(d_model, n_heads * d_head, bias=bool(bias))
        self.w_k = nn.Linear(d_model, n_kv_heads * d_head, bias=bool(bias))
        self.w_v = nn.Linear(d_model, n_kv_heads * d_head, bias=bool(bias))
        self.w_o = nn.Linear(n_heads * d_head, d_model, bias=bool(bias) and bias != "qkv")

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
        """Return the output of the layer: each row of ``x`` attends to the rows of ``x``, or to those of ``context``.

        Args:
            x: the input of the queries, and without ``context`` of the keys and values, too.
            context: the input of the keys and values in cross-attention.
            mask: a rule, or True where a query may attend to a key, over ``(n, m)`` or ``(b, h, n, m)``, where 1 may
                stand for ``b`` or ``h``. Three axes raise an error, because a batch could not be told from heads.
            cache: the keys and values of earlier calls. Those of this call are appended to it, and ``m`` counts both.
                The layer applies no causal mask of its own: a decoder passes ``Causal()``. After an error the cache may
                have grown already: start a new one.
            positions: the positions of the rows of ``x``, which ``process_qk`` receives, over ``(n,)`` or ``(b, n)``.
                If omitted, they start at the length of the cache, or at 0.
            bias: added to the scores of each head, for instance by ALiBi.

        Raises:
            ValueError: if a shape does not fit, if a context is given together with a cache or to a layer with
                ``process_qk``, if positions are given to a layer without ``process_qk``, or if ``process_qk`` changes a
                shape.
        """
        self._check_inputs(x, context, mask, cache, positions)
        mask = mask if cache is None else cache.resolve_mask(mask, x.shape[1])
        q, k, v = self._heads(x, context, cache, positions)
        dropout_p = self.dropout if self.training else 0.0
        mask = mask_for_implementation(self.implementation, mask, q.shape[2], k.shape[2], device=x.device)
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
        """Return the attention weights of each head in ``forward``, before dropout.

        The arguments and errors are those of ``forward``, but nothing is appended to the cache. The weights include
        what ``implementation`` does on its own, such as a causal mask or a cap on the scores.

        Raises:
            ValueError: as ``forward``, or if the implementation does not declare its weights, see
                :func:`lessons_lib.attention.attention.get_weights_function`.
        """
        compute_weights = get_weights_function(self.implementation)
        self._check_inputs(x, context, mask, cache, positions)
        mask = mask if cache is None else cache.resolve_mask(mask, x.shape[1])
        q, k, _ = self._heads(x, context, copy(cache), positions)
        return compute_weights(q, k, mask, bias=bias).weights

    def _heads(
        self,
        x: Tensor,
        context: Tensor | None,
        cache: KVCache | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries over ``(b, h, n, d_head)``, and the keys and values over ``(b, g, m, d_head)``.

        ``process_qk`` has been applied. The new keys and values are appended to the cache, and all of it is returned.
        """
        source = x if context is None else context
        q = rearrange(self.w_q(x), "b n (h d) -> b h n d", h=self.n_heads)
        k = rearrange(self.w_k(source), "b m (g d) -> b g m d", g=self.n_kv_heads)
        v = rearrange(self.w_v(source), "b m (g d) -> b g m d", g=self.n_kv_heads)
        if self.process_qk is not None:
            if positions is None:
                positions = (KVCache() if cache is None else cache).next_positions(x.shape[1], device=x.device)
            positions = rearrange(positions, "... n -> ... 1 n") if positions.ndim == 2 else positions
            shapes = q.shape, k.shape
            q, k = self.process_qk(q, k, positions)
            if (q.shape, k.shape) != shapes:
                raise ValueError(
                    f"process_qk must keep the shapes of queries and keys, {tuple(map(tuple, shapes))}, "
                    f"got {tuple(q.shape)} and {tuple(k.shape)}"
                )
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v

    def _check_inputs(
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
            raise ValueError("a cache holds keys and values of the sequence x itself; give context or cache, not both")
        if context is not None and self.process_qk is not None:
            raise ValueError(
                "context must be None for a layer with process_qk, whose positions are those of one sequence; "
                "make a layer without process_qk to attend to a context"
            )
        if isinstance(mask, Tensor) and mask.ndim == 3:
            raise ValueError(
                f"mask must be (n, m) or (b, h, n, m), where 1 may stand for b or h, got {tuple(mask.shape)}; "
                "write mask[:, None] for one mask per sequence, mask[None] for one per head"
            )
        if positions is not None:
            if self.process_qk is None:
                raise ValueError("positions were given to a layer without process_qk, which would ignore them")
            if positions.shape not in ((x.shape[1],), (1, x.shape[1]), x.shape[:2]):
                raise ValueError(
                    f"positions must be (n,) or (b, n) for x over {tuple(x.shape[:2])}, got {tuple(positions.shape)}"
                )


class AddPositions(nn.Module):
    r"""Add a position vector to each query and key, but not to the values; for use as the ``process_qk`` of a layer.

    .. math:: s_{ij} = \frac{(q_i + u_i) \cdot (k_j + w_j)}{\sqrt{d_\text{head}}}

    The output of a head then does not contain the positions it attended to. The vectors :math:`u` of the queries and
    :math:`w` of the keys are separate: with :math:`u = w`, the part of the score that depends on positions alone,
    :math:`u_i \cdot w_j`, would be symmetric, and no head could attend to the *previous* position.

    ::

        >>> from lessons_lib.attention.positions import LearnedPositions
        >>> process_qk = AddPositions(LearnedPositions(100, 8), LearnedPositions(100, 8))
        >>> q, k = process_qk(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8), torch.arange(5))
        >>> q.shape
        torch.Size([2, 4, 5, 8])

    Args:
        to_queries, to_keys: functions from positions to vectors of the width of a head, for instance
            :class:`~lessons_lib.attention.positions.LearnedPositions`; all heads share these vectors.
    """

    def __init__(self, to_queries: Callable[[Tensor], Tensor], to_keys: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.to_queries, self.to_keys = to_queries, to_keys

    def forward(
        self, q: Float[Tensor, "b h n d_head"], k: Float[Tensor, "b g n d_head"], positions: Num[Tensor, "*#rows n"]
    ) -> tuple[Float[Tensor, "b h n d_head"], Float[Tensor, "b g n d_head"]]:
        """Return the queries and keys with the vectors of their positions added."""
        return q + self.to_queries(positions).to(q.dtype), k + self.to_keys(positions).to(k.dtype)


# --- helpers --------------------------------------------------------------------------------------------------------


def mask_for_layers(
    module: nn.Module, mask: Rule | Tensor | None, n: int, m: int, device: torch.device
) -> Rule | Tensor | None:
    """Return a mask that the attention layers inside ``module`` accept: a rule if all of them support rules.

    Otherwise a rule is converted to a Boolean tensor over ``n`` queries and ``m`` keys, once for all layers.

    >>> from lessons_lib.attention.rules import Causal
    >>> layers = nn.ModuleList([MultiHeadAttention(12, 3), MultiHeadAttention(12, 3)])
    >>> mask_for_layers(layers, Causal(), 2, 3, torch.device("cpu"))
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    layers = (layer for layer in module.modules() if isinstance(layer, MultiHeadAttention))
    if not isinstance(mask, Rule) or all(supports_rules(layer.implementation) for layer in layers):
        return mask
    return mask.to_mask(n, m, device=device)


def _check_process_qk(process_qk: Callable[..., object]) -> None:
    """Check that a function takes three arguments, unlike a rotary embedding itself or an ALiBi bias."""
    try:
        signature = inspect.signature(process_qk.forward if isinstance(process_qk, nn.Module) else process_qk)
    except ValueError:  # a function in compiled code may have no signature
        return
    try:
        signature.bind("q", "k", "positions")
    except TypeError as error:
        raise ValueError(
            f"process_qk must be callable as process_qk(q, k, positions), got {process_qk!r} ({error}); "
            "for a rotary embedding pass its method .process_qk; for ALiBi pass the output of AlibiBias to forward as "
            "bias"
        ) from error
