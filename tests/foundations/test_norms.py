"""The norms match PyTorch's in output and gradients, and have the invariances that follow from their formulas."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from lessons_lib.foundations.norms import LayerNorm, RMSNorm

BATCHES = [(), (2,), (2, 3)]


def with_random_parameters(module):
    """Return the module with random parameters: with ones and zeros, a missing weight or shift goes unnoticed."""
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def pair(ours, theirs):
    theirs.load_state_dict(with_random_parameters(ours).state_dict())
    return ours, theirs


PAIRS = {
    "layer": lambda: pair(LayerNorm(7, eps=1e-3), nn.LayerNorm(7, eps=1e-3)),
    "layer, no bias": lambda: pair(LayerNorm(7, bias=False), nn.LayerNorm(7, bias=False)),
    "rms": lambda: pair(RMSNorm(7, eps=1e-3), nn.RMSNorm(7, eps=1e-3)),
}
NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def assert_same_values_and_gradients(ours, theirs, x):
    upstream = torch.randn_like(x)
    found = []
    for module in (ours, theirs):
        leaf = x.clone().requires_grad_()
        out = module(leaf)
        gradients = torch.autograd.grad(out, (leaf, *module.parameters()), upstream, materialize_grads=True)
        found.append((out, *gradients))
    for a, b in zip(*found, strict=True):
        assert_close(a, b)


# --- parity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_norms_match_pytorch_in_output_and_gradients(name, batch):
    assert_same_values_and_gradients(*PAIRS[name](), 3 * torch.randn(*batch, 7) + 1)


def test_default_eps_matches_pytorch_and_checkpoints():
    assert LayerNorm(7).eps == nn.LayerNorm(7).eps == 1e-5
    assert RMSNorm(7).eps == 1e-6
    x = 1e-3 * torch.randn(3, 7)  # small enough for the epsilon to matter
    assert_close(LayerNorm(7)(x), nn.LayerNorm(7)(x))
    assert_close(RMSNorm(7)(x), nn.RMSNorm(7, eps=1e-6)(x))


def test_rms_norm_matches_llama():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    ours, theirs = pair(RMSNorm(7).float(), LlamaRMSNorm(7).float())
    x = torch.randn(2, 3, 7, dtype=torch.float32)
    assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_half_precision_is_computed_in_float32_and_rounded_once(name, dtype):
    module = with_random_parameters(NORMS[name](701)).to(dtype)
    x = (300 * torch.randn(5, 701)).to(dtype)  # squares overflow float16
    out = module(x)
    single = module.float()(x.float())
    assert out.dtype == dtype
    assert_close(out, single.to(dtype), rtol=0, atol=0)


# --- properties -----------------------------------------------------------------------------------------------------


@given(d=st.integers(2, 11), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3), seed=st.integers(0, 2**31))
def test_layer_norm_is_invariant_to_shift_and_scale(d, scale, shift, seed):
    torch.manual_seed(seed)
    norm, x = with_random_parameters(LayerNorm(d, eps=0.0)), torch.randn(3, d)
    # A shift of 1e3 is rounded by 1e-13 of itself, 1e-10; dividing by a spread of 1e-3 makes this 1e-7.
    assert_close(norm(scale * x + shift), norm(x), rtol=1e-6, atol=1e-6)


def test_layer_norm_gives_zero_mean_and_unit_population_variance():
    out = LayerNorm(7, eps=0.0)(5 * torch.randn(3, 7) + 2)
    assert_close(out.mean(-1), torch.zeros(3))
    assert_close(out.var(-1, correction=0), torch.ones(3))


@given(d=st.integers(1, 11), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 2**31))
def test_rms_norm_gives_unit_mean_square_and_is_invariant_to_scale(d, scale, seed):
    torch.manual_seed(seed)
    x = torch.randn(3, d)
    out = RMSNorm(d, eps=0.0)(scale * x)
    assert_close(out.square().mean(-1), torch.ones(3))
    assert_close(out, RMSNorm(d, eps=0.0)(x))


def test_layer_norm_equals_rms_norm_on_centred_vectors():
    x = torch.randn(3, 7)
    x = x - x.mean(-1, keepdim=True)
    assert_close(LayerNorm(7, eps=1e-3)(x), RMSNorm(7, eps=1e-3)(x))


@pytest.mark.parametrize("name", NORMS)
def test_zero_vector_gives_zero_or_nan_with_zero_eps(name):
    x = torch.zeros(3, 7, requires_grad=True)
    out = NORMS[name](7)(x)
    out.sum().backward()
    assert_close(out, torch.zeros(3, 7))
    assert x.grad.isfinite().all()
    assert NORMS[name](7, eps=0.0)(x).isnan().all()


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize("norm", NORMS.values())
@pytest.mark.parametrize(
    ("d_model", "options", "message"),
    [
        (0, {}, "d_model must be at least 1, got 0"),
        (7.0, {}, r"d_model must be an integer, got 7\.0"),
        (7, {"eps": -1e-5}, "eps must be finite and not negative, got -1e-05"),
        (7, {"eps": float("nan")}, "eps must be finite and not negative, got nan"),
    ],
)
def test_invalid_arguments_raise(norm, d_model, options, message):
    with pytest.raises(ValueError, match=message):
        norm(d_model, **options)


@pytest.mark.rejects
@pytest.mark.parametrize("norm", NORMS.values())
def test_invalid_vectors_raise(norm):
    with pytest.raises(ValueError, match=r"x must end in an axis of size d_model=7, got shape \(7, 1\)"):
        norm(7)(torch.randn(7, 1))  # would broadcast
    with pytest.raises(ValueError, match=r"x must hold floating-point numbers, got torch\.int64"):
        norm(7)(torch.ones(3, 7, dtype=torch.int64))


# --- wrong implementations, which the tests above must catch --------------------------------------------------------


class WrongLayerNorm(LayerNorm):
    """A layer norm with one mistake."""

    def __init__(self, mistake):
        super().__init__(7)
        self.mistake = mistake

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, correction=int(self.mistake == "sample variance"))
        if self.mistake == "epsilon outside the root":
            return centred / (variance.sqrt() + self.eps) * self.weight + self.bias
        if self.mistake == "detached variance":
            variance = variance.detach()
        normed = centred * (variance + self.eps).rsqrt() * self.weight
        return normed if self.mistake == "no shift" else normed + self.bias


@pytest.mark.parametrize("mistake", ["sample variance", "epsilon outside the root", "detached variance", "no shift"])
def test_parity_test_catches_wrong_implementations(mistake):
    wrong, theirs = pair(WrongLayerNorm(mistake), nn.LayerNorm(7))
    with pytest.raises(AssertionError):
        assert_same_values_and_gradients(wrong, theirs, 0.1 * torch.randn(3, 7))


def test_parity_test_passes_correct_implementation():
    correct, theirs = pair(WrongLayerNorm("none"), nn.LayerNorm(7))
    assert_same_values_and_gradients(correct, theirs, 0.1 * torch.randn(3, 7))
