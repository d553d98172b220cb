"""What is seen is what was computed, nothing of the looking remains, and the remedies do what their formulas say."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from lessons_lib import diagnostics, masks
from lessons_lib.attention import attention, attention_weights
from lessons_lib.blocks import PostNorm, PreNorm, TransformerBlock
from lessons_lib.diagnostics import QKNorm, SigmaReparam, observe
from lessons_lib.feedforward import FeedForward
from lessons_lib.geometry import effective_rank
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.norms import LayerNorm
from lessons_lib.positions import RotaryEmbedding
from lessons_lib.training import initialise_normal

LAYERS = ["blocks.0.attention.sublayer", "blocks.1.attention.sublayer", "blocks.2.attention.sublayer"]
BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]


def small(**settings):
    return GPT(GPTConfig(11, 7, 12, 3, 4, n_kv_heads=2, d_head=6, **{"position": "rotary", "dropout": 0.3} | settings))


def tokens():
    return torch.randint(11, (2, 7))


def state(model):
    """Everything that a look could leave behind."""
    return {
        name: (
            len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks),
            getattr(module, "implementation", None),
            module.training,
            sorted(vars(module)),
        )
        for name, module in model.named_modules()
    }


# --- looking --------------------------------------------------------------------------------------------------------


def test_the_weights_are_those_that_forward_averaged_with():
    averaged = []

    def spy(q, k, v, mask, **options):
        averaged.append(attention_weights(q, k, mask, bias=options["bias"]))
        return attention(q, k, v, mask, **options)

    model, x = GPT(small(position="alibi").config, implementation=spy), tokens()
    with observe(model) as seen:
        model(x)
    assert list(seen.weights) == list(seen.visible) == LAYERS
    for ours, theirs in zip(seen.weights.values(), averaged, strict=True):
        assert torch.equal(ours, theirs)
    assert all(torch.equal(visible, masks.causal(7).expand(2, 4, 7, 7)) for visible in seen.visible.values())
    assert not any(weights.requires_grad for weights in seen.weights.values())


def test_the_layers_own_weights_agree():
    model, x = small().eval(), tokens()
    with observe(model) as seen:
        model(x)
    first = model.blocks[0].attention
    theirs = first.sublayer.weights(first.norm(model.embedding(x)), mask=masks.causal(7))
    assert_close(seen.weights[LAYERS[0]], theirs)


def test_keys_in_the_cache_are_seen_too():
    model, x = small().eval(), tokens()
    with observe(model) as seen:
        model(x)
    whole = seen.weights
    caches = model.new_caches()
    model(x[:, :5], caches=caches)
    with observe(model) as seen:
        model(x[:, 5:], caches=caches)
    for name in LAYERS:
        assert_close(seen.weights[name], whole[name][:, :, 5:])
    assert len(caches[0]) == 7


def test_hidden_keys_are_not_counted_as_visible():
    layer, x = MultiHeadAttention(6, 2), torch.randn(3, 5, 6)
    bias = torch.zeros(5, 5).index_fill(1, torch.tensor([2]), -torch.inf)
    with observe(layer) as seen:
        layer(x, mask=masks.causal(5), bias=bias)
        assert torch.equal(seen.visible[""], (masks.causal(5) & (bias == 0)).expand(3, 2, 5, 5))
        layer(x)
        assert seen.visible[""].all()


def test_blocks_are_a_chain_and_gradients_are_those_of_the_stream():
    model, x = small(dropout=0.0), tokens()
    with observe(model) as seen:
        model(x).square().sum().backward()
    assert list(seen.inputs) == list(seen.outputs) == BLOCKS
    assert sorted(seen.gradients) == BLOCKS
    assert torch.equal(seen.inputs["blocks.0"], model.embedding(x))
    assert torch.equal(seen.inputs["blocks.2"], seen.outputs["blocks.1"])
    stream = seen.outputs["blocks.2"].clone().requires_grad_()
    model.head(model.norm(stream)).square().sum().backward()
    assert_close(seen.gradients["blocks.2"], stream.grad)


@pytest.mark.parametrize("with_error", [False, True])
def test_nothing_remains(with_error):
    model, x = small(), tokens()
    before = state(model)
    if with_error:
        with pytest.raises(ValueError, match="tokens must be in"), observe(model):
            model(x + 11)
    else:
        with observe(model) as seen:
            loss = model(x).sum()
        loss.backward()
        assert not seen.gradients
        seen.outputs.clear()
        model(x)
        assert not seen.outputs
    assert state(model) == before


def test_looking_changes_nothing():
    model, x = small(), tokens()
    diagnostics.apply_sigma_reparam(model.blocks)
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def step(look):
        model.load_state_dict(saved)
        model.zero_grad()
        torch.manual_seed(5)
        if look:
            with observe(model):
                model(x).square().sum().backward()
        else:
            model(x).square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return gradients | {f"{name} after": tensor.clone() for name, tensor in model.state_dict().items()}

    assert_close(step(look=True), step(look=False), rtol=0, atol=0)


def test_one_may_look_inside_a_look():
    model, x = small().eval(), tokens()
    before = state(model)
    with observe(model) as outer, observe(model) as inner:
        model(x)
    assert all(torch.equal(outer.weights[name], inner.weights[name]) for name in LAYERS)
    assert state(model) == before


def test_a_model_with_nothing_to_see_is_refused():
    with pytest.raises(ValueError, match="must contain a MultiHeadAttention or a block, got Linear without"):
        observe(nn.Linear(2, 3)).__enter__()


# --- measuring ------------------------------------------------------------------------------------------------------


def test_uniform_attention_is_one_and_a_single_key_zero_in_every_row_that_has_a_choice():
    mask = masks.causal(7)
    uniform = (mask / mask.sum(-1, keepdim=True)).expand(2, 3, 7, 7)
    sharp = torch.eye(7).expand(2, 3, 7, 7)
    assert_close(diagnostics.attention_entropy(uniform, mask), torch.ones(3))
    assert_close(diagnostics.attention_entropy(sharp, mask), torch.zeros(3))
    assert_close(diagnostics.attention_entropy(torch.full((2, 3, 5, 7), 1 / 7)), torch.ones(3))


def test_entropies_are_per_head_and_leave_out_rows_without_a_choice():
    lengths = torch.tensor([1, 4])
    mask = masks.causal(7) & masks.padding(lengths, 7)
    weights = attention_weights(torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 5), mask)
    rows = [
        [-sum(p * math.log(p) for p in weights[1, h, i].tolist() if p) / math.log(min(i + 1, 4)) for i in range(1, 7)]
        for h in range(3)
    ]
    assert_close(diagnostics.attention_entropy(weights, mask), torch.tensor(rows).mean(-1))


def test_no_row_with_a_choice_is_refused():
    mask = torch.eye(5, dtype=torch.bool)
    with pytest.raises(ValueError, match="some query must see at least two keys"):
        diagnostics.attention_entropy(torch.eye(5).expand(2, 3, 5, 5), mask)
    with pytest.raises(ValueError, match="p must sum to one"):
        diagnostics.attention_entropy(torch.full((2, 3, 5, 5), 0.3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_single(dtype):
    weights = torch.randn(2, 3, 5, 7).softmax(-1).to(dtype)
    assert_close(
        diagnostics.attention_entropy(weights),
        diagnostics.attention_entropy(weights.double() / weights.double().sum(-1, keepdim=True)).to(dtype),
    )
    assert_close(diagnostics.token_spread(weights), diagnostics.token_spread(weights.float()).to(dtype))


def test_the_spread_is_one_for_centred_tokens_and_zero_for_equal_ones():
    x = torch.randn(2, 7, 5)
    mean = x.mean(1, keepdim=True)
    assert_close(diagnostics.token_spread(x - mean), torch.ones(2))
    assert_close(diagnostics.token_spread(mean.expand(2, 7, 5)), torch.zeros(2), rtol=0, atol=1e-15)
    by_hand = ((x - mean).square().sum((1, 2)) / x.square().sum((1, 2))).sqrt()
    assert_close(diagnostics.token_spread(x), by_hand)
    assert_close(diagnostics.token_spread(3 * x), by_hand)


@pytest.mark.parametrize("bad", [0.0, torch.inf, torch.nan])
def test_no_spread_without_a_length(bad):
    x = torch.randn(2, 7, 5)
    x[1] = bad
    with pytest.raises(ValueError, match="x must be finite and not zero in every sequence"):
        diagnostics.token_spread(x)


def test_a_summary_is_its_measures():
    model, x = small(dropout=0.0), tokens()
    with observe(model) as seen:
        loss = model(x).square().sum()
        without = diagnostics.summarise(seen)["blocks.1"]
        loss.backward()
    summary, stream = diagnostics.summarise(seen)["blocks.1"], seen.outputs["blocks.1"]
    assert list(diagnostics.summarise(seen)) == BLOCKS
    assert summary.activation_norm == pytest.approx(stream.square().sum(-1).sqrt().mean().item())
    assert summary.gradient_norm == pytest.approx(seen.gradients["blocks.1"].square().sum().sqrt().item())
    assert summary.token_spread == pytest.approx(diagnostics.token_spread(stream).mean().item())
    assert summary.effective_rank == pytest.approx(effective_rank(stream).mean().item())
    assert math.isnan(without.gradient_norm)
    assert without[2:] == summary[2:]


def test_gradient_norms_are_by_parameter():
    model = small()
    with pytest.raises(ValueError, match="got none; call backward"):
        diagnostics.parameter_gradient_norms(model)
    model(tokens()).square().sum().backward()
    norms = diagnostics.parameter_gradient_norms(model)
    assert norms.keys() == dict(model.named_parameters()).keys()
    assert math.hypot(*norms.values()) == pytest.approx(nn.utils.get_total_norm([p.grad for p in model.parameters()]))


# --- judging --------------------------------------------------------------------------------------------------------


def sharpened(model, gain):
    with torch.no_grad():
        for block in model.blocks:
            block.attention.sublayer.w_q.weight[:6] *= gain  # the first head's
    return model


def entropies(model, x):
    with observe(model) as seen:
        model(x)
    return diagnostics.head_entropies(seen)


def test_entropy_collapse_names_the_heads_that_became_sharp():
    model, x = small(bias=False).eval(), tokens()
    initialise_normal(model, std=0.3)
    before = entropies(model, x)
    assert all(0.5 < heads.min() < heads.max() <= 1 for heads in before.values())
    assert diagnostics.entropy_collapse(before, before) == []
    now = entropies(sharpened(model, 1000.0), x)
    assert diagnostics.entropy_collapse(now, before) == [(name, 0) for name in LAYERS]


def test_entropies_of_other_heads_are_not_compared():
    ours = {"a": torch.ones(3)}
    for theirs in ({"a": torch.ones(2)}, {"b": torch.ones(3)}):
        with pytest.raises(ValueError, match="must be of the same heads"):
            diagnostics.entropy_collapse(ours, theirs)
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="share must be between 0 and 1"):
            diagnostics.entropy_collapse(ours, ours, share=share)


class NoResidual(nn.Module):
    """A wrapper that forgets to add."""

    def __init__(self, sublayer):
        super().__init__()
        self.sublayer = sublayer

    def forward(self, x, *args, **kwargs):
        return self.sublayer(x, *args, **kwargs)


def stack(wrap, depth=8):
    blocks = [TransformerBlock(wrap(MultiHeadAttention(24, 4)), wrap(FeedForward(24, 48))) for _ in range(depth)]
    for block in blocks:
        initialise_normal(block, std=1 / math.sqrt(24))
    return nn.Sequential(*blocks)


def collapsed(model):
    with observe(model) as seen:
        model(torch.randn(3, 17, 24))
    return diagnostics.rank_collapse(seen), [summary.token_spread for summary in diagnostics.summarise(seen).values()]


def test_rank_collapses_without_residual_sums_even_with_feedforwards():
    names, spreads = collapsed(stack(NoResidual))
    assert names == [str(depth) for depth in range(8 - len(names), 8)]  # from some depth on, all
    assert len(names) >= 6
    assert spreads[-1] < 1e-8


def test_residual_sums_hold_it():
    names, spreads = collapsed(stack(lambda sublayer: PreNorm(sublayer, LayerNorm(24))))
    assert names == []
    assert spreads[-1] > 0.5
    _, post = collapsed(stack(lambda sublayer: PostNorm(sublayer, LayerNorm(24))))
    assert 1e-8 < post[-1] < spreads[-1]


def test_the_rank_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no block was seen"):
        diagnostics.rank_collapse(diagnostics.Observation())
    with pytest.raises(ValueError, match="share must be between 0 and 1, got"):
        diagnostics.rank_collapse(diagnostics.Observation(), share=1.5)


# --- treating: sigma ------------------------------------------------------------------------------------------------


def spectral_norm(weight):
    return torch.linalg.matrix_norm(weight, 2)


def test_the_matrix_starts_with_spectral_norm_one_and_gamma_is_it():
    layer = nn.Linear(7, 5)
    plain = layer.weight.detach().clone()
    diagnostics.apply_sigma_reparam(layer)
    assert_close(layer.weight, plain / spectral_norm(plain))
    layer.parametrizations.weight[0].gamma.data.fill_(2.5)
    assert_close(spectral_norm(layer.weight), torch.tensor(2.5))


def test_it_is_pytorchs_spectral_norm_times_gamma():
    """Weights and gradients, in training, from the same singular vectors: 3 steps, the matrix changed in between."""
    ours, theirs = nn.Linear(7, 5, bias=False), nn.Linear(7, 5, bias=False)
    theirs.load_state_dict(ours.state_dict())
    diagnostics.apply_sigma_reparam(ours)
    nn.utils.parametrizations.spectral_norm(theirs, n_power_iterations=1)
    reparam, reference = ours.parametrizations.weight[0], theirs.parametrizations.weight[0]
    reparam.gamma.data.fill_(1.7)
    reference._u.copy_(reparam.u)
    reference._v.copy_(reparam.v)
    x = torch.randn(3, 7)
    for _ in range(3):
        out, expected = ours(x), 1.7 * theirs(x)
        assert_close(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        original, other = ours.parametrizations.weight.original, theirs.parametrizations.weight.original
        assert_close(original.grad, other.grad)
        with torch.no_grad():
            original.add_(original.grad, alpha=-0.01)
            other.add_(other.grad, alpha=-0.01)


def test_power_iteration_follows_the_matrix_in_training_alone():
    layer = nn.Linear(7, 5)
    diagnostics.apply_sigma_reparam(layer)
    layer.parametrizations.weight.original.data = torch.randn(5, 7)
    layer.eval()
    before = layer.weight
    assert torch.equal(layer.weight, before)
    assert abs(spectral_norm(before) - 1) > 0.01
    layer.train()
    for _ in range(200):
        layer(torch.randn(2, 7))
    assert_close(spectral_norm(layer.weight), torch.tensor(1.0))


def test_two_forward_passes_before_one_backward_pass():
    layer = nn.Linear(7, 5)
    diagnostics.apply_sigma_reparam(layer)
    x = torch.randn(3, 7)
    (layer(x) + layer(2 * x)).sum().backward()
    assert layer.parametrizations.weight[0].gamma.grad is not None


def test_gamma_is_learned_without_decay():
    model = small()
    diagnostics.apply_sigma_reparam(model.blocks)
    gammas = [p for name, p in model.named_parameters() if name.endswith("gamma")]
    assert len(gammas) == 3 * 6
    assert all(gamma.ndim == 0 for gamma in gammas)
    model(tokens()).square().sum().backward()
    assert all(gamma.grad != 0 for gamma in gammas)


def test_it_can_be_taken_out_again_without_a_change():
    model, x = small(), tokens()
    names = model.state_dict().keys()
    diagnostics.apply_sigma_reparam(model.blocks)
    for _ in range(3):
        model(x).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
    before = model.eval()(x)
    diagnostics.remove_sigma_reparam(model.train())
    assert_close(model.eval()(x), before)
    assert model.state_dict().keys() == names
    assert not any(parametrize.is_parametrized(module) for module in model.modules())


def test_sigma_reparam_where_it_makes_no_sense_is_refused():
    model = small()
    with pytest.raises(ValueError, match="'head' shares its weight with another part; apply this to the blocks"):
        diagnostics.apply_sigma_reparam(model)
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    diagnostics.apply_sigma_reparam(model.blocks)
    with pytest.raises(ValueError, match=r"that of '0.attention.sublayer.w_q' is parametrised already"):
        diagnostics.apply_sigma_reparam(model.blocks)
    with pytest.raises(ValueError, match=r"must contain an nn\.Linear, got LayerNorm without"):
        diagnostics.apply_sigma_reparam(LayerNorm(3))
    with pytest.raises(ValueError, match="must contain a layer under SigmaReparam, got Linear without"):
        diagnostics.remove_sigma_reparam(nn.Linear(2, 3))
    with pytest.raises(ValueError, match="must be a matrix that is not zero"):
        SigmaReparam(torch.zeros(2, 3))


@pytest.mark.rejects
def test_only_matrices_have_singular_values():
    with pytest.raises(ValueError, match=r"must be a matrix that is not zero, got shape \(2, 3, 5\)"):
        SigmaReparam(torch.randn(2, 3, 5))


# --- treating: queries and keys -------------------------------------------------------------------------------------


def test_scores_are_those_of_normalised_queries_and_keys():
    norm = QKNorm(6)
    layer, x = MultiHeadAttention(12, 2, position=norm), torch.randn(3, 5, 12)
    norm.norm.weight.data.uniform_(0.5, 2.0)
    q, k = (w(x).unflatten(-1, (2, 6)).transpose(1, 2) for w in (layer.w_q, layer.w_k))
    q, k = (nn.functional.rms_norm(h, (6,), norm.norm.weight, eps=1e-6) for h in (q, k))
    assert_close(layer.weights(x), (q @ k.mT / math.sqrt(6)).softmax(-1))


def test_no_query_however_long_exceeds_the_bound():
    norm, x = QKNorm(6), 1e6 * torch.randn(3, 2, 5, 6)
    positions = torch.arange(5)
    scores = norm(x, positions) @ norm(x, positions).mT / math.sqrt(6)
    assert scores.abs().max() <= math.sqrt(6) * (1 + 1e-12)


def test_a_rotary_embedding_follows_the_norm():
    rotary, x = RotaryEmbedding(6), torch.randn(3, 2, 5, 6)
    positions = torch.arange(5)
    norm = QKNorm(6, rotary)
    assert_close(norm(x, positions), rotary(norm.norm(x), positions))


def test_it_goes_into_every_layer_of_a_model():
    model, x = small(), tokens()
    diagnostics.apply_qk_norm(model)
    assert sum(name.endswith("position.norm.weight") for name, _ in model.named_parameters()) == 3
    model(x).square().sum().backward()
    assert all(block.attention.sublayer.position.norm.weight.grad is not None for block in model.blocks)
    with pytest.raises(ValueError, match="must contain attention layers without QKNorm, got GPT"):
        diagnostics.apply_qk_norm(model)
    with pytest.raises(ValueError, match="must contain attention layers without QKNorm, got Linear"):
        diagnostics.apply_qk_norm(nn.Linear(2, 3))


@pytest.mark.parametrize(
    "treat", [diagnostics.apply_qk_norm, lambda model: diagnostics.apply_sigma_reparam(model.blocks)]
)
def test_a_treated_model_is_still_causal_and_caches(treat):
    model, x = small(), tokens()
    treat(model)
    model.eval()
    whole = model(x)
    other = x.clone()
    other[:, 5] = (x[:, 5] + 1) % 11
    assert torch.equal(model(other)[:, :5], whole[:, :5])
    caches = model.new_caches()
    pieces = [model(part, caches=caches) for part in (x[:, :4], x[:, 4:])]
    assert_close(torch.cat(pieces, dim=1), whole)
