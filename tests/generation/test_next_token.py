"""Tests of min-p and the repetition penalty: their definitions, and the processors of transformers."""

from fractions import Fraction

import pytest
import torch
from test_gpt import V
from test_sampling import NEW, N, model_and_prompts, partitions, seeded
from torch.testing import assert_close
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lessons_lib.generation import next_token
from lessons_lib.generation.next_token import next_token_probs, penalise_repetition, top_k_top_p_mask
from lessons_lib.generation.sampling import generate

# --- min-p ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_precision")
def test_min_p_matches_exact_arithmetic_for_all_distributions_in_twentieths():
    """A token whose probability equals the threshold is kept."""
    twentieths = [row + (0,) * (20 - len(row)) for row in partitions(20, 20)]
    logits = (torch.tensor(twentieths) / 20).log()
    for numerator in range(1, 21):
        kept = top_k_top_p_mask(logits, min_p=numerator / 20)
        expected = [[Fraction(p, max(row)) >= Fraction(numerator, 20) for p in row] for row in twentieths]
        assert kept.tolist() == expected


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("min_p", [1e-9, 0.05, 0.4, 1.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (4, None), (None, 0.7), (6, 0.9)])
def test_probabilities_match_the_warpers_of_transformers(temperature, min_p, top_k, top_p):
    logits = 2 * torch.randn(50, V)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(TopPLogitsWarper(top_p))
    warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(torch.zeros(50, 1, dtype=torch.long), logits).softmax(-1)
    found = next_token_probs(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert_close(found, expected)
    assert torch.equal(found > 0, expected > 0)


def test_min_p_keeps_the_best_token_in_any_dtype():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        kept = top_k_top_p_mask(torch.randn(20, V).to(dtype), min_p=1.0)
        assert kept.any(dim=-1).all()


@pytest.mark.rejects
@pytest.mark.parametrize("min_p", [0.0, -0.1, 1.1, float("nan")])
def test_invalid_min_p_raises(min_p):
    with pytest.raises(ValueError, match=r"min_p must be in \(0, 1\], got"):
        top_k_top_p_mask(torch.zeros(V), min_p=min_p)


def threshold_without_best_token(logits, *, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """Compare with ``min_p`` alone, as epsilon sampling does."""
    return (logits / temperature).softmax(-1) >= min_p


def threshold_before_temperature(logits, *, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """Apply min-p to the probabilities at temperature 1."""
    return top_k_top_p_mask(logits, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.parametrize("wrong", [threshold_without_best_token, threshold_before_temperature])
def test_warper_test_catches_wrong_thresholds(wrong, monkeypatch):
    monkeypatch.setattr(next_token, "top_k_top_p_mask", wrong)
    with pytest.raises(AssertionError):
        test_probabilities_match_the_warpers_of_transformers(2.0, 0.4, None, None)


# --- repetition penalty ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3])
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_penalty_matches_the_processor_of_transformers(penalty, padded):
    logits, tokens = torch.randn(40, V), torch.randint(V, (40, 7))
    n_padding = torch.randint(7, (40,)) if padded else None
    expected = RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=n_padding)(tokens, logits)
    assert_close(penalise_repetition(logits, tokens, penalty, n_padding=n_padding), expected, rtol=0, atol=0)


def test_penalty_lowers_probability_of_seen_tokens_alone():
    logits = torch.randn(1, V)
    before = logits.softmax(-1)
    after = penalise_repetition(logits, torch.tensor([[3, 5, 3]]), 1.5).softmax(-1)
    is_seen = torch.zeros(1, V, dtype=torch.bool)
    is_seen[0, [3, 5]] = True
    assert (after[is_seen] < before[is_seen]).all()
    assert (after[~is_seen] > before[~is_seen]).all()
    assert_close(penalise_repetition(logits, torch.tensor([[5, 3]]), 1.5).softmax(-1), after)


def test_very_large_penalty_repeats_no_token():
    """The logits are made positive; the penalty then leaves a repeated token a logit of almost 0."""
    model, tokens = model_and_prompts("llama")
    model.head.register_forward_hook(lambda module, args, logits: logits.abs() + 1)
    text = generate(model, tokens, NEW, temperature=0, repetition_penalty=1e9)
    for row, prompt in zip(text.tolist(), tokens.tolist(), strict=True):
        assert len({*prompt, *row[N:]}) == len(set(prompt)) + NEW


@pytest.mark.parametrize("temperature", [0, 3.0])
@pytest.mark.parametrize("use_cache", [True, False])
def test_penalty_with_window_counts_the_tokens_in_it(temperature, use_cache):
    model, tokens = model_and_prompts("gpt2")
    settings = {"temperature": temperature, "repetition_penalty": 2.0}
    text = generate(model, tokens, NEW, window=3, use_cache=use_cache, generator=seeded(), **settings)
    expected, generator = tokens, seeded()
    for _ in range(NEW):
        part = generate(model, expected[:, -3:], 1, generator=generator, **settings)
        expected = torch.cat([expected, part[:, -1:]], dim=1)
    assert torch.equal(text, expected)


def test_penalty_of_left_padded_batch_ignores_padding():
    model, tokens = model_and_prompts("llama")
    lengths = torch.tensor([N, 1, N - 1])
    settings = {"temperature": 0, "repetition_penalty": 3.0}
    together = generate(model, tokens, NEW, lengths=lengths, **settings)
    for row, text, length in zip(tokens, together, lengths.tolist(), strict=True):
        assert torch.equal(text[N - length :], generate(model, row[None, N - length :], NEW, **settings)[0])


@pytest.mark.rejects
@pytest.mark.parametrize("penalty", [0, -1.0, float("nan"), float("inf")])
def test_invalid_penalty_raises(penalty):
    with pytest.raises(ValueError, match=r"penalty must be finite and above 0, got"):
        penalise_repetition(torch.zeros(1, V), torch.zeros(1, 2, dtype=torch.long), penalty)
    model, tokens = model_and_prompts("gpt2")
    with pytest.raises(ValueError, match=r"repetition_penalty must be finite and above 0, got"):
        generate(model, tokens, 1, repetition_penalty=penalty)


@pytest.mark.rejects
@pytest.mark.parametrize("token", [-1, V])
def test_penalty_of_token_outside_the_vocabulary_raises(token):
    with pytest.raises(ValueError, match=rf"tokens must be in 0 .. {V - 1}, got"):
        penalise_repetition(torch.zeros(1, V), torch.tensor([[token]]), 2.0)


def divides_every_logit(logits, tokens, penalty, *, n_padding=None):
    """Divide as the paper writes it, which makes tokens with negative logits more probable."""
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, tokens, True)
    return torch.where(seen, logits / penalty, logits)


def counts_padding(logits, tokens, penalty, *, n_padding=None):
    return next_token.penalise_repetition(logits, tokens, penalty)


def counts_each_occurrence(logits, tokens, penalty, *, n_padding=None):
    for column in tokens.split(1, dim=1):
        logits = next_token.penalise_repetition(logits, column, penalty)
    return logits


@pytest.mark.parametrize(
    ("wrong", "padded"), [(divides_every_logit, False), (counts_padding, True), (counts_each_occurrence, False)]
)
def test_processor_test_catches_wrong_penalties(wrong, padded, monkeypatch):
    monkeypatch.setitem(globals(), "penalise_repetition", wrong)
    with pytest.raises(AssertionError):
        test_penalty_matches_the_processor_of_transformers(1.3, padded)
