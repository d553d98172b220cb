r"""Attention as a Markov chain: a row of weights says where a walker that stands on that token steps next.

Everything here takes matrices ``a`` over ``(*batch, n, n)`` whose rows are distributions (*row-stochastic*):
``a[i, j]``, the weight of query ``i`` on key ``j``, is the probability of a step from ``i`` to ``j``. Of all of them
1 is an eigenvalue, and no eigenvalue is larger. Its *right* eigenvector is a vector of ones, which tells nothing; its
*left* one tells where walkers end up.

A causal matrix is triangular: its eigenvalues are the entries of its diagonal, and walkers only ever move back, until
token 0 absorbs them. The theorem of Perron and Frobenius, which promises a positive stationary distribution, is about
matrices in which every token can be reached from every other, and does not speak of it.

Rows must sum to one within ``eps ** (2 / 3)`` of their type, as in :mod:`lessons_lib.information`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lessons_lib.information import check_sums_to_one
from lessons_lib.shapes import at_least_single, check_floating, values_can_be_read


def stationary_distribution(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    r"""Return the distribution that a step leaves as it is: the left eigenvector of eigenvalue 1.

    .. math:: \pi A = \pi, \qquad \sum_i \pi_i = 1

    It exists always. It is unique exactly if some token can be reached from every token (in any number of steps); it
    is positive on the tokens of which that is true and zero elsewhere. So positive weights give a positive
    distribution, a causal matrix with weight on earlier tokens gives all to token 0, and the identity, which goes
    nowhere, is refused. Walks converge to it if furthermore they have no period: two tokens that swap places have
    :math:`\pi = (\tfrac12, \tfrac12)` and never settle.

    Computed by eliminating one token after the other without a subtraction [1]_, so that small entries keep their
    relative accuracy, in float64.

    Raises:
        ValueError: if ``a`` is not row-stochastic and square, or more than one distribution is stationary.

    .. [1] Grassmann, Taksar & Heyman, *Regenerative analysis and steady state distributions for Markov chains*,
        Operations Research 33(5), 1985.
    """
    _check_chain(a)
    n = a.shape[-1]
    home = _reached_by_all(a)
    if values_can_be_read(home) and not home.any(dim=-1).all():
        raise ValueError(
            "a must have one stationary distribution, but walkers that start on different tokens can stay apart for "
            "ever: no token is reached from every other"
        )
    # Begin with a token that all others reach: each elimination then leaves a way to it, and no sum below is zero.
    order = (home.int().argmax(dim=-1, keepdim=True) + torch.arange(n, device=a.device)) % n
    steps = a.double().gather(-2, order[..., :, None].expand_as(a)).gather(-1, order[..., None, :].expand_as(a))
    visits_of = []
    for last in range(n - 1, 0, -1):
        leaving = steps[..., last, :last]
        visits = steps[..., :last, last] / leaving.sum(dim=-1, keepdim=True)  # to the last, per visit to each other
        steps = steps[..., :last, :last] + visits[..., :, None] * leaving[..., None, :]
        visits_of.append(visits)
    mass = torch.ones_like(steps[..., 0])
    for visits in reversed(visits_of):
        mass = torch.cat([mass, (mass * visits).sum(dim=-1, keepdim=True)], dim=-1)
    return torch.zeros_like(mass).scatter(-1, order, mass / mass.sum(dim=-1, keepdim=True)).to(a.dtype)


def spectral_gap(a: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""Return how much smaller than 1 the second largest eigenvalue is, in modulus.

    .. math:: 1 - |\lambda_2|, \qquad 1 = |\lambda_1| \ge |\lambda_2| \ge \dots

    Without a causal mask most eigenvalues are complex; their real parts would flatter the gap. What a walk still
    remembers of its start shrinks like :math:`|\lambda_2|^t` in the long run, after a transient which may be long:
    the matrix is not symmetric. Zero if walkers can stay apart or go in circles; 1 for a single token. For a causal
    matrix :math:`\lambda_2` is the largest entry of the diagonal but the first. Computed in float64.

    Raises:
        ValueError: if ``a`` is not row-stochastic and square.
    """
    _check_chain(a)
    if a.shape[-1] == 1:
        return torch.ones_like(a[..., 0, 0])
    moduli = torch.linalg.eigvals(a.double()).abs().sort(dim=-1, descending=True).values
    return (1 - moduli[..., 1]).clamp_min(0.0).to(a.dtype)  # rounding alone can step outside


