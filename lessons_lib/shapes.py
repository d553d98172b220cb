"""The questions that every file asks of its input; a wrong answer is a ``ValueError`` with the rule and what came."""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._guards import detect_fake_mode

import lessons_lib.settled  # noqa: F401 (first of all, whatever is imported)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of ``shape`` expands to ``target`` without enlarging it."""
    paired = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in paired)


def broadcast_together(*shapes: Sequence[int]) -> bool:
    """Whether tensors of these shapes expand to a common one."""
    longest = max(map(len, shapes))
    aligned = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    for sizes in zip(*aligned, strict=True):  # compared, not hashed: a length that torch.export leaves free has no hash
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide):
            return False
    return True


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """Refuse a mask that is not Boolean, or that would enlarge the scores it is laid over.

    Plain broadcasting would accept a mask over ``(b, 1, n, n)`` on scores over ``(b, n, n)`` and silently return
    ``(b, b, n, n)``: every sequence under the mask of every other.
    """
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be Boolean, True where a query may attend, got {mask.dtype}; "
            "numbers to be added to the scores are a bias"
        )
    if not broadcasts_to(mask.shape, scores.shape):
        raise ValueError(
            f"mask must broadcast to the scores, {tuple(scores.shape)}, without enlarging them, got {tuple(mask.shape)}"
        )
    check_same_device(scores=scores, mask=mask)


def values_can_be_read(*tensors: Tensor) -> bool:
    """Return whether Python can read the values of these tensors now: a check of values is skipped where it cannot.

    There are no values to read while ``torch.compile`` or ``torch.export`` traces, on the meta device, under
    ``FakeTensorMode`` and in a batch of ``torch.vmap``.
    """
    if torch.compiler.is_compiling() or any(tensor.is_meta for tensor in tensors):
        return False
    for tensor in tensors:
        while is_functorch_wrapped_tensor(tensor):  # grad may be inside vmap, and vmap inside grad
            if is_batchedtensor(tensor):
                return False
            tensor = get_unwrapped(tensor)
    return detect_fake_mode(tensors) is None


def check_tensor(name: str, value: object) -> None:
    """Refuse what is not a tensor, such as a list."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}; write torch.tensor({name})")


def check_size(name: str, value: int, *, at_least: int, at_most: int | None = None) -> None:
    """Refuse what is not a whole number in the given range. NumPy's whole numbers and symbolic sizes are taken."""
    if not isinstance(value, Integral | torch.SymInt) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {value}")


def check_floating(**tensors: Tensor) -> None:
    """Refuse tensors that are not of one floating-point type on one device, naming the argument."""
    (first, reference), *_ = tensors.items()
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
        if tensor.dtype != reference.dtype:
            raise ValueError(f"{first} and {name} must have the same dtype, got {reference.dtype} and {tensor.dtype}")
    check_same_device(**tensors)


def check_integers(name: str, tensor: Tensor, *axes: str) -> None:
    """Refuse a tensor that does not hold integers, or whose axes are none of those named.

    ``"b n"`` asks for two axes and ``"*batch n"`` for at least one; with no names any number will do. Truth values are
    no integers: PyTorch would take them for a mask where it takes integers for places.
    """
    allowed = [spelled.split() for spelled in axes]
    over = " or ".join(f"({', '.join(names)}{',' * (len(names) == 1)})" for names in allowed)
    rule = f"{name} must be integers{over and f' over {over}'}"
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{rule}, got {type(tensor).__name__}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{rule}, got {tensor.dtype} over {tuple(tensor.shape)}")
    if allowed and not any(_has_axes(tensor, names) for names in allowed):
        raise ValueError(f"{rule}, got {tensor.dtype} over {tuple(tensor.shape)}")


def check_above(name: str, value: int | float, bound: int | float, *, or_equal: bool = False) -> None:
    """Refuse a number that is not finite and above the bound."""
    if not (math.isfinite(value) and (value > bound or (or_equal and value == bound))):
        raise ValueError(f"{name} must be finite and {'at least' if or_equal else 'above'} {bound}, got {value}")


def check_share(name: str, value: float) -> None:
    """Refuse a number that is not a share of something, all of it excepted."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_vectors(x: Tensor, d_model: int) -> None:
    """Refuse what does not hold floating-point vectors of a layer's width."""
    check_floating(x=x)
    if x.shape[-1:] != (d_model,):
        raise ValueError(f"x must end in an axis of size d_model={d_model}, got shape {tuple(x.shape)}")


def check_same_device(**tensors: Tensor) -> None:
    """Refuse tensors that lie on different devices, naming the argument."""
    (first, reference), *_ = tensors.items()
    for name, tensor in tensors.items():
        if tensor.device != reference.device:
            raise ValueError(
                f"{first} and {name} must be on the same device, got {reference.device} and {tensor.device}"
            )


def _has_axes(tensor: Tensor, names: list[str]) -> bool:
    return tensor.ndim >= len(names) - 1 if names[:1] and names[0][0] == "*" else tensor.ndim == len(names)


def at_least_single(tensor: Tensor) -> Tensor:
    """Return half precision as float32, and anything wider as it is: sums and exponentials need the digits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
