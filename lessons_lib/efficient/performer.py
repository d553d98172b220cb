r"""Performer [1]_: random features whose products are, on average, the exponentials of softmax attention (FAVOR+).

With :math:`\omega` normal, of mean 0 and covariance :math:`I`, and any :math:`x` and :math:`y`,

.. math:: e^{x \cdot y} = \mathbb{E}_\omega\!\left[e^{\omega \cdot x - \lVert x \rVert^2 / 2}\;
                                                    e^{\omega \cdot y - \lVert y \rVert^2 / 2}\right],

since :math:`\mathbb{E}\, e^{\omega \cdot (x + y)} = e^{\lVert x + y \rVert^2 / 2}`. So :math:`r` draws give features
whose product is an unbiased estimate of the kernel. They are positive, so that the denominator of the average can
not come near zero, as it can with sines and cosines; and the draws are orthogonal in groups of :math:`d_k`, which
lowers the variance and leaves the mean. The attention itself, a ratio of two estimates, is biased by order
:math:`1/r`; its error falls as :math:`1/\sqrt r`.

How many features are enough depends on the size of the scores: the relative variance of one draw is
:math:`e^{\lVert x + y \rVert^2} - 1`.

.. [1] Choromanski et al., *Rethinking Attention with Performers*, 2021. arXiv:2009.14794.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention import Pattern, check_options, declares_pattern, for_each_query_head
from lessons_lib.efficient.call_shape import (
    check_heads,
    hidden_from_all,
    refuse_bias,
    refuse_dropout,
)
from lessons_lib.efficient.linear import average_by_features, pattern_by_one_hot_values
from lessons_lib.rules import Rule, takes_rules
from lessons_lib.shapes import at_least_single, check_floating, check_same_device, check_size


def orthogonal_projection(
    n_features: int, d_k: int, generator: torch.Generator, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "{n_features} {d_k}"]:
    r"""Draw the :math:`\omega`: each row is standard normal, and each ``d_k`` consecutive rows are orthogonal.

    The directions are the rows of a rotation drawn uniformly (Haar measure), the lengths those of independent normal
    vectors. A QR decomposition alone does not draw uniformly: LAPACK fixes signs, which the diagonal of :math:`R`
    undoes. Drawn on the generator's device.

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
    r"""Return features with :math:`\mathbb{E}\left[\phi(x) \cdot \phi(y)\right] = e^{x \cdot y}`, all positive.

    .. math:: \phi(x)_i = \frac{1}{\sqrt r}\, e^{\omega_i \cdot x - \lVert x \rVert^2 / 2}

    These are the features as defined; for large ``x`` they leave the range of the type. :func:`performer_attention`
    shifts their logarithms first.

    Raises:
        ValueError: if ``x`` and ``projection`` differ in width or device or do not hold floating-point numbers.
    """
    return _log_features(x, projection).exp()


def _pattern(
    query: Tensor, key: Tensor, mask: Rule | Tensor | None = None, *, causal: bool = False, **options: Any
) -> Pattern:
    return pattern_by_one_hot_values(performer_attention, query, key, mask, causal=causal, **options)


@takes_rules
@declares_pattern(_pattern)
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
    r"""Estimate softmax attention in time and memory linear in the length.

    .. math:: o_i \approx \frac{\sum_j \left(\phi(x_i) \cdot \phi(y_j)\right) v_j}{\sum_j \phi(x_i) \cdot \phi(y_j)},
              \qquad x_i \cdot y_j = \tau\, q_i \cdot k_j

    Before ``exp``, the logarithms of each query's features are lowered by their largest. The logarithms of the keys are
    lowered by the largest among all keys of the head, or with ``causal`` among the keys up to the query. Both numbers
    cancel in the ratio, and no gradient flows through them. So no output depends on later keys. Keys whose features lie
    below the smallest number of the type next to this largest one (in float32, a factor of :math:`10^{38}`) get no
    weight. With ``causal`` the running maxima take one number for each key more.

    Args:
        mask: may hide keys from all queries alike, and repeat what ``causal`` says: a table, or a rule such as
            ``Causal() & Padding(lengths)``.
        projection: the draws, from :func:`orthogonal_projection`; the same for queries and keys, and for all heads.
        causal: hide what comes after a query; with more keys than queries these are the last positions.
        scale: multiplier :math:`\tau` of the scores; ``1 / sqrt(d_k)`` when omitted.
        bias, dropout_p: must be left as they are, there are no scores and no weights to apply them to.

    Raises:
        ValueError: if shapes, types or devices do not fit, for any other mask, a scale that is not finite, a bias or
            dropout, or if causal and there are fewer keys than queries.
    """
    check_heads(query, key, value)
    refuse_bias("Performer", bias)
    refuse_dropout("Performer", dropout_p)
    hidden = hidden_from_all(mask, query, key, causal=causal)
    check_options(scale)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    root = math.sqrt(abs(scale))

    log_query = _log_features(at_least_single(query) * math.copysign(root, scale), projection)
    log_key = for_each_query_head(_log_features(at_least_single(key) * root, projection), query)
    if hidden is not None:
        log_key = log_key.masked_fill(hidden.mT, -torch.inf)
    query_features = (log_query - _peak(log_query, dim=-1)).exp()
    values = at_least_single(for_each_query_head(value, query))
    if not causal:
        key_features = (log_key - _peak(log_key, dim=(-2, -1))).exp()
        return average_by_features(query_features, key_features, values).to(query.dtype)
    # Hidden keys may come first: their largest logarithm is -inf, from which nothing can be subtracted.
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


def _peak(log_features: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The largest logarithm, or 0 where all are ``-inf``; the shift cancels, so no gradient flows through it."""
    peak = log_features.detach().amax(dim=dim, keepdim=True)
    return peak.masked_fill(peak == -torch.inf, 0.0)
