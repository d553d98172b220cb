"""Attention that costs less than ``n**2``, each way in the call shape of attention and measured against it.

Some compute the same as :func:`lessons_lib.attention.attention` under a mask and skip what the mask hides; others
compute something else that is meant to be near. The files, in reading order::

    call_shape      what all of them take, and how they refuse the rest
    skipping        exact, for any rule: as the number of blocks in which it shows anything
    sliding_window  the same for a rule that keeps the neighbours: cost grows as ``n * window``
    block_sparse    the same for a rule made of blocks, as Longformer's and BigBird's
    linear          another similarity than ``exp``, a product of features: as ``n``, and a recurrent network at heart
    performer       random features whose products are ``exp`` on average
    linformer       keys and values mixed down to a fixed number
    recurrence      no attention: a state that is carried along, all its steps in parallel
    delta           linear attention's state that decays, and that is corrected instead of added to

Each but the last two takes the place of attention in a layer, its own options filled in::

    MultiHeadAttention(64, 4, implementation=partial(sliding_window_attention, window=128))

What a variant cannot honour (a mask that says more than it can skip, a bias, dropout) is refused, never ignored.
How far one that is not exact strays is :func:`relative_error`.
"""

from jaxtyping import Float
from torch import Tensor

from lessons_lib.shapes import check_floating


def relative_error(approximate: Float[Tensor, "*axes"], exact: Float[Tensor, "*axes"]) -> float:
    r"""Return how far one tensor lies from another, in units of the other's length (Frobenius norm).

    .. math:: \frac{\lVert \hat O - O \rVert_F}{\lVert O \rVert_F}

    0 is equality; answering zero, which is no answer, gives 1. Computed in float64.

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
