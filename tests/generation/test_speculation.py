"""Tests of speculative decoding: the distribution of the large model, and fewer calls with a good draft."""

import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, V, config_of
from test_sampling import ONE_OF_EACH, model_and_prompts
from test_stopping import generated, pair
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.generation import speculation
from lessons_lib.generation.next_token import next_token_probs
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.speculation import Acceptance, accept_draft, speculate
from lessons_lib.generation.stopping import count_new_tokens
from lessons_lib.transformer.gpt import GPT

B, N, NEW, K = 2, 4, 6, 3
WITHOUT_WINDOW = [flavour for flavour in FLAVOURS if not any(config_of(flavour).windows)]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_drawn_from(found: torch.Tensor, p: torch.Tensor) -> None:
    """Check that token frequencies match ``p`` within five standard errors, and are 0 where ``p`` is 0."""
    n = len(found)
    frequency = found.bincount(minlength=p.numel()) / n
    assert (frequency[p == 0] == 0).all()
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all(), (frequency, p)


# --- acceptance rule ------------------------------------------------------------------------------------------------

VOCABULARY = 6
DRAFTS = {
    "another distribution": lambda p: torch.rand(p.shape, generator=seeded()).softmax(-1),
    "the same": lambda p: p,
    "uniform": lambda p: torch.full_like(p, 1 / VOCABULARY),
    "sure of what is unlikely": lambda p: torch.nn.functional.one_hot(p.argmin(-1), VOCABULARY).to(p),
}


def first_tokens(result: Acceptance, drafted: torch.Tensor) -> torch.Tensor:
    return torch.where(result.n_accepted > 0, drafted[:, 0], result.next_token)


def accept_many(kind: str, n: int = 40_000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Acceptance]:
    p = (2 * torch.randn(K + 1, VOCABULARY, generator=seeded())).softmax(-1)
    p[:, 1] = 0  # as after a restriction to top-k or top-p
    p = p / p.sum(-1, keepdim=True)
    q = DRAFTS[kind](p[:K])
    drafted = torch.multinomial(q, n, replacement=True, generator=seeded(1)).T
    result = accept_draft(p.expand(n, -1, -1), q.expand(n, -1, -1), drafted, generator=seeded(2))
    return p, q, drafted, result


@pytest.mark.parametrize("kind", DRAFTS)
def test_first_token_has_distribution_of_large_model(kind):
    p, _, drafted, result = accept_many(kind)
    assert_drawn_from(first_tokens(result, drafted), p[0])


@pytest.mark.parametrize("kind", DRAFTS)
def test_second_token_has_distribution_of_large_model(kind):
    p, _, drafted, result = accept_many(kind)
    reached = result.n_accepted > 0
    second = torch.where(result.n_accepted > 1, drafted[:, 1], result.next_token)
    if reached.any():
        assert_drawn_from(second[reached], p[1])


def test_acceptance_rate_equals_overlap_of_distributions():
    p, q, _, result = accept_many("another distribution")
    share = (result.n_accepted > 0).double().mean()
    assert_close(share, torch.minimum(p[0], q[0]).sum(), rtol=0, atol=0.0125)  # five standard errors


def test_draft_from_equal_distribution_is_always_accepted():
    *_, result = accept_many("the same")
    assert (result.n_accepted == K).all()


# --- generation loop ------------------------------------------------------------------------------------------------


def model_and_similar_draft(flavour: str, noise: float) -> tuple[GPT, GPT, torch.Tensor]:
    """Return a model, a draft model with similar weights, and prompts."""
    model, tokens = model_and_prompts(flavour)
    draft = GPT(model.config)
    draft.load_state_dict(model.state_dict())
    for parameter in draft.parameters():
        parameter.data += noise * torch.randn(parameter.shape)
    return model, draft, tokens[:B]


@pytest.mark.parametrize(
    ("flavour", "n_draft"),
    all_but(
        [(flavour, n_draft) for flavour in FLAVOURS for n_draft in (1, 4)],
        lambda flavour, n_draft: n_draft == 4 or flavour in ONE_OF_EACH,
    ),
)
def test_greedy_text_equals_large_model_alone(flavour, n_draft):
    model, draft, tokens = model_and_similar_draft(flavour, 0.05)
    text, n_calls, n_drafted, n_accepted = speculate(model, draft, tokens, NEW, n_draft=n_draft, temperature=0)
    assert torch.equal(text, generate(model, tokens, NEW, temperature=0))
    assert torch.equal(n_calls + n_accepted, torch.full((B,), NEW)), "a call yields the accepted tokens and one more"
    assert (n_accepted <= n_drafted).all()


