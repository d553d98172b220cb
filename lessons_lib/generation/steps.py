"""The loop of autoregressive sampling, one step at a time: texts and streams are made of its steps."""

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.rope_scaling import DynamicNTK
from lessons_lib.attention.rules import LeftPadding
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import check_above, check_size, check_tensor
from lessons_lib.generation.next_token import check_logits, next_token_probs, penalise_repetition
from lessons_lib.generation.stopping import TextEnd
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT


class GenerationStep(NamedTuple):
    """The state after a step of :func:`generation_steps`."""

    tokens: Int[Tensor, "b m"]  # prompts and new tokens so far
    is_new: Bool[Tensor, "b"]  # whether the last token of a row is new, and no padding
    has_ended: Bool[Tensor, "b"]  # whether a row ends with this step or an earlier one


def generation_steps(
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
) -> Iterator[GenerationStep]:
    """Return an iterator over the steps of :func:`~lessons_lib.generation.sampling.generate`.

    The arguments and errors are those of that function.

    The arguments are checked at once; the first step is computed when it is asked for. Between two steps the model is
    in its own mode.

    >>> from lessons_lib.transformer.configuration import llama_tiny
    >>> steps = generation_steps(GPT(llama_tiny()), torch.randint(256, (2, 5)), 3)
    >>> [step.tokens.shape[1] for step in steps]
    [6, 7, 8]
    """
    temperature = float(temperature)  # users often write the integer 0
    _check(model, tokens, n_new, temperature, use_cache, lengths, window)
    check_cache_size(cache_size, tokens.shape[1], n_new, use_cache=use_cache)
    if cache_size is not None and window is not None:
        raise ValueError(f"cache_size must be None with a window, beyond which no cache is used, got {cache_size}")
    check_above("repetition_penalty", repetition_penalty, 0)
    end = TextEnd.of(eos, pad, vocab_size=model.config.vocab_size)
    if pad is not None and eos is None and stop is None:
        raise ValueError(f"pad must be None where no row ends early, got {pad}; give eos or stop")
    n_padding = None if lengths is None else tokens.shape[1] - lengths.to(tokens.device)  # of each row
    probs = partial(next_token_probs, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    sample = partial(_sample, probs, is_greedy=temperature == 0, penalty=repetition_penalty, generator=generator)
    caches = model.new_caches(cache_size, batch=len(tokens)) if use_cache else None
    return _steps(model, tokens, n_new, sample, end, stop, caches, n_padding, window)


def check_prompts(tokens: Tensor) -> None:
    """Check that ``tokens`` is a tensor over ``(b, n)`` that is not empty.

    Raises:
        ValueError: if it has another number of axes or no tokens.
    """
    check_tensor("tokens", tokens)
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"tokens must be (b, n) with at least one token to continue, got {tuple(tokens.shape)}")


def check_learned_positions(config: GPTConfig, n: int, n_new: int, *, hint: str = "") -> None:
    """Check that ``n + n_new`` tokens do not exceed learned positions, if the model has these.

    Raises:
        ValueError: if they do; the message ends with ``hint``.
    """
    if config.position == "learned" and n + n_new > config.n_context:
        raise ValueError(
            f"n_new must be at most {config.n_context - n}: {n} tokens and n_new must fit into the model's "
            f"n_context={config.n_context} learned positions, got {n_new}{hint}"
        )


def check_cache_size(size: int | None, n: int, n_new: int, *, use_cache: bool = True) -> None:
    """Check that caches of ``size`` positions, if one is given, hold ``n`` tokens and all but the last new one.

    Raises:
        ValueError: if the size is smaller, or no cache is used.
    """
    if size is None:
        return
    check_size("cache_size", size, at_least=1)
    if not use_cache:
        raise ValueError(f"cache_size must be None without a cache, got {size}")
    if size < n + n_new - 1:
        raise ValueError(
            f"cache_size must be at least {n + n_new - 1}: {n} tokens and n_new={n_new}, the last of which is not "
            f"cached, got {size}"
        )


def tokens_from(text: Int[Tensor, "b m"], start: int) -> Int[Tensor, "b n"]:
    """Return the tokens of each row from index ``start`` on, in memory of their own.

    Compiled code depends on strides, and those of a part of a tensor change with the tensor's length.
    """
    return text[:, start:].clone(memory_format=torch.contiguous_format)


# --- parts ----------------------------------------------------------------------------------------------------------


