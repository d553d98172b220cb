"""Tests of head outputs, activation patching, ablation and path patching against residual streams computed by hand."""

import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, H, L, V, config_of, with_random_weights
from torch.testing import assert_close

from lessons_lib.analysis import interventions
from lessons_lib.analysis.interventions import ablate_heads, head_outputs, patch_heads, path_patch
from lessons_lib.transformer.gpt import GPT

B, N = 4, 7
HEADS = [(layer, head) for layer in range(L) for head in range(H)]
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def model_of(flavour: str) -> GPT:
    return with_random_weights(GPT(config_of(flavour)))


def sequences() -> torch.Tensor:
    return torch.randint(V, (B, N))


def output_projection_of(model: GPT, head: tuple[int, int]) -> torch.Tensor:
    """The columns of the output projection that belong to a head, over ``(d_model, d_head)``."""
    layer, number = head
    width = model.config.head_width
    return model.blocks[layer].attention.sublayer.w_o.weight[:, number * width : (number + 1) * width]


# --- outputs and patching -------------------------------------------------------------------------------------------


@each_flavour
@torch.no_grad()
def test_patch_heads_with_the_same_outputs_changes_nothing(flavour):
    model, tokens = model_of(flavour), sequences()
    z = head_outputs(model, tokens)
    assert sorted(z) == HEADS
    assert z[0, 0].shape == (B, N, model.config.head_width)
    with patch_heads(model, z):
        assert_close(model(tokens), model(tokens))
        changed = model(tokens)
    assert_close(changed, model(tokens))


@each_flavour
@torch.no_grad()
def test_ablate_heads_zero_equals_a_zero_output_projection(flavour):
    model, tokens, head = model_of(flavour), sequences(), (1, 2)
    taken = ablate_heads(model, tokens, [head], "zero")
    assert (taken - model(tokens)).abs().max() > 1e-3
    output_projection_of(model, head).zero_()
    assert_close(taken, model(tokens))


@torch.no_grad()
def test_head_outputs_are_weighted_averages_of_values():
    model, tokens = model_of("gpt2"), sequences()
    layer, x = model.blocks[0].attention.sublayer, model.embedding(tokens) + model.positions(torch.arange(N))
    x = model.blocks[0].attention.norm(x)
    weights = layer.weights(x, mask=torch.ones(N, N).tril().bool())
    values = layer.w_v(x).reshape(B, N, H, -1).transpose(1, 2)
    z = head_outputs(model, tokens)
    for head in range(H):
        assert_close(z[0, head], (weights @ values)[:, head])


@torch.no_grad()
def test_patch_heads_changes_later_layers_only():
    model, tokens = model_of("llama"), sequences()
    before = head_outputs(model, tokens)
    with patch_heads(model, {(0, 3): torch.zeros(model.config.head_width)}):
        after = head_outputs(model, tokens)
    assert (after[0, 3] == 0).all()
    assert all(torch.equal(after[0, head], before[0, head]) for head in range(H) if head != 3)
    assert all((after[1, head] - before[1, head]).abs().max() > 1e-6 for head in range(H))


# --- ablation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_ablate_heads_mean_averages_over_sequences_at_each_position():
    model, tokens, heads = model_of("gpt2"), sequences(), [(0, 1), (1, 0)]
    z = head_outputs(model, tokens)
    with patch_heads(model, {head: z[head].mean(0) for head in heads}):
        expected = model(tokens)
    assert_close(ablate_heads(model, tokens, heads, "mean"), expected)
    one = tokens[:1].expand(B, N)
    assert_close(ablate_heads(model, one, heads, "mean"), model(one))  # equal sequences have equal outputs


@torch.no_grad()
def test_ablate_heads_resample_uses_another_sequence_for_each():
    model, tokens, head = model_of("llama"), sequences(), (0, 5)
    z = head_outputs(model, tokens)[head]
    seen = set()
    for seed in range(20):
        found = ablate_heads(model, tokens, [head], "resample", generator=torch.Generator().manual_seed(seed))
        with patch_heads(model, {head: z.roll(0, 0)}):
            same = model(tokens)
        assert all((found[row] - same[row]).abs().max() > 1e-6 for row in range(B)), "no sequence replaces itself"
        matches = []
        for row in range(B):
            for other in range(B):
                with patch_heads(model, {head: z[other]}):
                    if torch.allclose(model(tokens[row][None])[0], found[row]):
                        matches.append(other)
        assert sorted(matches) == list(range(B)), "each sequence replaces one other"
        seen.add(tuple(matches))
    assert len(seen) > 1


# --- paths ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_path_patch_without_receivers_is_the_direct_effect():
    """Without feed-forward layers the residual stream changes by the change of the sender's output only."""
    model, tokens, other, sender = model_of("attention alone"), sequences(), sequences(), (0, 2)
    stream = []
    hook = model.norm.register_forward_hook(lambda module, args, out: stream.append(args[0]))
    model(tokens)
    hook.remove()
    change = head_outputs(model, other)[sender] - head_outputs(model, tokens)[sender]
    expected = model.head(model.norm(stream[0] + change @ output_projection_of(model, sender).T))
    assert_close(path_patch(model, tokens, other, sender), expected)


