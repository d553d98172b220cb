"""A decoder-only language model: GPT-2 or Llama, by configuration.

:class:`GPTConfig` says what the model is, :class:`GPT` is it. Weights are exchanged with files (``save``, ``load``) and
with Hugging Face models (``from_huggingface``); what does not fit exactly is refused, never half loaded.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

import torch
from jaxtyping import Bool, Float, Int, Num
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lessons_lib import masks
from lessons_lib.attention import attention
from lessons_lib.blocks import PreNorm, TransformerBlock
from lessons_lib.feedforward import FeedForward, SwiGLU, gelu, gelu_tanh, relu, swiglu_width
from lessons_lib.multihead import KVCache, MultiHeadAttention
from lessons_lib.norms import LayerNorm, RMSNorm
from lessons_lib.positions import (
    ROPE_BASE,
    AlibiBias,
    LearnedPositions,
    RotaryEmbedding,
    RotaryScaling,
    sinusoidal,
)
from lessons_lib.rope_scaling import (
    DynamicNTK,
    Llama3,
    NTKAware,
    PositionInterpolation,
    YaRN,
    yarn_attention_factor,
)
from lessons_lib.shapes import broadcasts_to, check_size

FeedForwardKind = Literal["gelu", "gelu_tanh", "relu", "swiglu", "none"]
NormKind = Literal["layer", "rms"]
PositionKind = Literal["learned", "sinusoidal", "rotary", "alibi", "none"]

# --- what a model is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPTConfig:
    """Everything that decides which function of its weights a :class:`GPT` is.

    Args:
        vocab_size: number of tokens.
        n_context: length of the sequences it is trained on. A hard limit with learned positions, which end there.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        n_heads: number of query heads.
        n_kv_heads: number of key/value heads, as many as ``n_heads`` if omitted.
        d_head: width of a head, ``d_model / n_heads`` if omitted.
        d_ff: width inside a feed-forward; ``4 * d_model`` if omitted, and for SwiGLU what costs as much.
        feedforward: its activation, or ``"none"`` for blocks of attention alone.
        norm: layer norm or RMS norm, before each sublayer and at the end.
        norm_eps: the constant inside its root.
        position: how places are told: vectors added to the embedding (``"learned"``, ``"sinusoidal"``), queries and
            keys turned (``"rotary"``), scores lowered with distance (``"alibi"``), or not at all: the causal mask alone
            then tells places apart.
        rope_base, rope_scaling: of the rotary embedding, and for it only.
        bias: whether projections, feed-forwards and layer norms have biases; an RMS norm never has, nor has the head.
        attention_bias: whether the attention's projections have them, if that differs.
        tied: whether the head is the embedding.
        dropout: probability in training: of the embedded tokens, the attention's weights, and what each sublayer adds.

    Raises:
        ValueError: if a size is not a positive integer, a name is unknown, or settings contradict one another.
    """

    vocab_size: int
    n_context: int
    d_model: int
    n_layers: int
    n_heads: int
    _: KW_ONLY
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_ff: int | None = None
    feedforward: FeedForwardKind = "gelu_tanh"
    norm: NormKind = "layer"
    norm_eps: float = 1e-5
    position: PositionKind = "learned"
    rope_base: float = ROPE_BASE
    rope_scaling: RotaryScaling | None = None
    bias: bool = True
    attention_bias: bool | None = None
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_context", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name), at_least=1)
        for name, kind in {"feedforward": FeedForwardKind, "norm": NormKind, "position": PositionKind}.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}, got {getattr(self, name)!r}")
        if self.n_heads % self.key_value_heads:
            raise ValueError(f"n_kv_heads must divide n_heads, got {self.n_kv_heads} and n_heads={self.n_heads}")
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads must divide d_model, got n_heads={self.n_heads}, d_model={self.d_model}; or give d_head"
            )
        if self.feedforward == "none" and self.d_ff is not None:
            raise ValueError(f"d_ff must be omitted where there is no feed-forward, got {self.d_ff}")
        if not (math.isfinite(self.norm_eps) and self.norm_eps >= 0):
            raise ValueError(f"norm_eps must be finite and not negative, got {self.norm_eps}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.position == "rotary":
            self.rotary()
        elif self.rope_scaling is not None or self.rope_base != ROPE_BASE:
            raise ValueError(
                "rope_base and rope_scaling belong to rotary positions, "
                f"got {self.rope_base} and {self.rope_scaling} with position={self.position!r}"
            )
        if self.position == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model must be even for sinusoidal positions, got {self.d_model}")

    @property
    def key_value_heads(self) -> int:
        """``n_kv_heads`` or its default."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        """``d_head`` or its default."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def hidden_width(self) -> int:
        """``d_ff`` or its default; 0 where there is no feed-forward."""
        default = {"none": 0, "swiglu": swiglu_width(self.d_model)}.get(self.feedforward, 4 * self.d_model)
        return default if self.d_ff is None else self.d_ff

    @property
    def attention_has_bias(self) -> bool:
        """``attention_bias`` or its default."""
        return self.bias if self.attention_bias is None else self.attention_bias

    def rotary(self) -> RotaryEmbedding:
        """Return the rotary embedding that the settings describe."""
        return RotaryEmbedding(self.head_width, base=self.rope_base, scaling=self.rope_scaling)

    def n_parameters(self) -> int:
        r"""Return the number of weights, by formula.

        .. math::
            \underbrace{V d}_{\text{embedding}} + \underbrace{n_{\text{context}}\, d}_{\text{if learned}}
            + L \big(\underbrace{2 (h + g)\, d_{\text{head}}\, d}_{\text{attention}}
            + \underbrace{2\, d\, d_{\text{ff}}}_{\text{3 for SwiGLU}} + \underbrace{2 d}_{\text{norms}} \big)
            + d + \underbrace{V d}_{\text{head, unless tied}}

        and the biases: :math:`(h + 2g)\, d_{\text{head}} + d` for an attention, :math:`d_{\text{ff}} + d` for a
        feed-forward (:math:`2 d_{\text{ff}} + d` for SwiGLU), :math:`d` for a layer norm.
        """
        d, ff, h, g = self.d_model, self.hidden_width, self.n_heads, self.key_value_heads
        ups = 2 if self.feedforward == "swiglu" else 1
        attention = 2 * (h + g) * self.head_width * d + self.attention_has_bias * ((h + 2 * g) * self.head_width + d)
        feedforward = 0 if self.feedforward == "none" else (ups + 1) * d * ff + self.bias * (ups * ff + d)
        norm = 2 * d if self.norm == "layer" and self.bias else d
        norms_in_block = 1 if self.feedforward == "none" else 2
        positions = self.n_context * d if self.position == "learned" else 0
        ends = self.vocab_size * d * (1 if self.tied else 2)
        return ends + positions + self.n_layers * (attention + feedforward + norms_in_block * norm) + norm

    def to_json(self) -> str:
        """Write the settings down; :meth:`from_json` reads them."""
        scaling = self.rope_scaling
        named = None if scaling is None else {"type": type(scaling).__name__, **_settings(scaling)}
        return json.dumps(_settings(self) | {"rope_scaling": named})

    @classmethod
    def from_json(cls, text: str) -> "GPTConfig":
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if it is not JSON, lacks a setting without default, has an unknown one, or one that makes no
                sense.
        """
        try:
            settings = json.loads(text)
            named = settings.get("rope_scaling")
            if named is not None:
                settings["rope_scaling"] = _SCALINGS[named.pop("type")](**named)
            return cls(**settings)
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"text must be what GPTConfig.to_json wrote; {type(error).__name__}: {error}") from error


def gpt2_small() -> GPTConfig:
    """GPT-2 with 12 layers: 124,439,808 weights, or 163,037,184 with a head of its own.

    Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019, where it was given as 117 million. A
    preset is changed with ``dataclasses.replace(gpt2_small(), tied=False)``.
    """
    return GPTConfig(vocab_size=50_257, n_context=1024, d_model=768, n_layers=12, n_heads=12)


def gpt2_medium() -> GPTConfig:
    """GPT-2 with 24 layers: 354,823,168 weights."""
    return replace(gpt2_small(), d_model=1024, n_layers=24, n_heads=16)


def llama_tiny() -> GPTConfig:
    """Llama's parts at a size for a laptop's CPU: grouped heads, rotary positions, SwiGLU, RMS norm, no biases.

    Touvron et al., *LLaMA*, 2023. arXiv:2302.13971; grouped heads came with Llama 2. arXiv:2307.09288.
    """
    return GPTConfig(
        vocab_size=256,
        n_context=128,
        d_model=64,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        feedforward="swiglu",
        norm="rms",
        position="rotary",
        bias=False,
        tied=False,
    )


def llama3_8b() -> GPTConfig:
    """Llama 3 with 32 layers: 8,030,261,248 weights, to be counted rather than built. arXiv:2407.21783."""
    return replace(
        llama_tiny(),
        vocab_size=128_256,
        n_context=8192,
        d_model=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=8,
        d_ff=14_336,
        rope_base=500_000.0,
    )


# --- the model ------------------------------------------------------------------------------------------------------


class GPT(nn.Module):
    r"""Predict each next token from the tokens before it.

    .. math::
        x_0 = E_{t} + P, \qquad x_{l+1} = \operatorname{block}_l(x_l), \qquad
        \text{logits} = W_{\text{head}} \operatorname{norm}(x_L)

    Causal by construction: no argument can let a position see a later one. Weights start as GPT-2's: normal with
    standard deviation 0.02, biases zero, and the matrices that write into the stream divided by the root of their
    number, so that the stream does not grow with depth. Learned positions start as small as tokens; beside sinusoidal
    ones, which have length one per coordinate pair, the embedding is multiplied by :math:`\sqrt{d}` as in 2017 and
    starts at :math:`1/\sqrt{d}`. Otherwise positions would drown the tokens.

    Args:
        config: what to build.
        implementation: computes the attention, see :class:`~lessons_lib.multihead.MultiHeadAttention`.
    """

    def __init__(self, config: GPTConfig, *, implementation: Callable[..., Tensor] = attention) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_scale = math.sqrt(config.d_model) if config.position == "sinusoidal" else 1.0
        self.positions = _added_positions(config)
        self.alibi = AlibiBias(config.n_heads) if config.position == "alibi" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config, implementation) for _ in range(config.n_layers))
        self.norm = _norm(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._initialise()
        if config.tied:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        caches: Sequence[KVCache] | None = None,
        positions: Num[Tensor, "*#rows n"] | None = None,
        mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n vocab"]:
        """Return the logits of the token after each position.

        Args:
            tokens: one row per sequence.
            caches: what earlier calls left, see :meth:`new_caches`; the tokens are then the next ones. After an error
                start new ones.
            positions: where the tokens stand, ``(n,)`` or ``(b, n)``; if omitted they follow on from the caches. A
                model with ``position="none"`` has no use for them. ALiBi takes the cached keys to stand one apart,
                before the first of them.
            mask: what else to hide, beside the future: over ``(n, m)``, or with axes for batch and heads, each of which
                may be 1, where ``m`` counts the cached positions too.

        Raises:
            ValueError: if tokens are out of range, sequences outgrow learned positions, a shape does not fit, or the
                caches are of another model or cannot be used (dynamic rotary scaling beyond its trained length).
        """
        seen = self._check(tokens, caches, positions)
        n = tokens.shape[1]
        allowed = masks.causal(n, seen + n, device=tokens.device)
        if mask is not None:
            self._check_mask(mask, tokens, seen)
            allowed = allowed & mask
        if positions is None:
            positions = torch.arange(seen, seen + n, device=tokens.device)
        x = self.embedding(tokens) * self.embedding_scale
        if self.positions is not None:
            x = x + self.positions(positions).to(x.dtype)
        x = self.dropout(x)
        turned = positions if self.config.position == "rotary" else None
        bias = None if self.alibi is None else self.alibi(positions, _with_earlier(positions, seen), dtype=x.dtype)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, allowed, cache, positions=turned, bias=bias)
        return self.head(self.norm(x))

    def new_caches(self) -> list[KVCache]:
        """Return an empty cache for each layer."""
        return [KVCache() for _ in self.blocks]

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and config to one safetensors file, all or nothing.

        A temporary file beside ``path`` takes its place once it is complete, so that an interruption leaves the old
        file. A tied head is written once.
        """
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
        metadata = {"format": _FORMAT, "config": self.config.to_json()}
        try:
            save_file({name: tensor.contiguous() for name, tensor in _own_tensors(self).items()}, unfinished, metadata)
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, implementation: Callable[..., Tensor] = attention) -> "GPT":
        """Build the model that :meth:`save` wrote, on the CPU and in the types it was saved in.

        Raises:
            ValueError: if the file is truncated, is not one of ours, or its tensors are not those of its config.
            FileNotFoundError: if there is none.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                # Copies: the file may be written over while the model lives.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
        except SafetensorError as error:
            raise ValueError(f"{path} must be a complete safetensors file, got: {error}") from error
        if metadata.get("format") != _FORMAT or "config" not in metadata:
            raise ValueError(
                f"{path} must have been written by GPT.save (format {_FORMAT!r} and a config in its metadata), "
                f"got metadata {metadata}; for a Hugging Face checkpoint use GPT.from_huggingface"
            )
        return cls._from_tensors(GPTConfig.from_json(metadata["config"]), tensors, str(path), implementation)

    @classmethod
    def from_huggingface(cls, model: Any, *, implementation: Callable[..., Tensor] = attention) -> "GPT":
        """Copy a GPT-2 or Llama model of the ``transformers`` library; the logits are equal.

        ``GPT.from_huggingface("gpt2")`` downloads that checkpoint, through ``AutoModelForCausalLM.from_pretrained``.
        The copy has the type, device and training mode of the original. Dropout is a matter of training and is not
        copied: ``GPT(replace(copy.config, dropout=0.1))`` takes the copy's ``state_dict`` and has some.

        Args:
            model: a ``GPT2LMHeadModel`` or ``LlamaForCausalLM``, or the name or folder of a checkpoint of one.
            implementation: computes the attention, see :class:`~lessons_lib.multihead.MultiHeadAttention`.

        Raises:
            ImportError: if a name is given and ``transformers`` is not installed.
            ValueError: if the architecture is another one, has a setting that this model has not, or its tensors are
                not exactly those that its config announces.
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
        return cls._from_tensors(config, tensors, architecture, implementation).train(model.training)

    @classmethod
    def _from_tensors(
        cls, config: GPTConfig, tensors: dict[str, Tensor], origin: str, implementation: Callable[..., Tensor]
    ) -> "GPT":
        """Build a model around the given tensors, which must be exactly those that it owns."""
        with torch.device("meta"):  # draws no random numbers, and holds no memory that is to be replaced at once
            model = cls(config, implementation=implementation)
        wanted = {name: tuple(tensor.shape) for name, tensor in _own_tensors(model).items()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if wanted != found:
            wrong = {name: (wanted.get(name), found.get(name)) for name in sorted(wanted.keys() | found.keys())}
            wrong = {name: pair for name, pair in wrong.items() if pair[0] != pair[1]}
            raise ValueError(f"{origin} must hold the tensors of its config; (wanted, found) differ for {wrong}")
        if not all(tensor.is_floating_point() for tensor in tensors.values()):
            raise ValueError(f"{origin} must hold floating-point tensors; quantised weights are not supported")
        model.load_state_dict(tensors, strict=False, assign=True)
        if config.tied:
            model.head.weight = model.embedding.weight
        return model

    # --- parts ---

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=0.02 if self.embedding_scale == 1 else 1 / self.embedding_scale)
        writes = [weight for name, weight in self.named_parameters() if name.endswith(("w_o.weight", "w_down.weight"))]
        for weight in writes:
            nn.init.normal_(weight, std=0.02 / math.sqrt(len(writes)))

    def _check(self, tokens: Tensor, caches: Sequence[KVCache] | None, positions: Tensor | None) -> int:
        """Refuse what does not fit; return how many positions the caches have seen."""
        config = self.config
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool or not tokens.numel():
            raise ValueError(
                f"tokens must be integers over (b, n), at least one, got {tokens.dtype} over {tuple(tokens.shape)}"
            )
        if ((tokens < 0) | (tokens >= config.vocab_size)).any():
            raise ValueError(
                f"tokens must be in 0 .. vocab_size - 1 = {config.vocab_size - 1}, "
                f"got {tokens.min().item()} .. {tokens.max().item()}"
            )
        b, n = tokens.shape
        lengths = [0] * len(self.blocks) if caches is None else [len(cache) for cache in caches]
        if len(lengths) != len(self.blocks) or len(set(lengths)) != 1:
            raise ValueError(
                f"caches must be one for each of the {len(self.blocks)} layers, all equally long, "
                f"got lengths {lengths}; start with new_caches()"
            )
        seen = lengths[0]
        if positions is not None and positions.shape not in {(n,), (1, n), (b, n)}:
            raise ValueError(f"positions must be (n,) or (b, n) for tokens over {(b, n)}, got {tuple(positions.shape)}")
        if positions is None and config.position == "learned" and seen + n > config.n_context:
            raise ValueError(
                f"a sequence must not be longer than the n_context={config.n_context} learned positions, "
                f"got {seen + n} tokens; cut it"
            )
        if caches is not None and isinstance(config.rope_scaling, DynamicNTK):
            reach = seen + n if positions is None else int(positions.max()) + 1
            if reach > config.rope_scaling.n_trained:
                raise ValueError(
                    f"beyond {config.rope_scaling.n_trained} tokens dynamic rotary scaling turns every position anew, "
                    f"which a cache cannot follow, got {reach}; leave the caches out (use_cache=False)"
                )
        return seen

    def _check_mask(self, mask: Tensor, tokens: Tensor, seen: int) -> None:
        b, n = tokens.shape
        scores = (b, self.config.n_heads, n, seen + n)
        if mask.dtype != torch.bool or mask.ndim == 3 or not broadcasts_to(mask.shape, scores):
            raise ValueError(
                f"mask must be Boolean over (n, m) or (b, h, n, m) = {scores}, where each may be 1, "
                f"got {mask.dtype} over {tuple(mask.shape)}"
            )


