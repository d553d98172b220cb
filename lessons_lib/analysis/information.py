r"""Entropy, cross-entropy, Kullback-Leibler divergence and mutual information.

All results are in nats (natural logarithms). :math:`0 \log 0` is 0 and has a finite gradient.

Inputs must be distributions: no entry is negative, and each row (for a joint distribution: each table) sums to one.
The tolerance is ``eps ** (2 / 3)`` of the type: 4e-11 for float64, 2e-5 for float32, 1e-2 for float16 and 4e-2 for
bfloat16. In half precision this is about ten times the error from rounding each entry. Half-precision input is
computed in float32 and the result is returned in the input's type.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.foundations.validation import broadcast_together, check_floating, promote_half, values_can_be_read


def entropy(p: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return the entropy of each row, from 0 (one certain outcome) to :math:`\log m` (uniform).

    .. math:: H(p) = -\sum_j p_j \log p_j

    ::

        >>> entropy(torch.randn(2, 8, 50, 50).softmax(-1)).shape
        torch.Size([2, 8, 50])

    Raises:
        ValueError: if a row of ``p`` is not a distribution.
    """
    exact = _checked_distribution("p", p)
    return -_expected_log(exact, exact).to(p.dtype)


def effective_count(p: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return the effective count of outcomes of each row, also called its perplexity.

    .. math:: e^{H(p)}

    A uniform distribution over this many outcomes has the same entropy. The result lies between 1 and ``m``. Its mean
    over rows differs from ``exp`` of the mean entropy.

    ::

        >>> effective_count(torch.full((2, 8, 50, 4), 0.25)).shape
        torch.Size([2, 8, 50])

    Raises:
        ValueError: if a row of ``p`` is not a distribution.
    """
    exact = _checked_distribution("p", p)
    return (-_expected_log(exact, exact)).exp().to(p.dtype)


def cross_entropy(p: Float[Tensor, "*#rows m"], q: Float[Tensor, "*#rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return the cross-entropy of ``q`` relative to ``p``: the expected ``-log q`` of outcomes drawn from ``p``.

    .. math:: H(p, q) = -\sum_j p_j \log q_j = H(p) + D(p \,\|\, q)

    It is infinite if ``q`` is zero for an outcome that is possible under ``p``.

    ::

        >>> p, q = torch.randn(2, 5, 7).softmax(-1), torch.randn(7).softmax(-1)
        >>> cross_entropy(p, q).shape
        torch.Size([2, 5])

    Raises:
        ValueError: if a row of ``p`` or ``q`` is not a distribution, or their shapes, types or devices do not match.
    """
    _check_pair(p, q)
    return -_expected_log(_checked_distribution("p", p), _checked_distribution("q", q)).to(p.dtype)


def kl_divergence(p: Float[Tensor, "*#rows m"], q: Float[Tensor, "*#rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return the Kullback-Leibler divergence of ``p`` from ``q``: the cross-entropy minus the entropy of ``p``.

    .. math:: D(p \,\|\, q) = \sum_j p_j \log \frac{p_j}{q_j}

    It is zero exactly if ``p`` equals ``q``, infinite if ``q`` is zero for an outcome that is possible under ``p``,
    and not symmetric. It is computed as a difference of two entropies, so rounding can turn a zero slightly negative.

    ::

        >>> p, q = torch.randn(2, 5, 7).softmax(-1), torch.randn(7).softmax(-1)
        >>> kl_divergence(p, q).shape
        torch.Size([2, 5])

    Raises:
        ValueError: as :func:`cross_entropy`.
    """
    _check_pair(p, q)
    p_exact, q_exact = _checked_distribution("p", p), _checked_distribution("q", q)
    return (_expected_log(p_exact, p_exact) - _expected_log(p_exact, q_exact)).to(p.dtype)


def mutual_information(joint: Float[Tensor, "*tables n m"]) -> Float[Tensor, "*tables"]:
    r"""Return the mutual information of the row variable and the column variable of each joint distribution.

    .. math:: I(X; Y) = H(X) + H(Y) - H(X, Y) = D\left(p(x, y) \,\|\, p(x)\, p(y)\right)

    It is computed from the entropies, because a product of two small marginals would underflow.

    ::

        >>> mutual_information(torch.full((3, 4, 5), 1 / 20)).shape  # three joint distributions
        torch.Size([3])

    Args:
        joint: ``joint[..., x, y]`` is the joint probability of ``x`` and ``y``.

    Raises:
        ValueError: if a table of ``joint`` is not a distribution.
    """
    exact = _checked_distribution("joint", joint, n_axes=2)
    rows, columns, both = exact.sum(-1), exact.sum(-2), exact.flatten(-2)
    return (_expected_log(both, both) - _expected_log(rows, rows) - _expected_log(columns, columns)).to(joint.dtype)


def pointwise_mutual_information(joint: Float[Tensor, "*tables n m"]) -> Float[Tensor, "*tables n m"]:
    r"""Return the pointwise mutual information of each pair: the logarithm of its ratio to independence.

    .. math:: \operatorname{PMI}(x, y) = \log \frac{p(x, y)}{p(x)\, p(y)}

    Its expectation under ``joint`` is :func:`mutual_information`; single entries may be negative. A pair of probability
    zero has ``-inf``, also if ``x`` or ``y`` itself has probability zero.

    ::

        >>> pointwise_mutual_information(torch.full((3, 4, 5), 1 / 20)).shape
        torch.Size([3, 4, 5])

    Raises:
        ValueError: if a table of ``joint`` is not a distribution.
    """
    exact = _checked_distribution("joint", joint, n_axes=2)
    logs = _finite_log(exact) - _finite_log(exact.sum(-1, keepdim=True)) - _finite_log(exact.sum(-2, keepdim=True))
    return logs.masked_fill(exact == 0, -torch.inf).to(joint.dtype)


def check_sums_to_one(
    name: str, p: Float[Tensor, "*axes"], *, n_axes: int = 1, rule: str = "must sum to one", advice: str = ""
) -> None:
    """Check that no entry is negative and that the last ``n_axes`` axes sum to one within this module's tolerance.

    Args:
        name: the argument's name in the error message.
        p: the tensor to check.
        n_axes: number of axes of one distribution.
        rule, advice: the middle and the end of the error message.

    Raises:
        ValueError: if an entry is negative or ``NaN``, or a sum is not one.
    """
    if not values_can_be_read(p):
        return
    if not (p >= 0).all():
        raise ValueError(f"{name} must have no negative entries and no NaN, got a smallest entry of {p.min().item()}")
    totals = promote_half(p).flatten(-n_axes).sum(-1)
    tolerance = torch.finfo(p.dtype).eps ** (2 / 3)
    wrong = totals[(totals - 1).abs() > tolerance]
    if wrong.numel():
        raise ValueError(f"{name} {rule} within {tolerance:.0e} ({p.dtype}), got {wrong[0].item()}{advice}")


# --- parts ----------------------------------------------------------------------------------------------------------


def _expected_log(p: Tensor, q: Tensor) -> Tensor:
    """Return the expectation of ``log q`` under ``p``. Entries where both are zero add nothing, also to gradients."""
    return (p * torch.where((p > 0) | (q > 0), q, 1.0).log()).sum(-1)


def _finite_log(x: Tensor) -> Tensor:
    """Return the logarithm, and 0 for zero entries, which the caller replaces."""
    return torch.where(x > 0, x, 1.0).log()


def _check_pair(p: Tensor, q: Tensor) -> None:
    check_floating(p=p, q=q)
    if p.shape[-1:] != q.shape[-1:] or not broadcast_together(p.shape, q.shape):
        raise ValueError(
            "p and q must have the same number of outcomes and leading axes that broadcast, "
            f"got {tuple(p.shape)} and {tuple(q.shape)}"
        )


def _checked_distribution(name: str, p: Tensor, *, n_axes: int = 1) -> Tensor:
    """Check that the last axes of ``p`` hold distributions, and return ``p`` in at least float32."""
    check_floating(**{name: p})
    if p.ndim < n_axes:
        raise ValueError(f"{name} must have {n_axes} or more axes, got shape {tuple(p.shape)}")
    if n_axes == 1 and values_can_be_read(p) and (p == 0).all(-1).any():
        raise ValueError(
            f"{name} has a row that sums to zero: a fully masked query has no distribution; "
            f"leave such rows out first, as in {name}[{name}.sum(-1) > 0]"
        )
    check_sums_to_one(name, p, n_axes=n_axes)
    return promote_half(p)
