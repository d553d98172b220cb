r"""The Vision Transformer: an image is split into patches, and the patches are the tokens of a Transformer encoder.

.. [1] Dosovitskiy et al., *An Image is Worth 16x16 Words*, 2021. arXiv:2010.11929.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import LearnedPositions
from lessons_lib.attention.rules import Rule
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.foundations.norms import LayerNorm
from lessons_lib.foundations.validation import check_floating, check_fraction, check_size
from lessons_lib.transformer.blocks import PreNorm, TransformerBlock
from lessons_lib.transformer.encoder_decoder import Encoder
from lessons_lib.transformer.feedforward import FeedForward
from lessons_lib.transformer.initialise import initialise_xavier

# --- patches ------------------------------------------------------------------------------------------------------


def patchify(images: Shaped[Tensor, "*batch height width"], size: int) -> Shaped[Tensor, "*batch count pixels"]:
    r"""Split each image into patches of ``size`` by ``size`` pixels that do not overlap, one row for each patch.

    .. math:: p_{\,r \cdot w/s + c,\; u s + v} = x_{\,r s + u,\; c s + v}

    for an image width :math:`w` and a patch size :math:`s`. Patches are in row-major order from the top left, and so
    are the pixels of each patch: ``count`` is ``height * width / size**2`` and ``pixels`` is ``size**2``.
    :func:`unpatchify` is the inverse.

    ::

        >>> patchify(torch.arange(8).view(2, 4), 2)
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


def unpatchify(
    patches: Shaped[Tensor, "*batch count pixels"], image_size: tuple[int, int]
) -> Shaped[Tensor, "*batch height width"]:
    """Assemble images from the patches of :func:`patchify`: ``unpatchify(patchify(x, size), x.shape[-2:])`` is ``x``.

    ::

        >>> unpatchify(torch.randn(7, 10, 9), (6, 15)).shape  # 10 patches of 3 by 3 pixels
        torch.Size([7, 6, 15])

    Raises:
        ValueError: if ``image_size`` is not height and width, if ``pixels`` is not a square number whose root divides
            both, or if the number of patches is not that of the image.
    """
    height, width = _checked_image_size(image_size)
    size = math.isqrt(patches.shape[-1]) if patches.ndim >= 2 else 0
    fits = size and patches.shape[-1] == size**2 and height % size == 0 == width % size
    if not fits or patches.shape[-2] * size**2 != height * width:
        raise ValueError(
            f"patches must be over (*batch, count, pixels), the patches of an image of {height} by {width}, "
            f"got {tuple(patches.shape)}"
        )
    return rearrange(patches, "... (r c) (u v) -> ... (r u) (c v)", c=width // size, u=size)


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VisionConfig:
    """Sizes and choices of a :class:`VisionTransformer`.

    Args:
        image_size: height and width of the greyscale images, in pixels.
        patch_size: side length of a patch in pixels; divides height and width.
        n_classes: number of classes.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        n_heads: number of heads in each attention layer.
        d_ff: hidden width of the feed-forward layers; ``4 * d_model`` if omitted.
        summary: whether the classifier reads a learned summary token (the class token of the paper [1]_), or, if
            False, the mean over the patches.
        dropout: dropout probability in training, as in the paper: of the embedded tokens, the hidden entries of the
            feed-forward layers and the output of each sublayer.

    Raises:
        ValueError: if a size is not a positive integer, ``patch_size`` does not divide height and width, ``d_model``
            is not a multiple of ``n_heads``, or dropout is not in ``[0, 1)``.
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
        check_fraction("dropout", self.dropout)

    @property
    def n_patches(self) -> int:
        """Number of patches of an image."""
        return self.image_size[0] * self.image_size[1] // self.patch_size**2

    @property
    def hidden_width(self) -> int:
        """Hidden width of the feed-forward layers: ``d_ff`` or its default."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    def n_parameters(self) -> int:
        r"""Return the number of parameters, for :math:`n` tokens, patches of side :math:`s` and :math:`c` classes.

        .. math::
            \underbrace{(s^2 + 1)\, d}_{\text{embedding}} + \underbrace{n d}_{\text{positions}}
            + \underbrace{d}_{\text{summary}} + L \left(4 d^2 + 2 d\, d_{\text{ff}} + d_{\text{ff}} + d + 4 d\right)
            + 2 d + \underbrace{(d + 1)\, c}_{\text{head}}

        With a summary token, :math:`n` includes it; without one, its term :math:`d` is omitted.
        """
        d, ff, has_summary = self.d_model, self.hidden_width, int(self.summary)
        tokens = (self.patch_size**2 + 1) * d + (self.n_patches + has_summary) * d + has_summary * d
        blocks = self.n_layers * (4 * d * d + 2 * d * ff + ff + d + 4 * d)
        return tokens + blocks + 2 * d + (d + 1) * self.n_classes


class VisionTransformer(nn.Module):
    r"""A Vision Transformer that classifies images [1]_.

    .. math::
        x_0 = [\,s;\; P W_E + b_E\,] + E_{\text{pos}}, \qquad
        \text{logits} = W_{\text{head}}\, \operatorname{norm}(x_L)_{0} + b_{\text{head}}

    with the patches :math:`P` of :func:`patchify`, a learned summary token :math:`s` before them and a learned vector
    for each position. Every token attends to every token, and the model has no built-in notion of neighbouring patches:
    if the patches of all images and the position vectors are permuted alike, the logits do not change.

    Matrices are initialised as by Glorot & Bengio (2010), biases with zero, and the summary token and the positions
    with standard deviation 0.02. :func:`lessons_lib.analysis.diagnostics.observe` records the attention weights; token
    0 is the summary token.

    ::

        >>> model = VisionTransformer(VisionConfig((6, 15), 3, 5, d_model=12, n_layers=2, n_heads=4))
        >>> model(torch.randn(7, 6, 15)).shape
        torch.Size([7, 5])

    Args:
        config: the sizes and choices.
        implementation: computes the attention, see :class:`~lessons_lib.attention.multihead.MultiHeadAttention`.
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
        """Initial standard deviation of summary token and positions, see :mod:`lessons_lib.transformer.initialise`."""
        return {"positions.weight": 0.02} | ({"summary": 0.02} if self.config.summary else {})

    def forward(
        self, images: Float[Tensor, "b height width"], *, mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None
    ) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes.

        Args:
            images: greyscale images of the configured size, scaled as in training.
            mask: the attention mask over the tokens; every token attends to every token if omitted. The summary token,
                if there is one, is token 0.

        Raises:
            ValueError: if the images have another size or are not floating-point numbers, or the mask does not
                broadcast.
        """
        return self.head(self.features(images, mask=mask))

    def features(
        self, images: Float[Tensor, "b height width"], *, mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None
    ) -> Float[Tensor, "b d_model"]:
        """Return the input of the classifier: the summary token after the last norm, or the mean over the patches.

        The mean is used if there is no summary token. Arguments and errors are those of :meth:`forward`.
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
        tokens = self.embedding(patchify(images, self.config.patch_size))
        if self.summary is not None:
            tokens = torch.cat([self.summary.expand(images.shape[0], 1, -1), tokens], dim=1)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(tokens + self.positions(positions))


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
