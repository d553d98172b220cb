"""The norms equal PyTorch's, values and gradients, and have the invariances that their formulas promise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from lessons_lib.norms import LayerNorm, RMSNorm

BATCHES = [(), (2,), (2, 3)]


def with_random_parameters(module):
    """Ones and zeros would hide a weight or a shift that is forgotten."""
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
def test_matches_pytorch_gradients_included(name, batch):
    assert_same_values_and_gradients(*PAIRS[name](), 3 * torch.randn(*batch, 7) + 1)


def test_the_defaults_are_those_of_the_checkpoints():
    assert LayerNorm(7).eps == nn.LayerNorm(7).eps == 1e-5
    assert RMSNorm(7).eps == 1e-6
    x = 1e-3 * torch.randn(3, 7)  # small enough for the epsilon to matter
    assert_close(LayerNorm(7)(x), nn.LayerNorm(7)(x))
    assert_close(RMSNorm(7)(x), nn.RMSNorm(7, eps=1e-6)(x))


def test_rms_matches_llamas():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    ours, theirs = pair(RMSNorm(7).float(), LlamaRMSNorm(7).float())
    x = torch.randn(2, 3, 7, dtype=torch.float32)
    assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_half_precision_is_computed_in_single_and_rounded_once(name, dtype):
    module = with_random_parameters(NORMS[name](701)).to(dtype)
    x = (300 * torch.randn(5, 701)).to(dtype)  # squares overflow float16
    out = module(x)
    single = module.float()(x.float())
    assert out.dtype == dtype
    assert_close(out, single.to(dtype), rtol=0, atol=0)


# --- laws -----------------------------------------------------------------------------------------------------------


@given(d=st.integers(2, 11), scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3), seed=st.integers(0, 2**31))
def test_a_layer_norm_forgets_shift_and_scale(d, scale, shift, seed):
    torch.manual_seed(seed)
    norm, x = with_random_parameters(LayerNorm(d, eps=0.0)), torch.randn(3, d)
    # A shift of 1e3 costs digits: 1e-13 of it is 1e-10, and up to 1e3 times that where the spread is 1e-3.
    assert_close(norm(scale * x + shift), norm(x), rtol=1e-6, atol=1e-6)


def test_a_layer_norm_sets_mean_and_population_variance():
    out = LayerNorm(7, eps=0.0)(5 * torch.randn(3, 7) + 2)
    assert_close(out.mean(-1), torch.zeros(3))
    assert_close(out.var(-1, correction=0), torch.ones(3))


@given(d=st.integers(1, 11), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 2**31))
def test_an_rms_norm_sets_the_length_and_forgets_the_scale(d, scale, seed):
    torch.manual_seed(seed)
    x = torch.randn(3, d)
    out = RMSNorm(d, eps=0.0)(scale * x)
    assert_close(out.square().mean(-1), torch.ones(3))
    assert_close(out, RMSNorm(d, eps=0.0)(x))


def test_on_centred_vectors_the_two_agree():
    x = torch.randn(3, 7)
    x = x - x.mean(-1, keepdim=True)
    assert_close(LayerNorm(7, eps=1e-3)(x), RMSNorm(7, eps=1e-3)(x))


@pytest.mark.parametrize("name", NORMS)
def test_a_zero_vector_has_no_length_to_set(name):
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
def test_settings_out_of_range_are_refused(norm, d_model, options, message):
    with pytest.raises(ValueError, match=message):
        norm(d_model, **options)


@pytest.mark.rejects
@pytest.mark.parametrize("norm", NORMS.values())
def test_wrong_vectors_are_refused(norm):
    with pytest.raises(ValueError, match=r"x must end in an axis of size d_model=7, got shape \(7, 1\)"):
        norm(7)(torch.randn(7, 1))  # would broadcast
    with pytest.raises(ValueError, match=r"x must hold floating-point numbers, got torch\.int64"):
        norm(7)(torch.ones(3, 7, dtype=torch.int64))


# --- the tests themselves -------------------------------------------------------------------------------------------


class Wrong(LayerNorm):
    """A layer norm with one thing wrong."""

    def __init__(self, fault):
        super().__init__(7)
        self.fault = fault

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, correction=int(self.fault == "sample variance"))
        if self.fault == "epsilon outside the root":
            return centred / (variance.sqrt() + self.eps) * self.weight + self.bias
        if self.fault == "detached variance":
            variance = variance.detach()
        normed = centred * (variance + self.eps).rsqrt() * self.weight
        return normed if self.fault == "no shift" else normed + self.bias


@pytest.mark.parametrize("fault", ["sample variance", "epsilon outside the root", "detached variance", "no shift"])
def test_parity_would_notice(fault):
    wrong, theirs = pair(Wrong(fault), nn.LayerNorm(7))
    with pytest.raises(AssertionError):
        assert_same_values_and_gradients(wrong, theirs, 0.1 * torch.randn(3, 7))


def test_the_comparison_itself_passes_what_is_right():
    right, theirs = pair(Wrong("none"), nn.LayerNorm(7))
    assert_same_values_and_gradients(right, theirs, 0.1 * torch.randn(3, 7))
