"""Models of the ``transformers`` library, copied into a :class:`~lessons_lib.gpt.GPT` with equal logits.

What does not fit exactly, a setting that has no counterpart here or a tensor that nobody asked for, is refused: no
model is half loaded.
"""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lessons_lib.fused import fused_attention
from lessons_lib.gpt import GPT, FeedForwardKind, GPTConfig
from lessons_lib.positions import RotaryScaling
from lessons_lib.rope_scaling import DynamicNTK, Llama3, PositionInterpolation, YaRN, yarn_attention_factor


def gpt_from_huggingface(model: Any, *, implementation: Callable[..., Tensor] = fused_attention) -> GPT:
    """Copy a GPT-2, Llama or Qwen3 model of the ``transformers`` library; the logits are equal.

    ``gpt_from_huggingface("gpt2")`` downloads that checkpoint, through ``AutoModelForCausalLM.from_pretrained``. The
    copy has the type, device and training mode of the original. Dropout is a matter of training and is not copied:
    ``GPT(replace(copy.config, dropout=0.1))`` takes the copy's ``state_dict`` and has some.

    Args:
        model: a ``GPT2LMHeadModel``, ``LlamaForCausalLM`` or ``Qwen3ForCausalLM``, or the name or folder of a
            checkpoint of one.
        implementation: computes the attention, see :class:`~lessons_lib.multihead.MultiHeadAttention`.

    Raises:
        ImportError: if a name is given and ``transformers`` is not installed.
        ValueError: if the architecture is another one, has a setting that a GPT here has not, or its tensors are not
            exactly those that its config announces.
    """
    if isinstance(model, str | os.PathLike):
        model = _pretrained(model)
    architecture = type(model).__name__
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"model must be one of {', '.join(_ARCHITECTURES)} (transformers), got {architecture}")
    read_config, read_tensors = _ARCHITECTURES[architecture]
    config = read_config(model.config)
    _check_same_rotation(config, model)
    source = _TakenOnce(model.state_dict(), architecture)
    tensors = {name: tensor.clone() for name, tensor in read_tensors(config, source).items()}
    source.check_nothing_left()
    ours = GPT.from_tensors(config, tensors, origin=architecture, implementation=implementation)
    return ours.train(model.training)


# --- where the tensors come from ------------------------------------------------------------------------------------


def _pretrained(name: str | os.PathLike[str]) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(
            f"loading {str(name)!r} needs the transformers library: pip install 'transformers>=4.57'"
        ) from error
    return AutoModelForCausalLM.from_pretrained(name)


class _TakenOnce:
    """Tensors by name, each to be taken exactly once: none is forgotten, none serves twice."""

    def __init__(self, tensors: Mapping[str, Tensor], origin: str) -> None:
        self._left, self._origin = dict(tensors), origin

    def take(self, name: str) -> Tensor:
        if name not in self._left:
            raise ValueError(f"{self._origin} must hold {name!r}, which its config announces; left are {self._names()}")
        return self._left.pop(name)

    def check_nothing_left(self) -> None:
        if self._left:
            raise ValueError(
                f"{self._origin} must hold nothing beyond what its config announces, got {self._names()}; "
                "merge adapters into the weights first"
            )

    def _names(self) -> str:
        names = sorted(self._left)
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _require(theirs: Any, **supported: Any) -> None:
    """Refuse settings, where there are such, with values that would make it another model."""
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


