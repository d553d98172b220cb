r"""What a head does, read off its weights: a score from 0 to 1 for each of six patterns::

    previous_token  the token before
    diagonal        the token itself
    local           the neighbourhood, at no distance in particular
    sink            the first token, whatever the query
    induction       what followed the current token when it occurred before
    diffuse         everything alike

**A score is a share.** Of a head that follows a pattern with a part :math:`\lambda` of its weights and spreads the
rest over all it may see, the score is :math:`\lambda`. For a pattern with target keys :math:`S_i` in row :math:`i`,

.. math::
    \text{score} = \frac{\sum_i \left(\sum_{j \in S_i} a_{ij} - u_i\right)}{\sum_i (1 - u_i)}, \qquad
    u_i = \frac{|S_i \cap V_i|}{|V_i|},

over the rows that have a target, where :math:`V_i` are the keys that query :math:`i` may see: :math:`u_i` is what a
head without preference gives to the targets by chance. Early rows of a causal head see few keys and prove little; a
row with one visible key proves nothing and counts for nothing. Whoever does worse than chance scores 0.

Functions take weights over ``(*batch, n, n)``, rows that sum to one, *before* dropout, and return ``(*batch)``. What
may be seen is told by ``mask``. Without one the weights are taken for causal if none of them, in no head, looks
ahead, and for unmasked otherwise. A head in which a pattern cannot show (no token occurs twice, or the pattern's
targets are all that may be seen) scores ``NaN``: average over sequences with ``nanmean``.

A score describes weights on the given input. It is a hypothesis about what the head is for, which an intervention
may refute.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.markov import check_row_stochastic
from lessons_lib.shapes import (
    at_least_single,
    broadcasts_to,
    check_integers,
    check_mask,
    check_same_device,
    check_size,
    values_can_be_read,
)

# --- one pattern ----------------------------------------------------------------------------------------------------


def previous_token(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the token just before, :math:`S_i = \{i - 1\}`.

    ::

        >>> weights = torch.randn(2, 8, 50, 50).softmax(-1)  # two sequences, eight heads
        >>> previous_token(weights).shape
        torch.Size([2, 8])

    Raises:
        ValueError: if the weights are not row-stochastic and square, or look where the mask forbids.
    """
    visible = _visible(weights, mask)
    return _share(weights, _steps_back(weights) == 1, visible)


