"""Tests of GPT for each configuration: causality, masks, caches, initial weights, parameter counts and files."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from efficient_cases import Counting
from safetensors.torch import load_file, save_file
from test_multihead import flash
from torch import nn
from torch.testing import assert_close

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.attention.multihead import AddPositions, MultiHeadAttention
from lessons_lib.attention.positions import AlibiBias, LearnedPositions
from lessons_lib.attention.rope_scaling import DynamicNTK, Llama3, NTKAware, PositionInterpolation, YaRN
from lessons_lib.attention.rules import Documents, Full, LeftPadding, Padding, Prefix, Rule, Window
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.efficient.skipping import skipping_attention
from lessons_lib.flash import as_implementation
from lessons_lib.transformer import checkpoints
from lessons_lib.transformer import gpt as gpt_file
from lessons_lib.transformer.configuration import GPTConfig, gpt2_medium, gpt2_small, llama3_8b, llama_tiny
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.stabilise import apply_qk_norm, apply_sigma_reparam, remove_sigma_reparam

B, N, V, CONTEXT, D, L, H = 3, 7, 13, 11, 24, 2, 6  # batch, tokens, vocabulary, context, model, layers, heads

LLAMA = {"n_kv_heads": 2, "feedforward": "swiglu", "norm": "rms", "position": "rotary", "bias": False, "tied": False}
FLAVOURS = {
    "gpt2": {},
    "untied, wide heads": {"tied": False, "d_head": 5, "d_ff": 19, "attention_bias": False},
    "llama": LLAMA,
    "llama with biases": LLAMA | {"bias": True, "attention_bias": False, "norm_eps": 0.1, "n_kv_heads": 1},
    "interpolated": LLAMA | {"rope_scaling": PositionInterpolation(2.0), "rope_base": 500.0},
    "ntk": LLAMA | {"rope_scaling": NTKAware(2.0)},
    "dynamic": LLAMA | {"rope_scaling": DynamicNTK(2.0, 10)},
    "yarn": LLAMA | {"rope_scaling": YaRN(4.0, 5, beta_fast=3.0)},
    "llama3": LLAMA | {"rope_scaling": Llama3(8.0, 6)},
    "2017": {"position": "sinusoidal", "feedforward": "relu", "norm_eps": 0.0},
    "alibi": {"position": "alibi", "feedforward": "gelu", "attention_bias": True, "bias": False},
    "qk norm": LLAMA | {"qk_norm": True, "norm_eps": 0.1, "n_kv_heads": 3},
    "qk norm without positions": {"position": "none", "qk_norm": True},
    "bias of queries, keys and values": LLAMA | {"attention_bias": "qkv", "n_kv_heads": 3},
    "experts": LLAMA | {"n_experts": 3, "experts_per_token": 2, "d_ff": 7},
    "parallel, partly rotated": {"parallel": True, "position": "rotary", "d_rotary": 2, "tied": False},
    "norms of outputs": LLAMA | {"norm_order": "output", "qk_norm": "across_heads", "n_kv_heads": 3},
    "gemma": LLAMA
    | {"norm_order": "sandwich", "feedforward": "geglu_tanh", "window": (3, None), "scale": 0.7, "softcap": 1.5}
    | {"scale_embedding": True, "logit_softcap": 2.5},
    "window": LLAMA | {"window": 3},
    "alternating window": {"window": (2, None), "position": "rotary"},
    "attention alone": {"position": "none", "feedforward": "none", "norm": "rms"},
}
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def config_of(flavour: str, **changes) -> GPTConfig:
    return dataclasses.replace(GPTConfig(V, CONTEXT, D, L, H, **FLAVOURS[flavour]), **changes)


def with_random_weights(model: GPT) -> GPT:
    """Draw large random weights, so that every part affects the logits; with initial weights a model hardly reacts."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def tokens_and_model(flavour: str, **changes) -> tuple[torch.Tensor, GPT]:
    return torch.randint(V, (B, N)), with_random_weights(GPT(config_of(flavour, **changes)))


# --- causal ---------------------------------------------------------------------------------------------------------


