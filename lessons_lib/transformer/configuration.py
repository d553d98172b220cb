"""The configuration of a GPT: every setting of :class:`GPTConfig`, and the settings of known models."""

import json
import math
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal, get_args

from lessons_lib.attention.positions import ROPE_BASE, RotaryEmbedding, RotaryScaling
from lessons_lib.attention.rope_scaling import DynamicNTK, Llama3, NTKAware, PositionInterpolation, YaRN
from lessons_lib.foundations.validation import check_above, check_fraction, check_size
from lessons_lib.transformer.feedforward import swiglu_width

FeedForwardKind = Literal["gelu", "gelu_tanh", "relu", "swiglu", "geglu_tanh", "none"]
NormKind = Literal["layer", "rms"]
NormOrder = Literal["pre", "output", "sandwich"]
PositionKind = Literal["learned", "sinusoidal", "rotary", "alibi", "none"]
_SCALINGS = {scaling.__name__: scaling for scaling in (PositionInterpolation, NTKAware, DynamicNTK, YaRN, Llama3)}


@dataclass(frozen=True)
class GPTConfig:
    r"""Configuration of a :class:`~lessons_lib.transformer.gpt.GPT`: every setting that its architecture depends on.

    >>> GPTConfig(vocab_size=13, n_context=11, d_model=8, n_layers=2, n_heads=2).n_parameters()
    1952

    Args:
        vocab_size: number of tokens in the vocabulary.
        n_context: length of the training sequences. With learned positions it is also the longest possible sequence.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        n_heads: number of query heads.
        n_kv_heads: number of key/value heads; ``n_heads`` by default.
        d_head: width of a head; ``d_model / n_heads`` by default.
        d_ff: hidden width of the feed-forward layers. The default is ``4 * d_model``, or the width of equal cost for
            gated ones.
        feedforward: activation of the feed-forward layers; ``"swiglu"`` and ``"geglu_tanh"`` are gated (Llama, Gemma);
            ``"none"`` is for blocks of attention alone.
        n_experts, experts_per_token: if given, each feed-forward layer is a
            :class:`~lessons_lib.transformer.feedforward.MixtureOfExperts` of ``n_experts`` such layers, of which a
            token uses ``experts_per_token``, weighted so that the weights sum to 1 (Mixtral); a single one is weighted
            by its probability (Switch).
        norm: layer norm or RMS norm, at each sublayer and at the end.
        norm_order: where the norms of a sublayer stand: before it (``"pre"``), after it and before the residual sum
            (``"output"``, OLMo 2), or both (``"sandwich"``, Gemma 2).
        norm_eps: epsilon of the norms, and of ``qk_norm``.
        parallel: whether attention and feed-forward of a block read the same input and are added together
            (:class:`~lessons_lib.transformer.blocks.ParallelBlock`, GPT-NeoX).
        position: how the model encodes positions: vectors added to the embedding (``"learned"``, ``"sinusoidal"``),
            rotated queries and keys (``"rotary"``), or attention scores that decrease with distance (``"alibi"``).
            With ``"none"`` only the causal mask distinguishes positions.
        rope_base, rope_scaling, d_rotary: base and scaling of the rotary embedding, and how many coordinates of a head
            it rotates (all by default), for ``position="rotary"`` only.
        window: number of keys that a query may attend to, its own included (Mistral); ``None`` for all earlier ones. A
            tuple gives one for each layer, and is repeated if it is shorter: ``(4096, None)`` alternates.
        scale: multiplier of the attention scores; ``1 / sqrt(d_head)`` by default.
        softcap: cap :math:`c` on the scores, :math:`c \tanh(s / c)`, before the mask (Gemma 2).
        qk_norm: whether queries and keys are each normalised by an RMS norm with its own gains before they are
            rotated (:class:`~lessons_lib.transformer.stabilise.QKNorm`), as in Qwen3; ``"across_heads"`` for one norm
            of all heads together (:class:`~lessons_lib.transformer.stabilise.QKNormAcrossHeads`), as in OLMo 2.
        bias: whether projections, feed-forward layers and layer norms have biases. RMS norms and the head never have.
        attention_bias: whether the attention projections have biases; the value of ``bias`` by default, and ``"qkv"``
            for biases of queries, keys and values alone (Qwen2).
        scale_embedding: whether the embedding is multiplied by :math:`\sqrt{d}`, as in 2017 and Gemma; by default with
            sinusoidal positions only.
        logit_softcap: cap on the logits, as ``softcap`` (Gemma 2).
        tied: whether the head shares the weights of the embedding.
        dropout: dropout probability in training, applied to the embedded tokens, the attention weights and the output
            of each sublayer.

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
    n_experts: int | None = None
    experts_per_token: int | None = None
    norm: NormKind = "layer"
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    parallel: bool = False
    position: PositionKind = "learned"
    rope_base: float = ROPE_BASE
    rope_scaling: RotaryScaling | None = None
    d_rotary: int | None = None
    window: int | tuple[int | None, ...] | None = None
    scale: float | None = None
    softcap: float | None = None
    qk_norm: bool | Literal["across_heads"] = False
    bias: bool = True
    attention_bias: bool | Literal["qkv"] | None = None
    scale_embedding: bool | None = None
    logit_softcap: float | None = None
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_context", "d_model", "n_layers", "n_heads", "n_kv_heads", "d_head", "d_ff"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name), at_least=1)
        if (self.n_experts is None) != (self.experts_per_token is None):
            raise ValueError(
                f"n_experts and experts_per_token must be given together, got {self.n_experts} and "
                f"{self.experts_per_token}"
            )
        if self.n_experts is not None and self.experts_per_token is not None:
            check_size("n_experts", self.n_experts, at_least=1)
            check_size("experts_per_token", self.experts_per_token, at_least=1, at_most=self.n_experts)
        for name, kind in {
            "feedforward": FeedForwardKind,
            "norm": NormKind,
            "norm_order": NormOrder,
            "position": PositionKind,
        }.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}, got {getattr(self, name)!r}")
        if self.attention_bias not in (None, False, True, "qkv"):
            raise ValueError(f"attention_bias must be a Boolean, 'qkv' or None, got {self.attention_bias!r}")
        if self.qk_norm not in (False, True, "across_heads"):
            raise ValueError(f"qk_norm must be False, True or 'across_heads', got {self.qk_norm!r}")
        if self.n_heads % self.key_value_heads:
            raise ValueError(f"n_kv_heads must divide n_heads, got {self.n_kv_heads} and n_heads={self.n_heads}")
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads must divide d_model, got n_heads={self.n_heads}, d_model={self.d_model}; or give d_head"
            )
        if self.feedforward == "none" and self.d_ff is not None:
            raise ValueError(f"d_ff must be omitted where there is no feed-forward, got {self.d_ff}")
        if self.feedforward == "none" and (self.n_experts is not None or self.parallel):
            raise ValueError(
                "n_experts and parallel must be omitted where there is no feed-forward, got "
                f"{self.n_experts} and {self.parallel}"
            )
        if not (math.isfinite(self.norm_eps) and self.norm_eps >= 0):
            raise ValueError(f"norm_eps must be finite and not negative, got {self.norm_eps}")
        for name in ("scale", "softcap", "logit_softcap"):
            if getattr(self, name) is not None:
                check_above(name, getattr(self, name), 0)
        check_fraction("dropout", self.dropout)
        if isinstance(self.window, tuple) and not 1 <= len(self.window) <= self.n_layers:
            raise ValueError(f"window must have 1 to n_layers={self.n_layers} entries, got {self.window}")
        for window in self.windows:
            if window is not None:
                check_size("window", window, at_least=1)
        if self.position == "rotary":
            self.rotary()
        elif self.rope_scaling is not None or self.rope_base != ROPE_BASE or self.d_rotary is not None:
            raise ValueError(
                "rope_base, rope_scaling and d_rotary belong to rotary positions, "
                f"got {self.rope_base}, {self.rope_scaling} and {self.d_rotary} with position={self.position!r}; "
                "leave them out (rope_base=positions.ROPE_BASE, rope_scaling=None, d_rotary=None)"
            )
        if self.position == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model must be even for sinusoidal positions, got {self.d_model}")

    @property
    def key_value_heads(self) -> int:
        """Number of key/value heads: ``n_kv_heads`` or its default."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        """Width of a head: ``d_head`` or its default."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def hidden_width(self) -> int:
        """Hidden width of the feed-forward layers: ``d_ff`` or its default; 0 without feed-forward layers."""
        default = {"none": 0}.get(self.feedforward, swiglu_width(self.d_model) if self.is_gated else 4 * self.d_model)
        return default if self.d_ff is None else self.d_ff

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layers are gated, so that they have three matrices instead of two."""
        return self.feedforward in ("swiglu", "geglu_tanh")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Window of each layer, see ``window``."""
        given = self.window if isinstance(self.window, tuple) else (self.window,)
        return tuple(given[layer % len(given)] for layer in range(self.n_layers))

    @property
    def attention_has_bias(self) -> bool | Literal["qkv"]:
        """Whether the attention projections have biases: ``attention_bias`` or its default."""
        return self.bias if self.attention_bias is None else self.attention_bias

    @property
    def embedding_is_scaled(self) -> bool:
        """Whether the embedding is multiplied by the root of ``d_model``: ``scale_embedding`` or its default."""
        return self.position == "sinusoidal" if self.scale_embedding is None else self.scale_embedding

    def rotary(self) -> RotaryEmbedding:
        """Return the rotary embedding that the settings describe."""
        return RotaryEmbedding(self.head_width, base=self.rope_base, scaling=self.rope_scaling, d_rotary=self.d_rotary)

    def n_parameters(self) -> int:
        r"""Return the number of parameters, by formula.

        .. math::
            \underbrace{V d}_{\text{embedding}} + \underbrace{n_{\text{context}}\, d}_{\text{if learned}}
            + L \big(\underbrace{2 (h + g)\, d_{\text{head}}\, d}_{\text{attention}}
            + \underbrace{2\, d\, d_{\text{ff}}}_{\text{3 if gated}} + \underbrace{2 d}_{\text{norms}} \big)
            + d + \underbrace{V d}_{\text{head, unless tied}}

        Biases add :math:`(h + 2g)\, d_{\text{head}} + d` for an attention layer (without the
        :math:`d` for ``"qkv"``), :math:`d_{\text{ff}} + d` for a
        feed-forward layer (:math:`2 d_{\text{ff}} + d` if gated) and :math:`d` for a layer norm. The norms of
        queries and keys add :math:`2\, d_{\text{head}}` gains in each layer, across heads
        :math:`(h + g)\, d_{\text{head}}`. :math:`E` experts have :math:`E` times the
        parameters of a feed-forward layer, and :math:`E\, d` in their router. Sandwich norms are twice as many.
        """
        d, ff, h, g = self.d_model, self.hidden_width, self.n_heads, self.key_value_heads
        ups = 2 if self.is_gated else 1
        attention = 2 * (h + g) * self.head_width * d
        attention += bool(self.attention_has_bias) * ((h + 2 * g) * self.head_width + d)
        attention -= (self.attention_has_bias == "qkv") * d
        attention += bool(self.qk_norm) * (h + g if self.qk_norm == "across_heads" else 2) * self.head_width
        feedforward = 0 if self.feedforward == "none" else (ups + 1) * d * ff + self.bias * (ups * ff + d)
        if self.n_experts is not None:
            feedforward = self.n_experts * (feedforward + d)
        norm = 2 * d if self.norm == "layer" and self.bias else d
        norms_in_block = (1 if self.feedforward == "none" else 2) * (2 if self.norm_order == "sandwich" else 1)
        positions = self.n_context * d if self.position == "learned" else 0
        ends = self.vocab_size * d * (1 if self.tied else 2)
        return ends + positions + self.n_layers * (attention + feedforward + norms_in_block * norm) + norm

    def to_json(self) -> str:
        """Return the settings as JSON, which :meth:`from_json` reads."""
        settings, scaling = _settings(self), self.rope_scaling
        settings["rope_scaling"] = None if scaling is None else {"type": type(scaling).__name__, **_settings(scaling)}
        if self.position != "rotary":  # these have no effect, so the file need not fix their default values
            del settings["rope_base"], settings["rope_scaling"]
        return json.dumps(settings)

    @classmethod
    def from_json(cls, text: str) -> "GPTConfig":
        """Return the config that :meth:`to_json` wrote.

        >>> GPTConfig.from_json(llama_tiny().to_json()) == llama_tiny()
        True

        Raises:
            ValueError: if the text is not JSON, lacks a setting that has no default, has an unknown setting or an
                invalid value.
        """
        try:
            settings = json.loads(text)
            scaling = settings.get("rope_scaling")
            if scaling is not None:
                settings["rope_scaling"] = _SCALINGS[scaling.pop("type")](**scaling)
            if isinstance(settings.get("window"), list):  # JSON has no tuples
                settings["window"] = tuple(settings["window"])
            return cls(**settings)
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"text must be what GPTConfig.to_json wrote; {type(error).__name__}: {error}") from error


