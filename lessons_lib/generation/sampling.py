"""Autoregressive sampling: each new token is drawn from the model's distribution of the next token."""

from collections.abc import Callable, Collection

import torch
from jaxtyping import Int
from torch import Tensor

from lessons_lib.generation.steps import generation_steps
from lessons_lib.transformer.gpt import GPT


def generate(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    n_new: int,
    *,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | int = 1.0,
    generator: torch.Generator | None = None,
    eos: int | Collection[int] | None = None,
    pad: int | None = None,
    stop: Callable[[Tensor], bool | Tensor] | None = None,
    use_cache: bool = True,
    cache_size: int | None = None,
    lengths: Int[Tensor, "b"] | None = None,
    window: int | None = None,
) -> Int[Tensor, "b total"]:
    r"""Sample up to ``n_new`` tokens after each row of prompts and return prompts and new tokens together.

    .. math:: t_{n+1} \sim \operatorname{softmax}(\text{logits}_n / T) \quad\text{restricted to the kept tokens}

    With a KV cache the model processes each token once; without one it processes the whole row at every step. Up to
    rounding both give the same tokens, sampled or greedy.

    Without ``eos`` and ``stop`` there are exactly ``n_new`` new tokens in each row. A row that has ended holds ``pad``
    from then on, and generation stops when all rows have ended, so that ``total`` may be less than ``n + n_new``.
    :func:`~lessons_lib.generation.stopping.count_new_tokens` returns the number of new tokens before the padding. The
    other rows are what they would be if no row had ended.

    >>> from lessons_lib.transformer.configuration import llama_tiny
    >>> model, prompts = GPT(llama_tiny()), torch.randint(256, (2, 5))
    >>> generate(model, prompts, 3, top_k=10, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 8])
    >>> generate(model, prompts, 3, eos=range(256)).shape  # every token ends the text
    torch.Size([2, 6])

    Args:
        model: runs in evaluation mode; its own mode is restored afterwards.
        tokens: the prompts, one in each row.
        n_new: largest number of tokens to add, 0 or more.
        temperature: :math:`T`. With 0 decoding is greedy: it takes the most probable token, the first among equals,
            and draws no random numbers.
        top_k, top_p, min_p: keep only the most probable tokens, see
            :func:`~lessons_lib.generation.next_token.top_k_top_p_mask`.
        repetition_penalty: makes the tokens less probable that the model receives, see
            :func:`~lessons_lib.generation.next_token.penalise_repetition`; 1 for no penalty.
        generator: the random generator; PyTorch's global one by default.
        eos: a token that ends its row, or several such tokens. An end token in a prompt ends nothing.
        pad: the token after the end of a row, of the vocabulary or -1; by default the first one of ``eos``, the
            smallest of a set. The model does not receive it.
        stop: ``stop(tokens)`` is called after each step with the tokens so far over ``(b, m)``, padding included. It
            returns True if all rows are to end, or a Boolean tensor over ``(b,)``. If it ends a row while others go
            on, and there is no ``eos``, then ``pad`` must be given.
        use_cache: whether to keep keys and values between steps.
        cache_size: for a compiled model (``model.compile(fullgraph=True)``): number of positions of a cache that is
            allocated once, at least ``n + n_new - 1``, so that all steps are one graph; calls with the same size and
            batch share it. See :meth:`~lessons_lib.transformer.gpt.GPT.new_caches`. None for a cache that grows.
        lengths: for prompts of different lengths, padded on the *left*: the number of real tokens at the end of each
            row. Positions start at the first real token, and the padding is masked, whatever tokens of the vocabulary
            it holds. Each row then continues as it would alone.
        window: largest number of tokens that the model receives: the last ones of each row. Once a row is longer, each
            new token is sampled given the last ``window`` tokens *alone*, whose positions start at 0 again. A cache
            would still depend on the tokens before the window, so from then on every step processes the whole window,
            also with ``use_cache``. Without a window the model receives the whole row, which learned positions limit.

    Raises:
        ValueError: if a number is out of range, if the tokens that the model receives exceed the learned positions, if
            the model returns invalid logits, see :func:`~lessons_lib.generation.next_token.check_logits`, or if
            ``stop`` returns neither a Boolean nor a Boolean tensor over ``(b,)``.
    """
    steps = generation_steps(
        model,
        tokens,
        n_new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        generator=generator,
        eos=eos,
        pad=pad,
        stop=stop,
        use_cache=use_cache,
        cache_size=cache_size,
        lengths=lengths,
        window=window,
    )
    for step in steps:
        tokens = step.tokens
    return tokens
