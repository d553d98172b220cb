r"""Record activations, attention weights and gradients of a model, and detect entropy collapse and rank collapse.

:func:`observe` records the actual forward and backward pass: the attention weights of each head, the input and output
of each block, the gradient at the output of each block, and the routing of mixtures of experts. Afterwards the model
is unchanged. :func:`attention_entropy` and :func:`token_spread` measure the recording, together with
:func:`lessons_lib.analysis.geometry.effective_rank`. :func:`entropy_collapse` and :func:`rank_collapse` compare these
measures with a threshold. :mod:`lessons_lib.transformer.stabilise` has remedies.

.. [1] Dong et al., *Attention is not all you need*, 2021. arXiv:2103.03404.
.. [2] Zhai et al., *Stabilizing Transformer Training by Preventing Attention Entropy Collapse*, 2023.
   arXiv:2303.06296.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lessons_lib.analysis.geometry import effective_rank
from lessons_lib.analysis.information import entropy
from lessons_lib.attention.attention import declare_weights, get_weights_function
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Rule, declare_rule_support, mask_for_implementation
from lessons_lib.foundations.validation import check_floating, check_mask, promote_half, values_can_be_read
from lessons_lib.transformer.blocks import CrossAttentionBlock, TransformerBlock
from lessons_lib.transformer.feedforward import MixtureOfExperts, Routing

# --- recording ------------------------------------------------------------------------------------------------------


@dataclass
class Observation:
    """The recording of :func:`observe`: dictionaries whose keys are module names, in the order of computation.

    The names are those of ``model.named_modules()``. ``weights`` and ``visible`` belong to the attention layers: the
    attention weights of each head, before dropout, and the mask of visible keys. ``inputs``, ``outputs`` and
    ``gradients`` belong to the blocks: the residual stream before and after each block, and the gradient of the loss
    with respect to the residual stream after it. All these tensors are detached. ``routings`` belong to the mixtures
    of experts. They are the objects that ``forward`` used and are *not* detached, so their balance losses can be added
    to the training loss.
    """

    weights: dict[str, Float[Tensor, "b h n m"]] = field(default_factory=dict)
    visible: dict[str, Bool[Tensor, "b h n m"]] = field(default_factory=dict)
    inputs: dict[str, Float[Tensor, "b n d"]] = field(default_factory=dict)
    outputs: dict[str, Float[Tensor, "b n d"]] = field(default_factory=dict)
    gradients: dict[str, Float[Tensor, "b n d"]] = field(default_factory=dict)
    routings: dict[str, Routing] = field(default_factory=dict)


@contextmanager
def observe(model: nn.Module) -> Iterator[Observation]:
    """Record every forward and backward pass inside the ``with`` block; a later pass overwrites an earlier one.

    ::

        with observe(model) as seen:
            loss(model(tokens)).backward()  # the backward pass only if gradients are wanted
        seen.weights["blocks.0.attention.sublayer"]

        >>> layer = MultiHeadAttention(16, 4)  # d_model, n_heads
        >>> with observe(layer) as seen:
        ...     out = layer(torch.randn(2, 5, 16))
        >>> seen.weights[""].shape  # (batch, heads, queries, keys)
        torch.Size([2, 4, 5, 5])

    The attention weights are computed a second time, from the queries and keys that the layer itself uses. They are
    the weights of the layer's ``implementation``, including whatever that implementation masks or changes. Three kinds
    of modules inside ``model`` are recorded: :class:`~lessons_lib.attention.multihead.MultiHeadAttention`, the blocks
    of :mod:`lessons_lib.transformer.blocks`, and
    :class:`~lessons_lib.transformer.feedforward.MixtureOfExperts`. If only the experts matter, as in a training loop,
    use :func:`observe_routing`, which adds no computation. When the ``with`` block ends, also by an exception, the
    model has no hooks of the recording left.

    Raises:
        ValueError: if ``model`` contains no such module, or an implementation of attention does not declare its
            weights, see :func:`lessons_lib.attention.attention.get_weights_function`.
    """
    seen = Observation()
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    blocks = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, TransformerBlock | CrossAttentionBlock)
    }
    mixtures = any(isinstance(module, MixtureOfExperts) for module in model.modules())
    if not (attentions or blocks or mixtures):
        raise ValueError(
            f"model must contain a MultiHeadAttention, a block or experts, got {type(model).__name__} without any"
        )
    with ExitStack() as undo:
        for name, layer in attentions.items():
            undo.callback(setattr, layer, "implementation", layer.implementation)
            layer.implementation = _recording_implementation(layer.implementation, name, seen)
        for name, block in blocks.items():
            undo.callback(block.register_forward_hook(_block_hook(name, seen, undo)).remove)
        if mixtures:
            seen.routings = undo.enter_context(observe_routing(model))
        yield seen


@contextmanager
def observe_routing(model: nn.Module) -> Iterator[dict[str, Routing]]:
    """Record the routing of every mixture of experts inside ``model``, in a dictionary by module name.

    ::

        with observe_routing(model) as routings:
            loss = next_token_losses(model, batch).mean()
        loss = loss + 0.01 * sum(routing.balance_loss for routing in routings.values())

    The routings are the objects that ``forward`` used and carry gradients. A later pass overwrites an earlier one.

    Raises:
        ValueError: if ``model`` contains no :class:`~lessons_lib.transformer.feedforward.MixtureOfExperts`.
    """
    mixtures = {name: module for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)}
    if not mixtures:
        raise ValueError(f"model must contain a MixtureOfExperts, got {type(model).__name__} without any")
    routings: dict[str, Routing] = {}
    with ExitStack() as undo:
        for name, mixture in mixtures.items():
            undo.callback(mixture.router.register_forward_hook(_routing_hook(name, routings)).remove)
        yield routings


def _routing_hook(name: str, routings: dict[str, Routing]) -> Callable[..., None]:
    def record(module: nn.Module, args: tuple[Any, ...], routing: Routing) -> None:
        routings[name] = routing

    return record


def _recording_implementation(
    implementation: Callable[..., Tensor], name: str, seen: Observation
) -> Callable[..., Tensor]:
    """Wrap an attention implementation so that it records its weights before it runs."""
    compute_weights = get_weights_function(implementation)

    @declare_rule_support
    @declare_weights(compute_weights)
    def recording(
        q: Tensor, k: Tensor, v: Tensor, mask: Rule | Tensor | None, *, bias: Tensor | None, dropout_p: float
    ):
        mask = mask_for_implementation(implementation, mask, q.shape[2], k.shape[2], device=q.device)
        with torch.no_grad():
            seen.weights[name], seen.visible[name] = compute_weights(q, k, mask, bias=bias)
        return implementation(q, k, v, mask, bias=bias, dropout_p=dropout_p)

    return recording


def _block_hook(name: str, seen: Observation, undo: ExitStack) -> Callable[..., None]:
    """Return a forward hook that records a block's input and output, and in the backward pass the output's gradient."""

    def record_gradient(gradient: Tensor) -> None:
        seen.gradients[name] = gradient.detach()

    def record(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen.inputs[name], seen.outputs[name] = args[0].detach(), output.detach()
        if output.requires_grad:
            undo.callback(output.register_hook(record_gradient).remove)

    return record


# --- measuring ------------------------------------------------------------------------------------------------------


def attention_entropy(
    weights: Float[Tensor, "b h n m"], mask: Bool[Tensor, "*#batch #n #m"] | None = None
) -> Float[Tensor, " h"]:
    r"""Return the normalised attention entropy of each head: 0 for one key, 1 for uniform weights on the visible keys.

    .. math:: \frac{1}{|R|} \sum_{i \in R} \frac{H(a_i)}{\log v_i}

    Here :math:`v_i` is the number of keys visible to query :math:`i`. :math:`R` holds the queries of all sequences
    with at least two visible keys: the first row of a causal head has only one and would always count as 0. Entropies
    in nats are not comparable between rows: 0.5 nats are 72 % of the maximum for two keys, and 7 % for 1024 keys.

    ::

        >>> attention_entropy(torch.randn(2, 8, 50, 50).softmax(-1)).shape  # (batch, heads, queries, keys)
        torch.Size([8])

    Raises:
        ValueError: if the mask does not broadcast to the weights, if a row is not a distribution, or if in some head
            no query has two visible keys.
    """
    check_floating(weights=weights)
    visible = torch.ones_like(weights, dtype=torch.bool)
    if mask is not None:
        check_mask(mask, weights)
        visible = visible & mask
    n_visible = visible.sum(-1)
    has_choice = n_visible >= 2
    if values_can_be_read(has_choice) and not has_choice.any((0, 2)).all():
        raise ValueError(
            "in every head some query must have at least two visible keys, otherwise the entropy is undefined"
        )
    rows = torch.where(has_choice[..., None], weights, 1 / weights.shape[-1])
    entropies = promote_half(entropy(rows))
    shares = (entropies / n_visible.clamp_min(2).to(entropies).log()).masked_fill(~has_choice, 0.0)
    return (shares.sum((0, 2)) / has_choice.sum((0, 2))).to(weights.dtype)


def head_entropies(seen: Observation) -> dict[str, Float[Tensor, " _"]]:
    """Return the :func:`attention_entropy` of each head of every recorded attention layer, by layer name.

    Raises:
        ValueError: as :func:`attention_entropy`.
    """
    return {name: attention_entropy(weights, seen.visible[name]) for name, weights in seen.weights.items()}


def token_spread(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Return how much the tokens of a sequence differ: 1 if their mean is zero, 0 if all tokens are equal.

    .. math:: r = \frac{\lVert X - \mathbf 1 \bar x^\top \rVert_F}{\lVert X \rVert_F}

    This is the relative distance of :math:`X` from the nearest matrix whose rows are equal. Without residual
    connections and feed-forward layers, attention converges to such matrices doubly exponentially with depth [1]_.

    ::

        >>> token_spread(torch.randn(2, 50, 16)).shape
        torch.Size([2])

    Raises:
        ValueError: if a sequence is zero throughout or not finite.
    """
    check_floating(x=x)
    exact = promote_half(x)
    length = torch.linalg.matrix_norm(exact)
    if values_can_be_read(length) and (not length.isfinite().all() or (length == 0).any()):
        raise ValueError(f"x must be finite and not zero in every sequence, got norms {length.tolist()}")
    return (torch.linalg.matrix_norm(exact - exact.mean(-2, keepdim=True)) / length).to(x.dtype)