def assert_causal(model, tokens):
    """Check that a changed token leaves all earlier logits bitwise equal and changes its own.

    An expert multiplies its tokens together, so their number decides how it rounds.
    """
    atol = 0 if model.config.n_experts is None else 1e-13
    logits = model(tokens)
    for t in range(tokens.shape[1] - 1):
        changed = tokens.clone()
        changed[:, t + 1 :] = (tokens[:, t + 1 :] + 1) % V
        after = model(changed)
        assert_close(after[:, : t + 1], logits[:, : t + 1], rtol=0, atol=atol)
        assert (after[:, t + 1] - logits[:, t + 1]).abs().amax(-1).min() > 1e-3


@each_flavour
def test_logits_are_causal(flavour):
    tokens, model = tokens_and_model(flavour)
    assert_causal(model, tokens)


@each_flavour
def test_mask_cannot_reveal_later_tokens(flavour):
    tokens, model = tokens_and_model(flavour)
    assert_close(model(tokens, mask=masks.bidirectional(N)), model(tokens), rtol=0, atol=0)


IDS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 0], [3] * 7])
RULES = {
    "documents": Documents(IDS),
    "padding": Padding(torch.tensor([N, 3, 1])),
    "left padding": LeftPadding(torch.tensor([0, 3, 5])),
    "window": Window(2),
    "a part and a table": Prefix(2) & masks.block(N, 3),
}
IMPLEMENTATIONS = {
    "fused": fused_attention,
    "specification": attention,
    "flash": as_implementation(),
    "tiled": as_implementation(backend="tiled"),
    "skipping": partial(skipping_attention, block=4),
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_rule_equals_boolean_mask_for_each_implementation(rule, implementation):
    tokens, model = tokens_and_model("llama")
    for layer in attention_layers(model):
        layer.implementation = IMPLEMENTATIONS[implementation]
    other = GPT(model.config, implementation=attention)
    other.load_state_dict(model.state_dict())
    expected = other(tokens, mask=RULES[rule].to_mask(N))
    assert_close(model(tokens, mask=RULES[rule]), expected)
    assert_close(model(tokens, mask=RULES[rule].to_mask(N)), expected)


@pytest.mark.parametrize("implementation", ["fused", "flash", "tiled"])
def test_no_tensor_grows_quadratically_with_length(implementation):
    """The largest tensor is one of the feed-forward layer, which grows linearly; one over n * n would be larger."""
    model = GPT(config_of("llama", n_context=600), implementation=IMPLEMENTATIONS[implementation])
    for n in (300, 600):
        with Counting() as count, torch.no_grad():
            model(torch.randint(V, (1, n)))
        heads = 6 * n * 256 if implementation == "tiled" else 0  # one tile of each head
        assert count.largest <= max(n * model.config.hidden_width, heads, n * V) < n * n * 6


def test_layers_share_one_boolean_mask(monkeypatch):
    tokens, model = tokens_and_model("gpt2")
    for layer in attention_layers(model):
        layer.implementation = attention
    masks_made, to_mask = [], Rule.to_mask
    monkeypatch.setattr(Rule, "to_mask", lambda *at, **on: (masks_made.append(at), to_mask(*at, **on))[1])
    model(tokens)
    assert len(model.blocks) > 1
    assert len(masks_made) == 1


def attention_layers(model):
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]


def test_causality_test_catches_missing_causal_mask(monkeypatch):
    tokens, model = tokens_and_model("gpt2")
    monkeypatch.setattr(gpt_file, "Causal", Full)
    with pytest.raises(AssertionError):
        assert_causal(model, tokens)


def test_without_positions_token_order_matters_from_two_layers_on():
    """From the second layer on, the causal mask alone distinguishes positions."""
    tokens = torch.randint(V, (B, N))
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], dim=1)
    moved = []
    for n_layers in (1, 2):
        model = with_random_weights(GPT(config_of("attention alone", n_layers=n_layers)))
        moved.append((model(tokens) - model(shuffled))[:, -1].abs().max().item())
    assert moved[0] < 1e-12
    assert moved[1] > 1e-2


# --- masks, caches, implementations ---------------------------------------------------------------------------------


@each_flavour
@pytest.mark.parametrize("steps", [[1] * N, [4, 1, 2]], ids=str)
def test_logits_with_caches_equal_full_pass(flavour, steps):
    tokens, model = tokens_and_model(flavour)
    caches = model.new_caches()
    parts = [model(part, caches=caches) for part in tokens.split(steps, dim=1)]
    assert [len(cache) for cache in caches] == [N] * L
    assert_close(torch.cat(parts, dim=1), model(tokens))


