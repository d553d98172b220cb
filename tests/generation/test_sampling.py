"""Tests of generate and of the restrictions on sampling: caches, left padding, windows, top-k and top-p."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, V, config_of
from test_multihead import flash
from thorough import all_but
from torch import nn
from torch.testing import assert_close

from lessons_lib.generation.beam import beam_search
from lessons_lib.generation.next_token import next_token_probs, top_k_top_p_mask
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.speculation import speculate
from lessons_lib.transformer.gpt import GPT

B, N, NEW = 3, 4, 6
ONE_OF_EACH = ("gpt2", "llama", "alibi", "2017")  # a model for each kind of positions

# Sampling settings. The model below has peaked distributions, so only a temperature above 1 gives random texts.
CHOICES = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 3.0},
    "top k": {"temperature": 3.0, "top_k": 5},
    "nucleus": {"temperature": 3.0, "top_p": 0.8},
    "both": {"temperature": 3.0, "top_k": 7, "top_p": 0.9},
}
each_choice = pytest.mark.parametrize("choice", CHOICES)


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_and_prompts(flavour: str) -> tuple[GPT, torch.Tensor]:
    """Return a model whose greedy texts do not repeat one token, and prompts for it."""
    model = GPT(config_of(flavour, tied=False))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.8)
    nn.init.normal_(model.embedding.weight, std=0.8 / model.embedding_scale)
    return model, torch.randint(V, (B, N))


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavour", "choice"),
    all_but(
        [(f, c) for f in FLAVOURS for c in CHOICES if f == "llama" or c in ("greedy", "both")],
        lambda flavour, choice: choice == "greedy" or flavour in ONE_OF_EACH,
    ),
)
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_generate_with_cache_equals_without(flavour, choice, padded):
    model, tokens = model_and_prompts(flavour)
    lengths = torch.tensor([N, 1, N - 1]) if padded else None
    with_cache, without = (
        generate(model, tokens, NEW, generator=seeded(), use_cache=use, lengths=lengths, **CHOICES[choice])
        for use in (True, False)
    )
    assert torch.equal(with_cache, without)
    assert with_cache.shape == (B, N + NEW)
    assert torch.equal(with_cache[:, :N], tokens)


@pytest.mark.parametrize(
    ("flavour", "use_cache"),
    all_but(
        [(flavour, use_cache) for flavour in FLAVOURS for use_cache in (True, False)],
        lambda flavour, use_cache: use_cache or flavour in ONE_OF_EACH,
    ),
)
def test_left_padded_batch_equals_its_rows_alone(flavour, use_cache):
    model, tokens = model_and_prompts(flavour)
    lengths = torch.tensor([N, 1, N - 1])
    together = generate(model, tokens, NEW, temperature=0, lengths=lengths, use_cache=use_cache)
    assert len(together[:, N:].unique()) > 2, "texts of one repeated token would hide mistakes"
    for row, text, length in zip(tokens, together, lengths.tolist(), strict=True):
        alone = generate(model, row[None, N - length :], NEW, temperature=0, use_cache=use_cache)
        assert torch.equal(text[N - length :], alone[0])
    is_padding = torch.arange(N) < N - lengths[:, None]
    other = generate(model, (tokens + is_padding) % V, NEW, temperature=0, lengths=lengths, use_cache=use_cache)
    assert torch.equal(other[:, N:], together[:, N:])


def test_greedy_decoding_takes_the_most_probable_token():
    model, tokens = model_and_prompts("llama")
    text = generate(model, tokens, NEW, temperature=0)
    assert torch.equal(text[:, N:], model(text)[:, N - 1 : -1].argmax(-1))


def test_low_temperature_top_k_1_and_tiny_top_p_are_greedy():
    model, tokens = model_and_prompts("gpt2")
    greedy = generate(model, tokens, NEW, temperature=0)
    for choice in ({"temperature": 1e-6}, {"temperature": 3.0, "top_k": 1}, {"temperature": 3.0, "top_p": 1e-9}):
        assert torch.equal(generate(model, tokens, NEW, **choice), greedy)
    assert torch.equal(generate(model, tokens, NEW, temperature=0, top_k=4, top_p=0.5), greedy)


def test_sample_frequencies_match_probabilities():
    model, tokens = model_and_prompts("gpt2")
    n = 5_000
    drawn = generate(model, tokens[:1].expand(n, N), 1, temperature=2.0, top_k=9, generator=seeded())[:, -1]
    logits = model(tokens[:1])[0, -1]
    kept = logits >= logits.sort().values[-9]
    p = (logits / 2.0).masked_fill(~kept, -torch.inf).softmax(-1)
    frequency = drawn.bincount(minlength=V) / n
    assert (frequency[~kept] == 0).all()
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()  # five standard errors


def test_samples_depend_only_on_the_generator():
    model, tokens = model_and_prompts("gpt2")
    before = torch.get_rng_state()
    first, again, other = (generate(model, tokens, NEW, temperature=3.0, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generate(model, tokens, NEW, temperature=0)
    assert torch.equal(torch.get_rng_state(), before), "greedy decoding must not draw random numbers"


@each_choice
def test_attention_implementations_generate_equal_texts(choice):
    model, tokens = model_and_prompts("llama")
    other = GPT(model.config, implementation=flash)
    other.load_state_dict(model.state_dict())
    lengths = torch.tensor([N, 2, 1])
    texts = [generate(m, tokens, NEW, generator=seeded(), lengths=lengths, **CHOICES[choice]) for m in (model, other)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("training", [True, False])
def test_module_modes_and_gradients_are_unchanged(training):
    model, tokens = GPT(config_of("gpt2", dropout=0.5)).train(training), torch.randint(V, (B, N))
    model.blocks[1].train(not training)
    modes = {name: module.training for name, module in model.named_modules()}
    texts = [generate(model, tokens, NEW, temperature=0) for _ in range(2)]
    assert torch.equal(*texts), "dropout must be off during generation"
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_training_mode_is_restored_after_an_error():
    model = GPT(config_of("gpt2"))
    with pytest.raises(ValueError, match="tokens must be in"):
        generate(model, torch.full((1, 2), V), 1)
    assert all(module.training for module in model.modules())


def test_n_new_zero_returns_the_prompt():
    model, tokens = model_and_prompts("gpt2")
    assert torch.equal(generate(model, tokens, 0), tokens)


def test_generate_may_use_all_learned_positions():
    model, tokens = model_and_prompts("gpt2")
    n_context = model.config.n_context
    assert generate(model, tokens, n_context - N).shape == (B, n_context)
    padded = torch.cat([torch.zeros(B, n_context, dtype=torch.long), tokens], dim=1)
    lengths = torch.full((B,), N)
    text = generate(model, padded, n_context - N, temperature=0, lengths=lengths)
    assert torch.equal(text[:, n_context:], generate(model, tokens, n_context - N, temperature=0))


def test_dynamic_scaling_without_cache_exceeds_trained_length():
    model, tokens = model_and_prompts("dynamic")
    text = generate(model, tokens, 9, temperature=0, use_cache=False)
    assert torch.equal(text[:, -1], model(text[:, :-1])[:, -1].argmax(-1))


# --- a window -------------------------------------------------------------------------------------------------------


def by_full_passes(model, tokens, n_new, window):
    """Generate by the definition: each token is the most probable one after the last ``window`` tokens alone."""
    for _ in range(n_new):
        following = model(tokens[:, -window:])[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


@pytest.mark.parametrize(
    ("flavour", "use_cache", "window"),
    all_but(  # windows shorter than the prompt, or reached during generation
        [(flavour, use, window) for flavour in FLAVOURS for use in (True, False) for window in (1, 3, 7)],
        lambda flavour, use_cache, window: flavour in ONE_OF_EACH or (use_cache and window == 3),
    ),
)
def test_window_equals_full_passes_over_the_last_tokens(flavour, use_cache, window):
    model, tokens = model_and_prompts(flavour)
    n_new = CONTEXT  # beyond the learned positions
    text = generate(model, tokens, n_new, temperature=0, use_cache=use_cache, window=window)
    assert torch.equal(text, by_full_passes(model, tokens, n_new, window))


@pytest.mark.parametrize("flavour", ONE_OF_EACH)
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("window", [2, 6])
def test_left_padded_batch_with_window_equals_its_rows_alone(flavour, use_cache, window):
    model, tokens = model_and_prompts(flavour)
    lengths = torch.tensor([N, 1, N - 1])
    settings = {"temperature": 0, "use_cache": use_cache, "window": window}
    together = generate(model, tokens, CONTEXT, lengths=lengths, **settings)
    for row, text, length in zip(tokens, together, lengths.tolist(), strict=True):
        alone = generate(model, row[None, N - length :], CONTEXT, **settings)
        assert torch.equal(text[N - length :], alone[0])


def test_window_longer_than_text_has_no_effect():
    model, tokens = model_and_prompts("gpt2")
    texts = [generate(model, tokens, NEW, temperature=0, window=window) for window in (None, N + NEW, CONTEXT + 30)]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    assert not torch.equal(generate(model, tokens, NEW, temperature=0, window=2), texts[0])


def test_window_allows_prompt_longer_than_learned_positions():
    model, tokens = model_and_prompts("gpt2")
    long = torch.cat([tokens] * 4, dim=1)
    assert generate(model, long, 3, temperature=0, window=CONTEXT).shape == (B, 4 * N + 3)


# --- top-k and top-p ------------------------------------------------------------------------------------------------


def nucleus_by_hand(p: list[float], top_p: float) -> set[int]:
    """Take tokens by decreasing probability until they reach the threshold."""
    taken, total = set(), 0.0
    for token in sorted(range(len(p)), key=lambda i: -p[i]):
        if total >= top_p:
            break
        taken.add(token)
        total += p[token]
    return taken


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.75, 0.999])
@pytest.mark.parametrize("top_k", [None, 1, 4])
def test_top_k_top_p_mask_matches_definition(temperature, top_p, top_k):
    logits = torch.randn(5, V)
    kept = top_k_top_p_mask(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    for row, allowed in zip(logits, kept, strict=True):
        best = row.argsort(descending=True)[:top_k]
        p = torch.zeros(V)
        p[best] = (row[best] / temperature).softmax(-1)
        assert set(allowed.nonzero().flatten().tolist()) == nucleus_by_hand(p.tolist(), top_p)


def test_top_p_keeps_the_token_that_crosses_the_threshold():
    logits = torch.tensor([0.125, 0.5, 0.25, 0.125]).log()
    for top_p, expected in [
        (0.4, [1]),
        (0.5, [1]),
        (0.6, [1, 2]),
        (0.75, [1, 2]),
        (0.8, [0, 1, 2]),
        (1.0, [0, 1, 2, 3]),
    ]:
        assert top_k_top_p_mask(logits, top_p=top_p).nonzero().flatten().tolist() == expected


def partitions(total: int, largest: int):
    """Yield all ways to write the total as a sum of positive integers, in decreasing order."""
    if not total:
        yield ()
    for first in range(min(total, largest), 0, -1):
        yield from ((first, *rest) for rest in partitions(total - first, first))


@pytest.mark.usefixtures("either_precision")
@pytest.mark.parametrize("top_k", [None, 3])
def test_top_p_matches_exact_arithmetic_for_all_distributions_in_twentieths(top_k):
    """A sum of probabilities that equals top_p reaches it, whatever the order of the tokens."""
    twentieths = [row + (0,) * (20 - len(row)) for row in partitions(20, 20)]
    assert len(twentieths) == 627
    order = torch.randperm(20)
    logits = (torch.tensor(twentieths)[:, order] / 20).log()
    for numerator in range(1, 20):
        n_kept = top_k_top_p_mask(logits, top_k=top_k, top_p=numerator / 20).sum(dim=-1).tolist()
        for row, n in zip(twentieths, n_kept, strict=True):
            sums = list(itertools.accumulate(row[:top_k]))
            assert n == next(i for i, s in enumerate(sums, 1) if Fraction(s, sums[-1]) >= Fraction(numerator, 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_keeps_no_further_token_if_the_sum_equals_top_p(dtype):
    logits = torch.tensor([[0.3, 0.1, 0.1, 0.5]], dtype=dtype).log()
    assert top_k_top_p_mask(logits, top_p=0.8).tolist() == [[True, False, False, True]]


def test_top_k_keeps_exactly_k_equal_logits():
    assert top_k_top_p_mask(torch.zeros(2, V), top_k=3).tolist() == [[True] * 3 + [False] * (V - 3)] * 2


def test_no_restriction_keeps_all_tokens():
    logits = torch.linspace(0, -500, V, dtype=torch.float32)  # the last probabilities underflow to 0
    assert top_k_top_p_mask(logits).all()
    assert top_k_top_p_mask(logits, top_p=1.0).all()
    assert top_k_top_p_mask(logits, top_k=V).all()
    assert top_k_top_p_mask(logits, top_k=V, top_p=1.0).all()


def test_half_precision_logits_are_promoted_to_float32():
    model, tokens = model_and_prompts("gpt2")
    assert generate(model.half(), tokens, NEW, **CHOICES["both"]).shape == (B, N + NEW)
    logits = torch.zeros(4096, dtype=torch.float16)  # in float16 the sum of 4096 times 1/4096 is below 1
    assert_close(top_k_top_p_mask(logits, top_p=0.75).sum().item(), 3072)


@pytest.mark.parametrize("choice", CHOICES)
def test_next_token_probs_are_normalised_over_kept_tokens(choice):
    logits = torch.randn(5, V)
    p = next_token_probs(logits, **CHOICES[choice])
    assert_close(p.sum(-1), torch.ones(5))
    if choice == "greedy":
        assert torch.equal(p.argmax(-1), logits.argmax(-1))
        assert (p.amax(-1) == 1).all()
    else:
        kept = top_k_top_p_mask(logits, **CHOICES[choice])
        assert torch.equal(p > 0, kept)
        ratio = p.log() - logits / CHOICES[choice]["temperature"]  # constant in each row for the kept tokens
        assert_close(ratio[kept], ratio.masked_fill(~kept, -torch.inf).amax(-1, keepdim=True).expand(5, V)[kept])


@pytest.mark.rejects
@pytest.mark.parametrize("temperature", [-1.0, float("nan")])
def test_next_token_probs_with_invalid_temperature_raises(temperature):
    with pytest.raises(ValueError, match=r"temperature must not be negative \(0 is greedy\)"):
        next_token_probs(torch.zeros(V), temperature=temperature)


# --- invalid logits -------------------------------------------------------------------------------------------------

INVALID = {"NaN": torch.nan, "infinity": torch.inf, "only -inf": -torch.inf}


def with_invalid_row(logits: torch.Tensor, value: float) -> torch.Tensor:
    """Make one row of the logits invalid."""
    logits = logits.clone()
    logits[..., -1, slice(None) if value == -torch.inf else 2] = value
    return logits


@pytest.mark.parametrize("value", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("choice", CHOICES)
def test_next_token_probs_of_invalid_logits_raises(value, choice):
    with pytest.raises(ValueError, match=r"logits must be finite or -inf.*, got .* in 1 of 4 rows; has the model div"):
        next_token_probs(with_invalid_row(torch.randn(4, V), value), **CHOICES[choice])


@pytest.mark.parametrize("value", INVALID.values(), ids=INVALID)
def test_top_k_top_p_mask_of_invalid_logits_raises(value):
    for restriction in ({}, {"top_k": 3}, {"top_p": 0.5}):
        with pytest.raises(ValueError, match=r"logits must be finite or -inf"):
            top_k_top_p_mask(with_invalid_row(torch.randn(4, V), value), **restriction)


@pytest.mark.parametrize("value", INVALID.values(), ids=INVALID)
def test_generation_with_invalid_logits_raises(value):
    model, tokens = model_and_prompts("gpt2")
    valid, _ = model_and_prompts("gpt2")
    model.head.register_forward_hook(lambda module, args, logits: with_invalid_row(logits, value))
    for write in (
        lambda: generate(model, tokens, NEW, temperature=0),
        lambda: generate(model, tokens, NEW, top_p=0.5),
        lambda: beam_search(model, tokens, NEW, n_beams=2),
        lambda: speculate(model, valid, tokens, NEW),
        lambda: speculate(valid, model, tokens, NEW, temperature=0),
    ):
        with pytest.raises(ValueError, match=r"logits must be finite or -inf"):
            write()


def test_logits_of_minus_infinity_have_probability_zero():
    logits = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf])
    assert next_token_probs(logits)[[1, 3]].tolist() == [0, 0]
    assert next_token_probs(logits, temperature=0).tolist() == [0, 0, 1, 0]


# --- invalid arguments ----------------------------------------------------------------------------------------------

START = torch.zeros(B, N, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("flavour", "given", "message"),
    [
        ("gpt2", {"tokens": START[0]}, r"tokens must be \(b, n\) with at least one token to continue, got \(4,\)"),
        ("gpt2", {"tokens": START[:, :0]}, r"at least one token to continue, got \(3, 0\)"),
        ("gpt2", {"tokens": [[1, 2]]}, r"tokens must be a tensor, got list; write torch.tensor\(tokens\)"),
        ("gpt2", {"lengths": [1, 2, 3]}, r"lengths must be a tensor, got list"),
        ("gpt2", {"n_new": np.float64(3)}, r"n_new must be an integer"),
        ("gpt2", {"n_new": np.bool_(True)}, r"n_new must be an integer"),
        ("gpt2", {"n_new": -1}, r"n_new must be at least 0"),
        ("gpt2", {"n_new": 8}, r"n_new must be at most 7: 4 tokens and n_new must fit into .* n_context=11 .*, got 8"),
        ("gpt2", {"n_new": 8}, r"or pass window to use only the last tokens of a row"),
        ("gpt2", {"n_new": 8, "window": 12}, r"window must be at most n_context=11, .* learned positions, got 12"),
        ("gpt2", {"window": 0}, r"window must be at least 1, got 0"),
        ("gpt2", {"window": 2.0}, r"window must be an integer"),
        ("dynamic", {"n_new": 9, "window": 11}, r"beyond 10 tokens dynamic rotary scaling"),
        ("gpt2", {"n_new": 11, "lengths": torch.tensor([1, 1, 2])}, r"n_new must be at most 9: 2 tokens"),
        ("gpt2", {"temperature": -1.0}, r"temperature must not be negative \(0 is greedy\), got -1.0"),
        ("gpt2", {"temperature": float("nan")}, r"temperature must not be negative .* got nan"),
        ("gpt2", {"temperature": float("inf")}, r"temperature must be positive and finite"),
        ("gpt2", {"top_k": 0}, r"top_k must be at least 1"),
        ("gpt2", {"top_k": V + 1}, r"top_k must be at most 13, got 14"),
        ("gpt2", {"top_k": 0, "temperature": 0}, r"top_k must be at least 1"),
        ("gpt2", {"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ("gpt2", {"top_p": 1.1}, r"top_p must be in \(0, 1\], got 1.1"),
        ("gpt2", {"lengths": torch.tensor([1, 2])}, r"lengths must be 3 integers in 1 .. n = 4"),
        ("gpt2", {"lengths": torch.tensor([1, 2, 5])}, r"got \[1, 2, 5\]"),
        ("gpt2", {"lengths": torch.tensor([1, 0, 2])}, r"lengths must be 3 integers in 1"),
        ("gpt2", {"lengths": torch.ones(B)}, r"lengths must be 3 integers"),
        ("dynamic", {"n_new": 9}, r"beyond 10 tokens dynamic rotary scaling .* use_cache must be False"),
        ("dynamic", {"n_new": 9, "use_cache": False, "lengths": torch.tensor([4, 1, 2])}, r"all rows equally long"),
    ],
)
def test_generate_with_invalid_arguments_raises(flavour, given, message):
    arguments = {"model": GPT(config_of(flavour)), "tokens": START, "n_new": 1} | given
    with pytest.raises(ValueError, match=message):
        generate(**arguments)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


def test_padding_test_catches_positions_that_include_padding():
    model, tokens = model_and_prompts("gpt2")
    lengths = torch.tensor([N, 1, N - 1])
    forward = model.forward
    model.forward = lambda tokens, *, caches, positions, mask: forward(tokens, caches=caches, mask=mask)
    wrong = generate(model, tokens, NEW, temperature=0, lengths=lengths)
    model.forward = forward
    assert not torch.equal(wrong, generate(model, tokens, NEW, temperature=0, lengths=lengths))


@pytest.mark.rejects  # the signatures require int
def test_generate_accepts_numpy_integers():
    model, tokens = model_and_prompts("gpt2")
    expected = generate(model, tokens, 3, top_k=1, window=5)
    given = {"top_k": np.int32(1), "window": np.int64(5)}
    assert torch.equal(generate(model, tokens, np.int64(3), **given), expected)
