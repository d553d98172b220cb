r"""Transformer blocks: sublayers in sequence, each of which adds its output to the residual stream.

The wrapper around a sublayer decides where its norm is placed: :class:`PreNorm`, :class:`PostNorm`, :class:`OutputNorm`
or :class:`SandwichNorm`::

    TransformerBlock(
        PreNorm(MultiHeadAttention(8, 2), LayerNorm(8)),
        PreNorm(FeedForward(8, 32), LayerNorm(8)),
    )

is GPT-2's block. With ``PostNorm`` it is the encoder block of 2017.
"""

from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.rules import Rule


class _ResidualBranch(nn.Module):
    """A residual connection around a sublayer: the input plus the output of ``branch``."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        """Apply the formula; all arguments after ``x`` are passed on to the sublayer."""
        return x + self.branch(x, *args, **kwargs)

    def branch(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        """Return what is added to the input."""
        raise NotImplementedError


class PreNorm(_ResidualBranch):
    r"""Residual connection around a sublayer whose *input* is normalised [1]_.

    .. math:: y = x + f(\operatorname{norm}(x))

    The residual stream itself is never normalised, so the length of its vectors grows with depth, and the last block
    must be followed by one more norm. The sum passes gradients to every layer unchanged.

    >>> import torch
    >>> from lessons_lib.foundations.norms import LayerNorm
    >>> PreNorm(nn.Linear(8, 8), LayerNorm(8))(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        sublayer: :math:`f`. It receives all further arguments of ``forward``.
        norm: a norm of :mod:`lessons_lib.foundations.norms`.
        dropout: dropout probability of the sublayer's output in training, before the sum.

    .. [1] Xiong et al., *On Layer Normalization in the Transformer Architecture*, 2020. arXiv:2002.04745.
    """

    def branch(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        r"""Return :math:`f(\operatorname{norm}(x))` without the sum, after dropout."""
        return self.dropout(self.sublayer(self.norm(x), *args, **kwargs))


class PostNorm(nn.Module):
    r"""Residual connection around a sublayer, with the norm *after* the sum, as in 2017 [2]_.

    .. math:: y = \operatorname{norm}(x + f(x))

    Every output vector has the length that the norm gives it. The arguments are those of :class:`PreNorm`.

    >>> import torch
    >>> from lessons_lib.foundations.norms import LayerNorm
    >>> PostNorm(nn.Linear(8, 8), LayerNorm(8))(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    .. [2] Vaswani et al., *Attention Is All You Need*, 2017, section 3.1. arXiv:1706.03762.
    """

    def __init__(self, sublayer: nn.Module, norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        """Apply the formula; all arguments after ``x`` are passed on to the sublayer."""
        return self.norm(x + self.dropout(self.sublayer(x, *args, **kwargs)))


class OutputNorm(_ResidualBranch):
    r"""Residual connection around a sublayer whose *output* is normalised before the sum, as in OLMo 2 [3]_.

    .. math:: y = x + \operatorname{norm}(f(x))

    The residual stream is not normalised, as with :class:`PreNorm`, but each sublayer adds vectors of the length that
    its norm gives them. The arguments are those of :class:`PreNorm`.

    >>> import torch
    >>> from lessons_lib.foundations.norms import RMSNorm
    >>> OutputNorm(nn.Linear(8, 8), RMSNorm(8))(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    .. [3] OLMo Team, *2 OLMo 2 Furious*, 2024, section 3.2. arXiv:2501.00656.
    """

    def branch(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        r"""Return :math:`\operatorname{norm}(f(x))` without the sum, after dropout."""
        return self.dropout(self.norm(self.sublayer(x, *args, **kwargs)))


class SandwichNorm(_ResidualBranch):
    r"""Residual connection around a sublayer whose input and output are both normalised, as in Gemma 2 [4]_.

    .. math:: y = x + \operatorname{norm}_{\text{out}}(f(\operatorname{norm}(x)))

    >>> import torch
    >>> from lessons_lib.foundations.norms import RMSNorm
    >>> SandwichNorm(nn.Linear(8, 8), RMSNorm(8), RMSNorm(8))(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        sublayer: :math:`f`. It receives all further arguments of ``forward``.
        norm: the norm of the input.
        output_norm: the norm of the output.
        dropout: dropout probability of the normalised output in training, before the sum.

    .. [4] Gemma Team, *Gemma 2*, 2024. arXiv:2408.00118. The name is from Ding et al., *CogView*, 2021.
       arXiv:2105.13290.
    """

    def __init__(self, sublayer: nn.Module, norm: nn.Module, output_norm: nn.Module, *, dropout: float = 0.0) -> None:
        super().__init__(sublayer, norm, dropout=dropout)
        self.output_norm = output_norm

    def branch(self, x: Float[Tensor, "b n d_model"], *args, **kwargs) -> Float[Tensor, "b n d_model"]:
        """Return the normalised output of the sublayer without the sum, after dropout."""
        return self.dropout(self.output_norm(self.sublayer(self.norm(x), *args, **kwargs)))


class TransformerBlock(nn.Module):
    r"""Transformer block: self-attention, which mixes tokens, then a feed-forward layer, which does not.

    .. math:: x' = \operatorname{attention}(x), \qquad y = \operatorname{feedforward}(x')

    Each of the two contains its own residual sum and norm. An encoder block and a GPT block differ only in the mask.

    >>> import torch
    >>> from lessons_lib.attention.multihead import MultiHeadAttention
    >>> from lessons_lib.attention.rules import Causal
    >>> from lessons_lib.foundations.norms import LayerNorm
    >>> block = TransformerBlock(PreNorm(MultiHeadAttention(8, 2), LayerNorm(8)), nn.Identity())
    >>> block(torch.randn(2, 5, 8), mask=Causal()).shape
    torch.Size([2, 5, 8])

    Args:
        attention: a :class:`~lessons_lib.attention.multihead.MultiHeadAttention` in one of the wrappers above.
        feedforward: a layer of :mod:`lessons_lib.transformer.feedforward` in a wrapper, or ``torch.nn.Identity()`` for
            a block without feed-forward layer.
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
        """Apply both sublayers. Arguments and errors are those of ``MultiHeadAttention.forward``, without a context."""
        return self.feedforward(self.attention(x, mask=mask, cache=cache, positions=positions, bias=bias))


class ParallelBlock(TransformerBlock):
    r"""Transformer block whose two sublayers read the same input, so that they can be computed at once [5]_.

    .. math:: y = x + \operatorname{attention}(\operatorname{norm}(x))
              + \operatorname{feedforward}(\operatorname{norm}'(x))

    GPT-J introduced it with one norm for both, GPT-NeoX has two.

    >>> import torch
    >>> from lessons_lib.attention.multihead import MultiHeadAttention
    >>> from lessons_lib.foundations.norms import LayerNorm
    >>> from lessons_lib.transformer.feedforward import FeedForward
    >>> block = ParallelBlock(
    ...     PreNorm(MultiHeadAttention(8, 2), LayerNorm(8)), PreNorm(FeedForward(8, 32), LayerNorm(8))
    ... )
    >>> block(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        attention: a :class:`~lessons_lib.attention.multihead.MultiHeadAttention` in a wrapper with a method ``branch``:
            :class:`PreNorm`, :class:`OutputNorm` or :class:`SandwichNorm`.
        feedforward: a layer of :mod:`lessons_lib.transformer.feedforward` in such a wrapper.

    .. [5] Black et al., *GPT-NeoX-20B*, 2022, section 2.1. arXiv:2204.06745.
    """

    def forward(
        self,
        x: Float[Tensor, "b n d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        cache: KVCache | None = None,
        *,
        positions: Num[Tensor, "*#rows n"] | None = None,
        bias: Float[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n d_model"]:
        """Apply the formula. Arguments and errors are those of :meth:`TransformerBlock.forward`."""
        attended = self.attention.branch(x, mask=mask, cache=cache, positions=positions, bias=bias)  # type: ignore[operator]
        return x + attended + self.feedforward.branch(x)  # type: ignore[operator]


class CrossAttentionBlock(nn.Module):
    r"""Decoder block: self-attention, then cross-attention over a context, then a feed-forward layer.

    .. math:: x' = \operatorname{attention}(x), \qquad x'' = \operatorname{cross\_attention}(x', C), \qquad
              y = \operatorname{feedforward}(x'')

    This block does not normalise the context.

    >>> import torch
    >>> from lessons_lib.attention.multihead import MultiHeadAttention
    >>> from lessons_lib.foundations.norms import LayerNorm
    >>> attention, cross_attention = (PostNorm(MultiHeadAttention(8, 2), LayerNorm(8)) for _ in range(2))
    >>> block = CrossAttentionBlock(attention, cross_attention, nn.Identity())
    >>> block(torch.randn(2, 5, 8), torch.randn(2, 7, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        attention: self-attention, in one of the wrappers above.
        cross_attention: attention over the context, in a wrapper.
        feedforward: a feed-forward layer in a wrapper, or ``torch.nn.Identity()`` for a block without one.
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
        """Apply the three sublayers; ``mask`` is for the self-attention, ``context_mask`` for the cross-attention."""
        x = self.attention(x, mask=mask)
        x = self.cross_attention(x, context, mask=context_mask)
        return self.feedforward(x)
