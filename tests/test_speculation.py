"""Whatever the draft, what is written is distributed as the large model alone would write; a good draft saves calls."""

import pytest
import torch
from test_generation import beginnings
from test_gpt import CONTEXT, FLAVOURS, V, config_of
from torch.testing import assert_close

from lessons_lib import speculation
from lessons_lib.generation import chances, generate
from lessons_lib.gpt import GPT
from lessons_lib.speculation import Judgement, judge, speculate

B, N, NEW, K = 2, 4, 6, 3
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def within(found: torch.Tensor, p: torch.Tensor) -> None:
    """Fail if tokens are not drawn from ``p``: five standard errors, and never what has no probability."""
    n = len(found)
    frequency = found.bincount(minlength=p.numel()) / n
    assert (frequency[p == 0] == 0).all()
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all(), (frequency, p)


# --- the rule -------------------------------------------------------------------------------------------------------

WORDS = 6
DRAFTS = {
    "another distribution": lambda p: torch.rand(p.shape, generator=seeded()).softmax(-1),
    "the same": lambda p: p,
    "uniform": lambda p: torch.full_like(p, 1 / WORDS),
    "sure of what is unlikely": lambda p: torch.nn.functional.one_hot(p.argmin(-1), WORDS).to(p),
}


def first_words(judged: Judgement, drafted: torch.Tensor) -> torch.Tensor:
    return torch.where(judged.n_accepted > 0, drafted[:, 0], judged.following)


def many(kind: str, n: int = 40_000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Judgement]:
    p = (2 * torch.randn(K + 1, WORDS, generator=seeded())).softmax(-1)
    p[:, 1] = 0  # what is cut by a restriction
    p = p / p.sum(-1, keepdim=True)
    q = DRAFTS[kind](p[:K])
    drafted = torch.multinomial(q, n, replacement=True, generator=seeded(1)).T
    judged = judge(p.expand(n, -1, -1), q.expand(n, -1, -1), drafted, generator=seeded(2))
    return p, q, drafted, judged


@pytest.mark.parametrize("kind", DRAFTS)
def test_the_first_token_is_the_large_models(kind):
    p, _, drafted, judged = many(kind)
    within(first_words(judged, drafted), p[0])


@pytest.mark.parametrize("kind", DRAFTS)
def test_so_is_the_second_whatever_the_first(kind):
    p, _, drafted, judged = many(kind)
    reached = judged.n_accepted > 0
    second = torch.where(judged.n_accepted > 1, drafted[:, 1], judged.following)
    if reached.any():
        within(second[reached], p[1])


def test_the_share_accepted_is_what_the_two_have_in_common():
    p, q, _, judged = many("another distribution")
    share = (judged.n_accepted > 0).double().mean()
    assert_close(share, torch.minimum(p[0], q[0]).sum(), rtol=0, atol=0.0125)  # five standard errors


def test_the_same_distribution_is_always_accepted():
    *_, judged = many("the same")
    assert (judged.n_accepted == K).all()


# --- the loop -------------------------------------------------------------------------------------------------------


def drafting(flavour: str, noise: float) -> tuple[GPT, GPT, torch.Tensor]:
    """A model, and one that thinks nearly the same."""
    model, tokens = beginnings(flavour)
    draft = GPT(model.config)
    draft.load_state_dict(model.state_dict())
    for parameter in draft.parameters():
        parameter.data += noise * torch.randn(parameter.shape)
    return model, draft, tokens[:B]


@each_flavour
@pytest.mark.parametrize("n_draft", [1, 4])
def test_greedy_text_is_the_large_models_own(flavour, n_draft):
    model, draft, tokens = drafting(flavour, 0.05)
    text, n_calls, n_drafted, n_accepted = speculate(model, draft, tokens, NEW, n_draft=n_draft, temperature=0)
    assert torch.equal(text, generate(model, tokens, NEW, temperature=0))
    assert torch.equal(n_calls + n_accepted, torch.full((B,), NEW)), "a call writes what is accepted and one more"
    assert (n_accepted <= n_drafted).all()


def test_another_kind_of_model_may_draft():
    model, tokens = beginnings("llama")
    draft = GPT(config_of("gpt2"))
    text = speculate(model, draft, tokens, NEW, temperature=0).tokens
    assert torch.equal(text, generate(model, tokens, NEW, temperature=0))


def test_a_model_that_drafts_for_itself_is_called_least():
    model, tokens = beginnings("llama")
    written = speculate(model, model, tokens, NEW, n_draft=2, temperature=1.5, generator=seeded())
    assert written.n_calls.tolist() == [2] * len(tokens)  # three tokens a call
    assert torch.equal(written.n_accepted, written.n_drafted)


def test_drawn_text_is_distributed_as_the_large_model_draws():
    """The second token, where a cache that was not cut, or cut too much, would show."""
    model, draft, tokens = drafting("gpt2", 0.3)
    n, choice = 300, {"temperature": 2.0, "top_k": 7, "top_p": 0.9}
    text = speculate(model, draft, tokens[:1].expand(n, N), 2, n_draft=1, generator=seeded(), **choice).tokens
    first = chances(model(tokens[:1])[0, -1], **choice)
    with torch.no_grad():
        every = torch.cat([tokens[:1].expand(V, N), torch.arange(V)[:, None]], dim=1)
        second = first @ chances(model(every)[:, -1], **choice)
    within(text[:, N], first.detach())
    within(text[:, N + 1], second.detach())


