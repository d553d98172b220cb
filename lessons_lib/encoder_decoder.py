r"""The Transformer of 2017: an encoder reads the source, a decoder writes the target and looks back at what was read.

.. [1] Vaswani et al., *Attention Is All You Need*, 2017. arXiv:1706.03762.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lessons_lib.blocks import CrossAttentionBlock, PostNorm, PreNorm, TransformerBlock
from lessons_lib.feedforward import FeedForward, relu
from lessons_lib.fused import fused_attention
from lessons_lib.initialise import initialise_xavier
from lessons_lib.multihead import MultiHeadAttention, as_layers_take
from lessons_lib.norms import LayerNorm
from lessons_lib.positions import sinusoidal
from lessons_lib.rules import Causal, Rule, as_rule, check_over, hides_whole_keys
from lessons_lib.shapes import check_integers, check_share, check_size, values_can_be_read

NormOrder = Literal["post", "pre"]


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """Sizes and choices of an :class:`EncoderDecoder`; those that are not given are the base model's of the paper [1]_.

    Args:
        vocab_size: number of tokens, one vocabulary for source and target.
        d_model: width of the residual streams; even, for the sinusoidal positions.
        n_layers: number of blocks in the encoder, and in the decoder.
        n_heads: number of heads in each attention.
        d_ff: width inside a feed-forward.
        norm_order: ``"post"`` as in the paper, or ``"pre"``.
        final_norm: whether each stack ends in a norm. If omitted, with ``"pre"`` only, which needs one; PyTorch's
            ``nn.Transformer`` has one in either order.
        bias: whether the attentions' projections have biases; feed-forwards and norms always have.
        dropout: probability in training: of the embedded tokens, the attentions' weights, the feed-forwards' hidden
            entries and what each sublayer adds. The paper has 0.1, in the first and last of these.

    Raises:
        ValueError: if a size is not a positive integer, ``d_model`` is odd or no multiple of ``n_heads``, the norm
            order has another name, or dropout is not in ``[0, 1)``.
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
        check_share("dropout", self.dropout)

    @property
    def ends_in_norm(self) -> bool:
        """``final_norm`` or its default."""
        return self.norm_order == "pre" if self.final_norm is None else self.final_norm

    def n_parameters(self) -> int:
        r"""Return the number of weights, by formula, for :math:`L` layers in each stack.

        .. math::
            V d + L \left(12 d^2 + 2 \left(2 d\, d_{\text{ff}} + d_{\text{ff}} + d\right) + 10 d \right)

        the embedding, which is the head too; in each pair of blocks three attentions of :math:`4 d^2`, two
        feed-forwards and five norms. Biases of the attentions add :math:`12 d L`, the norms at the ends :math:`4 d`.
        """
        d, layers = self.d_model, self.n_layers
        attentions = 3 * (4 * d * d + self.bias * 4 * d)
        feedforwards = 2 * (2 * d * self.d_ff + self.d_ff + d)
        return self.vocab_size * d + layers * (attentions + feedforwards + 5 * 2 * d) + self.ends_in_norm * 4 * d


