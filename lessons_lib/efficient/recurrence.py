r"""A linear recurrence, all its steps at once: what stands behind state space models and gated linear attention.

.. math:: h_t = a_t \odot h_{t-1} + b_t

looks as if step :math:`t` had to wait for step :math:`t - 1`. It need not. One step is an affine map, and maps compose:
first :math:`(a, b)`, then :math:`(a', b')` is

.. math:: h \mapsto a' (a\, h + b) + b' = (a' a)\, h + (a' b + b')

which is such a pair again. Composition is associative, so the :math:`n` maps up to each step can be composed in any
grouping: in :math:`\lceil \log_2 n \rceil` rounds rather than :math:`n` [1]_, which is what makes recurrent networks
that are linear in their state as parallel as attention [2]_.

.. [1] Blelloch, *Prefix Sums and Their Applications*, 1990, CMU-CS-90-190. Rounds as here: Hillis & Steele, *Data
   Parallel Algorithms*, Communications of the ACM 29(12), 1986.
.. [2] Martin & Cundy, *Parallelizing Linear Recurrent Neural Nets Over Sequence Length*, 2018. arXiv:1709.04057.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lessons_lib.shapes import at_least_single, check_floating


def recurrence(
    decay: Float[Tensor, "*batch n d"],
    added: Float[Tensor, "*batch n d"],
    initial: Float[Tensor, "*batch d"] | None = None,
) -> Float[Tensor, "*batch n d"]:
    r"""Return the states :math:`h_1 \dots h_n`, each coordinate by itself.

    Round :math:`r` composes the map of every step with that of the step :math:`2^r` before, which by then stands for
    :math:`2^r` steps: :math:`n \lceil \log_2 n \rceil` compositions instead of :math:`n`, for
    :math:`\lceil \log_2 n \rceil` instead of :math:`n` waits. Autograd keeps what each round made, so the memory is
    :math:`n d \log_2 n`; where that is too much, take the sequence in pieces, the last state of one as ``initial`` of
    the next. Nothing is divided, so decays of zero, which forget everything, are as exact as others.

    Half precision is computed in float32, and returned in its own type.

    ::

        >>> decay, added = torch.rand(2, 100, 16), torch.randn(2, 100, 16)
        >>> states = recurrence(decay, added)
        >>> states.shape
        torch.Size([2, 100, 16])
        >>> recurrence(decay, added, states[:, -1]).shape  # and on from there
        torch.Size([2, 100, 16])

    Args:
        decay: :math:`a_t`, what each coordinate of the state is multiplied by.
        added: :math:`b_t`.
        initial: :math:`h_0`; zero when omitted.

    Raises:
        ValueError: if the three are not of one floating-point type on one device, ``decay`` and ``added`` not of one
            shape with at least one step, or ``initial`` not of that shape without the steps.
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
    a, b = at_least_single(decay), at_least_single(added)
    if initial is not None:
        first = a[..., :1, :] * at_least_single(initial)[..., None, :] + b[..., :1, :]
        b = torch.cat([first, b[..., 1:, :]], dim=-2)
    n, reach = a.shape[-2], 1
    while reach < n:
        here, before = slice(reach, None), slice(None, -reach)
        later = a[..., here, :]  # the first steps have nothing that far before them, and stay as they are
        b = torch.cat([b[..., :reach, :], later * b[..., before, :] + b[..., here, :]], dim=-2)
        a = torch.cat([a[..., :reach, :], later * a[..., before, :]], dim=-2)
        reach *= 2
    return b.to(added.dtype)
