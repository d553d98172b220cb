"""Writing with a language model: one token after another, each drawn from what the model expects next."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.modes import evaluating
from lessons_lib.rope_scaling import DynamicNTK
from lessons_lib.rules import LeftPadding
from lessons_lib.shapes import at_least_single, check_size, check_tensor, values_can_be_read
from lessons_lib.softmax import softmax

# Probabilities that reach top_p within this many units of rounding reach it. For all distributions in twentieths,
# 3 units are enough in float32 and float64.
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
    r"""Continue each row by ``n_new`` tokens and return the rows with what was added.

    .. math:: t_{n+1} \sim \operatorname{softmax}(\text{logits}_n / T) \quad\text{restricted to the kept tokens}

    With a cache each token goes through the model once; without, the whole row does at every step. Up to rounding
    both give the same tokens, drawn or not. Nothing ends a row early: cut it at your end token.

    Args:
        model: left in the mode, training or not, that it was in; inside it runs without dropout.
        tokens: the beginnings.
        n_new: how many tokens to add; 0 adds none.
        temperature: :math:`T`; 0 is greedy: the most probable token, the first of equals, and no chance in it.
        top_k: keep the ``k`` most probable tokens.
        top_p: of these, keep the fewest whose probabilities reach ``p`` together [1]_, see :func:`kept_tokens`.
        generator: where chance comes from; PyTorch's global one if omitted.
        use_cache: whether to keep keys and values between steps.
        lengths: for rows of different lengths, filled up on the *left*: how many tokens at the end of each are real.
            Positions start at the first real token, and nobody sees the filling, whatever it holds (it has to be in
            the vocabulary). Each row then continues as it would alone.
        window: how many tokens the model is shown at most: the last ones of each row. Once a row is longer, each new
            token is what the model expects after the last ``window`` tokens *alone*, whose positions start at 0 again.
            What a cache holds would still depend on the token that has left, so from then on every step goes through
            the whole view, with ``use_cache`` as without. Without a window the view is the whole row, and learned
            positions end it.

    Raises:
        ValueError: if a number is out of range, if what is in view exceeds the learned positions, or if the model
            returns logits that are no distribution, see :func:`check_logits`.

    .. [1] Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2019. arXiv:1904.09751.
    """
    temperature = float(temperature)  # 0 is a natural thing to write
    _check(model, tokens, n_new, temperature, use_cache, lengths, window)
    n = tokens.shape[1]
    filled = None if lengths is None else (n - lengths.to(tokens.device))[:, None]  # how much of a row is filling

    caches = model.new_caches() if use_cache else None
    with evaluating(model):
        for m in range(n, n + n_new):
            first = 0 if window is None else max(0, m - window)
            if first > 0:
                caches = None  # a cache remembers tokens that have left the view
            start = first if caches is None else len(caches[0])
            real, positions = None, None
            if filled is not None:
                place = torch.arange(start, m, device=tokens.device) - filled.clamp(min=first)
                real, positions = LeftPadding((filled[:, 0] - first).clamp(min=0)), place.clamp(min=0)
            logits = model(tokens[:, start:], caches=caches, positions=positions, mask=real)[:, -1]
            following = _choose(logits, temperature, top_k, top_p, generator)
            tokens = torch.cat([tokens, following.to(tokens.dtype)], dim=1)
    return tokens


def kept_tokens(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Bool[Tensor, "*batch vocab"]:
    r"""Return which tokens may be drawn: exactly ``top_k`` of them, then their nucleus of probability ``top_p``.

    .. math:: \text{the shortest prefix, by decreasing } p_i, \text{ with } \sum_{i} p_i \ge \text{top\_p}

    where the probabilities are those at the temperature, renormalised over the ``top_k``. The token that reaches the
    threshold is kept, so at least one is. A sum that equals ``top_p`` but for rounding reaches it: of the probabilities
    0.5, 0.3, 0.1 and 0.1, ``top_p=0.8`` keeps two. Among equals the earlier ones in the vocabulary are kept.

    Raises:
        ValueError: if ``top_k`` is not a whole number from 1 to the size of the vocabulary, if ``top_p`` is not in
            ``(0, 1]``, if the temperature is not positive, or as :func:`check_logits`.
    """
    check_logits(logits)
    n_tokens = logits.shape[-1]
    if top_k is not None:
        check_size("top_k", top_k, at_least=1, at_most=n_tokens)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_p == 1:
        top_p = None  # all tokens, also those whose probability is lost in rounding
    if top_k is None and top_p is None:
        return kept
    order = logits.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1)
    if top_k is not None:
        kept = rank < top_k
    if top_p is not None:
        p = softmax(at_least_single(logits), kept, temperature=temperature).gather(-1, order)
        # The sum of the tokens before, added up and not by subtraction, which would leave rounding behind.
        before = pad(p[..., :-1].cumsum(dim=-1), (1, 0))
        threshold = top_p * (1 - ROUNDING_UNITS * torch.finfo(p.dtype).eps)
        kept = kept & (before < threshold).gather(-1, rank)
    return kept


def chances(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float | int = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "*batch vocab"]:
    r"""Return the probability that each token is the next to be written, in at least single precision.

    .. math:: p_i = \frac{e^{\text{logits}_i / T}}{\sum_{j \text{ kept}} e^{\text{logits}_j / T}}
              \quad\text{for the kept tokens, and 0 for the others}

    At temperature 0 all of it is on the most probable token, the first of equals.

    Raises:
        ValueError: if the temperature is negative, or as :func:`kept_tokens`.
    """
    temperature = float(temperature)  # 0 is a natural thing to write
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative (0 is greedy), got {temperature}")
    kept = kept_tokens(logits, temperature=temperature or 1.0, top_k=top_k, top_p=top_p)
    if temperature == 0:
        best = logits.masked_fill(~kept, -torch.inf).argmax(dim=-1, keepdim=True)
        return torch.zeros_like(at_least_single(logits)).scatter(-1, best, 1.0)
    return softmax(at_least_single(logits), kept, temperature=temperature)


def check_logits(logits: Float[Tensor, "*batch vocab"]) -> None:
    """Refuse logits that are no distribution over the tokens, such as those of a model that has diverged.

    Raises:
        ValueError: if a row holds ``NaN`` or ``inf``, or nothing but ``-inf``.
    """
    if not values_can_be_read(logits):
        return
    largest = logits.detach().amax(dim=-1)
    wrong = ~largest.isfinite()
    if wrong.any():
        value = largest[wrong].flatten()[0].item()
        raise ValueError(
            "logits must be finite or -inf, and at least one in each row finite, "
            f"got {'nothing but -inf' if value == -math.inf else value} in {int(wrong.sum())} of {wrong.numel()} rows; "
            "has the model diverged? Look for the first NaN or inf in its parameters and activations"
        )


def check_beginnings(tokens: Tensor) -> None:
    """Refuse what no text can begin with."""
    check_tensor("tokens", tokens)
    if tokens.ndim != 2 or not tokens.numel():
        raise ValueError(f"tokens must be (b, n), and hold something to continue, got {tuple(tokens.shape)}")


def check_learned_positions(config: GPTConfig, n: int, n_new: int, *, otherwise: str = "") -> None:
    """Refuse texts of ``n`` and ``n_new`` tokens where learned positions end before; say what to do ``otherwise``."""
    if config.position == "learned" and n + n_new > config.n_context:
        raise ValueError(
            f"n_new must be at most {config.n_context - n}: {n} tokens and n_new must fit into the model's "
            f"n_context={config.n_context} learned positions, got {n_new}{otherwise}"
        )


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """One token for each row, over ``(b, 1)``."""
    p = chances(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    if temperature == 0:
        return p.argmax(dim=-1, keepdim=True)  # no chance is asked
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
    check_beginnings(tokens)
    check_size("n_new", n_new, at_least=0)
    if window is not None:
        check_size("window", window, at_least=1)
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative (0 is greedy), got {temperature}")
    b, n = tokens.shape
    shortest = longest = n
    if lengths is not None:
        check_tensor("lengths", lengths)
        whole = not (lengths.is_floating_point() or lengths.dtype == torch.bool)
        if lengths.shape != (b,) or not whole or ((lengths < 1) | (lengths > n)).any():
            raise ValueError(f"lengths must be {b} integers in 1 .. n = {n}, one for each row, got {lengths.tolist()}")
        shortest, longest = int(lengths.min()), int(lengths.max())

    config, scaling = model.config, model.config.rope_scaling
    if window is None:
        check_learned_positions(config, longest, n_new, otherwise="; or go on with a window of them in view")
    elif config.position == "learned" and min(longest + n_new, window) > config.n_context:
        raise ValueError(
            f"window must be at most n_context={config.n_context}, the number of learned positions, got {window}"
        )
    ragged = shortest < longest
    in_view = min(longest + n_new - 1, window or math.inf)
    if isinstance(scaling, DynamicNTK) and in_view > scaling.n_trained and (use_cache or ragged):
        raise ValueError(
            f"beyond {scaling.n_trained} tokens dynamic rotary scaling turns every position of the batch anew: "
            "use_cache must be False, and all rows equally long"
        )
