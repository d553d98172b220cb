"""Searching for the most probable text: several beginnings are carried along, and the best of their continuations kept.

Greedy writing takes the best next token, which may lead to a text that is less probable as a whole than another one.
A beam looks wider. What is most probable is a matter of its own, and not always what one wants to read [1]_.

.. [1] Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2019. arXiv:1904.09751.
"""

from typing import NamedTuple

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.generation import check_beginnings, check_learned_positions, check_logits
from lessons_lib.gpt import GPT
from lessons_lib.modes import evaluating
from lessons_lib.rope_scaling import DynamicNTK
from lessons_lib.shapes import at_least_single, check_size


class Beams(NamedTuple):
    """The texts that are left at the end, the most probable first."""

    tokens: Int[Tensor, "b beams total"]
    log_probability: Float[Tensor, "b beams"]  # of what was added, given the beginning; in nats


@torch.no_grad()
def beam_search(model: GPT, tokens: Int[Tensor, "b n"], n_new: int, *, n_beams: int, use_cache: bool = True) -> Beams:
    r"""Continue each row by ``n_new`` tokens in ``n_beams`` ways, each as probable as could be found.

    .. math:: \log p(t_{n+1}, \dots, t_{n + n_\text{new}} \mid t_1, \dots, t_n)
              = \sum_{i=n+1}^{n + n_\text{new}} \log p(t_i \mid t_1, \dots, t_{i-1})

    At every step each beam is continued by every token, and the ``n_beams`` continuations with the largest sum stay.
    One beam is greedy writing. With :math:`V^{n_\text{new} - 1}` beams nothing is ever lost, so the first is the most
    probable text there is; with fewer it need not be, nor need more beams find a better one. All texts are equally
    long, so nothing has to be said about how lengths compare; nothing ends a row early.

    Args:
        model: left in the mode, training or not, that it was in; inside it runs without dropout.
        tokens: the beginnings, all of one length.
        n_new: how many tokens to add, at least one.
        n_beams: how many texts to carry along. There are fewer at first where the vocabulary is smaller than this.
        use_cache: whether to keep keys and values between steps.

    Raises:
        ValueError: if a number is out of range, if there are not ``n_beams`` texts of this length at all, if the texts
            exceed the learned positions, or as :func:`lessons_lib.generation.check_logits`.
    """
    _check(model, tokens, n_new, n_beams, use_cache)
    b = tokens.shape[0]
    texts, score = tokens[:, None], torch.zeros(b, 1, device=tokens.device)
    caches = model.new_caches() if use_cache else None
    with evaluating(model):
        for _ in range(n_new):
            start = 0 if caches is None else len(caches[0])
            logits = model(rearrange(texts, "b beam n -> (b beam) n")[:, start:], caches=caches)[:, -1]
            check_logits(logits)
            step = rearrange(at_least_single(logits).log_softmax(dim=-1), "(b beam) v -> b beam v", b=b)
            score, beam, following = _best(score[..., None] + step, n_beams)
            texts = torch.cat([texts.gather(1, repeat(beam, "b beam -> b beam n", n=texts.shape[-1])), following], -1)
            # The row of a beam in the model's batch, whose beams lie one after the other.
            rows = (torch.arange(b, device=beam.device)[:, None] * step.shape[1] + beam).flatten()
            for cache in caches or ():
                cache.pick(rows)
    return Beams(texts, score)


def _best(scores: Tensor, n_beams: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best sums over ``(b, beam, vocab)``, the first of equals: they, their beams, their tokens ``(…, 1)``."""
    flat = rearrange(scores, "b beam v -> b (beam v)")
    best, place = flat.sort(dim=-1, descending=True, stable=True)
    place = place[:, :n_beams]
    return best[:, :n_beams], place // scores.shape[-1], (place % scores.shape[-1])[..., None]


def _check(model: GPT, tokens: Tensor, n_new: int, n_beams: int, use_cache: bool) -> None:
    check_beginnings(tokens)
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
            f"beyond {scaling.n_trained} tokens dynamic rotary scaling turns every position anew: "
            "use_cache must be False"
        )
