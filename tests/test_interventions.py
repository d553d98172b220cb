"""A replaced head is this head alone, and a path is what it is called: checked against streams taken apart by hand."""

import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, H, L, V, config_of, lively
from torch.testing import assert_close

from lessons_lib import interventions
from lessons_lib.gpt import GPT
from lessons_lib.interventions import ablated, along_path, gathered, replacing

B, N = 4, 7
HEADS = [(layer, head) for layer in range(L) for head in range(H)]
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def model_of(flavour: str) -> GPT:
    return lively(GPT(config_of(flavour)))


def texts() -> torch.Tensor:
    return torch.randint(V, (B, N))


def write_of(model: GPT, head: tuple[int, int]) -> torch.Tensor:
    """The columns of the output matrix that belong to a head, over ``(d_model, d_head)``."""
    layer, number = head
    width = model.config.head_width
    return model.blocks[layer].attention.sublayer.w_o.weight[:, number * width : (number + 1) * width]


# --- looking and replacing ------------------------------------------------------------------------------------------


@each_flavour
@torch.no_grad()
def test_replacing_by_what_was_gathered_changes_nothing(flavour):
    model, tokens = model_of(flavour), texts()
    z = gathered(model, tokens)
    assert sorted(z) == HEADS
    assert z[0, 0].shape == (B, N, model.config.head_width)
    with replacing(model, z):
        assert_close(model(tokens), model(tokens))
        changed = model(tokens)
    assert_close(changed, model(tokens))


@each_flavour
@torch.no_grad()
def test_a_head_that_gathers_nothing_is_a_head_whose_matrix_is_zero(flavour):
    model, tokens, head = model_of(flavour), texts(), (1, 2)
    taken = ablated(model, tokens, [head], "zero")
    assert (taken - model(tokens)).abs().max() > 1e-3
    write_of(model, head).zero_()
    assert_close(taken, model(tokens))


@torch.no_grad()
def test_what_is_gathered_is_the_average_of_values():
    model, tokens = model_of("gpt2"), texts()
    layer, x = model.blocks[0].attention.sublayer, model.embedding(tokens) + model.positions(torch.arange(N))
    x = model.blocks[0].attention.norm(x)
    weights = layer.weights(x, mask=torch.ones(N, N).tril().bool())
    values = layer.w_v(x).reshape(B, N, H, -1).transpose(1, 2)
    z = gathered(model, tokens)
    for head in range(H):
        assert_close(z[0, head], (weights @ values)[:, head])


@torch.no_grad()
def test_later_heads_hear_the_replacement_and_earlier_ones_do_not():
    model, tokens = model_of("llama"), texts()
    before = gathered(model, tokens)
    with replacing(model, {(0, 3): torch.zeros(model.config.head_width)}):
        after = gathered(model, tokens)
    assert (after[0, 3] == 0).all()
    assert all(torch.equal(after[0, head], before[0, head]) for head in range(H) if head != 3)
    assert all((after[1, head] - before[1, head]).abs().max() > 1e-6 for head in range(H))


# --- three ways to take away ----------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_mean_is_over_texts_at_each_position():
    model, tokens, heads = model_of("gpt2"), texts(), [(0, 1), (1, 0)]
    z = gathered(model, tokens)
    with replacing(model, {head: z[head].mean(0) for head in heads}):
        expected = model(tokens)
    assert_close(ablated(model, tokens, heads, "mean"), expected)
    one = tokens[:1].expand(B, N)
    assert_close(ablated(model, one, heads, "mean"), model(one))  # texts that agree have nothing to lose


@torch.no_grad()
def test_resampling_puts_another_text_in_the_place_of_each():
    model, tokens, head = model_of("llama"), texts(), (0, 5)
    z = gathered(model, tokens)[head]
    seen = set()
    for seed in range(20):
        found = ablated(model, tokens, [head], "resample", generator=torch.Generator().manual_seed(seed))
        with replacing(model, {head: z.roll(0, 0)}):
            same = model(tokens)
        assert all((found[row] - same[row]).abs().max() > 1e-6 for row in range(B)), "no text stands in for itself"
        matches = []
        for row in range(B):
            for other in range(B):
                with replacing(model, {head: z[other]}):
                    if torch.allclose(model(tokens[row][None])[0], found[row]):
                        matches.append(other)
        assert sorted(matches) == list(range(B)), "each stands in for one"
        seen.add(tuple(matches))
    assert len(seen) > 1


# --- paths ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_direct_path_is_the_write_alone():
    """In a model of attention alone the stream changes by what the head writes, and by nothing else."""
    model, tokens, other, sender = model_of("attention alone"), texts(), texts(), (0, 2)
    stream = []
    hook = model.norm.register_forward_hook(lambda module, args, out: stream.append(args[0]))
    model(tokens)
    hook.remove()
    change = gathered(model, other)[sender] - gathered(model, tokens)[sender]
    expected = model.head(model.norm(stream[0] + change @ write_of(model, sender).T))
    assert_close(along_path(model, tokens, other, sender), expected)


