"""Checks that the exercises call: random inputs from a seed, and messages that name the likely mistake.

One file per chapter, one function per exercise. They are public: their strength is the random inputs (another seed
when an assignment is graded), not their secrecy. References are bound when a file is imported, before any answer runs.
The files, in reading order, which is the book's:

    why_attention    a look-up, and a sentence that looks itself up
    information      entropy, temperature, mutual information
    geometry         lengths, angles, and which keys can win
    scaling          the root, a softmax that does not overflow, the way back
    matrix           the walk of attention
    masks            who may look at whom
    multi_head       several heads, shared keys, the cache
    positions        rotations, biases, longer contexts
    dynamics         what goes wrong in training
    flash            exact attention to keys that come in pieces
    build_attention  the assignment of Part I
    build_flash      the assignment of Part III
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def compare(what: str, got: object, wanted: Tensor, mistakes: Mapping[str, Tensor], *, where: str) -> None:
    """Accept ``got`` if it equals ``wanted`` to rounding; else say which of the known mistakes gives it.

    Args:
        what: the name of the quantity, as the exercise calls it.
        got: what the answer returned.
        wanted: what is right, in double precision.
        mistakes: what each likely mistake would have returned, by the sentence that names it.
        where: the input, in words.

    Raises:
        AssertionError: if ``got`` is not a tensor, or differs from ``wanted`` in shape or by more than rounding.
    """
    assert got is not None, f"{what} is None: did you forget to return it?"
    assert isinstance(got, Tensor), f"{what} must be a tensor, got {type(got).__name__}"
    assert got.shape == wanted.shape, f"{what} must have shape {_shape(wanted)}, got {_shape(got)} ({where})"
    if _equal(got, wanted):
        return
    for sentence, wrong in mistakes.items():
        assert not (wrong.shape == wanted.shape and _equal(got, wrong)), f"{what} is wrong: {sentence} ({where})"
    assert not bool(got.isnan().any()), f"{what} holds NaN ({where})"
    error = float((got.to(wanted.dtype) - wanted).abs().max())
    raise AssertionError(f"{what} has the right shape and wrong values, off by up to {error:.2g} ({where})")


def compare_number(
    what: str, got: object, wanted: int | float, mistakes: Mapping[str, int | float], *, where: str
) -> None:
    """Do the same for an answer that is one number; a tensor without axes counts as one."""

    def tensor(value: int | float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    given = tensor(got) if isinstance(got, (int, float)) else got
    compare(what, given, tensor(wanted), {why: tensor(wrong) for why, wrong in mistakes.items()}, where=where)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in double precision, whatever the default is."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _equal(got: Tensor, wanted: Tensor) -> bool:
    tolerance = 1e-9 if got.dtype == torch.float64 else 1e-5
    return torch.allclose(got.to(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
