"""A decoder-only language model: GPT-2 or Llama, by configuration.

:class:`GPTConfig` says what the model is, :class:`GPT` is it. A file (``save``, ``load``) holds both; what does not fit
exactly is refused, never half loaded. :mod:`lessons_lib.huggingface` reads the models of ``transformers``.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from lessons_lib.blocks import PreNorm, TransformerBlock
from lessons_lib.checkpoints import different_shapes, read_tensors, write_tensors
from lessons_lib.feedforward import FeedForward, SwiGLU, gelu, gelu_tanh, relu, swiglu_width
from lessons_lib.fused import fused_attention
from lessons_lib.initialise import WRITE_TO_RESIDUAL_STREAM, initialise
from lessons_lib.multihead import KVCache, MultiHeadAttention, as_layers_take
from lessons_lib.norms import LayerNorm, RMSNorm
from lessons_lib.positions import (
    ROPE_BASE,
    AlibiBias,
    LearnedPositions,
    RotaryEmbedding,
    RotaryScaling,
    SinusoidalPositions,
)
from lessons_lib.rope_scaling import DynamicNTK, Llama3, NTKAware, PositionInterpolation, YaRN
from lessons_lib.rules import Causal, Rule, as_rule, check_over
from lessons_lib.shapes import broadcasts_to, check_share, check_size, check_tensor, values_can_be_read
from lessons_lib.stabilise import QKNorm

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
        norm_eps: the constant inside its root, and inside that of ``qk_norm``.
        position: how places are told: vectors added to the embedding (``"learned"``, ``"sinusoidal"``), queries and
            keys turned (``"rotary"``), scores lowered with distance (``"alibi"``), or not at all: the causal mask alone
            then tells places apart.
        rope_base, rope_scaling: of the rotary embedding, and for it only.
        qk_norm: whether queries and keys are brought to one length, each by an RMS norm with gains of its own, before
            they are turned (:class:`~lessons_lib.stabilise.QKNorm`), as in Qwen3.
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
    qk_norm: bool = False
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
        check_share("dropout", self.dropout)
        if self.position == "rotary":
            self.rotary()
        elif self.rope_scaling is not None or self.rope_base != ROPE_BASE:
            raise ValueError(
                "rope_base and rope_scaling belong to rotary positions, "
                f"got {self.rope_base} and {self.rope_scaling} with position={self.position!r}; "
                "leave them out (rope_base=positions.ROPE_BASE, rope_scaling=None)"
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
        feed-forward (:math:`2 d_{\text{ff}} + d` for SwiGLU), :math:`d` for a layer norm. The norms of queries and keys
        have :math:`2\, d_{\text{head}}` gains in each layer.
        """
        d, ff, h, g = self.d_model, self.hidden_width, self.n_heads, self.key_value_heads
        ups = 2 if self.feedforward == "swiglu" else 1
        attention = 2 * (h + g) * self.head_width * d + self.attention_has_bias * ((h + 2 * g) * self.head_width + d)
        attention += self.qk_norm * 2 * self.head_width
        feedforward = 0 if self.feedforward == "none" else (ups + 1) * d * ff + self.bias * (ups * ff + d)
        norm = 2 * d if self.norm == "layer" and self.bias else d
        norms_in_block = 1 if self.feedforward == "none" else 2
        positions = self.n_context * d if self.position == "learned" else 0
        ends = self.vocab_size * d * (1 if self.tied else 2)
        return ends + positions + self.n_layers * (attention + feedforward + norms_in_block * norm) + norm

    def to_json(self) -> str:
        """Write the settings down; :meth:`from_json` reads them."""
        settings, scaling = _settings(self), self.rope_scaling
        settings["rope_scaling"] = None if scaling is None else {"type": type(scaling).__name__, **_settings(scaling)}
        if self.position != "rotary":  # a default that nothing follows from need not bind those who read this
            del settings["rope_base"], settings["rope_scaling"]
        return json.dumps(settings)

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
        implementation: computes the attention, see :class:`~lessons_lib.multihead.MultiHeadAttention`. It is given the
            mask as a rule if it asks rules, and then nothing over ``n * m`` is made here.
    """

    def __init__(self, config: GPTConfig, *, implementation: Callable[..., Tensor] = fused_attention) -> None:
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
        matrices = [f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)]
        branches = [name for name in matrices if name.endswith(WRITE_TO_RESIDUAL_STREAM)]
        # In this order a seed gives the weights with which the book's runs were measured.
        order = [*matrices, "embedding.weight", *branches]
        initialise(self, lambda shape: 0.02, n_branches=len(branches), order=order)
        if config.tied:
            self.head.weight = self.embedding.weight

    @property
    def initial_std(self) -> dict[str, float]:
        """How large tokens start beside sinusoidal positions, see :mod:`lessons_lib.initialise`."""
        return {} if self.embedding_scale == 1 else {"embedding.weight": 1 / self.embedding_scale}

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        caches: Sequence[KVCache] | None = None,
        positions: Num[Tensor, "*#rows n"] | None = None,
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    ) -> Float[Tensor, "b n vocab"]:
        """Return the logits of the token after each position.

        Args:
            tokens: one row per sequence, in int32 or int64.
            caches: what earlier calls left, see :meth:`new_caches`; the tokens are then the next ones. After an error
                start new ones.
            positions: where the tokens stand, ``(n,)`` or ``(b, n)``; if omitted they follow on from the caches. A
                model with ``position="none"`` has no use for them. ALiBi takes the cached keys to stand one apart,
                before the first of them.
            mask: what else to hide, beside the future: a rule, or a Boolean table over ``(n, m)``, or with axes for
                batch and heads, each of which may be 1, where ``m`` counts the cached positions too.

        Raises:
            ValueError: if tokens are out of range, sequences outgrow learned positions, a shape does not fit, or the
                caches are of another model or cannot be used (dynamic rotary scaling beyond its trained length).

        Whether tokens and positions are in range is not asked while ``torch.compile`` traces: the answer lies in the
        data, and asking would cut the graph (outside it costs a GPU one wait). The lookup's own error stands in.
        """
        seen = self._check(tokens, caches, positions)
        n = tokens.shape[1]
        allowed = as_layers_take(self.blocks, self._visible(mask, tokens, seen), n, seen + n, tokens.device)
        if positions is None:
            positions = torch.arange(seen, seen + n, device=tokens.device)
        x = self.embedding(tokens)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        if self.positions is not None:
            x = x + self.positions(positions).to(x.dtype)
        x = self.dropout(x)
        bias = None if self.alibi is None else self.alibi(positions, _with_earlier(positions, seen), dtype=x.dtype)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, allowed, cache, positions=positions if _takes_positions(block) else None, bias=bias)
        return self.head(self.norm(x))

    def new_caches(self) -> list[KVCache]:
        """Return an empty cache for each layer."""
        return [KVCache() for _ in self.blocks]

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and config to one safetensors file, all or nothing; a tied head is written once.

        Raises:
            ValueError: if :meth:`load` could not bring the model back, because something was added to it or exchanged
                in it of which its config does not know. Nothing is written then.
        """
        tensors = _own_tensors(self)
        differences = different_shapes(_own_tensors(_bare(self.config)), tensors)
        if differences:
            raise ValueError(
                f"a model must be what its config says in order to be saved; (wanted, found) differ for {differences}; "
                "undo what was added (stabilise.remove_sigma_reparam), or say it in the config (qk_norm=True)"
            )
        _check_floating(tensors, "a model that is saved")
        if self.config.tied and not torch.equal(self.head.weight, self.embedding.weight):
            raise ValueError("head.weight must be embedding.weight in a model with tied=True, got another tensor")
        if self.alibi not in (None, AlibiBias(self.config.n_heads)):
            raise ValueError(f"alibi must be what the config says in order to be saved, got {self.alibi}")
        write_tensors(path, tensors, {"format": _FORMAT, "config": self.config.to_json()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, implementation: Callable[..., Tensor] = fused_attention) -> "GPT":
        """Build the model that :meth:`save` wrote, on the CPU and in the types it was saved in.

        Raises:
            ValueError: if the file is truncated, is not one of ours, or its tensors are not those of its config.
            FileNotFoundError: if there is none.
        """
        tensors, metadata = read_tensors(path)
        if metadata.get("format") != _FORMAT or "config" not in metadata:
            raise ValueError(
                f"{path} must have been written by GPT.save (format {_FORMAT!r} and a config in its metadata), "
                f"got metadata {metadata}; a Hugging Face checkpoint is read by huggingface.gpt_from_huggingface"
            )
        config = GPTConfig.from_json(metadata["config"])
        return cls.from_tensors(config, tensors, origin=str(path), implementation=implementation)

    @classmethod
    def from_tensors(
        cls,
        config: GPTConfig,
        tensors: Mapping[str, Tensor],
        *,
        origin: str = "tensors",
        implementation: Callable[..., Tensor] = fused_attention,
    ) -> "GPT":
        """Build a model around the tensors of its ``state_dict``, which become its weights; a tied head comes once.

        Raises:
            ValueError: if they are not exactly the tensors of the config; ``origin`` says whose fault it is.
        """
        model = _bare(config, implementation)
        differences = different_shapes(_own_tensors(model), tensors)
        if differences:
            raise ValueError(f"{origin} must hold the tensors of its config; (wanted, found) differ for {differences}")
        _check_floating(tensors, origin)
        model.load_state_dict(tensors, strict=False, assign=True)
        if config.tied:
            model.head.weight = model.embedding.weight
        return model

    @classmethod
    def from_huggingface(cls, model: Any, *, implementation: Callable[..., Tensor] = fused_attention) -> "GPT":
        """Call :func:`lessons_lib.huggingface.gpt_from_huggingface`, by its older name; deprecated."""
        from lessons_lib.huggingface import gpt_from_huggingface

        warnings.warn(
            "GPT.from_huggingface is deprecated: from lessons_lib.huggingface import gpt_from_huggingface",
            DeprecationWarning,
            stacklevel=2,
        )
        return gpt_from_huggingface(model, implementation=implementation)

    # --- parts ---

    def _check(self, tokens: Tensor, caches: Sequence[KVCache] | None, positions: Tensor | None) -> int:
        """Refuse what does not fit; return how many positions the caches have seen."""
        config = self.config
        check_tensor("tokens", tokens)
        if tokens.ndim != 2 or tokens.dtype not in (torch.int32, torch.int64) or not tokens.numel():
            raise ValueError(
                "tokens must be integers over (b, n), int32 or int64 as an embedding takes them, at least one, "
                f"got {tokens.dtype} over {tuple(tokens.shape)}; write tokens.long() for other integers"
            )
        if values_can_be_read(tokens) and ((tokens < 0) | (tokens >= config.vocab_size)).any():
            raise ValueError(
                f"tokens must be in 0 .. vocab_size - 1 = {config.vocab_size - 1}, "
                f"got {tokens.min().item()} .. {tokens.max().item()}"
            )
        b, n = tokens.shape
        lengths = [0] * len(self.blocks) if caches is None else [len(cache) for cache in caches]
        if len(lengths) != len(self.blocks) or any(length != lengths[0] for length in lengths):
            raise ValueError(
                f"caches must be one for each of the {len(self.blocks)} layers, all equally long, "
                f"got lengths {lengths}; start with new_caches()"
            )
        seen = lengths[0]
        if positions is not None and positions.shape not in ((n,), (1, n), (b, n)):
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

    def _visible(self, mask: Rule | Tensor | None, tokens: Tensor, seen: int) -> Rule:
        """Return the rule of the past, and what else hides."""
        if mask is None:
            return Causal()
        b, n = tokens.shape
        scores = (b, self.config.n_heads, n, seen + n)
        if isinstance(mask, Rule):
            check_over(mask, scores)
        elif mask.dtype != torch.bool or mask.ndim == 3 or not broadcasts_to(mask.shape, scores):
            raise ValueError(
                f"mask must be Boolean over (n, m) or (b, h, n, m) = {scores}, where each may be 1, "
                f"got {mask.dtype} over {tuple(mask.shape)}"
            )
        return Causal() & as_rule(mask, seen + n)


# --- its parts ------------------------------------------------------------------------------------------------------


def _added_positions(config: GPTConfig) -> nn.Module | None:
    if config.position == "learned":
        return LearnedPositions(config.n_context, config.d_model)
    return SinusoidalPositions(config.d_model) if config.position == "sinusoidal" else None


def _block(config: GPTConfig, implementation: Callable[..., Tensor]) -> TransformerBlock:
    prepare = config.rotary().prepare if config.position == "rotary" else None
    if config.qk_norm:
        prepare = QKNorm(config.head_width, prepare, eps=config.norm_eps)
    attention_layer = MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        bias=config.attention_has_bias,
        dropout=config.dropout,
        prepare=prepare,
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


def _takes_positions(block: nn.Module) -> bool:
    """Whether the attention inside has anything to tell the positions to."""
    layer = getattr(block.attention, "sublayer", block.attention)
    return getattr(layer, "prepare", None) is not None


def _with_earlier(positions: Tensor, seen: int) -> Tensor:
    """The positions and, before them, those of ``seen`` cached keys, one apart."""
    earlier = positions[..., :1] - torch.arange(seen, 0, -1, device=positions.device)
    return torch.cat([earlier, positions], dim=-1)


# --- files ----------------------------------------------------------------------------------------------------------

_FORMAT = "lessons_lib.gpt"
_SCALINGS = {scaling.__name__: scaling for scaling in (PositionInterpolation, NTKAware, DynamicNTK, YaRN, Llama3)}


def _bare(config: GPTConfig, implementation: Callable[..., Tensor] = fused_attention) -> GPT:
    """A model whose tensors take no memory and no random numbers, for their names and shapes."""
    with torch.device("meta"):
        return GPT(config, implementation=implementation)


def _own_tensors(model: GPT) -> dict[str, Tensor]:
    """The state, without a head that is the embedding."""
    return {name: t for name, t in model.state_dict().items() if not (model.config.tied and name == "head.weight")}


def _check_floating(tensors: Mapping[str, Tensor], origin: str) -> None:
    if not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise ValueError(f"{origin} must hold floating-point tensors; quantised weights are not supported")


def _settings(described: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as they are."""
    return {field.name: getattr(described, field.name) for field in fields(described)}