@each_flavour
def test_masked_left_padding_does_not_change_logits(flavour):
    tokens, model = tokens_and_model(flavour)
    padded = torch.cat([torch.randint(V, (B, 3)), tokens], dim=1)
    shifted = torch.arange(N + 3) - 3
    real = (shifted >= 0)[None, :]
    logits = model(padded, positions=shifted.clamp(min=0), mask=real)
    assert_close(logits[:, 3:], model(tokens))

    caches = model.new_caches()
    parts = [
        model(padded[:, i : i + 1], caches=caches, positions=shifted.clamp(min=0)[i : i + 1], mask=real[:, : i + 1])
        for i in range(N + 3)
    ]
    assert_close(torch.cat(parts, dim=1)[:, 3:], model(tokens))


@each_flavour
def test_document_mask_separates_packed_documents(flavour):
    """Two documents in one row, each with positions from 0, have the logits of two rows."""
    tokens, model = tokens_and_model(flavour)
    ids, positions = torch.tensor([0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2, 3])
    packed = model(tokens, positions=positions, mask=masks.documents(ids))
    assert_close(packed, torch.cat([model(tokens[:, :3]), model(tokens[:, 3:])], dim=1))


@each_flavour
def test_attention_implementations_agree(flavour):
    tokens, model = tokens_and_model(flavour)
    capped = model.config.softcap is not None  # PyTorch's kernels have no cap
    other = GPT(model.config, implementation=IMPLEMENTATIONS["tiled"] if capped else flash)
    other.load_state_dict(model.state_dict())
    assert_close(other(tokens), model(tokens))


@pytest.mark.parametrize("flavour", ["llama", "yarn", "alibi"])
def test_rotary_and_alibi_depend_only_on_distances(flavour):
    tokens, model = tokens_and_model(flavour)
    assert_close(model(tokens, positions=torch.arange(N) + torch.tensor([[3], [29], [0]])), model(tokens))


def test_alibi_slopes_can_be_replaced():
    tokens, model = tokens_and_model("alibi")
    plain = GPT(dataclasses.replace(model.config, position="none"))
    plain.load_state_dict(model.state_dict())
    model.alibi = AlibiBias(H, slopes=[0.0] * H)
    assert_close(model(tokens), plain(tokens))
    model.alibi = AlibiBias(H, slopes=[9.0] + [0.0] * (H - 1))
    assert (model(tokens) - plain(tokens)).abs().max() > 1e-3


def test_positions_can_be_added_to_queries_and_keys_only():
    """A model without position encoding passes positions on to its attention layers, also in a padded row."""
    tokens, model = tokens_and_model("attention alone")
    for block in model.blocks:
        block.attention.sublayer.process_qk = AddPositions(LearnedPositions(CONTEXT, 4), LearnedPositions(CONTEXT, 4))
    logits, shifted = model(tokens), (torch.arange(N + 3) - 3)
    assert (model(tokens, positions=torch.arange(N) + 2) - logits).abs().max() > 1e-3
    padded = torch.cat([torch.randint(V, (B, 3)), tokens], dim=1)
    assert_close(model(padded, positions=shifted.clamp(min=0), mask=(shifted >= 0)[None, :])[:, 3:], logits)
    assert_causal(model, tokens)


def test_positions_may_differ_between_rows():
    tokens, model = tokens_and_model("gpt2")
    positions = torch.stack([torch.randperm(CONTEXT)[:N] for _ in range(B)])
    rows = [model(row[None], positions=row_positions) for row, row_positions in zip(tokens, positions, strict=True)]
    assert_close(model(tokens, positions=positions), torch.cat(rows))


