"""A decoder-only language model: GPT-2 or Llama, by configuration.

A file (``save``, ``load``) holds the model and its :class:`~lessons_lib.transformer.configuration.GPTConfig`. A file
whose tensors do not match its configuration exactly raises an error and is never partly loaded.
:mod:`lessons_lib.transformer.huggingface` reads the models of ``transformers``.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from lessons_lib.attention.attention import attention
from lessons_lib.attention.cache import KVCache
from lessons_lib.attention.fixed_cache import FixedCache, RingCache
from lessons_lib.attention.multihead import MultiHeadAttention, mask_for_layers
from lessons_lib.attention.positions import AlibiBias, LearnedPositions, SinusoidalPositions
from lessons_lib.attention.rope_scaling import DynamicNTK
from lessons_lib.attention.rules import Causal, Rule, Window, as_rule, check_fits_scores
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.foundations.norms import LayerNorm, RMSNorm
from lessons_lib.foundations.validation import broadcasts_to, check_size, check_tensor, values_can_be_read
from lessons_lib.transformer.blocks import OutputNorm, ParallelBlock, PreNorm, SandwichNorm, TransformerBlock
from lessons_lib.transformer.checkpoints import read_tensors, shape_mismatches, write_tensors
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.feedforward import GEGLU, FeedForward, MixtureOfExperts, SwiGLU, gelu, gelu_tanh, relu
from lessons_lib.transformer.initialise import WRITE_TO_RESIDUAL_STREAM, initialise
from lessons_lib.transformer.stabilise import QKNorm, QKNormAcrossHeads


class GPT(nn.Module):
    r"""Decoder-only Transformer: predicts each next token from the tokens before it.

    .. math::
        x_0 = E_{t} + P, \qquad x_{l+1} = \operatorname{block}_l(x_l), \qquad
        \text{logits} = W_{\text{head}} \operatorname{norm}(x_L)

    The model is always causal: no argument lets a position attend to a later one.

    Weights are initialised as in GPT-2: normal with standard deviation 0.02, biases zero. The matrices that write into
    the residual stream are divided by the square root of the number of sublayers, so that the stream does not grow with
    depth.
    Learned positions have the same initial size as token embeddings. Sinusoidal positions have length 1 per coordinate
    pair; with them the embedding is multiplied by :math:`\sqrt{d}`, as in 2017, and initialised with standard deviation
    :math:`1/\sqrt{d}`. Otherwise the positions would be much larger than the tokens.

    >>> model = GPT(GPTConfig(vocab_size=13, n_context=11, d_model=8, n_layers=2, n_heads=2))
    >>> model(torch.randint(13, (3, 7))).shape
    torch.Size([3, 7, 13])

    Args:
        config: sizes and options of the model.
        implementation: the attention function, see :class:`~lessons_lib.attention.multihead.MultiHeadAttention`. If it
            supports rules, it receives the mask as a rule, and the model creates no tensor over ``n * m``. By default
            it is ``fused_attention``, and ``attention`` for a config with ``softcap``, which PyTorch's kernels lack.
            It receives ``scale`` and ``softcap`` of the config as keyword arguments if they are given.
    """

    def __init__(self, config: GPTConfig, *, implementation: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.embedding_scale = math.sqrt(config.d_model) if config.embedding_is_scaled else 1.0
        self.positions = _added_positions(config)
        self.alibi = AlibiBias(config.n_heads) if config.position == "alibi" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_block(config, implementation) for _ in range(config.n_layers))
        self.norm = _norm(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        matrices = [f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)]
        branches = [name for name in matrices if name.endswith(WRITE_TO_RESIDUAL_STREAM)]
        # With this order a seed gives the same weights as in the book's measured runs.
        order = [*matrices, "embedding.weight", *branches]
        n_branches = config.n_layers * (1 if config.feedforward == "none" else 2)  # the experts of a layer are one
        initialise(self, lambda shape: 0.02, n_branches=n_branches, order=order)
        if config.tied:
            self.head.weight = self.embedding.weight

    @property
    def initial_std(self) -> dict[str, float]:
        """Initial standard deviations that :mod:`lessons_lib.transformer.initialise` uses: of a scaled embedding."""
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
            caches: KV caches that earlier calls filled, see :meth:`new_caches`; ``tokens`` then continue the cached
                sequences. After an error start with new caches.
            positions: positions of the tokens, ``(n,)`` or ``(b, n)``. By default they continue after the cached ones.
                A model with ``position="none"`` does not use them. ALiBi assumes that the cached keys stand at
                consecutive positions directly before the first token.
            mask: hides further positions, in addition to the causal mask: a rule, or a Boolean mask over ``(n, m)`` or
                ``(b, h, n, m)``. Each axis may be 1, and ``m`` includes the cached positions.

        Raises:
            ValueError: if tokens are out of range, sequences are longer than learned positions, a shape does not fit,
                or the caches belong to another model or cannot be used (dynamic rotary scaling beyond its trained
                length).

        While ``torch.compile`` traces, the ranges of tokens and positions are not checked, because reading values would
        break the graph. The lookup then raises its own error. (Outside of tracing the check costs a GPU one
        synchronisation.)
        """
        self._check(tokens, caches, positions)
        layer_caches = [KVCache() for _ in self.blocks] if caches is None else caches
        rule, table = self._mask_rule(mask, tokens, layer_caches[0])
        if positions is None:
            positions = layer_caches[0].next_positions(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens)
        if self.embedding_scale != 1:
            x = x * torch.tensor(self.embedding_scale, dtype=x.dtype, device=x.device)
        if self.positions is not None:
            x = x + self.positions(positions).to(x.dtype)
        x = self.dropout(x)
        of_window: dict[int | None, tuple[Rule | Tensor | None, Tensor | None]] = {}
        for window, cache in zip(self.config.windows, layer_caches, strict=True):
            if window not in of_window:
                allowed = self._allowed(rule if window is None else rule & Window(window), table, cache, tokens)
                of_window[window] = allowed, self._bias(positions, cache, x.dtype)
        of_layers = zip(self.blocks, self.config.windows, caches or [None] * len(self.blocks), strict=True)
        for block, window, cache in of_layers:
            allowed, bias = of_window[window]
            x = block(x, allowed, cache, positions=positions if _takes_positions(block) else None, bias=bias)
        logits = self.head(self.norm(x))
        cap = self.config.logit_softcap
        return logits if cap is None else cap * (logits / cap).tanh()

    def new_caches(self, size: int | None = None, *, batch: int = 1) -> list[KVCache]:
        """Return an empty KV cache for each layer.

        With a ``size`` the caches are allocated for ``batch`` sequences of at most so many positions
        (:class:`~lessons_lib.attention.fixed_cache.FixedCache`), so that ``torch.compile(model, fullgraph=True)`` makes
        one graph for all decoding steps. A layer with a window keeps as many positions as its window
        (:class:`~lessons_lib.attention.fixed_cache.RingCache`), and if all layers do, there is no largest length. These
        caches are used inside ``torch.no_grad()``.

        >>> model = GPT(GPTConfig(vocab_size=13, n_context=11, d_model=8, n_layers=2, n_heads=2))
        >>> caches = model.new_caches(11, batch=3)
        >>> with torch.no_grad():
        ...     model(torch.randint(13, (3, 7)), caches=caches).shape, len(caches[0]), caches[0].tensors[0].shape
        (torch.Size([3, 7, 13]), 7, torch.Size([3, 2, 11, 4]))

        Raises:
            ValueError: if a size is not a positive integer; with dynamic rotary scaling, if ``size`` exceeds the
                trained length, or a layer has a window, since its texts have no largest length.
        """
        config = self.config
        if size is None:
            return [KVCache() for _ in self.blocks]
        check_size("size", size, at_least=1)
        weight = self.embedding.weight
        like = {"dtype": weight.dtype, "device": weight.device}
        caches: list[KVCache] = []
        for window in config.windows:
            kind, n = (FixedCache, size) if window is None or window >= size else (RingCache, window)
            caches.append(kind(batch, config.key_value_heads, n, config.head_width, **like))
        self._check_dynamic_scaling(caches)
        return caches

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and config to one safetensors file, atomically; a tied head is written once.

        Raises:
            ValueError: if :meth:`load` could not restore the model, because a module was added or replaced that the
                config does not describe. Nothing is written then.
        """
        tensors = _state_without_tied_head(self)
        mismatches = shape_mismatches(_state_without_tied_head(_meta_model(self.config)), tensors)
        if mismatches:
            raise ValueError(
                f"a model must match its config to be saved; (expected, found) shapes differ for {mismatches}; "
                "remove what was added (stabilise.remove_sigma_reparam), or set it in the config (qk_norm=True)"
            )
        _check_floating(tensors, "a model that is saved")
        if self.config.tied and not torch.equal(self.head.weight, self.embedding.weight):
            raise ValueError("head.weight must be embedding.weight in a model with tied=True, got another tensor")
        if self.alibi not in (None, AlibiBias(self.config.n_heads)):
            raise ValueError(f"alibi must match the config to be saved, got {self.alibi}")
        write_tensors(path, tensors, {"format": _FORMAT, "config": self.config.to_json()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, implementation: Callable[..., Tensor] | None = None) -> "GPT":
        """Return the model that :meth:`save` wrote, on the CPU and in the saved dtypes.

        Raises:
            ValueError: if the file is truncated, was not written by :meth:`save`, or its tensors do not match its
                config.
            FileNotFoundError: if there is no file.
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
        implementation: Callable[..., Tensor] | None = None,
    ) -> "GPT":
        """Return a model whose weights are the given tensors, without copies.

        The names are those of its ``state_dict``, without ``head.weight`` if the head is tied.

        Raises:
            ValueError: if these are not exactly the tensors of the config; the message calls them ``origin``.
        """
        model = _meta_model(config, implementation)
        mismatches = shape_mismatches(_state_without_tied_head(model), tensors)
        if mismatches:
            raise ValueError(
                f"{origin} must hold the tensors of its config; (expected, found) shapes differ for {mismatches}"
            )
        _check_floating(tensors, origin)
        model.load_state_dict(tensors, strict=False, assign=True)
        if config.tied:
            model.head.weight = model.embedding.weight
        return model

    # --- parts ---

    def _check(self, tokens: Tensor, caches: Sequence[KVCache] | None, positions: Tensor | None) -> None:
        """Check the arguments of ``forward``."""
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
        if positions is not None and positions.shape not in ((n,), (1, n), (b, n)):
            raise ValueError(f"positions must be (n,) or (b, n) for tokens over {(b, n)}, got {tuple(positions.shape)}")
        n_cached = 0 if caches is None else self._check_caches(caches)
        if n_cached is None:  # the number of cached positions cannot be read
            return
        if positions is None and config.position == "learned" and n_cached + n > config.n_context:
            raise ValueError(
                f"a sequence must not be longer than the n_context={config.n_context} learned positions, "
                f"got {n_cached + n} tokens; shorten it"
            )
        if caches is not None and isinstance(config.rope_scaling, DynamicNTK):
            length = n_cached + n if positions is None else int(positions.max()) + 1
            if length > config.rope_scaling.n_trained:
                raise ValueError(
                    f"beyond {config.rope_scaling.n_trained} tokens dynamic rotary scaling changes the rotation of all "
                    f"positions, so cached keys would be wrong, got {length}; leave the caches out (use_cache=False)"
                )

    def _check_caches(self, caches: Sequence[KVCache]) -> int | None:
        """Check the caches, and return the number of positions in them if it can be read."""
        is_fixed = [isinstance(cache, FixedCache) for cache in caches]
        if any(is_fixed):
            if not all(is_fixed) or len(caches) != len(self.blocks):
                raise ValueError(
                    f"caches must be one for each of the {len(self.blocks)} layers, all of fixed size or none, got "
                    f"{[type(cache).__name__ for cache in caches]}; start with new_caches()"
                )
            for window, cache in zip(self.config.windows, caches, strict=True):
                if isinstance(cache, RingCache) and (window is None or window > cache.window):
                    raise ValueError(
                        f"a RingCache must hold the window of its layer, {window}, got {cache.window}; "
                        "start with new_caches()"
                    )
            self._check_dynamic_scaling(caches)
            if not all(isinstance(cache, FixedCache) and values_can_be_read(cache.length) for cache in caches):
                return None
        lengths = [len(cache) for cache in caches]
        if len(lengths) != len(self.blocks) or any(length != lengths[0] for length in lengths):
            raise ValueError(
                f"caches must be one for each of the {len(self.blocks)} layers, all equally long, "
                f"got lengths {lengths}; start with new_caches()"
            )
        return lengths[0]

    def _check_dynamic_scaling(self, caches: Sequence[KVCache]) -> None:
        """Check that no cache of fixed size can exceed the length that dynamic rotary scaling was trained with."""
        scaling = self.config.rope_scaling
        if isinstance(scaling, DynamicNTK):
            for cache in caches:
                if isinstance(cache, RingCache) or (isinstance(cache, FixedCache) and cache.size > scaling.n_trained):
                    raise ValueError(
                        f"beyond {scaling.n_trained} tokens dynamic rotary scaling changes the rotation of all "
                        f"positions: a cache must hold at most so many, got a {type(cache).__name__} of {cache.size}"
                    )

    def _mask_rule(
        self, mask: Rule | Tensor | None, tokens: Tensor, cache: KVCache
    ) -> tuple[Rule, Bool[Tensor, "..."] | None]:
        """Return the causal rule combined with the mask, except a table beside caches of fixed size."""
        if mask is None:
            return Causal(), None
        b, n = tokens.shape
        is_fixed = isinstance(cache, FixedCache)
        score_shape = (b, self.config.n_heads, n, cache.size if is_fixed else len(cache) + n)
        if isinstance(mask, Rule):
            if not is_fixed:  # else each cache checks the rule
                check_fits_scores(mask, score_shape)
            return Causal() & mask, None
        if mask.dtype != torch.bool or mask.ndim == 3 or not broadcasts_to(mask.shape, score_shape):
            raise ValueError(
                f"mask must be Boolean over (n, m) or (b, h, n, m) = {score_shape}, where each may be 1, "
                f"got {mask.dtype} over {tuple(mask.shape)}"
            )
        return (Causal(), mask) if is_fixed else (Causal() & as_rule(mask, score_shape[-1]), None)

    def _allowed(self, rule: Rule, table: Tensor | None, cache: KVCache, tokens: Tensor) -> Rule | Tensor | None:
        """Return what the layers with this cache receive as their mask."""
        n = tokens.shape[1]
        if not isinstance(cache, FixedCache):
            return mask_for_layers(self.blocks, rule, n, len(cache) + n, tokens.device)
        if table is not None and isinstance(cache, RingCache):
            raise ValueError("mask must be a rule beside a RingCache, whose places have no fixed position, got a table")
        allowed = cache.resolve_mask(rule, n)
        return allowed if table is None else allowed & table

    def _bias(self, positions: Tensor, cache: KVCache, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of ALiBi, if the model has it, for these queries and the keys that the cache returns."""
        if self.alibi is None:
            return None
        if not isinstance(cache, FixedCache):
            return self.alibi(positions, _with_cached_positions(positions, len(cache)), dtype=dtype)
        # Keys of this call have the given positions, and those before them stand directly before the first.
        n = positions.shape[-1]
        step = cache.key_positions(n) - cache.length
        given = positions[..., step.clamp(0, n - 1)]
        return self.alibi(positions, torch.where(step < 0, positions[..., :1] + step, given), dtype=dtype)


# --- parts of the model ---------------------------------------------------------------------------------------------


def _added_positions(config: GPTConfig) -> nn.Module | None:
    if config.position == "learned":
        return LearnedPositions(config.n_context, config.d_model)
    return SinusoidalPositions(config.d_model) if config.position == "sinusoidal" else None


def _implementation(config: GPTConfig, given: Callable[..., Tensor] | None) -> Callable[..., Tensor]:
    """Return the attention function of the layers, with the scale and the cap of the config."""
    function = (fused_attention if config.softcap is None else attention) if given is None else given
    options = {name: value for name in ("scale", "softcap") if (value := getattr(config, name)) is not None}
    return partial(function, **options) if options else function


def _block(config: GPTConfig, implementation: Callable[..., Tensor] | None) -> TransformerBlock:
    process_qk = config.rotary().process_qk if config.position == "rotary" else None
    if config.qk_norm == "across_heads":
        process_qk = QKNormAcrossHeads(
            config.head_width, config.n_heads, config.key_value_heads, process_qk, eps=config.norm_eps
        )
    elif config.qk_norm:
        process_qk = QKNorm(config.head_width, process_qk, eps=config.norm_eps)
    attention_layer = MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        bias=config.attention_has_bias,
        dropout=config.dropout,
        process_qk=process_qk,
        implementation=_implementation(config, implementation),
    )
    kind = ParallelBlock if config.parallel else TransformerBlock
    return kind(
        _residual(config, attention_layer),
        nn.Identity() if config.feedforward == "none" else _residual(config, _feedforward(config)),
    )


def _residual(config: GPTConfig, sublayer: nn.Module) -> nn.Module:
    if config.norm_order == "sandwich":
        return SandwichNorm(sublayer, _norm(config), _norm(config), dropout=config.dropout)
    wrap = {"pre": PreNorm, "output": OutputNorm}[config.norm_order]
    return wrap(sublayer, _norm(config), dropout=config.dropout)


def _feedforward(config: GPTConfig) -> nn.Module:
    d, ff = config.d_model, config.hidden_width
    if config.n_experts is None or config.experts_per_token is None:
        return _dense_feedforward(config, d, ff)
    several = config.experts_per_token > 1
    expert = partial(_dense_feedforward, config)
    return MixtureOfExperts(d, ff, config.n_experts, config.experts_per_token, renormalise=several, expert=expert)


def _dense_feedforward(config: GPTConfig, d_model: int, d_ff: int) -> nn.Module:
    if config.feedforward == "swiglu":
        return SwiGLU(d_model, d_ff, bias=config.bias)
    if config.feedforward == "geglu_tanh":
        return GEGLU(d_model, d_ff, activation=gelu_tanh, bias=config.bias)
    activation = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}[config.feedforward]
    return FeedForward(d_model, d_ff, activation=activation, bias=config.bias)


def _norm(config: GPTConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.d_model, eps=config.norm_eps)
    return LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


def _takes_positions(block: nn.Module) -> bool:
    """Return whether the attention layer of a block uses positions, which it does in ``process_qk``."""
    layer = getattr(block.attention, "sublayer", block.attention)
    return getattr(layer, "process_qk", None) is not None


def _with_cached_positions(positions: Tensor, n_cached: int) -> Tensor:
    """Prepend the ``n_cached`` consecutive positions before the first one, which are those of the cached keys."""
    cached = positions[..., :1] - torch.arange(n_cached, 0, -1, device=positions.device)
    return torch.cat([cached, positions], dim=-1)


# --- files ----------------------------------------------------------------------------------------------------------

_FORMAT = "lessons_lib.gpt"


def _meta_model(config: GPTConfig, implementation: Callable[..., Tensor] | None = None) -> GPT:
    """Return a model on the meta device: with names and shapes, but without memory or random numbers."""
    with torch.device("meta"):
        return GPT(config, implementation=implementation)


def _state_without_tied_head(model: GPT) -> dict[str, Tensor]:
    """Return the ``state_dict``, without ``head.weight`` if the head is tied to the embedding."""
    return {name: t for name, t in model.state_dict().items() if not (model.config.tied and name == "head.weight")}


def _check_floating(tensors: Mapping[str, Tensor], origin: str) -> None:
    if not all(tensor.is_floating_point() for tensor in tensors.values()):
        raise ValueError(f"{origin} must hold floating-point tensors; quantised weights are not supported")
