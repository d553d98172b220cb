"""Raise errors for derivatives that a hand-written ``torch.autograd.Function`` does not support.

The functions of this library have first derivatives in reverse mode only. Without an error, a second derivative through
such a function would silently lack the contribution of the function.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

Gradients = tuple[Tensor | None, ...]


def first_derivatives_only(function_name: str) -> Callable[[Callable[..., Gradients]], Callable[..., Gradients]]:
    """Turn a function that computes gradients into a ``backward`` that raises when it is differentiated again.

    The decorated function is called as ``compute_gradients(ctx, saved, *grad_outputs)``, where ``saved`` is
    ``ctx.saved_tensors``; its operations are not recorded. With ``create_graph=True`` the gradients are the outputs of
    a second ``torch.autograd.Function`` of the saved tensors and the incoming gradients, whose own ``backward`` raises
    a ``NotImplementedError``. So every second derivative through the gradients reaches this error. With PyTorch's
    ``once_differentiable`` the error is attached to new leaf tensors, which ``torch.autograd.grad(..., inputs)`` does
    not visit.

    ::

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(x)
                ctx.factor = factor
                return factor * x

            @staticmethod
            @first_derivatives_only("scale")
            def backward(ctx, saved, grad_output):
                return ctx.factor * grad_output, None

    Args:
        function_name: the name of the function in the error.
    """

    def decorate(compute_gradients: Callable[..., Gradients]) -> Callable[..., Gradients]:
        @wraps(compute_gradients)
        def backward(ctx: Any, *grad_outputs: Tensor | None) -> Gradients:
            saved = ctx.saved_tensors  # read once: under checkpointing a second access raises
            if torch.compiler.is_compiling():
                return compute_gradients(ctx, saved, *grad_outputs)
            _raise_inside_transforms(function_name)
            if not torch.is_grad_enabled():
                return compute_gradients(ctx, saved, *grad_outputs)

            def compute(*inputs: Tensor | None) -> Gradients:
                return compute_gradients(ctx, inputs[: len(saved)], *inputs[len(saved) :])

            return _NonDifferentiable.apply(function_name, compute, *saved, *grad_outputs)

        return backward

    return decorate


def check_backward_only(function_name: str, *tensors: Tensor | None) -> None:
    """Check that a function is not differentiated in forward mode or called inside a transform of ``torch.func``.

    >>> check_backward_only("flash_attention", torch.ones(2, requires_grad=True), None)

    Args:
        function_name: the name of the function in the error.
        tensors: the inputs of the function.

    Raises:
        NotImplementedError: if a tensor has a tangent, or if this is called inside a transform.
    """
    if not torch.compiler.is_compiling():
        _raise_inside_transforms(function_name)
        check_no_tangents(function_name, *tensors)


def check_no_tangents(function_name: str, *tensors: Tensor | None) -> None:
    """Check that a function is not differentiated in forward mode.

    Raises:
        NotImplementedError: if a tensor has a tangent.
    """
    if torch.compiler.is_compiling():
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors if x is not None):
        raise_on_forward_mode(function_name)


def is_inside_transform() -> bool:
    """Return whether a transform of ``torch.func`` is active; False while ``torch.compile`` traces.

    >>> is_inside_transform()
    False
    """
    if torch.compiler.is_compiling():  # the compiler cannot trace the call below
        return False
    return torch._C._are_functorch_transforms_active()  # the same check as in torch.autograd.Function


def raise_on_forward_mode(function_name: str) -> NoReturn:
    """Raise the error of a function that is differentiated in forward mode."""
    raise NotImplementedError(
        f"{function_name} must not be differentiated in forward mode, got a tensor with a tangent; use "
        "lessons_lib.attention.attention.attention instead"
    )


def raise_on_second_derivative(function_name: str) -> NoReturn:
    """Raise the error of a function whose gradients are differentiated again."""
    raise NotImplementedError(
        f"{function_name} must be differentiated only once, got a derivative of its gradients to compute (a "
        "Hessian, a penalty on a gradient); use lessons_lib.attention.attention.attention instead"
    )


# --- helpers --------------------------------------------------------------------------------------------------------


class _NonDifferentiable(torch.autograd.Function):
    """``apply(function_name, compute, *inputs)`` returns ``compute(*inputs)``; its backward pass raises an error."""

    @staticmethod
    def forward(ctx: Any, function_name: str, compute: Callable[..., Gradients], *inputs: Tensor | None) -> Gradients:
        ctx.function_name = function_name
        return compute(*inputs)

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        raise_on_second_derivative(ctx.function_name)


def _raise_inside_transforms(function_name: str) -> None:
    if is_inside_transform():
        raise NotImplementedError(
            f"{function_name} must not be called inside a transform of torch.func (grad, vmap, jvp, …); use "
            ".backward(), torch.autograd.grad, or lessons_lib.attention.attention.attention instead"
        )