def test_the_generator_decides_and_leaves_the_global_one_alone():
    model, draft, tokens = drafting("llama", 0.1)
    before = torch.get_rng_state()
    one, again, other = (
        speculate(model, draft, tokens, NEW, temperature=3.0, generator=seeded(s)).tokens for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_adding_nothing_returns_the_beginning_without_a_call():
    model, draft, tokens = drafting("gpt2", 0.1)
    written = speculate(model, draft, tokens, 0)
    assert torch.equal(written.tokens, tokens)
    assert written.n_calls.tolist() == [0] * B


# --- bad input ------------------------------------------------------------------------------------------------------

START = torch.zeros(B, N, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("flavours", "given", "message"),
    [
        (("gpt2", "gpt2"), {"tokens": START[0]}, r"tokens must be \(b, n\), and hold something to continue"),
        (("gpt2", "gpt2"), {"n_new": -1}, r"n_new must be at least 0"),
        (("gpt2", "gpt2"), {"n_draft": 0}, r"n_draft must be at least 1"),
        (("gpt2", "gpt2"), {"temperature": -1}, r"temperature must not be negative \(0 is greedy\), got -1.0"),
        (
            ("llama", "gpt2"),
            {"n_new": CONTEXT - N + 1},
            r"4 tokens and n_new must fit .* n_context=11 .* of draft, got",
        ),
        (("gpt2", "llama"), {"n_new": CONTEXT - N + 1}, r"learned positions of model, got n_new=8"),
        (("dynamic", "llama"), {"n_new": 9}, r"beyond 10 tokens dynamic rotary scaling turns every position of model"),
    ],
)
def test_what_makes_no_sense_is_refused(flavours, given, message):
    model, draft = (GPT(config_of(flavour)) for flavour in flavours)
    with pytest.raises(ValueError, match=message):
        speculate(model, draft, **{"tokens": START, "n_new": NEW} | given)


@pytest.mark.rejects
def test_a_draft_of_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"draft must have the vocabulary .*, 13 tokens, got 14"):
        speculate(GPT(config_of("gpt2")), GPT(config_of("gpt2", vocab_size=V + 1)), START, NEW)


P, Q = torch.full((B, K + 1, WORDS), 1 / WORDS), torch.full((B, K, WORDS), 1 / WORDS)
DRAFTED = torch.zeros(B, K, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"p": P[:, :K]}, r"p must be \(b, k \+ 1, vocab\) and q \(b, k, vocab\) for drafts over \(2, 3\)"),
        ({"q": Q[..., :-1]}, r"p must be \(b, k \+ 1, vocab\)"),
        ({"drafted": DRAFTED.double()}, r"drafted must be integers over \(b, k\)"),
        ({"drafted": DRAFTED + WORDS}, r"drafted must be tokens from 0 to 5"),
        ({"q": Q * (torch.arange(WORDS) > 0)}, r"drafted must be drawn from q"),
    ],
)
def test_a_judgement_of_what_does_not_fit_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        judge(**{"p": P, "q": Q, "drafted": DRAFTED} | given)


# --- tests that must fail -------------------------------------------------------------------------------------------


def draws_from_p(p, q, drafted, *, generator=None):
    """What is refused drawn from ``p``, not from what the draft lacks: a usual mistake."""
    judged = speculation.judge(p, q, drafted, generator=generator)
    again = torch.multinomial(p[torch.arange(len(p)), judged.n_accepted], 1, generator=generator)[:, 0]
    return Judgement(judged.n_accepted, again)


def keeps_the_likelier(p, q, drafted, *, generator=None):
    """A draft accepted where ``p`` is at least half of ``q``, and refused otherwise, without chance."""
    k = drafted.shape[1]
    asked = [x.gather(-1, drafted[..., None])[..., 0] for x in (p[:, :k], q)]
    n = (asked[0] >= asked[1] / 2).long().cumprod(-1).sum(-1)
    return Judgement(n, torch.multinomial(p[torch.arange(len(p)), n], 1, generator=generator)[:, 0])


@pytest.mark.parametrize("wrong", [draws_from_p, keeps_the_likelier])
def test_the_distribution_catches(wrong, monkeypatch):
    monkeypatch.setitem(globals(), "judge", wrong)
    with pytest.raises(AssertionError):
        test_the_first_token_is_the_large_models("another distribution")


def test_a_cache_that_keeps_what_was_refused_is_caught(monkeypatch):
    monkeypatch.setattr("lessons_lib.multihead.KVCache.cut", lambda cache, n: None)
    with pytest.raises((AssertionError, ValueError, RuntimeError, IndexError)):
        test_greedy_text_is_the_large_models_own("llama", 4)


def test_the_module_is_what_the_loop_asks(monkeypatch):
    """The loop judges by :func:`judge`: a rule that accepts nothing costs a call for each token."""

    def refuses(p, q, drafted, *, generator=None):
        return Judgement(torch.zeros(len(p), dtype=torch.long), p[:, 0].argmax(-1))

    monkeypatch.setattr(speculation, "judge", refuses)
    model, draft, tokens = drafting("llama", 0.0)
    written = speculate(model, draft, tokens, NEW, temperature=0)
    assert written.n_calls.tolist() == [NEW] * B
    assert torch.equal(written.tokens, generate(model, tokens, NEW, temperature=0))