def _gpt2_tensors(config: GPTConfig, source: _TakenOnce) -> dict[str, Tensor]:
    tensors = _ends(config, source, embedding="transformer.wte.weight")
    tensors["positions.weight"] = source.take("transformer.wpe.weight")
    for kind in ("weight", "bias"):
        tensors[f"norm.{kind}"] = source.take(f"transformer.ln_f.{kind}")
        for layer in range(config.n_layers):
            block, attend, feed = f"transformer.h.{layer}", f"blocks.{layer}.attention", f"blocks.{layer}.feedforward"
            # GPT-2's layers hold (in, out), and one of them queries, keys and values side by side.
            q, k, v = source.take(f"{block}.attn.c_attn.{kind}").t().chunk(3)
            tensors |= {
                f"{attend}.sublayer.w_q.{kind}": q,
                f"{attend}.sublayer.w_k.{kind}": k,
                f"{attend}.sublayer.w_v.{kind}": v,
                f"{attend}.sublayer.w_o.{kind}": source.take(f"{block}.attn.c_proj.{kind}").t(),
                f"{attend}.norm.{kind}": source.take(f"{block}.ln_1.{kind}"),
                f"{feed}.sublayer.w_up.{kind}": source.take(f"{block}.mlp.c_fc.{kind}").t(),
                f"{feed}.sublayer.w_down.{kind}": source.take(f"{block}.mlp.c_proj.{kind}").t(),
                f"{feed}.norm.{kind}": source.take(f"{block}.ln_2.{kind}"),
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
    """Base and scaling from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (4)."""
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
    """The scaling of transformers' name ``kind``; takes out of ``given`` what it uses."""
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


def _llama_tensors(config: GPTConfig, source: _TakenOnce) -> dict[str, Tensor]:
    tensors = _ends(config, source, embedding="model.embed_tokens.weight")
    tensors["norm.weight"] = source.take("model.norm.weight")
    for layer in range(config.n_layers):
        block, attend, feed = f"model.layers.{layer}", f"blocks.{layer}.attention", f"blocks.{layer}.feedforward"
        tensors[f"{attend}.norm.weight"] = source.take(f"{block}.input_layernorm.weight")
        tensors[f"{feed}.norm.weight"] = source.take(f"{block}.post_attention_layernorm.weight")
        for kind in ("weight", "bias") if config.attention_has_bias else ("weight",):
            for name in "qkvo":
                tensors[f"{attend}.sublayer.w_{name}.{kind}"] = source.take(f"{block}.self_attn.{name}_proj.{kind}")
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            tensors[f"{attend}.sublayer.prepare.{name}.weight"] = source.take(f"{block}.self_attn.{name}.weight")
        for kind in ("weight", "bias") if config.bias else ("weight",):
            for name in ("gate", "up", "down"):
                tensors[f"{feed}.sublayer.w_{name}.{kind}"] = source.take(f"{block}.mlp.{name}_proj.{kind}")
    return tensors


# --- common to all --------------------------------------------------------------------------------------------------


def _ends(config: GPTConfig, source: _TakenOnce, *, embedding: str) -> dict[str, Tensor]:
    """Embedding and head; a tied head has to be the embedding indeed."""
    first, last = source.take(embedding), source.take("lm_head.weight")
    if not config.tied:
        return {"embedding.weight": first, "head.weight": last}
    if not torch.equal(first, last):
        raise ValueError(f"lm_head.weight must equal {embedding} where tie_word_embeddings is set, got another tensor")
    return {"embedding.weight": first}


def _check_same_rotation(config: GPTConfig, model: Any) -> None:
    """Compare with the frequencies that the model itself uses: versions read the same settings in different ways."""
    if config.position != "rotary":
        return
    rotary, theirs = config.rotary(), model.model.rotary_emb
    found, wanted = theirs.original_inv_freq.cpu(), rotary.frequencies(torch.arange(1))
    if found.dtype.itemsize < 4:  # rounded together with the weights: too coarse to compare
        return
    magnitude = 1.0 if rotary.scaling is None else rotary.scaling.magnitude
    agree = found.shape == wanted.shape and torch.allclose(found.to(wanted), wanted, rtol=1e-4, atol=0)
    if not (agree and math.isclose(theirs.attention_scaling, magnitude, rel_tol=1e-6)):
        raise ValueError(f"rope settings must mean what they mean here, {rotary}, but the model turns differently")


_ARCHITECTURES = {
    "GPT2LMHeadModel": (_gpt2_config, _gpt2_tensors),
    "LlamaForCausalLM": (_llama_config, _llama_tensors),
    "Qwen3ForCausalLM": (_qwen3_config, _llama_tensors),
}
