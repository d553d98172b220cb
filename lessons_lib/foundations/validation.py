"""Checks of arguments: each raises a ``ValueError`` that says what was expected and what was received."""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch._guards import detect_fake_mode

import lessons_lib.foundations.mkl_first_call  # noqa: F401 (here, because almost every file imports this one)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Return whether a tensor of ``shape`` can be expanded to ``target``.

    >>> broadcasts_to((1, 7), (2, 5, 7)), broadcasts_to((2, 5, 7), (1, 7))
    (True, False)
    """
    paired = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in paired)


def broadcast_together(*shapes: Sequence[int]) -> bool:
    """Return whether tensors of these shapes broadcast with one another.

    >>> broadcast_together((2, 1), (5,)), broadcast_together((2, 3), (5,))
    (True, False)
    """
    longest = max(map(len, shapes))
    aligned = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    for sizes in zip(*aligned, strict=True):  # compared, not hashed: a symbolic size has no hash
        larger = [size for size in sizes if size != 1]
        if any(size != larger[0] for size in larger):
            return False
    return True


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """Check that a mask is Boolean and broadcasts to the scores without enlarging them.

    Plain broadcasting would accept a mask over ``(b, 1, n, n)`` for scores over ``(b, n, n)`` and silently return
    ``(b, b, n, n)``, which is each sequence under the masks of all sequences.

    >>> check_mask(torch.ones(5, 7, dtype=torch.bool), torch.randn(2, 5, 7))
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
    """Return whether Python can read the values of these tensors; where it cannot, checks of values are skipped.

    The values cannot be read while ``torch.compile`` or ``torch.export`` traces, on the meta device, under
    ``FakeTensorMode`` and in a batch of ``torch.vmap``.

    >>> values_can_be_read(torch.ones(2)), values_can_be_read(torch.ones(2, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or any(tensor.is_meta for tensor in tensors):
        return False
    for tensor in tensors:
        while is_functorch_wrapped_tensor(tensor):  # grad may be nested in vmap, and vmap in grad
            if is_batchedtensor(tensor):
                return False
            tensor = get_unwrapped(tensor)
    return detect_fake_mode(tensors) is None


def check_tensor(name: str, value: object) -> None:
    """Check that an argument is a tensor and not, for instance, a list."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(value).__name__}; write torch.tensor({name})")


def check_size(name: str, value: int, *, at_least: int, at_most: int | None = None) -> None:
    """Check that an argument is an integer in the given range. NumPy integers and symbolic sizes are accepted."""
    if not isinstance(value, Integral | torch.SymInt) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {value}")


def check_floating(**tensors: Tensor) -> None:
    """Check that all tensors have one floating-point dtype and are on one device."""
    (first, reference), *_ = tensors.items()
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
        if tensor.dtype != reference.dtype:
            raise ValueError(f"{first} and {name} must have the same dtype, got {reference.dtype} and {tensor.dtype}")
    check_same_device(**tensors)


def check_integers(name: str, tensor: Tensor, *axes: str) -> None:
    """Check that a tensor holds integers and that the number of its axes matches one of ``axes``.

    ``"b n"`` matches two axes and ``"*batch n"`` one or more; without ``axes``, any number of axes is accepted. Boolean
    tensors are not accepted, because PyTorch would use them as a mask where integers are used as indices.

    >>> check_integers("tokens", torch.zeros(2, 5, dtype=torch.long), "n", "b n")
    """
    allowed = [names.split() for names in axes]
    over = " or ".join(f"({', '.join(names)}{',' * (len(names) == 1)})" for names in allowed)
    rule = f"{name} must be integers{over and f' over {over}'}"
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{rule}, got {type(tensor).__name__}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{rule}, got {tensor.dtype} over {tuple(tensor.shape)}")
    if allowed and not any(_has_axes(tensor, names) for names in allowed):
        raise ValueError(f"{rule}, got {tensor.dtype} over {tuple(tensor.shape)}")


def check_above(name: str, value: int | float, bound: int | float, *, or_equal: bool = False) -> None:
    """Check that a number is finite and above the bound, or at least the bound if ``or_equal``."""
    if not (math.isfinite(value) and (value > bound or (or_equal and value == bound))):
        raise ValueError(f"{name} must be finite and {'at least' if or_equal else 'above'} {bound}, got {value}")


def check_fraction(name: str, value: float) -> None:
    """Check that a number, for instance a dropout probability, is in ``[0, 1)``."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_vectors(x: Tensor, d_model: int) -> None:
    """Check that the input of a layer holds floating-point vectors of the width of the layer."""
    check_floating(x=x)
    if x.shape[-1:] != (d_model,):
        raise ValueError(f"x must end in an axis of size d_model={d_model}, got shape {tuple(x.shape)}")


def check_same_device(**tensors: Tensor) -> None:
    """Check that all tensors are on one device."""
    (first, reference), *_ = tensors.items()
    for name, tensor in tensors.items():
        if tensor.device != reference.device:
            raise ValueError(
                f"{first} and {name} must be on the same device, got {reference.device} and {tensor.device}"
            )


def _has_axes(tensor: Tensor, names: list[str]) -> bool:
    return tensor.ndim >= len(names) - 1 if names[:1] and names[0][0] == "*" else tensor.ndim == len(names)


def promote_half(tensor: Tensor) -> Tensor:
    """Convert half precision to float32, in which sums and exponentials are accurate; leave other dtypes unchanged.

    >>> promote_half(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
