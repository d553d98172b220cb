"""Writing faster with a second, smaller model, and yet exactly what the large one would write.

The small model drafts a few tokens, one after the other; the large one judges all of them in one call. What it accepts
and what it draws where it refuses are together distributed as if it had written alone [1]_ [2]_:
:func:`judge` is that rule, :func:`speculate` the loop around it.

.. [1] Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*, 2022. arXiv:2211.17192.
.. [2] Chen et al., *Accelerating Large Language Model Decoding with Speculative Sampling*, 2023. arXiv:2302.01318.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.generation import chances, check_beginnings
from lessons_lib.gpt import GPT
from lessons_lib.modes import evaluating
from lessons_lib.rope_scaling import DynamicNTK
from lessons_lib.shapes import check_integers, check_size, values_can_be_read


class Judgement(NamedTuple):
    """What becomes of a draft."""

    n_accepted: Int[Tensor, "b"]  # how many of its tokens stay, from the first on
    following: Int[Tensor, "b"]  # the token behind them, the large model's own


def judge(
    p: Float[Tensor, "b k_plus_1 vocab"],
    q: Float[Tensor, "b k vocab"],
    drafted: Int[Tensor, "b k"],
    *,
    generator: torch.Generator | None = None,
) -> Judgement:
    r"""Accept drafted tokens from left to right, each with probability :math:`\min(1, p(x) / q(x))`.

    Where one is refused the token is drawn anew, from what the draft lacks:

    .. math:: x \sim \frac{\max(0,\, p - q)}{\sum_y \max(0,\, p(y) - q(y))}

    and what was drafted behind it is thrown away. If all are accepted one more token is drawn from the last ``p``. The
    result is distributed by :math:`p`: a token :math:`x` comes out accepted with probability
    :math:`q(x) \min(1, p(x)/q(x)) = \min(p(x), q(x))`, and anew with :math:`\max(0, p(x) - q(x))`, since what is
    refused in all, :math:`1 - \sum_y \min(p(y), q(y))`, is the sum of that formula's denominator. Together
    :math:`p(x)`, whatever :math:`q` is.

    Args:
        p: the large model's probabilities at the ``k`` drafted tokens, and at the one behind them.
        q: the probabilities from which the tokens were drawn. (Nothing here is trained, so probabilities and not
            logits: a temperature, or a restriction to the best tokens, is then part of both.)
        drafted: the tokens.
        generator: where chance comes from; PyTorch's global one if omitted.

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
    offered = q.gather(-1, drafted[..., None])[..., 0]
    if values_can_be_read(offered) and (offered <= 0).any():
        raise ValueError("drafted must be drawn from q: one of the tokens has probability 0 there")
    wanted = p[:, :k].gather(-1, drafted[..., None])[..., 0]
    chance = torch.rand(b, k, dtype=p.dtype, device=p.device, generator=generator)
    accepted = chance * offered < wanted
    n_accepted = accepted.long().cumprod(dim=-1).sum(dim=-1)

    rows = torch.arange(b, device=p.device)
    lacking = p.clone()
    lacking[:, :k] = (p[:, :k] - q).clamp(min=0)
    lacking = lacking[rows, n_accepted]
    # Rounding may leave nothing that the draft lacks where p and q are equal but for it: then p itself is right.
    lacking = torch.where(lacking.sum(dim=-1, keepdim=True) > 0, lacking, p[rows, n_accepted])
    return Judgement(n_accepted, torch.multinomial(lacking, 1, generator=generator)[:, 0])


