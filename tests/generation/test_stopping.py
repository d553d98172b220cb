"""Tests of ended rows in generate: the reference without an end, transformers, padding, and the stop callback."""

import pytest
import torch
from test_gpt import V
from test_sampling import CHOICES, NEW, B, N, model_and_prompts, seeded
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lessons_lib.generation import steps
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.stopping import count_new_tokens
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.huggingface import gpt_from_huggingface

LONG = 7  # up to the learned positions


def end_by_hand(text: torch.Tensor, n: int, ends: set[int], pad: int) -> torch.Tensor:
    """Pad each row after its first end token among the new ones, and cut what is padding in all rows."""
    rows = []
    for row in text.tolist():
        last = next((i for i, token in enumerate(row) if i >= n and token in ends), len(row) - 1)
        rows.append(row[: last + 1])
    longest = max(map(len, rows))
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows])


# --- end tokens -----------------------------------------------------------------------------------------------------


ENDS = {"3": (3, {3}), "[7, 2]": (7, {7, 2}), "{0, 11, 12}": (0, {0, 11, 12})}  # what is padded with, what ends


@pytest.mark.parametrize("flavour", ["gpt2", "llama"])
@pytest.mark.parametrize("choice", ["greedy", "drawn"])
@pytest.mark.parametrize("eos", [3, [7, 2], {0, 11, 12}], ids=str)
@pytest.mark.parametrize("pad", [None, -1])
def test_rows_end_at_their_end_token(flavour, choice, eos, pad):
    """Each row is the text without an end, cut after its first end token and padded; the other rows do not change."""
    model, tokens = model_and_prompts(flavour)
    whole = generate(model, tokens, LONG, generator=seeded(), **CHOICES[choice])
    text = generate(model, tokens, LONG, generator=seeded(), eos=eos, pad=pad, **CHOICES[choice])
    first, ends = ENDS[str(eos)]
    assert torch.equal(text, end_by_hand(whole, N, ends, first if pad is None else pad))


@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_ended_rows_agree_with_and_without_cache_padding_and_window(padded, use_cache, window):
    model, tokens = model_and_prompts("llama")
    settings = {"use_cache": use_cache, "window": window, "lengths": torch.tensor([N, 1, 2]) if padded else None}
    settings |= {"temperature": 3.0}
    whole = generate(model, tokens, LONG, generator=seeded(), **settings)
    text = generate(model, tokens, LONG, generator=seeded(), eos={1, 2, 3}, **settings)
    assert torch.equal(text, end_by_hand(whole, N, {1, 2, 3}, 1))


def test_generation_stops_when_all_rows_have_ended():
    model, tokens = model_and_prompts("gpt2")
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert generate(model, tokens, LONG, eos=range(V)).shape == (B, N + 1)
    assert len(calls) == 1
    assert torch.equal(generate(model, tokens, 0, eos=3), tokens)


def test_end_token_in_a_prompt_ends_nothing():
    model, tokens = model_and_prompts("gpt2")
    tokens[:] = 3
    whole = generate(model, tokens, LONG, temperature=0)
    assert torch.equal(generate(model, tokens, LONG, temperature=0, eos=3), end_by_hand(whole, N, {3}, 3))


@pytest.mark.parametrize("eos", [3, [7, 2]], ids=str)
def test_count_new_tokens_counts_up_to_the_end(eos):
    model, tokens = model_and_prompts("llama")
    text = generate(model, tokens.repeat(5, 1), LONG, temperature=3.0, eos=eos, pad=-1, generator=seeded())
    counts = count_new_tokens(text, N, eos)
    assert torch.equal(counts, (text[:, N:] >= 0).sum(-1))
    assert counts.unique().numel() > 2
    assert torch.equal(count_new_tokens(text.view(5, B, -1), N, eos), counts.view(5, B))
    assert count_new_tokens(tokens, N, eos).tolist() == [0] * B


# --- transformers ---------------------------------------------------------------------------------------------------

VOCABULARY = 29
SPECIAL = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
THEIRS = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SPECIAL, n_positions=64, n_embd=32, n_layer=2, n_head=4)),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SPECIAL,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    ),
}
each_model = pytest.mark.parametrize("kind", THEIRS)


def pair(kind: str, seed: int = 0) -> tuple[torch.nn.Module, GPT, torch.Tensor]:
    """Return a model of transformers in float32 with random weights, our copy of it, and prompts."""
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)  # the fixture restores it
    theirs = THEIRS[kind]()
    for parameter in theirs.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    theirs = theirs.eval()
    return theirs, gpt_from_huggingface(theirs), torch.randint(VOCABULARY, (4, 5))


def generated(theirs, tokens, **settings) -> torch.Tensor:
    settings = {"attention_mask": torch.ones_like(tokens), "do_sample": False} | settings
    return theirs.generate(tokens, **settings)


@each_model
@pytest.mark.parametrize("eos", [4, [11, 4, 20]], ids=str)
@pytest.mark.parametrize("pad", [None, 0])
def test_greedy_texts_with_end_tokens_equal_those_of_transformers(kind, eos, pad):
    theirs, ours, tokens = pair(kind)
    first = eos if isinstance(eos, int) else eos[0]
    expected = generated(
        theirs, tokens, max_new_tokens=20, eos_token_id=eos, pad_token_id=first if pad is None else pad
    )
    assert torch.equal(generate(ours, tokens, 20, temperature=0, eos=eos, pad=pad), expected)


