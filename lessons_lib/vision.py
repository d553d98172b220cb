r"""The Vision Transformer: an image is cut into patches, and the patches are read like the words of a sentence.

.. [1] Dosovitskiy et al., *An Image is Worth 16x16 Words*, 2021. arXiv:2010.11929.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from lessons_lib.blocks import PreNorm, TransformerBlock
from lessons_lib.encoder_decoder import Encoder
from lessons_lib.feedforward import FeedForward
from lessons_lib.fused import fused_attention
from lessons_lib.initialise import initialise_xavier
from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.norms import LayerNorm
from lessons_lib.positions import LearnedPositions
from lessons_lib.rules import Rule
from lessons_lib.shapes import check_floating, check_share, check_size

# --- an image as a sequence -----------------------------------------------------------------------------------------


def patches(images: Shaped[Tensor, "*batch height width"], size: int) -> Shaped[Tensor, "*batch count pixels"]:
    r"""Cut each image into squares of ``size`` by ``size`` pixels that do not overlap, one row for each.

    .. math:: p_{\,r \cdot w/s + c,\; u s + v} = x_{\,r s + u,\; c s + v}

    for a width of :math:`w` and a size of :math:`s`. Squares come in the order of reading, row by row from the top
    left, and so do the pixels of each: ``count`` is ``height * width / size**2`` and ``pixels`` is ``size**2``.
    :func:`from_patches` puts them together again.

    ::

        >>> patches(torch.arange(8).view(2, 4), 2)
        tensor([[0, 1, 4, 5],
                [2, 3, 6, 7]])

    Raises:
        ValueError: if ``size`` is not a positive integer, or does not divide height and width.
    """
    check_size("size", size, at_least=1)
    if images.ndim < 2 or images.shape[-2] % size or images.shape[-1] % size:
        raise ValueError(
            f"images must be over (*batch, height, width), both multiples of size={size}, got {tuple(images.shape)}"
        )
    return rearrange(images, "... (r u) (c v) -> ... (r c) (u v)", u=size, v=size)


def from_patches(
    pieces: Shaped[Tensor, "*batch count pixels"], image_size: tuple[int, int]
) -> Shaped[Tensor, "*batch height width"]:
    """Put together what :func:`patches` cut: ``from_patches(patches(x, size), x.shape[-2:])`` is ``x``.

    Raises:
        ValueError: if ``image_size`` is not height and width, ``pixels`` is not a square number whose root divides
            both, or there are more or fewer pieces than the image has squares.
    """
    height, width = _checked_image_size(image_size)
    size = math.isqrt(pieces.shape[-1]) if pieces.ndim >= 2 else 0
    fits = size and pieces.shape[-1] == size**2 and height % size == 0 == width % size
    if not fits or pieces.shape[-2] * size**2 != height * width:
        raise ValueError(
            f"pieces must be over (*batch, count, pixels), the squares of an image of {height} by {width}, "
            f"got {tuple(pieces.shape)}"
        )
    return rearrange(pieces, "... (r c) (u v) -> ... (r u) (c v)", c=width // size, u=size)


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VisionConfig:
    """Sizes and choices of a :class:`VisionTransformer`.

    Args:
        image_size: height and width of the images, in pixels of one grey level each.
        patch_size: pixels along the side of a patch; divides both.
        n_classes: number of classes.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        n_heads: number of heads in each attention.
        d_ff: width inside a feed-forward; ``4 * d_model`` if omitted.
        summary: whether a token that belongs to no patch is read along and decides, as in the paper [1]_; without it
            the mean over the patches does.
        dropout: probability in training: of the embedded tokens, the feed-forwards' hidden entries and what each
            sublayer adds, as in the paper.

    Raises:
        ValueError: if a size is not a positive integer, ``patch_size`` does not divide height and width, ``d_model``
            is no multiple of ``n_heads``, or dropout is not in ``[0, 1)``.
    """

    image_size: tuple[int, int]
    patch_size: int
    n_classes: int
    _: KW_ONLY
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int | None = None
    summary: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        height, width = _checked_image_size(self.image_size)
        for name in ("patch_size", "n_classes", "d_model", "n_layers", "n_heads", "d_ff"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name), at_least=1)
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"patch_size must divide height and width, got patch_size={self.patch_size}, "
                f"image_size={(height, width)}"
            )
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be a multiple of n_heads, got d_model={self.d_model}, n_heads={self.n_heads}"
            )
        check_share("dropout", self.dropout)

    @property
    def n_patches(self) -> int:
        """Number of patches of an image."""
        return self.image_size[0] * self.image_size[1] // self.patch_size**2

    @property
    def hidden_width(self) -> int:
        """``d_ff`` or its default."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    def n_parameters(self) -> int:
        r"""Return the number of weights, by formula: :math:`n` tokens, patches of side :math:`s`, :math:`c` classes.

        .. math::
            \underbrace{(s^2 + 1)\, d}_{\text{embedding}} + \underbrace{n d}_{\text{positions}}
            + \underbrace{d}_{\text{summary}} + L \left(4 d^2 + 2 d\, d_{\text{ff}} + d_{\text{ff}} + d + 4 d\right)
            + 2 d + \underbrace{(d + 1)\, c}_{\text{head}}

        The summary token is one of the :math:`n` tokens, where there is one.
        """
        d, ff, has_summary = self.d_model, self.hidden_width, int(self.summary)
        tokens = (self.patch_size**2 + 1) * d + (self.n_patches + has_summary) * d + has_summary * d
        blocks = self.n_layers * (4 * d * d + 2 * d * ff + ff + d + 4 * d)
        return tokens + blocks + 2 * d + (d + 1) * self.n_classes


