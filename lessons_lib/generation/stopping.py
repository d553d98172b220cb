"""The end of a text: tokens that end it, and the padding after it in a batch whose other rows go on."""

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.foundations.validation import check_integers, check_size

NO_TOKEN = -1  # a padding that no token of a vocabulary is


@dataclass(frozen=True)
class TextEnd:
    """Which tokens end a text, and what stands after the end.

    >>> TextEnd.of({3, 2}, None, vocab_size=5)
    TextEnd(ids=(2, 3), pad=2)
    """

    ids: tuple[int, ...]
    pad: int | None

    @classmethod
    def of(cls, eos: int | Collection[int] | None, pad: int | None, *, vocab_size: int) -> "TextEnd":
        """Return the end for the arguments ``eos`` and ``pad`` of a function that generates text.

        Args:
            eos: one token that ends a text, or several; None for no such token.
            pad: what stands after the end; by default the first token of ``eos`` (the smallest of a set).
            vocab_size: number of tokens in the vocabulary.

        Raises:
            ValueError: if ``eos`` is empty, or a token is not in the vocabulary; ``pad`` may also be -1.
        """
        ids = () if eos is None else _ids(eos)
        for token in ids:
            check_size("eos", token, at_least=0, at_most=vocab_size - 1)
        if pad is not None:
            check_size("pad", pad, at_least=NO_TOKEN, at_most=vocab_size - 1)
        return cls(ids, ids[0] if pad is None and ids else pad)

    def is_at(self, tokens: Int[Tensor, "*batch"]) -> Bool[Tensor, "*batch"]:
        """Return which of the tokens end a text."""
        return torch.isin(tokens, torch.tensor(self.ids, dtype=tokens.dtype, device=tokens.device))


def count_new_tokens(tokens: Int[Tensor, "*batch total"], n: int, eos: int | Collection[int]) -> Int[Tensor, "*batch"]:
    """Return how many tokens of each row are new: those after the first ``n``, up to the end and without padding.

    The token that ends the text is counted. A row without one has ``total - n`` new tokens. An end token among the
    first ``n``, in the prompt, ends nothing.

    >>> texts = torch.tensor([[7, 1, 5, 6], [7, 5, 1, 1], [7, 1, 1, 1]])  # a prompt of one token, padded with 1
    >>> count_new_tokens(texts, 1, eos=1)
    tensor([1, 2, 1])

    Raises:
        ValueError: if ``n`` is not from 0 to the length of the rows, or ``eos`` is empty or no integer.
    """
    check_integers("tokens", tokens)
    check_size("n", n, at_least=0, at_most=tokens.shape[-1])
    before_end = TextEnd(_ids(eos), None).is_at(tokens[..., n:]).long().cumsum(dim=-1) == 0
    n_new = tokens.shape[-1] - n
    return (before_end.sum(dim=-1) + 1).clamp(max=n_new)


def pad_to_longest(rows: list[Tensor], pad: int | None) -> Int[Tensor, "b longest"]:
    """Return rows of tokens as one tensor, with ``pad`` after the end of the shorter ones.

    >>> pad_to_longest([torch.tensor([5, 6]), torch.tensor([7])], -1).tolist()
    [[5, 6], [7, -1]]
    """
    if len({len(row) for row in rows}) == 1:
        return torch.stack(rows)
    assert pad is not None, "rows end at different lengths only where there is an end token"
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


def _ids(eos: int | Collection[int]) -> tuple[int, ...]:
    several: list[int]
    if isinstance(eos, Integral):
        several = [int(eos)] if not isinstance(eos, bool) else [eos]
    elif isinstance(eos, set | frozenset):
        several = sorted(eos)
    elif isinstance(eos, Collection) and not isinstance(eos, str | bytes | Tensor):
        several = list(eos)
    else:
        raise ValueError(f"eos must be an integer or a collection of integers, got {eos!r}")
    if not several:
        raise ValueError("eos must hold at least one token, got none; leave it out for texts that do not end")
    for token in several:
        check_size("eos", token, at_least=0)
    return tuple(int(token) for token in several)
