"""Load models of the ``transformers`` library into a :class:`~lessons_lib.transformer.gpt.GPT` with equal logits.

A setting without counterpart here, or a missing or unexpected tensor, raises an error: no model is partly loaded.
"""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lessons_lib.attention.positions import RotaryScaling
from lessons_lib.attention.rope_scaling import DynamicNTK, Llama3, PositionInterpolation, YaRN, yarn_attention_factor
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.transformer.gpt import GPT, FeedForwardKind, GPTConfig


def gpt_from_huggingface(model: Any, *, implementation: Callable[..., Tensor] = fused_attention) -> GPT:
    """Copy a GPT-2, Llama or Qwen3 model of the ``transformers`` library into a GPT with equal logits.

    ``gpt_from_huggingface("gpt2")`` downloads that checkpoint through ``AutoModelForCausalLM.from_pretrained``. The
    copy has the dtype, device and training mode of the original. Dropout only matters in training and is not copied;
    to add it, load the copy's ``state_dict`` into ``GPT(replace(copy.config, dropout=0.1))``.

    Args:
        model: a ``GPT2LMHeadModel``, ``LlamaForCausalLM`` or ``Qwen3ForCausalLM``, or the name or folder of a
            checkpoint of one of them.
        implementation: the attention function, see :class:`~lessons_lib.attention.multihead.MultiHeadAttention`.

    Raises:
        ImportError: if ``model`` is a name and ``transformers`` is not installed.
        ValueError: if the model has another architecture or a setting that :class:`GPT` does not support, or its
            tensors are not exactly those that its config requires.
    """
    if isinstance(model, str | os.PathLike):
        model = _pretrained(model)
    architecture = type(model).__name__
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"model must be one of {', '.join(_ARCHITECTURES)} (transformers), got {architecture}")
    read_config, read_tensors = _ARCHITECTURES[architecture]
    config = read_config(model.config)
    _check_rotary_frequencies(config, model)
    source = _TensorSource(model.state_dict(), architecture)
    tensors = {name: tensor.clone() for name, tensor in read_tensors(config, source).items()}
    source.check_all_taken()
    ours = GPT.from_tensors(config, tensors, origin=architecture, implementation=implementation)
    return ours.train(model.training)


# --- reading tensors and settings -----------------------------------------------------------------------------------


def _pretrained(name: str | os.PathLike[str]) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(
            f"loading {str(name)!r} needs the transformers library: pip install 'transformers>=4.57'"
        ) from error
    return AutoModelForCausalLM.from_pretrained(name)


class _TensorSource:
    """Tensors by name, each of which must be taken exactly once."""

    def __init__(self, tensors: Mapping[str, Tensor], origin: str) -> None:
        self._remaining, self._origin = dict(tensors), origin

    def take(self, name: str) -> Tensor:
        if name not in self._remaining:
            raise ValueError(
                f"{self._origin} must hold {name!r}, which its config requires; the remaining tensors are "
                f"{self._names()}"
            )
        return self._remaining.pop(name)

    def check_all_taken(self) -> None:
        if self._remaining:
            raise ValueError(
                f"{self._origin} must hold nothing beyond what its config requires, got {self._names()}; "
                "merge adapters into the weights first"
            )

    def _names(self) -> str:
        names = sorted(self._remaining)
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _require(theirs: Any, **supported: Any) -> None:
    """Raise an error if a setting exists and has another value than the supported one."""
    for name, value in supported.items():
        found = getattr(theirs, name, value)
        if found != value:
            raise ValueError(f"only models with {name}={value!r} are supported, got {found!r}")


# --- GPT-2 ----------------------------------------------------------------------------------------------------------


def _gpt2_config(theirs: Any) -> GPTConfig:
    _require(
        theirs,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
        is_causal=True,
    )
    activations: dict[str, FeedForwardKind] = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
    }
    if theirs.activation_function not in activations:
        raise ValueError(
            f"activation_function must be one of {', '.join(activations)}, got {theirs.activation_function!r}"
        )
    return GPTConfig(
        theirs.vocab_size,
        theirs.n_positions,
        theirs.n_embd,
        theirs.n_layer,
        theirs.n_head,
        d_ff=theirs.n_inner,
        feedforward=activations[theirs.activation_function],
        norm_eps=theirs.layer_norm_epsilon,
        tied=theirs.tie_word_embeddings,
    )


