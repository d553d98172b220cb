"""Checks that the exercises call: random inputs from a seed, and messages that name the likely mistake.

One file per chapter, one function per exercise. They are public: their strength is the random inputs (another seed
when an assignment is graded), not their secrecy. References are bound when a file is imported, before any answer runs.
An answer may run in another process, and what it gets and returns is plain data: gradients are taken inside the answer.

A check draws inputs, has :func:`ask` call the answer, and hands :func:`compare` what is right and what each likely
mistake would have given.
The files, in reading order, which is the book's::

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

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def ask(
    what: str, answer: Callable[..., object], *given: object, where: str, returns: str = "it", parts: int = 0
) -> Any:
    """Call the answer on copies of what is given and return what it returns.

    Args:
        what: the name of the answer, as the exercise calls it.
        answer: the answer.
        given: its arguments. Tensors, and lists and tuples of them, must be as before when it returns.
        where: the input, in words.
        returns: what has to be returned, in words.
        parts: of how many parts that is, if it is a tuple.

    Raises:
        AssertionError: if nothing is returned, or not that many parts, or an argument is changed.
    """
    lent = [_copied(argument) for argument in given]
    got = answer(*lent)
    _check_returned(what, got, returns)
    if parts:
        assert isinstance(got, (tuple, list)), f"return {returns}, got one {type(got).__name__} ({where})"
        assert len(got) == parts, f"return {returns}, got {len(got)} things ({where})"
    unchanged = all(_same(now, before) for now, before in zip(lent, given, strict=True))
    several = sum(isinstance(argument, (Tensor, list, tuple)) for argument in given) > 1
    spoilt = "arguments; work on copies" if several else "argument; work on a copy"
    assert unchanged, f"{what} changed its {spoilt} ({where})"
    return got


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
    _check_returned(what, got)
    assert isinstance(got, Tensor), f"{what} must be a tensor, got {type(got).__name__}"
    assert got.shape == wanted.shape, f"{what} must have shape {_shape(wanted)}, got {_shape(got)} ({where})"
    if _equal(got, wanted):
        return
    for sentence, wrong in mistakes.items():
        assert not (wrong.shape == wanted.shape and _equal(got, wrong)), f"{what} is wrong: {sentence} ({where})"
    assert not bool(got.isnan().any()), f"{what} holds NaN ({where})"
    error = float((got.to(wanted.dtype) - wanted).abs().max())
    raise AssertionError(f"{what} has the right shape and wrong values, off by up to {error:.2g} ({where})")


def compare_mask(what: str, got: object, wanted: Tensor, mistakes: Mapping[str, Tensor], *, where: str) -> None:
    """Do the same for a mask, which must be Boolean."""
    _check_returned(what, got)
    received = got.dtype if isinstance(got, Tensor) else type(got).__name__
    boolean = f"{what} must be a Boolean tensor, got {received} ({where})"
    assert isinstance(got, Tensor), boolean
    assert got.dtype == torch.bool, boolean
    named = {why: wrong.double() for why, wrong in mistakes.items()}
    compare(what, got.double(), wanted.double(), named, where=where)


def compare_number(
    what: str, got: object, wanted: int | float, mistakes: Mapping[str, int | float], *, where: str
) -> None:
    """Do the same for an answer that is one number; a tensor without axes counts as one."""

    def tensor(value: int | float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    given = tensor(got) if isinstance(got, (int, float)) else got
    compare(what, given, tensor(wanted), {why: tensor(wrong) for why, wrong in mistakes.items()}, where=where)


def is_finite(*parts: object) -> bool:
    """Say whether no tensor among these holds an infinity or NaN; what is no tensor is for ``compare`` to refuse."""
    return all(bool(part.isfinite().all()) for part in parts if isinstance(part, Tensor))


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in double precision, whatever the default is."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _check_returned(what: str, got: object, returns: str = "it") -> None:
    assert got is not None, f"{what} is None: did you forget to return {returns}?"


def _copied(argument: object) -> object:
    if isinstance(argument, Tensor):
        return argument.clone()
    return type(argument)(map(_copied, argument)) if isinstance(argument, (list, tuple)) else argument


def _same(now: object, before: object) -> bool:
    if type(now) is not type(before):
        return False
    if isinstance(now, Tensor) and isinstance(before, Tensor):
        return now.shape == before.shape and bool(((now == before) | (now.isnan() & before.isnan())).all())
    if isinstance(now, (list, tuple)) and isinstance(before, (list, tuple)):
        return len(now) == len(before) and all(map(_same, now, before))
    return now is before or now == before


def _equal(got: Tensor, wanted: Tensor) -> bool:
    tolerance = 1e-9 if got.dtype == torch.float64 else 1e-5
    return torch.allclose(got.to(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
