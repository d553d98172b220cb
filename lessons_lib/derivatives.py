"""Refuse the derivatives that a hand-written ``torch.autograd.Function`` does not have.

Such a step has first derivatives in reverse mode alone. Without a refusal, a second derivative through it would lack
its part, without a word.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

Gradients = tuple[Tensor | None, ...]


def first_derivatives_only(step: str) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Make the ``backward`` of a ``torch.autograd.Function`` of what computes its gradients, once and no more often.

    What is decorated is called as ``gradients(ctx, saved, *grad_outputs)``, with ``ctx.saved_tensors`` for ``saved``,
    and records nothing. If the gradients are themselves to be differentiated (``create_graph=True``), they become the
    results of a second step, from the saved tensors and the gradients that arrived, whose own ``backward`` raises. So
    whoever looks for a derivative of them meets it. PyTorch's ``once_differentiable`` hangs its error on new leaves,
    where ``torch.autograd.grad(..., inputs)`` never looks.

    ``step`` names the function in the error, a ``NotImplementedError``.
    """

    def decorate(gradients: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @wraps(gradients)
        def backward(ctx: Any, *grad_outputs: Tensor) -> Gradients:
            saved = ctx.saved_tensors  # once: checkpointing lets nobody ask again
            if torch.compiler.is_compiling():
                return gradients(ctx, saved, *grad_outputs)
            _refuse_transforms(step)
            if not torch.is_grad_enabled():
                return gradients(ctx, saved, *grad_outputs)
            return _Gradients.apply(
                step, lambda *given: gradients(ctx, given[: len(saved)], *given[len(saved) :]), *saved, *grad_outputs
            )

        return backward

    return decorate


def check_backward_only(step: str, *tensors: Tensor | None) -> None:
    """Refuse to be differentiated in forward mode, and by the transforms of ``torch.func``.

    Raises:
        NotImplementedError: if a tensor carries a tangent, or this runs inside a transform.
    """
    if torch.compiler.is_compiling():
        return
    _refuse_transforms(step)
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors if x is not None):
        raise NotImplementedError(
            f"{step} must not be differentiated in forward mode, got a tensor with a tangent; use "
            "lessons_lib.attention.attention instead"
        )


# --- parts ----------------------------------------------------------------------------------------------------------


class _Gradients(torch.autograd.Function):
    """``apply(step, gradients, *given)`` is ``gradients(*given)``, which nobody may differentiate."""

    @staticmethod
    def forward(ctx: Any, step: str, gradients: Callable[..., Gradients], *given: Tensor | None) -> Gradients:
        ctx.step = step
        return gradients(*given)

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        raise NotImplementedError(
            f"{ctx.step} must be differentiated only once, got a derivative of its gradients to compute (a Hessian, a "
            "penalty on a gradient); use lessons_lib.attention.attention instead"
        )


def _refuse_transforms(step: str) -> None:
    if torch._C._are_functorch_transforms_active():  # as torch.autograd.Function asks
        raise NotImplementedError(
            f"{step} must not be called inside a transform of torch.func (grad, vmap, jvp, …); use .backward(), "
            "torch.autograd.grad, or lessons_lib.attention.attention instead"
        )