def _gpt2_tensors(config: GPTConfig, source: _TensorSource) -> dict[str, Tensor]:
    tensors = _embedding_and_head(config, source, embedding="transformer.wte.weight")
    tensors["positions.weight"] = source.take("transformer.wpe.weight")
    for kind in ("weight", "bias"):
        tensors[f"norm.{kind}"] = source.take(f"transformer.ln_f.{kind}")
        for layer in range(config.n_layers):
            block = f"transformer.h.{layer}"
            attention, feedforward = f"blocks.{layer}.attention", f"blocks.{layer}.feedforward"
            # GPT-2 stores weights as (in, out), and the projections of queries, keys and values as one matrix.
            q, k, v = source.take(f"{block}.attn.c_attn.{kind}").t().chunk(3)
            tensors |= {
                f"{attention}.sublayer.w_q.{kind}": q,
                f"{attention}.sublayer.w_k.{kind}": k,
                f"{attention}.sublayer.w_v.{kind}": v,
                f"{attention}.sublayer.w_o.{kind}": source.take(f"{block}.attn.c_proj.{kind}").t(),
                f"{attention}.norm.{kind}": source.take(f"{block}.ln_1.{kind}"),
                f"{feedforward}.sublayer.w_up.{kind}": source.take(f"{block}.mlp.c_fc.{kind}").t(),
                f"{feedforward}.sublayer.w_down.{kind}": source.take(f"{block}.mlp.c_proj.{kind}").t(),
                f"{feedforward}.norm.{kind}": source.take(f"{block}.ln_2.{kind}"),
            }
    return tensors


# --- Llama and Qwen3 ------------------------------------------------------------------------------------------------


def _llama_config(theirs: Any) -> GPTConfig:
    _require(theirs, layer_types=None)
    return _gated_config(theirs, bias=theirs.mlp_bias)


def _qwen3_config(theirs: Any) -> GPTConfig:
    if getattr(theirs, "layer_types", None) is not None:
        _require(theirs, layer_types=["full_attention"] * theirs.num_hidden_layers)
    return _gated_config(theirs, bias=False, qk_norm=True)


def _gated_config(theirs: Any, *, bias: bool, qk_norm: bool = False) -> GPTConfig:
    _require(theirs, hidden_act="silu", is_causal=True, sliding_window=None, attention_chunk_size=None)
    _require(theirs, partial_rotary_factor=1.0)
    base, scaling = _llama_rotation(theirs)
    return GPTConfig(
        theirs.vocab_size,
        theirs.max_position_embeddings,
        theirs.hidden_size,
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        n_kv_heads=theirs.num_key_value_heads,
        d_head=getattr(theirs, "head_dim", None),
        d_ff=theirs.intermediate_size,
        feedforward="swiglu",
        norm="rms",
        norm_eps=theirs.rms_norm_eps,
        position="rotary",
        rope_base=base,
        rope_scaling=scaling,
        qk_norm=qk_norm,
        bias=bias,
        attention_bias=theirs.attention_bias,
        tied=theirs.tie_word_embeddings,
    )


def _llama_rotation(theirs: Any) -> tuple[float, RotaryScaling | None]:
    """Return base and scaling, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (4)."""
    settings = getattr(theirs, "rope_parameters", None)
    if settings is None:
        settings = {"rope_theta": theirs.rope_theta, **(theirs.rope_scaling or {})}
    given = {name: value for name, value in settings.items() if value is not None}
    older_name = given.pop("type", "default")
    kind, base = given.pop("rope_type", older_name), float(given.pop("rope_theta", 10_000.0))
    try:
        scaling = _rotary_scaling(kind, given, theirs.max_position_embeddings)
    except KeyError as error:
        raise ValueError(f"rope settings of type {kind!r} must have {error}, got {dict(settings)}") from error
    if given:
        raise ValueError(f"rope settings of type {kind!r} must not have {sorted(given)}, got {dict(settings)}")
    return base, scaling


