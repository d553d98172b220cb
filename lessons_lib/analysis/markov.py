r"""Attention weights as the transition matrix of a Markov chain over tokens: one step of a random walk per layer.

The functions take *row-stochastic* matrices ``a`` over ``(*batch, n, n)``, whose rows are distributions. ``a[i, j]``,
the weight of query ``i`` on key ``j``, is the probability of a step from token ``i`` to token ``j``. Every such matrix
has the eigenvalue 1, and no eigenvalue has a larger modulus. The *right* eigenvector of 1 is the vector of ones. The
*left* eigenvector of 1 is the stationary distribution of the walk.

A causal matrix is triangular. Its eigenvalues are its diagonal entries, and every step of the walk goes to the same or
an earlier token, until token 0 absorbs the walk. The Perron-Frobenius theorem, which guarantees a positive stationary
distribution, requires that every token can be reached from every other token, so it does not apply to causal matrices.

Rows must sum to one within ``eps ** (2 / 3)`` of their type, as in :mod:`lessons_lib.analysis.information`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.analysis.information import check_sums_to_one
from lessons_lib.foundations.validation import check_floating, promote_half, values_can_be_read


def stationary_distribution(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    r"""Return the stationary distribution: the left eigenvector of eigenvalue 1, which a step does not change.

    .. math:: \pi A = \pi, \qquad \sum_i \pi_i = 1

    A stationary distribution always exists. It is unique exactly if some token can be reached from every token, in any
    number of steps. It is then positive on all tokens that can be reached from every token, and zero elsewhere. So
    positive weights give a positive distribution, and a causal matrix in which every later row has weight on earlier
    tokens gives all mass to token 0. The identity matrix raises ``ValueError``. The walk converges to the stationary
    distribution if the tokens with positive mass are also aperiodic: two tokens that always step to each other have
    :math:`\pi = (\tfrac12, \tfrac12)` and never converge.

    It is computed in float64 by eliminating one token after the other without subtractions [1]_, so small entries keep
    their relative accuracy.

    ::

        >>> stationary_distribution(torch.randn(2, 8, 50, 50).softmax(-1)).shape
        torch.Size([2, 8, 50])

    Raises:
        ValueError: if ``a`` is not row-stochastic and square, or more than one distribution is stationary.

    .. [1] Grassmann, Taksar & Heyman, *Regenerative analysis and steady state distributions for Markov chains*,
        Operations Research 33(5), 1985.
    """
    _check_chain(a)
    n = a.shape[-1]
    reachable = _reachable_from_all(a)
    if values_can_be_read(reachable) and not reachable.any(dim=-1).all():
        raise ValueError(
            "a must have a unique stationary distribution, but no token is reached from every other token, so walks "
            "that start on different tokens may never meet"
        )
    # The first token is one that all others reach. Each elimination keeps a path to it, so no sum below is zero.
    order = (reachable.int().argmax(dim=-1, keepdim=True) + torch.arange(n, device=a.device)) % n
    steps = a.double().gather(-2, order[..., :, None].expand_as(a)).gather(-1, order[..., None, :].expand_as(a))
    all_visits = []
    for last in range(n - 1, 0, -1):
        leaving = steps[..., last, :last]
        # Expected number of visits to ``last`` per visit to each of the tokens before it.
        visits = steps[..., :last, last] / leaving.sum(dim=-1, keepdim=True)
        steps = steps[..., :last, :last] + visits[..., :, None] * leaving[..., None, :]
        all_visits.append(visits)
    mass = torch.ones_like(steps[..., 0])
    for visits in reversed(all_visits):
        mass = torch.cat([mass, (mass * visits).sum(dim=-1, keepdim=True)], dim=-1)
    return torch.zeros_like(mass).scatter(-1, order, mass / mass.sum(dim=-1, keepdim=True)).to(a.dtype)


def spectral_gap(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""Return the spectral gap: 1 minus the modulus of the second largest eigenvalue.

    .. math:: 1 - |\lambda_2|, \qquad 1 = |\lambda_1| \ge |\lambda_2| \ge \dots

    Without a causal mask most eigenvalues are complex, and a gap from their real parts would be too large. The
    influence of the start of a walk decays like :math:`|\lambda_2|^t` asymptotically. The transient before may be
    long, because the matrix is not symmetric. The gap is 0 if two walks can stay apart forever or the walk is
    periodic, and 1 for a single token. For a causal matrix :math:`\lambda_2` is the largest diagonal entry after the
    first. Computed in float64.

    ::

        >>> spectral_gap(torch.randn(2, 8, 50, 50).softmax(-1)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: if ``a`` is not row-stochastic and square.
    """
    _check_chain(a)
    if a.shape[-1] == 1:
        return torch.ones_like(a[..., 0, 0])
    moduli = torch.linalg.eigvals(a.double()).abs().sort(dim=-1, descending=True).values
    return (1 - moduli[..., 1]).clamp_min(0.0).to(a.dtype)  # rounding can leave the interval


