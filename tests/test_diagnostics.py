"""What is seen is what was computed, and nothing of the looking remains."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lessons_lib import diagnostics, masks, stabilise
from lessons_lib.attention import attention, attention_pattern, attention_weights, declares_pattern
from lessons_lib.blocks import PostNorm, PreNorm, TransformerBlock
from lessons_lib.diagnostics import observe, observe_routing
from lessons_lib.feedforward import FeedForward, MixtureOfExperts
from lessons_lib.fused import fused_attention
from lessons_lib.geometry import effective_rank
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.initialise import initialise_normal
from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.norms import LayerNorm
from lessons_lib.rules import Causal, Window

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

    @declares_pattern(attention_pattern)
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
    stabilise.apply_sigma_reparam(model.blocks)
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


def test_what_a_rule_shows_is_seen():
    layer, x = MultiHeadAttention(12, 2, implementation=fused_attention), torch.randn(1, 5, 12)
    with observe(layer) as seen:
        out = layer(x, mask=Causal() & Window(2))
    assert torch.equal(seen.visible[""][0, 0], masks.sliding_window(5, 2))
    assert_close(seen.weights[""], layer.weights(x, mask=masks.sliding_window(5, 2)), rtol=0, atol=0)
    assert_close(out, layer(x, mask=masks.sliding_window(5, 2)))


def test_one_may_look_inside_a_look():
    model, x = small().eval(), tokens()
    before = state(model)
    with observe(model) as outer, observe(model) as inner:
        model(x)
    assert all(torch.equal(outer.weights[name], inner.weights[name]) for name in LAYERS)
    assert state(model) == before


def test_a_model_with_nothing_to_see_is_refused():
    with pytest.raises(ValueError, match="must contain a MultiHeadAttention, a block or experts, got Linear without"):
        observe(nn.Linear(2, 3)).__enter__()


# --- looking at experts ---------------------------------------------------------------------------------------------


def with_experts():
    model = small(dropout=0.0)
    for block in model.blocks[1:]:
        block.feedforward.sublayer = MixtureOfExperts(12, 5, 4, 2)
    return model


MIXTURES = ["blocks.1.feedforward.sublayer", "blocks.2.feedforward.sublayer"]


@pytest.mark.parametrize("look", [lambda model: observe(model), observe_routing])
def test_the_routing_is_the_one_that_forward_used(look):
    model, x = with_experts(), tokens()
    before, inputs = state(model), {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: inputs.update({name: args[0]})
        )
        for name in MIXTURES
    ]
    with look(model) as seen:
        logits = model(x)
    routings = seen if isinstance(seen, dict) else seen.routings
    assert list(routings) == MIXTURES
    for name, routing in routings.items():
        expected = model.get_submodule(name).route(inputs[name])
        assert_close(routing._asdict(), expected._asdict(), rtol=0, atol=0)
    for hook in hooks:
        hook.remove()
    assert state(model) == before
    assert_close(model(x), logits, rtol=0, atol=0)


def test_the_balance_loss_can_be_learned_from():
    """Its gradient through the real forward pass is that of the routing computed by hand."""
    model, x = with_experts(), tokens()
    with observe_routing(model) as routings:
        model(x)
    sum(routing.balance_loss for routing in routings.values()).backward()
    router = model.get_submodule(MIXTURES[1]).w_router.weight.grad
    assert router.abs().max() > 0
    assert model.embedding.weight.grad.abs().max() > 0


def test_looking_for_experts_where_there_are_none_is_refused():
    with pytest.raises(ValueError, match="must contain a MixtureOfExperts, got GPT without"), observe_routing(small()):
        pass
    with observe(small()) as seen:
        assert seen.routings == {}


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


# --- what stands elsewhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["SigmaReparam", "apply_sigma_reparam", "remove_sigma_reparam", "apply_qk_norm", "QKNorm"]
)
def test_the_remedies_are_found_by_their_older_names(name):
    with pytest.warns(DeprecationWarning, match=f"diagnostics.{name} is deprecated: .* lessons_lib.stabilise"):
        found = getattr(diagnostics, name)
    assert found is getattr(stabilise, {"QKNorm": "SharedQKNorm"}.get(name, name))


def test_other_names_are_still_missing():
    with pytest.raises(AttributeError, match="has no attribute 'cure'"):
        diagnostics.cure  # noqa: B018
