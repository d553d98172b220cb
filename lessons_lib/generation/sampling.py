"""Autoregressive sampling: each new token is drawn from the model's distribution of the next token."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.attention.rope_scaling import DynamicNTK
from lessons_lib.attention.rules import LeftPadding
from lessons_lib.attention.softmax import softmax
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import check_size, check_tensor, promote_half, values_can_be_read
from lessons_lib.transformer.gpt import GPT, GPTConfig

# A sum of probabilities counts as reaching top_p if it is at most this many units of machine epsilon below it. For all
# distributions in twentieths, 3 units are enough in float32 and float64.
ROUNDING_UNITS = 8


@torch.no_grad()
def generate(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    n_new: int,
    *,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    lengths: Int[Tensor, "b"] | None = None,
    window: int | None = None,
) -> Int[Tensor, "b total"]:
    r"""Sample ``n_new`` tokens after each row of prompts and return prompts and new tokens together.

    .. math:: t_{n+1} \sim \operatorname{softmax}(\text{logits}_n / T) \quad\text{restricted to the kept tokens}

    With a KV cache the model processes each token once; without one it processes the whole row at every step. Up to
    rounding both give the same tokens, sampled or greedy. No token stops a row early: truncate the result at your
    end-of-sequence token.

    >>> from lessons_lib.transformer.gpt import llama_tiny
    >>> model, prompts = GPT(llama_tiny()), torch.randint(256, (2, 5))
    >>> generate(model, prompts, 3, top_k=10, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 8])

    Args:
        model: runs in evaluation mode; its own mode is restored afterwards.
        tokens: the prompts, one in each row.
        n_new: number of tokens to add, 0 or more.
        temperature: :math:`T`. With 0 decoding is greedy: it takes the most probable token, the first among equals,
            and draws no random numbers.
        top_k: keep the ``k`` most probable tokens.
        top_p: of these, keep the smallest set whose probabilities sum to at least ``p`` [1]_, see
            :func:`top_k_top_p_mask`.
        generator: the random generator; PyTorch's global one by default.
        use_cache: whether to keep keys and values between steps.
        lengths: for prompts of different lengths, padded on the *left*: the number of real tokens at the end of each
            row. Positions start at the first real token, and the padding is masked, whatever tokens of the vocabulary
            it holds. Each row then continues as it would alone.
        window: largest number of tokens that the model receives: the last ones of each row. Once a row is longer, each
            new token is sampled given the last ``window`` tokens *alone*, whose positions start at 0 again. A cache
            would still depend on the tokens before the window, so from then on every step processes the whole window,
            also with ``use_cache``. Without a window the model receives the whole row, which learned positions limit.

    Raises:
        ValueError: if a number is out of range, if the tokens that the model receives exceed the learned positions, or
            if the model returns invalid logits, see :func:`check_logits`.

    .. [1] Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2019. arXiv:1904.09751.
    """
    temperature = float(temperature)  # users often write the integer 0
    _check(model, tokens, n_new, temperature, use_cache, lengths, window)
    n = tokens.shape[1]
    n_padding = None if lengths is None else (n - lengths.to(tokens.device))[:, None]  # of each row

    caches = model.new_caches() if use_cache else None
    with eval_mode(model):
        for m in range(n, n + n_new):
            first = 0 if window is None else max(0, m - window)
            if first > 0:
                caches = None  # cached keys and values depend on tokens before the window
            start = first if caches is None else len(caches[0])
            mask, positions = None, None
            if n_padding is not None:
                mask = LeftPadding((n_padding[:, 0] - first).clamp(min=0))
                positions = torch.arange(start, m, device=tokens.device) - n_padding.clamp(min=first)
                positions = positions.clamp(min=0)
            logits = model(tokens[:, start:], caches=caches, positions=positions, mask=mask)[:, -1]
            new_tokens = _sample(logits, temperature, top_k, top_p, generator)
            tokens = torch.cat([tokens, new_tokens.to(tokens.dtype)], dim=1)
    return tokens


def top_k_top_p_mask(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Bool[Tensor, "*batch vocab"]:
    r"""Return which tokens may be sampled: exactly the ``top_k`` best, and of these the nucleus of mass ``top_p``.

    .. math:: \text{the shortest prefix, by decreasing } p_i, \text{ with } \sum_{i} p_i \ge \text{top\_p}

    The probabilities are those at the given temperature, renormalised over the ``top_k``. The token that reaches the
    threshold is kept, so at least one token is. A sum that equals ``top_p`` up to rounding reaches it. Among equal
    probabilities the tokens that come first in the vocabulary are kept.

    >>> top_k_top_p_mask(torch.tensor([0.5, 0.3, 0.1, 0.1]).log(), top_p=0.8)
    tensor([ True,  True, False, False])

    Raises:
        ValueError: if ``top_k`` is not an integer from 1 to the vocabulary size, if ``top_p`` is not in ``(0, 1]``, if
            the temperature is not positive, or as :func:`check_logits`.
    """
    check_logits(logits)
    n_tokens = logits.shape[-1]
    if top_k is not None:
        check_size("top_k", top_k, at_least=1, at_most=n_tokens)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_p == 1:
        top_p = None  # keep all tokens, including those whose probability underflows to 0
    if top_k is None and top_p is None:
        return kept
    order = logits.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1)
    if top_k is not None:
        kept = rank < top_k
    if top_p is not None:
        p = softmax(promote_half(logits), kept, temperature=temperature).gather(-1, order)
        # The probability of all better tokens. Subtracting p from its cumulative sum would add rounding errors.
        cumulative = pad(p[..., :-1].cumsum(dim=-1), (1, 0))
        threshold = top_p * (1 - ROUNDING_UNITS * torch.finfo(p.dtype).eps)
        kept = kept & (cumulative < threshold).gather(-1, rank)
    return kept


def next_token_probs(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "*batch vocab"]:
    r"""Return the probability of each token to be sampled next, in at least single precision.

    .. math:: p_i = \frac{e^{\text{logits}_i / T}}{\sum_{j \text{ kept}} e^{\text{logits}_j / T}}
              \quad\text{for the kept tokens, and 0 for the others}

    At temperature 0 the most probable token, the first among equals, has probability 1.

    >>> next_token_probs(torch.tensor([0.5, 0.3, 0.2]).log(), top_k=2)
    tensor([0.6250, 0.3750, 0.0000])

    Raises:
        ValueError: if the temperature is negative, or as :func:`top_k_top_p_mask`.
    """
    temperature = float(temperature)  # users often write the integer 0
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative (0 is greedy), got {temperature}")
    kept = top_k_top_p_mask(logits, temperature=temperature or 1.0, top_k=top_k, top_p=top_p)
    if temperature == 0:
        best = logits.masked_fill(~kept, -torch.inf).argmax(dim=-1, keepdim=True)
        return torch.zeros_like(promote_half(logits)).scatter(-1, best, 1.0)
    return softmax(promote_half(logits), kept, temperature=temperature)


def check_logits(logits: Float[Tensor, "*batch vocab"]) -> None:
    """Check that each row of logits defines a distribution, which fails for a model that has diverged.

    Raises:
        ValueError: if a row holds ``NaN`` or ``inf``, or only ``-inf``.
    """
    if not values_can_be_read(logits):
        return
    largest = logits.detach().amax(dim=-1)
    invalid = ~largest.isfinite()
    if invalid.any():
        value = largest[invalid].flatten()[0].item()
        raise ValueError(
            "logits must be finite or -inf, and at least one in each row finite, "
            f"got {'only -inf' if value == -math.inf else value} in {int(invalid.sum())} of {invalid.numel()} rows; "
            "has the model diverged? Look for the first NaN or inf in its parameters and activations"
        )


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


def _sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """Return one token for each row, over ``(b, 1)``."""
    p = next_token_probs(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    if temperature == 0:
        return p.argmax(dim=-1, keepdim=True)  # without a random number, so that no generator advances
    return torch.multinomial(p, 1, generator=generator)


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
