"""Beam search: extend several candidate texts at once and keep the most probable ones.

Greedy decoding takes the most probable next token, which may lead to a text that is less probable as a whole than
another one. Beam search considers more candidates. The most probable text is not always the best one to read [1]_.

.. [1] Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2019. arXiv:1904.09751.
"""

from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.attention.rope_scaling import DynamicNTK
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import check_size, promote_half
from lessons_lib.generation.next_token import check_logits
from lessons_lib.generation.steps import check_learned_positions, check_prompts
from lessons_lib.transformer.gpt import GPT


class Beams(NamedTuple):
    """The texts that :func:`beam_search` found, the most probable first."""

    tokens: Int[Tensor, "b beams total"]  # prompt and new tokens
    log_probability: Float[Tensor, "b beams"]  # of the new tokens given the prompt, in nats


@torch.no_grad()
def beam_search(model: GPT, tokens: Int[Tensor, "b n"], n_new: int, *, n_beams: int, use_cache: bool = True) -> Beams:
    r"""Find the ``n_beams`` most probable continuations of each row by beam search.

    .. math:: \log p(t_{n+1}, \dots, t_{n + n_\text{new}} \mid t_1, \dots, t_n)
              = \sum_{i=n+1}^{n + n_\text{new}} \log p(t_i \mid t_1, \dots, t_{i-1})

    Every step extends each beam by every token and keeps the ``n_beams`` extensions with the largest sum. One beam is
    greedy decoding. With :math:`V^{n_\text{new} - 1}` beams every prefix is kept, so the first result is the most
    probable text of all. With fewer beams it may not be, and more beams may not find a better one. All texts have the
    same length, so no length penalty is needed; no token stops a row early.

    >>> from lessons_lib.transformer.gpt import llama_tiny
    >>> beams = beam_search(GPT(llama_tiny()), torch.randint(256, (2, 5)), 3, n_beams=4)
    >>> beams.tokens.shape, beams.log_probability.shape
    (torch.Size([2, 4, 8]), torch.Size([2, 4]))

    Args:
        model: runs in evaluation mode; its own mode is restored afterwards.
        tokens: the prompts, one in each row, all of one length.
        n_new: number of tokens to add, at least 1.
        n_beams: number of beams. The first steps have fewer if the vocabulary is smaller than this.
        use_cache: whether to keep keys and values between steps.

    Raises:
        ValueError: if a number is out of range, if fewer than ``n_beams`` texts of this length exist, if the texts
            exceed the learned positions, or as :func:`lessons_lib.generation.next_token.check_logits`.
    """
    _check(model, tokens, n_new, n_beams, use_cache)
    b = tokens.shape[0]
    texts, score = tokens[:, None], torch.zeros(b, 1, device=tokens.device)
    caches = model.new_caches() if use_cache else None
    with eval_mode(model):
        for _ in range(n_new):
            start = 0 if caches is None else len(caches[0])
            logits = model(rearrange(texts, "b beam n -> (b beam) n")[:, start:], caches=caches)[:, -1]
            check_logits(logits)
            step = rearrange(promote_half(logits).log_softmax(dim=-1), "(b beam) v -> b beam v", b=b)
            score, beam, new_token = _best(score[..., None] + step, n_beams)
            texts = torch.cat([texts.gather(1, repeat(beam, "b beam -> b beam n", n=texts.shape[-1])), new_token], -1)
            # The row of each chosen beam in the model's batch, where the beams of one prompt are consecutive rows.
            rows = (torch.arange(b, device=beam.device)[:, None] * step.shape[1] + beam).flatten()
            for cache in caches or ():
                cache.select(rows)
    return Beams(texts, score)


def _best(scores: Tensor, n_beams: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best scores over ``(b, beam, vocab)``, their beams and their tokens ``(b, n_beams, 1)``.

    Among equal scores the first ones are chosen.
    """
    flat = rearrange(scores, "b beam v -> b (beam v)")
    best, index = flat.sort(dim=-1, descending=True, stable=True)
    index = index[:, :n_beams]
    return best[:, :n_beams], index // scores.shape[-1], (index % scores.shape[-1])[..., None]


def _check(model: GPT, tokens: Tensor, n_new: int, n_beams: int, use_cache: bool) -> None:
    check_prompts(tokens)
    check_size("n_new", n_new, at_least=1)
    check_size("n_beams", n_beams, at_least=1)
    config, length = model.config, tokens.shape[1] + n_new
    if n_beams > config.vocab_size**n_new:
        raise ValueError(
            f"n_beams must be at most {config.vocab_size**n_new}, the number of texts of {n_new} tokens, got {n_beams}"
        )
    check_learned_positions(config, tokens.shape[1], n_new)
    scaling = config.rope_scaling
    if isinstance(scaling, DynamicNTK) and length - 1 > scaling.n_trained and use_cache:
        raise ValueError(
            f"beyond {scaling.n_trained} tokens dynamic rotary scaling changes the rotation of all positions: "
            "use_cache must be False"
        )
