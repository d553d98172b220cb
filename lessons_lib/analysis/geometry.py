"""Norms, angles and cosine similarity of queries and keys, and the effective rank of a matrix.

The zero vector has no direction, so functions that need a direction raise ``ValueError`` for it. Half-precision input
is computed in float32 and the result is returned in the input's type.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.analysis.information import effective_count
from lessons_lib.foundations.validation import broadcast_together, check_floating, promote_half, values_can_be_read


def cosine_similarity(q: Float[Tensor, "*#batch n d"], k: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch n m"]:
    r"""Return the cosine similarity of every query with every key: 1 parallel, 0 orthogonal, -1 opposite.

    .. math:: \cos\theta_{ij} = \frac{q_i \cdot k_j}{\lVert q_i \rVert\, \lVert k_j \rVert}

    ::

        >>> cosine_similarity(torch.randn(2, 8, 5, 64), torch.randn(2, 8, 7, 64)).shape
        torch.Size([2, 8, 5, 7])

    Raises:
        ValueError: if the shapes, types or devices of ``q`` and ``k`` do not match, or one holds a zero vector.
    """
    _check_pair(q, k)
    cosines = _unit_vectors("q", q) @ _unit_vectors("k", k).mT
    return cosines.clamp(-1.0, 1.0).to(q.dtype)  # rounding can leave the interval


def angles(q: Float[Tensor, "*#batch n d"], k: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch n m"]:
    r"""Return the angle between every query and every key, in degrees from 0 to 180.

    .. math:: \theta = 2 \operatorname{atan2}\left(\lVert u - v \rVert,\; \lVert u + v \rVert\right)

    where :math:`u` and :math:`v` are the unit vectors of the query and the key. The arc cosine would lose half of the
    digits near 0 and 180 degrees, where the cosine is flat; this formula is accurate everywhere [1]_.

    ::

        >>> angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]))
        tensor([[ 0., 90.]])

    Raises:
        ValueError: as :func:`cosine_similarity`.

    .. [1] Kahan, *How Futile are Mindless Assessments of Roundoff in Floating-Point Computation?*, 2006.
    """
    _check_pair(q, k)
    u, v = _unit_vectors("q", q), _unit_vectors("k", k)
    return (2 * torch.atan2(_pairwise_distances(u, v), _pairwise_distances(u, -v))).rad2deg().to(q.dtype)


class ScoreDecomposition(NamedTuple):
    """The factors of the dot products of queries and keys; their product is ``q @ k.mT``."""

    query_norms: Float[Tensor, "*batch n 1"]
    key_norms: Float[Tensor, "*batch 1 m"]
    cosines: Float[Tensor, "*batch n m"]


def score_decomposition(q: Float[Tensor, "*#batch n d"], k: Float[Tensor, "*#batch m d"]) -> ScoreDecomposition:
    r"""Factor every dot product of a query and a key into the two norms and the cosine similarity.

    .. math:: q_i \cdot k_j = \lVert q_i \rVert\, \lVert k_j \rVert \cos\theta_{ij}

    The query's norm is the same within a row of scores and acts as an inverse temperature of that row. The keys' norms
    differ within the row, so a long key can have a larger score than a key with a larger cosine similarity.

    ::

        >>> [part.shape for part in score_decomposition(torch.randn(2, 5, 64), torch.randn(2, 7, 64))]
        [torch.Size([2, 5, 1]), torch.Size([2, 1, 7]), torch.Size([2, 5, 7])]

    Raises:
        ValueError: as :func:`cosine_similarity`.
    """
    cosines = cosine_similarity(q, k)
    query_norms, key_norms = torch.linalg.vector_norm(q, dim=-1), torch.linalg.vector_norm(k, dim=-1)
    return ScoreDecomposition(query_norms[..., :, None], key_norms[..., None, :], cosines)


def effective_rank(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Return the effective rank of a matrix: the exponential of the entropy of its normalised singular values.

    .. math:: e^{H(p)}, \qquad p_i = \frac{\sigma_i}{\sum_j \sigma_j}

    with the singular values :math:`\sigma` [2]_. Unlike the rank, it changes continuously with the matrix. It lies
    between 1 (all rows on one line through the origin) and ``min(n, d)`` (equal singular values), and never exceeds
    the rank. The rows are not centred.

    ::

        >>> effective_rank(torch.randn(2, 8, 50, 64)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: if a matrix is zero or not finite, because it has no distribution of singular values.

    .. [2] Roy & Vetterli, *The effective rank*, EUSIPCO 2007.
    """
    check_floating(x=x)
    if x.ndim < 2 or (values_can_be_read(x) and not x.isfinite().all()):
        raise ValueError(f"x must hold finite numbers over (*batch, n, d), got shape {tuple(x.shape)}")
    if values_can_be_read(x) and not (x != 0).flatten(-2).any(-1).all():
        raise ValueError("x holds a matrix of zeros, which has no singular directions; leave such matrices out")
    sigma = torch.linalg.svdvals(promote_half(x))
    return effective_count(sigma / sigma.sum(-1, keepdim=True)).to(x.dtype)


# --- parts ----------------------------------------------------------------------------------------------------------


def _unit_vectors(name: str, x: Tensor) -> Tensor:
    """Return the rows of ``x`` divided by their norms, in at least float32."""
    x = promote_half(x)
    largest = x.detach().abs().amax(-1, keepdim=True)  # cancels in the result and keeps the squares from overflowing
    if values_can_be_read(largest) and (largest == 0).any():
        raise ValueError(f"{name} holds a zero vector, which has no direction; leave such rows out")
    x = x / largest
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _pairwise_distances(u: Tensor, v: Tensor) -> Tensor:
    """Return the distance of every row of ``u`` from every row of ``v``.

    The rows are subtracted. Distances from a matrix product would lose digits by cancellation.
    """
    return torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist")


def _check_pair(q: Tensor, k: Tensor) -> None:
    check_floating(q=q, k=k)
    if q.ndim < 2 or k.ndim < 2 or not q.shape[-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q and k must be (*batch, rows, width) of one width, got {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if not broadcast_together(q.shape[:-2], k.shape[:-2]):
        raise ValueError(f"leading axes of q and k must broadcast, got {tuple(q.shape)} and {tuple(k.shape)}")