def test_dropout_applies_only_in_training():
    tokens, model = tokens_and_model("gpt2", dropout=0.5)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert_close(model(tokens), model(tokens), rtol=0, atol=0)
    without = GPT(dataclasses.replace(model.config, dropout=0.0))
    without.load_state_dict(model.state_dict())
    assert_close(model(tokens), without(tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_flavour
def test_logits_in_lower_precision_are_close(flavour, dtype):
    tokens, model = tokens_and_model(flavour)
    exact = model(tokens)
    logits = model.to(dtype)(tokens)
    assert logits.dtype == dtype
    # Measured over the flavours: relative errors of at most 7e-7 (float32) and 0.019 (bfloat16).
    error = (logits.double() - exact).norm() / exact.norm()
    assert error < {torch.float32: 5e-6, torch.bfloat16: 0.1}[dtype]


@each_flavour
def test_logits_under_autocast_are_close(flavour):
    tokens, model = tokens_and_model(flavour)
    model = model.float()
    exact = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - exact).norm() < 0.1 * exact.norm()  # the tolerance of a model in bfloat16


# --- parameters -----------------------------------------------------------------------------------------------------


def counted(config: GPTConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in GPT(config).parameters())


@each_flavour
def test_n_parameters_equals_parameter_count(flavour):
    assert counted(config_of(flavour)) == config_of(flavour).n_parameters()


@pytest.mark.parametrize(
    ("config", "n_parameters"),
    [
        (gpt2_small(), 124_439_808),
        (dataclasses.replace(gpt2_small(), tied=False), 163_037_184),
        (gpt2_medium(), 354_823_168),
        (llama_tiny(), 122_944),
        (llama3_8b(), 8_030_261_248),
    ],
)
def test_presets_have_published_parameter_counts(config, n_parameters):
    assert config.n_parameters() == counted(config) == n_parameters


NAMES_OF_A_BLOCK = {
    "gpt2": """
        attention.norm.bias attention.norm.weight attention.sublayer.w_k.bias attention.sublayer.w_k.weight
        attention.sublayer.w_o.bias attention.sublayer.w_o.weight attention.sublayer.w_q.bias
        attention.sublayer.w_q.weight attention.sublayer.w_v.bias attention.sublayer.w_v.weight
        feedforward.norm.bias feedforward.norm.weight feedforward.sublayer.w_down.bias
        feedforward.sublayer.w_down.weight feedforward.sublayer.w_up.bias feedforward.sublayer.w_up.weight
    """,
    "qk norm": """
        attention.norm.weight attention.sublayer.process_qk.k_norm.weight
        attention.sublayer.process_qk.q_norm.weight attention.sublayer.w_k.weight attention.sublayer.w_o.weight
        attention.sublayer.w_q.weight attention.sublayer.w_v.weight feedforward.norm.weight
        feedforward.sublayer.w_down.weight feedforward.sublayer.w_gate.weight feedforward.sublayer.w_up.weight
    """,
}


@pytest.mark.parametrize("flavour", NAMES_OF_A_BLOCK)
def test_names_of_tensors_stay(flavour):
    """Files of weights hold these names."""
    names = sorted(GPT(config_of(flavour)).blocks[0].state_dict())
    assert names == NAMES_OF_A_BLOCK[flavour].split()


@pytest.mark.parametrize(("flavour", "loss"), [("gpt2", 2.5340891), ("llama", 2.543108), ("2017", 4.6025753)])
def test_a_seed_gives_the_weights_that_it_gave_before(flavour, loss):
    """The chapters were measured with such weights; the losses are those before windows and experts were added."""
    torch.manual_seed(7)
    model = GPT(config_of(flavour)).float()
    tokens = torch.arange(V - 2)[None]
    found = nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).item()
    assert found == pytest.approx(loss, rel=1e-5)


def test_tied_head_shares_embedding_weights_and_gradients():
    model = GPT(config_of("gpt2"))
    assert model.head.weight is model.embedding.weight
    tokens = torch.randint(V, (B, N))
    model(tokens).sum().backward()
    absent = sorted(set(range(V)) - set(tokens.flatten().tolist()))
    assert absent
    assert model.embedding.weight.grad[absent].abs().min() > 0, "the head's gradient must reach absent tokens too"


@pytest.mark.parametrize("feedforward", ["gelu", "swiglu", "none"])
def test_initial_standard_deviations_match_gpt2(feedforward):
    model = GPT(GPTConfig(997, 61, 128, 8, 4, feedforward=feedforward))
    branches = 8 if feedforward == "none" else 16
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            writes = name.endswith(("w_o.weight", "w_down.weight"))
            std = 0.02 / math.sqrt(branches) if writes else 0.02
            # 7808 entries at least: five standard errors of a standard deviation are 5 / sqrt(2 * 7808) = 4 %.
            assert parameter.std().item() == pytest.approx(std, rel=0.04), name
            assert abs(parameter.mean().item()) < 5 * std / math.sqrt(7808), name