class Speculation(NamedTuple):
    """What was written, and what it cost."""

    tokens: Int[Tensor, "b total"]
    n_calls: Int[Tensor, "b"]  # how often the large model was called for each row; alone it would be n_new
    n_drafted: Int[Tensor, "b"]
    n_accepted: Int[Tensor, "b"]


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
    generator: torch.Generator | None = None,
) -> Speculation:
    r"""Continue each row as ``model`` would, with the help of ``draft``, a cheaper model of the same vocabulary.

    What is written has the same distribution as what :func:`~lessons_lib.generation.generate` writes with ``model``
    alone, at any temperature and restriction (which apply to both models): :func:`judge` says why. At temperature 0
    it is the same text. What differs is the number of calls: each writes between 1 and ``n_draft`` + 1 tokens, more
    the better the draft.

    Rows get on at different speeds, so each is written by itself. Both models keep keys and values; what was drafted
    and refused is cut from the caches.

    Args:
        model: the model whose texts are wanted.
        draft: the model that proposes; any model over the same vocabulary gives the same distribution.
        tokens: the beginnings.
        n_new: how many tokens to add; 0 adds none.
        n_draft: how many tokens are proposed before the large model is asked.
        temperature: of both models; 0 is greedy.
        top_k: as in :func:`~lessons_lib.generation.kept_tokens`, for both models.
        top_p: likewise.
        generator: where chance comes from; PyTorch's global one if omitted.

    Raises:
        ValueError: if a number is out of range, if the vocabularies differ, if the texts exceed the positions of a
            model, or as :func:`lessons_lib.generation.check_logits`.
    """
    temperature = float(temperature)
    _check(model, draft, tokens, n_new, n_draft)
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    with evaluating(model), evaluating(draft):
        written = [_one_row(model, draft, row, n_new, n_draft, choice, generator) for row in tokens.split(1)]
    counts = torch.tensor([counted for _, *counted in written], device=tokens.device).unbind(dim=-1)
    return Speculation(torch.cat([text for text, *_ in written]), *counts)


def _one_row(
    model: GPT,
    draft: GPT,
    text: Tensor,
    n_new: int,
    n_draft: int,
    choice: dict,
    generator: torch.Generator | None,
) -> tuple[Tensor, int, int, int]:
    """The row with what was added; calls of the large model; how many tokens were drafted, and how many accepted."""
    end, n_calls, n_drafted, n_accepted = text.shape[1] + n_new, 0, 0, 0
    ours, theirs = model.new_caches(), draft.new_caches()
    while (n := text.shape[1]) < end:
        k = min(n_draft, end - n - 1)  # the large model adds one of its own
        proposed, q = text, []
        for _ in range(k):
            q.append(chances(draft(proposed[:, len(theirs[0]) :], caches=theirs)[:, -1], **choice))
            following = torch.multinomial(q[-1], 1, generator=generator)
            proposed = torch.cat([proposed, following.to(text.dtype)], dim=1)
        logits = model(proposed[:, len(ours[0]) :], caches=ours)[:, -(k + 1) :]
        p = chances(logits, **choice)
        accepted, own = judge(p, torch.stack(q, 1) if q else p[:, :0], proposed[:, n:], generator=generator)
        text = torch.cat([proposed[:, : n + int(accepted)], own[:, None].to(text.dtype)], dim=1)
        n_calls, n_drafted, n_accepted = n_calls + 1, n_drafted + k, n_accepted + int(accepted)
        for cache in (*ours, *theirs):
            cache.cut(min(len(cache), text.shape[1] - 1))  # the last token has been through neither model
    return text, n_calls, n_drafted, n_accepted


def _check(model: GPT, draft: GPT, tokens: Tensor, n_new: int, n_draft: int) -> None:
    check_beginnings(tokens)
    check_size("n_new", n_new, at_least=0)
    check_size("n_draft", n_draft, at_least=1)
    if model.config.vocab_size != draft.config.vocab_size:
        raise ValueError(
            "draft must have the vocabulary of the model that it drafts for, "
            f"{model.config.vocab_size} tokens, got {draft.config.vocab_size}"
        )
    length = tokens.shape[1] + n_new
    for name, config in (("model", model.config), ("draft", draft.config)):
        if config.position == "learned" and length > config.n_context:
            raise ValueError(
                f"{tokens.shape[1]} tokens and n_new must fit into the n_context={config.n_context} learned positions "
                f"of {name}, got n_new={n_new}"
            )
        if isinstance(config.rope_scaling, DynamicNTK) and length - 1 > config.rope_scaling.n_trained:
            raise ValueError(
                f"beyond {config.rope_scaling.n_trained} tokens dynamic rotary scaling turns every position of {name} "
                "anew, and what a cache keeps would be wrong: ask for fewer tokens"
            )
