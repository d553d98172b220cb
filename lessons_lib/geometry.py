"""Lengths and angles: what the dot product of a query and a key is made of.

The zero vector has no direction, so whatever asks for one refuses it. Half precision is computed in float32 and
returned in its own type.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.information import effective_count
from lessons_lib.shapes import at_least_single, broadcast_together, check_floating, values_can_be_read


def cosine_similarity(q: Float[Tensor, "*#batch n d"], k: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch n m"]:
    r"""Return the cosine between every query and every key: 1 the same direction, 0 at right angles, -1 opposite.

    .. math:: \cos\theta_{ij} = \frac{q_i \cdot k_j}{\lVert q_i \rVert\, \lVert k_j \rVert}

    Raises:
        ValueError: if the two do not fit together, or hold a zero vector.
    """
    _check_pair(q, k)
    cosines = _directions("q", q) @ _directions("k", k).mT
    return cosines.clamp(-1.0, 1.0).to(q.dtype)  # rounding alone can step outside


def angles(q: Float[Tensor, "*#batch n d"], k: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch n m"]:
    r"""Return the angle between every query and every key, in degrees from 0 to 180.

    .. math:: \theta = 2 \operatorname{atan2}\left(\lVert u - v \rVert,\; \lVert u + v \rVert\right)

    for the unit vectors :math:`u, v` along them. The arc cosine would lose half of the digits near 0 and 180 degrees,
    where the cosine is flat; this form is accurate everywhere [1]_.

    Raises:
        ValueError: as :func:`cosine_similarity`.

    .. [1] Kahan, *How Futile are Mindless Assessments of Roundoff in Floating-Point Computation?*, 2006.
    """
    _check_pair(q, k)
    u, v = _directions("q", q), _directions("k", k)
    return (2 * torch.atan2(_distances(u, v), _distances(u, -v))).rad2deg().to(q.dtype)


class ScoreDecomposition(NamedTuple):
    """A dot product taken apart; the product of the three is ``q @ k.mT``."""

    query_norms: Float[Tensor, "*batch n 1"]
    key_norms: Float[Tensor, "*batch 1 m"]
    cosines: Float[Tensor, "*batch n m"]


def score_decomposition(q: Float[Tensor, "*#batch n d"], k: Float[Tensor, "*#batch m d"]) -> ScoreDecomposition:
    r"""Take every dot product of a query and a key apart into their lengths and their cosine.

    .. math:: q_i \cdot k_j = \lVert q_i \rVert\, \lVert k_j \rVert \cos\theta_{ij}

    Within a row of scores the query's length is common: it sharpens or softens the row like an inverse temperature.
    The keys' lengths differ within the row, so a long key can win over one that points better.

    Raises:
        ValueError: as :func:`cosine_similarity`.
    """
    cosines = cosine_similarity(q, k)
    query_norms, key_norms = torch.linalg.vector_norm(q, dim=-1), torch.linalg.vector_norm(k, dim=-1)
    return ScoreDecomposition(query_norms[..., :, None], key_norms[..., None, :], cosines)


def effective_rank(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Return how many directions the rows of a matrix really use: a rank that changes gradually.

    .. math:: e^{H(p)}, \qquad p_i = \frac{\sigma_i}{\sum_j \sigma_j}

    with the singular values :math:`\sigma` [2]_. Between 1 (all rows on one line through the origin) and
    ``min(n, d)`` (equal singular values); the rank is never smaller. The rows are not centred.

    Raises:
        ValueError: if a matrix is zero or not finite: it has no distribution of singular values.

    .. [2] Roy & Vetterli, *The effective rank*, EUSIPCO 2007.
    """
    check_floating(x=x)
    if x.ndim < 2 or (values_can_be_read(x) and not x.isfinite().all()):
        raise ValueError(f"x must hold finite numbers over (*batch, n, d), got shape {tuple(x.shape)}")
    if values_can_be_read(x) and not (x != 0).flatten(-2).any(-1).all():
        raise ValueError("x holds a matrix of zeros, which uses no direction at all; leave such matrices out")
    sigma = torch.linalg.svdvals(at_least_single(x))
    return effective_count(sigma / sigma.sum(-1, keepdim=True)).to(x.dtype)


# --- parts ----------------------------------------------------------------------------------------------------------


def _directions(name: str, x: Tensor) -> Tensor:
    """The unit vectors along the rows, in at least float32."""
    x = at_least_single(x)
    largest = x.detach().abs().amax(-1, keepdim=True)  # cancels, and keeps the squares in range
    if values_can_be_read(largest) and (largest == 0).any():
        raise ValueError(f"{name} holds a zero vector, which has no direction; leave such rows out")
    x = x / largest
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _distances(u: Tensor, v: Tensor) -> Tensor:
    """The distance of every row of ``u`` from every row of ``v``, by subtraction: a matrix product would cancel."""
    return torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist")


def _check_pair(q: Tensor, k: Tensor) -> None:
    check_floating(q=q, k=k)
    if q.ndim < 2 or k.ndim < 2 or not q.shape[-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q and k must be (*batch, rows, width) of one width, got {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if not broadcast_together(q.shape[:-2], k.shape[:-2]):
        raise ValueError(f"leading axes of q and k must broadcast, got {tuple(q.shape)} and {tuple(k.shape)}")
