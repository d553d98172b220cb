r"""Performer [1]_: random features whose products estimate the exponentials of softmax attention (FAVOR+).

For :math:`\omega` normal with mean 0 and covariance :math:`I`, and any :math:`x` and :math:`y`,

.. math:: e^{x \cdot y} = \mathbb{E}_\omega\!\left[e^{\omega \cdot x - \lVert x \rVert^2 / 2}\;
                                                    e^{\omega \cdot y - \lVert y \rVert^2 / 2}\right],

because :math:`\mathbb{E}\, e^{\omega \cdot (x + y)} = e^{\lVert x + y \rVert^2 / 2}`. So the features of :math:`r`
samples have a product that is an unbiased estimate of the kernel. The features are positive, so the denominator of the
average cannot come near zero; with sines and cosines it can. The samples are orthogonal in groups of :math:`d_k`,
which lowers the variance and does not change the mean. The attention output is a ratio of two estimates. Its bias is
of order :math:`1/r`, and its error falls as :math:`1/\sqrt r`.

The required number of features depends on the size of the scores: the relative variance of one sample is
:math:`e^{\lVert x + y \rVert^2} - 1`.

.. [1] Choromanski et al., *Rethinking Attention with Performers*, 2021. arXiv:2009.14794.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.attention import WeightsAndMask, check_options, declare_weights, repeat_kv
from lessons_lib.attention.rules import Rule, declare_rule_support
from lessons_lib.efficient.linear import average_by_features, weights_by_one_hot_values
from lessons_lib.efficient.validation import (
    check_heads,
    check_no_bias,
    check_no_dropout,
    hidden_keys,
)
from lessons_lib.foundations.validation import check_floating, check_same_device, check_size, promote_half


def orthogonal_projection(
    n_features: int, d_k: int, generator: torch.Generator, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "{n_features} {d_k}"]:
    r"""Sample the :math:`\omega`: each row is standard normal, and each group of ``d_k`` rows is orthogonal.

    The directions are the rows of a uniform random orthogonal matrix (Haar measure). The lengths are those of
    independent normal vectors. The Q of a QR decomposition alone is not uniform, because LAPACK fixes signs; the signs
    of the diagonal of :math:`R` correct this. The samples are drawn on the generator's device.

    ::

        >>> orthogonal_projection(128, 64, torch.Generator().manual_seed(0)).shape
        torch.Size([128, 64])

    Raises:
        ValueError: if a size is not a positive integer.
    """
    check_size("n_features", n_features, at_least=1)
    check_size("d_k", d_k, at_least=1)
    n_groups = -(-n_features // d_k)
    options = {"generator": generator, "device": generator.device, "dtype": dtype}
    q, r = torch.linalg.qr(torch.randn(n_groups, d_k, d_k, **options))
    directions = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    lengths = torch.randn(n_features, d_k, **options).norm(dim=-1, keepdim=True)
    return lengths * directions.flatten(0, 1)[:n_features]


def positive_features(
    x: Float[Tensor, "*batch n d_k"], projection: Float[Tensor, "r d_k"]
) -> Float[Tensor, "*batch n r"]:
    r"""Return positive features with :math:`\mathbb{E}\left[\phi(x) \cdot \phi(y)\right] = e^{x \cdot y}`.

    .. math:: \phi(x)_i = \frac{1}{\sqrt r}\, e^{\omega_i \cdot x - \lVert x \rVert^2 / 2}

    For large ``x`` these features overflow or underflow. :func:`performer_attention` shifts their logarithms first.

    ::

        >>> projection = orthogonal_projection(128, 64, torch.Generator().manual_seed(0))
        >>> positive_features(torch.randn(2, 8, 500, 64), projection).shape
        torch.Size([2, 8, 500, 128])

    Raises:
        ValueError: if ``x`` and ``projection`` differ in width or device or do not hold floating-point numbers.
    """
    return _log_features(x, projection).exp()


def _weights_and_mask(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, causal: bool = False, **options: Any
) -> WeightsAndMask:
    return weights_by_one_hot_values(performer_attention, query, key, mask, causal=causal, **options)


@declare_rule_support
@declare_weights(_weights_and_mask)
def performer_attention(
    query: Float[Tensor, "*batch n d_k"],
    key: Float[Tensor, "*batch_kv m d_k"],
    value: Float[Tensor, "*batch_kv m d_v"],
    mask: Rule | Tensor | None = None,
    *,
    projection: Float[Tensor, "r d_k"],
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    r"""Estimate softmax attention in time and memory that are linear in the sequence length.

    .. math:: o_i \approx \frac{\sum_j \left(\phi(x_i) \cdot \phi(y_j)\right) v_j}{\sum_j \phi(x_i) \cdot \phi(y_j)},
              \qquad x_i \cdot y_j = \tau\, q_i \cdot k_j

    Before ``exp``, the maximum is subtracted from the logarithms of the features: for queries the maximum of each
    query, for keys the maximum over all keys of the head, or with ``causal`` the maximum over the keys up to the query.
    The maxima cancel in the ratio, and no gradient flows through them. So with ``causal`` no output depends on later
    keys. A key gets no weight if its features underflow relative to the maximum (in float32, a factor of
    :math:`10^{38}`). With ``causal`` the running maxima take one more number for each key.

    ::

        >>> projection = orthogonal_projection(128, 64, torch.Generator().manual_seed(0))
        >>> q, k, v = torch.randn(3, 2, 8, 500, 64)
        >>> performer_attention(q, k, v, projection=projection).shape
        torch.Size([2, 8, 500, 64])

    Args:
        query, key, value: as :func:`lessons_lib.attention.attention.attention`.
        mask: may hide keys from all queries alike, and may contain the causal mask if ``causal``: a table, or a rule
            such as ``Causal() & Padding(lengths)``.
        projection: the samples, from :func:`orthogonal_projection`; the same for queries, keys and all heads.
        causal: hide the keys after a query; with more keys than queries, the queries are the last positions.
        scale: multiplier :math:`\tau` of the scores; ``1 / sqrt(d_k)`` when omitted.
        bias, dropout_p: not supported, because there are no scores and no weight matrix; keep the defaults.

    Raises:
        ValueError: if shapes, types or devices do not match, for any other mask, a scale that is not finite, a bias or
            dropout, or if causal and there are fewer keys than queries.
    """
    check_heads(query, key, value)
    check_no_bias("Performer", bias)
    check_no_dropout("Performer", dropout_p)
    hidden = hidden_keys(mask, query, key, causal=causal)
    check_options(scale)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    root = math.sqrt(abs(scale))

    log_query = _log_features(promote_half(query) * math.copysign(root, scale), projection)
    log_key = repeat_kv(_log_features(promote_half(key) * root, projection), query)
    if hidden is not None:
        log_key = log_key.masked_fill(hidden.mT, -torch.inf)
    query_features = (log_query - _finite_max(log_query, dim=-1)).exp()
    values = promote_half(repeat_kv(value, query))
    if not causal:
        key_features = (log_key - _finite_max(log_key, dim=(-2, -1))).exp()
        return average_by_features(query_features, key_features, values).to(query.dtype)
    # If the first keys are hidden, their maximum is -inf, and -inf - -inf would be NaN.
    largest = log_key.detach().amax(dim=-1).cummax(dim=-1).values.clamp(min=torch.finfo(log_key.dtype).min)
    key_features = (log_key - largest[..., None]).exp()
    return average_by_features(query_features, key_features, values, causal=True, log_scale=largest).to(query.dtype)


# --- parts ----------------------------------------------------------------------------------------------------------


def _log_features(x: Tensor, projection: Tensor) -> Tensor:
    check_floating(x=x)
    check_same_device(x=x, projection=projection)
    if not projection.is_floating_point() or projection.ndim != 2 or projection.shape[1] != x.shape[-1]:
        raise ValueError(
            f"projection must be a floating-point matrix over (features, d_k={x.shape[-1]}), "
            f"got {projection.dtype} over {tuple(projection.shape)}"
        )
    squared_length = x.square().sum(dim=-1, keepdim=True)
    return x @ projection.to(x.dtype).mT - squared_length / 2 - math.log(len(projection)) / 2


def _finite_max(log_features: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Return the maximum, or 0 where all entries are ``-inf``. It cancels in the output and is detached."""
    maximum = log_features.detach().amax(dim=dim, keepdim=True)
    return maximum.masked_fill(maximum == -torch.inf, 0.0)
