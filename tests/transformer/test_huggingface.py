"""Copies of pretrained models have equal logits and texts; unsupported models raise an error."""

import copy
import json
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from test_multihead import flash
from torch import nn
from torch.testing import assert_close
from transformers import (
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
    Olmo2ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from lessons_lib.attention.rules import LeftPadding
from lessons_lib.generation.sampling import generate
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.huggingface import gpt_from_huggingface

B, N, V, CONTEXT = 3, 23, 31, 16  # N exceeds Llama's CONTEXT, beyond which dynamic scaling has an effect

NO_SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GPT2 = {"vocab_size": V, "n_positions": 29, "n_embd": 20, "n_layer": 2, "n_head": 5}
NEOX = {
    "vocab_size": V,
    "hidden_size": 40,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "max_position_embeddings": CONTEXT,
}
LLAMA = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}


def rope(kind: str, **settings) -> dict:
    """Return rotary settings in a form that transformers 4 and 5 both read."""
    return {"rope_theta": 500.0, "rope_scaling": {"rope_type": kind} | settings}


SCALINGS = {
    "linear": rope("linear", factor=3.0),
    "dynamic": rope("dynamic", factor=3.0),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=4, beta_fast=1.5, beta_slow=0.01),
    "yarn, its magnitude given": rope("yarn", factor=4.0, original_max_position_embeddings=4, attention_factor=1.7),
    "yarn, its magnitude a quotient": rope(
        "yarn", factor=4.0, original_max_position_embeddings=8, mscale=5.0, mscale_all_dim=0.5, truncate=False
    ),
    "llama3": rope("llama3", factor=8.0, original_max_position_embeddings=8, low_freq_factor=0.1, high_freq_factor=0.7),
}
WINDOW = {"use_sliding_window": True, "sliding_window": 4}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 36}  # PyTorch wants a multiple of 4
GEMMA = {
    "num_hidden_layers": 3,
    "head_dim": 10,
    "query_pre_attn_scalar": 10,
    "sliding_window": 4,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.5,
    "attn_implementation": "eager",  # the other implementations of transformers ignore the cap
}
MODELS = {
    "gpt2": (GPT2LMHeadModel, {}),
    "gpt2 untied, another width": (GPT2LMHeadModel, {"tie_word_embeddings": False, "n_inner": 13}),
    "gpt2 with gelu, another epsilon": (
        GPT2LMHeadModel,
        {"activation_function": "gelu", "layer_norm_epsilon": 0.3},
    ),
    "gpt2 with relu": (GPT2LMHeadModel, {"activation_function": "relu"}),
    "llama": (LlamaForCausalLM, {}),
    "llama tied, attention biased": (LlamaForCausalLM, {"tie_word_embeddings": True, "attention_bias": True}),
    "llama, feed-forward biased": (LlamaForCausalLM, {"mlp_bias": True}),
    "llama, all biased, another epsilon": (
        LlamaForCausalLM,
        {"mlp_bias": True, "attention_bias": True, "rms_norm_eps": 0.3},
    ),
    "llama with wide heads": (LlamaForCausalLM, {"head_dim": 10}),
    "llama, one shared head": (LlamaForCausalLM, {"num_key_value_heads": 1}),
    "llama, no shared heads": (LlamaForCausalLM, {"num_key_value_heads": 6}),
    "llama, another base": (LlamaForCausalLM, {"rope_theta": 50.0}),
    "llama tied, another base": (LlamaForCausalLM, {"rope_theta": 50.0, "tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, {"head_dim": 10}),
    "qwen3 tied, attention biased, another epsilon": (
        Qwen3ForCausalLM,
        {"head_dim": 4, "tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 0.3},
    ),
    "qwen3, yarn": (Qwen3ForCausalLM, {"head_dim": 6} | SCALINGS["yarn"]),
    "mistral": (MistralForCausalLM, {"sliding_window": 4}),
    "neox": (GPTNeoXForCausalLM, {}),
    "neox, half rotated, not parallel, tied": (
        GPTNeoXForCausalLM,
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5},
            "use_parallel_residual": False,
            "tie_word_embeddings": True,
        },
    ),
    "neox, no bias in attention, gelu_new, yarn": (
        GPTNeoXForCausalLM,
        {
            "rope_parameters": {"rope_theta": 500.0, "rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.5}
            | {"original_max_position_embeddings": 4, "beta_fast": 1.5, "beta_slow": 0.01},
            "attention_bias": False,
            "hidden_act": "gelu_new",
        },
    ),
    "neox, all rotated": (
        GPTNeoXForCausalLM,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0}},
    ),
    "mixtral": (MixtralForCausalLM, EXPERTS),
    "mixtral, a window, three experts a token": (
        MixtralForCausalLM,
        EXPERTS | {"num_experts_per_tok": 3, "sliding_window": 4, "head_dim": 10},
    ),
    "olmo2": (Olmo2ForCausalLM, {}),
    "olmo2 tied, attention biased, yarn": (
        Olmo2ForCausalLM,
        {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 10} | SCALINGS["yarn"],
    ),
    "gemma2": (Gemma2ForCausalLM, GEMMA),
    "gemma2 untied, biased, both caps off, another scale": (
        Gemma2ForCausalLM,
        GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 3}
        | {"tie_word_embeddings": False, "attention_bias": True, "rms_norm_eps": 0.3},
    ),
    "gemma2, full attention first": (
        Gemma2ForCausalLM,
        GEMMA | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "head_dim": 4},
    ),
    "qwen2": (Qwen2ForCausalLM, {}),
    "qwen2 tied, window from the second layer on": (
        Qwen2ForCausalLM,
        {"tie_word_embeddings": True, "max_window_layers": 1} | WINDOW,
    ),
    "qwen3, a window": (Qwen3ForCausalLM, {"head_dim": 6, "layer_types": ["sliding_attention"] * 2} | WINDOW),
    "mistral, no window": (MistralForCausalLM, {"sliding_window": None, "head_dim": 10}),
} | {f"llama, {name}": (LlamaForCausalLM, settings) for name, settings in SCALINGS.items()}
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def single_precision(double_precision):
    """Use float32, as checkpoints do."""
    torch.set_default_dtype(torch.float32)


