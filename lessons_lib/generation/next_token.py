"""The distribution of the next token: temperature, top-k, top-p, min-p and a penalty for repetition."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.attention.softmax import softmax
from lessons_lib.foundations.validation import (
    check_above,
    check_integers,
    check_size,
    promote_half,
    values_can_be_read,
)

# A sum of probabilities counts as reaching top_p if it is at most this many units of machine epsilon below it. For all
# distributions in twentieths, 3 units are enough in float32 and float64.
ROUNDING_UNITS = 8


def top_k_top_p_mask(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Bool[Tensor, "*batch vocab"]:
    r"""Return which tokens may be sampled: those that ``top_k``, ``top_p`` and ``min_p`` all keep.

    ``top_k`` keeps exactly the ``k`` most probable tokens, and ``top_p`` of these the nucleus [1]_,

    .. math:: \text{the shortest prefix, by decreasing } p_i, \text{ with } \sum_{i} p_i \ge \text{top\_p}

    The probabilities are those at the given temperature, renormalised over the ``top_k``. The token that reaches the
    threshold is kept, so at least one token is. A sum that equals ``top_p`` up to rounding reaches it. Among equal
    probabilities the tokens that come first in the vocabulary are kept.

    ``min_p`` keeps the tokens that are not much less probable than the best one [2]_,

    .. math:: p_i \ge \text{min\_p} \cdot \max_j p_j

    also those where the two sides are equal up to rounding. It keeps few tokens where the model is certain and many
    where it is not.

    >>> top_k_top_p_mask(torch.tensor([0.5, 0.3, 0.1, 0.1]).log(), top_p=0.8)
    tensor([ True,  True, False, False])
    >>> top_k_top_p_mask(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), min_p=0.3)
    tensor([ True,  True,  True, False])

    Raises:
        ValueError: if ``top_k`` is not an integer from 1 to the vocabulary size, if ``top_p`` or ``min_p`` is not in
            ``(0, 1]``, if the temperature is not positive, or as :func:`check_logits`.

    .. [1] Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2019. arXiv:1904.09751.
    .. [2] Nguyen et al., *Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs*, 2024.
       arXiv:2407.01082.
    """
    check_logits(logits)
    n_tokens = logits.shape[-1]
    if top_k is not None:
        check_size("top_k", top_k, at_least=1, at_most=n_tokens)
    for name, share in (("top_p", top_p), ("min_p", min_p)):
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"{name} must be in (0, 1], got {share}")
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_p == 1:
        top_p = None  # keep all tokens, including those whose probability underflows to 0
    if min_p is not None:
        p = softmax(promote_half(logits), temperature=temperature)
        threshold = min_p * (1 - ROUNDING_UNITS * torch.finfo(p.dtype).eps) * p.amax(dim=-1, keepdim=True)
        kept = p >= threshold
    if top_k is None and top_p is None:
        return kept
    order = logits.argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1)
    best = rank < (n_tokens if top_k is None else top_k)
    kept = kept & best
    if top_p is not None:
        p = softmax(promote_half(logits), best, temperature=temperature).gather(-1, order)
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
    min_p: float | None = None,
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
    kept = top_k_top_p_mask(logits, temperature=temperature or 1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    if temperature == 0:
        best = logits.masked_fill(~kept, -torch.inf).argmax(dim=-1, keepdim=True)
        return torch.zeros_like(promote_half(logits)).scatter(-1, best, 1.0)
    return softmax(promote_half(logits), kept, temperature=temperature)


def penalise_repetition(
    logits: Float[Tensor, "b vocab"],
    tokens: Int[Tensor, "b n"],
    penalty: float,
    *,
    n_padding: Int[Tensor, "b"] | None = None,
) -> Float[Tensor, "b vocab"]:
    r"""Return logits in which the tokens that a row holds already are less probable [3]_.

    .. math:: \text{logits}_i' = \begin{cases} \text{logits}_i / \theta & \text{if logits}_i > 0 \\
              \theta \cdot \text{logits}_i & \text{otherwise} \end{cases} \qquad\text{for the tokens of the row}

    The paper divides every logit by :math:`\theta`, which would make a token with a negative logit *more* probable;
    the multiplication is that of ``transformers``. The penalty is the same however often a token occurs. It depends on
    where the logits have their zero, which softmax does not: adding a constant to all logits changes the result.

    >>> penalise_repetition(torch.tensor([[2.0, 2.0, -1.0, -1.0]]), torch.tensor([[0, 2, 0]]), 2.0)
    tensor([[ 1.,  2., -2., -1.]])

    Args:
        logits: the logits of the next token, before temperature.
        tokens: the tokens so far, prompt included.
        penalty: :math:`\theta`; the paper suggests 1.2. 1 changes nothing, a smaller one favours repetition.
        n_padding: number of tokens at the beginning of each row that do not count.

    Raises:
        ValueError: if the penalty is not finite and positive, or a token is not in the vocabulary.

    .. [3] Keskar et al., *CTRL: A Conditional Transformer Language Model for Controllable Generation*, 2019, section
       4.1. arXiv:1909.05858.
    """
    check_above("penalty", penalty, 0)
    check_integers("tokens", tokens, "b n")
    n_tokens = logits.shape[-1]
    if values_can_be_read(tokens) and ((tokens < 0) | (tokens >= n_tokens)).any():
        raise ValueError(f"tokens must be in 0 .. {n_tokens - 1}, got {tokens.min().item()} .. {tokens.max().item()}")
    places = torch.arange(tokens.shape[1], device=tokens.device)
    counts = places >= (0 if n_padding is None else n_padding[:, None])
    # Padding is written into one more column, which is cut off.
    seen = torch.zeros(len(logits), n_tokens + 1, dtype=torch.bool, device=logits.device)
    seen = seen.scatter(1, tokens.long().where(counts, n_tokens).to(logits.device), True)[:, :-1]
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


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
