"""Answers to the exercises on vision and language: right ones in any style, wrong ones with what they must be told."""

import torch

from lessons_lib.checks import vision_and_language as check

RIGHT = {check.twice: [lambda n: 2 * n, lambda n: n + n, lambda n: float(2 * n), lambda n: torch.tensor(2 * n)]}

WRONG = {
    check.twice: [
        (lambda n: n * n, "that is the square"),
        (lambda n: 2 * n + 1, ", wanted "),
        (lambda n: 2 * n - 1, ", wanted "),
        (lambda n: n, ", wanted "),
        (lambda n: n / 2, ", wanted "),
        (lambda n: 2, "twice is 2, wanted "),
        (lambda n: -2 * n, "twice is -"),
        (lambda n: str(2 * n), "must be a number, got str"),
        (lambda n: [2 * n], "must be a number, got list"),
        (lambda n: torch.tensor([2 * n]), "a tensor must have shape"),
    ]
}