@pytest.mark.parametrize("flavour", all_but(WITHOUT_WINDOW, lambda flavour: flavour in ONE_OF_EACH))
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 3.0, "n_draft": 2, "eos": 5}], ids=str)
def test_cache_size_changes_no_result(flavour, settings):
    model, draft, tokens = model_and_similar_draft(flavour, 0.3)
    expected = speculate(model, draft, tokens, NEW, generator=seeded(), **settings)
    assert (expected.n_accepted < expected.n_drafted).any(), "tokens are rejected"
    for size in (N + NEW - 1, 10):
        found = speculate(model, draft, tokens, NEW, generator=seeded(), cache_size=size, **settings)
        assert all(map(torch.equal, found, expected))


def test_cache_size_up_to_the_window_changes_no_result():
    model, draft, tokens = model_and_similar_draft("window", 0.05)
    expected = speculate(model, draft, tokens[:, :1], 3, n_draft=1, temperature=0)
    found = speculate(model, draft, tokens[:, :1], 3, n_draft=1, temperature=0, cache_size=3)
    assert all(map(torch.equal, found, expected))


def test_draft_may_have_another_architecture():
    model, tokens = model_and_prompts("llama")
    draft = GPT(config_of("gpt2"))
    text = speculate(model, draft, tokens, NEW, temperature=0).tokens
    assert torch.equal(text, generate(model, tokens, NEW, temperature=0))


def test_model_as_its_own_draft_needs_fewest_calls():
    model, tokens = model_and_prompts("llama")
    result = speculate(model, model, tokens, NEW, n_draft=2, temperature=1.5, generator=seeded())
    assert result.n_calls.tolist() == [2] * len(tokens)  # three tokens a call
    assert torch.equal(result.n_accepted, result.n_drafted)


def test_sampled_text_has_distribution_of_large_model():
    """The second token depends on a cache from which rejected tokens must be removed."""
    model, draft, tokens = model_and_similar_draft("gpt2", 0.3)
    n, choice = 300, {"temperature": 2.0, "top_k": 7, "top_p": 0.9}
    text = speculate(model, draft, tokens[:1].expand(n, N), 2, n_draft=1, generator=seeded(), **choice).tokens
    first = next_token_probs(model(tokens[:1])[0, -1], **choice)
    with torch.no_grad():
        every = torch.cat([tokens[:1].expand(V, N), torch.arange(V)[:, None]], dim=1)
        second = first @ next_token_probs(model(every)[:, -1], **choice)
    assert_drawn_from(text[:, N], first.detach())
    assert_drawn_from(text[:, N + 1], second.detach())


