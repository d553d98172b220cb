"""Tests of beam search: exhaustive search, greedy decoding, log-probabilities and caches."""

from functools import partial
from itertools import product

import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, V, config_of
from test_sampling import ONE_OF_EACH, model_and_prompts
from test_stopping import generated, pair
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.generation import beam
from lessons_lib.generation.beam import beam_search
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.stopping import count_new_tokens
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


@pytest.mark.parametrize("flavour", all_but(FLAVOURS, lambda flavour: flavour in (*ONE_OF_EACH, "gemma")))
@pytest.mark.parametrize("settings", [{"n_beams": BEAMS}, {"n_beams": V + 7, "eos": [2, 5, 7]}], ids=str)
def test_cache_size_changes_no_result(flavour, settings):
    """With more beams than tokens in the vocabulary the number of rows grows in two steps."""
    model, tokens = model_and_prompts(flavour)
    n_new = 10 - N  # "dynamic" was trained with 10 positions
    texts, sums = beam_search(model, tokens, n_new, **settings)
    for size in (n_new + N - 1, 10):
        fixed = beam_search(model, tokens, n_new, cache_size=size, **settings)
        assert torch.equal(fixed.tokens, texts)
        assert_close(fixed.log_probability, sums)


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


# --- ends and the length penalty ------------------------------------------------------------------------------------

PENALTIES = [0.0, 1.0, 2.0, -1.0]
ENDS = [11, 4, 20, 1, 7, 13, 26, 22]


def found_by_transformers(theirs, tokens, eos, *, n_beams, length_penalty, early_stopping, n_new=12):
    """Return the texts and scores of transformers, over ``(b, n_beams, ...)``."""
    found = generated(
        theirs,
        tokens,
        max_new_tokens=n_new,
        num_beams=n_beams,
        num_return_sequences=n_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        eos_token_id=eos,
        pad_token_id=None if eos is None else (eos if isinstance(eos, int) else eos[0]),
        return_dict_in_generate=True,
        output_scores=True,
    )
    return found.sequences.view(len(tokens), n_beams, -1), found.sequences_scores.view(len(tokens), n_beams)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize(
    ("n_beams", "eos"), all_but([(2, 4), (5, ENDS), (3, None), (4, [7])], lambda n, eos: n in (3, 5))
)
def test_texts_order_and_scores_equal_those_of_transformers(kind, length_penalty, n_beams, eos):
    theirs, ours, tokens = pair(kind)
    settings = {"n_beams": n_beams, "length_penalty": length_penalty}
    expected, scores = found_by_transformers(theirs, tokens, eos, early_stopping="never", **settings)
    texts, sums = beam_search(ours, tokens, 12, eos=eos, **settings)
    assert torch.equal(texts, expected)
    lengths = 12 if eos is None else count_new_tokens(texts, 5, eos)
    # Measured: at most 5e-7 of relative difference, since both sum in float32.
    assert_close(sums / lengths**length_penalty, scores, rtol=1e-5, atol=1e-5)
    assert n_beams != 5 or length_penalty > 0 or (lengths < 12).any(), "some texts end early"


def test_without_penalty_stopping_equals_the_default_of_transformers():
    theirs, ours, tokens = pair("llama")
    settings = {"n_beams": 3, "length_penalty": 0.0}
    expected, _ = found_by_transformers(theirs, tokens, [4, 11], early_stopping=False, **settings)
    assert torch.equal(beam_search(ours, tokens, 12, eos=[4, 11], **settings).tokens, expected)


@torch.no_grad()
@pytest.mark.parametrize("length_penalty", all_but(PENALTIES, lambda penalty: penalty == 2.0))
def test_enough_beams_find_the_best_text_with_an_end(length_penalty):
    """All texts of at most three tokens are scored by hand, and found with as many beams in the right order."""
    model, tokens = model_and_prompts("llama")
    row, others = tokens[:1], [0, 4, 6, 12]
    eos = set(range(V)) - set(others)
    expected = {}
    for sets in ([eos], [others, eos], [others, others, range(V)]):
        ends = list(product(*sets))
        every = torch.cat([row.expand(len(ends), N), torch.tensor(ends)], dim=1)
        expected |= dict(
            zip(ends, (log_probability(model, every, N) / len(sets) ** length_penalty).tolist(), strict=True)
        )
    found = beam_search(model, row, 3, n_beams=len(expected), length_penalty=length_penalty, eos=eos, pad=-1)
    texts = [tuple(token for token in text if token >= 0) for text in found.tokens[0, :, N:].tolist()]
    assert set(texts) == set(expected)
    scores = torch.tensor([expected[text] for text in texts])
    assert (scores.diff() <= 1e-9).all()
    assert_close(found.log_probability[0], scores * torch.tensor([len(text) for text in texts]) ** length_penalty)


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_stopping_early_changes_no_text(length_penalty, monkeypatch):
    model, tokens = model_and_prompts("llama")
    calls, settings = [], {"n_beams": 2, "length_penalty": length_penalty, "eos": [2, 5, 7, 9]}
    model.register_forward_hook(lambda *_: calls.append(1))
    texts, sums = beam_search(model, tokens, 30, **settings)
    n_calls = len(calls)
    monkeypatch.setattr(beam._Finished, "are_best", lambda *_: False)
    others, other_sums = beam_search(model, tokens, 30, **settings)
    assert torch.equal(texts, others)
    assert_close(sums, other_sums, rtol=0, atol=0)
    assert length_penalty > 0 or n_calls < 30