def test_sinusoidal_model_scales_tokens_but_not_positions():
    """The input of the first block is sqrt(d_model) times the embedding, plus the unscaled sinusoids."""
    model, tokens, seen = GPT(GPTConfig(V, CONTEXT, 16, 1, 4, position="sinusoidal")), torch.randint(V, (B, N)), []
    model.blocks[0].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    model(tokens)
    angles = torch.arange(N)[:, None] / 10_000 ** (torch.arange(0, 16, 2) / 16)
    sinusoids = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    assert_close(seen[0], 4 * model.embedding.weight[tokens] + sinusoids)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("d_model", [16, 256])
def test_initial_positions_are_about_as_large_as_tokens(position, d_model):
    """Positions of standard deviation 1 would be 50 times as large as tokens of 0.02."""
    model = GPT(GPTConfig(997, 64, d_model, 1, 4, position=position))
    token_size = (model.embedding.weight * model.embedding_scale).std()
    position_size = model.positions(torch.arange(64)).square().mean().sqrt()
    assert 0.5 < position_size / token_size < 2


@each_flavour
def test_every_parameter_receives_a_gradient(flavour):
    tokens, model = tokens_and_model(flavour)
    model(tokens).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name == "positions.weight":
            assert (parameter.grad[:N].abs().sum(-1) > 0).all()
            assert (parameter.grad[N:] == 0).all()
        elif name.endswith("w_k.bias"):  # shifts all scores of a query equally, unless keys are rotated or normalised
            assert (parameter.grad.abs().max() > 1e-9) == (model.config.position == "rotary" or model.config.qk_norm)
        else:
            assert parameter.grad.abs().max() > 1e-9, name


# --- compilation ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(hasattr(GPT.forward, "__wrapped__"), reason="where shapes are checked there is no one graph")
@pytest.mark.parametrize("flavour", ["gpt2", "qk norm", "2017"])
def test_model_compiles_into_one_graph(flavour):
    """While torch.compile traces, only the checks that read values are skipped."""
    torch.compiler.reset()
    tokens, model = tokens_and_model(flavour, n_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(tokens), model(tokens), rtol=0, atol=0)


# --- default of the rotary base -------------------------------------------------------------------------------------

ANOTHER_BASE = """
import importlib.util, sys
spec = importlib.util.find_spec("lessons_lib.attention.positions")
source = open(spec.origin).read()
assert source.count("ROPE_BASE = 10_000.0") == 1
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
exec(compile(source.replace("ROPE_BASE = 10_000.0", "ROPE_BASE = 500.0"), spec.origin, "exec"), module.__dict__)
from dataclasses import replace
from lessons_lib.transformer.configuration import GPTConfig, gpt2_small, llama_tiny
gpt2_small()
replace(llama_tiny(), position="learned")
print(llama_tiny().rotary().base, module.RotaryEmbedding(4).base)
sizes = '"vocab_size": 5, "n_context": 6, "d_model": 8, "n_layers": 1, "n_heads": 2'
print(GPTConfig.from_json('{' + sizes + ', "position": "rotary", "rope_base": 1e4}').rotary().base)
GPTConfig.from_json(gpt2_small().to_json())
"""


@pytest.mark.another_process
def test_rotary_base_default_is_defined_once():
    """A change of the default affects all new rotary models, but neither other models nor saved configs."""
    command = [sys.executable, "-c", ANOTHER_BASE]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["500.0", "500.0", "10000.0"]


def test_to_json_omits_rope_settings_without_rotary_positions():
    assert "rope" not in gpt2_small().to_json()
    assert json.loads(llama_tiny().to_json())["rope_base"] == 10_000.0


# --- files ----------------------------------------------------------------------------------------------------------


def without_its_tie(model):
    model.head.weight = nn.Parameter(model.embedding.weight + 1)


def with_integers(model):
    model.norm.weight = nn.Parameter(torch.ones(D, dtype=torch.int8), requires_grad=False)


@pytest.mark.parametrize(
    ("flavour", "change", "message"),
    [
        ("llama", apply_qk_norm, r"process_qk.k_norm.weight': \(None, \(4,\)\).*qk_norm=True"),
        ("llama", lambda model: apply_sigma_reparam(model.blocks), r"gamma.*remove_sigma_reparam"),
        ("gpt2", lambda model: setattr(model, "norm", nn.Identity()), r"'norm.bias': \(\(24,\), None\)"),
        ("gpt2", without_its_tie, r"head.weight must be embedding.weight"),
        (
            "alibi",
            lambda model: setattr(model, "alibi", AlibiBias(H, slopes=[0.5] * H)),
            r"alibi must match the config .*, got Ali",
        ),
        ("gpt2", with_integers, r"a model that is saved must hold floating-point tensors"),
    ],
)
def test_save_of_model_that_differs_from_config_raises(flavour, change, message, tmp_path):
    path, model = tmp_path / "model", GPT(config_of(flavour))
    model.save(path)
    old = path.read_bytes()
    change(model)
    with pytest.raises(ValueError, match=message):
        model.save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model"]


