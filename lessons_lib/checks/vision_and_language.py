"""Checks of the exercises on vision and language."""

from collections.abc import Callable

import torch

from lessons_lib.checks import ask, check, compare_number


@check
def twice(answer: Callable[[int], int], *, seed: int = 0, cases: int = 5) -> None:
    """Check that a number is doubled."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(cases):
        n = int(torch.randint(3, 1000, (), generator=generator))
        got, mistakes = ask("twice", answer, n, where=f"n={n}"), {"that is the square": n**2}
        compare_number("twice", got, 2 * n, mistakes, where=f"n={n}")
