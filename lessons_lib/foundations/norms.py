"""Normalisation layers: rescale the vector of each token, so that activations neither grow nor vanish with depth.

Both norms act on the last axis, on each token separately. Half precision is computed in float32, because squares of
numbers from 256 on overflow in float16, and rounded once, at the end. With ``eps=0`` the layer norm of a vector of zero
variance, and the RMS norm of a zero vector, is ``NaN``.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from lessons_lib.foundations.validation import check_size, check_vectors, promote_half


class LayerNorm(nn.Module):
    r"""Layer norm: centre each vector, divide it by its standard deviation, then scale and shift each coordinate [1]_.

    .. math::
        y_i = w_i\, \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} + b_i, \qquad
        \mu = \frac{1}{d} \sum_i x_i, \quad \sigma^2 = \frac{1}{d} \sum_i (x_i - \mu)^2

    The variance is the population variance, a sum divided by :math:`d`, not by :math:`d - 1`. Adding a constant to all
    coordinates of ``x`` does not change the output. Multiplying ``x`` by a positive constant changes the output only
    through :math:`\epsilon`.

    >>> LayerNorm(3)(torch.tensor([[1.0, 2.0, 3.0]])).detach()
    tensor([[-1.2247,  0.0000,  1.2247]])

    Args:
        d_model: width :math:`d` of the vectors.
        eps: :math:`\epsilon`, inside the root. 1e-5 is the default of PyTorch and of GPT-2.
        bias: whether there is a shift :math:`b`.

    Raises:
        ValueError: if ``d_model`` is not a positive integer or ``eps`` is negative or not finite; in ``forward``, if
            ``x`` does not hold floating-point vectors of width ``d_model``.

    .. [1] Ba et al., *Layer Normalization*, 2016. arXiv:1607.06450.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        _check_settings(d_model, eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the normalised vectors."""
        check_vectors(x, len(self.weight))
        wide = promote_half(x)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        return layer_norm(wide, self.weight.shape, self.weight.to(wide.dtype), bias, self.eps).to(x.dtype)


class RMSNorm(nn.Module):
    r"""RMS norm: divide each vector by its root mean square, then scale each coordinate [2]_.

    .. math:: y_i = w_i\, \frac{x_i}{\sqrt{\frac{1}{d} \sum_j x_j^2 + \epsilon}}

    This is a layer norm without centring and without a shift. On vectors of mean zero the two agree.

    >>> RMSNorm(2)(torch.tensor([[3.0, -3.0], [0.5, 0.5]])).detach()
    tensor([[ 1.0000, -1.0000],
            [ 1.0000,  1.0000]])

    Args:
        d_model: width :math:`d` of the vectors.
        eps: :math:`\epsilon`, inside the root. A checkpoint's configuration gives its value: Llama 2 and 3 use 1e-5.

    Raises:
        ValueError: as :class:`LayerNorm`.

    .. [2] Zhang & Sennrich, *Root Mean Square Layer Normalization*, 2019. arXiv:1910.07467.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        _check_settings(d_model, eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the normalised vectors."""
        check_vectors(x, len(self.weight))
        wide = promote_half(x)
        normed = wide * (wide.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return (normed * self.weight).to(x.dtype)


# --- helpers --------------------------------------------------------------------------------------------------------


def _check_settings(d_model: int, eps: float) -> None:
    check_size("d_model", d_model, at_least=1)
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and not negative, got {eps}")
