r"""Scores from 0 to 1 for six known attention patterns of a head::

    previous_token  the token before the query
    diagonal        the query's own token
    local           nearby tokens, spread over several distances
    sink            the first token, for every query; after padding the first token that some query can see
    induction       the token after an earlier occurrence of the current token
    diffuse         all visible tokens uniformly

**A score is a share.** A head that puts the share :math:`\lambda` of its weight on a pattern and spreads the rest
uniformly over all visible keys has the score :math:`\lambda`. For a pattern with target keys :math:`S_i` in row
:math:`i`,

.. math::
    \text{score} = \frac{\sum_i \left(\sum_{j \in S_i} a_{ij} - u_i\right)}{\sum_i (1 - u_i)}, \qquad
    u_i = \frac{|S_i \cap V_i|}{|V_i|},

over the rows that have a target. :math:`V_i` is the set of keys visible to query :math:`i`, and :math:`u_i` is the
chance level: the weight of uniform attention on the targets. Early rows of a causal head have few visible keys and
therefore little influence; a row with one visible key has none. A head below the chance level scores 0.

The functions take attention weights over ``(*batch, n, n)``, *before* dropout, whose rows sum to one, and return
``(*batch)``. ``mask`` gives the visible keys. Without a mask the weights are treated as causal if no weight of any
head is on a later token, and as unmasked otherwise. A pattern that cannot occur on the given input (no token repeats,
or the targets are all visible keys) scores ``NaN``; average over sequences with ``nanmean``. Rows without a visible
key, such as padding, must be zero throughout, as :func:`~lessons_lib.analysis.diagnostics.observe` records them, and do
not count.

A score describes attention weights on the given input. It is a hypothesis about the head's function, which an
intervention such as ablation or activation patching may refute.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.analysis.markov import check_row_stochastic
from lessons_lib.foundations.validation import (
    broadcasts_to,
    check_floating,
    check_integers,
    check_mask,
    check_same_device,
    check_size,
    promote_half,
    values_can_be_read,
)

# --- one pattern ----------------------------------------------------------------------------------------------------


def previous_token_score(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the previous token, :math:`S_i = \{i - 1\}`.

    ::

        >>> weights = torch.randn(2, 8, 50, 50).softmax(-1)  # two sequences, eight heads
        >>> previous_token_score(weights).shape
        torch.Size([2, 8])

    Raises:
        ValueError: if the weights are not row-stochastic and square, or are positive where the mask is False.
    """
    visible = _visible_keys(weights, mask)
    return _share_above_chance(weights, _offsets(weights) == 1, visible)