def build(name: str, **changes):
    """Build a small model with large random weights, biases and norms, so that every setting affects the logits."""
    architecture, settings = MODELS[name]
    sizes = {GPT2LMHeadModel: GPT2, GPTNeoXForCausalLM: NEOX}.get(architecture, LLAMA)
    model = architecture(architecture.config_class(**sizes | NO_SPECIAL | settings | changes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        logits = model(tokens)
    return getattr(logits, "logits", logits)


# --- parity ---------------------------------------------------------------------------------------------------------

# Measured over 20 seeds, logits of up to 7.4: they differ by at most 2.8e-6 for GPT-2 and 1.4e-5 for Llama.
TOLERANCE = 1e-4


@every_model
def test_copy_has_equal_logits(name):
    theirs = build(name)
    ours = gpt_from_huggingface(theirs)
    tokens = torch.randint(V, (B, N))
    assert_close(logits_of(ours, tokens), logits_of(theirs, tokens), rtol=0, atol=TOLERANCE)
    assert ours.config.n_parameters() == theirs.num_parameters() == sum(p.numel() for p in ours.parameters())


FAMILIES = ["gpt2", "neox", "llama", "mistral", "mixtral", "olmo2", "gemma2", "qwen2", "qwen3"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_logits_of_small_weights_are_equal_with_and_without_caches(name, padded):
    theirs = build(name)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    ours, n = gpt_from_huggingface(theirs), 15
    n_padding = torch.tensor([0, 4, 5]) if padded else torch.zeros(B, dtype=torch.long)
    tokens, real = torch.randint(V, (B, n)), torch.arange(n) >= n_padding[:, None]
    positions = (torch.arange(n) - n_padding[:, None]).clamp(min=0)
    caches, mask = ours.new_caches(), LeftPadding(n_padding)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=real.long(), position_ids=positions).logits
        logits = ours(tokens, positions=positions, mask=mask)
        steps = [slice(0, 6), slice(6, 13), slice(13, 14), slice(14, 15)]
        cached = [ours(tokens[:, at], caches=caches, positions=positions[:, at], mask=mask) for at in steps]
    # Measured over 20 seeds: they differ by at most 1.3e-6, in Gemma 2.
    assert_close(logits[real], expected[real], rtol=0, atol=1e-5)
    assert_close(torch.cat(cached, dim=1)[real], expected[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [name for name, (model, settings) in MODELS.items() if model is LlamaForCausalLM and "rope_theta" in settings],
)
def test_rotary_settings_change_logits_far_beyond_tolerance(name):
    """Each setting changes the logits by 1000 times the tolerance, so an ignored setting would fail the parity test."""
    changed, plain = build(name), build("llama")
    plain.load_state_dict(changed.state_dict())
    tokens = torch.randint(V, (B, N))
    assert (logits_of(plain, tokens) - logits_of(changed, tokens)).abs().max() > 1000 * TOLERANCE


@pytest.mark.parametrize("name", ["gpt2", "llama tied, attention biased"])
def test_copy_has_equal_gradients(name):
    theirs = build(name).double()
    ours = gpt_from_huggingface(theirs)
    tokens = torch.randint(V, (B, N))
    for model in (theirs, ours):
        logits = model(tokens)
        getattr(logits, "logits", logits).log_softmax(-1)[..., 7].sum().backward()
    # Measured in float64, relative to the largest entry: 6e-16 for GPT-2, 3e-7 for Llama, whose angles are float32.
    for mine, other in [
        (ours.embedding.weight, theirs.get_input_embeddings().weight),
        (ours.norm.weight, (theirs.transformer.ln_f if name == "gpt2" else theirs.model.norm).weight),
    ]:
        assert_close(mine.grad, other.grad, rtol=0, atol=1e-5 * other.grad.abs().max().item())


@pytest.mark.parametrize("name", ["gpt2", "llama, dynamic"])
def test_copy_with_another_attention_implementation_has_equal_logits(name):
    theirs = build(name)
    ours = gpt_from_huggingface(theirs, implementation=flash)
    tokens = torch.randint(V, (B, N))
    assert_close(logits_of(ours, tokens), logits_of(theirs, tokens), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_copy_keeps_dtype_and_mode_and_shares_no_memory(name, dtype):
    theirs = build(name).to(dtype)
    ours = gpt_from_huggingface(theirs)
    assert {parameter.dtype for parameter in ours.parameters()} == {dtype}
    assert not ours.training
    assert gpt_from_huggingface(theirs.train()).training
    before = {key: tensor.clone() for key, tensor in ours.state_dict().items()}
    for parameter in theirs.parameters():
        nn.init.zeros_(parameter)
    assert_close(ours.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama, llama3", "qwen3"])
def test_copy_can_be_saved_and_loaded(name, tmp_path):
    ours = gpt_from_huggingface(build(name))
    ours.save(tmp_path / "model")
    tokens = torch.randint(V, (B, N))
    assert_close(GPT.load(tmp_path / "model")(tokens), ours(tokens), rtol=0, atol=0)


# --- generated texts ------------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("padded", [False, True], ids=["equal lengths", "left-padded"])
def test_copy_generates_equal_greedy_texts(name, padded):
    theirs = build(name)
    theirs.generation_config.pad_token_id = 0
    ours = gpt_from_huggingface(theirs)
    n, n_new = 7, 9  # up to CONTEXT: beyond it no cache is exact with dynamic scaling, in transformers neither
    tokens = torch.randint(1, V, (B, n))
    lengths = torch.tensor([n, n - 3, 1]) if padded else None
    real = torch.ones(B, n, dtype=torch.long) if lengths is None else (torch.arange(n) >= n - lengths[:, None]).long()
    expected = theirs.generate(tokens * real, attention_mask=real, max_new_tokens=n_new, do_sample=False)
    text = generate(ours, tokens * real, n_new, temperature=0, lengths=lengths)
    assert torch.equal(text, expected)


# --- settings of transformers 4 and 5 -------------------------------------------------------------------------------


def written_by_version_4(theta: float, scaling: dict | None) -> dict:
    return {"rope_theta": theta, "rope_scaling": scaling}


def written_by_older_versions(theta: float, scaling: dict | None) -> dict:
    older = None if scaling is None else {"type" if key == "rope_type" else key: v for key, v in scaling.items()}
    return {"rope_theta": theta, "rope_scaling": older}


def written_by_version_5(theta: float, scaling: dict | None) -> dict:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default"} | (scaling or {})}


@pytest.mark.parametrize(
    "name", [name for name, (architecture, _) in MODELS.items() if architecture is LlamaForCausalLM]
)
@pytest.mark.parametrize("rope_settings", [written_by_version_4, written_by_older_versions, written_by_version_5])
def test_configs_of_all_transformers_versions_give_equal_logits(name, rope_settings):
    theirs, settings = build(name), MODELS[name][1]
    tokens = torch.randint(V, (B, N))
    expected = logits_of(theirs, tokens)
    others = ["rms_norm_eps", "mlp_bias", "attention_bias", "head_dim", "hidden_act", "tie_word_embeddings"]
    theirs.config = SimpleNamespace(
        **{setting: getattr(theirs.config, setting) for setting in [*LLAMA, *others]},
        **rope_settings(settings.get("rope_theta", 10_000.0), settings.get("rope_scaling")),
    )
    assert_close(logits_of(gpt_from_huggingface(theirs), tokens), expected, rtol=0, atol=TOLERANCE)


# --- checkpoint folders ---------------------------------------------------------------------------------------------


@pytest.fixture
def without_transformers(monkeypatch):
    """Let no import of transformers succeed from now on."""

    def block():
        monkeypatch.setitem(sys.modules, "transformers", None)

    return block


@every_model
def test_folder_without_transformers_gives_the_same_copy(name, tmp_path, without_transformers):
    theirs = build(name)
    theirs.save_pretrained(tmp_path)
    expected = gpt_from_huggingface(theirs)
    without_transformers()
    ours = gpt_from_huggingface(tmp_path)
    assert ours.config == expected.config
    assert not ours.training
    assert_close(ours.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_folder_with_several_files_is_loaded(tmp_path, without_transformers):
    theirs = build("llama").to(torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="2KB")
    save_file({"weight": torch.zeros(3)}, tmp_path / "consolidated.safetensors")  # in the format of another program
    without_transformers()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ours = gpt_from_huggingface(str(tmp_path))
    assert_close(ours.state_dict(), gpt_from_huggingface(theirs).state_dict(), rtol=0, atol=0)
    sorted(tmp_path.glob("model-*.safetensors"))[0].unlink()
    with pytest.raises(ValueError, match=r"must hold model-0000.*, which its index lists"):
        gpt_from_huggingface(tmp_path)


def write_folder(folder, settings, tensors):
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_gpt2_folder_as_published_is_loaded(tmp_path):
    """The published file leaves out the head and the name of the decoder, and holds the causal masks."""
    theirs = build("gpt2")
    prefix = "transformer."
    tensors = {name.removeprefix(prefix): t for name, t in theirs.state_dict().items() if name.startswith(prefix)}
    tensors |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 29, 29) for layer in range(2)}
    settings = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 29}
    write_folder(tmp_path, settings | GPT2, tensors)
    tokens = torch.randint(V, (B, N))
    assert_close(logits_of(gpt_from_huggingface(tmp_path), tokens), logits_of(theirs, tokens), rtol=0, atol=TOLERANCE)


def test_smollm_folder_as_published_is_loaded(tmp_path):
    """SmolLM is a Llama with tied embeddings; its config.json is that of version 4."""
    theirs = build("llama tied, another base")
    settings = LLAMA | {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "is_llama_config": True,
        "rms_norm_eps": 1e-06,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 50,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    tensors = {name: t for name, t in theirs.state_dict().items() if name != "lm_head.weight"}
    tensors |= {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(2) for layer in range(2)}
    write_folder(tmp_path, settings, tensors)
    tokens = torch.randint(V, (B, N))
    assert_close(logits_of(gpt_from_huggingface(tmp_path), tokens), logits_of(theirs, tokens), rtol=0, atol=TOLERANCE)


def test_pythia_folder_as_published_is_loaded(tmp_path):
    """The published file holds the causal masks and frequencies; its config.json is that of version 4."""
    theirs = build("neox")
    settings = NEOX | {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-05,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
    }
    tensors = theirs.state_dict()
    tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    for layer in range(2):
        attention = f"gpt_neox.layers.{layer}.attention"
        tensors |= {f"{attention}.bias": torch.ones(1, 1, 16, 16), f"{attention}.masked_bias": torch.tensor(-1e9)}
        tensors[f"{attention}.rotary_emb.inv_freq"] = torch.ones(1)
    write_folder(tmp_path, settings, tensors)
    tokens = torch.randint(V, (B, N))
    assert_close(logits_of(gpt_from_huggingface(tmp_path), tokens), logits_of(theirs, tokens), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architectures": None}, r"model must be one of .*, got a folder without architectures"),
        ({"architectures": ["PhiForCausalLM"]}, r"model must be one of .*, got PhiForCausalLM"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config=None"),
        ({"rope_interleaved": True}, r"rope_interleaved=False .*, got True"),
        ({"hidden_size": ...}, r"the config must give 'hidden_size'"),
    ],
)
def test_folder_with_unsupported_settings_raises(settings, message, tmp_path):
    theirs = build("llama")
    changed = LLAMA | {"architectures": ["LlamaForCausalLM"]} | settings
    write_folder(tmp_path, {k: v for k, v in changed.items() if v is not ...}, theirs.state_dict())
    with pytest.raises(ValueError, match=message):
        gpt_from_huggingface(tmp_path)


def test_folder_with_truncated_file_raises(tmp_path):
    build("llama").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"must be a complete safetensors file"):
        gpt_from_huggingface(tmp_path)


def test_folder_with_other_files_needs_transformers(tmp_path, without_transformers):
    (tmp_path / "config.json").write_text("{}")
    without_transformers()
    with pytest.raises(ImportError, match=r"a folder with config.json and \*.safetensors needs none"):
        gpt_from_huggingface(tmp_path)


# --- unsupported models ---------------------------------------------------------------------------------------------


def test_unsupported_architecture_raises():
    phi = PhiForCausalLM(PhiConfig(**LLAMA | NO_SPECIAL))
    with pytest.raises(ValueError, match=r"one of GPT2LMHeadModel, GPTNeoXForCausalLM, .*, got PhiForCausalLM"):
        gpt_from_huggingface(phi)
    with pytest.raises(ValueError, match=r"got GPT2Model"):
        gpt_from_huggingface(GPT2Model(GPT2Config(**GPT2 | NO_SPECIAL)))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx=False .*, got True"),
        ("gpt2", {"scale_attn_weights": False}, r"scale_attn_weights=True"),
        ("gpt2", {"reorder_and_upcast_attn": True}, r"reorder_and_upcast_attn=False"),
        ("gpt2", {"add_cross_attention": True}, r"add_cross_attention=False"),
        ("gpt2", {"activation_function": "silu"}, r"activation_function must be one of gelu_new.*, got 'silu'"),
        ("llama", {"hidden_act": "gelu"}, r"hidden_act='silu' .*, got 'gelu'"),
        ("llama", {"sliding_window": 4}, r"sliding_window=None .*, got 4"),
        ("llama", {"is_causal": False}, r"is_causal=True"),
        ("llama", {"layer_types": ["sliding_attention"] * 2}, r"layer_types=None"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, r"sliding_window must be a number for"),
        ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, r"layer_types must be 2 of full_attention"),
        ("qwen2", {"layer_types": ["full_attention"]}, r"layer_types must be 2 of .*, got \['full_attention'\]"),
        ("mixtral", {"num_experts_per_tok": 1}, r"num_experts_per_tok must be at least 2: .*, got 1"),
        ("neox", {"hidden_act": "silu"}, r"hidden_act must be one of gelu_new, .*, got 'silu'"),
        ("gemma2", {"hidden_activation": "gelu"}, r"hidden_activation='gelu_pytorch_tanh' .*, got 'gelu'"),
        ("gemma2", {"use_bidirectional_attention": True}, r"use_bidirectional_attention=None .*, got True"),
        ("mistral", {"hidden_act": "gelu"}, r"hidden_act='silu' .*, got 'gelu'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            r"must not have \['partial_rotary_factor'\]",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}},
            r"rope_type must be default, linear, .* got 'longrope'",
        ),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, r"of type 'linear' must have 'factor'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            r"of type 'llama3' must have 'low_freq_factor'",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "spin": 3}},
            r"of type 'linear' must not have \['spin'\]",
        ),
        ("llama", {"rope_parameters": {"full_attention": {"factor": 2.0}}}, r"must not have \['full_attention'\]"),
    ],
)
def test_unsupported_settings_raise(name, settings, message):
    theirs = build(name)
    for setting, value in settings.items():  # set afterwards, because transformers itself rejects some
        object.__setattr__(theirs.config, setting, value)
    with pytest.raises(ValueError, match=message):
        gpt_from_huggingface(theirs)


