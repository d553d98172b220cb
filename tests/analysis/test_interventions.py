"""Tests of head outputs, activation patching and ablation against residual streams computed by hand."""

import pytest
import torch
from test_gpt import CONTEXT, FLAVOURS, H, L, V, config_of, with_random_weights
from torch.testing import assert_close

from lessons_lib.analysis import interventions
from lessons_lib.analysis.interventions import ablate_heads, head_outputs, patch_heads
from lessons_lib.transformer.gpt import GPT

B, N = 4, 7
HEADS = [(layer, head) for layer in range(L) for head in range(H)]
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def model_of(flavour: str, **changes) -> GPT:
    return with_random_weights(GPT(config_of(flavour, **changes)))


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


@pytest.mark.parametrize("training", [True, False])
def test_interventions_restore_mode_and_remove_hooks(training):
    model = GPT(config_of("gpt2", dropout=0.5)).train(training)
    tokens = sequences()
    found = [ablate_heads(model, tokens, [(0, 1), (1, 0)], "mean") for _ in range(2)]
    assert_close(*found)  # no dropout
    assert model.training is training
    with pytest.raises(RuntimeError, match="inside"), patch_heads(model, head_outputs(model, tokens)):
        raise RuntimeError("inside")
    assert not any(layer.w_o._forward_pre_hooks for layer in interventions.attention_layers(model))


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
    assert not any(layer.w_o._forward_pre_hooks for layer in interventions.attention_layers(model))
