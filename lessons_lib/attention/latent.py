"""Multi-head latent attention: the keys and values of all heads are linear functions of one short latent vector.

Grouped-query attention makes the KV cache small by letting heads share keys and values. In latent attention each head
has keys and values of its own, and the cache holds only the latent vector of each token. Because keys and values are
linear in the latent vector, they need not be computed at all: each query can be projected into the space of the latent
vectors instead, and attend to the latent vectors themselves.
"""

import math
from copy import copy

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from lessons_lib.attention.attention import attention, attention_weights, check_options
from lessons_lib.attention.positions import ROPE_BASE, Pairing, RotaryEmbedding, RotaryScaling
from lessons_lib.attention.rules import Rule
from lessons_lib.foundations.norms import RMSNorm
from lessons_lib.foundations.validation import check_size, check_vectors


class LatentCache:
    """The cache of one :class:`LatentAttention` layer: a latent vector and a rotated key for each position.

    Each position takes ``d_latent + d_rotary`` numbers in each sequence and layer, whatever the number of heads. Each
    ``append`` makes new tensors, so gradients can flow through them, and a copy (``copy.copy``) can be continued
    independently of the original.

    >>> cache = LatentCache()
    >>> latent, k_rotary = cache.append(torch.randn(2, 5, 16), torch.randn(2, 5, 4))
    >>> latent, k_rotary = cache.append(torch.randn(2, 1, 16), torch.randn(2, 1, 4))
    >>> latent.shape, len(cache)
    (torch.Size([2, 6, 16]), 6)
    """

    def __init__(self) -> None:
        self.tensors: tuple[Float[Tensor, "b n d_latent"], Float[Tensor, "b n d_rotary"]] | None = None

    def __len__(self) -> int:
        """Return the number of positions in the cache."""
        return 0 if self.tensors is None else self.tensors[0].shape[1]

    @property
    def n_bytes(self) -> int:
        """The memory of the cached tensors in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors or ())

    def append(
        self, latent: Float[Tensor, "b n d_latent"], k_rotary: Float[Tensor, "b n d_rotary"]
    ) -> tuple[Float[Tensor, "b m d_latent"], Float[Tensor, "b m d_rotary"]]:
        """Append the next ``n`` positions and return the latent vectors and rotated keys of all ``m`` so far.

        Raises:
            ValueError: if ``latent`` and ``k_rotary`` differ in batch size or length, or if their batch size, width or
                dtype differs from that of the positions in the cache.
        """
        if latent.ndim != 3 or latent.shape[:2] != k_rotary.shape[:2]:
            raise ValueError(
                "latent and k_rotary must be (b, n, d_latent) and (b, n, d_rotary), "
                f"got {tuple(latent.shape)} and {tuple(k_rotary.shape)}"
            )
        if self.tensors is not None:
            for name, old, new in zip(("latent", "k_rotary"), self.tensors, (latent, k_rotary), strict=True):
                if (old.shape[0], old.shape[2], old.dtype) != (new.shape[0], new.shape[2], new.dtype):
                    raise ValueError(
                        f"{name} must continue what the cache keeps, {tuple(old.shape)} of {old.dtype}, "
                        f"got {tuple(new.shape)} of {new.dtype}; a new batch needs a new cache"
                    )
            latent, k_rotary = (
                torch.cat([self.tensors[0], latent], dim=1),
                torch.cat([self.tensors[1], k_rotary], dim=1),
            )
        self.tensors = latent, k_rotary
        return self.tensors


class LatentAttention(nn.Module):
    r"""A layer of attention heads whose keys and values are computed from one latent vector per token (MLA [1]_).

    .. math::
        c_t &= \operatorname{norm}(W^{DKV} x_t), & k^i_t &= [\,W^{UK}_i c_t;\; R_t W^{KR} x_t\,],
            & v^i_t &= W^{UV}_i c_t, \\
        & & q^i_t &= [\,W^{Q}_i x_t;\; R_t W^{QR}_i x_t\,], & o_t &= \sum_i W^O_i \sum_s a^i_{ts} v^i_s

    with weights :math:`a^i_t = \operatorname{softmax}_s\big(q^i_t \cdot k^i_s / \sqrt{d_\text{head} + d_\text{rotary}}
    \big)`. The cache holds only :math:`c_t` and the rotated key :math:`R_t W^{KR} x_t`, which all heads share.

    **Two ways to compute the same output.** As written, the keys and values of all heads are recomputed from the cache
    in every call. Alternatively, the two matrices that multiply :math:`c` are moved to the query and to the output,

    .. math:: (W^Q_i x_t) \cdot (W^{UK}_i c_s) = \big(W^{UK\top}_i W^Q_i x_t\big) \cdot c_s, \qquad
              \sum_s a^i_{ts} W^{UV}_i c_s = W^{UV}_i \sum_s a^i_{ts} c_s,

    and the layer becomes multi-query attention over the latent vectors: no keys or values are computed for earlier
    tokens. Decoding computes the output in this way (``absorbed=True``). This is also why positions have a key of their
    own: a rotation :math:`R_t` between :math:`W^{UK}_i` and the query depends on both tokens, so the product could not
    be moved to the query.

    ::

        >>> layer = LatentAttention(64, n_heads=8, d_latent=16, d_head=8, d_rotary=4)
        >>> x, cache = torch.randn(2, 5, 64), LatentCache()
        >>> layer(x, cache=cache, absorbed=True).shape
        torch.Size([2, 5, 64])
        >>> [tuple(tensor.shape) for tensor in cache.tensors]
        [(2, 5, 16), (2, 5, 4)]

    **Longer contexts.** Released weights of DeepSeek-V2 and V3 need YaRN for the rotated part, and a factor of the
    scores besides. If :math:`f(m) = 0.1\, m \ln s + 1` is
    :func:`~lessons_lib.attention.rope_scaling.yarn_attention_factor`, the setting ``mscale_all_dim`` of a checkpoint
    multiplies all scores by :math:`f(\text{mscale\_all\_dim})^2`, and the rotated vectors are multiplied by
    :math:`f(\text{mscale}) / f(\text{mscale\_all\_dim})` instead of :math:`f(1)`. With the numbers of DeepSeek-V3,
    where both are 1::

        >>> from lessons_lib.attention.rope_scaling import YaRN, yarn_attention_factor
        >>> of_scores = yarn_attention_factor(40.0, mscale=1.0)
        >>> of_rotation = yarn_attention_factor(40.0, mscale=1.0) / of_scores
        >>> yarn = YaRN(40.0, n_trained=4096, attention_factor=of_rotation)
        >>> sizes = {"d_latent": 16, "d_head": 8, "d_rotary": 4}
        >>> layer = LatentAttention(64, 8, **sizes, scaling=yarn, scale=of_scores**2 / math.sqrt(8 + 4))
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])

    Args:
        d_model: width of the input and output vectors.
        n_heads: number of heads :math:`h`.
        d_latent: width of the latent vector :math:`c`.
        d_head: width of a head's query and key, without the rotated part.
        d_rotary: width of the rotated key that all heads share; even, or 0 for a layer without positions.
        d_value: width of a head's value; ``d_head`` if omitted.
        d_query_latent: if given, queries too are computed from a normalised latent vector of this width. This saves
            weights, but does not make the cache smaller.
        base: base of the rotation, as in :class:`~lessons_lib.attention.positions.RotaryEmbedding`.
        pairing: pairing of the rotated coordinates, as there; DeepSeek's weights are ``"interleaved"``.
        scaling: a change of the frequencies for longer sequences, as there.
        scale: multiplier of the scores; ``1 / sqrt(d_head + d_rotary)`` when omitted.

    Raises:
        ValueError: if a size is out of range, if the scale is not finite, or if a scaling is given to a layer without
            positions; when called, if shapes do not fit.

    .. [1] DeepSeek-AI, *DeepSeek-V2*, 2024, section 2.1. arXiv:2405.04434.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_latent: int,
        d_head: int,
        d_rotary: int,
        d_value: int | None = None,
        d_query_latent: int | None = None,
        base: float = ROPE_BASE,
        pairing: Pairing = "half",
        scaling: RotaryScaling | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        d_value = d_head if d_value is None else d_value
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_latent": d_latent, "d_head": d_head, "d_value": d_value}
        for name, size in sizes.items():
            check_size(name, size, at_least=1)
        check_size("d_rotary", d_rotary, at_least=0)
        check_options(scale)
        if scaling is not None and not d_rotary:
            raise ValueError(f"scaling must be None for a layer with d_rotary=0, which rotates nothing, got {scaling}")
        self.n_heads, self.d_head, self.d_rotary = n_heads, d_head, d_rotary
        self.scale = 1 / math.sqrt(d_head + d_rotary) if scale is None else scale
        self.rotary = RotaryEmbedding(d_rotary, base=base, scaling=scaling, pairing=pairing) if d_rotary else None

        d_query = n_heads * (d_head + d_rotary)
        if d_query_latent is None:
            self.w_q: nn.Module = nn.Linear(d_model, d_query, bias=False)
        else:
            check_size("d_query_latent", d_query_latent, at_least=1)
            down, up = nn.Linear(d_model, d_query_latent, bias=False), nn.Linear(d_query_latent, d_query, bias=False)
            self.w_q = nn.Sequential(down, RMSNorm(d_query_latent), up)
        self.w_latent = nn.Linear(d_model, d_latent, bias=False)
        self.norm = RMSNorm(d_latent)
        self.w_k_rotary = nn.Linear(d_model, d_rotary, bias=False) if d_rotary else None
        self.w_k = nn.Linear(d_latent, n_heads * d_head, bias=False)
        self.w_v = nn.Linear(d_latent, n_heads * d_value, bias=False)
        self.w_o = nn.Linear(n_heads * d_value, d_model, bias=False)

    def forward(
        self,
        x: Float[Tensor, "b n d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: LatentCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
        absorbed: bool = False,
    ) -> Float[Tensor, "b n d_model"]:
        """Return the output of the layer: each row of ``x`` attends to the rows of ``x`` and to those in the cache.

        Args:
            x: the input of the queries and latent vectors.
            mask: as for :class:`~lessons_lib.attention.multihead.MultiHeadAttention`; the layer applies no causal mask
                of its own.
            cache: the latent vectors and rotated keys of earlier calls; those of this call are appended.
            positions: the positions of the rows of ``x``, over ``(n,)`` or ``(b, n)``. If omitted, they start at the
                length of the cache, or at 0.
            absorbed: whether queries are projected into the space of the latent vectors, instead of computing keys and
                values from the latent vectors. The output is the same up to rounding.
        """
        latent, k_rotary, q, q_rotary = self._project(x, cache, positions)
        if absorbed:
            q = torch.einsum("bhnd,hdc->bhnc", q, self._weight_per_head(self.w_k))
            k = torch.cat([latent, k_rotary], dim=-1)[:, None]
            latent_averages = attention(torch.cat([q, q_rotary], dim=-1), k, latent[:, None], mask, scale=self.scale)
            heads = torch.einsum("bhnc,hdc->bhnd", latent_averages, self._weight_per_head(self.w_v))
        else:
            v = rearrange(self.w_v(latent), "b m (h d) -> b h m d", h=self.n_heads)
            heads = attention(torch.cat([q, q_rotary], dim=-1), self._keys(latent, k_rotary), v, mask, scale=self.scale)
        return self.w_o(rearrange(heads, "b h n d -> b n (h d)"))

    def weights(
        self,
        x: Float[Tensor, "b n d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: LatentCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """Return the attention weights of each head in ``forward``; nothing is appended to the cache."""
        latent, k_rotary, q, q_rotary = self._project(x, copy(cache), positions)
        return attention_weights(torch.cat([q, q_rotary], dim=-1), self._keys(latent, k_rotary), mask, scale=self.scale)

    def _project(
        self, x: Tensor, cache: LatentCache | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Append to the cache; return latent vectors and rotated keys of all positions, and both parts of the queries.

        The queries are over ``(b, h, n, d_head)`` and ``(b, h, n, d_rotary)``.
        """
        check_vectors(x, self.w_latent.in_features)
        if x.ndim != 3:
            raise ValueError(f"x must be (b, n, d_model), got {tuple(x.shape)}")
        if positions is not None and self.rotary is None:
            raise ValueError("positions must be None for a layer with d_rotary=0, which rotates nothing")
        q, q_rotary = rearrange(self.w_q(x), "b n (h d) -> b h n d", h=self.n_heads).split(
            [self.d_head, self.d_rotary], dim=-1
        )
        latent, k_rotary = self.norm(self.w_latent(x)), x[..., :0]
        if self.rotary is not None and self.w_k_rotary is not None:
            start = 0 if cache is None else len(cache)
            if positions is None:
                positions = torch.arange(start, start + x.shape[1], device=x.device)
            k_rotary = self.rotary(self.w_k_rotary(x), positions)
            q_rotary = self.rotary(q_rotary, positions[:, None] if positions.ndim == 2 else positions)
        if cache is not None:
            latent, k_rotary = cache.append(latent, k_rotary)
        return latent, k_rotary, q, q_rotary

    def _keys(self, latent: Tensor, k_rotary: Tensor) -> Tensor:
        """Return the keys of each head, over ``(b, h, m, d_head + d_rotary)``."""
        k = rearrange(self.w_k(latent), "b m (h d) -> b h m d", h=self.n_heads)
        return torch.cat([k, repeat(k_rotary, "b m d -> b h m d", h=self.n_heads)], dim=-1)

    def _weight_per_head(self, layer: nn.Linear) -> Tensor:
        """Return the weight of a projection, over ``(h, d, d_latent)``."""
        return rearrange(layer.weight, "(h d) c -> h d c", h=self.n_heads)