class LayerSummary(NamedTuple):
    """Four numbers that describe the residual stream after one block."""

    activation_norm: float  # norm of a token's vector after the block, averaged over tokens and sequences
    gradient_norm: float  # norm of the gradient with respect to the block's whole output; NaN without a backward pass
    token_spread: float  # averaged over sequences
    effective_rank: float  # averaged over sequences


def summarise_layers(seen: Observation) -> dict[str, LayerSummary]:
    """Return the norms, the token spread and the effective rank after each recorded block.

    Raises:
        ValueError: as :func:`token_spread`.
    """
    return {
        name: LayerSummary(
            activation_norm=stream.norm(dim=-1).mean().item(),
            gradient_norm=seen.gradients[name].norm().item() if name in seen.gradients else math.nan,
            token_spread=token_spread(stream).mean().item(),
            effective_rank=effective_rank(stream).mean().item(),
        )
        for name, stream in seen.outputs.items()
    }


def parameter_gradient_norms(model: nn.Module) -> dict[str, float]:
    """Return the gradient norm of every parameter that has a gradient, by parameter name.

    ::

        >>> layer = nn.Linear(4, 3)
        >>> layer(torch.ones(2, 4)).sum().backward()
        >>> parameter_gradient_norms(layer).keys()
        dict_keys(['weight', 'bias'])

    Raises:
        ValueError: if no parameter has a gradient.
    """
    norms = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    if not norms:
        raise ValueError("model must have gradients, got none; call backward() on a loss first")
    return norms


