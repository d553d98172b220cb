"""Observation and ablation in models of every family: against transformers, in left-padded batches, with caches."""

import pytest
import torch
from test_gpt import FLAVOURS, H, L, V, config_of
from test_huggingface import FAMILIES, build
from test_interventions import model_of
from thorough import all_but
from torch.testing import assert_close

from lessons_lib.analysis import patterns
from lessons_lib.analysis.diagnostics import attention_entropy, observe
from lessons_lib.analysis.interventions import ablate_heads, head_outputs, patch_heads
from lessons_lib.attention.rules import LeftPadding
from lessons_lib.generation.sampling import generate
from lessons_lib.transformer.huggingface import gpt_from_huggingface

B, N = 4, 9
N_PADDING = torch.tensor([0, 3, 1, 5])
PADDED = {"mask": LeftPadding(N_PADDING), "positions": (torch.arange(N) - N_PADDING[:, None]).clamp_min(0)}
each_family = pytest.mark.parametrize("name", FAMILIES)
KINDS = ["gpt2", "llama", "alibi", "parallel, partly rotated", "norms of outputs", "gemma", "window"]
each_flavour = pytest.mark.parametrize("flavour", all_but(FLAVOURS, lambda flavour: flavour in KINDS))


@pytest.fixture
def single_precision(double_precision):
    """Use float32, as checkpoints do; experts of transformers take no other."""
    torch.set_default_dtype(torch.float32)


def pair(name, **changes):
    """A model of transformers and its copy, with weights that are large but do not saturate the softmax."""
    theirs = build(name, **{"attn_implementation": "eager"} | changes)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return theirs, gpt_from_huggingface(theirs)


@each_family
@torch.no_grad()
def test_observe_records_the_attention_weights_of_transformers(name, single_precision):
    theirs, ours = pair(name)
    tokens = torch.randint(ours.config.vocab_size, (B, N))
    with observe(ours) as seen:
        ours(tokens)
    expected = theirs(tokens, output_attentions=True).attentions
    assert len(seen.weights) == len(expected) == ours.config.n_layers
    for found, theirs_of_layer in zip(seen.weights.values(), expected, strict=True):
        # Measured over 20 seeds: they differ by at most 5e-7, in Gemma 2.
        assert_close(found, theirs_of_layer, rtol=0, atol=5e-6)


@each_family
@torch.no_grad()
def test_ablate_heads_zero_equals_transformers_without_the_columns_of_the_output_projection(name, single_precision):
    theirs, ours = pair(name)
    tokens, head = torch.randint(ours.config.vocab_size, (B, N)), (1, 2)
    found = ablate_heads(ours, tokens, [head], "zero")
    own = slice(head[1] * ours.config.head_width, (head[1] + 1) * ours.config.head_width)
    if name == "gpt2":  # its matrices are over (in, out)
        theirs.transformer.h[head[0]].attn.c_proj.weight[own] = 0
    elif name == "neox":
        theirs.gpt_neox.layers[head[0]].attention.dense.weight[:, own] = 0
    else:
        theirs.model.layers[head[0]].self_attn.o_proj.weight[:, own] = 0
    # Measured over 20 seeds: they differ by at most 3e-6, in Gemma 2, and the ablation changes them by at least 3e-2.
    assert_close(found, theirs(tokens).logits, rtol=0, atol=3e-5)
    assert (ours(tokens) - found).abs().max() > 1e-2


# --- left-padded batches --------------------------------------------------------------------------------------------


def alone(tokens):
    """Each sequence without its padding, and where it starts."""
    return [(row, start, tokens[row : row + 1, start:]) for row, start in enumerate(N_PADDING.tolist())]


