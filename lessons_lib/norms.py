"""Normalisation: bring every token's vector back to a common length, so that depth neither inflates nor starves it.

Both norms act on the last axis, each token by itself. Half precision is computed in float32 and rounded once, at the
end: squares overflow float16 from 256 on. With ``eps=0`` a vector of no spread (no length) has no norm and is ``NaN``.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lessons_lib.shapes import at_least_single, check_size, check_vectors


class LayerNorm(nn.Module):
    r"""Centre each token's vector, divide by its standard deviation, then scale and shift each coordinate [1]_.

    .. math::
        y_i = w_i\, \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}} + b_i, \qquad
        \mu = \frac{1}{d} \sum_i x_i, \quad \sigma^2 = \frac{1}{d} \sum_i (x_i - \mu)^2

    The variance is the population's, divided by :math:`d` and not by :math:`d - 1`. Adding a constant to ``x``
    changes nothing; multiplying it by a positive constant changes nothing beyond the part that :math:`\epsilon` plays.

    Args:
        d_model: width :math:`d` of the vectors.
        eps: :math:`\epsilon`, inside the root. 1e-5 is PyTorch's default and GPT-2's.
        bias: whether there is a shift :math:`b`.

    Raises:
        ValueError: if ``d_model`` is not a positive integer or ``eps`` is negative or not finite; in ``forward``, if
            ``x`` does not hold floating-point numbers in vectors of that width.

    .. [1] Ba et al., *Layer Normalization*, 2016. arXiv:1607.06450.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        _check_settings(d_model, eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Normalise each vector."""
        check_vectors(x, len(self.weight))
        exact = at_least_single(x)
        centred = exact - exact.mean(dim=-1, keepdim=True)
        normed = centred * (centred.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        scaled = normed * self.weight
        return (scaled if self.bias is None else scaled + self.bias).to(x.dtype)


class RMSNorm(nn.Module):
    r"""Divide each token's vector by its root mean square, then scale each coordinate [2]_.

    .. math:: y_i = w_i\, \frac{x_i}{\sqrt{\frac{1}{d} \sum_j x_j^2 + \epsilon}}

    A layer norm without centring and without a shift: the length is set, the mean stays. On vectors of mean zero the
    two agree.

    Args:
        d_model: width :math:`d` of the vectors.
        eps: :math:`\epsilon`, inside the root. Checkpoints carry their own: Llama 2 and 3 use 1e-5.

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
        """Normalise each vector."""
        check_vectors(x, len(self.weight))
        exact = at_least_single(x)
        normed = exact * (exact.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return (normed * self.weight).to(x.dtype)


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_settings(d_model: int, eps: float) -> None:
    check_size("d_model", d_model, at_least=1)
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps must be finite and not negative, got {eps}")