def test_samples_depend_only_on_the_generator():
    model, draft, tokens = model_and_similar_draft("llama", 0.1)
    before = torch.get_rng_state()
    one, again, other = (
        speculate(model, draft, tokens, NEW, temperature=3.0, generator=seeded(s)).tokens for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_n_new_zero_returns_the_prompt_without_a_call():
    model, draft, tokens = model_and_similar_draft("gpt2", 0.1)
    result = speculate(model, draft, tokens, 0)
    assert torch.equal(result.tokens, tokens)
    assert result.n_calls.tolist() == [0] * B


# --- ends and penalties ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["gpt2", "llama"])
@pytest.mark.parametrize("n_draft", [1, 4])
@pytest.mark.parametrize("settings", [{"eos": [3, 8, 11]}, {"repetition_penalty": 1.5}, {"min_p": 0.5}], ids=str)
def test_greedy_text_with_end_or_penalty_equals_large_model_alone(flavour, n_draft, settings):
    model, draft, tokens = model_and_similar_draft(flavour, 0.05)
    tokens = torch.randint(V, (6, N))
    result = speculate(model, draft, tokens, NEW, n_draft=n_draft, temperature=0, **settings)
    expected = generate(model, tokens, NEW, temperature=0, **settings)
    assert torch.equal(result.tokens, expected)
    assert (result.n_accepted <= result.n_drafted).all()
    if "eos" in settings:
        assert count_new_tokens(expected, N, settings["eos"]).unique().numel() > 1
        assert (result.n_calls + result.n_accepted >= count_new_tokens(expected, N, settings["eos"])).all()


def test_draft_stops_at_its_end_token():
    """A draft that ends at once proposes one token in each call."""
    model, tokens = model_and_prompts("llama")
    draft = GPT(config_of("llama"))
    draft.head.register_forward_hook(lambda module, args, logits: logits + 1e3 * (torch.arange(V) == 5))
    result = speculate(model, draft, tokens, NEW, n_draft=4, temperature=0, eos=5, pad=-1)
    assert torch.equal(result.tokens, generate(model, tokens, NEW, temperature=0, eos=5, pad=-1))
    assert (result.n_drafted <= result.n_calls).all()


@pytest.mark.one_case
@pytest.mark.parametrize("settings", [{"eos": 4, "pad": -1}, {"repetition_penalty": 2.0}, {"min_p": 0.3}], ids=str)
def test_texts_of_two_tokens_have_the_distribution_of_generate(settings):
    """Frequencies of the second token agree within five standard errors of their difference."""
    n, (model, draft, tokens) = 250, model_and_similar_draft("gpt2", 0.3)
    rows = tokens[:1].expand(n, N)
    ours = speculate(model, draft, rows, 2, n_draft=2, temperature=2.0, generator=seeded(), **settings).tokens[:, -1]
    alone = generate(model, rows, 2, temperature=2.0, generator=seeded(8), **settings)[:, -1]
    one, two = ((x + 1).bincount(minlength=V + 1) / n for x in (ours, alone))
    assert ((one - two).abs() <= 5 * ((one + two) / n).sqrt() + 1e-9).all()


def test_assisted_texts_with_end_tokens_equal_those_of_transformers():
    theirs, ours, tokens = pair("llama")
    their_draft, draft, _ = pair("llama", seed=3)
    for row in tokens:
        settings = {"max_new_tokens": 20, "eos_token_id": [4, 11], "pad_token_id": 4, "assistant_model": their_draft}
        expected = generated(theirs, row[None], **settings)
        assert torch.equal(speculate(ours, draft, row[None], 20, temperature=0, eos=[4, 11]).tokens, expected)


# --- invalid arguments ----------------------------------------------------------------------------------------------

START = torch.zeros(B, N, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("flavours", "given", "message"),
    [
        (("gpt2", "gpt2"), {"tokens": START[0]}, r"tokens must be \(b, n\) with at least one token to continue"),
        (("gpt2", "gpt2"), {"n_new": -1}, r"n_new must be at least 0"),
        (("gpt2", "gpt2"), {"n_draft": 0}, r"n_draft must be at least 1"),
        (("gpt2", "gpt2"), {"eos": V}, r"eos must be at most 12, got 13"),
        (("gpt2", "gpt2"), {"pad": 3}, r"pad must be None where no row ends early, got 3; give eos"),
        (("gpt2", "gpt2"), {"repetition_penalty": 0}, r"repetition_penalty must be finite and above 0, got 0"),
        (("gpt2", "gpt2"), {"min_p": 0.0}, r"min_p must be in \(0, 1\], got 0.0"),
        (("gpt2", "gpt2"), {"temperature": -1}, r"temperature must not be negative \(0 is greedy\), got -1.0"),
        (
            ("llama", "gpt2"),
            {"n_new": CONTEXT - N + 1},
            r"4 tokens and n_new must fit .* n_context=11 .* of draft, got",
        ),
        (("gpt2", "llama"), {"n_new": CONTEXT - N + 1}, r"learned positions of model, got n_new=8"),
        (
            ("dynamic", "llama"),
            {"n_new": 9},
            r"beyond 10 tokens dynamic rotary .* cached keys of model would be wrong",
        ),
        (("gpt2", "gpt2"), {"cache_size": 8}, r"cache_size must be at least 9: 4 tokens and n_new=6, the last of whi"),
        (("gpt2", "gpt2"), {"cache_size": 9.0}, r"cache_size must be an integer"),
        (("gpt2", "dynamic"), {"cache_size": 11}, r"a cache must hold at most so many, got a FixedCache of 11"),
        (("window", "gpt2"), {"cache_size": 9}, r"cache_size must be at most 3, the window of model .*, got 9: .* lea"),
        (("gpt2", "gemma"), {"cache_size": 9}, r"at most 3, the window of draft \(GPTConfig.window\), got 9"),
    ],
)
def test_speculate_with_invalid_arguments_raises(flavours, given, message):
    model, draft = (GPT(config_of(flavour)) for flavour in flavours)
    with pytest.raises(ValueError, match=message):
        speculate(model, draft, **{"tokens": START, "n_new": NEW} | given)


@pytest.mark.rejects
def test_speculate_with_another_vocabulary_raises():
    with pytest.raises(ValueError, match=r"draft must have the vocabulary .*, 13 tokens, got 14"):
        speculate(GPT(config_of("gpt2")), GPT(config_of("gpt2", vocab_size=V + 1)), START, NEW)


P, Q = torch.full((B, K + 1, VOCABULARY), 1 / VOCABULARY), torch.full((B, K, VOCABULARY), 1 / VOCABULARY)
DRAFTED = torch.zeros(B, K, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"p": P[:, :K]}, r"p must be \(b, k \+ 1, vocab\) and q \(b, k, vocab\) for drafts over \(2, 3\)"),
        ({"q": Q[..., :-1]}, r"p must be \(b, k \+ 1, vocab\)"),
        ({"drafted": DRAFTED.double()}, r"drafted must be integers over \(b, k\)"),
        ({"drafted": DRAFTED + VOCABULARY}, r"drafted must be tokens from 0 to 5"),
        ({"q": Q * (torch.arange(VOCABULARY) > 0)}, r"drafted must be drawn from q"),
    ],
)
def test_accept_draft_with_invalid_arguments_raises(given, message):
    with pytest.raises(ValueError, match=message):
        accept_draft(**{"p": P, "q": Q, "drafted": DRAFTED} | given)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


