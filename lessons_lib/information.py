r"""How undecided a distribution is, how far two of them lie apart, and what one variable tells about another.

Everything is in nats (natural logarithms), with :math:`0 \log 0 = 0` and a finite gradient there.

Input must *be* a distribution: no negative entries, and rows (for a joint distribution: tables) that sum to one
within ``eps ** (2 / 3)`` of their type: 4e-11 for float64, 2e-5 for float32, 1e-2 for float16, 4e-2 for bfloat16,
about ten times what rounding each entry can do in half precision. Half precision is computed in float32 and returned
in its own type.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.shapes import at_least_single, broadcast_together, check_floating, values_can_be_read


def entropy(p: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return how undecided each row is, from 0 (one certain outcome) to :math:`\log m` (uniform).

    .. math:: H(p) = -\sum_j p_j \log p_j

    Raises:
        ValueError: if a row of ``p`` is not a distribution.
    """
    exact = _checked("p", p)
    return -_mean_log(exact, exact).to(p.dtype)


def effective_count(p: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return how many equally likely outcomes would be as undecided as each row: the row's perplexity.

    .. math:: e^{H(p)}

    Between 1 and ``m``. The mean of these over rows is not ``exp`` of the mean entropy.

    Raises:
        ValueError: if a row of ``p`` is not a distribution.
    """
    exact = _checked("p", p)
    return (-_mean_log(exact, exact)).exp().to(p.dtype)


def cross_entropy(p: Float[Tensor, "*#rows m"], q: Float[Tensor, "*#rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return the surprise of someone who believes ``q`` while outcomes follow ``p``.

    .. math:: H(p, q) = -\sum_j p_j \log q_j = H(p) + D(p \,\|\, q)

    Infinite where ``q`` rules out what ``p`` allows.

    Raises:
        ValueError: if a row of ``p`` or ``q`` is not a distribution, or the two do not fit together.
    """
    _check_pair(p, q)
    return -_mean_log(_checked("p", p), _checked("q", q)).to(p.dtype)


def kl_divergence(p: Float[Tensor, "*#rows m"], q: Float[Tensor, "*#rows m"]) -> Float[Tensor, "*rows"]:
    r"""Return what believing ``q`` costs beyond the unavoidable, while outcomes follow ``p`` (Kullback-Leibler).

    .. math:: D(p \,\|\, q) = \sum_j p_j \log \frac{p_j}{q_j}

    Zero exactly when the two are equal, infinite where ``q`` rules out what ``p`` allows, and not symmetric. It is
    the difference of two entropies, so rounding can leave a zero slightly negative.

    Raises:
        ValueError: as :func:`cross_entropy`.
    """
    _check_pair(p, q)
    p_exact, q_exact = _checked("p", p), _checked("q", q)
    return (_mean_log(p_exact, p_exact) - _mean_log(p_exact, q_exact)).to(p.dtype)


def mutual_information(joint: Float[Tensor, "*tables n m"]) -> Float[Tensor, "*tables"]:
    r"""Return how much the row variable tells about the column variable, on average: one number for each table.

    .. math:: I(X; Y) = H(X) + H(Y) - H(X, Y) = D\left(p(x, y) \,\|\, p(x)\, p(y)\right)

    Computed from the entropies: a product of two small marginals would underflow.

    Args:
        joint: ``joint[..., x, y]`` is the probability of both.

    Raises:
        ValueError: if a table of ``joint`` is not a distribution.
    """
    exact = _checked("joint", joint, n_axes=2)
    rows, columns, both = exact.sum(-1), exact.sum(-2), exact.flatten(-2)
    return (_mean_log(both, both) - _mean_log(rows, rows) - _mean_log(columns, columns)).to(joint.dtype)


def pointwise_mutual_information(joint: Float[Tensor, "*tables n m"]) -> Float[Tensor, "*tables n m"]:
    r"""Return how much more often each pair occurs together than it would by chance, as a logarithm.

    .. math:: \operatorname{PMI}(x, y) = \log \frac{p(x, y)}{p(x)\, p(y)}

    Its mean under ``joint`` is :func:`mutual_information`; single entries may be negative. A pair that never occurs
    has ``-inf``, also when one of the two never occurs at all.

    Raises:
        ValueError: if a table of ``joint`` is not a distribution.
    """
    exact = _checked("joint", joint, n_axes=2)
    logs = _finite_log(exact) - _finite_log(exact.sum(-1, keepdim=True)) - _finite_log(exact.sum(-2, keepdim=True))
    return logs.masked_fill(exact == 0, -torch.inf).to(joint.dtype)


def check_sums_to_one(
    name: str, p: Float[Tensor, "*axes"], *, n_axes: int = 1, rule: str = "must sum to one", advice: str = ""
) -> None:
    """Refuse entries below zero, and sums over the last ``n_axes`` axes that are not one within the tolerance above.

    Args:
        rule, advice: how the message puts the rule, and how it goes on after what was received.

    Raises:
        ValueError: if an entry is negative or ``NaN``, or such a sum is not one.
    """
    if not values_can_be_read(p):
        return
    if not (p >= 0).all():
        raise ValueError(f"{name} must have no negative entries and no NaN, got a smallest entry of {p.min().item()}")
    totals = at_least_single(p).flatten(-n_axes).sum(-1)
    tolerance = torch.finfo(p.dtype).eps ** (2 / 3)
    wrong = totals[(totals - 1).abs() > tolerance]
    if wrong.numel():
        raise ValueError(f"{name} {rule} within {tolerance:.0e} ({p.dtype}), got {wrong[0].item()}{advice}")


# --- parts ----------------------------------------------------------------------------------------------------------


def _mean_log(p: Tensor, q: Tensor) -> Tensor:
    """The mean of ``log q`` under ``p``. Where both are zero nothing is added, to the gradient neither."""
    return (p * torch.where((p > 0) | (q > 0), q, 1.0).log()).sum(-1)


def _finite_log(x: Tensor) -> Tensor:
    """The logarithm, with 0 at zero: for entries that the caller replaces."""
    return torch.where(x > 0, x, 1.0).log()


def _check_pair(p: Tensor, q: Tensor) -> None:
    check_floating(p=p, q=q)
    if p.shape[-1:] != q.shape[-1:] or not broadcast_together(p.shape, q.shape):
        raise ValueError(
            "p and q must have as many outcomes and leading axes that broadcast, "
            f"got {tuple(p.shape)} and {tuple(q.shape)}"
        )


def _checked(name: str, p: Tensor, *, n_axes: int = 1) -> Tensor:
    """``p`` in at least float32, once its last axes are known to hold distributions."""
    check_floating(**{name: p})
    if p.ndim < n_axes:
        raise ValueError(f"{name} must have {n_axes} or more axes, got shape {tuple(p.shape)}")
    if n_axes == 1 and values_can_be_read(p) and (p == 0).all(-1).any():
        raise ValueError(
            f"{name} has a row that sums to zero: a query that may attend nowhere has no distribution to measure; "
            f"leave such rows out first, as in {name}[{name}.sum(-1) > 0]"
        )
    check_sums_to_one(name, p, n_axes=n_axes)
    return at_least_single(p)
