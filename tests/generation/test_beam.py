"""Tests of beam search: exhaustive search, greedy decoding, log-probabilities and caches."""

from itertools import product

import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, V, config_of
from test_sampling import model_and_prompts
from torch.testing import assert_close

from lessons_lib.generation.beam import beam_search
from lessons_lib.generation.sampling import generate
from lessons_lib.transformer.gpt import GPT

B, N, NEW, BEAMS = 3, 4, 6, 5
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def log_probability(model: GPT, text: torch.Tensor, n: int) -> torch.Tensor:
    """Return the log-probability of the tokens after the first ``n``, from one pass over the whole text."""
    step = model(text)[:, n - 1 : -1].log_softmax(-1)
    return step.gather(-1, text[:, n:, None])[..., 0].sum(-1)


@each_flavour
def test_beam_search_with_cache_equals_without(flavour):
    model, tokens = model_and_prompts(flavour)
    texts, sums = beam_search(model, tokens, NEW, n_beams=BEAMS)
    without = beam_search(model, tokens, NEW, n_beams=BEAMS, use_cache=False)
    assert torch.equal(texts, without.tokens)
    assert_close(sums, without.log_probability)
    assert texts.shape == (B, BEAMS, N + NEW)
    assert torch.equal(texts[:, :, :N], tokens[:, None].expand(B, BEAMS, N))


@each_flavour
@torch.no_grad()
def test_log_probability_matches_model_and_beams_are_sorted(flavour):
    model, tokens = model_and_prompts(flavour)
    texts, sums = beam_search(model, tokens, NEW, n_beams=BEAMS)
    assert_close(log_probability(model, texts.flatten(0, 1), N).reshape(B, BEAMS), sums)
    assert (sums.diff() <= 0).all(), "the most probable text comes first"
    assert all(len({tuple(text) for text in row.tolist()}) == BEAMS for row in texts), "all texts differ"


@each_flavour
def test_one_beam_equals_greedy_decoding(flavour):
    model, tokens = model_and_prompts(flavour)
    assert torch.equal(
        beam_search(model, tokens, NEW, n_beams=1).tokens[:, 0], generate(model, tokens, NEW, temperature=0)
    )


@torch.no_grad()
def test_enough_beams_find_the_most_probable_text():
    model, tokens = model_and_prompts("llama")
    texts, sums = beam_search(model, tokens, 3, n_beams=V**2)
    for row, found, total in zip(tokens, texts, sums, strict=True):
        ends = torch.tensor(list(product(range(V), repeat=3)))
        every = torch.cat([row.expand(len(ends), N), ends], dim=1)
        expected = log_probability(model, every, N)
        assert torch.equal(found[0], every[expected.argmax()])
        assert_close(total[0], expected.max())


def test_beam_search_finds_better_texts_than_greedy_decoding():
    """A more probable first token may lead to a less probable text: at least one of 40 prompts shows this."""
    model, _ = model_and_prompts("llama")
    tokens = torch.randint(V, (40, N))
    greedy, wide = (beam_search(model, tokens, 3, n_beams=n).log_probability[:, 0] for n in (1, V**2))
    assert (wide >= greedy - 1e-9).all()
    assert (wide > greedy + 0.01).any()


def test_number_of_beams_may_exceed_vocabulary_size():
    model, tokens = model_and_prompts("gpt2")
    texts, sums = beam_search(model, tokens, 2, n_beams=V**2)
    assert texts.shape == (B, V**2, N + 2)
    assert_close(sums.exp().sum(-1), torch.ones(B))  # all texts of two tokens, each once
    assert all(len({tuple(text) for text in row.tolist()}) == V**2 for row in texts)


def test_rows_are_independent():
    model, tokens = model_and_prompts("llama")
    together = beam_search(model, tokens, NEW, n_beams=BEAMS).tokens
    for row, found in zip(tokens, together, strict=True):
        assert torch.equal(beam_search(model, row[None], NEW, n_beams=BEAMS).tokens[0], found)


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored(training):
    model, tokens = GPT(config_of("gpt2", dropout=0.5)).train(training), torch.randint(V, (B, N))
    found = [beam_search(model, tokens, NEW, n_beams=BEAMS).tokens for _ in range(2)]
    assert torch.equal(*found), "dropout must be off during the search"
    assert model.training is training


# --- invalid arguments ----------------------------------------------------------------------------------------------

START = torch.zeros(B, N, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("flavour", "given", "message"),
    [
        ("gpt2", {"tokens": START[0]}, r"tokens must be \(b, n\) with at least one token to continue, got \(4,\)"),
        ("gpt2", {"tokens": START[:, :0]}, r"at least one token to continue, got \(3, 0\)"),
        ("gpt2", {"n_new": 0}, r"n_new must be at least 1, got 0"),
        ("gpt2", {"n_new": CONTEXT - N + 1}, r"n_new must be at most 7: 4 tokens and n_new must fit .* got 8"),
        ("gpt2", {"n_beams": 0}, r"n_beams must be at least 1, got 0"),
        ("gpt2", {"n_beams": 2.0}, r"n_beams must be an integer"),
        (
            "gpt2",
            {"n_new": 1, "n_beams": V + 1},
            r"n_beams must be at most 13, the number of texts of 1 tokens, got 14",
        ),
        ("dynamic", {"n_new": 9}, r"beyond 10 tokens dynamic rotary scaling .* use_cache must be False"),
    ],
)
def test_invalid_arguments_raise(flavour, given, message):
    with pytest.raises(ValueError, match=message):
        beam_search(GPT(config_of(flavour)), **{"tokens": START, "n_new": NEW, "n_beams": 2} | given)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


def test_cache_test_catches_rows_that_are_not_reordered(monkeypatch):
    """Beams are reordered; keys and values that are not reordered with them belong to other texts."""

    def select_without_reordering(cache, rows):
        if cache.tensors[0].shape[0] != len(rows):
            cache._buffer = tuple(kept.repeat_interleave(len(rows) // kept.shape[0], 0) for kept in cache.tensors)

    monkeypatch.setattr("lessons_lib.attention.cache.KVCache.select", select_without_reordering)
    with pytest.raises(AssertionError):
        test_beam_search_with_cache_equals_without("llama")