def redraws_from_p(p, q, drafted, *, generator=None):
    """Draw the token after a rejection from ``p`` instead of the residual, a common mistake."""
    result = speculation.accept_draft(p, q, drafted, generator=generator)
    again = torch.multinomial(p[torch.arange(len(p)), result.n_accepted], 1, generator=generator)[:, 0]
    return Acceptance(result.n_accepted, again)


def accepts_without_randomness(p, q, drafted, *, generator=None):
    """Accept a token if ``p`` is at least half of ``q``, without a random number."""
    k = drafted.shape[1]
    p_drafted, q_drafted = (x.gather(-1, drafted[..., None])[..., 0] for x in (p[:, :k], q))
    n = (p_drafted >= q_drafted / 2).long().cumprod(-1).sum(-1)
    return Acceptance(n, torch.multinomial(p[torch.arange(len(p)), n], 1, generator=generator)[:, 0])


@pytest.mark.parametrize("wrong", [redraws_from_p, accepts_without_randomness])
def test_distribution_test_catches_wrong_acceptance_rule(wrong, monkeypatch):
    monkeypatch.setitem(globals(), "accept_draft", wrong)
    with pytest.raises(AssertionError):
        test_first_token_has_distribution_of_large_model("another distribution")


def test_greedy_test_catches_cache_with_rejected_tokens(monkeypatch):
    monkeypatch.setattr("lessons_lib.attention.cache.KVCache.crop", lambda cache, n: None)
    with pytest.raises((AssertionError, ValueError, RuntimeError, IndexError)):
        test_greedy_text_equals_large_model_alone("llama", 4)


def test_cache_size_test_catches_rejected_tokens(monkeypatch):
    monkeypatch.setattr("lessons_lib.attention.fixed_cache.FixedCache.crop", lambda cache, n: None)
    with pytest.raises((AssertionError, ValueError, RuntimeError, IndexError)):
        test_cache_size_changes_no_result("llama", {"temperature": 0})


def test_speculate_uses_accept_draft(monkeypatch):
    """With a rule that accepts nothing, :func:`speculate` needs one call for each token."""

    def refuses(p, q, drafted, *, generator=None):
        return Acceptance(torch.zeros(len(p), dtype=torch.long), p[:, 0].argmax(-1))

    monkeypatch.setattr(speculation, "accept_draft", refuses)
    model, draft, tokens = model_and_similar_draft("llama", 0.0)
    result = speculate(model, draft, tokens, NEW, temperature=0)
    assert result.n_calls.tolist() == [NEW] * B
    assert torch.equal(result.tokens, generate(model, tokens, NEW, temperature=0))


def test_end_test_catches_tokens_after_the_end(monkeypatch):
    """The large model's token after an accepted end token belongs to no text."""
    monkeypatch.setattr(speculation.TextEnd, "is_at", lambda end, tokens: torch.zeros_like(tokens, dtype=torch.bool))
    with pytest.raises(AssertionError):
        test_greedy_text_with_end_or_penalty_equals_large_model_alone("llama", 4, {"eos": [3, 8, 11]})


def test_penalty_test_catches_a_penalty_for_the_prompt_alone(monkeypatch):
    original = speculation.penalise_repetition
    monkeypatch.setattr(
        speculation, "penalise_repetition", lambda logits, text, penalty: original(logits, text[:, :N], penalty)
    )
    with pytest.raises(AssertionError):
        test_greedy_text_with_end_or_penalty_equals_large_model_alone("llama", 4, {"repetition_penalty": 1.5})