def test_save_after_remove_sigma_reparam(tmp_path):
    tokens, model = tokens_and_model("llama")
    apply_sigma_reparam(model.blocks)
    remove_sigma_reparam(model)
    model.save(tmp_path / "model")
    assert_close(GPT.load(tmp_path / "model")(tokens), model(tokens), rtol=0, atol=0)


@each_flavour
def test_save_then_load_round_trip(flavour, tmp_path):
    tokens, model = tokens_and_model(flavour)
    model.save(tmp_path / "model.safetensors")
    before = torch.get_rng_state()
    loaded = GPT.load(str(tmp_path / "model.safetensors"))
    assert torch.equal(torch.get_rng_state(), before), "loading must not draw random numbers"
    assert loaded.config == model.config
    assert_close(loaded(tokens), model(tokens), rtol=0, atol=0)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert (loaded.head.weight is loaded.embedding.weight) == model.config.tied
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_load_keeps_dtype_of_each_tensor(tmp_path):
    model = GPT(config_of("gpt2")).to(torch.bfloat16)
    model.norm.float()
    model.save(tmp_path / "model")
    loaded = GPT.load(tmp_path / "model")
    assert {name: t.dtype for name, t in loaded.state_dict().items()} == {
        name: t.dtype for name, t in model.state_dict().items()
    }


def test_loaded_model_is_independent_of_the_file(tmp_path):
    tokens, model = tokens_and_model("gpt2")
    path = tmp_path / "model"
    model.save(path)
    loaded = GPT.load(path)
    path.write_bytes(b"")
    assert_close(loaded(tokens), model(tokens), rtol=0, atol=0)


@pytest.mark.parametrize("failing", ["save_file", "os.replace", "os.fsync"])
def test_interrupted_save_leaves_only_the_previous_file(failing, tmp_path, monkeypatch):
    path = tmp_path / "model"
    GPT(config_of("gpt2")).save(path)
    old = path.read_bytes()

    def interrupted(*given):
        if failing == "save_file":
            given[1].write_bytes(b"half of it")
        raise KeyboardInterrupt

    target = (checkpoints, failing) if failing == "save_file" else (os, failing.removeprefix("os."))
    monkeypatch.setattr(*target, interrupted)
    with pytest.raises(KeyboardInterrupt):
        GPT(config_of("llama")).save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["model"]