def ergodicity_coefficient(a: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    r"""Return Dobrushin's ergodicity coefficient [2]_: the largest total variation distance between two rows.

    .. math:: \tau(A) = \frac12 \max_{i, j} \sum_k |a_{ik} - a_{jk}|
              = 1 - \min_{i, j} \sum_k \min(a_{ik}, a_{jk})

    It lies between 0 (all rows equal, so the matrix has rank one) and 1 (two rows without a common key). One step
    contracts the sum of absolute differences of two distributions by this factor or more. Therefore
    :math:`\tau(AB) \le \tau(A)\, \tau(B)` and :math:`|\lambda_2| \le \tau(A)`. If the coefficients of all layers are
    below a common bound less than 1, the product of the attention matrices converges to rank one. A causal matrix
    has coefficient 1 if some row has no weight on token 0.

    The matrix need not be square.

    ::

        >>> ergodicity_coefficient(torch.randn(2, 8, 50, 40).softmax(-1)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: if ``a`` is not row-stochastic.

    .. [2] Seneta, *Non-negative Matrices and Markov Chains*, 2nd edition, 1981: the coefficients of ergodicity.
    """
    check_row_stochastic("a", a)
    exact = promote_half(a)
    return (torch.cdist(exact, exact, p=1).amax(dim=(-2, -1)) / 2).clamp_max(1.0).to(a.dtype)


def rollout(
    layers: Sequence[Float[Tensor, "*batch n n"]] | Float[Tensor, "n_layers *batch n n"], *, residual: float = 0.5
) -> Float[Tensor, "*batch n n"]:
    r"""Return the attention rollout [3]_: the share of each input token in each output token if layers only mix tokens.

    .. math:: R = \tilde A_L \cdots \tilde A_2\, \tilde A_1, \qquad \tilde A = r\, I + (1 - r)\, A

    The share :math:`r` models the residual connection, which carries each token around the layer. The default of one
    half is the authors' choice, not a measurement. Values, norms and feed-forward layers are ignored.

    ::

        >>> weights = torch.randn(6, 2, 50, 50).softmax(-1)  # six layers, two sequences
        >>> rollout(weights).shape
        torch.Size([2, 50, 50])

    Args:
        layers: attention weights of each layer, the first layer first. Average over heads beforehand, as the authors
            do: ``weights.mean(dim=1)``. With a head axis, the rollout connects heads of the same index only.
        residual: :math:`r`; 0 gives the plain product of the matrices.

    Raises:
        ValueError: if there are no layers, they differ in shape or type or are not row-stochastic and square, or
            ``residual`` is not in [0, 1].

    .. [3] Abnar & Zuidema, *Quantifying Attention Flow in Transformers*, 2020. arXiv:2005.00928.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must be in [0, 1], got {residual}")
    if not len(layers):
        raise ValueError("layers must hold at least one matrix, got none")
    first, *_ = layers
    for number, a in enumerate(layers):
        _check_chain(a, name=f"layers[{number}]")
        check_floating(**{"layers[0]": first, f"layers[{number}]": a})
        if a.shape != first.shape:
            raise ValueError(f"layers must have one shape, got {tuple(first.shape)} and {tuple(a.shape)}")
    identity = torch.eye(first.shape[-1], dtype=promote_half(first).dtype, device=first.device)
    product = identity
    for a in layers:
        product = (residual * identity + (1 - residual) * promote_half(a)) @ product
    return product.to(first.dtype)


def check_row_stochastic(name: str, a: Float[Tensor, "*batch n m"]) -> None:
    """Check that every row of a matrix is a distribution. ``name`` is the argument's name in the error message.

    Raises:
        ValueError: if an entry is negative or ``NaN``, or a row does not sum to one (after dropout none does).
    """
    check_floating(**{name: a})
    if a.ndim < 2 or not a.numel():
        raise ValueError(f"{name} must be (*batch, n, m) with at least one entry, got {tuple(a.shape)}")
    check_sums_to_one(
        name,
        a,
        rule="must be row-stochastic: every row must sum to one",
        advice="; a fully masked query has no next step, leave it out",
    )


# --- parts ----------------------------------------------------------------------------------------------------------


def _reachable_from_all(a: Tensor) -> Bool[Tensor, "*batch n"]:
    """Return a mask of the tokens that can be reached from every token, in any number of steps."""
    n = a.shape[-1]
    reached = ((a > 0) | torch.eye(n, dtype=torch.bool, device=a.device)).float()
    for _ in range(math.ceil(math.log2(n))):  # paths of up to 1, 2, 4, ... steps; n - 1 steps suffice
        reached = (reached @ reached > 0).float()
    return (reached > 0).all(dim=-2)


def _check_chain(a: Tensor, *, name: str = "a") -> None:
    check_row_stochastic(name, a)
    if a.shape[-2] != a.shape[-1]:
        raise ValueError(f"{name} must be square, so that one step can follow another, got {tuple(a.shape)}")
