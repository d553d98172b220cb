r"""The Transformer's block: sublayers one after another, each of which adds to the residual stream.

Where the norm stands is a matter of which wrapper a sublayer is put in, :class:`PreNorm` or :class:`PostNorm`::

    TransformerBlock(
        PreNorm(MultiHeadAttention(8, 2), LayerNorm(8)),
        PreNorm(FeedForward(8, 32), LayerNorm(8)),
    )

is GPT-2's block; with ``PostNorm`` it is the encoder's of 2017.
"""

from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from lessons_lib.multihead import KVCache
from lessons_lib.rules import Rule


class PreNorm(nn.Module):
    r"""Add to the stream what a sublayer makes of its *normalised* content [1]_.

    .. math:: y = x + f(\operatorname{norm}(x))

    The stream itself is never normalised, so its length grows with depth, and the last block is to be followed by one
    more norm. Gradients reach every layer through the sum untouched.

    Args:
        sublayer: :math:`f`; receives whatever else ``forward`` is given.
        norm: one of :mod:`lessons_lib.norms`.
        dropout: share of the sublayer's output that is dropped in training, before the sum.

    .. [1] Xiong et al., *On Layer Normalization in the Transformer Architecture*, 2020. arXiv:2002.04745.
    """

    def __init__(self, sublayer: nn.Module, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        """Apply the formula; all that follows ``x`` goes to the sublayer."""
        return x + self.dropout(self.sublayer(self.norm(x), *args, **kwargs))


class PostNorm(nn.Module):
    r"""Normalise the stream *after* a sublayer has added to it, as in 2017 [2]_.

    .. math:: y = \operatorname{norm}(x + f(x))

    Every vector leaves with the norm's length. Arguments as :class:`PreNorm`.

    .. [2] Vaswani et al., *Attention Is All You Need*, 2017, section 3.1. arXiv:1706.03762.
    """

    def __init__(self, sublayer: nn.Module, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        """Apply the formula; all that follows ``x`` goes to the sublayer."""
        return self.norm(x + self.dropout(self.sublayer(x, *args, **kwargs)))


class TransformerBlock(nn.Module):
    r"""Let tokens exchange information, then let each work on its own.

    .. math:: x' = \operatorname{attention}(x), \qquad y = \operatorname{feedforward}(x')

    with the residual sum and the norm inside each of the two. An encoder's block and a GPT's differ by the mask alone.

    Args:
        attention: a :class:`~lessons_lib.multihead.MultiHeadAttention` in one of the wrappers above.
        feedforward: a network of :mod:`lessons_lib.feedforward` in a wrapper; ``torch.nn.Identity()`` for none.
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.attention, self.feedforward = attention, feedforward

    def forward(
        self,
        x: Float[Tensor, "b n d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: KVCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
        bias: Float[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n d_model"]:
        """Arguments and errors as ``MultiHeadAttention.forward``; there is no context here."""
        return self.feedforward(self.attention(x, mask=mask, cache=cache, positions=positions, bias=bias))


class CrossAttentionBlock(nn.Module):
    r"""Let tokens exchange information, then gather from a context, then work each on its own: a decoder's block.

    .. math:: x' = \operatorname{attention}(x), \qquad x'' = \operatorname{cross\_attention}(x', C), \qquad
              y = \operatorname{feedforward}(x'')

    The context comes in as it is, not through a norm of this block.

    Args:
        attention: attention over the sequence itself, in one of the wrappers above.
        cross_attention: attention over the context, in a wrapper.
        feedforward: a network in a wrapper; ``torch.nn.Identity()`` for none.
    """

    def __init__(self, attention: nn.Module, cross_attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.attention, self.cross_attention, self.feedforward = attention, cross_attention, feedforward

    def forward(
        self,
        x: Float[Tensor, "b n d_model"],
        context: Float[Tensor, "b m d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None,
        context_mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n d_model"]:
        """``mask`` says which positions of ``x`` see one another, ``context_mask`` what they see of the context."""
        x = self.attention(x, mask=mask)
        x = self.cross_attention(x, context, mask=context_mask)
        return self.feedforward(x)