def test_load_of_truncated_file_raises(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    GPT(config_of("llama")).save(whole)
    content = whole.read_bytes()
    for length in [0, 4, 8, 100, len(content) // 2, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"must be a complete safetensors file"):
            GPT.load(cut)


def test_load_of_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        GPT.load(tmp_path / "nowhere")


def rewritten(tmp_path, change):
    """Save a model, change the tensors and metadata of the file, and return its path."""
    path = tmp_path / "changed"
    model = GPT(config_of("gpt2"))
    model.save(path)
    tensors = load_file(path)
    metadata = {"format": "lessons_lib.gpt", "config": model.config.to_json()}
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, metadata: metadata.clear(), r"written by GPT.save.*gpt_from_huggingface"),
        (lambda tensors, metadata: metadata.update(format="pt"), r"written by GPT.save"),
        (lambda tensors, metadata: metadata.pop("config"), r"written by GPT.save"),
        (lambda tensors, metadata: metadata.update(config="{"), r"what GPTConfig.to_json wrote; JSONDecodeError"),
        (lambda tensors, metadata: metadata.update(config="[]"), r"what GPTConfig.to_json wrote"),
        (lambda tensors, metadata: metadata.update(config='{"n_heads": 2}'), r"TypeError: .*missing .* required"),
        (lambda tensors, metadata: set_config(metadata, depth=3), r"unexpected keyword argument 'depth'"),
        (lambda tensors, metadata: set_config(metadata, n_heads=7), r"n_heads must divide d_model"),
        (lambda tensors, metadata: set_config(metadata, rope_scaling={"type": "Spiral"}), r"KeyError: 'Spiral'"),
        (lambda tensors, metadata: set_config(metadata, n_layers=1), r"must hold the tensors of its config.*blocks.1"),
        (lambda tensors, metadata: set_config(metadata, d_ff=95), r"\(95, 24\), \(96, 24\)"),
        (lambda tensors, metadata: set_config(metadata, tied=False), r"'head.weight': \(\(13, 24\), None\)"),
        (lambda tensors, metadata: tensors.pop("norm.bias"), r"'norm.bias': \(\(24,\), None\)"),
        (lambda tensors, metadata: tensors.update(extra=torch.zeros(5)), r"'extra': \(None, \(5,\)\)"),
        (lambda tensors, metadata: tensors.update({"norm.bias": torch.zeros(24).char()}), r"floating-point tensors"),
    ],
)
def test_load_of_file_that_does_not_match_its_config_raises(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        GPT.load(rewritten(tmp_path, change))


def set_config(metadata, **changes):
    metadata["config"] = json.dumps(json.loads(metadata["config"]) | changes)


@each_flavour
def test_config_to_json_then_from_json_round_trip(flavour):
    config = config_of(flavour)
    assert GPTConfig.from_json(config.to_json()) == config


# --- invalid arguments ----------------------------------------------------------------------------------------------


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vocab_size": 0}, r"vocab_size must be at least 1"),
        ({"n_layers": 1.5}, r"n_layers must be an integer"),
        ({"d_ff": 0}, r"d_ff must be at least 1"),
        ({"n_heads": 5}, r"n_heads must divide d_model, got n_heads=5, d_model=24; or give d_head"),
        ({"n_kv_heads": 4}, r"n_kv_heads must divide n_heads, got 4 and n_heads=6"),
        ({"feedforward": "silu"}, r"feedforward must be one of .*'swiglu'.* got 'silu'"),
        ({"norm": "batch"}, r"norm must be one of \('layer', 'rms'\), got 'batch'"),
        ({"position": "rope"}, r"position must be one of"),
        ({"feedforward": "none", "d_ff": 96}, r"d_ff must be omitted"),
        ({"norm_eps": -1e-5}, r"norm_eps must be finite and not negative"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"rope_base": 500.0}, r"belong to rotary positions, got 500.0"),
        ({"d_rotary": 2}, r"rope_base, rope_scaling and d_rotary belong to rotary positions, got .* and 2"),
        ({"d_rotary": 3, "position": "rotary"}, r"d_rotary must be even"),
        ({"d_rotary": 6, "position": "rotary"}, r"d_rotary must be"),
        ({"feedforward": "none", "parallel": True}, r"n_experts and parallel must be omitted"),
        ({"rope_scaling": NTKAware(2.0), "position": "alibi"}, r"belong to rotary positions"),
        ({"position": "rotary", "d_head": 3}, r"d_head must be even"),
        ({"position": "rotary", "d_head": 2, "rope_scaling": NTKAware(2.0)}, r"d_head must be at least 4"),
        ({"attention_bias": "o"}, r"attention_bias must be a Boolean, 'qkv' or None, got 'o'"),
        ({"n_experts": 4}, r"n_experts and experts_per_token must be given together, got 4 and None"),
        ({"experts_per_token": 2}, r"must be given together, got None and 2"),
        ({"n_experts": 3, "experts_per_token": 4}, r"experts_per_token must be"),
        ({"feedforward": "none", "n_experts": 3, "experts_per_token": 2}, r"n_experts and parallel must be omitted"),
        ({"norm_order": "post"}, r"norm_order must be one of \('pre', 'output'.*, got 'post'"),
        ({"qk_norm": "heads"}, r"qk_norm must be False, True or 'across_heads', got 'heads'"),
        ({"softcap": 0.0}, r"softcap must be"),
        ({"logit_softcap": -1.0}, r"logit_softcap must be"),
        ({"scale": math.inf}, r"scale must be"),
        ({"window": 0}, r"window must be at least 1"),
        ({"window": (3, 0)}, r"window must be at least 1"),
        ({"window": ()}, r"window must have 1 to n_layers=2 entries, got \(\)"),
        ({"window": (3, None, 3)}, r"window must have 1 to n_layers=2 entries"),
        ({"position": "sinusoidal", "d_model": 9, "n_heads": 3}, r"d_model must be even"),
    ],
)
def test_config_with_invalid_settings_raises(given, message):
    sizes = {"vocab_size": V, "n_context": CONTEXT, "d_model": D, "n_layers": L, "n_heads": H}
    with pytest.raises(ValueError, match=message):
        GPTConfig(**sizes | given)


