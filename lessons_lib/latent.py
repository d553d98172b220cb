"""Multi-head latent attention: keys and values of all heads are made from one short vector, and only it is kept.

Grouped heads make a token cheap to remember by letting heads share keys and values. Here each head has its own, but
all are linear in a latent vector, so that it suffices to remember that. And since they are linear, they need not even
be made: a query can be carried over to the latent vectors instead, and asks those.
"""

import math
from copy import copy

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from lessons_lib.attention import attention, attention_weights
from lessons_lib.norms import RMSNorm
from lessons_lib.positions import ROPE_BASE, Pairing, RotaryEmbedding
from lessons_lib.rules import Rule
from lessons_lib.shapes import check_size, check_vectors


class LatentCache:
    """What one layer remembers of the positions that it has seen: a latent vector and a rotated key for each.

    A position costs ``d_latent + d_rotary`` numbers in each sequence and layer, whatever the number of heads. Each
    call makes new tensors, so gradients may pass, and a copy (``copy.copy``) goes its own way.
    """

    def __init__(self) -> None:
        self.kept: tuple[Float[Tensor, "b n d_latent"], Float[Tensor, "b n d_rotary"]] | None = None

    def __len__(self) -> int:
        """The number of positions seen."""
        return 0 if self.kept is None else self.kept[0].shape[1]

    @property
    def n_bytes(self) -> int:
        """Memory that is taken."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.kept or ())

    def append(
        self, latent: Float[Tensor, "b n d_latent"], k_rotary: Float[Tensor, "b n d_rotary"]
    ) -> tuple[Float[Tensor, "b m d_latent"], Float[Tensor, "b m d_rotary"]]:
        """Add what is remembered of the next ``n`` positions and return that of all ``m`` seen so far.

        Raises:
            ValueError: if the two are not of the same batch and length, or do not continue what is kept.
        """
        if latent.ndim != 3 or latent.shape[:2] != k_rotary.shape[:2]:
            raise ValueError(
                "latent and k_rotary must be (b, n, d_latent) and (b, n, d_rotary), "
                f"got {tuple(latent.shape)} and {tuple(k_rotary.shape)}"
            )
        if self.kept is not None:
            for name, old, new in zip(("latent", "k_rotary"), self.kept, (latent, k_rotary), strict=True):
                if (old.shape[0], old.shape[2], old.dtype) != (new.shape[0], new.shape[2], new.dtype):
                    raise ValueError(
                        f"{name} must continue what the cache keeps, {tuple(old.shape)} of {old.dtype}, "
                        f"got {tuple(new.shape)} of {new.dtype}; a new batch needs a new cache"
                    )
            latent, k_rotary = torch.cat([self.kept[0], latent], dim=1), torch.cat([self.kept[1], k_rotary], dim=1)
        self.kept = latent, k_rotary
        return self.kept


class LatentAttention(nn.Module):
    r"""Attend with keys and values that are made from one short vector for each token (MLA [1]_).

    .. math::
        c_t &= \operatorname{norm}(W^{DKV} x_t), & k^i_t &= [\,W^{UK}_i c_t;\; R_t W^{KR} x_t\,],
            & v^i_t &= W^{UV}_i c_t, \\
        & & q^i_t &= [\,W^{Q}_i x_t;\; R_t W^{QR}_i x_t\,], & o_t &= \sum_i W^O_i \sum_s a^i_{ts} v^i_s

    with weights :math:`a^i_t = \operatorname{softmax}_s\big(q^i_t \cdot k^i_s / \sqrt{d_\text{head} + d_\text{rotary}}
    \big)`. Only :math:`c_t` and the rotated key :math:`R_t W^{KR} x_t`, one for all heads, are kept.

    **Two ways to the same output.** As written, keys and values of all heads are made anew from what is kept. Or the
    two products with :math:`c` are moved to the other side,

    .. math:: (W^Q_i x_t) \cdot (W^{UK}_i c_s) = \big(W^{UK\top}_i W^Q_i x_t\big) \cdot c_s, \qquad
              \sum_s a^i_{ts} W^{UV}_i c_s = W^{UV}_i \sum_s a^i_{ts} c_s,

    and the layer is multi-query attention over the latent vectors themselves: nothing is made for the tokens of the
    past. That is what decoding does (``absorbed=True``). It is also why position has a key of its own: a rotation
    :math:`R_t` between :math:`W^{UK}_i` and the query depends on both tokens and could not be moved.

    Args:
        d_model: width of the vectors that come in and go out.
        n_heads: number of heads :math:`h`.
        d_latent: width of :math:`c`.
        d_head: width of a head's query and key without position.
        d_rotary: width of the rotated key that all heads share; even, or 0 for a layer without positions.
        d_value: width of a head's value, as ``d_head`` if omitted.
        d_query_latent: if given, queries too are made from a normed vector of this width, which saves weights in
            training and nothing in the cache.
        base: of the rotation, as in :class:`~lessons_lib.positions.RotaryEmbedding`.
        pairing: likewise; DeepSeek's weights are ``"interleaved"``.

    Raises:
        ValueError: if a size is out of range; when called, if shapes do not fit.

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
    ) -> None:
        super().__init__()
        d_value = d_head if d_value is None else d_value
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_latent": d_latent, "d_head": d_head, "d_value": d_value}
        for name, size in sizes.items():
            check_size(name, size, at_least=1)
        check_size("d_rotary", d_rotary, at_least=0)
        self.n_heads, self.d_head, self.d_rotary = n_heads, d_head, d_rotary
        self.rotary = RotaryEmbedding(d_rotary, base=base, pairing=pairing) if d_rotary else None

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
        """Let each position gather from ``x``, and from what the cache remembers.

        Args:
            x: what queries and latent vectors are made from.
            mask: as for :class:`~lessons_lib.multihead.MultiHeadAttention`; the layer hides nothing by itself.
            cache: what earlier calls left; it grows.
            positions: where the rows of ``x`` stand, over ``(n,)`` or ``(b, n)``; they follow on from the cache if
                omitted.
            absorbed: whether queries go to the latent vectors, instead of keys and values being made from them. The
                output is the same up to rounding.
        """
        latent, k_rotary, q, q_rotary = self._remember_and_ask(x, cache, positions)
        if absorbed:
            q = torch.einsum("bhnd,hdc->bhnc", q, self._of_heads(self.w_k))
            k = torch.cat([latent, k_rotary], dim=-1)[:, None]
            mixed = attention(torch.cat([q, q_rotary], dim=-1), k, latent[:, None], mask, scale=self._scale)
            heads = torch.einsum("bhnc,hdc->bhnd", mixed, self._of_heads(self.w_v))
        else:
            v = rearrange(self.w_v(latent), "b m (h d) -> b h m d", h=self.n_heads)
            heads = attention(
                torch.cat([q, q_rotary], dim=-1), self._keys(latent, k_rotary), v, mask, scale=self._scale
            )
        return self.w_o(rearrange(heads, "b h n d -> b n (h d)"))

    def weights(
        self,
        x: Float[Tensor, "b n d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: LatentCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """Return the weights that ``forward`` averages with; the cache is only looked at."""
        latent, k_rotary, q, q_rotary = self._remember_and_ask(x, copy(cache), positions)
        return attention_weights(
            torch.cat([q, q_rotary], dim=-1), self._keys(latent, k_rotary), mask, scale=self._scale
        )

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.d_head + self.d_rotary)

    def _remember_and_ask(
        self, x: Tensor, cache: LatentCache | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Latent vectors and rotated keys of all positions; both parts of the queries over ``(b, h, n, …)``."""
        check_vectors(x, self.w_latent.in_features)
        if x.ndim != 3:
            raise ValueError(f"x must be (b, n, d_model), got {tuple(x.shape)}")
        if positions is not None and self.rotary is None:
            raise ValueError("positions must be None for a layer with d_rotary=0: it has no use for them")
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
        """Each head's own keys, over ``(b, h, m, d_head + d_rotary)``."""
        own = rearrange(self.w_k(latent), "b m (h d) -> b h m d", h=self.n_heads)
        return torch.cat([own, repeat(k_rotary, "b m d -> b h m d", h=self.n_heads)], dim=-1)

    def _of_heads(self, layer: nn.Linear) -> Tensor:
        """A projection's weights over ``(h, d, d_latent)``."""
        return rearrange(layer.weight, "(h d) c -> h d c", h=self.n_heads)