def diagonal(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the query's own token, :math:`S_i = \{i\}`.

    ::

        >>> diagonal(torch.eye(50).expand(2, 8, 50, 50)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: as :func:`previous_token`.
    """
    visible = _visible(weights, mask)
    return _share(weights, _steps_back(weights) == 0, visible)


def local(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None, *, window: int = 4
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight in the neighbourhood, as far as it is spread over several distances there.

    .. math:: \text{score}(S_i = \{j : |i - j| < w\}) \cdot \frac{\sum_o \min(q_o, 1/k) - 1/k}{1 - 1/k}

    with :math:`q_o` the share of each of the :math:`k` visible distances :math:`o = i - j` within the window, over
    the rows that see all of them. The second factor is 1 if all distances are used alike, also by a head that
    looks at another one in each row, and 0 if only one is: then the head is :func:`diagonal`, or
    :func:`previous_token`, or another fixed step.

    ::

        >>> band = torch.ones(50, 50).tril().triu(-3)  # the query's own token and the three before it
        >>> band = band / band.sum(-1, keepdim=True)
        >>> local(band, window=4) > 0.99, local(torch.eye(50), window=4) < 0.01
        (tensor(True), tensor(True))

    Args:
        window: :math:`w`, counting the query's own token.

    Raises:
        ValueError: as :func:`previous_token`, and if the window is less than 2.
    """
    check_size("window", window, at_least=2)
    visible = _visible(weights, mask)
    near = _share(weights, _steps_back(weights).abs() < window, visible)
    return (near * _evenness(weights, visible, window).to(near)).clamp_min(0.0)


def sink(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the first token, :math:`S_i = \{0\}`, where heads put what they have no use for.

    ::

        >>> weights = torch.zeros(2, 8, 50, 50)
        >>> weights[..., 0] = 1.0
        >>> sink(weights).shape
        torch.Size([2, 8])

    Raises:
        ValueError: as :func:`previous_token`.
    """
    visible = _visible(weights, mask)
    first = torch.arange(weights.shape[-1], device=weights.device) == 0
    return _share(weights, first.expand_as(visible), visible)


def induction(
    weights: Float[Tensor, "*batch n n"],
    tokens: Int[Tensor, "*#batch n"],
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on what followed earlier copies of the current token [1]_.

    .. math:: S_i = \{ j \le i : x_{j-1} = x_i \}

    All earlier copies count. Only rows whose token occurred before can show it.

    ::

        >>> tokens = torch.arange(25).repeat(2, 2)  # two sequences, each a passage said twice
        >>> weights = torch.randn(2, 8, 50, 50).softmax(-1)
        >>> induction(weights, tokens[:, None, :]).shape  # beside the heads, an axis of one
        torch.Size([2, 8])

    Args:
        tokens: the tokens :math:`x`; beside a head axis ``(batch, 1, n)``.

    Raises:
        ValueError: as :func:`previous_token`, and if the tokens are not integers that fit the weights.

    .. [1] Olsson et al., *In-context Learning and Induction Heads*, 2022. arXiv:2209.11895.
    """
    visible = _visible(weights, mask)
    _check_tokens(tokens, weights)
    follows_a_copy = tokens[..., :, None] == tokens.roll(1, dims=-1)[..., None, :]
    follows_a_copy[..., 0] = False  # nothing comes before the first token
    return _share(weights, follows_a_copy & (_steps_back(weights) >= 0), visible)


def diffuse(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight that is spread evenly over everything visible.

    .. math:: \frac{\sum_i \left(\sum_{j \in V_i} \min(a_{ij}, 1/|V_i|) - 1/|V_i|\right)}{\sum_i (1 - 1/|V_i|)}

    1 for uniform rows, 0 for rows with a single key, :math:`(k - 1) / (|V_i| - 1)` for :math:`k` keys alike. Each row
    by itself: heads that look at one key each are not diffuse together.

    ::

        >>> diffuse(torch.full((2, 8, 50, 50), 1 / 50)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: as :func:`previous_token`.
    """
    visible = _visible(weights, mask)
    chance = 1 / visible.sum(dim=-1).to(at_least_single(weights))
    overlap = torch.minimum(at_least_single(weights), chance[..., None]).sum(dim=-1)
    return ((overlap - chance).sum(dim=-1) / (1 - chance).sum(dim=-1)).clamp(0.0, 1.0).to(weights.dtype)


# --- which one ------------------------------------------------------------------------------------------------------


class Classification(NamedTuple):
    """The name of each head's pattern, over ``(*batch)``, and the scores that it was given for."""

    names: np.ndarray
    scores: dict[str, Tensor]


def classify(
    weights: Float[Tensor, "*batch n n"],
    tokens: Int[Tensor, "*#batch n"] | None = None,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    *,
    window: int = 4,
    threshold: float = 0.5,
) -> Classification:
    """Name each head after the pattern that has the majority of its weight, or ``"other"`` if none has.

    "Other" are mixtures without a majority, and heads that choose by content. To name heads by several sequences,
    average the scores and not the weights: ``pattern_names({name: score.nanmean(0) for name, score in ...})``.

    ::

        >>> back = torch.eye(50).roll(-1, dims=-1)  # each token looks at the one before, the first at itself
        >>> back[0] = torch.eye(50)[0]
        >>> heads = torch.stack([torch.eye(50), back])
        >>> classify(heads).names
        array(['diagonal', 'previous_token'], dtype='<U14')

    Args:
        tokens: without them induction is not scored, and induction heads are other.
        threshold: the score that a pattern must reach.

    Raises:
        ValueError: as :func:`pattern_scores` and :func:`pattern_names`.
    """
    scores = pattern_scores(weights, tokens, mask, window=window)
    return Classification(pattern_names(scores, threshold=threshold), scores)


def pattern_scores(
    weights: Float[Tensor, "*batch n n"],
    tokens: Int[Tensor, "*#batch n"] | None = None,
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
    *,
    window: int = 4,
) -> dict[str, Float[Tensor, "*batch"]]:
    """Return the scores by name; induction's only if there are tokens.

    ::

        >>> scores = pattern_scores(torch.eye(50).expand(2, 8, 50, 50))
        >>> [*scores], scores["sink"].shape
        (['previous_token', 'diagonal', 'local', 'sink', 'diffuse'], torch.Size([2, 8]))

    Raises:
        ValueError: as :func:`local` and :func:`induction`.
    """
    scores = {
        "previous_token": previous_token(weights, mask),
        "diagonal": diagonal(weights, mask),
        "local": local(weights, mask, window=window),
        "sink": sink(weights, mask),
        "diffuse": diffuse(weights, mask),
    }
    return scores if tokens is None else scores | {"induction": induction(weights, tokens, mask)}


def pattern_names(scores: Mapping[str, Float[Tensor, "*batch"]], *, threshold: float = 0.5) -> np.ndarray:
    """Name each head after its largest score, or ``"other"`` if that does not reach the threshold; ``NaN`` is no score.

    Raises:
        ValueError: if there are no scores, or the threshold is not in (0, 1].
    """
    if not scores:
        raise ValueError("scores must hold at least one pattern, got none")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")
    best, index = torch.stack(list(scores.values())).nan_to_num(nan=-1.0).max(dim=0)
    names = np.array([*scores, "other"])
    return np.asarray(names[torch.where(best >= threshold, index, len(scores)).cpu().numpy()])


# --- parts ----------------------------------------------------------------------------------------------------------


def _share(weights: Tensor, target: Tensor, visible: Tensor) -> Tensor:
    """The weight on the targets beyond chance, of what there could be beyond chance."""
    exact, target = at_least_single(weights), target & visible
    n_targets = target.sum(dim=-1)
    chance = n_targets / visible.sum(dim=-1).to(exact)
    has_target = n_targets > 0
    gained = ((exact * target).sum(dim=-1) - chance) * has_target
    possible = (1 - chance) * has_target
    return (gained.sum(dim=-1) / possible.sum(dim=-1)).clamp(0.0, 1.0).to(weights.dtype)


def _evenness(weights: Tensor, visible: Tensor, window: int) -> Tensor:
    """How evenly the weight within the window is spread over its distances; 0 for one alone, 1 for all alike."""
    n = weights.shape[-1]
    distances = torch.arange(1 - window, window, device=weights.device)
    keys = torch.arange(n, device=weights.device)[:, None] - distances
    inside, keys = (keys >= 0) & (keys < n), keys.clamp(0, n - 1).expand(*weights.shape[:-1], -1)
    seen = visible.gather(-1, keys) & inside  # (*batch, n, distances)
    possible = seen.any(dim=-2, keepdim=True)
    sees_all = (seen | ~possible).all(dim=-1, keepdim=True)
    profile = (at_least_single(weights).gather(-1, keys) * (seen & sees_all)).sum(dim=-2)
    profile = profile / profile.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(profile.dtype).tiny)
    alike = 1 / possible.sum(dim=-1).to(profile)
    return (torch.minimum(profile, alike).sum(dim=-1) - alike.squeeze(-1)) / (1 - alike.squeeze(-1))


def _steps_back(weights: Tensor) -> Tensor:
    """How far key ``j`` lies behind query ``i``."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return positions[:, None] - positions


def _visible(weights: Tensor, mask: Tensor | None) -> Tensor:
    """The keys that each query may see, once weights and mask are known to be sound."""
    check_row_stochastic("weights", weights)
    if weights.shape[-2] != weights.shape[-1]:
        raise ValueError(f"weights must be square, over (*batch, n, n), got {tuple(weights.shape)}")
    if mask is None:
        ahead = _steps_back(weights) < 0
        sees_ahead = (weights * ahead != 0).flatten().any()
        mask = ~ahead | sees_ahead
    check_mask(mask, weights)
    if values_can_be_read(weights) and (weights.masked_fill(mask, 0.0) > 0).any():
        raise ValueError("mask must allow every key that has weight; is it the one that the weights were made with?")
    return mask.expand_as(weights)


def _check_tokens(tokens: Tensor, weights: Tensor) -> None:
    check_integers("tokens", tokens)
    check_same_device(weights=weights, tokens=tokens)
    if not tokens.ndim or tokens.shape[-1] != weights.shape[-1] or not broadcasts_to(tokens.shape, weights.shape[:-1]):
        raise ValueError(
            f"tokens must be one for each row of the weights and broadcast to {tuple(weights.shape[:-1])}, got "
            f"{tuple(tokens.shape)}; beside a head axis (batch, n) becomes (batch, 1, n)"
        )