@pytest.mark.parametrize("use_cache", [True, False])
def test_one_beam_with_end_equals_greedy_decoding(use_cache):
    model, tokens = model_and_prompts("llama")
    for eos in range(0, V, 3):
        found = beam_search(model, tokens, NEW, n_beams=1, eos=eos, pad=-1, use_cache=use_cache).tokens[:, 0]
        assert torch.equal(found, generate(model, tokens, NEW, temperature=0, eos=eos, pad=-1))


def test_search_stops_when_every_token_ends_the_text():
    model, tokens = model_and_prompts("gpt2")
    assert beam_search(model, tokens, NEW, n_beams=BEAMS, eos=range(V)).tokens.shape == (B, BEAMS, N + 1)


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
        ("gpt2", {"n_beams": 14, "n_new": 5, "eos": range(V)}, r"at most 13, the number of texts of at most 5 tokens"),
        (
            "gpt2",
            {"n_beams": 26, "n_new": 2, "eos": range(1, V)},
            r"n_beams must be at most 25, the number of texts of",
        ),
        ("gpt2", {"length_penalty": float("nan")}, r"length_penalty must be finite, got nan"),
        ("gpt2", {"eos": V}, r"eos must be at most 12"),
        ("gpt2", {"pad": 0}, r"pad must be None where no text ends early, got 0; give eos"),
        ("dynamic", {"n_new": 9}, r"beyond 10 tokens dynamic rotary scaling .* use_cache must be False"),
        ("dynamic", {"cache_size": 11}, r"a cache must hold at most so many, got a FixedCache of 11"),
        ("gpt2", {"cache_size": 8}, r"cache_size must be at least 9: 4 tokens and n_new=6, the last of which is not c"),
        ("gpt2", {"cache_size": 9.0}, r"cache_size must be an integer"),
        ("gpt2", {"cache_size": 9, "use_cache": False}, r"cache_size must be None without a cache, got 9"),
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


@pytest.mark.parametrize("layers", [[0], [0, 1]], ids=str)
def test_cache_size_test_catches_layers_whose_rows_are_not_reordered(layers, monkeypatch):
    new_caches = GPT.new_caches

    def repeat_rows(cache, rows):
        cache.k, cache.v = (x.repeat_interleave(len(rows) // len(x), 0) for x in cache.tensors)

    def with_wrong_layers(model, size=None, **kwargs):
        caches = new_caches(model, size, **kwargs)
        for layer in layers if size else ():
            caches[layer].select = partial(repeat_rows, caches[layer])
        return caches

    monkeypatch.setattr(GPT, "new_caches", with_wrong_layers)
    with pytest.raises(AssertionError):
        test_cache_size_changes_no_result("llama", {"n_beams": BEAMS})


def overtaken(finished, sums, length, n_new, penalty):
    """Compare with the beams at their own length, as early_stopping=False does."""
    return ARE_BEST(finished, sums, length, length, penalty)


def enough(finished, *_):
    """Stop at ``n_beams`` finished texts, as early_stopping=True does."""
    return finished.are_texts.shape[1] >= finished.n_beams and bool(finished.are_texts.all())


def add_with_prompt_in_length(finished, texts, sums, scores, ends):
    ADD(finished, texts, sums, sums / texts.shape[-1], ends)


ARE_BEST, ADD = beam._Finished.are_best, beam._Finished.add
OTHER_RULES = {overtaken: "are_best", enough: "are_best", add_with_prompt_in_length: "add"}


@pytest.mark.parametrize("wrong", OTHER_RULES)
def test_comparison_with_transformers_catches_other_rules(wrong, monkeypatch):
    monkeypatch.setattr(beam._Finished, OTHER_RULES[wrong], wrong)
    with pytest.raises(AssertionError):
        test_texts_order_and_scores_equal_those_of_transformers("gpt2", 1.0, 2, ENDS)
