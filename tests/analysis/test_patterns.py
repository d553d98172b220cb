"""Tests of the pattern scores on ideal patterns, on mixtures and under masks, and of the classification of heads."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lessons_lib.analysis.patterns import (
    classify,
    diagonal_score,
    diffuse_score,
    induction_score,
    local_score,
    pattern_names,
    pattern_scores,
    previous_token_score,
    sink_score,
)
from lessons_lib.attention import masks

N, WINDOW = 41, 4
NAMES = ["previous_token", "diagonal", "local", "sink", "induction", "diffuse"]


def random_tokens(n=N, *, vocabulary=11, seed=0):
    return torch.randint(vocabulary, (n,), generator=torch.Generator().manual_seed(seed))


def ideal(name, tokens, *, causal=True):
    """Rows uniform over their targets, or over all visible keys if the row has no target."""
    n = len(tokens)
    visible = masks.causal(n) if causal else masks.bidirectional(n)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    words = tokens.tolist()
    after_same_token = torch.tensor(
        [[0 < key <= row and words[key - 1] == words[row] for key in range(n)] for row in range(n)]
    )
    targets = {
        "previous_token": j == i - 1,
        "diagonal": j == i,
        "local": (i - j).abs() < WINDOW,
        "sink": (j == 0).expand(n, n),
        "induction": after_same_token,
        "diffuse": visible,
    }
    visible_targets = targets[name] & visible
    allowed = torch.where(visible_targets.any(-1, keepdim=True), visible_targets, visible).double()
    return allowed / allowed.sum(-1, keepdim=True)


def mixture(shares, tokens, *, causal=True):
    return sum(share * ideal(name, tokens, causal=causal) for name, share in shares.items())


def mixtures(shares, tokens, *, causal):
    """One head for each row of shares, whose columns are in the order of ``NAMES``."""
    ideals = torch.stack([ideal(name, tokens, causal=causal) for name in NAMES])
    return torch.einsum("h p, p n m -> h n m", shares, ideals)


# --- ideals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("name", NAMES)
def test_pattern_scores_are_one_on_their_ideal_pattern_and_low_on_others(name, causal):
    tokens = random_tokens()
    weights = ideal(name, tokens, causal=causal)
    scores = pattern_scores(weights, tokens)
    assert sorted(scores) == sorted(NAMES)
    # The other scores are not zero: a quarter of a local head's weight is on the query's own token, and an induction
    # head is uniform in rows whose token is new.
    assert_close(scores.pop(name), torch.tensor(1.0))
    assert all(score < 0.3 for score in scores.values()), scores
    assert classify(weights, tokens).names == name


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("n", [8, 13, 64, 131])
def test_classify_does_not_depend_on_sequence_length(n, causal):
    """A threshold on weights instead of scores would depend on the length."""
    tokens = random_tokens(n, vocabulary=3)
    for name in NAMES:
        assert classify(ideal(name, tokens, causal=causal), tokens).names == name


# --- mixtures: a score is a share -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("name", ["previous_token", "diagonal", "local", "sink", "induction"])
def test_pattern_scores_of_a_mixture_with_uniform_weights_are_its_share(name, causal):
    tokens, shares = random_tokens(), torch.linspace(0, 1, 11)
    mask = masks.causal(N) if causal else masks.bidirectional(N)
    heads = torch.stack([mixture({name: share, "diffuse": 1 - share}, tokens, causal=causal) for share in shares])
    assert_close(pattern_scores(heads, tokens, mask)[name], shares)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_pattern_scores_of_a_mixture_are_nearly_linear(causal):
    tokens = random_tokens(97, vocabulary=31)
    shares = torch.distributions.Dirichlet(torch.full((6,), 0.5)).sample((211,))
    of_parts = pattern_scores(mixtures(torch.eye(6), tokens, causal=causal), tokens)
    of_mixtures = pattern_scores(mixtures(shares, tokens, causal=causal), tokens)
    for name in NAMES:
        error = of_mixtures[name] - shares @ of_parts[name]
        # Measured up to 0.13 and 0.30: a mixture over several keys or distances is partly diffuse or local.
        above = {"diffuse": 0.15, "local": 0.33}.get(name, 1e-12)
        # Measured -0.07: a part below the chance level scores 0 alone, but lowers the score of a mixture.
        assert error.min() > -0.08, name
        assert error.max() < above, name


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("name", NAMES)
def test_classify_returns_the_majority_pattern(name, causal):
    tokens = random_tokens(97, vocabulary=31)
    shares = torch.distributions.Dirichlet(torch.full((6,), 0.5)).sample((53,))
    shares *= 0.35
    shares[:, NAMES.index(name)] += 0.65
    assert (classify(mixtures(shares, tokens, causal=causal), tokens).names == name).all()


def test_classify_without_majority_is_other():
    tokens = random_tokens()
    shares = {"previous_token": 0.4, "sink": 0.3, "induction": 0.3}
    assert classify(mixture(shares, tokens), tokens).names == "other"
    assert classify(mixture(shares, tokens), tokens, threshold=0.35).names == "previous_token"


# --- difficult heads ----------------------------------------------------------------------------------------------


def test_classify_uniform_causal_attention_is_diffuse():
    assert classify(torch.ones(N, N).tril() / torch.arange(1, N + 1)[:, None]).names == "diffuse"


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_classify_decaying_band_is_local(causal):
    distances = (torch.arange(N)[:, None] - torch.arange(N)).abs()
    scores = (-distances / 2).masked_fill(~(masks.causal(N) if causal else masks.bidirectional(N)), -torch.inf)
    assert classify(scores.softmax(-1)).names == "local"


def test_classify_one_random_near_key_per_row_is_local():
    keys = (torch.arange(257) - torch.randint(WINDOW, (257,))).clamp_min(0)
    assert classify(torch.eye(257)[keys]).names == "local"


def test_local_score_ignores_rows_without_all_distances():
    """Only rows at the ends attend nearby, and these rows lack some distances, so they do not count."""
    keys = torch.tensor([0, 1, 2, 7, 0, 5, 6, 7])
    assert local_score(torch.eye(8)[keys]) == 0


def test_local_score_of_a_fixed_offset_is_zero():
    for step in range(WINDOW):
        keys = (torch.arange(N) - step).clamp_min(0)
        assert local_score(torch.eye(N)[keys]) == 0


def test_diffuse_score_is_computed_for_each_head_separately():
    keys = torch.stack([torch.randint(i + 1, (257,)) for i in range(N)], dim=-1)
    weights = torch.eye(N)[keys]
    assert weights.mean(0)[-1].max() < 0.06
    assert (diffuse_score(weights) == 0).all()
    assert (classify(weights).names == "other").all()


def test_classify_soft_sink_is_sink():
    weights = 0.3 * torch.randn(N, N).masked_fill(~masks.causal(N), -torch.inf).softmax(-1)
    weights[:, 0] += 0.7
    assert classify(weights).names == "sink"


# --- masks ----------------------------------------------------------------------------------------------------------


def test_mask_sets_the_chance_level():
    """Uniform attention within the window is the chance level of a windowed head."""
    mask = masks.sliding_window(N, 7)
    weights = mask / mask.sum(-1, keepdim=True)
    assert_close(diffuse_score(weights, mask), torch.tensor(1.0))
    assert_close(previous_token_score(weights, mask), torch.tensor(0.0))
    assert diffuse_score(weights) < 0.5  # without the mask it counts as a causal head with more visible keys


def test_rows_with_one_visible_key_do_not_count():
    mask = masks.causal(N) & (torch.arange(N)[:, None] > 30) | torch.eye(N, dtype=torch.bool)
    weights = torch.where(torch.arange(N)[:, None] > 30, ideal("sink", random_tokens()), torch.eye(N))
    assert_close(sink_score(weights, mask), torch.tensor(1.0))
    assert_close(diagonal_score(weights, mask), torch.tensor(0.0))


def test_local_score_is_nan_if_the_window_is_all_that_is_visible():
    """Also where the weights of a row add up to one only up to rounding."""
    weights = torch.rand(211, 4, 4).masked_fill(~masks.causal(4), 0.0)
    assert local_score(weights / weights.sum(-1, keepdim=True), window=4).isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_padding_on_the_left_does_not_change_a_score(name):
    """Padding may hold any token, also the one that an induction head looks for."""
    tokens = random_tokens()
    padded = torch.cat([tokens[-1:].expand(3), tokens])
    mask = torch.nn.functional.pad(masks.causal(N), (3, 0, 3, 0))
    weights = torch.nn.functional.pad(0.6 * ideal(name, tokens) + 0.4 * ideal("diffuse", tokens), (3, 0, 3, 0))
    alone = pattern_scores(weights[3:, 3:], tokens, masks.causal(N))
    for each, score in pattern_scores(weights, padded, mask).items():
        assert_close(score, alone[each])


def test_induction_score_does_not_match_across_documents():
    """The 6 of the second document follows a 5 of the first one, which it cannot see."""
    tokens, ids = torch.tensor([7, 5, 6, 5, 6]), torch.tensor([0, 0, 1, 1, 1])
    mask = masks.causal(5) & (ids[:, None] == ids)
    weights = mask / mask.sum(-1, keepdim=True)
    assert induction_score(weights, tokens, mask).item() == pytest.approx(0.0)
    weights[4] = torch.eye(5)[3]
    assert_close(induction_score(weights, tokens, mask), torch.tensor(1.0))


def test_pattern_scores_are_nan_if_the_pattern_cannot_occur():
    weights = ideal("diffuse", torch.arange(3))
    assert induction_score(weights, torch.arange(3)).isnan()  # no token occurs twice
    assert local_score(weights, window=3).isnan()  # the window is all there is
    assert classify(weights, torch.arange(3)).names == "diffuse"
    assert all(score.isnan() for score in pattern_scores(torch.ones(1, 1)).values())
    assert classify(torch.ones(1, 1)).names == "other"


def test_induction_score_counts_all_earlier_occurrences_only():
    tokens = torch.tensor([5, 7, 5, 8, 5])
    # The last 5 occurred before at 0 and 2, so its targets are 1 and 3. The middle 5 occurred at 0; its target is 1.
    weights = torch.eye(5)
    weights[2], weights[4] = torch.eye(5)[1], torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert_close(induction_score(weights, tokens), torch.tensor(1.0))
    weights[2] = torch.eye(5)[3]  # the token after the current 5, not after an earlier one
    assert induction_score(weights, tokens, masks.bidirectional(5)) < 0.5


def test_induction_score_of_a_repeated_token_targets_itself():
    assert_close(induction_score(torch.eye(3), torch.tensor([4, 4, 4])), torch.tensor(1.0))


# --- axes and types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_pattern_scores_of_a_batch_equal_single_heads(batch):
    weights = torch.randn(*batch, 13, 13).masked_fill(~masks.causal(13), -torch.inf).softmax(-1)
    tokens = torch.randint(3, (*batch[:1], *[1] * len(batch[1:]), 13))
    found = classify(weights, tokens)
    assert isinstance(found.names, np.ndarray)
    assert found.names.shape == batch
    for index in np.ndindex(batch):
        own_tokens = tokens.expand(*batch, 13)[index]
        for name, score in pattern_scores(weights[index], own_tokens).items():
            assert_close(found.scores[name][index], score)


def test_pattern_names_of_scores_averaged_over_sequences():
    tokens = torch.stack([random_tokens(seed=1), torch.arange(N)])  # no token recurs in the second sequence
    heads = torch.stack([torch.stack([ideal(name, row) for name in NAMES]) for row in tokens])
    scores = pattern_scores(heads, tokens[:, None, :])
    assert scores["induction"][1].isnan().all()
    assert pattern_names({name: score.nanmean(0) for name, score in scores.items()}).tolist() == NAMES


def test_classify_without_tokens_omits_induction():
    found = classify(ideal("induction", random_tokens()))
    assert "induction" not in found.scores
    assert found.names == "other"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_float32_and_returned_in_its_type(dtype):
    tokens = random_tokens()
    weights = mixture({"sink": 0.6, "local": 0.4}, tokens).to(dtype)
    single = weights.float() / weights.float().sum(-1, keepdim=True)
    for name, score in pattern_scores(weights, tokens).items():
        assert score.dtype == dtype
        eps = torch.finfo(dtype).eps
        assert_close(score.float(), pattern_scores(single, tokens)[name], rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_mask_leaves_the_tolerance_of_the_weights_type(dtype):
    """With a mask, rows are held to the type of the weights, also rows of padding, whose sum is filled up to one."""
    torch.manual_seed(0)
    alone = torch.randn(8, N, N).masked_fill(~masks.causal(N), -torch.inf).softmax(-1, dtype=torch.float64).to(dtype)
    weights = torch.nn.functional.pad(alone, (3, 0, 3, 0))  # three tokens of padding
    mask = torch.nn.functional.pad(masks.causal(N), (3, 0, 3, 0))
    tokens = random_tokens()
    padded = torch.cat([torch.zeros(3, dtype=tokens.dtype), tokens])
    for name, score in pattern_scores(weights, padded, mask).items():
        assert score.dtype == dtype
        assert_close(score, pattern_scores(alone, tokens)[name])


@pytest.mark.rejects
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_beyond_the_tolerance_of_their_type_raise_under_a_mask(dtype):
    weights = torch.eye(3, dtype=dtype) * (1 + 2 * torch.finfo(dtype).eps ** (2 / 3))
    with pytest.raises(ValueError, match="weights must be row-stochastic"):
        diagonal_score(weights, masks.causal(3))


# --- errors ---------------------------------------------------------------------------------------------------------

DETECTORS = [
    previous_token_score,
    diagonal_score,
    local_score,
    sink_score,
    diffuse_score,
    lambda weights, mask=None: classify(weights, mask=mask),
]


@pytest.mark.rejects
@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize(
    ("weights", "mask", "message"),
    [
        (torch.full((3, 3), 0.5), None, r"weights must be row-stochastic: every row must sum to one"),
        (torch.full((3, 4), 0.25), None, r"weights must be square, over \(\*batch, n, n\), got \(3, 4\)"),
        (torch.eye(3), torch.ones(3, 3), r"mask must be Boolean"),
        (torch.eye(3), torch.ones(2, 3, 3, dtype=torch.bool), r"mask must broadcast to the scores"),
        (torch.eye(3), ~torch.eye(3, dtype=torch.bool), "mask must allow every key that has weight"),
        (torch.eye(3), torch.eye(3).bool() & (torch.arange(3) > 0), r"every row must sum to one"),
    ],
    ids=["rows", "square", "mask type", "mask shape", "mask of another model", "row that sees no key"],
)
def test_invalid_weights_or_masks_raise(detector, weights, mask, message):
    with pytest.raises(ValueError, match=message):
        detector(weights, mask)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(3), r"tokens must be integers, got torch\.float"),
        (torch.zeros(4, dtype=torch.int64), r"one for each row of the weights and broadcast to \(3,\), got \(4,\)"),
        (torch.zeros(2, 3, dtype=torch.int64), r"\(batch, n\) becomes \(batch, 1, n\)"),
        (torch.tensor(1), r"got \(\)"),
    ],
)
def test_induction_score_invalid_tokens_raise(tokens, message):
    with pytest.raises(ValueError, match=message):
        induction_score(torch.eye(3), tokens)


@pytest.mark.rejects
def test_invalid_settings_raise():
    with pytest.raises(ValueError, match="window must be at least 2, got 1"):
        local_score(torch.eye(3), window=1)
    with pytest.raises(ValueError, match=r"threshold must be in \(0, 1\], got 0\.0"):
        classify(torch.eye(3), threshold=0.0)
    with pytest.raises(ValueError, match="scores must hold at least one pattern, got none"):
        pattern_names({})


# --- wrong implementations ------------------------------------------------------------------------------------------


def mean_weight_on(step):
    return lambda weights: weights.diagonal(-step).mean()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(mean_weight_on(1), id="ignores the chance level"),
        pytest.param(lambda weights: previous_token_score(weights, masks.bidirectional(N)), id="ignores the mask"),
        pytest.param(lambda weights: diagonal_score(weights), id="is off by one"),
        pytest.param(lambda weights: (weights > 0.1).double().mean(), id="counts large weights"),
    ],
)
def test_mixture_with_uniform_weights_catches_wrong_scores(wrong):
    tokens = random_tokens()
    weights = mixture({"previous_token": 0.5, "diffuse": 0.5}, tokens)
    assert previous_token_score(weights).item() == pytest.approx(0.5)
    assert wrong(weights).item() != pytest.approx(0.5, abs=1e-3)