@torch.no_grad()
def test_all_paths_together_are_the_whole_effect():
    model, tokens, other, sender = model_of("llama"), texts(), texts(), (0, 2)
    z = gathered(model, other)[sender]
    with replacing(model, {sender: z}):
        whole, heard = model(tokens), gathered(model, tokens)
    with replacing(model, {sender: z} | {head: heard[head] for head in HEADS if head[0] == 1}):
        assert_close(model(tokens), whole)
    by_receivers = along_path(model, tokens, other, sender, [head for head in HEADS if head[0] == 1])
    with replacing(model, {head: heard[head] for head in HEADS if head[0] == 1}):
        assert_close(by_receivers, model(tokens))
    assert (by_receivers - whole).abs().max() > 1e-3, "the direct path is not among them"


@torch.no_grad()
def test_a_receiver_hears_the_sender_and_no_other_change():
    """A second head of the last layer listens too, and must not be heard: it would be heard by the head after it."""
    model = lively(GPT(config_of("llama", n_layers=3)))
    tokens, other, sender, receiver = texts(), texts(), (0, 2), (2, 1)
    held = gathered(model, tokens)
    with replacing(
        model, {head: z for head, z in held.items() if head[0] < 2} | {sender: gathered(model, other)[sender]}
    ):
        heard = gathered(model, tokens)[receiver]
    with replacing(model, {receiver: heard}):
        expected = model(tokens)
    assert_close(along_path(model, tokens, other, sender, [receiver]), expected)
    with replacing(model, {sender: gathered(model, other)[sender]}):
        through_others = gathered(model, tokens)[receiver]
    assert (through_others - heard).abs().max() > 1e-4, "the layer between would have told it too"


@torch.no_grad()
@pytest.mark.parametrize("receivers", [[], [(1, 0)], [(1, 0), (1, 4)]], ids=str)
def test_the_same_text_changes_nothing(receivers):
    model, tokens = model_of("gpt2"), texts()
    assert_close(along_path(model, tokens, tokens, (0, 1), receivers), model(tokens))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training):
    model = GPT(config_of("gpt2", dropout=0.5)).train(training)
    tokens = texts()
    found = [along_path(model, tokens, tokens.flip(0), (0, 1), [(1, 0)]) for _ in range(2)]
    assert_close(*found)  # no dropout
    assert model.training is training
    with pytest.raises(RuntimeError, match="inside"), replacing(model, gathered(model, tokens)):
        raise RuntimeError("inside")
    assert not any(layer.w_o._forward_pre_hooks for layer in interventions._layers(model))


def test_gradients_pass():
    model, tokens = model_of("gpt2"), texts()
    z = gathered(model, tokens)[0, 0].detach().requires_grad_()
    with replacing(model, {(0, 0): z}):
        model(tokens).sum().backward()
    assert z.grad is not None
    assert (z.grad != 0).any()


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda m, t: ablated(m, t, [(L, 0)], "zero"), r"heads must be \(layer, head\), both from 0, .* got \(2, 0\)"),
        (lambda m, t: ablated(m, t, [(0, H)], "zero"), r"heads must be .* got \(0, 6\)"),
        (lambda m, t: ablated(m, t, [(-1, 0)], "zero"), r"heads must be .* got \(-1, 0\)"),
        (lambda m, t: ablated(m, t, [3], "zero"), r"heads must be .* got 3"),
        (lambda m, t: ablated(m, t, [(0, 0)], "median"), r"how must be one of .*, got 'median'"),
        (lambda m, t: ablated(m, t[:1], [(0, 0)], "resample"), "at least two texts to resample from, got one"),
        (lambda m, t: along_path(m, t, t[:, 1:], (0, 0)), r"other must have the shape of tokens, \(4, 7\), got"),
        (lambda m, t: along_path(m, t, t, (1, 0), [(1, 1)]), r"receivers must be in later layers than the sender"),
    ],
)
def test_what_makes_no_sense_is_refused(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt(model_of("gpt2"), texts())


@pytest.mark.rejects
def test_a_replacement_that_does_not_fit_is_refused_in_the_pass():
    model, tokens = model_of("gpt2"), texts()
    for wrong in (torch.zeros(CONTEXT), torch.zeros(B + 1, N, model.config.head_width)):
        with pytest.raises(ValueError, match=r"what head \(0, 1\) gathers must fit"), replacing(model, {(0, 1): wrong}):
            model(tokens)
    assert not any(layer.w_o._forward_pre_hooks for layer in interventions._layers(model))


# --- tests that must fail -------------------------------------------------------------------------------------------


def test_a_path_on_which_the_others_listen_is_caught(monkeypatch):
    """Without holding the other heads still, the receiver hears of the sender through them too."""
    real = interventions.replacing

    def only_the_sender(model, by):
        return real(model, {head: z for head, z in by.items() if head == (0, 2)} if len(by) > 2 else by)

    monkeypatch.setattr(interventions, "replacing", only_the_sender)
    with pytest.raises(AssertionError):
        test_a_receiver_hears_the_sender_and_no_other_change()