def test_rotary_frequencies_that_differ_from_the_settings_raise():
    """The rotary module of the model differs from its settings."""
    theirs = build("llama, linear")
    theirs.model.rotary_emb.original_inv_freq *= 1.01
    with pytest.raises(ValueError, match=r"PositionInterpolation.*but its own frequencies .* differ"):
        gpt_from_huggingface(theirs)
    theirs = build("llama, yarn")
    theirs.model.rotary_emb.attention_scaling = 1.0
    with pytest.raises(ValueError, match=r"YaRN.*but its own frequencies .* differ"):
        gpt_from_huggingface(theirs)


def with_tensors(model, change):
    tensors = model.state_dict()
    change(tensors)
    model.state_dict = lambda: tensors
    return model


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2", lambda t: t.pop("transformer.h.1.ln_2.bias"), r"must hold 'transformer.h.1.ln_2.bias'"),
        ("llama", lambda t: t.pop("lm_head.weight"), r"must hold 'lm_head.weight'"),
        ("gpt2", lambda t: t.update(adapter=torch.zeros(3)), r"nothing beyond .*, got adapter; merge adapters"),
        ("llama", lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(24)}), r"q_proj.bias"),
        ("gpt2", lambda t: t.update({"lm_head.weight": torch.zeros(V, 20)}), r"lm_head.weight must equal transformer"),
        ("qwen3", lambda t: t.pop("model.layers.1.self_attn.k_norm.weight"), r"must hold .*1.self_attn.k_norm.weight"),
        (
            "llama",
            lambda t: t.update({"model.norm.weight": torch.zeros(25)}),
            r"differ for \{'norm.weight': \(\(24,\), \(25,\)\)\}",
        ),
        (
            "llama",
            lambda t: t.update({"model.norm.weight": torch.zeros(24, dtype=torch.int8)}),
            r"quantised weights are not supported",
        ),
    ],
)
def test_missing_unexpected_or_invalid_tensors_raise(name, change, message):
    with pytest.raises(ValueError, match=message):
        gpt_from_huggingface(with_tensors(build(name), change))