class Encoder(nn.Module):
    """A stack of blocks in which every position sees every other."""

    def __init__(self, blocks: list[TransformerBlock], norm: nn.Module) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), norm

    def forward(
        self, x: Float[Tensor, "b m d_model"], mask: Rule | Bool[Tensor, "*#batch #m #m"] | None = None
    ) -> Float[Tensor, "b m d_model"]:
        """Let the positions of the source inform one another; ``mask`` hides some, its padding for instance."""
        mask = as_layers_take(self, mask, x.shape[1], x.shape[1], x.device)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of blocks that see their own past, and all of the context."""

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
        """Causal by construction: ``mask`` can only hide more of ``x``; ``context_mask`` hides some of the context."""
        n, m = x.shape[1], context.shape[1]
        rule = Causal() if mask is None else Causal() & as_rule(mask, n)
        mask, context_mask = (
            as_layers_take(self, rule, n, n, x.device),
            as_layers_take(self, context_mask, n, m, x.device),
        )
        for block in self.blocks:
            x = block(x, context, mask, context_mask)
        return self.norm(x)


class EncoderDecoder(nn.Module):
    r"""Predict each next token of a target from the tokens before it and from the whole source [1]_.

    .. math::
        C = \operatorname{encoder}(\sqrt{d}\, E_s + P), \qquad
        \text{logits} = \operatorname{decoder}(\sqrt{d}\, E_t + P,\; C)\, E^\top

    One embedding :math:`E` serves source, target and head (section 3.4). It starts with standard deviation
    :math:`1/\sqrt{d}`, so that scaled tokens are about as long as the sinusoidal positions :math:`P` beside them;
    matrices start as Xavier's uniform ones (Glorot & Bengio, 2010), biases at zero.

    Args:
        config: what to build.
        implementation: computes the attention, see :class:`~lessons_lib.multihead.MultiHeadAttention`.
    """

    def __init__(
        self, config: EncoderDecoderConfig, *, implementation: Callable[..., Tensor] = fused_attention
    ) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        wrap = {"post": PostNorm, "pre": PreNorm}[config.norm_order]

        def attend() -> nn.Module:
            layer = MultiHeadAttention(
                d_model, config.n_heads, bias=config.bias, dropout=config.dropout, implementation=implementation
            )
            return wrap(layer, LayerNorm(d_model), dropout=config.dropout)

        def feed() -> nn.Module:
            network = FeedForward(d_model, config.d_ff, activation=relu, dropout=config.dropout)
            return wrap(network, LayerNorm(d_model), dropout=config.dropout)

        def last() -> nn.Module:
            return LayerNorm(d_model) if config.ends_in_norm else nn.Identity()

        layers = range(config.n_layers)
        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder([TransformerBlock(attend(), feed()) for _ in layers], last())
        self.decoder = Decoder([CrossAttentionBlock(attend(), attend(), feed()) for _ in layers], last())
        initialise_xavier(self, uniform=True)

    @property
    def initial_std(self) -> dict[str, float]:
        """How large tokens start beside the positions, see :mod:`lessons_lib.initialise`."""
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
            source: what is read.
            target: what has been written so far. In training the whole of it, after a token that starts every text.
            source_mask: True where a source token is real, as :func:`lessons_lib.masks.padding` returns it, or the rule
                ``Padding(lengths)``; nobody sees the others, neither in the encoder nor from the decoder.
            target_mask: the same for the target, beside the causal mask.

        Raises:
            ValueError: if tokens are out of range or not one row per sequence on both sides, or a mask does not fit.
        """
        self._check(source, target, source_mask, target_mask)
        context = self.encoder(self._embed(source), source_mask)
        x = self.decoder(self._embed(target), context, target_mask, source_mask)
        return x @ self.embedding.weight.T

    def _embed(self, tokens: Tensor) -> Tensor:
        scaled = math.sqrt(self.config.d_model) * self.embedding(tokens)
        places = sinusoidal(tokens.shape[1], self.config.d_model, device=tokens.device)
        return self.dropout(scaled + places.to(scaled.dtype))

    def _check(
        self, source: Tensor, target: Tensor, source_mask: Rule | Tensor | None, target_mask: Rule | Tensor | None
    ) -> None:
        last = self.config.vocab_size - 1
        for name, tokens, mask in (("source", source, source_mask), ("target", target, target_mask)):
            check_integers(name, tokens, "b rows")
            if not tokens.numel() or tokens.shape[0] != source.shape[0]:
                raise ValueError(
                    f"{name} must be over (b, rows) with one b for both sides, at least one, "
                    f"got shape {tuple(tokens.shape)}"
                )
            if values_can_be_read(tokens) and ((tokens < 0) | (tokens > last)).any():
                raise ValueError(
                    f"{name} must hold tokens in 0 .. vocab_size - 1 = {last}, "
                    f"got {tokens.min().item()} .. {tokens.max().item()}"
                )
            b, n = tokens.shape
            if isinstance(mask, Rule):
                check_over(mask, (b, 1, n, n))
                if not hides_whole_keys(mask):
                    raise ValueError(f"{name}_mask must say which tokens are real, as Padding does, got {mask}")
            elif mask is not None and (mask.dtype != torch.bool or mask.shape not in ((b, 1, 1, n), (1, 1, 1, n))):
                raise ValueError(
                    f"{name}_mask must be Boolean over (b, 1, 1, rows) = {(b, 1, 1, n)}, as masks.padding returns it, "
                    f"got {mask.dtype} over {tuple(mask.shape)}"
                )
