"""Load pretrained language models into a :class:`~lessons_lib.transformer.gpt.GPT` with equal logits.

They come from a model of the ``transformers`` library, or from a checkpoint folder without that library. A setting
without counterpart here, or a missing or unexpected tensor, raises an error: no model is partly loaded. Each family has
one function that reads its settings and one table of its tensor names.

========  ==============================================================================================================
family    settings of :class:`~lessons_lib.transformer.configuration.GPTConfig` that its members have in common
========  ==============================================================================================================
GPT-2     the default ones
GPT-NeoX  ``position="rotary"``, ``d_rotary``, ``parallel=True``; Pythia is a GPT-NeoX
Llama     ``norm="rms"``, ``position="rotary"``, ``feedforward="swiglu"``, ``bias=False``; SmolLM is a Llama
Mistral   Llama's, ``window`` in some
Mixtral   Mistral's, ``n_experts``, ``experts_per_token``
Gemma 2   Llama's, ``feedforward="geglu_tanh"``, ``norm_order="sandwich"``, ``window=(…, None)``, ``softcap``,
          ``logit_softcap``, ``scale_embedding=True``, ``scale`` in some
OLMo 2    Llama's, ``norm_order="output"``, ``qk_norm="across_heads"``
Qwen2     Llama's, ``attention_bias="qkv"``, ``window`` in some
Qwen3     Llama's, ``qk_norm=True``, ``window`` in some
========  ==============================================================================================================
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from einops import rearrange
from torch import Tensor, nn

from lessons_lib.attention.positions import RotaryScaling
from lessons_lib.attention.rope_scaling import DynamicNTK, Llama3, PositionInterpolation, YaRN, yarn_attention_factor
from lessons_lib.foundations.validation import promote_half
from lessons_lib.transformer.checkpoints import tensor_loaders
from lessons_lib.transformer.configuration import FeedForwardKind, GPTConfig
from lessons_lib.transformer.gpt import GPT


def gpt_from_huggingface(
    model: str | os.PathLike[str] | nn.Module, *, implementation: Callable[..., Tensor] | None = None
) -> GPT:
    """Copy a pretrained language model into a GPT with equal logits.

    ::

        model = gpt_from_huggingface("SmolLM2-135M")  # a folder with config.json and *.safetensors
        text = generate(model, tokens, 20)

    A folder is read without the ``transformers`` library. Any other name, such as ``"gpt2"``, is downloaded through
    ``AutoModelForCausalLM.from_pretrained``. The copy has the dtypes of the original (Gemma's norms are in float32, in
    which they are computed); of a model it also has the device
    and the training mode. Dropout and a router's noise only matter in training and are not copied; to add dropout, load
    the copy's ``state_dict`` into ``GPT(replace(copy.config, dropout=0.1))``.

    Args:
        model: a model of one of the families above, of the ``transformers`` library, or the folder or name of a
            checkpoint of one.
        implementation: the attention function, see :class:`~lessons_lib.transformer.gpt.GPT`.

    Raises:
        ImportError: if ``model`` is a name and ``transformers`` is not installed.
        ValueError: if the model has another architecture or a setting that :class:`GPT` does not support, its tensors
            are not exactly those that its config requires, or a file of the folder is incomplete.
    """
    if isinstance(model, str | os.PathLike) and not _is_folder(Path(model)):
        model = _pretrained(model)
    if isinstance(model, str | os.PathLike):
        architecture, given, loaders = _read_folder(Path(model))
    else:
        architecture, given = type(model).__name__, vars(model.config)
        loaders = {name: partial(_identity, tensor) for name, tensor in model.state_dict().items()}
    if architecture not in _FAMILIES:
        raise ValueError(f"model must be one of {', '.join(_FAMILIES)} (transformers), got {architecture}")
    family = _FAMILIES[architecture]
    config = family.read_config(_Settings(given, family.defaults))
    if isinstance(model, nn.Module):
        _check_rotary_frequencies(config, model)
    tensors = _read_tensors(config, family, _TensorSource(loaders, architecture, family.names))
    ours = GPT.from_tensors(config, tensors, origin=architecture, implementation=implementation)
    return ours.train(isinstance(model, nn.Module) and model.training)


# --- reading settings and tensors -----------------------------------------------------------------------------------


class _Settings:
    """The settings of a config by name, with the values that ``transformers`` has for those that are left out."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._all = {**defaults, **given}

    def __getattr__(self, name: str) -> Any:
        if name not in self._all:
            raise ValueError(f"the config must give {name!r}, got only {', '.join(sorted(self._all))}")
        return self._all[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._all.get(name, default)

    def require(self, **supported: Any) -> None:
        """Raise an error if a setting is given and has another value than the supported one."""
        for name, value in supported.items():
            found = self._all.get(name, value)
            if found != value:
                raise ValueError(f"only models with {name}={value!r} are supported, got {found!r}")


class _From(NamedTuple):
    """Where a tensor comes from: the name in the checkpoint, and how ours is made of that tensor."""

    name: str
    change: Callable[[Tensor, GPTConfig, tuple[int, ...]], Tensor]  # the numbers are those of layer and expert
    suffix: bool = True  # whether ".weight" or ".bias" follows the name


# From our module names to those of the checkpoint; {} are the numbers of layers and experts. Of a list of names, the
# first that occurs is used: versions of transformers differ.
_Names: TypeAlias = dict[str, str | _From | list[str | _From]]


class _Family(NamedTuple):
    read_config: Callable[[_Settings], GPTConfig]
    names: _Names
    defaults: dict[str, Any]  # of the settings that a config.json may leave out


class _TensorSource:
    """Tensors by name; it remembers which of them were used."""

    def __init__(self, loaders: Mapping[str, Callable[[], Tensor]], origin: str, names: _Names) -> None:
        # Earlier versions of transformers stored causal masks and rotary frequencies among the weights.
        buffer = re.compile(r"\.(attn|attention)\.(bias|masked_bias)$|rotary_emb\.inv_freq$")
        self._loaders = {name: load for name, load in loaders.items() if not buffer.search(name)}
        # A file that was saved without its head names the tensors from inside the decoder: "wte.weight".
        decoder = f"{names['embedding']}".partition(".")[0] + "."
        if not any(name.startswith(decoder) for name in self._loaders):
            self._loaders = {decoder + name: load for name, load in self._loaders.items()}
        self._used: set[str] = set()
        self._origin = origin

    def __contains__(self, name: str) -> bool:
        return name in self._loaders

    def get(self, name: str) -> Tensor:
        if name not in self._loaders:
            raise ValueError(
                f"{self._origin} must hold {name!r}, which its config requires; the remaining tensors are "
                f"{self._unused()}"
            )
        self._used.add(name)
        return self._loaders[name]()

    def check_all_used(self) -> None:
        if self._loaders.keys() - self._used:
            raise ValueError(
                f"{self._origin} must hold nothing beyond what its config requires, got {self._unused()}; "
                "merge adapters into the weights first"
            )

    def _unused(self) -> str:
        names = sorted(self._loaders.keys() - self._used)
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _read_tensors(config: GPTConfig, family: _Family, source: _TensorSource) -> dict[str, Tensor]:
    """Return copies of all tensors that the config requires, by our names."""
    with torch.device("meta"):
        required = [name for name in GPT(config).state_dict() if not (config.tied and name == "head.weight")]
    tensors = {name: _read_tensor(name, config, family.names, source) for name in required}
    if config.tied:
        _check_tied_head(family.names, source)
    source.check_all_used()
    return tensors


def _read_tensor(name: str, config: GPTConfig, names: _Names, source: _TensorSource) -> Tensor:
    module, _, kind = name.rpartition(".")
    numbers = tuple(int(part) for part in module.split(".") if part.isdigit())
    candidates = names[re.sub(r"\.\d+(?=\.)", ".{}", module)]
    found = []
    for candidate in candidates if isinstance(candidates, list) else [candidates]:
        origin = candidate if isinstance(candidate, _From) else _From(candidate, _unchanged)
        found.append((origin.name.format(*numbers) + (f".{kind}" if origin.suffix else ""), origin.change))
    theirs, change = next((each for each in found if each[0] in source), found[0])
    return change(source.get(theirs), config, numbers).clone(memory_format=torch.contiguous_format)


def _check_tied_head(names: _Names, source: _TensorSource) -> None:
    """Check that a tied head, which a file may leave out, equals the embedding."""
    heads = names["head"] if isinstance(names["head"], list) else [names["head"]]
    for head in (f"{head}.weight" for head in heads):
        if head in source and not torch.equal(source.get(head), source.get(f"{names['embedding']}.weight")):
            raise ValueError(
                f"{head} must equal {names['embedding']}.weight where tie_word_embeddings is set, got another tensor"
            )


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _unchanged(tensor: Tensor, config: GPTConfig, numbers: tuple[int, ...]) -> Tensor:
    return tensor


# --- checkpoints ----------------------------------------------------------------------------------------------------


def _pretrained(name: str | os.PathLike[str]) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(
            f"loading {str(name)!r} needs the transformers library: pip install 'transformers>=4.57'; "
            "a folder with config.json and *.safetensors needs none"
        ) from error
    return AutoModelForCausalLM.from_pretrained(name)


def _is_folder(path: Path) -> bool:
    """Return whether the path is a folder that :func:`_read_folder` reads; ``transformers`` reads other formats."""
    return (path / "config.json").is_file() and any(path.glob("model*.safetensors"))


def _read_folder(folder: Path) -> tuple[str, dict[str, Any], dict[str, Callable[[], Tensor]]]:
    """Return architecture, settings and tensors of a checkpoint; each tensor is read when its function is called."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architectures = settings.get("architectures") or ["a folder without architectures"]
    if settings.get("quantization_config") is not None:
        raise ValueError(f"only models with quantization_config=None are supported, got {folder}")
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if not (folder / files[0]).is_file() and index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    loaders: dict[str, Callable[[], Tensor]] = {}
    for name in files:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} must hold {name}, which its index lists")
        loaders |= tensor_loaders(folder / name)
    return architectures[0], settings, loaders


# --- GPT-2 ----------------------------------------------------------------------------------------------------------


def _gpt2_config(theirs: _Settings) -> GPTConfig:
    theirs.require(
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False,
        add_cross_attention=False,
        is_causal=True,
    )
    return GPTConfig(
        theirs.vocab_size,
        theirs.n_positions,
        theirs.n_embd,
        theirs.n_layer,
        theirs.n_head,
        d_ff=theirs.n_inner,
        feedforward=_activation("activation_function", theirs),
        norm_eps=theirs.layer_norm_epsilon,
        tied=theirs.tie_word_embeddings,
    )


def _activation(name: str, theirs: _Settings) -> FeedForwardKind:
    """Return the kind of a feed-forward layer from the setting that names its activation."""
    activations: dict[str, FeedForwardKind] = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
    }
    given = getattr(theirs, name)
    if given not in activations:
        raise ValueError(f"{name} must be one of {', '.join(activations)}, got {given!r}")
    return activations[given]


def _transposed(tensor: Tensor, config: GPTConfig, numbers: tuple[int, ...]) -> Tensor:
    """Turn a matrix over (in, out) into one over (out, in)."""
    return tensor.t()


def _third(part: int) -> Callable[[Tensor, GPTConfig, tuple[int, ...]], Tensor]:
    """Take the projection of queries, keys or values from the one matrix, over (in, out), that holds all three."""
    return lambda tensor, config, numbers: tensor.t().chunk(3)[part]


_GPT2: _Names = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks.{}.attention.norm": "transformer.h.{}.ln_1",
    "blocks.{}.attention.sublayer.w_q": _From("transformer.h.{}.attn.c_attn", _third(0)),
    "blocks.{}.attention.sublayer.w_k": _From("transformer.h.{}.attn.c_attn", _third(1)),
    "blocks.{}.attention.sublayer.w_v": _From("transformer.h.{}.attn.c_attn", _third(2)),
    "blocks.{}.attention.sublayer.w_o": _From("transformer.h.{}.attn.c_proj", _transposed),
    "blocks.{}.feedforward.norm": "transformer.h.{}.ln_2",
    "blocks.{}.feedforward.sublayer.w_up": _From("transformer.h.{}.mlp.c_fc", _transposed),
    "blocks.{}.feedforward.sublayer.w_down": _From("transformer.h.{}.mlp.c_proj", _transposed),
    "norm": "transformer.ln_f",
    "head": "lm_head",
}

# --- Llama and the families that differ from it by a few settings ---------------------------------------------------


def _llama_config(theirs: _Settings) -> GPTConfig:
    theirs.require(layer_types=None, sliding_window=None, rope_interleaved=False)
    return _gated_config(theirs, bias=theirs.mlp_bias)


def _mistral_config(theirs: _Settings) -> GPTConfig:
    return _gated_config(theirs, window=theirs.sliding_window)


def _mixtral_config(theirs: _Settings) -> GPTConfig:
    n_experts, per_token = theirs.num_local_experts, theirs.num_experts_per_tok
    if per_token < 2:
        raise ValueError(f"num_experts_per_tok must be at least 2: a single expert learns no weight, got {per_token}")
    return _gated_config(theirs, window=theirs.sliding_window, n_experts=n_experts, experts_per_token=per_token)


def _olmo2_config(theirs: _Settings) -> GPTConfig:
    theirs.require(layer_types=None, sliding_window=None)
    return _gated_config(theirs, norm_order="output", qk_norm="across_heads")


def _gemma2_config(theirs: _Settings) -> GPTConfig:
    theirs.require(hidden_activation="gelu_pytorch_tanh")
    if theirs.get("use_bidirectional_attention"):
        theirs.require(use_bidirectional_attention=None)
    alternating = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(theirs.num_hidden_layers)]
    scalar = theirs.query_pre_attn_scalar
    return _gated_config(
        theirs,
        feedforward="geglu_tanh",
        norm_order="sandwich",
        window=_windows(theirs, alternating),
        scale=None if scalar == theirs.head_dim else scalar**-0.5,
        softcap=theirs.attn_logit_softcapping,
        scale_embedding=True,
        logit_softcap=theirs.final_logit_softcapping,
    )


def _qwen2_config(theirs: _Settings) -> GPTConfig:
    return _gated_config(theirs, attention_bias="qkv", window=_qwen_windows(theirs))


def _qwen3_config(theirs: _Settings) -> GPTConfig:
    return _gated_config(theirs, qk_norm=True, window=_qwen_windows(theirs))


def _qwen_windows(theirs: _Settings) -> int | tuple[int | None, ...] | None:
    """Return the windows; without ``layer_types``, the layers from ``max_window_layers`` on have one if it is used."""
    first = (
        theirs.max_window_layers if theirs.use_sliding_window and theirs.sliding_window else theirs.num_hidden_layers
    )
    kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(theirs.num_hidden_layers)]
    return _windows(theirs, kinds)


def _windows(theirs: _Settings, default: list[str]) -> int | tuple[int | None, ...] | None:
    """Return the window of the layers that ``layer_types`` names: one number, or the shortest tuple that repeats."""
    kinds, n = theirs.get("layer_types") or default, theirs.num_hidden_layers
    if len(kinds) != n or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types must be {n} of full_attention and sliding_attention, got {kinds}")
    if "sliding_attention" in kinds and theirs.sliding_window is None:
        raise ValueError(f"sliding_window must be a number for layer_types={kinds}, got None")
    windows = tuple(theirs.sliding_window if kind == "sliding_attention" else None for kind in kinds)
    period = next(p for p in range(1, n + 1) if all(windows[layer] == windows[layer % p] for layer in range(n)))
    return windows[0] if period == 1 else windows[:period]


def _gated_config(theirs: _Settings, **others: Any) -> GPTConfig:
    """Return the config of a model whose settings have Llama's names, with the ``others`` that its family adds."""
    if "feedforward" not in others:
        theirs.require(hidden_act="silu")
    theirs.require(is_causal=True, attention_chunk_size=None, partial_rotary_factor=1.0)
    base, scaling = _rotation(_rope_settings(theirs), theirs.max_position_embeddings)
    settings: dict[str, Any] = {
        "n_kv_heads": theirs.num_key_value_heads,
        "d_head": theirs.head_dim,
        "d_ff": theirs.intermediate_size,
        "feedforward": "swiglu",
        "norm": "rms",
        "norm_eps": theirs.rms_norm_eps,
        "position": "rotary",
        "rope_base": base,
        "rope_scaling": scaling,
        "bias": False,
        "attention_bias": theirs.attention_bias,
        "tied": theirs.tie_word_embeddings,
    }
    return GPTConfig(
        theirs.vocab_size,
        theirs.max_position_embeddings,
        theirs.hidden_size,
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        **settings | others,
    )


def _rope_settings(theirs: _Settings) -> dict[str, Any]:
    """Return ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling`` (4) in that form."""
    settings = theirs.get("rope_parameters")
    return {"rope_theta": theirs.rope_theta, **(theirs.rope_scaling or {})} if settings is None else settings


def _rotation(settings: dict[str, Any], n_context: int) -> tuple[float, RotaryScaling | None]:
    """Return base and scaling of the rotary embedding."""
    given = {name: value for name, value in settings.items() if value is not None}
    older_name = given.pop("type", "default")
    kind, base = given.pop("rope_type", older_name), float(given.pop("rope_theta", 10_000.0))
    try:
        scaling = _rotary_scaling(kind, given, n_context)
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


_LLAMA: _Names = {
    "embedding": "model.embed_tokens",
    "blocks.{}.attention.norm": "model.layers.{}.input_layernorm",
    "blocks.{}.attention.sublayer.w_q": "model.layers.{}.self_attn.q_proj",
    "blocks.{}.attention.sublayer.w_k": "model.layers.{}.self_attn.k_proj",
    "blocks.{}.attention.sublayer.w_v": "model.layers.{}.self_attn.v_proj",
    "blocks.{}.attention.sublayer.w_o": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.feedforward.norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.feedforward.sublayer.w_gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.feedforward.sublayer.w_up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.feedforward.sublayer.w_down": "model.layers.{}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}


def _of_experts(part: int | None) -> Callable[[Tensor, GPTConfig, tuple[int, ...]], Tensor]:
    """Take the matrix of one expert from that of all; ``part`` 0 is its gate and 1 the way up, which are stacked."""

    def take(tensor: Tensor, config: GPTConfig, numbers: tuple[int, ...]) -> Tensor:
        own = tensor[numbers[1]]
        return own if part is None else own.chunk(2)[part]

    return take


_QWEN3: _Names = _LLAMA | {
    "blocks.{}.attention.sublayer.process_qk.q_norm": "model.layers.{}.self_attn.q_norm",
    "blocks.{}.attention.sublayer.process_qk.k_norm": "model.layers.{}.self_attn.k_norm",
}
_OLMO2: _Names = _QWEN3 | {
    "blocks.{}.attention.norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.feedforward.norm": "model.layers.{}.post_feedforward_layernorm",
}


def _one_more(tensor: Tensor, config: GPTConfig, numbers: tuple[int, ...]) -> Tensor:
    """Return the gains of a norm that stores what they have beyond 1; in at least float32, as Gemma computes them."""
    return 1 + promote_half(tensor)


_GEMMA2: _Names = _LLAMA | {
    "blocks.{}.attention.norm": _From("model.layers.{}.input_layernorm", _one_more),
    "blocks.{}.attention.output_norm": _From("model.layers.{}.post_attention_layernorm", _one_more),
    "blocks.{}.feedforward.norm": _From("model.layers.{}.pre_feedforward_layernorm", _one_more),
    "blocks.{}.feedforward.output_norm": _From("model.layers.{}.post_feedforward_layernorm", _one_more),
    "norm": _From("model.norm", _one_more),
}

# Files hold each expert by itself; models of transformers 5 hold all experts of a layer in one tensor.
_EXPERT, _EXPERTS = "model.layers.{}.block_sparse_moe.experts.{}", "model.layers.{}.mlp.experts"
_MIXTRAL: _Names = _LLAMA | {
    "blocks.{}.feedforward.sublayer.w_router": ["model.layers.{}.block_sparse_moe.gate", "model.layers.{}.mlp.gate"],
    "blocks.{}.feedforward.sublayer.experts.{}.w_gate": [
        f"{_EXPERT}.w1",
        _From(f"{_EXPERTS}.gate_up_proj", _of_experts(0), suffix=False),
    ],
    "blocks.{}.feedforward.sublayer.experts.{}.w_up": [
        f"{_EXPERT}.w3",
        _From(f"{_EXPERTS}.gate_up_proj", _of_experts(1), suffix=False),
    ],
    "blocks.{}.feedforward.sublayer.experts.{}.w_down": [
        f"{_EXPERT}.w2",
        _From(f"{_EXPERTS}.down_proj", _of_experts(None), suffix=False),
    ],
}

# --- GPT-NeoX -------------------------------------------------------------------------------------------------------


def _neox_config(theirs: _Settings) -> GPTConfig:
    theirs.require(is_causal=True)
    rope = theirs.get("rope_parameters")
    if rope is None:
        rope = {"rope_theta": theirs.rotary_emb_base, **(theirs.get("rope_scaling") or {})}
    fraction = rope.get("partial_rotary_factor", theirs.rotary_pct)
    base, scaling = _rotation(
        {name: value for name, value in rope.items() if name != "partial_rotary_factor"}, theirs.max_position_embeddings
    )
    return GPTConfig(
        theirs.vocab_size,
        theirs.max_position_embeddings,
        theirs.hidden_size,
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
        d_ff=theirs.intermediate_size,
        feedforward=_activation("hidden_act", theirs),
        norm_eps=theirs.layer_norm_eps,
        parallel=theirs.use_parallel_residual,
        position="rotary",
        rope_base=base,
        rope_scaling=scaling,
        d_rotary=None if fraction == 1 else int(fraction * (theirs.hidden_size // theirs.num_attention_heads)),
        attention_bias=theirs.attention_bias,
        tied=theirs.tie_word_embeddings,
    )


def _part_of_each_head(part: int) -> Callable[[Tensor, GPTConfig, tuple[int, ...]], Tensor]:
    """Take queries, keys or values from the one matrix in which each head has its rows of all three."""
    return lambda tensor, config, numbers: rearrange(
        tensor, "(h part d) ... -> part (h d) ...", h=config.n_heads, part=3
    )[part]


_NEOX: _Names = {
    "embedding": "gpt_neox.embed_in",
    "blocks.{}.attention.norm": "gpt_neox.layers.{}.input_layernorm",
    "blocks.{}.attention.sublayer.w_q": _From("gpt_neox.layers.{}.attention.query_key_value", _part_of_each_head(0)),
    "blocks.{}.attention.sublayer.w_k": _From("gpt_neox.layers.{}.attention.query_key_value", _part_of_each_head(1)),
    "blocks.{}.attention.sublayer.w_v": _From("gpt_neox.layers.{}.attention.query_key_value", _part_of_each_head(2)),
    "blocks.{}.attention.sublayer.w_o": "gpt_neox.layers.{}.attention.dense",
    "blocks.{}.feedforward.norm": "gpt_neox.layers.{}.post_attention_layernorm",
    "blocks.{}.feedforward.sublayer.w_up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
    "blocks.{}.feedforward.sublayer.w_down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
    "norm": "gpt_neox.final_layer_norm",
    "head": ["lm_head", "embed_out"],  # the second is the name in files
}

# --- all families ---------------------------------------------------------------------------------------------------


def _check_rotary_frequencies(config: GPTConfig, model: Any) -> None:
    """Compare with the model's own frequencies, because versions interpret the same settings differently."""
    if config.position != "rotary":
        return
    rotary, theirs = config.rotary(), model.base_model.rotary_emb
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


_GPT2_DEFAULTS = {
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
_NEOX_DEFAULTS = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10_000.0,
    "use_parallel_residual": True,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
_LLAMA_DEFAULTS = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
_QWEN_DEFAULTS = _LLAMA_DEFAULTS | {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_MIXTRAL_DEFAULTS = _LLAMA_DEFAULTS | {"sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2}
_MIXTRAL_DEFAULTS |= {"rms_norm_eps": 1e-5, "rope_theta": 1e6}
_GEMMA2_DEFAULTS = _LLAMA_DEFAULTS | {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
_FAMILIES = {
    "GPT2LMHeadModel": _Family(_gpt2_config, _GPT2, _GPT2_DEFAULTS),
    "GPTNeoXForCausalLM": _Family(_neox_config, _NEOX, _NEOX_DEFAULTS),
    "Gemma2ForCausalLM": _Family(_gemma2_config, _GEMMA2, _GEMMA2_DEFAULTS),
    "LlamaForCausalLM": _Family(_llama_config, _LLAMA, _LLAMA_DEFAULTS),
    "MistralForCausalLM": _Family(_mistral_config, _LLAMA, _LLAMA_DEFAULTS | {"sliding_window": 4096}),
    "MixtralForCausalLM": _Family(_mixtral_config, _MIXTRAL, _MIXTRAL_DEFAULTS),
    "Olmo2ForCausalLM": _Family(_olmo2_config, _OLMO2, _LLAMA_DEFAULTS | {"rms_norm_eps": 1e-5}),
    "Qwen2ForCausalLM": _Family(_qwen2_config, _LLAMA, _QWEN_DEFAULTS),
    "Qwen3ForCausalLM": _Family(_qwen3_config, _QWEN3, _QWEN_DEFAULTS | {"head_dim": 128}),
}
