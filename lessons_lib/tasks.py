r"""Tasks of symbols whose answers are known, drawn from a ``torch.Generator``.

The same state of the generator gives the same batch; no other randomness is read or changed. Batches lie on the
generator's device. Symbols are numbered ``0 .. n_symbols - 1``, and where a task needs a mark that ends the question
it is the next number, so a model for it needs ``n_symbols + 1`` embeddings.

Every task returns ``inputs``, ``targets`` (the inputs one step later) and a ``loss_mask``: True where a target counts,
which is where it can be known from the inputs up to there; the rest is chance, and no model, however good, does better
than guessing::

    >>> generator = torch.Generator().manual_seed(0)
    >>> batch = copy(generator, batch_size=2, length=5, n_symbols=10)
    >>> batch.inputs.shape, batch.targets.shape, batch.loss_mask.shape
    (torch.Size([2, 10]), torch.Size([2, 10]), torch.Size([2, 10]))
    >>> batch.loss_mask.sum(-1)
    tensor([5, 5])

Language in small, in which every word counts, is in :mod:`lessons_lib.stories`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.shapes import check_size

AnyBatch = TypeVar("AnyBatch")


@dataclass(frozen=True, eq=False)
class Batch:
    """Predict ``targets[b, i]`` from ``inputs[b, :i + 1]`` wherever ``loss_mask[b, i]`` is True.

    A position's input is a symbol, or several of them.
    """

    inputs: Int[Tensor, "b n *symbols"]
    targets: Int[Tensor, "b n"]
    loss_mask: Bool[Tensor, "b n"]


def stream(task: Callable[..., AnyBatch], generator: torch.Generator, **settings: int) -> Iterator[AnyBatch]:
    """Yield batches of a task without end, each drawn when it is asked for and not before.

    So the generator's state between two batches says where the stream stands: save it to go on from there later.

    Raises:
        ValueError: as the task, when the first batch is asked for.
    """
    while True:
        yield task(generator, **settings)


# --- symbols --------------------------------------------------------------------------------------------------------


def copy(generator: torch.Generator, *, batch_size: int, length: int, n_symbols: int) -> Batch:
    r"""Say it again: ``length`` random symbols, the mark, and the same symbols once more.

    .. math:: x_1 \dots x_\ell \;\#\; \to x_1 \dots x_\ell

    The inputs are the first ``2 * length`` tokens of ``x # x``; the mask marks the second copy among the targets.

    Raises:
        ValueError: if a size is not a positive integer, or there are fewer than two symbols to choose from.
    """
    return _answered(_symbols(generator, batch_size, length, n_symbols), lambda symbols: symbols, mark=n_symbols)


def sorting(generator: torch.Generator, *, batch_size: int, length: int, n_symbols: int) -> Batch:
    r"""Say it in order: ``length`` random symbols, the mark, and the same symbols sorted.

    .. math:: x_1 \dots x_\ell \;\#\; \to x_{(1)} \le \dots \le x_{(\ell)}

    Symbols may occur more than once. Shapes and mask as in :func:`copy`.

    Raises:
        ValueError: as :func:`copy`.
    """
    symbols = _symbols(generator, batch_size, length, n_symbols)
    return _answered(symbols, lambda symbols: symbols.sort(dim=-1).values, mark=n_symbols)


def modular_sums(generator: torch.Generator, *, batch_size: int, modulus: int, n_terms: int = 2) -> Batch:
    r"""Add on a clock: ``n_terms`` numbers below the modulus, the mark, and their sum.

    .. math:: x_1 \dots x_\ell \;\#\; \to \sum_i x_i \bmod p

    The inputs are ``n_terms + 1`` tokens and the mask marks the last position alone. With two terms and part of the
    :math:`p^2` sums held back this is the task on which models were seen to generalise long after they had fitted
    what they were shown [1]_.

    Raises:
        ValueError: if a size is not a positive integer, or the modulus is below 2.

    .. [1] Power et al., *Grokking*, 2022. arXiv:2201.02177.
    """
    check_size("modulus", modulus, at_least=2)
    check_size("n_terms", n_terms, at_least=1)
    terms = _symbols(generator, batch_size, n_terms, modulus)
    return _answered(terms, lambda terms: terms.sum(dim=-1, keepdim=True) % modulus, mark=modulus)


@dataclass(frozen=True, eq=False)
class RepetitionBatch(Batch):
    """A batch of :func:`repetition`, with the period of each row."""

    periods: Int[Tensor, "b"]


def repetition(
    generator: torch.Generator,
    *,
    batch_size: int,
    n: int = 48,
    n_symbols: int = 32,
    min_period: int = 8,
    max_period: int = 24,
) -> RepetitionBatch:
    r"""Notice the repetition: a passage of :math:`p` *different* symbols, again and again, :math:`p` new in each row.

    .. math:: x_{i+1} = x_{i+1-p} \quad\text{for } i \ge p

    What follows a symbol is what followed it before, and an induction head finds it: attend to the place after the
    last copy of the current symbol [2]_. Symbols do not recur within the passage, so that there is one such place for
    each period; and the period varies, so that looking back a fixed distance does not help.

    Args:
        batch_size: rows, each with its own passage.
        n: length of the inputs.
        n_symbols: to draw passages from; a model needs as many embeddings.
        min_period, max_period: both included, every period equally likely.

    Returns:
        A batch whose mask is True from position :math:`p` on: before that no symbol has been seen twice.

    Raises:
        ValueError: unless ``1 <= min_period <= max_period <= n_symbols``, and ``max_period < n`` so that every row
            has something to predict.

    .. [2] Olsson et al., *In-context Learning and Induction Heads*, 2022. arXiv:2209.11895.
    """
    check_size("n", n, at_least=2)
    check_size("max_period", max_period, at_least=1, at_most=n - 1)
    check_size("min_period", min_period, at_least=1, at_most=max_period)
    check_size("n_symbols", n_symbols, at_least=max_period)
    check_size("batch_size", batch_size, at_least=1)
    shuffled = torch.rand(  # in float64 whatever the default type, so that it does not change the batch
        batch_size, n_symbols, generator=generator, device=generator.device, dtype=torch.float64
    ).argsort(dim=-1)
    periods = torch.randint(
        min_period, max_period + 1, (batch_size,), generator=generator, device=generator.device, dtype=torch.int64
    )
    positions = torch.arange(n + 1, device=generator.device)
    tokens = shuffled.gather(-1, positions % periods[:, None])
    return RepetitionBatch(tokens[:, :-1], tokens[:, 1:], positions[:-1] >= periods[:, None], periods)


# --- parts ----------------------------------------------------------------------------------------------------------


def _symbols(generator: torch.Generator, batch_size: int, length: int, n_symbols: int) -> Tensor:
    check_size("batch_size", batch_size, at_least=1)
    check_size("length", length, at_least=1)
    check_size("n_symbols", n_symbols, at_least=2)
    return torch.randint(
        n_symbols, (batch_size, length), generator=generator, device=generator.device, dtype=torch.int64
    )


def _answered(question: Tensor, answer: Callable[[Tensor], Tensor], *, mark: int) -> Batch:
    """Lay question, mark and answer in a row and ask for each token from those before it; the answer alone counts."""
    tokens = torch.cat([question, torch.full_like(question[:, :1], mark), answer(question)], dim=-1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    is_answer = torch.arange(inputs.shape[-1], device=inputs.device) >= question.shape[-1]
    return Batch(inputs, targets, is_answer.expand_as(inputs))