def test_more_layers_than_in_config_raise():
    theirs = build("llama")
    theirs.config.num_hidden_layers = 1
    with pytest.raises(ValueError, match=r"got model.layers.1.input_layernorm.weight, .* and 4 more"):
        gpt_from_huggingface(theirs)


def test_checkpoint_name_without_transformers_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"loading 'gpt2' needs .* pip install 'transformers>=4.57'"):
        gpt_from_huggingface("gpt2")


def test_thirds_of_the_matrix_are_not_the_queries_keys_and_values_of_neox():
    """GPT-2's way to divide the one matrix gives logits far from those of GPT-NeoX."""
    theirs, tokens = build("neox"), torch.randint(V, (B, N))
    ours = gpt_from_huggingface(theirs)
    for mine, other in zip(ours.blocks, theirs.gpt_neox.layers, strict=True):
        layer, together = mine.attention.sublayer, other.attention.query_key_value
        for kind in ("weight", "bias"):
            for part, tensor in zip((layer.w_q, layer.w_k, layer.w_v), getattr(together, kind).chunk(3), strict=True):
                getattr(part, kind).data = tensor.data
    assert (logits_of(ours, tokens) - logits_of(theirs, tokens)).abs().max() > 1000 * TOLERANCE


def test_norms_of_single_heads_are_not_those_across_heads():
    """Norms of each head by itself, with the same gains, give logits far from those of OLMo 2."""
    theirs, tokens = build("olmo2"), torch.randint(V, (B, N))
    ours = gpt_from_huggingface(theirs)
    for block in ours.blocks:
        for norm in (block.attention.sublayer.process_qk.q_norm, block.attention.sublayer.process_qk.k_norm):
            norm.forward = partial(normalised_by_head, norm)
    assert (logits_of(ours, tokens) - logits_of(theirs, tokens)).abs().max() > 1000 * TOLERANCE