row = torch.zeros(B, N, dtype=torch.long)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("flavour", "given", "message"),
    [
        ("gpt2", {"tokens": row[0]}, r"tokens must be integers over \(b, n\)"),
        ("gpt2", {"tokens": row.double()}, r"got torch.float64"),
        ("gpt2", {"tokens": row.to(torch.uint8)}, r"int32 or int64 .* got torch.uint8 over .*; write tokens.long\(\)"),
        ("gpt2", {"tokens": row.short()}, r"got torch.int16"),
        ("gpt2", {"tokens": row > 0}, r"got torch.bool"),
        ("gpt2", {"tokens": row[:, :0]}, r"at least one, got .* \(3, 0\)"),
        ("gpt2", {"tokens": row + V}, r"tokens must be in 0 .. vocab_size - 1 = 12, got 13 .. 13"),
        ("gpt2", {"tokens": row - 1}, r"got -1 .. -1"),
        ("gpt2", {"tokens": row.repeat(1, 2)}, r"not be longer than the n_context=11 learned positions, got 14"),
        ("gpt2", {"tokens": row, "positions": torch.arange(N) + 5}, r"positions must be in 0 .. 10"),
        ("gpt2", {"tokens": row, "positions": torch.arange(N + 1)}, r"positions must be \(n,\) or \(b, n\)"),
        ("2017", {"tokens": row, "positions": torch.arange(N) - 1}, r"positions must be integers from 0"),
        ("2017", {"tokens": row, "positions": torch.arange(N) / 2}, r"positions must be integers from 0"),
        ("gpt2", {"tokens": row, "mask": torch.ones(B, N, N) > 0}, r"mask must be Boolean over \(n, m\) or \(b, h"),
        ("gpt2", {"tokens": row, "mask": torch.ones(N, N)}, r"got torch.float32 over \(7, 7\)"),
        ("gpt2", {"tokens": row, "mask": Padding(torch.tensor([1, 2]))}, r"got a rule over \(2, 1, 7, 7\)"),
        ("gpt2", {"tokens": row, "mask": Documents(torch.arange(N + 1))}, "document of each of 7 keys and 7 queries"),
        ("gpt2", {"tokens": row, "mask": masks.causal(N + 1)}, r"= \(3, 6, 7, 7\), where each may be 1"),
        ("gpt2", {"tokens": row, "caches": []}, r"caches must be one for each of the 2 layers"),
    ],
)
def test_forward_with_invalid_arguments_raises(flavour, given, message):
    with pytest.raises(ValueError, match=message):
        GPT(config_of(flavour))(**given)


def test_cached_sequence_longer_than_learned_positions_raises():
    model = GPT(config_of("gpt2"))
    caches = model.new_caches()
    model(row, caches=caches)
    with pytest.raises(ValueError, match=r"n_context=11 learned positions, got 14"):
        model(row, caches=caches)


@pytest.mark.parametrize("flavour", ["llama", "2017", "alibi", "attention alone"])
def test_sequence_may_exceed_n_context_without_learned_positions(flavour):
    model = GPT(config_of(flavour))
    assert model(row.repeat(1, 3)).isfinite().all()


def test_caches_of_unequal_lengths_raise():
    model = GPT(config_of("gpt2"))
    caches = model.new_caches()
    model.blocks[0].attention.sublayer(torch.zeros(B, 1, D), cache=caches[0])
    with pytest.raises(ValueError, match=r"all equally long, got lengths \[1, 0\]; start with new_caches"):
        model(row, caches=caches)


def test_dynamic_scaling_with_cache_beyond_trained_length_raises():
    tokens, model = tokens_and_model("dynamic")
    caches = model.new_caches()
    model(tokens, caches=caches)
    model(tokens[:, :3], caches=caches)
    with pytest.raises(ValueError, match=r"beyond 10 tokens dynamic rotary scaling .* got 11; leave the caches out"):
        model(tokens[:, :1], caches=caches)
    assert model(torch.cat([tokens, tokens], dim=1)).isfinite().all()
