r"""Synthetic sequence tasks with known answers, drawn from a ``torch.Generator``.

The same state of the generator gives the same batch; no other random state is read or changed. Batches are on the
generator's device. Symbols are the integers ``0 .. n_symbols - 1``. Where a task needs a separator after the question,
it is the integer ``n_symbols``, so a model for such a task needs ``n_symbols + 1`` embeddings.

Every task returns ``inputs``, ``targets`` (the inputs one step later) and a ``loss_mask``. The mask is True where the
inputs so far determine the target. All other targets are random, and no model can predict them better than by guessing.

>>> generator = torch.Generator().manual_seed(0)
>>> batch = copy(generator, batch_size=2, length=5, n_symbols=10)
>>> batch.inputs.shape, batch.targets.shape, batch.loss_mask.shape
(torch.Size([2, 10]), torch.Size([2, 10]), torch.Size([2, 10]))
>>> batch.loss_mask.sum(-1)
tensor([5, 5])

:mod:`lessons_lib.training.stories` has a small language, in which the loss includes every word.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.foundations.validation import check_size

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, eq=False)
class Batch:
    """A training batch: predict ``targets[b, i]`` from ``inputs[b, :i + 1]`` wherever ``loss_mask[b, i]`` is True.

    The input at each position is one symbol, or several along further axes.
    """

    inputs: Int[Tensor, "b n *symbols"]
    targets: Int[Tensor, "b n"]
    loss_mask: Bool[Tensor, "b n"]


def stream(task: Callable[..., BatchT], generator: torch.Generator, **settings: int) -> Iterator[BatchT]:
    """Yield batches of a task without end, each drawn when the iterator is advanced.

    To resume the stream later, save the generator's state between two batches.

    >>> batches = stream(copy, torch.Generator().manual_seed(0), batch_size=2, length=5, n_symbols=10)
    >>> next(batches).inputs.shape
    torch.Size([2, 10])

    Raises:
        ValueError: as the task, when the first batch is drawn.
    """
    while True:
        yield task(generator, **settings)


# --- tasks ----------------------------------------------------------------------------------------------------------


def copy(generator: torch.Generator, *, batch_size: int, length: int, n_symbols: int) -> Batch:
    r"""Copy task: ``length`` random symbols, the separator, and the same symbols again.

    .. math:: x_1 \dots x_\ell \;\#\; \to x_1 \dots x_\ell

    The inputs are the first ``2 * length`` tokens of ``x # x``; the loss mask selects the second copy in the targets.

    >>> batch = copy(torch.Generator().manual_seed(3), batch_size=5, length=7, n_symbols=11)
    >>> batch.inputs[0].tolist()
    [9, 8, 7, 3, 6, 6, 0, 11, 9, 8, 7, 3, 6, 6]

    Raises:
        ValueError: if a size is not a positive integer, or ``n_symbols`` is below 2.
    """
    return _sequence_task(
        _random_symbols(generator, batch_size, length, n_symbols), lambda symbols: symbols, separator=n_symbols
    )


def sorting(generator: torch.Generator, *, batch_size: int, length: int, n_symbols: int) -> Batch:
    r"""Sorting task: ``length`` random symbols, the separator, and the same symbols in ascending order.

    .. math:: x_1 \dots x_\ell \;\#\; \to x_{(1)} \le \dots \le x_{(\ell)}

    Symbols may occur more than once. Shapes and loss mask are those of :func:`copy`.

    >>> batch = sorting(torch.Generator().manual_seed(3), batch_size=5, length=7, n_symbols=11)
    >>> batch.inputs[0].tolist()
    [9, 8, 7, 3, 6, 6, 0, 11, 0, 3, 6, 6, 7, 8]

    Raises:
        ValueError: as :func:`copy`.
    """
    symbols = _random_symbols(generator, batch_size, length, n_symbols)
    return _sequence_task(symbols, lambda symbols: symbols.sort(dim=-1).values, separator=n_symbols)


def modular_addition(generator: torch.Generator, *, batch_size: int, modulus: int, n_terms: int = 2) -> Batch:
    r"""Modular addition: ``n_terms`` numbers below the modulus, the separator, and their sum modulo ``modulus``.

    .. math:: x_1 \dots x_\ell \;\#\; \to \sum_i x_i \bmod p

    The inputs are ``n_terms + 1`` tokens, and the loss mask selects the last position only. With two terms and part of
    the :math:`p^2` sums held out, this is the task of *grokking*: models generalised long after they had fitted the
    training data [1]_.

    >>> batch = modular_addition(torch.Generator().manual_seed(0), batch_size=2, modulus=11)
    >>> batch.inputs.shape, batch.loss_mask.tolist()
    (torch.Size([2, 3]), [[False, False, True], [False, False, True]])

    Raises:
        ValueError: if a size is not a positive integer, or the modulus is below 2.

    .. [1] Power et al., *Grokking*, 2022. arXiv:2201.02177.
    """
    check_size("modulus", modulus, at_least=2)
    check_size("n_terms", n_terms, at_least=1)
    terms = _random_symbols(generator, batch_size, n_terms, modulus)
    return _sequence_task(terms, lambda terms: terms.sum(dim=-1, keepdim=True) % modulus, separator=modulus)


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
    r"""Repeated random sequences: each row repeats a passage of :math:`p` *different* symbols, with its own :math:`p`.

    .. math:: x_{i+1} = x_{i+1-p} \quad\text{for } i \ge p

    The symbol after the last copy of the current symbol is the target. An induction head finds it: it attends to the
    position after that last copy [2]_. No symbol occurs twice in the passage, so there is one such position in each
    period. The period varies between rows, so attending a fixed distance back does not solve the task.

    >>> batch = repetition(torch.Generator().manual_seed(0), batch_size=2)
    >>> batch.inputs.shape, batch.periods.shape
    (torch.Size([2, 48]), torch.Size([2]))

    Args:
        batch_size: number of rows, each with its own passage.
        n: length of the inputs.
        n_symbols: number of symbols from which passages are drawn; a model needs as many embeddings.
        min_period, max_period: range of the period, both ends included; every period is equally likely.

    Returns:
        A batch whose loss mask is True from position :math:`p` on. Before that position no symbol has occurred twice.

    Raises:
        ValueError: unless ``1 <= min_period <= max_period <= n_symbols``, and ``max_period < n`` so that every row
            has a predictable target.

    .. [2] Olsson et al., *In-context Learning and Induction Heads*, 2022. arXiv:2209.11895.
    """
    check_size("n", n, at_least=2)
    check_size("max_period", max_period, at_least=1, at_most=n - 1)
    check_size("min_period", min_period, at_least=1, at_most=max_period)
    check_size("n_symbols", n_symbols, at_least=max_period)
    check_size("batch_size", batch_size, at_least=1)
    shuffled = torch.rand(  # always float64, so that the default dtype does not change the batch
        batch_size, n_symbols, generator=generator, device=generator.device, dtype=torch.float64
    ).argsort(dim=-1)
    periods = torch.randint(
        min_period, max_period + 1, (batch_size,), generator=generator, device=generator.device, dtype=torch.int64
    )
    positions = torch.arange(n + 1, device=generator.device)
    tokens = shuffled.gather(-1, positions % periods[:, None])
    return RepetitionBatch(tokens[:, :-1], tokens[:, 1:], positions[:-1] >= periods[:, None], periods)


# --- parts ----------------------------------------------------------------------------------------------------------


def _random_symbols(generator: torch.Generator, batch_size: int, length: int, n_symbols: int) -> Tensor:
    check_size("batch_size", batch_size, at_least=1)
    check_size("length", length, at_least=1)
    check_size("n_symbols", n_symbols, at_least=2)
    return torch.randint(
        n_symbols, (batch_size, length), generator=generator, device=generator.device, dtype=torch.int64
    )


def _sequence_task(question: Tensor, answer: Callable[[Tensor], Tensor], *, separator: int) -> Batch:
    """Concatenate question, separator and answer for next-token prediction; the loss mask selects the answer."""
    tokens = torch.cat([question, torch.full_like(question[:, :1], separator), answer(question)], dim=-1)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    is_answer = torch.arange(inputs.shape[-1], device=inputs.device) >= question.shape[-1]
    return Batch(inputs, targets, is_answer.expand_as(inputs))