@torch.no_grad()
def test_path_patch_to_all_later_heads_omits_only_the_direct_path():
    model, tokens, other, sender = model_of("llama"), sequences(), sequences(), (0, 2)
    z = head_outputs(model, other)[sender]
    with patch_heads(model, {sender: z}):
        full, outputs = model(tokens), head_outputs(model, tokens)
    with patch_heads(model, {sender: z} | {head: outputs[head] for head in HEADS if head[0] == 1}):
        assert_close(model(tokens), full)
    by_receivers = path_patch(model, tokens, other, sender, [head for head in HEADS if head[0] == 1])
    with patch_heads(model, {head: outputs[head] for head in HEADS if head[0] == 1}):
        assert_close(by_receivers, model(tokens))
    assert (by_receivers - full).abs().max() > 1e-3, "the direct path is not included"


@torch.no_grad()
def test_path_patch_receiver_reads_only_the_patched_sender():
    """In a model of three layers, heads of the layer between read the sender too and must stay frozen."""
    model = with_random_weights(GPT(config_of("llama", n_layers=3)))
    tokens, other, sender, receiver = sequences(), sequences(), (0, 2), (2, 1)
    frozen = head_outputs(model, tokens)
    with patch_heads(
        model, {head: z for head, z in frozen.items() if head[0] < 2} | {sender: head_outputs(model, other)[sender]}
    ):
        outputs = head_outputs(model, tokens)[receiver]
    with patch_heads(model, {receiver: outputs}):
        expected = model(tokens)
    assert_close(path_patch(model, tokens, other, sender, [receiver]), expected)
    with patch_heads(model, {sender: head_outputs(model, other)[sender]}):
        through_others = head_outputs(model, tokens)[receiver]
    assert (through_others - outputs).abs().max() > 1e-4, "the layer between would pass on the change"


@torch.no_grad()
@pytest.mark.parametrize("receivers", [[], [(1, 0)], [(1, 0), (1, 4)]], ids=str)
def test_path_patch_with_the_same_sequences_changes_nothing(receivers):
    model, tokens = model_of("gpt2"), sequences()
    assert_close(path_patch(model, tokens, tokens, (0, 1), receivers), model(tokens))


@pytest.mark.parametrize("training", [True, False])
def test_interventions_restore_mode_and_remove_hooks(training):
    model = GPT(config_of("gpt2", dropout=0.5)).train(training)
    tokens = sequences()
    found = [path_patch(model, tokens, tokens.flip(0), (0, 1), [(1, 0)]) for _ in range(2)]
    assert_close(*found)  # no dropout
    assert model.training is training
    with pytest.raises(RuntimeError, match="inside"), patch_heads(model, head_outputs(model, tokens)):
        raise RuntimeError("inside")
    assert not any(layer.w_o._forward_pre_hooks for layer in interventions._attention_layers(model))


def test_patch_heads_passes_gradients_to_the_new_output():
    model, tokens = model_of("gpt2"), sequences()
    z = head_outputs(model, tokens)[0, 0].detach().requires_grad_()
    with patch_heads(model, {(0, 0): z}):
        model(tokens).sum().backward()
    assert z.grad is not None
    assert (z.grad != 0).any()


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (
            lambda m, t: ablate_heads(m, t, [(L, 0)], "zero"),
            r"heads must be \(layer, head\), both from 0, .* got \(2, 0\)",
        ),
        (lambda m, t: ablate_heads(m, t, [(0, H)], "zero"), r"heads must be .* got \(0, 6\)"),
        (lambda m, t: ablate_heads(m, t, [(-1, 0)], "zero"), r"heads must be .* got \(-1, 0\)"),
        (lambda m, t: ablate_heads(m, t, [3], "zero"), r"heads must be .* got 3"),
        (lambda m, t: ablate_heads(m, t, [(0, 0)], "median"), r"how must be one of .*, got 'median'"),
        (lambda m, t: ablate_heads(m, t[:1], [(0, 0)], "resample"), "at least two sequences to resample from, got one"),
        (lambda m, t: path_patch(m, t, t[:, 1:], (0, 0)), r"other must have the shape of tokens, \(4, 7\), got"),
        (lambda m, t: path_patch(m, t, t, (1, 0), [(1, 1)]), r"receivers must be in later layers than the sender"),
    ],
)
def test_invalid_arguments_raise(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt(model_of("gpt2"), sequences())


@pytest.mark.rejects
def test_patch_heads_wrong_shape_raises_in_the_forward_pass():
    model, tokens = model_of("gpt2"), sequences()
    for wrong in (torch.zeros(CONTEXT), torch.zeros(B + 1, N, model.config.head_width)):
        with (
            pytest.raises(ValueError, match=r"the output of head \(0, 1\) must broadcast to"),
            patch_heads(model, {(0, 1): wrong}),
        ):
            model(tokens)
    assert not any(layer.w_o._forward_pre_hooks for layer in interventions._attention_layers(model))


# --- wrong implementations ------------------------------------------------------------------------------------------


def test_path_patch_without_frozen_heads_is_caught(monkeypatch):
    """If the other heads are not frozen, the receiver also reads the sender through them."""
    real = interventions.patch_heads

    def only_the_sender(model, by):
        return real(model, {head: z for head, z in by.items() if head == (0, 2)} if len(by) > 2 else by)

    monkeypatch.setattr(interventions, "patch_heads", only_the_sender)
    with pytest.raises(AssertionError):
        test_path_patch_receiver_reads_only_the_patched_sender()