def ergodicity_coefficient(a: Float[Tensor, "*batch n m"]) -> Float[Tensor, "*batch"]:
    r"""Return the largest distance between two rows: how unlike two walkers' next steps can be (Dobrushin [2]_).

    .. math:: \tau(A) = \frac12 \max_{i, j} \sum_k |a_{ik} - a_{jk}|
              = 1 - \min_{i, j} \sum_k \min(a_{ik}, a_{jk})

    From 0 (all rows equal: a matrix of rank one) to 1 (two rows that share no key). One step brings distributions
    closer by this factor at least, in the sum of absolute differences, and so
    :math:`\tau(AB) \le \tau(A)\, \tau(B)` and :math:`|\lambda_2| \le \tau(A)`: if it stays below some number less than
    1 in every layer, the product of attention matrices tends to rank one. A causal matrix in which some row ignores
    token 0 has 1.

    The matrix need not be square.

    Raises:
        ValueError: if ``a`` is not row-stochastic.

    .. [2] Seneta, *Non-negative Matrices and Markov Chains*, 2nd edition, 1981: the coefficients of ergodicity.
    """
    check_row_stochastic("a", a)
    exact = at_least_single(a)
    return (torch.cdist(exact, exact, p=1).amax(dim=(-2, -1)) / 2).clamp_max(1.0).to(a.dtype)


def rollout(
    layers: Sequence[Float[Tensor, "*batch n n"]] | Float[Tensor, "n_layers *batch n n"], *, residual: float = 0.5
) -> Float[Tensor, "*batch n n"]:
    r"""Return how much of each input would be in each output if layers only mixed tokens (attention rollout [3]_).

    .. math:: R = \tilde A_L \cdots \tilde A_2\, \tilde A_1, \qquad \tilde A = r\, I + (1 - r)\, A

    The share :math:`r` stands for the residual stream, which carries each token past the layer. A half is the
    authors' choice, not a measurement; values, norms and feed-forward networks are left out altogether.

    Args:
        layers: weights of each layer, the first layer first. Average over heads before, as the authors do:
            ``weights.mean(dim=1)``; or keep them, for the rollout of a path through equally numbered heads.
        residual: :math:`r`; with 0 the plain product of the matrices.

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
    identity = torch.eye(first.shape[-1], dtype=at_least_single(first).dtype, device=first.device)
    product = identity
    for a in layers:
        product = (residual * identity + (1 - residual) * at_least_single(a)) @ product
    return product.to(first.dtype)


def check_row_stochastic(name: str, a: Float[Tensor, "*batch n m"]) -> None:
    """Refuse what is not a matrix of distributions, one in each row, naming the argument.

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
        advice="; a query that may attend nowhere has no next step, leave it out",
    )


# --- parts ----------------------------------------------------------------------------------------------------------


def _reached_by_all(a: Tensor) -> Bool[Tensor, "*batch n"]:
    """Which tokens can be reached from every token, in any number of steps."""
    n = a.shape[-1]
    reached = ((a > 0) | torch.eye(n, dtype=torch.bool, device=a.device)).float()
    for _ in range(math.ceil(math.log2(n))):  # 1, 2, 4, ... steps; n - 1 always suffice
        reached = (reached @ reached > 0).float()
    return (reached > 0).all(dim=-2)


def _check_chain(a: Tensor, *, name: str = "a") -> None:
    check_row_stochastic(name, a)
    if a.shape[-2] != a.shape[-1]:
        raise ValueError(f"{name} must be square, so that one step can follow another, got {tuple(a.shape)}")
