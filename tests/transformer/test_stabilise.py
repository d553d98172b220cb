"""Tests of QK-norm and sigmaReparam: formulas, bounds, removal, causality and caches."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import RotaryEmbedding
from lessons_lib.foundations.norms import LayerNorm
from lessons_lib.transformer import stabilise
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.stabilise import QKNorm, SigmaReparam


def small(**settings):
    return GPT(GPTConfig(11, 7, 12, 3, 4, n_kv_heads=2, d_head=6, **{"position": "rotary", "dropout": 0.3} | settings))


def tokens():
    return torch.randint(11, (2, 7))


# --- matrices -------------------------------------------------------------------------------------------------------


def spectral_norm(weight):
    return torch.linalg.matrix_norm(weight, 2)


def test_sigma_reparam_sets_spectral_norm_to_gamma_initially_one():
    layer = nn.Linear(7, 5)
    plain = layer.weight.detach().clone()
    stabilise.apply_sigma_reparam(layer)
    assert_close(layer.weight, plain / spectral_norm(plain))
    layer.parametrizations.weight[0].gamma.data.fill_(2.5)
    assert_close(spectral_norm(layer.weight), torch.tensor(2.5))


def test_sigma_reparam_equals_gamma_times_pytorch_spectral_norm():
    """Outputs and gradients agree over 3 training steps that start from the same singular vectors."""
    ours, theirs = nn.Linear(7, 5, bias=False), nn.Linear(7, 5, bias=False)
    theirs.load_state_dict(ours.state_dict())
    stabilise.apply_sigma_reparam(ours)
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


def test_power_iteration_runs_only_in_training():
    layer = nn.Linear(7, 5)
    stabilise.apply_sigma_reparam(layer)
    layer.parametrizations.weight.original.data = torch.randn(5, 7)
    layer.eval()
    before = layer.weight
    assert torch.equal(layer.weight, before)
    assert abs(spectral_norm(before) - 1) > 0.01
    layer.train()
    for _ in range(200):
        layer(torch.randn(2, 7))
    assert_close(spectral_norm(layer.weight), torch.tensor(1.0))


def test_sigma_reparam_allows_two_forward_passes_before_backward():
    layer = nn.Linear(7, 5)
    stabilise.apply_sigma_reparam(layer)
    x = torch.randn(3, 7)
    (layer(x) + layer(2 * x)).sum().backward()
    assert layer.parametrizations.weight[0].gamma.grad is not None


def test_gammas_are_scalars_with_gradients():
    model = small()
    stabilise.apply_sigma_reparam(model.blocks)
    gammas = [p for name, p in model.named_parameters() if name.endswith("gamma")]
    assert len(gammas) == 3 * 6
    assert all(gamma.ndim == 0 for gamma in gammas)
    model(tokens()).square().sum().backward()
    assert all(gamma.grad != 0 for gamma in gammas)


def test_remove_sigma_reparam_keeps_outputs_and_parameter_names():
    model, x = small(), tokens()
    names = model.state_dict().keys()
    stabilise.apply_sigma_reparam(model.blocks)
    for _ in range(3):
        model(x).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
    before = model.eval()(x)
    stabilise.remove_sigma_reparam(model.train())
    assert_close(model.eval()(x), before)
    assert model.state_dict().keys() == names
    assert not any(parametrize.is_parametrized(module) for module in model.modules())


def test_sigma_reparam_with_invalid_arguments_raises():
    model = small()
    with pytest.raises(ValueError, match="'head' shares its weight with another module; apply this to the blocks"):
        stabilise.apply_sigma_reparam(model)
    assert not any(parametrize.is_parametrized(module) for module in model.modules())
    stabilise.apply_sigma_reparam(model.blocks)
    with pytest.raises(ValueError, match=r"that of '0.attention.sublayer.w_q' is parametrised already"):
        stabilise.apply_sigma_reparam(model.blocks)
    with pytest.raises(ValueError, match=r"must contain an nn\.Linear, got LayerNorm without"):
        stabilise.apply_sigma_reparam(LayerNorm(3))
    with pytest.raises(ValueError, match="must contain a layer with SigmaReparam, got Linear without"):
        stabilise.remove_sigma_reparam(nn.Linear(2, 3))
    with pytest.raises(ValueError, match="must be a matrix that is not zero"):
        SigmaReparam(torch.zeros(2, 3))


@pytest.mark.rejects
def test_sigma_reparam_of_tensor_that_is_no_matrix_raises():
    with pytest.raises(ValueError, match=r"must be a matrix that is not zero, got shape \(2, 3, 5\)"):
        SigmaReparam(torch.randn(2, 3, 5))


# --- queries and keys -----------------------------------------------------------------------------------------------


def test_qk_norm_normalises_queries_and_keys_with_separate_gains():
    norm = QKNorm(6, eps=1e-3)
    layer, x = MultiHeadAttention(12, 4, n_kv_heads=2, d_head=6, process_qk=norm), torch.randn(3, 5, 12)
    for gains in (norm.q_norm.weight, norm.k_norm.weight):
        gains.data.uniform_(0.5, 2.0)
    q, k = (w(x).unflatten(-1, (h, 6)).transpose(1, 2) for w, h in ((layer.w_q, 4), (layer.w_k, 2)))
    q = nn.functional.rms_norm(q, (6,), norm.q_norm.weight, eps=1e-3)
    k = nn.functional.rms_norm(k, (6,), norm.k_norm.weight, eps=1e-3).repeat_interleave(2, dim=1)
    assert_close(layer.weights(x), (q @ k.mT / math.sqrt(6)).softmax(-1))


def test_qk_norm_bounds_scores():
    norm = QKNorm(6, RotaryEmbedding(6).process_qk)
    norm.q_norm.weight.data.uniform_(-3.0, 2.0)
    q, k = norm(1e6 * torch.randn(3, 2, 5, 6), 1e6 * torch.randn(3, 1, 5, 6), torch.arange(5))
    bound = math.sqrt(6) * norm.q_norm.weight.abs().max()
    assert (q @ k.mT / math.sqrt(6)).abs().max() <= bound * (1 + 1e-12)


def test_qk_norm_across_heads_normalises_all_heads_together_and_bounds_scores():
    h, g, d = 4, 2, 6
    norm = stabilise.QKNormAcrossHeads(d, h, g, RotaryEmbedding(d).process_qk, eps=0.0)
    nn.init.normal_(norm.q_norm.weight)
    q, k = 100 * torch.randn(3, h, 5, d), torch.randn(3, g, 5, d)
    out_q, out_k = norm(q, k, torch.arange(5))
    joined = q.transpose(1, 2).flatten(-2)
    expected = joined / joined.square().mean(-1, keepdim=True).sqrt() * norm.q_norm.weight
    assert_close(out_q, RotaryEmbedding(d)(expected.unflatten(-1, (h, d)).transpose(1, 2)))
    assert_close(out_k.square().sum((1, 3)), torch.full((3, 5), float(g * d)))
    one_head = torch.zeros_like(q)
    one_head[:, 0] = q[:, 0]
    scores = norm(one_head, one_head[:, :g], torch.arange(5))
    scores = (scores[0][:, 0] * scores[1][:, 0]).sum(-1).abs() / math.sqrt(d)
    bound = math.sqrt(d) * norm.q_norm.weight.abs().max()
    assert scores.max() <= math.sqrt(h * g) * bound


def test_qk_norm_applies_rotary_embedding_after_the_norms():
    rotary, q, k = RotaryEmbedding(6), torch.randn(3, 2, 5, 6), torch.randn(3, 1, 5, 6)
    positions = torch.arange(5) + 3
    norm = QKNorm(6, rotary.process_qk)
    assert_close(norm(q, k, positions), rotary.process_qk(norm.q_norm(q), norm.k_norm(k), positions))


def test_apply_qk_norm_adds_norms_before_process_qk_of_every_layer():
    model, x = small(), tokens()
    stabilise.apply_qk_norm(model)
    names = [name for name, _ in model.named_parameters() if name.endswith("_norm.weight") and "process_qk" in name]
    assert len(names) == 2 * 3
    assert all(block.attention.sublayer.process_qk.then.__self__ == RotaryEmbedding(6) for block in model.blocks)
    model(x).square().sum().backward()
    assert all(model.get_parameter(name).grad.any() for name in names)
    with pytest.raises(ValueError, match="must contain attention layers without QKNorm, got GPT"):
        stabilise.apply_qk_norm(model)
    with pytest.raises(ValueError, match="must contain attention layers without QKNorm, got Linear"):
        stabilise.apply_qk_norm(nn.Linear(2, 3))


def test_apply_qk_norm_equals_config_with_qk_norm():
    treated, built = small(norm_eps=1e-6), small(norm_eps=1e-6, qk_norm=True)
    stabilise.apply_qk_norm(treated)
    for parameter in treated.parameters():
        nn.init.normal_(parameter, std=0.4)
    built.load_state_dict(treated.state_dict())
    x = tokens()
    assert_close(built.eval()(x), treated.eval()(x), rtol=0, atol=0)


@pytest.mark.parametrize("treat", [stabilise.apply_qk_norm, lambda model: stabilise.apply_sigma_reparam(model.blocks)])
def test_stabilised_model_is_causal_and_supports_caches(treat):
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