@each_model
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.8, "top_k": 10, "top_p": 0.9}, {"temperature": 1.5, "min_p": 0.1}, {"repetition_penalty": 1.4}],
    ids=str,
)
def test_sampled_texts_with_one_seed_equal_those_of_transformers(kind, settings):
    theirs, ours, tokens = pair(kind)
    torch.manual_seed(5)
    defaults = {"top_k": 0, "max_new_tokens": 20, "eos_token_id": [4, 7], "pad_token_id": 4}
    expected = generated(theirs, tokens, do_sample=True, **defaults | settings)
    torch.manual_seed(5)
    assert torch.equal(generate(ours, tokens, 20, eos=[4, 7], **settings), expected)
    assert (count_new_tokens(expected, 5, [4, 7]) < 20).any()


@each_model
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_greedy_texts_with_repetition_penalty_equal_those_of_transformers(kind, padded):
    theirs, ours, tokens = pair(kind)
    lengths = torch.tensor([5, 2, 1, 4]) if padded else None
    real = (torch.arange(5) >= 5 - (torch.tensor([5] * 4) if lengths is None else lengths)[:, None]).long()
    settings = {"repetition_penalty": 1.7, "max_new_tokens": 20, "pad_token_id": 0}
    expected = generated(theirs, tokens, attention_mask=real, **settings)
    assert torch.equal(generate(ours, tokens, 20, temperature=0, repetition_penalty=1.7, lengths=lengths), expected)
    assert not torch.equal(generate(ours, tokens, 20, temperature=0, lengths=lengths), expected)


# --- the stop callback ----------------------------------------------------------------------------------------------


def test_stop_is_called_after_each_step_with_the_tokens_so_far():
    model, tokens = model_and_prompts("llama")
    whole, seen = generate(model, tokens, NEW, temperature=0), []
    generate(model, tokens, NEW, temperature=0, stop=lambda text: bool(seen.append(text)))
    assert [text.shape for text in seen] == [(B, N + i + 1) for i in range(NEW)]
    assert all(torch.equal(text, whole[:, : text.shape[1]]) for text in seen)


@pytest.mark.parametrize(
    "answer", [lambda yes: yes, lambda yes: torch.tensor(yes), lambda yes: torch.tensor([yes] * B)]
)
def test_stop_of_all_rows_ends_generation(answer):
    model, tokens = model_and_prompts("llama")
    text = generate(model, tokens, NEW, temperature=0, stop=lambda text: answer(text.shape[1] >= N + 2))
    assert torch.equal(text, generate(model, tokens, 2, temperature=0))


def test_stop_ends_single_rows_for_good():
    model, tokens = model_and_prompts("llama")
    whole = generate(model, tokens, NEW, temperature=0)
    ends = torch.tensor([2, NEW, 4])

    def once(text):
        return text.shape[1] - N == ends

    text = generate(model, tokens, NEW, temperature=0, stop=once, pad=-1)
    is_padding = torch.arange(NEW) >= ends[:, None]
    assert torch.equal(text[:, N:], whole[:, N:].masked_fill(is_padding, -1))
    both = generate(model, tokens, NEW, temperature=0, stop=once, eos=int(whole[1, N]), pad=-1)
    assert both.shape[1] <= N + 4
    assert both[1, N + 1 :].unique().tolist() == [-1]


# --- invalid arguments ----------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eos": V}, r"eos must be at most 12, got 13"),
        ({"eos": [1, -1]}, r"eos must be at least 0, got -1"),
        ({"eos": []}, r"eos must hold at least one token, got none"),
        ({"eos": "end"}, r"eos must be an integer or a collection of integers, got 'end'"),
        ({"eos": 1.0}, r"eos must be an integer or a collection"),
        ({"eos": [1.0]}, r"eos must be an integer, got 1.0"),
        ({"eos": True}, r"eos must be an integer, got True"),
        ({"eos": 1, "pad": V}, r"pad must be at most 12, got 13"),
        ({"eos": 1, "pad": -2}, r"pad must be at least -1, got -2"),
        ({"pad": 3}, r"pad must be None where no row ends early, got 3; give eos or stop"),
        ({"stop": lambda text: None}, r"stop must return a Boolean, or a Boolean tensor .* \(3,\), got None"),
        ({"stop": lambda text: text[0] > 3}, r"stop must return .* got torch.bool over \(5,\)"),
        ({"stop": lambda text: text[:, -1]}, r"stop must return .* got torch.int64 over \(3,\)"),
        ({"stop": lambda text: torch.arange(B) > 0}, r"pad must be given if stop ends some rows while others go on"),
    ],
)
def test_invalid_ends_raise(given, message):
    model, tokens = model_and_prompts("gpt2")
    with pytest.raises(ValueError, match=message):
        generate(model, tokens, 2, **given)


@pytest.mark.rejects
def test_count_new_tokens_with_invalid_arguments_raises():
    tokens = torch.zeros(2, 5, dtype=torch.long)
    for n, eos, message in ((6, 1, "n must be at most 5"), (2, None, "eos must be"), (2, [], "at least one token")):
        with pytest.raises(ValueError, match=message):
            count_new_tokens(tokens, n, eos)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


def test_tests_catch_rows_that_go_on_after_their_end(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "masked_fill", lambda x, mask, value: x)
    with pytest.raises(AssertionError):
        test_stop_ends_single_rows_for_good()


def test_tests_catch_a_stop_that_is_not_remembered(monkeypatch):
    """A row that the callback ended once must stay ended."""
    original, ended = steps._stopped, []

    def forgets(answer, has_ended):
        if ended:
            has_ended &= ~ended.pop()
        ended.append(original(answer, has_ended))
        return ended[-1]

    monkeypatch.setattr(steps, "_stopped", forgets)
    with pytest.raises(AssertionError):
        test_stop_ends_single_rows_for_good()
