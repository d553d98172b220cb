"""Tests of the feed-forward layers against their formulas, and of the mixture of experts against a loop over tokens."""

import math

import pytest
import torch
from torch.testing import assert_close

from lessons_lib.transformer.feedforward import (
    FeedForward,
    MixtureOfExperts,
    Router,
    SwiGLU,
    gelu,
    gelu_tanh,
    relu,
    swiglu_width,
)

BATCHES = [(), (2,), (2, 3)]


def n_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


# --- activations ----------------------------------------------------------------------------------------------------


def test_activations_match_formulas():
    x = 3 * torch.randn(101)
    assert_close(relu(x), x * (x > 0))
    assert_close(gelu(x), x * torch.special.ndtr(x))
    assert_close(gelu_tanh(x), x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def test_gelu_tanh_error_is_within_documented_bound():
    x = torch.linspace(-10, 10, 10_001)
    assert 4e-4 < (gelu(x) - gelu_tanh(x)).abs().max() < 5e-4


# --- dense ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("activation", [relu, gelu, gelu_tanh])
def test_feedforward_matches_formula(activation, bias, batch):
    network, x = FeedForward(5, 11, activation=activation, bias=bias), torch.randn(*batch, 5)
    up, down = network.w_up, network.w_down
    assert (up.bias is not None) == (down.bias is not None) == bias
    shift_up, shift_down = (up.bias, down.bias) if bias else (0, 0)
    assert_close(network(x), activation(x @ up.weight.T + shift_up) @ down.weight.T + shift_down)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_swiglu_matches_formula(bias, batch):
    network, x = SwiGLU(5, 11, bias=bias), torch.randn(*batch, 5)
    gate, up, down = network.w_gate, network.w_up, network.w_down
    assert all((part.bias is not None) == bias for part in (gate, up, down))
    gated, value = gate(x), x @ up.weight.T + (up.bias if bias else 0)
    assert_close(network(x), down(gated / (1 + (-gated).exp()) * value))


def test_swiglu_matches_transformers_llama_mlp():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    theirs = LlamaMLP(LlamaConfig(hidden_size=6, intermediate_size=11, num_attention_heads=2, num_hidden_layers=1))
    ours, x = SwiGLU(6, 11), torch.randn(2, 3, 6)
    for name, part in (("w_gate", theirs.gate_proj), ("w_up", theirs.up_proj), ("w_down", theirs.down_proj)):
        getattr(ours, name).load_state_dict(part.state_dict())
    assert_close(ours(x), theirs(x))


def test_feedforward_dropout_applies_to_hidden_entries_only_in_training():
    network, x = FeedForward(5, 701, bias=False, dropout=0.25), torch.randn(3, 5)
    hidden = []
    network.w_down.register_forward_pre_hook(lambda module, given: hidden.append(*given))
    network(x)
    network.eval()(x)
    trained, plain = hidden
    kept = trained != 0
    assert_close(trained[kept], plain[kept] / 0.75)
    assert 0.7 < kept.double().mean() < 0.8


@pytest.mark.parametrize("d_model", [3, 6, 96, 767])
def test_swiglu_width_equalises_parameter_counts(d_model):
    gated = n_parameters(SwiGLU(d_model, swiglu_width(d_model)))
    plain = n_parameters(FeedForward(d_model, 4 * d_model, bias=False))
    assert plain - 3 * d_model < gated <= plain


def test_swiglu_width_of_published_models():
    assert swiglu_width(4096, multiple_of=256) == 11008  # Llama 7B
    assert swiglu_width(5120, multiple_of=256) == 13824  # Llama 13B
    assert swiglu_width(96) == 256


# --- mixture: outputs -----------------------------------------------------------------------------------------------


def one_token_at_a_time(moe, x, capacity=math.inf):
    """Compute the mixture by its definition: all first choices of the tokens, in order, before all second ones."""
    tokens = x.reshape(-1, x.shape[-1])
    out, load, dropped = torch.zeros_like(tokens), [0] * len(moe.experts), []
    for choice in range(moe.top_k):
        for number, token in enumerate(tokens):
            p = (moe.w_router.weight @ token).softmax(-1)
            chosen = p.argsort(descending=True)[: moe.top_k]
            expert = chosen[choice].item()
            weight = p[expert] / p[chosen].sum() if moe.renormalise else p[expert]
            if load[expert] < capacity:
                load[expert] += 1
                out[number] = out[number] + weight * moe.experts[expert](token)
            else:
                dropped.append((number, choice))
    return out.reshape(x.shape), load, dropped


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize(
    ("top_k", "renormalise"), [(1, False), (2, True), (2, False), (5, True)], ids=["switch", "mixtral", "raw", "all"]
)
def test_mixture_and_gradients_match_loop_over_tokens(top_k, renormalise, batch):
    moe, x = MixtureOfExperts(3, 7, 5, top_k, renormalise=renormalise), torch.randn(*batch, 3, requires_grad=True)
    expected, load, _ = one_token_at_a_time(moe, x)
    out, routing = moe.forward_with_routing(x)
    assert_close(out, expected)
    assert_close(moe(x), out, rtol=0, atol=0)
    assert routing.load.tolist() == load
    assert not routing.dropped.any()
    assert routing.capacity is None

    upstream, leaves = torch.randn_like(x), (x, *moe.parameters())
    ours = torch.autograd.grad(out, leaves, upstream, materialize_grads=True)
    theirs = torch.autograd.grad(expected, leaves, upstream, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("capacity_factor", [0.3, 0.8, 1.0, 100.0])
@pytest.mark.parametrize("top_k", [1, 2])
def test_capacity_drops_the_same_choices_as_loop_over_tokens(top_k, capacity_factor):
    moe = MixtureOfExperts(3, 7, 5, top_k, capacity_factor=capacity_factor, renormalise=top_k > 1)
    x = torch.randn(2, 13, 3)
    capacity = math.ceil(capacity_factor * 26 * top_k / 5)
    expected, load, dropped = one_token_at_a_time(moe, x, capacity)
    out, routing = moe.forward_with_routing(x)
    assert_close(out, expected)
    assert routing.capacity == capacity
    assert routing.load.tolist() == load
    assert sorted(map(tuple, routing.dropped.reshape(26, top_k).nonzero().tolist())) == sorted(dropped)
    assert routing.load.sum() + routing.dropped.sum() == 26 * top_k
    assert bool(dropped) == (capacity_factor < 2)  # so that smaller capacities do drop choices


def test_token_dropped_by_all_experts_has_zero_output():
    moe = MixtureOfExperts(3, 7, 2, 2, capacity_factor=0.5)
    x = torch.randn(4, 3)
    out, routing = moe.forward_with_routing(x)
    refused = routing.dropped.all(-1)
    assert refused.any()
    assert_close(out[refused], torch.zeros(int(refused.sum()), 3), rtol=0, atol=0)


def test_route_equals_routing_of_forward_and_keeps_no_state():
    moe, x = MixtureOfExperts(3, 7, 5, 2, capacity_factor=0.8), torch.randn(2, 13, 3)
    before = {name: value for name, value in vars(moe).items() if not name.startswith("_")}
    for a, b in zip(moe.route(x), moe.forward_with_routing(x)[1], strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert before == {name: value for name, value in vars(moe).items() if not name.startswith("_")}


def test_router_forward_hook_receives_routing_of_forward():
    moe, x = MixtureOfExperts(3, 7, 5, 2, capacity_factor=0.8), torch.randn(2, 13, 3)
    seen = []
    moe.router.register_forward_hook(lambda module, given, routing: seen.append(routing))
    moe(x)
    _, routing = moe.forward_with_routing(x)
    assert len(seen) == 2
    assert seen[1] is routing
    for a, b in zip(*seen, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_router_has_no_parameters_and_mixture_exposes_its_settings():
    moe = MixtureOfExperts(3, 7, 5, 2, capacity_factor=0.8)
    assert not list(moe.router.state_dict())
    assert (moe.top_k, moe.capacity_factor, moe.renormalise) == (2, 0.8, True)


def test_without_capacity_output_is_independent_of_other_tokens():
    moe, x = MixtureOfExperts(3, 7, 5, 2), torch.randn(2, 13, 3)
    assert_close(moe(x)[1, 4], moe(x[1, 4]))


def test_mixture_matches_transformers_mixtral():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

    d_model, d_ff, n_experts, top_k = 6, 11, 5, 2
    config = MixtralConfig(
        hidden_size=d_model, intermediate_size=d_ff, num_local_experts=n_experts, num_experts_per_tok=top_k
    )
    config._experts_implementation = "eager"
    theirs, ours = MixtralSparseMoeBlock(config), MixtureOfExperts(d_model, d_ff, n_experts, top_k)
    theirs.gate.weight.data = ours.w_router.weight.data
    for number, expert in enumerate(ours.experts):
        both = torch.cat([expert.w_gate.weight, expert.w_up.weight]).detach()
        theirs.experts.gate_up_proj.data[number] = both
        theirs.experts.down_proj.data[number] = expert.w_down.weight.detach()
    x = torch.randn(2, 13, d_model)
    out, routing = ours.forward_with_routing(x)
    # Measured 5e-8: their router rounds its probabilities to float32.
    assert_close(out, theirs(x), rtol=0, atol=1e-6)
    their_loss = load_balancing_loss_func((ours.w_router(x.reshape(-1, d_model)),), n_experts, top_k)
    assert_close(top_k * routing.balance_loss.float(), their_loss, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_routes_in_float32_and_returns_input_dtype(dtype):
    moe, x = MixtureOfExperts(3, 7, 5, 2).to(dtype), torch.randn(2, 13, 3).to(dtype)
    out, routing = moe.forward_with_routing(x)
    assert out.dtype == dtype
    assert routing.probabilities.dtype == routing.weights.dtype == routing.balance_loss.dtype == torch.float32
    assert_close(routing.weights.sum(-1), torch.ones(2, 13, dtype=torch.float32))


@pytest.mark.parametrize("expert", [SwiGLU, FeedForward])
def test_parameters_grow_with_n_experts_but_load_does_not(expert):
    moe = MixtureOfExperts(3, 7, 5, 2, expert=expert)
    assert n_parameters(moe) == 5 * n_parameters(expert(3, 7)) + 5 * 3
    assert moe.route(torch.randn(13, 3)).load.sum() == 2 * 13


# --- mixture: balance -----------------------------------------------------------------------------------------------


def test_balance_loss_matches_formula():
    n_experts, top_k = 5, 2
    moe, x = MixtureOfExperts(3, 7, n_experts, top_k), torch.randn(2, 13, 3)
    routing = moe.route(x)
    total = 0.0
    for expert in range(n_experts):
        share = (routing.experts == expert).sum() / (26 * top_k)
        total += n_experts * share * routing.probabilities[..., expert].mean()
    assert_close(routing.balance_loss, total)


def test_balance_loss_includes_dropped_choices():
    free, x = MixtureOfExperts(3, 7, 5, 2), torch.randn(2, 13, 3)
    full = MixtureOfExperts(3, 7, 5, 2, capacity_factor=0.3)
    full.load_state_dict(free.state_dict())
    assert_close(full.route(x).balance_loss, free.route(x).balance_loss)


def test_balance_loss_is_one_when_balanced_and_n_experts_when_one_expert_is_used():
    moe = MixtureOfExperts(5, 7, 5, 1, renormalise=False)
    moe.w_router.weight.data = 50 * torch.eye(5)  # token e_i goes to expert i
    assert_close(moe.route(torch.eye(5)).balance_loss, torch.tensor(1.0))
    assert_close(moe.route(torch.eye(5)[[2, 2, 2]]).balance_loss, torch.tensor(5.0))


def test_gradient_descent_on_balance_loss_balances_load():
    moe = MixtureOfExperts(3, 7, 5, 2)
    x = torch.randn(101, 3) + 1  # off centre, so that the router prefers some experts
    at_first = moe.route(x)
    optimiser = torch.optim.SGD(moe.w_router.parameters(), lr=0.3)
    for _ in range(100):
        optimiser.zero_grad()
        moe.route(x).balance_loss.backward()
        optimiser.step()
    at_last = moe.route(x)
    assert at_last.balance_loss < at_first.balance_loss
    assert at_last.load.max() - at_last.load.min() < 0.5 * (at_first.load.max() - at_first.load.min())


def counted(moe: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    return moe.route(x).experts.flatten().bincount(minlength=moe.router.n_experts)


def test_rebalance_balances_load_and_changes_no_weight():
    moe = MixtureOfExperts(3, 7, 5, 2, biased=True)
    x = torch.randn(101, 3) + 1  # off centre, so that the router prefers some experts
    weights, at_first = {name: p.clone() for name, p in moe.named_parameters()}, counted(moe, x)
    for _ in range(400):
        moe.router.rebalance(counted(moe, x), rate=0.002)
    at_last = counted(moe, x)
    assert at_last.max() - at_last.min() < 0.25 * (at_first.max() - at_first.min())
    assert_close(dict(moe.named_parameters()), weights, rtol=0, atol=0)


def test_router_bias_affects_selection_but_not_weights():
    moe, x = MixtureOfExperts(3, 7, 5, 2, biased=True), torch.randn(2, 13, 3)
    plain = MixtureOfExperts(3, 7, 5, 2)
    plain.load_state_dict({name: value for name, value in moe.state_dict().items() if name != "router.bias"})
    assert_close(moe(x), plain(x), rtol=0, atol=0)  # the initial biases are 0
    moe.router.bias = torch.tensor([0.0, 0.0, 2.0, 0.0, -2.0])
    routing = moe.route(x)
    assert (routing.experts[..., 0] == 2).all()
    assert not (routing.experts == 4).any()
    p = plain.route(x).probabilities
    assert_close(routing.probabilities, p)
    chosen = p.gather(-1, routing.experts)
    assert_close(routing.weights, chosen / chosen.sum(-1, keepdim=True))


def test_rebalance_raises_bias_of_rare_and_lowers_bias_of_frequent_experts():
    router = Router(4, 1, capacity_factor=None, renormalise=False, biased=True)
    router.rebalance(torch.tensor([7, 0, 2, 3]), rate=0.25)  # the mean is 3
    assert_close(router.bias, torch.tensor([-0.25, 0.25, 0.25, 0.0]))
    assert "bias" in router.state_dict()
    assert not list(router.parameters())


# --- invalid arguments ----------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FeedForward(0, 7), "d_model must be at least 1, got 0"),
        (lambda: FeedForward(3, 7.0), r"d_ff must be an integer, got 7\.0"),
        (lambda: FeedForward(3, 7, dropout=1.0), r"dropout must be in \[0, 1\), got 1\.0"),
        (lambda: SwiGLU(3, -1), "d_ff must be at least 1, got -1"),
        (lambda: swiglu_width(0), "d_model must be at least 1, got 0"),
        (lambda: swiglu_width(3, multiple_of=0), "multiple_of must be at least 1, got 0"),
        (lambda: MixtureOfExperts(3, 7, 0, 1), "n_experts must be at least 1, got 0"),
        (lambda: MixtureOfExperts(3, 7, 5, 6), "top_k must be at most 5, got 6"),
        (lambda: MixtureOfExperts(3, 7, 5, 1), "renormalise must be False with top_k=1"),
        (lambda: MixtureOfExperts(3, 7, 5, 2, capacity_factor=0.0), r"positive and finite, or None .*, got 0\.0"),
        (lambda: MixtureOfExperts(3, 7, 5, 2, capacity_factor=math.inf), "positive and finite, or None .*, got inf"),
    ],
)
def test_invalid_settings_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.rejects
@pytest.mark.parametrize(
    "network",
    [FeedForward(3, 7), SwiGLU(3, 7), MixtureOfExperts(3, 7, 5, 2)],
    ids=lambda network: type(network).__name__,
)
def test_forward_with_invalid_vectors_raises(network):
    with pytest.raises(ValueError, match=r"x must end in an axis of size d_model=3, got shape \(3, 2\)"):
        network(torch.randn(3, 2))
    with pytest.raises(ValueError, match=r"x must hold floating-point numbers, got torch\.int64"):
        network(torch.ones(2, 3, dtype=torch.int64))


@pytest.mark.rejects
def test_mixture_without_tokens_raises():
    with pytest.raises(ValueError, match=r"x must hold at least one token, got shape \(0, 3\)"):
        MixtureOfExperts(3, 7, 5, 2)(torch.randn(0, 3))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(4, 3), r"scores must end in an axis of size n_experts=5, got shape \(4, 3\)"),
        (torch.zeros(0, 5), r"scores must hold at least one token, got shape \(0, 5\)"),
        (torch.zeros(4, 5, dtype=torch.int64), r"scores must hold floating-point numbers, got torch\.int64"),
    ],
)
def test_router_with_invalid_scores_raises(scores, message):
    with pytest.raises(ValueError, match=message):
        Router(5, 2, capacity_factor=None, renormalise=True)(scores)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("biased", "counts", "rate", "message"),
    [
        (False, [1, 2, 3], 0.1, "rebalance needs a router with biased=True"),
        (True, [1, 2], 0.1, r"counts must be 3 counts, one for each expert, got \[1, 2\]"),
        (True, [1, 2, -1], 0.1, "counts must be 3 counts"),
        (True, [1.0, 2.0, 3.0], 0.1, r"counts must be integers over \(n_experts,\)"),
        (True, [1, 2, 3], 0.0, r"rate must be finite and above 0, got 0\.0"),
    ],
)
def test_rebalance_with_invalid_arguments_raises(biased, counts, rate, message):
    router = Router(3, 2, capacity_factor=None, renormalise=True, biased=biased)
    with pytest.raises(ValueError, match=message):
        router.rebalance(torch.tensor(counts), rate=rate)


# --- wrong implementations that the tests catch ---------------------------------------------------------------------


class Wrong(MixtureOfExperts):
    """A mixture with one fault."""

    def __init__(self, fault):
        super().__init__(3, 7, 5, 2)
        self.fault = fault

    def route(self, x):
        routing = super().route(x)
        match self.fault:
            case "weights over all experts":
                return routing._replace(weights=routing.probabilities.gather(-1, routing.experts))
            case "weights of the wrong expert":
                return routing._replace(weights=routing.weights.flip(-1))
            case "drops silently":
                late = torch.arange(len(x))[:, None].expand_as(routing.dropped) > 10
                return routing._replace(dropped=late)
            case "the worst experts":
                return routing._replace(experts=routing.probabilities.argsort(-1)[..., :2])
        return routing


@pytest.mark.parametrize(
    "fault", ["weights over all experts", "weights of the wrong expert", "drops silently", "the worst experts", None]
)
def test_loop_over_tokens_catches_wrong_routing(fault):
    moe, x = Wrong(fault), torch.randn(13, 3)
    expected, *_ = one_token_at_a_time(moe, x)
    assert torch.allclose(moe(x), expected) == (fault is None)