@each_flavour
@torch.no_grad()
def test_left_padded_batch_equals_each_sequence_alone(flavour):
    """Attention weights, head outputs and logits after ablation; padding attends to nothing."""
    model, tokens = model_of(flavour), torch.randint(V, (B, N))
    with observe(model) as batch:
        model(tokens, **PADDED)
    z, ablated = head_outputs(model, tokens, **PADDED), ablate_heads(model, tokens, [(0, 1), (1, 4)], "zero", **PADDED)
    for row, start, sequence in alone(tokens):
        with observe(model) as seen:
            model(sequence)
        for layer, weights in batch.weights.items():
            assert_close(weights[row, :, start:, start:], seen.weights[layer][0])
            assert (weights[row, :, :start] == 0).all()
            assert (weights[row, :, :, :start] == 0).all()
        for head, own in head_outputs(model, sequence).items():
            assert_close(z[head][row, start:], own[0])
            assert (z[head][row, :start] == 0).all()
        assert_close(ablated[row, start:], ablate_heads(model, sequence, [(0, 1), (1, 4)], "zero")[0])


@pytest.mark.parametrize("flavour", all_but(["gemma", "llama", "window"], lambda flavour: flavour == "gemma"))
@torch.no_grad()
def test_pattern_scores_of_a_left_padded_batch_equal_each_sequence_alone(flavour):
    model, tokens = model_of(flavour), torch.randint(3, (B, N))  # of three tokens, so that they repeat
    with observe(model) as batch:
        model(tokens, **PADDED)
    for layer, weights in batch.weights.items():
        found = patterns.pattern_scores(weights, tokens[:, None], batch.visible[layer])
        for row, _, sequence in alone(tokens):
            with observe(model) as seen:
                model(sequence)
            own = patterns.pattern_scores(seen.weights[layer], sequence[:, None], seen.visible[layer])
            for name, score in own.items():
                assert_close(found[name][row], score[0], equal_nan=True)
        assert attention_entropy(weights, batch.visible[layer]).isfinite().all()


# --- caches ---------------------------------------------------------------------------------------------------------


@each_flavour
@torch.no_grad()
def test_observe_with_caches_records_the_rows_of_the_new_tokens(flavour):
    if flavour == "dynamic":
        pytest.skip("dynamic scaling beyond the trained length refuses caches")
    model, tokens = model_of(flavour), torch.randint(V, (B, N))
    with observe(model) as entire:
        model(tokens)
    caches = model.new_caches()
    model(tokens[:, :5], caches=caches)
    with observe(model) as seen:
        model(tokens[:, 5:], caches=caches)
    for layer, weights in entire.weights.items():
        assert_close(seen.weights[layer], weights[:, :, 5:])
        assert torch.equal(seen.visible[layer], entire.visible[layer][:, :, 5:])


@pytest.mark.parametrize("use_cache", [True, False])
def test_patch_heads_constant_works_while_text_is_generated_with_and_without_cache(use_cache):
    model, tokens = model_of("llama"), torch.randint(V, (B, 3))
    new = torch.randn(model.config.head_width)
    with patch_heads(model, {(0, 2): new}):
        found = generate(model, tokens, 5, temperature=0, use_cache=use_cache)
        expected = tokens
        for _ in range(5):
            expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, expected)


@pytest.mark.rejects
def test_patch_heads_of_a_whole_sequence_raises_with_caches():
    """An output for each of the tokens does not fit one new token."""
    model, tokens = model_of("llama"), torch.randint(V, (B, 5))
    with (
        pytest.raises(ValueError, match=r"the output of head \(0, 2\) must broadcast to \(4, 1, 4\), got \(4, 5, 4\)"),
        patch_heads(model, {(0, 2): head_outputs(model, tokens)[0, 2]}),
    ):
        generate(model, tokens, 2, temperature=0, use_cache=True)


@pytest.mark.rejects
@pytest.mark.parametrize("how", ["mean", "resample"])
def test_ablate_heads_from_other_sequences_raises_with_a_mask(how):
    model, tokens = model_of("gpt2"), torch.randint(V, (B, N))
    with pytest.raises(ValueError, match='how must be "zero" with a mask'):
        ablate_heads(model, tokens, [(0, 1)], how, **PADDED)


def test_every_flavour_has_the_heads_that_are_ablated():
    assert all(config_of(flavour).n_layers == L and config_of(flavour).n_heads == H for flavour in FLAVOURS)