def _rotary_scaling(kind: str, given: dict[str, Any], n_context: int) -> RotaryScaling | None:
    """Return the scaling that ``transformers`` calls ``kind``; remove the settings that it uses from ``given``."""
    if kind == "default":
        return None
    if kind not in ("linear", "dynamic", "yarn", "llama3"):
        raise ValueError(f"rope_type must be default, linear, dynamic, yarn or llama3, got {kind!r}")
    factor = float(given.pop("factor"))
    if kind == "linear":
        return PositionInterpolation(factor)
    if kind == "dynamic":
        return DynamicNTK(factor, n_context)
    n_trained = int(given.pop("original_max_position_embeddings", n_context))
    if kind == "llama3":
        low, high = float(given.pop("low_freq_factor")), float(given.pop("high_freq_factor"))
        return Llama3(factor, n_trained, low_freq_factor=low, high_freq_factor=high)
    magnitude, mscale, mscale_all = (given.pop(name, None) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if magnitude is None and mscale and mscale_all:
        magnitude = yarn_attention_factor(factor, float(mscale)) / yarn_attention_factor(factor, float(mscale_all))
    return YaRN(
        factor,
        n_trained,
        beta_fast=float(given.pop("beta_fast", 32)),
        beta_slow=float(given.pop("beta_slow", 1)),
        attention_factor=None if magnitude is None else float(magnitude),
        truncate=given.pop("truncate", True),
    )


def _llama_tensors(config: GPTConfig, source: _TensorSource) -> dict[str, Tensor]:
    tensors = _embedding_and_head(config, source, embedding="model.embed_tokens.weight")
    tensors["norm.weight"] = source.take("model.norm.weight")
    for layer in range(config.n_layers):
        block = f"model.layers.{layer}"
        attention, feedforward = f"blocks.{layer}.attention", f"blocks.{layer}.feedforward"
        tensors[f"{attention}.norm.weight"] = source.take(f"{block}.input_layernorm.weight")
        tensors[f"{feedforward}.norm.weight"] = source.take(f"{block}.post_attention_layernorm.weight")
        for kind in ("weight", "bias") if config.attention_has_bias else ("weight",):
            for name in "qkvo":
                tensors[f"{attention}.sublayer.w_{name}.{kind}"] = source.take(f"{block}.self_attn.{name}_proj.{kind}")
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            tensors[f"{attention}.sublayer.process_qk.{name}.weight"] = source.take(f"{block}.self_attn.{name}.weight")
        for kind in ("weight", "bias") if config.bias else ("weight",):
            for name in ("gate", "up", "down"):
                tensors[f"{feedforward}.sublayer.w_{name}.{kind}"] = source.take(f"{block}.mlp.{name}_proj.{kind}")
    return tensors


# --- all architectures ----------------------------------------------------------------------------------------------


def _embedding_and_head(config: GPTConfig, source: _TensorSource, *, embedding: str) -> dict[str, Tensor]:
    """Return embedding and head; check that a tied head equals the embedding."""
    embedding_weight, head_weight = source.take(embedding), source.take("lm_head.weight")
    if not config.tied:
        return {"embedding.weight": embedding_weight, "head.weight": head_weight}
    if not torch.equal(embedding_weight, head_weight):
        raise ValueError(f"lm_head.weight must equal {embedding} where tie_word_embeddings is set, got another tensor")
    return {"embedding.weight": embedding_weight}


def _check_rotary_frequencies(config: GPTConfig, model: Any) -> None:
    """Compare with the model's own frequencies, because versions interpret the same settings differently."""
    if config.position != "rotary":
        return
    rotary, theirs = config.rotary(), model.model.rotary_emb
    found, expected = theirs.original_inv_freq.cpu(), rotary.frequencies(torch.arange(1))
    if found.dtype.itemsize < 4:  # half precision is too coarse for the comparison
        return
    magnitude = 1.0 if rotary.scaling is None else rotary.scaling.magnitude
    agree = found.shape == expected.shape and torch.allclose(found.to(expected), expected, rtol=1e-4, atol=0)
    if not (agree and math.isclose(theirs.attention_scaling, magnitude, rel_tol=1e-6)):
        raise ValueError(
            f"the model must rotate as its rope settings are read here, {rotary}, but its own frequencies or attention "
            "scaling differ; its version of transformers may read the settings in another way"
        )


_ARCHITECTURES = {
    "GPT2LMHeadModel": (_gpt2_config, _gpt2_tensors),
    "LlamaForCausalLM": (_llama_config, _llama_tensors),
    "Qwen3ForCausalLM": (_qwen3_config, _llama_tensors),
}
