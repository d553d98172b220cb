"""Speculative decoding: generate faster with a small draft model, from the distribution of the large model.

The draft model proposes a few tokens, one after another; the large model evaluates all of them in one call. The
accepted tokens, together with the tokens drawn after a rejection, have exactly the distribution of the large model
[1]_ [2]_. :func:`accept_draft` is the acceptance rule, :func:`speculate` the generation loop.

.. [1] Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*, 2022. arXiv:2211.17192.
.. [2] Chen et al., *Accelerating Large Language Model Decoding with Speculative Sampling*, 2023. arXiv:2302.01318.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.attention.rope_scaling import DynamicNTK
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import check_above, check_integers, check_size, values_can_be_read
from lessons_lib.generation.next_token import check_logits, next_token_probs, penalise_repetition
from lessons_lib.generation.steps import check_cache_size, check_prompts, tokens_from
from lessons_lib.generation.stopping import TextEnd, pad_to_longest
from lessons_lib.transformer.gpt import GPT


class Acceptance(NamedTuple):
    """Result of :func:`accept_draft`."""

    n_accepted: Int[Tensor, "b"]  # number of accepted tokens, counted from the first drafted token
    next_token: Int[Tensor, "b"]  # the token after them: drawn again after a rejection, or one more


def accept_draft(
    p: Float[Tensor, "b k_plus_1 vocab"],
    q: Float[Tensor, "b k vocab"],
    drafted: Int[Tensor, "b k"],
    *,
    generator: torch.Generator | None = None,
) -> Acceptance:
    r"""Accept drafted tokens from left to right, each with probability :math:`\min(1, p(x) / q(x))`.

    At the first rejection the token is drawn again, from the residual distribution

    .. math:: x \sim \frac{\max(0,\, p - q)}{\sum_y \max(0,\, p(y) - q(y))}

    and the drafted tokens after it are discarded. If all are accepted, one more token is drawn from the last ``p``.

    The result has the distribution :math:`p`, whatever :math:`q` is. A token :math:`x` is drafted and accepted with
    probability :math:`q(x) \min(1, p(x)/q(x)) = \min(p(x), q(x))`. The total probability of a rejection,
    :math:`1 - \sum_y \min(p(y), q(y))`, equals the denominator above. So :math:`x` is drawn after a rejection with
    probability :math:`\max(0, p(x) - q(x))`, and the two probabilities add up to :math:`p(x)`.

    >>> p, q = torch.rand(2, 4, 6).softmax(-1), torch.rand(2, 3, 6).softmax(-1)
    >>> drafted = torch.randint(6, (2, 3))
    >>> n_accepted, next_token = accept_draft(p, q, drafted)
    >>> n_accepted.shape, next_token.shape
    (torch.Size([2]), torch.Size([2]))

    Args:
        p: the large model's probabilities at the ``k`` drafted tokens and at the token after them.
        q: the probabilities from which the tokens were drawn. (These are probabilities, not logits, because nothing is
            trained here; they include the temperature and top-k or top-p, and so does ``p``.)
        drafted: the drafted tokens.
        generator: the random generator; PyTorch's global one by default.

    Raises:
        ValueError: if the shapes do not fit, or a drafted token has probability 0 in ``q``.
    """
    check_integers("drafted", drafted, "b k")
    b, k = drafted.shape
    if p.ndim != 3 or p.shape[:2] != (b, k + 1) or q.shape != (b, k, p.shape[-1]):
        raise ValueError(
            f"p must be (b, k + 1, vocab) and q (b, k, vocab) for drafts over {(b, k)}, "
            f"got {tuple(p.shape)} and {tuple(q.shape)}"
        )
    if k and values_can_be_read(drafted) and ((drafted < 0) | (drafted >= p.shape[-1])).any():
        raise ValueError(f"drafted must be tokens from 0 to {p.shape[-1] - 1}, got {drafted.tolist()}")
    q_drafted = q.gather(-1, drafted[..., None])[..., 0]
    if values_can_be_read(q_drafted) and (q_drafted <= 0).any():
        raise ValueError("drafted must be drawn from q, but one of the tokens has probability 0 in q")
    p_drafted = p[:, :k].gather(-1, drafted[..., None])[..., 0]
    uniform = torch.rand(b, k, dtype=p.dtype, device=p.device, generator=generator)
    accepted = uniform * q_drafted < p_drafted
    n_accepted = accepted.long().cumprod(dim=-1).sum(dim=-1)

    rows = torch.arange(b, device=p.device)
    residual = p.clone()
    residual[:, :k] = (p[:, :k] - q).clamp(min=0)
    residual = residual[rows, n_accepted]
    # If p and q are equal up to rounding, the residual may be 0 everywhere; then p itself is the right distribution.
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, p[rows, n_accepted])
    return Acceptance(n_accepted, torch.multinomial(residual, 1, generator=generator)[:, 0])


class Speculation(NamedTuple):
    """Result of :func:`speculate`: the texts, and counts for each row."""

    tokens: Int[Tensor, "b total"]  # prompt and new tokens, and padding after the end of a row
    n_calls: Int[Tensor, "b"]  # calls of the large model; without a draft model there is one for each new token
    n_drafted: Int[Tensor, "b"]  # tokens that the draft model proposed
    n_accepted: Int[Tensor, "b"]  # tokens among them that were accepted


@torch.no_grad()
def speculate(
    model: GPT,
    draft: GPT,
    tokens: Int[Tensor, "b n"],
    n_new: int,
    *,
    n_draft: int = 4,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | int = 1.0,
    generator: torch.Generator | None = None,
    eos: int | Collection[int] | None = None,
    pad: int | None = None,
    cache_size: int | None = None,
) -> Speculation:
    r"""Sample up to ``n_new`` tokens after each prompt by speculative decoding: from ``model``, helped by a draft.

    The texts have the same distribution as those that :func:`~lessons_lib.generation.sampling.generate` samples with
    ``model`` alone, with any temperature, restriction, penalty and end (which apply to both models).
    :func:`accept_draft` explains why. At temperature 0 the texts are equal. Only the number of calls differs: each call
    of ``model`` yields between 1 and ``n_draft`` + 1 tokens, and more with a better draft.

    Each row is generated separately, because rows accept different numbers of tokens. Both models use KV caches, from
    which rejected tokens are removed. The draft model stops at an end token.

    >>> from lessons_lib.transformer.configuration import llama_tiny
    >>> model, draft = GPT(llama_tiny()), GPT(llama_tiny())
    >>> result = speculate(model, draft, torch.randint(256, (2, 5)), 6)
    >>> result.tokens.shape, result.n_calls.shape
    (torch.Size([2, 11]), torch.Size([2]))

    Args:
        model: the large model, whose distribution the texts have.
        draft: the draft model, which should be cheaper. Any model over the same vocabulary gives the same distribution.
        tokens: the prompts, one in each row.
        n_new: largest number of tokens to add, 0 or more; without ``eos`` it is their number.
        n_draft: number of drafted tokens for each call of the large model.
        temperature: temperature of both models; 0 is greedy decoding.
        top_k, top_p, min_p: as in :func:`~lessons_lib.generation.next_token.top_k_top_p_mask`, for both models.
        repetition_penalty: as in :func:`~lessons_lib.generation.next_token.penalise_repetition`, for both models.
        generator: the random generator; PyTorch's global one by default.
        eos, pad: which tokens end a row, and what stands after the end, as in
            :func:`~lessons_lib.generation.sampling.generate`.
        cache_size: for compiled models (``model.compile(fullgraph=True)``): number of positions of caches of fixed
            size, at least ``n + n_new - 1`` and at most the window of a model that has one, as in
            :func:`~lessons_lib.generation.sampling.generate`. Each model has at most three graphs: for the first
            prompt, for one token, and for several tokens, whatever their number. Later calls with the same size share
            them; another size adds two for each model. By default PyTorch allows eight graphs for all compiled models
            together (``torch._dynamo.config.recompile_limit``), so use one size. None for caches that grow.

    Raises:
        ValueError: if a number is out of range, if the vocabularies differ, if the texts exceed the positions of a
            model, if ``cache_size`` exceeds a model's window, or as
            :func:`lessons_lib.generation.next_token.check_logits`.
    """
    temperature = float(temperature)
    _check(model, draft, tokens, n_new, n_draft, cache_size)
    check_above("repetition_penalty", repetition_penalty, 0)
    end = TextEnd.of(eos, pad, vocab_size=model.config.vocab_size)
    if pad is not None and eos is None:
        raise ValueError(f"pad must be None where no row ends early, got {pad}; give eos")
    restricted = partial(next_token_probs, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probs = partial(_probs, restricted, penalty=repetition_penalty)
    with eval_mode(model), eval_mode(draft):
        results = [
            _one_row(model, draft, row, n_new, n_draft, probs, generator, end, cache_size) for row in tokens.split(1)
        ]
    counts = torch.tensor([row_counts for _, *row_counts in results], device=tokens.device).unbind(dim=-1)
    return Speculation(pad_to_longest([text[0] for text, *_ in results], end.pad), *counts)


def _one_row(
    model: GPT,
    draft: GPT,
    text: Tensor,
    n_new: int,
    n_draft: int,
    probs: Callable[[Tensor, Tensor], Tensor],
    generator: torch.Generator | None,
    end: TextEnd,
    cache_size: int | None,
) -> tuple[Tensor, int, int, int]:
    """Return the extended row and three counts: calls of the large model, drafted tokens and accepted tokens."""
    length, n_calls, n_drafted, n_accepted = text.shape[1] + n_new, 0, 0, 0
    model_caches, draft_caches = model.new_caches(cache_size), draft.new_caches(cache_size)
    has_ended = False
    while not has_ended and (n := text.shape[1]) < length:
        proposed, q = text, []
        for _ in range(min(n_draft, length - n - 1)):  # the large model adds one more token
            logits = draft(tokens_from(proposed, len(draft_caches[0])), caches=draft_caches)[:, -1:]
            q.append(probs(logits, proposed))
            drafted = torch.multinomial(q[-1][:, 0], 1, generator=generator)
            proposed = torch.cat([proposed, drafted.to(text.dtype)], dim=1)
            if end.is_at(drafted).any():
                break
        k = len(q)
        logits = model(tokens_from(proposed, len(model_caches[0])), caches=model_caches)[:, -(k + 1) :]
        p = probs(logits, proposed)
        accepted, token = accept_draft(p, torch.cat(q, 1) if q else p[:, :0], proposed[:, n:], generator=generator)
        n_calls, n_drafted, n_accepted = n_calls + 1, n_drafted + k, n_accepted + int(accepted)
        text = proposed[:, : n + int(accepted)]
        if not end.is_at(text[:, n:]).any():
            text = torch.cat([text, token[:, None].to(text.dtype)], dim=1)
        has_ended = bool(end.is_at(text[:, n:]).any())
        for cache in (*model_caches, *draft_caches):
            cache.crop(min(len(cache), text.shape[1] - 1))  # neither model has processed the last token
    return text, n_calls, n_drafted, n_accepted


def _probs(restricted: Callable[[Tensor], Tensor], logits: Tensor, text: Tensor, *, penalty: float) -> Tensor:
    """Return the probabilities of the tokens after the last ``k`` tokens of a text, whose logits these are."""
    k, n = logits.shape[1], text.shape[1]
    if penalty != 1:
        check_logits(logits)
        seen = [text[:, : n - k + 1 + i] for i in range(k)]
        logits = torch.stack([penalise_repetition(logits[:, i], seen[i], penalty) for i in range(k)], dim=1)
    return restricted(logits)


def _check(model: GPT, draft: GPT, tokens: Tensor, n_new: int, n_draft: int, cache_size: int | None) -> None:
    check_prompts(tokens)
    check_size("n_new", n_new, at_least=0)
    check_size("n_draft", n_draft, at_least=1)
    if model.config.vocab_size != draft.config.vocab_size:
        raise ValueError(
            f"draft must have the vocabulary of model, {model.config.vocab_size} tokens, got {draft.config.vocab_size}"
        )
    check_cache_size(cache_size, tokens.shape[1], n_new)
    length = tokens.shape[1] + n_new
    for name, config in (("model", model.config), ("draft", draft.config)):
        if config.position == "learned" and length > config.n_context:
            raise ValueError(
                f"{tokens.shape[1]} tokens and n_new must fit into the n_context={config.n_context} learned positions "
                f"of {name}, got n_new={n_new}"
            )
        if isinstance(config.rope_scaling, DynamicNTK) and length - 1 > config.rope_scaling.n_trained:
            raise ValueError(
                f"beyond {config.rope_scaling.n_trained} tokens dynamic rotary scaling changes the rotation of all "
                f"positions, so cached keys of {name} would be wrong; reduce n_new"
            )
        narrowest = min((window for window in config.windows if window is not None), default=None)
        if cache_size is not None and narrowest is not None and narrowest < cache_size:
            raise ValueError(
                f"cache_size must be at most {narrowest}, the window of {name} (GPTConfig.window), got {cache_size}: "
                "a layer with a narrower window overwrites the keys before it, so that rejected tokens could not be "
                "removed; leave cache_size out"
            )
