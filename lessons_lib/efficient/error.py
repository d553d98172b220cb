"""The relative error of an approximation."""

from jaxtyping import Float
from torch import Tensor

from lessons_lib.foundations.validation import check_floating


def relative_error(approximate: Float[Tensor, "*axes"], exact: Float[Tensor, "*axes"]) -> float:
    r"""Return the relative error of ``approximate`` in the Frobenius norm.

    .. math:: \frac{\lVert \hat O - O \rVert_F}{\lVert O \rVert_F}

    It is 0 if the tensors are equal, and 1 if ``approximate`` is zero throughout. Computed in float64.

    ::

        >>> import torch
        >>> relative_error(torch.full((2, 3), 1.5), torch.ones(2, 3))
        0.5

    Raises:
        ValueError: if the tensors differ in shape, type or device, or ``exact`` is zero throughout.
    """
    check_floating(approximate=approximate, exact=exact)
    if approximate.shape != exact.shape:
        raise ValueError(
            f"approximate and exact must have the same shape, got {tuple(approximate.shape)} and {tuple(exact.shape)}"
        )
    length = exact.double().norm()
    if not length:
        raise ValueError("exact must not be zero throughout, there is nothing to measure against")
    return ((approximate.double() - exact.double()).norm() / length).item()