class _SinusoidalPositions(nn.Module):
    """:func:`sinusoidal`, looked up like learned positions."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, positions: Tensor) -> Tensor:
        if positions.is_floating_point() or (positions < 0).any():
            raise ValueError(f"positions must be integers from 0, got {positions.dtype} from {positions.min().item()}")
        return sinusoidal(int(positions.max()) + 1, self.d_model, device=positions.device)[positions]


def _added_positions(config: GPTConfig) -> nn.Module | None:
    if config.position == "learned":
        return LearnedPositions(config.n_context, config.d_model)
    return _SinusoidalPositions(config.d_model) if config.position == "sinusoidal" else None


def _block(config: GPTConfig, implementation: Callable[..., Tensor]) -> TransformerBlock:
    attention_layer = MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        bias=config.attention_has_bias,
        dropout=config.dropout,
        position=config.rotary() if config.position == "rotary" else None,
        implementation=implementation,
    )
    return TransformerBlock(
        PreNorm(attention_layer, _norm(config), dropout=config.dropout),
        nn.Identity()
        if config.feedforward == "none"
        else PreNorm(_feedforward(config), _norm(config), dropout=config.dropout),
    )


def _feedforward(config: GPTConfig) -> nn.Module:
    if config.feedforward == "swiglu":
        return SwiGLU(config.d_model, config.hidden_width, bias=config.bias)
    activation = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}[config.feedforward]
    return FeedForward(config.d_model, config.hidden_width, activation=activation, bias=config.bias)


def _norm(config: GPTConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.d_model, eps=config.norm_eps)
    return LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


def _with_earlier(positions: Tensor, seen: int) -> Tensor:
    """The positions and, before them, those of ``seen`` cached keys, one apart."""
    earlier = positions[..., :1] - torch.arange(seen, 0, -1, device=positions.device)
    return torch.cat([earlier, positions], dim=-1)


# --- files ----------------------------------------------------------------------------------------------------------

_FORMAT = "lessons_lib.gpt"
_SCALINGS = {scaling.__name__: scaling for scaling in (PositionInterpolation, NTKAware, DynamicNTK, YaRN, Llama3)}


def _own_tensors(model: GPT) -> dict[str, Tensor]:
    """The state, without a head that is the embedding."""
    return {name: t for name, t in model.state_dict().items() if not (model.config.tied and name == "head.weight")}


def _settings(described: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as they are."""
    return {field.name: getattr(described, field.name) for field in fields(described)}


# --- Hugging Face ---------------------------------------------------------------------------------------------------


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


def _llama_config(theirs: Any) -> GPTConfig:
    _require(theirs, hidden_act="silu", is_causal=True, sliding_window=None, attention_chunk_size=None)
    _require(theirs, partial_rotary_factor=1.0, layer_types=None)
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
        bias=theirs.mlp_bias,
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
        for kind in ("weight", "bias") if config.bias else ("weight",):
            for name in ("gate", "up", "down"):
                tensors[f"{feed}.sublayer.w_{name}.{kind}"] = source.take(f"{block}.mlp.{name}_proj.{kind}")
    return tensors


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
}