# --- detecting ------------------------------------------------------------------------------------------------------


def entropy_collapse(
    now: Mapping[str, Float[Tensor, " _"]], before: Mapping[str, Float[Tensor, " _"]], *, share: float = 0.5
) -> list[tuple[str, int]]:
    """Return the heads whose entropy has fallen below ``share`` times its earlier value, as (layer name, head index).

    Compare :func:`head_entropies` during training with :func:`head_entropies` at the start of training. A threshold
    in nats would depend on the sequence length. *Low entropy alone is not a fault*: a previous-token head has low
    entropy as well. It is a fault if many heads collapse early and the loss stops falling at the same time [2]_.

    ::

        >>> entropy_collapse({"layer": torch.tensor([0.9, 0.1])}, {"layer": torch.tensor([1.0, 0.9])})
        [('layer', 1)]

    Raises:
        ValueError: if ``now`` and ``before`` differ in layers or numbers of heads, or ``share`` is not in (0, 1).
    """
    _check_share(share)
    if {name: len(heads) for name, heads in now.items()} != {name: len(heads) for name, heads in before.items()}:
        raise ValueError(
            f"now and before must have the same layers and heads, got layers {list(now)} and {list(before)}"
        )
    return [
        (name, head)
        for name, heads in now.items()
        for head in (heads < share * before[name]).nonzero().flatten().tolist()
    ]


def rank_collapse(seen: Observation, *, share: float = 0.1) -> list[str]:
    """Return the names of the blocks whose output has less than ``share`` of the first block's input token spread.

    Three phenomena are called rank collapse. This one is rank collapse with *depth*: all tokens become equal [1]_. It
    is unrelated to the rank of weight matrices, which may be full while all tokens are equal.

    Raises:
        ValueError: as :func:`token_spread`, or if ``share`` is not in (0, 1) or no block was recorded.
    """
    _check_share(share)
    if not seen.inputs:
        raise ValueError("no block was recorded; run the model inside `with observe(model) as seen:`")
    at_start = token_spread(next(iter(seen.inputs.values()))).mean()
    return [name for name, stream in seen.outputs.items() if token_spread(stream).mean() < share * at_start]


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
