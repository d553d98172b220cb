"""Tests of the initial weights: every matrix is drawn by the rule, every other parameter set to its constant."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import sinusoidal
from lessons_lib.foundations import norms
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from lessons_lib.transformer.feedforward import FeedForward
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import initialise, initialise_normal, initialise_xavier, rng_from


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identical(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Layered(nn.Module):
    """A model large enough to measure standard deviations: their relative error is 1 / sqrt(2 * 6000), or 1 %."""

    def __init__(self):
        super().__init__()
        self.position_table = nn.Parameter(torch.randn(101, 60))
        self.experts = nn.Parameter(torch.randn(3, 60, 70))
        self.norm, self.rms = norms.LayerNorm(60), nn.RMSNorm(60)
        self.attention, self.feedforward = MultiHeadAttention(120, 2, bias=True), FeedForward(60, 120)


def spread_by_name(model):
    return {name: parameter.std().item() for name, parameter in model.named_parameters() if parameter.ndim > 1}


def test_initialise_normal_draws_matrices_and_sets_biases_and_norms():
    model = Layered()
    for parameter in model.parameters():
        parameter.data.fill_(17.0)
    initialise_normal(model, std=0.02, generator=generator())
    assert all(std == pytest.approx(0.02, rel=0.05) for std in spread_by_name(model).values())
    assert "position_table" in spread_by_name(model)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        elif parameter.ndim == 1:
            assert (parameter == 1).all()


def test_initialising_only_linear_layers_is_caught():
    model = Layered()
    model.apply(lambda module: module.weight.data.normal_(0, 0.02) if isinstance(module, nn.Linear) else None)
    assert max(spread_by_name(model).values()) > 0.9


def test_xavier_normal_matches_pytorch():
    model, theirs = Layered(), Layered()
    initialise_xavier(model, generator=generator(1))
    for name, parameter in theirs.named_parameters():
        if parameter.ndim == 2:
            nn.init.xavier_normal_(parameter)
            assert spread_by_name(model)[name] == pytest.approx(parameter.std().item(), rel=0.05)
    assert spread_by_name(model)["experts"] == pytest.approx(math.sqrt(2 / 130), rel=0.05)


@pytest.mark.parametrize("draw", [initialise_normal, initialise_xavier])
def test_n_layers_scales_matrices_that_write_into_the_stream(draw):
    model, deep = Layered(), Layered()
    draw(model, generator=generator())
    draw(deep, n_layers=8, generator=generator())
    for name, spread in spread_by_name(model).items():
        share = 1 / 4 if name in ("attention.w_o.weight", "feedforward.w_down.weight") else 1
        assert spread_by_name(deep)[name] == pytest.approx(share * spread)


def test_weights_depend_only_on_the_generator():
    ours, again = Layered(), Layered()
    before = torch.get_rng_state()
    initialise_normal(ours, generator=generator(3))
    initialise_normal(again, generator=generator(3))
    assert identical(weights(ours), weights(again))
    assert torch.equal(torch.get_rng_state(), before)


def test_invalid_arguments_raise_and_change_no_weight():
    model = Layered()
    model.gain = nn.Parameter(torch.ones(3))
    before = weights(model)
    with pytest.raises(ValueError, match=r"a matrix, a bias or part of a norm, got gain of shape \(3,\)"):
        initialise_normal(model)
    with pytest.raises(ValueError, match="std must be positive and finite, got 0"):
        initialise_normal(model, std=0.0)
    with pytest.raises(ValueError, match="n_layers must be at least 1, got 0"):
        initialise_xavier(model, n_layers=0)
    with pytest.raises(ValueError, match=r"n_layers\) scales the matrices .*, of which the model has none"):
        initialise_xavier(nn.Linear(3, 5), n_layers=2)
    assert identical(weights(model), before)


def test_n_branches_scales_matrices_that_write_into_the_stream():
    model, branched = Layered(), Layered()
    initialise(model, lambda shape: 0.1, generator=generator())
    initialise(branched, lambda shape: 0.1, n_branches=9, generator=generator())
    for name, spread in spread_by_name(model).items():
        share = 1 / 3 if name in ("attention.w_o.weight", "feedforward.w_down.weight") else 1
        assert spread_by_name(branched)[name] == pytest.approx(share * spread)
    with pytest.raises(ValueError, match="n_branches must be at least 1, got 0"):
        initialise(model, lambda shape: 0.1, n_branches=0)


def test_xavier_uniform_matches_pytorch():
    """Both draw the same numbers, one matrix after another in the order of the parameters."""
    ours, theirs = FeedForward(60, 120), FeedForward(60, 120)
    torch.manual_seed(3)
    initialise_xavier(ours, uniform=True)
    torch.manual_seed(3)
    for parameter in theirs.parameters():
        nn.init.xavier_uniform_(parameter) if parameter.ndim == 2 else nn.init.zeros_(parameter)
    assert_close(weights(ours), weights(theirs), rtol=1e-12, atol=0)


WITH_SINUSOIDS = {
    "gpt": lambda: GPT(GPTConfig(997, 61, 64, 2, 4, position="sinusoidal")),
    "inside another model": lambda: nn.Sequential(GPT(GPTConfig(997, 61, 64, 2, 4, position="sinusoidal"))),
    "encoder-decoder": lambda: EncoderDecoder(EncoderDecoderConfig(997, d_model=64, n_layers=2, n_heads=4, d_ff=19)),
}


@pytest.mark.parametrize("kind", WITH_SINUSOIDS)
@pytest.mark.parametrize("draw", [None, initialise_normal, initialise_xavier], ids=["built", "normal", "xavier"])
def test_initial_std_of_embedding_holds_with_sinusoidal_positions(kind, draw):
    model = WITH_SINUSOIDS[kind]()
    if draw is not None:
        draw(model)
    owner = model[0] if kind == "inside another model" else model
    tokens = math.sqrt(64) * owner.embedding.weight
    assert tokens.square().mean().sqrt().item() == pytest.approx(1, rel=0.05)
    assert sinusoidal(61, 64).square().mean().sqrt().item() == pytest.approx(math.sqrt(1 / 2))


def test_order_is_the_order_of_the_draws():
    names = ["w_down.weight", "w_up.weight", "w_down.weight"]
    ours, theirs = FeedForward(6, 11), FeedForward(6, 11)
    initialise(ours, lambda shape: 0.1, order=names, generator=generator(4))
    by_hand = generator(4)
    for name in names:
        nn.init.normal_(theirs.get_parameter(name), std=0.1, generator=by_hand)
    for name in names:
        assert torch.equal(ours.get_parameter(name), theirs.get_parameter(name))


# --- rng_from -------------------------------------------------------------------------------------------------------


def test_rng_from_draws_from_the_generator_and_keeps_the_global_state():
    before, draw = torch.get_rng_state(), generator(3)
    with rng_from(draw):
        first, second = nn.Linear(5, 7), nn.Linear(5, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first.weight, second.weight)
    with rng_from(generator(3)):
        assert identical(weights(nn.Linear(5, 7)), weights(first))
    with rng_from(draw):  # the generator has advanced by what was drawn
        assert not identical(weights(nn.Linear(5, 7)), weights(first))
    torch.manual_seed(3)
    assert identical(weights(nn.Linear(5, 7)), weights(first)), "the same numbers as after the seed itself"


def test_rng_from_restores_both_generators_after_an_error():
    before, draw, other = torch.get_rng_state(), generator(), generator()
    with pytest.raises(KeyError), rng_from(draw):
        {}[torch.randn(3)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.randn(3, generator=other)
    assert torch.equal(draw.get_state(), other.get_state())


@pytest.mark.rejects
def test_rng_from_with_gpu_generator_raises():
    elsewhere = SimpleNamespace(device=torch.device("cuda:0"))
    with pytest.raises(ValueError, match=r"generator must be on the CPU.*got one on cuda:0"), rng_from(elsewhere):
        pass
