"""Beam search: extend several candidate texts at once and keep the most probable ones.

Greedy decoding takes the most probable next token, which may lead to a text that is less probable as a whole than
another one. Beam search considers more candidates. The most probable text is not always the best one to read [1]_.

.. [1] Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2019. arXiv:1904.09751.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from lessons_lib.attention.rope_scaling import DynamicNTK
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import check_size, promote_half
from lessons_lib.generation.next_token import check_logits
from lessons_lib.generation.steps import check_cache_size, check_learned_positions, check_prompts, tokens_from
from lessons_lib.generation.stopping import NO_TOKEN, TextEnd, count_new_tokens
from lessons_lib.transformer.gpt import GPT


class Beams(NamedTuple):
    """The texts that :func:`beam_search` found, the one with the best score first."""

    tokens: Int[Tensor, "b beams total"]  # prompt and new tokens, and padding after the end of a text
    log_probability: Float[Tensor, "b beams"]  # of the new tokens given the prompt, in nats


@torch.no_grad()
def beam_search(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    n_new: int,
    *,
    n_beams: int,
    length_penalty: float | int = 0.0,
    eos: int | Collection[int] | None = None,
    pad: int | None = None,
    use_cache: bool = True,
    cache_size: int | None = None,
) -> Beams:
    r"""Find the ``n_beams`` best continuations of each row by beam search.

    .. math:: \log p(t_{n+1}, \dots, t_{n + l} \mid t_1, \dots, t_n)
              = \sum_{i=n+1}^{n + l} \log p(t_i \mid t_1, \dots, t_{i-1}), \qquad
              \text{score} = \frac{\log p}{l^{\,\text{length\_penalty}}}

    Every step extends each beam by every token and keeps the ``n_beams`` extensions with the largest sum. One beam is
    greedy decoding. With :math:`V^{n_\text{new} - 1}` beams every prefix is kept, so the first result is the most
    probable text of all. With fewer beams it may not be, and more beams may not find a better one.

    Without ``eos`` all texts have :math:`l = n_\text{new}` new tokens, and the length penalty does not change their
    order. With ``eos``, an extension that ends and is among the ``n_beams`` best is finished; the other beams go on,
    always ``n_beams`` of them. The result is the best of the texts that finished or have ``n_new`` tokens. Their length
    :math:`l` counts new tokens alone, the end token included, as
    :func:`~lessons_lib.generation.stopping.count_new_tokens` does.

    A longer text has the smaller probability. A positive penalty favours longer texts, since the logarithms are
    negative; 1 compares the averages of a token [2]_.

    The search stops when no beam can reach a score above the worst of ``n_beams`` finished texts: since a sum of
    logarithms can only fall, the best that a beam can reach is its sum at the greatest length, or for a negative
    penalty at its own. This bound is exact: stopping changes no result. It is ``early_stopping="never"`` of
    ``transformers``, whose ``length_penalty`` is 1 by default, and without a penalty also ``early_stopping=False``;
    with one, ``False`` compares the beam at its own length and may stop too early. ``True`` stops at ``n_beams``
    finished texts, whatever could follow. Texts, order and scores equal those of ``transformers``.

    There is no repetition penalty: a sum of penalised logits would not be the probability of a text.

    >>> from lessons_lib.transformer.configuration import llama_tiny
    >>> beams = beam_search(GPT(llama_tiny()), torch.randint(256, (2, 5)), 3, n_beams=4)
    >>> beams.tokens.shape, beams.log_probability.shape
    (torch.Size([2, 4, 8]), torch.Size([2, 4]))

    Args:
        model: runs in evaluation mode; its own mode is restored afterwards.
        tokens: the prompts, one in each row, all of one length.
        n_new: largest number of tokens to add, at least 1.
        n_beams: number of beams. The first steps have fewer if the vocabulary is smaller than this.
        length_penalty: exponent of the length in the score.
        eos, pad: which tokens end a text, and what stands after the end, as in
            :func:`~lessons_lib.generation.sampling.generate`.
        use_cache: whether to keep keys and values between steps.
        cache_size: for a compiled model (``model.compile(fullgraph=True)``): number of positions of a cache of fixed
            size, at least ``n + n_new - 1``, as in :func:`~lessons_lib.generation.sampling.generate`. The prompts are
            one graph and all further steps another one, also while the number of beams grows. Each step copies the
            caches of the beams that it keeps. None for a cache that grows.

    Raises:
        ValueError: if a number is out of range, if fewer than ``n_beams`` texts exist, if the texts exceed the learned
            positions, or as :func:`lessons_lib.generation.next_token.check_logits`.

    .. [2] Wu et al., *Google's Neural Machine Translation System*, 2016, section 7, with another form of the penalty.
       arXiv:1609.08144.
    """
    end = TextEnd.of(eos, pad, vocab_size=model.config.vocab_size)
    _check(model, tokens, n_new, n_beams, length_penalty, end, use_cache)
    check_cache_size(cache_size, tokens.shape[1], n_new, use_cache=use_cache)
    b, device = len(tokens), tokens.device
    texts, sums = tokens[:, None], torch.zeros(b, 1, device=device)
    finished = _Finished(tokens, n_new, n_beams, end)
    may_end = end.is_at(torch.arange(model.config.vocab_size, device=device))
    caches = model.new_caches(cache_size, batch=b) if use_cache else None
    with eval_mode(model):
        for length in range(1, n_new + 1):
            start = 0 if caches is None else len(caches[0])
            part = tokens_from(rearrange(texts, "b beam n -> (b beam) n"), start)
            logits = model(part, caches=caches)[:, -1]
            check_logits(logits)
            step = rearrange(promote_half(logits).log_softmax(dim=-1), "(b beam) v -> b beam v", b=b)
            extended = sums[..., None] + step
            best, beam, new_token = _best(extended, torch.arange(len(may_end), device=device), n_beams)
            ends = may_end[new_token[..., 0]] if length < n_new else torch.ones_like(beam, dtype=torch.bool)
            finished.add(_extend(texts, beam, new_token), best, best / length**length_penalty, ends)
            if length == n_new or not (~may_end).any():
                break
            sums, beam, new_token = _best(extended, (~may_end).nonzero()[:, 0], n_beams)
            if finished.are_best(sums[:, 0], length, n_new, length_penalty):
                break
            texts = _extend(texts, beam, new_token)
            # The row of each chosen beam in the model's batch, where the beams of one prompt are consecutive rows.
            rows = (torch.arange(b, device=device)[:, None] * step.shape[1] + beam).flatten()
            for cache in caches or ():
                cache.select(rows)
    return finished.beams()


class _Finished:
    """The best texts of each row that have ended, at most ``n_beams``, sorted by score."""

    def __init__(self, prompts: Tensor, n_new: int, n_beams: int, end: TextEnd) -> None:
        (b, self.n), self.n_beams, self.end = prompts.shape, n_beams, end
        self.tokens = prompts.new_empty(b, 0, self.n + n_new)
        self.sums = self.scores = torch.zeros(b, 0, device=prompts.device)
        self.are_texts = torch.zeros(b, 0, dtype=torch.bool, device=prompts.device)  # False for a free place

    def add(self, texts: Tensor, sums: Tensor, scores: Tensor, ends: Tensor) -> None:
        """Add the texts that end, and keep the best. Among equal scores the earlier texts are kept."""
        n_padding = self.tokens.shape[-1] - texts.shape[-1]
        padded = pad_tensor(texts, (0, n_padding), value=NO_TOKEN if self.end.pad is None else self.end.pad)
        columns = (
            torch.cat([self.tokens, padded], dim=1),
            torch.cat([self.sums, sums], dim=1),
            torch.cat([self.scores, scores], dim=1),
            torch.cat([self.are_texts, ends], dim=1),
        )
        by_score = columns[2].argsort(dim=-1, descending=True, stable=True)
        texts_first = columns[3].gather(1, by_score).long().argsort(dim=-1, descending=True, stable=True)
        order = by_score.gather(1, texts_first)[:, : self.n_beams]
        tokens, *others = columns
        self.tokens = tokens.gather(1, repeat(order, "b beam -> b beam n", n=tokens.shape[-1]))
        self.sums, self.scores, self.are_texts = (column.gather(1, order) for column in others)

    def are_best(self, sums: Tensor, length: int, n_new: int, penalty: float) -> bool:
        """Return whether in all rows no beam can overtake; ``sums`` are those of the best beams, of this length."""
        if self.are_texts.shape[1] < self.n_beams:
            return False
        reachable = sums / (n_new if penalty > 0 else length) ** penalty
        return bool((self.are_texts.all(dim=1) & (self.scores[:, -1] >= reachable)).all())

    def beams(self) -> Beams:
        """Return the texts, cut where the longest one ends."""
        longest = self.tokens.shape[-1] - self.n
        if self.end.ids:
            longest = int(count_new_tokens(self.tokens, self.n, self.end.ids).max())
        return Beams(self.tokens[..., : self.n + longest], self.sums)


def _extend(texts: Tensor, beam: Tensor, new_token: Tensor) -> Tensor:
    """Return the chosen beams, each with its new token."""
    return torch.cat([texts.gather(1, repeat(beam, "b beam -> b beam n", n=texts.shape[-1])), new_token], dim=-1)


def _best(scores: Tensor, tokens: Tensor, n_beams: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best scores over ``(b, beam, vocab)`` of these tokens, their beams, and their tokens ``(b, beam, 1)``.

    Among equal scores the first ones are chosen.
    """
    flat = rearrange(scores[..., tokens], "b beam v -> b (beam v)")
    best, index = flat.sort(dim=-1, descending=True, stable=True)
    index = index[:, :n_beams]
    return best[:, :n_beams], index // len(tokens), tokens[index % len(tokens)][..., None]