class VisionTransformer(nn.Module):
    r"""Tell which of some classes an image is of [1]_.

    .. math::
        x_0 = [\,s;\; P W_E + b_E\,] + E_{\text{pos}}, \qquad
        \text{logits} = W_{\text{head}}\, \operatorname{norm}(x_L)_{0} + b_{\text{head}}

    with the patches :math:`P` of :func:`patches`, a trained summary token :math:`s` before them and a trained vector
    for each place. Every token sees every other, and nothing says which patches are neighbours: bring the patches of
    all images into another order, the same for all, and the model with its positions in that order gives the same
    logits.

    Matrices start as Xavier's (Glorot & Bengio, 2010), biases at zero, summary token and positions at standard
    deviation 0.02. :func:`lessons_lib.diagnostics.observe` shows what its heads average with; token 0 is the summary.

    Args:
        config: what to build.
        implementation: computes the attention, see :class:`~lessons_lib.multihead.MultiHeadAttention`.
    """

    def __init__(self, config: VisionConfig, *, implementation: Callable[..., Tensor] = fused_attention) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.embedding = nn.Linear(config.patch_size**2, d_model)
        self.summary = nn.Parameter(torch.empty(1, d_model)) if config.summary else None
        self.positions = LearnedPositions(config.n_patches + config.summary, d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder([_block(config, implementation) for _ in range(config.n_layers)], LayerNorm(d_model))
        self.head = nn.Linear(d_model, config.n_classes)
        initialise_xavier(self)

    @property
    def initial_std(self) -> dict[str, float]:
        """How large summary token and positions start, see :mod:`lessons_lib.initialise`."""
        return {"positions.weight": 0.02} | ({"summary": 0.02} if self.config.summary else {})

    def forward(
        self, images: Float[Tensor, "b height width"], *, mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes.

        Args:
            images: of the size that the model was made for, in grey levels of the scale that it was trained with.
            mask: which tokens may see which; all see all if omitted. The summary token, if there is one, is the first.

        Raises:
            ValueError: if the images are of another size or not of floating-point numbers, or a mask does not fit.
        """
        return self.head(self.features(images, mask=mask))

    def features(
        self, images: Float[Tensor, "b height width"], *, mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None
    ) -> Float[Tensor, "b d_model"]:
        """Return what the head reads: the summary token after the last norm, or without one the mean over the patches.

        Arguments and errors as :meth:`forward`.
        """
        tokens = self.encoder(self._embed(images), mask)
        return tokens.mean(dim=1) if self.summary is None else tokens[:, 0]

    def _embed(self, images: Tensor) -> Tensor:
        height, width = self.config.image_size
        check_floating(images=images)
        if images.ndim != 3 or images.shape[1:] != (height, width):
            raise ValueError(
                f"images must be over (b, height, width) = (b, {height}, {width}), got {tuple(images.shape)}"
            )
        tokens = self.embedding(patches(images, self.config.patch_size))
        if self.summary is not None:
            tokens = torch.cat([self.summary.expand(images.shape[0], 1, -1), tokens], dim=1)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(tokens + self.positions(places))


# --- parts ----------------------------------------------------------------------------------------------------------


def _block(config: VisionConfig, implementation: Callable[..., Tensor]) -> TransformerBlock:
    d_model, dropout = config.d_model, config.dropout
    attend = MultiHeadAttention(d_model, config.n_heads, implementation=implementation)
    feed = FeedForward(d_model, config.hidden_width, dropout=dropout)
    return TransformerBlock(
        PreNorm(attend, LayerNorm(d_model), dropout=dropout), PreNorm(feed, LayerNorm(d_model), dropout=dropout)
    )


def _checked_image_size(image_size: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(image_size, tuple) or len(image_size) != 2:
        raise ValueError(f"image_size must be height and width, got {image_size!r}")
    height, width = image_size
    check_size("image_size", height, at_least=1)
    check_size("image_size", width, at_least=1)
    return height, width