def _steps(
    model: GPT,
    text: Tensor,
    n_new: int,
    sample: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    end: TextEnd,
    stop: Callable[[Tensor], bool | Tensor] | None,
    caches: list[KVCache] | None,
    n_padding: Tensor | None,
    window: int | None,
) -> Iterator[GenerationStep]:
    """Yield the steps; ``text`` is what the model receives: a row that has ended goes on there, without padding."""
    tokens, has_ended = text, torch.zeros(len(text), dtype=torch.bool, device=text.device)
    for m in range(text.shape[1], text.shape[1] + n_new):
        first = 0 if window is None else max(0, m - window)
        if first > 0:
            caches = None  # cached keys and values depend on tokens before the window
        start = first if caches is None else len(caches[0])
        hidden, mask, positions = None, None, None
        if n_padding is not None:
            hidden = (n_padding - first).clamp(min=0)
            mask = LeftPadding(hidden)
            positions = torch.arange(start, m, device=text.device) - n_padding[:, None].clamp(min=first)
            positions = positions.clamp(min=0)
        with torch.no_grad(), eval_mode(model):
            logits = model(tokens_from(text, start), caches=caches, positions=positions, mask=mask)[:, -1]
            new_tokens = sample(logits, text[:, first:], hidden).to(text.dtype)
        text = torch.cat([text, new_tokens], dim=1)
        shown = new_tokens if end.pad is None else new_tokens.masked_fill(has_ended[:, None], end.pad)
        tokens = torch.cat([tokens, shown], dim=1)
        is_new, has_ended = ~has_ended, has_ended | end.is_at(new_tokens[:, 0])
        if stop is not None:
            has_ended = has_ended | _stopped(stop(tokens), has_ended)
        if end.pad is None and has_ended.any() and not has_ended.all():
            raise ValueError("pad must be given if stop ends some rows while others go on and there is no eos")
        yield GenerationStep(tokens, is_new, has_ended)
        if has_ended.all():
            return


def _sample(
    probs: Callable[[Tensor], Tensor],
    logits: Tensor,
    text: Tensor,
    n_padding: Tensor | None,
    *,
    is_greedy: bool,
    penalty: float,
    generator: torch.Generator | None,
) -> Tensor:
    """Return one token for each row, over ``(b, 1)``."""
    if penalty != 1:
        check_logits(logits)
        logits = penalise_repetition(logits, text, penalty, n_padding=n_padding)
    p = probs(logits)
    if is_greedy:
        return p.argmax(dim=-1, keepdim=True)  # without a random number, so that no generator advances
    return torch.multinomial(p, 1, generator=generator)


def _stopped(answer: bool | Tensor, has_ended: Tensor) -> Tensor:
    """Return which rows the callback ended."""
    if isinstance(answer, bool):
        return torch.full_like(has_ended, answer)
    if not isinstance(answer, Tensor) or answer.dtype != torch.bool or answer.shape not in ((), has_ended.shape):
        received = f"{answer.dtype} over {tuple(answer.shape)}" if isinstance(answer, Tensor) else repr(answer)
        raise ValueError(
            f"stop must return a Boolean, or a Boolean tensor over (b,) = ({len(has_ended)},), got {received}"
        )
    return answer.to(has_ended.device)


def _check(
    model: GPT,
    tokens: Tensor,
    n_new: int,
    temperature: float,
    use_cache: bool,
    lengths: Tensor | None,
    window: int | None,
) -> None:
    check_prompts(tokens)
    check_size("n_new", n_new, at_least=0)
    if window is not None:
        check_size("window", window, at_least=1)
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative (0 is greedy), got {temperature}")
    b, n = tokens.shape
    shortest = longest = n
    if lengths is not None:
        check_tensor("lengths", lengths)
        are_integers = not (lengths.is_floating_point() or lengths.dtype == torch.bool)
        if lengths.shape != (b,) or not are_integers or ((lengths < 1) | (lengths > n)).any():
            raise ValueError(f"lengths must be {b} integers in 1 .. n = {n}, one for each row, got {lengths.tolist()}")
        shortest, longest = int(lengths.min()), int(lengths.max())

    config, scaling = model.config, model.config.rope_scaling
    if window is None:
        check_learned_positions(config, longest, n_new, hint="; or pass window to use only the last tokens of a row")
    elif config.position == "learned" and min(longest + n_new, window) > config.n_context:
        raise ValueError(
            f"window must be at most n_context={config.n_context}, the number of learned positions, got {window}"
        )
    ragged = shortest < longest
    n_received = min(longest + n_new - 1, window or math.inf)
    if isinstance(scaling, DynamicNTK) and n_received > scaling.n_trained and (use_cache or ragged):
        raise ValueError(
            f"beyond {scaling.n_trained} tokens dynamic rotary scaling changes the rotation of all positions: "
            "use_cache must be False, and all rows equally long"
        )
