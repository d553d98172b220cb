r"""The encoder-decoder Transformer of 2017: the decoder predicts the target and attends to the encoded source.

.. [1] Vaswani et al., *Attention Is All You Need*, 2017. arXiv:1706.03762.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lessons_lib.attention.multihead import MultiHeadAttention, mask_for_layers
from lessons_lib.attention.positions import sinusoidal
from lessons_lib.attention.rules import Causal, Rule, as_rule, check_fits_scores, hides_whole_keys
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.foundations.norms import LayerNorm
from lessons_lib.foundations.validation import check_fraction, check_integers, check_size, values_can_be_read
from lessons_lib.transformer.blocks import CrossAttentionBlock, PostNorm, PreNorm, TransformerBlock
from lessons_lib.transformer.feedforward import FeedForward, relu
from lessons_lib.transformer.initialise import initialise_xavier

NormOrder = Literal["post", "pre"]


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Configuration of an :class:`EncoderDecoder`; the defaults are those of the paper's base model [1]_.

    >>> EncoderDecoderConfig(37_000).n_parameters()
    63045632

    Args:
        vocab_size: number of tokens in the vocabulary that source and target share.
        d_model: width of the residual streams. It must be even, because of the sinusoidal positions.
        n_layers: number of blocks in the encoder, and in the decoder.
        n_heads: number of heads in each attention layer.
        d_ff: hidden width of the feed-forward layers.
        norm_order: ``"post"`` as in the paper, or ``"pre"``.
        final_norm: whether each stack ends in a norm. By default only with ``"pre"``, which needs one; PyTorch's
            ``nn.Transformer`` has one in either order.
        bias: whether the projections of the attention layers have biases. Feed-forward layers and norms always have.
        dropout: dropout probability in training, applied to the embedded tokens, the attention weights, the hidden
            entries of the feed-forward layers and the output of each sublayer. The paper uses 0.1, for the first and
            the last of these.

    Raises:
        ValueError: if a size is not a positive integer, ``d_model`` is odd or not a multiple of ``n_heads``,
            ``norm_order`` has another value, or dropout is not in ``[0, 1)``.
    """

    vocab_size: int
    _: KW_ONLY
    d_model: int = 512
    n_layers: int = 6
    n_heads: int = 8
    d_ff: int = 2048
    norm_order: NormOrder = "post"
    final_norm: bool | None = None
    bias: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff"):
            check_size(name, getattr(self, name), at_least=1)
        if self.d_model % 2 or self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be even and a multiple of n_heads, got d_model={self.d_model}, n_heads={self.n_heads}"
            )
        if self.norm_order not in get_args(NormOrder):
            raise ValueError(f"norm_order must be one of {get_args(NormOrder)}, got {self.norm_order!r}")
        check_fraction("dropout", self.dropout)

    @property
    def ends_in_norm(self) -> bool:
        """Whether each stack ends in a norm: ``final_norm`` or its default."""
        return self.norm_order == "pre" if self.final_norm is None else self.final_norm

    def n_parameters(self) -> int:
        r"""Return the number of parameters, by formula, for :math:`L` layers in each stack.

        .. math::
            V d + L \left(12 d^2 + 2 \left(2 d\, d_{\text{ff}} + d_{\text{ff}} + d\right) + 10 d \right)

        These are the embedding, which is also the output head, and for each pair of blocks three attention layers of
        :math:`4 d^2`, two feed-forward layers and five norms. Attention biases add :math:`12 d L`, the final norms
        :math:`4 d`.
        """
        d, layers = self.d_model, self.n_layers
        attentions = 3 * (4 * d * d + self.bias * 4 * d)
        feedforwards = 2 * (2 * d * self.d_ff + self.d_ff + d)
        return self.vocab_size * d + layers * (attentions + feedforwards + 5 * 2 * d) + self.ends_in_norm * 4 * d