def gpt2_small() -> GPTConfig:
    """Return the config of GPT-2 with 12 layers: 124,439,808 parameters, or 163,037,184 with an untied head.

    Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019, give 117 million. To change a preset,
    use ``dataclasses.replace(gpt2_small(), tied=False)``.

    >>> gpt2_small().n_parameters()
    124439808
    """
    return GPTConfig(vocab_size=50_257, n_context=1024, d_model=768, n_layers=12, n_heads=12)


def gpt2_medium() -> GPTConfig:
    """Return the config of GPT-2 with 24 layers: 354,823,168 parameters."""
    return replace(gpt2_small(), d_model=1024, n_layers=24, n_heads=16)


def llama_tiny() -> GPTConfig:
    """Return a config with Llama's architecture that trains on a laptop's CPU.

    It has grouped-query attention, rotary positions, SwiGLU, RMS norm and no biases. Touvron et al., *LLaMA*, 2023.
    arXiv:2302.13971; grouped-query attention came with Llama 2. arXiv:2307.09288.
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
    """Return the config of Llama 3 with 32 layers: 8,030,261,248 parameters. arXiv:2407.21783.

    It serves to count parameters and operations; the model itself needs 32 GB in float32.
    """
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


# --- parts ---


def _settings(dataclass_instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, without converting nested dataclasses."""
    return {field.name: getattr(dataclass_instance, field.name) for field in fields(dataclass_instance)}
