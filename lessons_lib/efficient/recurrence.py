r"""A linear recurrence computed as a parallel scan, as in state space models and gated linear attention.

.. math:: h_t = a_t \odot h_{t-1} + b_t

Step :math:`t` need not wait for step :math:`t - 1`. One step is an affine map, and affine maps compose: first
:math:`(a, b)`, then :math:`(a', b')` is

.. math:: h \mapsto a' (a\, h + b) + b' = (a' a)\, h + (a' b + b')

which is such a pair again. Composition is associative, so the :math:`n` maps up to each step can be composed in any
grouping, in :math:`\lceil \log_2 n \rceil` rounds instead of :math:`n` [1]_. Therefore recurrent networks that are
linear in their state can be computed in parallel, like attention [2]_.

.. [1] Blelloch, *Prefix Sums and Their Applications*, 1990, CMU-CS-90-190. For this scheme of rounds: Hillis & Steele,
   *Data Parallel Algorithms*, Communications of the ACM 29(12), 1986.
.. [2] Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length*, 2018. arXiv:1709.04057.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.foundations.validation import check_floating, promote_half


def recurrence(
    decay: Float[Tensor, "*batch n d"],
    added: Float[Tensor, "*batch n d"],
    initial: Float[Tensor, "*batch d"] | None = None,
) -> Float[Tensor, "*batch n d"]:
    r"""Return the states :math:`h_1 \dots h_n` of a linear recurrence that acts on each coordinate separately.

    Round :math:`r` composes the map of every step with the map of the step :math:`2^r` earlier, which already covers
    :math:`2^r` steps. This takes :math:`n \lceil \log_2 n \rceil` compositions instead of :math:`n`, but only
    :math:`\lceil \log_2 n \rceil` sequential rounds instead of :math:`n`. Autograd keeps the result of each round, so
    the memory is :math:`n d \log_2 n`. If that is too much, split the sequence and pass the last state of one part as
    ``initial`` of the next. There is no division, so decays of zero, which erase the state, are exact.

    Half-precision input is computed in float32 and the result is returned in the input's type.

    ::

        >>> decay, added = torch.rand(2, 100, 16), torch.randn(2, 100, 16)
        >>> states = recurrence(decay, added)
        >>> states.shape
        torch.Size([2, 100, 16])
        >>> recurrence(decay, added, states[:, -1]).shape  # the next 100 steps
        torch.Size([2, 100, 16])

    Args:
        decay: :math:`a_t`, the factor of each coordinate of the state.
        added: :math:`b_t`, the term added to each coordinate.
        initial: :math:`h_0`; zero when omitted.

    Raises:
        ValueError: if the three differ in floating-point type or device, if ``decay`` and ``added`` differ in shape or
            have no step, or if ``initial`` does not have their shape without the axis of steps.
    """
    given = {"decay": decay, "added": added} | ({} if initial is None else {"initial": initial})
    check_floating(**given)
    if decay.ndim < 2 or decay.shape != added.shape or not decay.shape[-2]:
        raise ValueError(
            "decay and added must be (*batch, n, d) of one shape, with at least one step, "
            f"got {tuple(decay.shape)} and {tuple(added.shape)}"
        )
    if initial is not None and initial.shape != decay[..., 0, :].shape:
        raise ValueError(
            f"initial must be (*batch, d) = {tuple(decay[..., 0, :].shape)}, one state for each sequence, "
            f"got {tuple(initial.shape)}"
        )
    a, b = promote_half(decay), promote_half(added)
    if initial is not None:
        first = a[..., :1, :] * promote_half(initial)[..., None, :] + b[..., :1, :]
        b = torch.cat([first, b[..., 1:, :]], dim=-2)
    n, reach = a.shape[-2], 1
    while reach < n:
        here, before = slice(reach, None), slice(None, -reach)
        later = a[..., here, :]  # the first ``reach`` steps have no earlier partner and stay unchanged
        b = torch.cat([b[..., :reach, :], later * b[..., before, :] + b[..., here, :]], dim=-2)
        a = torch.cat([a[..., :reach, :], later * a[..., before, :]], dim=-2)
        reach *= 2
    return b.to(added.dtype)