def diagonal_score(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the query's own token, :math:`S_i = \{i\}`.

    ::

        >>> diagonal_score(torch.eye(50).expand(2, 8, 50, 50)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: as :func:`previous_token_score`.
    """
    visible = _visible_keys(weights, mask)
    return _share_above_chance(weights, _offsets(weights) == 0, visible)


def local_score(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None, *, window: int = 4
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on tokens within a window, times how evenly it is spread over the distances.

    .. math:: \text{score}(S_i = \{j : |i - j| < w\}) \cdot \frac{\sum_o \min(q_o, 1/k) - 1/k}{1 - 1/k}

    Here :math:`q_o` is the share of the weight at distance :math:`o = i - j`, for the :math:`k` visible distances
    within the window, over the rows in which all of these distances are visible. The second factor is 1 if all
    distances have equal shares, also if each row uses a single distance and the rows differ. It is 0 if only one
    distance is used: such a head has the pattern of :func:`diagonal_score`, of :func:`previous_token_score`, or of
    another fixed offset.

    ::

        >>> band = torch.ones(50, 50).tril().triu(-3)  # the query's own token and the three before it
        >>> band = band / band.sum(-1, keepdim=True)
        >>> local_score(band, window=4) > 0.99, local_score(torch.eye(50), window=4) < 0.01
        (tensor(True), tensor(True))

    Args:
        window: :math:`w`, including the query's own token.

    Raises:
        ValueError: as :func:`previous_token_score`, and if the window is less than 2.
    """
    check_size("window", window, at_least=2)
    visible = _visible_keys(weights, mask)
    near = _share_above_chance(weights, _offsets(weights).abs() < window, visible)
    return (near * _evenness(weights, visible, window).to(near)).clamp_min(0.0)


def sink_score(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the first token, the attention sink, :math:`S_i = \{0\}`.

    With padding on the left the first token is the first key that some query can see.

    ::

        >>> weights = torch.zeros(2, 8, 50, 50)
        >>> weights[..., 0] = 1.0
        >>> sink_score(weights).shape
        torch.Size([2, 8])

    Raises:
        ValueError: as :func:`previous_token_score`.
    """
    visible = _visible_keys(weights, mask)
    seen = visible.any(dim=-2)
    first = seen & (seen.cumsum(dim=-1) == 1)
    return _share_above_chance(weights, first[..., None, :].expand_as(visible), visible)


def induction_score(
    weights: Float[Tensor, "*batch n n"],
    tokens: Int[Tensor, "*#batch n"],
    mask: Bool[Tensor, "*#batch #n #n"] | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight on the tokens after earlier occurrences of the current token [1]_.

    .. math:: S_i = \{ j \le i : x_{j-1} = x_i \}

    All earlier occurrences count. Only rows whose token occurred before have targets. Key :math:`j` is a target only if
    query :math:`j` can see the token before it: the token before the first one may be padding or in another document.

    ::

        >>> tokens = torch.arange(25).repeat(2, 2)  # two sequences, each a passage repeated once
        >>> weights = torch.randn(2, 8, 50, 50).softmax(-1)
        >>> induction_score(weights, tokens[:, None, :]).shape  # (2, 1, 50): a head axis of size 1
        torch.Size([2, 8])

    Args:
        tokens: the tokens :math:`x`; ``(batch, 1, n)`` if the weights have a head axis.

    Raises:
        ValueError: as :func:`previous_token_score`, and if the tokens are not integers that fit the weights.

    .. [1] Olsson et al., *In-context Learning and Induction Heads*, 2022. arXiv:2209.11895.
    """
    visible = _visible_keys(weights, mask)
    _check_tokens(tokens, weights)
    after_same_token = tokens[..., :, None] == tokens.roll(1, dims=-1)[..., None, :]
    follows = visible.diagonal(-1, dim1=-2, dim2=-1)  # whether the token before is visible, of tokens 1, 2, ...
    follows = torch.cat([torch.zeros_like(visible[..., 0, :1]), follows], dim=-1)  # none before the first one
    targets = after_same_token & follows[..., None, :] & (_offsets(weights) >= 0)
    return _share_above_chance(weights, targets, visible)


def diffuse_score(
    weights: Float[Tensor, "*batch n n"], mask: Bool[Tensor, "*#batch #n #n"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return the share of weight that is spread uniformly over all visible keys.

    .. math:: \frac{\sum_i \left(\sum_{j \in V_i} \min(a_{ij}, 1/|V_i|) - 1/|V_i|\right)}{\sum_i (1 - 1/|V_i|)}

    A uniform row scores 1, a row with a single key 0, and a row with :math:`k` equal weights
    :math:`(k - 1) / (|V_i| - 1)`. Every row of every head is scored separately: the average of several heads that
    attend to one key each may look diffuse, but none of them is.

    ::

        >>> diffuse_score(torch.full((2, 8, 50, 50), 1 / 50)).shape
        torch.Size([2, 8])

    Raises:
        ValueError: as :func:`previous_token_score`.
    """
    visible = _visible_keys(weights, mask)
    chance = 1 / visible.sum(dim=-1).clamp_min(1).to(promote_half(weights))
    overlap = torch.minimum(promote_half(weights), chance[..., None]).sum(dim=-1)
    gained = (overlap - chance) * visible.any(dim=-1)
    return _quotient(gained.sum(dim=-1), (1 - chance).sum(dim=-1)).to(weights.dtype)


# --- classification -------------------------------------------------------------------------------------------------


class Classification(NamedTuple):
    """The name of each head's pattern, over ``(*batch)``, and the scores that decided it."""

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
    """Classify each head by the pattern with the largest score, or as ``"other"`` if no score reaches the threshold.

    The class "other" contains mixtures without a majority and heads that attend by content. To classify heads over
    several sequences, average the scores and not the weights:
    ``pattern_names({name: score.nanmean(0) for name, score in ...})``.

    ::

        >>> back = torch.eye(50).roll(-1, dims=-1)  # each token attends to the previous one, the first to itself
        >>> back[0] = torch.eye(50)[0]
        >>> heads = torch.stack([torch.eye(50), back])
        >>> classify(heads).names
        array(['diagonal', 'previous_token'], dtype='<U14')

    Args:
        tokens: needed for the induction score; without tokens induction heads are classified as "other".
        mask: the visible keys, see the module.
        window: of :func:`local_score`.
        threshold: the smallest score that gives a head the name of a pattern.

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
    """Return the scores of all patterns by name; the induction score only if ``tokens`` are given.

    ::

        >>> scores = pattern_scores(torch.eye(50).expand(2, 8, 50, 50))
        >>> [*scores], scores["sink"].shape
        (['previous_token', 'diagonal', 'local', 'sink', 'diffuse'], torch.Size([2, 8]))

    Raises:
        ValueError: as :func:`local_score` and :func:`induction_score`.
    """
    scores = {
        "previous_token": previous_token_score(weights, mask),
        "diagonal": diagonal_score(weights, mask),
        "local": local_score(weights, mask, window=window),
        "sink": sink_score(weights, mask),
        "diffuse": diffuse_score(weights, mask),
    }
    return scores if tokens is None else scores | {"induction": induction_score(weights, tokens, mask)}


def pattern_names(scores: Mapping[str, Float[Tensor, "*batch"]], *, threshold: float = 0.5) -> np.ndarray:
    """Return the name of each head's largest score, or ``"other"`` if it is below the threshold; ``NaN`` never counts.

    ::

        >>> pattern_names({"sink": torch.tensor([0.9, 0.2]), "local": torch.tensor([0.1, 0.3])})
        array(['sink', 'other'], dtype='<U5')

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


def _share_above_chance(weights: Tensor, target: Tensor, visible: Tensor) -> Tensor:
    """Return the weight on the targets above the chance level, relative to the largest possible value."""
    exact, target = promote_half(weights), target & visible
    n_targets = target.sum(dim=-1)
    chance = n_targets / visible.sum(dim=-1).clamp_min(1).to(exact)
    has_target = n_targets > 0
    gained = ((exact * target).sum(dim=-1) - chance) * has_target
    possible = (1 - chance) * has_target
    return _quotient(gained.sum(dim=-1), possible.sum(dim=-1)).to(weights.dtype)


def _quotient(gained: Tensor, possible: Tensor) -> Tensor:
    """Return the score, ``NaN`` if none is possible, even where rounding leaves something of ``gained``."""
    return torch.where(possible > 0, gained / possible, torch.nan).clamp(0.0, 1.0)


def _evenness(weights: Tensor, visible: Tensor, window: int) -> Tensor:
    """Return how evenly the weight in the window is spread over distances: 0 for one distance, 1 for equal shares."""
    n = weights.shape[-1]
    distances = torch.arange(1 - window, window, device=weights.device)
    keys = torch.arange(n, device=weights.device)[:, None] - distances
    inside, keys = (keys >= 0) & (keys < n), keys.clamp(0, n - 1).expand(*weights.shape[:-1], -1)
    seen = visible.gather(-1, keys) & inside  # (*batch, n, distances)
    possible = seen.any(dim=-2, keepdim=True)
    sees_all = (seen | ~possible).all(dim=-1, keepdim=True)
    profile = (promote_half(weights).gather(-1, keys) * (seen & sees_all)).sum(dim=-2)
    profile = profile / profile.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(profile.dtype).tiny)
    uniform = 1 / possible.sum(dim=-1).to(profile)
    return (torch.minimum(profile, uniform).sum(dim=-1) - uniform.squeeze(-1)) / (1 - uniform.squeeze(-1))


def _offsets(weights: Tensor) -> Tensor:
    """Return the offset ``i - j`` of every query ``i`` and key ``j``."""
    positions = torch.arange(weights.shape[-1], device=weights.device)
    return positions[:, None] - positions


def _visible_keys(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Validate the weights and the mask, and return the mask of the keys visible to each query."""
    check_floating(weights=weights)
    if mask is None:
        check_row_stochastic("weights", weights)
    else:
        check_mask(mask, weights)
        sees_no_key = ~mask.any(dim=-1, keepdim=True)
        # Such a row must be zero; uniform weights, in the type of the others, make its sum one for the check.
        check_row_stochastic("weights", weights + sees_no_key.to(weights.dtype) / weights.shape[-1])
    if weights.shape[-2] != weights.shape[-1]:
        raise ValueError(f"weights must be square, over (*batch, n, n), got {tuple(weights.shape)}")
    if mask is None:
        future = _offsets(weights) < 0
        uses_future = (weights * future != 0).flatten().any()
        mask = ~future | uses_future
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
