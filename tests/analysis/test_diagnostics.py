"""Tests of the recording of activations, of the measures on it, and of entropy and rank collapse."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lessons_lib.analysis import diagnostics
from lessons_lib.analysis.diagnostics import observe, observe_routing
from lessons_lib.analysis.geometry import effective_rank
from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention, attention_weights, attention_weights_and_mask, declare_weights
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Causal, Window
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.foundations.norms import LayerNorm
from lessons_lib.transformer import stabilise
from lessons_lib.transformer.blocks import PostNorm, PreNorm, TransformerBlock
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.feedforward import FeedForward, MixtureOfExperts
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import initialise_normal

LAYERS = ["blocks.0.attention.sublayer", "blocks.1.attention.sublayer", "blocks.2.attention.sublayer"]
BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]


def small_gpt(**settings):
    return GPT(GPTConfig(11, 7, 12, 3, 4, n_kv_heads=2, d_head=6, **{"position": "rotary", "dropout": 0.3} | settings))


def random_tokens():
    return torch.randint(11, (2, 7))


def hooks_and_modes(model):
    """Everything in a model that ``observe`` could leave changed."""
    return {
        name: (
            len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks),
            getattr(module, "implementation", None),
            module.training,
            sorted(vars(module)),
        )
        for name, module in model.named_modules()
    }


# --- observe --------------------------------------------------------------------------------------------------------


def test_observe_records_the_weights_of_the_implementation():
    averaged = []

    @declare_weights(attention_weights_and_mask)
    def spy(q, k, v, mask, **options):
        averaged.append(attention_weights(q, k, mask, bias=options["bias"]))
        return attention(q, k, v, mask, **options)

    model, x = GPT(small_gpt(position="alibi").config, implementation=spy), random_tokens()
    with observe(model) as seen:
        model(x)
    assert list(seen.weights) == list(seen.visible) == LAYERS
    for ours, theirs in zip(seen.weights.values(), averaged, strict=True):
        assert torch.equal(ours, theirs)
    assert all(torch.equal(visible, masks.causal(7).expand(2, 4, 7, 7)) for visible in seen.visible.values())
    assert not any(weights.requires_grad for weights in seen.weights.values())


def test_observe_weights_equal_the_weights_method_of_the_layer():
    model, x = small_gpt().eval(), random_tokens()
    with observe(model) as seen:
        model(x)
    first = model.blocks[0].attention
    theirs = first.sublayer.weights(first.norm(model.embedding(x)), mask=masks.causal(7))
    assert_close(seen.weights[LAYERS[0]], theirs)


def test_observe_includes_cached_keys():
    model, x = small_gpt().eval(), random_tokens()
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


def test_observe_visible_excludes_masked_keys_and_infinite_biases():
    layer, x = MultiHeadAttention(6, 2), torch.randn(3, 5, 6)
    bias = torch.zeros(5, 5).index_fill(1, torch.tensor([2]), -torch.inf)
    with observe(layer) as seen:
        layer(x, mask=masks.causal(5), bias=bias)
        assert torch.equal(seen.visible[""], (masks.causal(5) & (bias == 0)).expand(3, 2, 5, 5))
        layer(x)
        assert seen.visible[""].all()


def test_observe_records_block_inputs_outputs_and_gradients():
    model, x = small_gpt(dropout=0.0), random_tokens()
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
def test_observe_leaves_no_hooks_on_the_model(with_error):
    model, x = small_gpt(), random_tokens()
    before = hooks_and_modes(model)
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
    assert hooks_and_modes(model) == before


def test_observe_does_not_change_outputs_or_gradients():
    model, x = small_gpt(), random_tokens()
    stabilise.apply_sigma_reparam(model.blocks)
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def step(recorded):
        model.load_state_dict(saved)
        model.zero_grad()
        torch.manual_seed(5)
        if recorded:
            with observe(model):
                model(x).square().sum().backward()
        else:
            model(x).square().sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return gradients | {f"{name} after": tensor.clone() for name, tensor in model.state_dict().items()}

    assert_close(step(recorded=True), step(recorded=False), rtol=0, atol=0)


def test_observe_records_the_mask_of_a_rule():
    layer, x = MultiHeadAttention(12, 2, implementation=fused_attention), torch.randn(1, 5, 12)
    with observe(layer) as seen:
        out = layer(x, mask=Causal() & Window(2))
    assert torch.equal(seen.visible[""][0, 0], masks.sliding_window(5, 2))
    assert_close(seen.weights[""], layer.weights(x, mask=masks.sliding_window(5, 2)), rtol=0, atol=0)
    assert_close(out, layer(x, mask=masks.sliding_window(5, 2)))


def test_observe_can_be_nested():
    model, x = small_gpt().eval(), random_tokens()
    before = hooks_and_modes(model)
    with observe(model) as outer, observe(model) as inner:
        model(x)
    assert all(torch.equal(outer.weights[name], inner.weights[name]) for name in LAYERS)
    assert hooks_and_modes(model) == before


def test_observe_model_without_attention_raises():
    with pytest.raises(ValueError, match="must contain a MultiHeadAttention, a block or experts, got Linear without"):
        observe(nn.Linear(2, 3)).__enter__()


# --- mixtures of experts --------------------------------------------------------------------------------------------


def gpt_with_experts():
    model = small_gpt(dropout=0.0)
    for block in model.blocks[1:]:
        block.feedforward.sublayer = MixtureOfExperts(12, 5, 4, 2)
    return model


MIXTURES = ["blocks.1.feedforward.sublayer", "blocks.2.feedforward.sublayer"]


@pytest.mark.parametrize("recorder", [lambda model: observe(model), observe_routing])
def test_observe_records_the_routing_of_forward(recorder):
    model, x = gpt_with_experts(), random_tokens()
    before, inputs = hooks_and_modes(model), {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: inputs.update({name: args[0]})
        )
        for name in MIXTURES
    ]
    with recorder(model) as seen:
        logits = model(x)
    routings = seen if isinstance(seen, dict) else seen.routings
    assert list(routings) == MIXTURES
    for name, routing in routings.items():
        expected = model.get_submodule(name).route(inputs[name])
        assert_close(routing._asdict(), expected._asdict(), rtol=0, atol=0)
    for hook in hooks:
        hook.remove()
    assert hooks_and_modes(model) == before
    assert_close(model(x), logits, rtol=0, atol=0)


def test_observed_balance_loss_has_gradients():
    """The balance loss has a gradient with respect to the router and, through earlier layers, the embedding."""
    model, x = gpt_with_experts(), random_tokens()
    with observe_routing(model) as routings:
        model(x)
    sum(routing.balance_loss for routing in routings.values()).backward()
    router = model.get_submodule(MIXTURES[1]).w_router.weight.grad
    assert router.abs().max() > 0
    assert model.embedding.weight.grad.abs().max() > 0


def test_observe_routing_model_without_experts_raises():
    with (
        pytest.raises(ValueError, match="must contain a MixtureOfExperts, got GPT without any"),
        observe_routing(small_gpt()),
    ):
        pass
    with observe(small_gpt()) as seen:
        assert seen.routings == {}


# --- measures -------------------------------------------------------------------------------------------------------


def test_attention_entropy_is_one_for_uniform_weights_and_zero_for_one_key():
    mask = masks.causal(7)
    uniform = (mask / mask.sum(-1, keepdim=True)).expand(2, 3, 7, 7)
    sharp = torch.eye(7).expand(2, 3, 7, 7)
    assert_close(diagnostics.attention_entropy(uniform, mask), torch.ones(3))
    assert_close(diagnostics.attention_entropy(sharp, mask), torch.zeros(3))
    assert_close(diagnostics.attention_entropy(torch.full((2, 3, 5, 7), 1 / 7)), torch.ones(3))


def test_attention_entropy_is_per_head_and_ignores_rows_with_one_visible_key():
    lengths = torch.tensor([1, 4])
    mask = masks.causal(7) & masks.padding(lengths, 7)
    weights = attention_weights(torch.randn(2, 3, 7, 5), torch.randn(2, 3, 7, 5), mask)
    rows = [
        [-sum(p * math.log(p) for p in weights[1, h, i].tolist() if p) / math.log(min(i + 1, 4)) for i in range(1, 7)]
        for h in range(3)
    ]
    assert_close(diagnostics.attention_entropy(weights, mask), torch.tensor(rows).mean(-1))


def test_attention_entropy_invalid_arguments_raise():
    mask = torch.eye(5, dtype=torch.bool)
    with pytest.raises(ValueError, match="some query must have at least two visible keys"):
        diagnostics.attention_entropy(torch.eye(5).expand(2, 3, 5, 5), mask)
    with pytest.raises(ValueError, match="p must sum to one"):
        diagnostics.attention_entropy(torch.full((2, 3, 5, 5), 0.3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    weights = torch.randn(2, 3, 5, 7).softmax(-1).to(dtype)
    assert_close(
        diagnostics.attention_entropy(weights),
        diagnostics.attention_entropy(weights.double() / weights.double().sum(-1, keepdim=True)).to(dtype),
    )
    assert_close(diagnostics.token_spread(weights), diagnostics.token_spread(weights.float()).to(dtype))


def test_token_spread_is_one_for_centred_tokens_and_zero_for_equal_tokens():
    x = torch.randn(2, 7, 5)
    mean = x.mean(1, keepdim=True)
    assert_close(diagnostics.token_spread(x - mean), torch.ones(2))
    assert_close(diagnostics.token_spread(mean.expand(2, 7, 5)), torch.zeros(2), rtol=0, atol=1e-15)
    by_hand = ((x - mean).square().sum((1, 2)) / x.square().sum((1, 2))).sqrt()
    assert_close(diagnostics.token_spread(x), by_hand)
    assert_close(diagnostics.token_spread(3 * x), by_hand)


@pytest.mark.parametrize("bad", [0.0, torch.inf, torch.nan])
def test_token_spread_zero_or_infinite_sequence_raises(bad):
    x = torch.randn(2, 7, 5)
    x[1] = bad
    with pytest.raises(ValueError, match="x must be finite and not zero in every sequence"):
        diagnostics.token_spread(x)


def test_summarise_layers_equals_the_single_measures():
    model, x = small_gpt(dropout=0.0), random_tokens()
    with observe(model) as seen:
        loss = model(x).square().sum()
        without = diagnostics.summarise_layers(seen)["blocks.1"]
        loss.backward()
    summary, stream = diagnostics.summarise_layers(seen)["blocks.1"], seen.outputs["blocks.1"]
    assert list(diagnostics.summarise_layers(seen)) == BLOCKS
    assert summary.activation_norm == pytest.approx(stream.square().sum(-1).sqrt().mean().item())
    assert summary.gradient_norm == pytest.approx(seen.gradients["blocks.1"].square().sum().sqrt().item())
    assert summary.token_spread == pytest.approx(diagnostics.token_spread(stream).mean().item())
    assert summary.effective_rank == pytest.approx(effective_rank(stream).mean().item())
    assert math.isnan(without.gradient_norm)
    assert without[2:] == summary[2:]


def test_parameter_gradient_norms_has_one_norm_per_parameter():
    model = small_gpt()
    with pytest.raises(ValueError, match="got none; call backward"):
        diagnostics.parameter_gradient_norms(model)
    model(random_tokens()).square().sum().backward()
    norms = diagnostics.parameter_gradient_norms(model)
    assert norms.keys() == dict(model.named_parameters()).keys()
    assert math.hypot(*norms.values()) == pytest.approx(nn.utils.get_total_norm([p.grad for p in model.parameters()]))


# --- collapse -------------------------------------------------------------------------------------------------------


def with_scaled_queries(model, gain):
    with torch.no_grad():
        for block in model.blocks:
            block.attention.sublayer.w_q.weight[:6] *= gain  # the rows of head 0
    return model


def entropies_of(model, x):
    with observe(model) as seen:
        model(x)
    return diagnostics.head_entropies(seen)


def test_entropy_collapse_returns_the_heads_with_low_entropy():
    model, x = small_gpt(bias=False).eval(), random_tokens()
    initialise_normal(model, std=0.3)
    before = entropies_of(model, x)
    assert all(0.5 < heads.min() < heads.max() <= 1 for heads in before.values())
    assert diagnostics.entropy_collapse(before, before) == []
    now = entropies_of(with_scaled_queries(model, 1000.0), x)
    assert diagnostics.entropy_collapse(now, before) == [(name, 0) for name in LAYERS]


def test_entropy_collapse_invalid_arguments_raise():
    ours = {"a": torch.ones(3)}
    for theirs in ({"a": torch.ones(2)}, {"b": torch.ones(3)}):
        with pytest.raises(ValueError, match="must have the same layers and heads"):
            diagnostics.entropy_collapse(ours, theirs)
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match="share must be between 0 and 1"):
            diagnostics.entropy_collapse(ours, ours, share=share)


class WithoutResidual(nn.Module):
    """A wrapper like ``PreNorm``, but without the norm and the residual connection."""

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


def rank_collapse_of(model):
    with observe(model) as seen:
        model(torch.randn(3, 17, 24))
    return diagnostics.rank_collapse(seen), [
        summary.token_spread for summary in diagnostics.summarise_layers(seen).values()
    ]


def test_rank_collapse_occurs_without_residual_connections():
    names, spreads = rank_collapse_of(stack(WithoutResidual))
    assert names == [str(depth) for depth in range(8 - len(names), 8)]  # every block from some depth on
    assert len(names) >= 6
    assert spreads[-1] < 1e-8


def test_rank_collapse_is_prevented_by_residual_connections():
    names, spreads = rank_collapse_of(stack(lambda sublayer: PreNorm(sublayer, LayerNorm(24))))
    assert names == []
    assert spreads[-1] > 0.5
    _, post = rank_collapse_of(stack(lambda sublayer: PostNorm(sublayer, LayerNorm(24))))
    assert 1e-8 < post[-1] < spreads[-1]


def test_rank_collapse_invalid_arguments_raise():
    with pytest.raises(ValueError, match="no block was recorded"):
        diagnostics.rank_collapse(diagnostics.Observation())
    with pytest.raises(ValueError, match="share must be between 0 and 1, got"):
        diagnostics.rank_collapse(diagnostics.Observation(), share=1.5)


# --- removed names --------------------------------------------------------------------------------------------------


def test_removed_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'cure'"):
        diagnostics.cure  # noqa: B018