class Encoder(nn.Module):
    """A stack of blocks with bidirectional self-attention."""

    def __init__(self, blocks: list[TransformerBlock], norm: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), norm

    def forward(
        self, x: Float[Tensor, "b m d_model"], mask: Rule | Bool[Tensor, "*#batch #m #m"] | None = None
    ) -> Float[Tensor, "b m d_model"]:
        """Encode the source; ``mask`` hides some of its positions, for instance the padding."""
        mask = mask_for_layers(self, mask, x.shape[1], x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of blocks with causal self-attention, and cross-attention over all of the context."""

    def __init__(self, blocks: list[CrossAttentionBlock], norm: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), norm

    def forward(
        self,
        x: Float[Tensor, "b n d_model"],
        context: Float[Tensor, "b m d_model"],
        mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None,
        context_mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n d_model"]:
        """Decode the target. Self-attention is always causal.

        ``mask`` can only hide more positions of ``x``; ``context_mask`` hides positions of the context.
        """
        n, m = x.shape[1], context.shape[1]
        rule = Causal() if mask is None else Causal() & as_rule(mask, n)
        mask, context_mask = (
            mask_for_layers(self, rule, n, n, x.device),
            mask_for_layers(self, context_mask, n, m, x.device),
        )
        for block in self.blocks:
            x = block(x, context, mask, context_mask)
        return self.norm(x)


class EncoderDecoder(nn.Module):
    r"""Encoder-decoder Transformer: predicts each target token from the tokens before it and the whole source [1]_.

    .. math::
        C = \operatorname{encoder}(\sqrt{d}\, E_s + P), \qquad
        \text{logits} = \operatorname{decoder}(\sqrt{d}\, E_t + P,\; C)\, E^\top

    Source, target and output head share one embedding :math:`E` (section 3.4). It is initialised with standard
    deviation :math:`1/\sqrt{d}`, so that the scaled token embeddings are about as long as the sinusoidal positions
    :math:`P` that are added to them. All other matrices are initialised by the uniform rule of Xavier (Glorot & Bengio,
    2010), biases to zero.

    >>> model = EncoderDecoder(EncoderDecoderConfig(13, d_model=8, n_layers=1, n_heads=2, d_ff=16))
    >>> model(torch.randint(13, (2, 7)), torch.randint(13, (2, 5))).shape
    torch.Size([2, 5, 13])

    Args:
        config: sizes and options of the model.
        implementation: the attention function, see :class:`~lessons_lib.attention.multihead.MultiHeadAttention`.
    """

    def __init__(
        self, config: EncoderDecoderConfig, *, implementation: Callable[..., Tensor] = fused_attention
    ) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        wrap = {"post": PostNorm, "pre": PreNorm}[config.norm_order]

        def attention_sublayer() -> nn.Module:
            layer = MultiHeadAttention(
                d_model, config.n_heads, bias=config.bias, dropout=config.dropout, implementation=implementation
            )
            return wrap(layer, LayerNorm(d_model), dropout=config.dropout)

        def feedforward_sublayer() -> nn.Module:
            layer = FeedForward(d_model, config.d_ff, activation=relu, dropout=config.dropout)
            return wrap(layer, LayerNorm(d_model), dropout=config.dropout)

        def final_norm() -> nn.Module:
            return LayerNorm(d_model) if config.ends_in_norm else nn.Identity()

        layers = range(config.n_layers)
        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(
            [TransformerBlock(attention_sublayer(), feedforward_sublayer()) for _ in layers], final_norm()
        )
        self.decoder = Decoder(
            [CrossAttentionBlock(attention_sublayer(), attention_sublayer(), feedforward_sublayer()) for _ in layers],
            final_norm(),
        )
        initialise_xavier(self, uniform=True)

    @property
    def initial_std(self) -> dict[str, float]:
        """Initial standard deviation of the embedding, read by :mod:`lessons_lib.transformer.initialise`."""
        return {"embedding.weight": 1 / math.sqrt(self.config.d_model)}

    def forward(
        self,
        source: Int[Tensor, "b m"],
        target: Int[Tensor, "b n"],
        *,
        source_mask: Rule | Bool[Tensor, "#b 1 1 m"] | None = None,
        target_mask: Rule | Bool[Tensor, "#b 1 1 n"] | None = None,
    ) -> Float[Tensor, "b n vocab"]:
        """Return the logits of the token after each position of the target.

        Args:
            source: the source tokens.
            target: the target tokens so far. In training these are all target tokens, after a start token.
            source_mask: padding mask of the source, True where a token is real, as
                :func:`lessons_lib.attention.masks.padding` returns it, or the rule ``Padding(lengths)``. Padding is
                hidden from the encoder and from the decoder.
            target_mask: padding mask of the target, applied together with the causal mask.

        Raises:
            ValueError: if tokens are out of range, source and target do not both have one row per sequence, or a mask
                does not fit.
        """
        self._check(source, target, source_mask, target_mask)
        context = self.encoder(self._embed(source), source_mask)
        x = self.decoder(self._embed(target), context, target_mask, source_mask)
        return x @ self.embedding.weight.T

    def _embed(self, tokens: Tensor) -> Tensor:
        scaled = math.sqrt(self.config.d_model) * self.embedding(tokens)
        positions = sinusoidal(tokens.shape[1], self.config.d_model, device=tokens.device)
        return self.dropout(scaled + positions.to(scaled.dtype))

    def _check(
        self, source: Tensor, target: Tensor, source_mask: Rule | Tensor | None, target_mask: Rule | Tensor | None
    ) -> None:
        last = self.config.vocab_size - 1
        for name, tokens, mask in (("source", source, source_mask), ("target", target, target_mask)):
            check_integers(name, tokens, "b rows")
            if not tokens.numel() or tokens.shape[0] != source.shape[0]:
                raise ValueError(
                    f"{name} must be (b, rows) with at least one token, and the same b for source and target, "
                    f"got shape {tuple(tokens.shape)}"
                )
            if values_can_be_read(tokens) and ((tokens < 0) | (tokens > last)).any():
                raise ValueError(
                    f"{name} must hold tokens in 0 .. vocab_size - 1 = {last}, "
                    f"got {tokens.min().item()} .. {tokens.max().item()}"
                )
            b, n = tokens.shape
            if isinstance(mask, Rule):
                check_fits_scores(mask, (b, 1, n, n))
                if not hides_whole_keys(mask):
                    raise ValueError(f"{name}_mask must say which tokens are real, as Padding does, got {mask}")
            elif mask is not None and (mask.dtype != torch.bool or mask.shape not in ((b, 1, 1, n), (1, 1, 1, n))):
                raise ValueError(
                    f"{name}_mask must be Boolean over (b, 1, 1, rows) = {(b, 1, 1, n)}, as masks.padding returns it, "
                    f"got {mask.dtype} over {tuple(mask.shape)}"
                )