def normalised_by_head(norm, x):
    heads = x.unflatten(-1, (-1, 4))
    normed = heads * (heads.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return normed.flatten(-2) * norm.weight


def test_gains_of_gemma2_without_their_one_are_caught():
    """Norms whose gains are the stored numbers give logits far from those of Gemma 2."""
    theirs, tokens = build("gemma2"), torch.randint(V, (B, N))
    expected = logits_of(theirs, tokens)
    for name in ("norm.weight", "blocks.1.attention.norm.weight", "blocks.2.feedforward.output_norm.weight"):
        ours = gpt_from_huggingface(theirs)
        ours.get_parameter(name).data -= 1
        assert (logits_of(ours, tokens) - expected).abs().max() > 1000 * TOLERANCE


def test_gemma2_in_half_precision_keeps_its_gains_exact():
    theirs = build("gemma2").to(torch.bfloat16)
    ours = gpt_from_huggingface(theirs)
    dtypes = {name: parameter.dtype for name, parameter in ours.named_parameters()}
    assert {dtype for name, dtype in dtypes.items() if "norm" in name} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if "norm" not in name} == {torch.bfloat16}
    tokens = torch.randint(V, (B, N))
    difference = (logits_of(ours, tokens) - logits_of(theirs, tokens)).float().abs().mean()
    rounding = (logits_of(theirs, tokens).float() - logits_of(build_like(theirs), tokens)).abs().mean()
    assert difference < 1.5 * rounding


