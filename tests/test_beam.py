"""With beams enough nothing is lost, one beam is greedy, and a sum says what the model says of the text."""

from itertools import product

import pytest
import torch
from test_generation import beginnings
from test_gpt import CONTEXT, FLAVOURS, V, config_of
from torch.testing import assert_close

from lessons_lib.beam import beam_search
from lessons_lib.generation import generate
from lessons_lib.gpt import GPT

B, N, NEW, BEAMS = 3, 4, 6, 5
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def log_probability(model: GPT, text: torch.Tensor, n: int) -> torch.Tensor:
    """Of what stands behind the first ``n`` tokens, by one look at the whole text."""
    step = model(text)[:, n - 1 : -1].log_softmax(-1)
    return step.gather(-1, text[:, n:, None])[..., 0].sum(-1)


@each_flavour
def test_a_cache_changes_no_beam(flavour):
    model, tokens = beginnings(flavour)
    texts, sums = beam_search(model, tokens, NEW, n_beams=BEAMS)
    without = beam_search(model, tokens, NEW, n_beams=BEAMS, use_cache=False)
    assert torch.equal(texts, without.tokens)
    assert_close(sums, without.log_probability)
    assert texts.shape == (B, BEAMS, N + NEW)
    assert torch.equal(texts[:, :, :N], tokens[:, None].expand(B, BEAMS, N))


@each_flavour
@torch.no_grad()
def test_the_sum_is_what_the_model_says_of_the_text(flavour):
    model, tokens = beginnings(flavour)
    texts, sums = beam_search(model, tokens, NEW, n_beams=BEAMS)
    assert_close(log_probability(model, texts.flatten(0, 1), N).reshape(B, BEAMS), sums)
    assert (sums.diff() <= 0).all(), "the best first"
    assert all(len({tuple(text) for text in row.tolist()}) == BEAMS for row in texts), "no text twice"


@each_flavour
def test_one_beam_is_greedy(flavour):
    model, tokens = beginnings(flavour)
    assert torch.equal(
        beam_search(model, tokens, NEW, n_beams=1).tokens[:, 0], generate(model, tokens, NEW, temperature=0)
    )


@torch.no_grad()
def test_with_beams_enough_the_best_of_all_texts_is_found():
    model, tokens = beginnings("llama")
    texts, sums = beam_search(model, tokens, 3, n_beams=V**2)
    for row, found, total in zip(tokens, texts, sums, strict=True):
        ends = torch.tensor(list(product(range(V), repeat=3)))
        every = torch.cat([row.expand(len(ends), N), ends], dim=1)
        chance = log_probability(model, every, N)
        assert torch.equal(found[0], every[chance.argmax()])
        assert_close(total[0], chance.max())


def test_a_beam_finds_what_greed_misses():
    """The first word that is likelier leads to a text that is not: of 40 beginnings one at least shows it."""
    model, _ = beginnings("llama")
    tokens = torch.randint(V, (40, N))
    greedy, wide = (beam_search(model, tokens, 3, n_beams=n).log_probability[:, 0] for n in (1, V**2))
    assert (wide >= greedy - 1e-9).all()
    assert (wide > greedy + 0.01).any()


def test_there_are_fewer_beams_than_asked_for_only_until_there_are_texts_enough():
    model, tokens = beginnings("gpt2")
    texts, sums = beam_search(model, tokens, 2, n_beams=V**2)
    assert texts.shape == (B, V**2, N + 2)
    assert_close(sums.exp().sum(-1), torch.ones(B))  # all texts of two tokens, each once
    assert all(len({tuple(text) for text in row.tolist()}) == V**2 for row in texts)


def test_rows_are_searched_each_by_itself():
    model, tokens = beginnings("llama")
    together = beam_search(model, tokens, NEW, n_beams=BEAMS).tokens
    for row, found in zip(tokens, together, strict=True):
        assert torch.equal(beam_search(model, row[None], NEW, n_beams=BEAMS).tokens[0], found)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model, tokens = GPT(config_of("gpt2", dropout=0.5)).train(training), torch.randint(V, (B, N))
    found = [beam_search(model, tokens, NEW, n_beams=BEAMS).tokens for _ in range(2)]
    assert torch.equal(*found), "no dropout while it searches"
    assert model.training is training


# --- bad input ------------------------------------------------------------------------------------------------------

START = torch.zeros(B, N, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("flavour", "given", "message"),
    [
        ("gpt2", {"tokens": START[0]}, r"tokens must be \(b, n\), and hold something to continue, got \(4,\)"),
        ("gpt2", {"tokens": START[:, :0]}, r"hold something to continue, got \(3, 0\)"),
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
def test_what_makes_no_sense_is_refused(flavour, given, message):
    with pytest.raises(ValueError, match=message):
        beam_search(GPT(config_of(flavour)), **{"tokens": START, "n_new": NEW, "n_beams": 2} | given)


# --- tests that must fail -------------------------------------------------------------------------------------------


def test_a_cache_whose_rows_stay_where_they_were_is_caught(monkeypatch):
    """Beams change places; keys and values that do not follow belong to other texts."""

    def stays(cache, rows):
        if cache.kept[0].shape[0] != len(rows):
            cache._buffer = tuple(kept.repeat_interleave(len(rows) // kept.shape[0], 0) for kept in cache.kept)

    monkeypatch.setattr("lessons_lib.multihead.KVCache.pick", stays)
    with pytest.raises(AssertionError):
        test_a_cache_changes_no_beam("llama")