def _check(
    model: GPT, tokens: Tensor, n_new: int, n_beams: int, length_penalty: float, end: TextEnd, use_cache: bool
) -> None:
    check_prompts(tokens)
    check_size("n_new", n_new, at_least=1)
    check_size("n_beams", n_beams, at_least=1)
    config, length = model.config, tokens.shape[1] + n_new
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty must be finite, got {length_penalty}")
    if end.pad is not None and not end.ids:
        raise ValueError(f"pad must be None where no text ends early, got {end.pad}; give eos")
    n_ends = len(set(end.ids))
    n_others = config.vocab_size - n_ends
    n_texts = n_others ** (n_new - 1) * config.vocab_size + sum(n_others**i * n_ends for i in range(n_new - 1))
    if n_beams > n_texts:
        kind = f"of {n_new} tokens" if not n_ends else f"of at most {n_new} tokens"
        raise ValueError(f"n_beams must be at most {n_texts}, the number of texts {kind}, got {n_beams}")
    check_learned_positions(config, tokens.shape[1], n_new)
    scaling = config.rope_scaling
    if isinstance(scaling, DynamicNTK) and length - 1 > scaling.n_trained and use_cache:
        raise ValueError(
            f"beyond {scaling.n_trained} tokens dynamic rotary scaling changes the rotation of all positions: "
            "use_cache must be False"
        )