def build_like(theirs):
    """Return a copy of a model in single precision."""
    return copy.deepcopy(theirs).float()


# --- wrong models ---------------------------------------------------------------------------------------------------

# For each family, models that differ from it in one setting: their logits must be far from those of the family.
WRONG = [
    ("mistral", {"window": None}),
    ("mistral", {"window": 3}),
    ("mistral", {"window": 5}),
    ("mistral", {"window": (4, None)}),
    ("neox", {"parallel": False}),
    ("neox", {"d_rotary": None}),
    ("neox", {"d_rotary": 4}),
    ("neox", {"attention_bias": False}),
    ("neox", {"attention_bias": "qkv"}),
    ("neox", {"feedforward": "relu"}),
    ("neox, half rotated, not parallel, tied", {"parallel": True}),
    ("mixtral", {"experts_per_token": 1}),
    ("mixtral", {"experts_per_token": 3}),
    ("olmo2", {"norm_order": "pre"}),
    ("olmo2", {"qk_norm": False}),
    ("gemma2", {"window": 4}),
    ("gemma2", {"window": (None, 4)}),
    ("gemma2", {"window": (5, None)}),
    ("gemma2", {"softcap": None}),
    ("gemma2", {"logit_softcap": None}),
    ("gemma2", {"scale_embedding": False}),
    ("gemma2", {"norm_order": "pre"}),
    ("gemma2", {"feedforward": "swiglu"}),
    ("gemma2 untied, biased, both caps off, another scale", {"scale": None}),
    ("qwen2", {"attention_bias": False}),
    ("qwen2", {"attention_bias": True}),
    ("qwen2 tied, window from the second layer on", {"window": None}),
    ("qwen2 tied, window from the second layer on", {"window": 4}),
    ("qwen2 tied, window from the second layer on", {"window": (4, None)}),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_models_with_a_wrong_setting_are_caught(name, wrong):
    """The logits of a model that ignores or misreads the setting differ by 1000 times the tolerance."""
    theirs = build(name)
    right, tokens = gpt_from_huggingface(theirs), torch.randint(V, (B, N))
    ours = GPT(replace(right.config, **wrong))
    for parameter in ours.parameters():  # those that the family does not have
        nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict({k: t for k, t in right.state_dict().items() if k in ours.state_dict()}, strict=False)
    assert (logits_of(ours, tokens) - logits_of(theirs, tokens)).abs().max() > 1000 * TOLERANCE


def test_qk_norms_change_logits_far_beyond_tolerance():
    """Without one of the norms the logits change by 1000 times the tolerance."""
    ours, tokens = gpt_from_huggingface(build("qwen3")), torch.randint(V, (B, N))
    expected = logits_of(ours, tokens)
    for name in ("q_norm", "k_norm"):
        changed = gpt_from_huggingface(build("qwen3"))
        changed.load_state_dict(ours.state_dict())
        for block in changed.blocks:
            setattr(block.attention.sublayer.process_qk, name, nn.Identity())
        assert (logits_of(changed, tokens) - expected).abs().max() > 1000 * TOLERANCE
