r"""Looking inside a model while it runs.

:func:`observe` reads the real forward and backward pass: the weights that each head averaged with, what each block was
given and returned, the gradient that came back, where experts were asked. Afterwards the model is as it was. What is
seen is measured by :func:`attention_entropy` and :func:`token_spread` (with
:func:`lessons_lib.geometry.effective_rank`), judged by :func:`entropy_collapse` and :func:`rank_collapse`, and treated
with what :mod:`lessons_lib.stabilise` holds.

.. [1] Dong et al., *Attention is not all you need*, 2021. arXiv:2103.03404.
.. [2] Zhai et al., *Stabilizing Transformer Training by Preventing Attention Entropy Collapse*, 2023.
   arXiv:2303.06296.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lessons_lib import stabilise
from lessons_lib.attention import declares_pattern, pattern_of
from lessons_lib.blocks import CrossAttentionBlock, TransformerBlock
from lessons_lib.feedforward import MixtureOfExperts, Routing
from lessons_lib.geometry import effective_rank
from lessons_lib.information import entropy
from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.rules import Rule, as_taken_by, takes_rules
from lessons_lib.shapes import at_least_single, check_floating, check_mask, values_can_be_read

# --- looking --------------------------------------------------------------------------------------------------------


@dataclass
class Observation:
    """What :func:`observe` saw, by the names that ``model.named_modules()`` gives, in the order of computation.

    ``weights`` and ``visible`` are of the attention layers: what each head averaged with, before dropout, and which
    keys it was allowed to see. ``inputs``, ``outputs`` and ``gradients`` are of the blocks: the residual stream before
    and after each, and the gradient of what was differentiated with respect to the stream after it. All these are
    detached. ``routings`` are of the mixtures of experts, the very ones that ``forward`` used and therefore *not*
    detached: their balance losses can be added to what is minimised.
    """

    weights: dict[str, Float[Tensor, "b h n m"]] = field(default_factory=dict)
    visible: dict[str, Bool[Tensor, "b h n m"]] = field(default_factory=dict)
    inputs: dict[str, Float[Tensor, "b n d"]] = field(default_factory=dict)
    outputs: dict[str, Float[Tensor, "b n d"]] = field(default_factory=dict)
    gradients: dict[str, Float[Tensor, "b n d"]] = field(default_factory=dict)
    routings: dict[str, Routing] = field(default_factory=dict)


@contextmanager
def observe(model: nn.Module) -> Iterator[Observation]:
    """Watch the passes made inside the ``with``; a later pass replaces what an earlier one left.

    ::

        with observe(model) as seen:
            loss(model(tokens)).backward()  # the backward pass too, if gradients are wanted
        seen.weights["blocks.0.attention.sublayer"]

    Attention is read where it is computed, from the very queries and keys; it costs the weights once more. The weights
    are those of the layer's implementation, with everything that the implementation hides or changes by itself. What is
    watched are the :class:`~lessons_lib.multihead.MultiHeadAttention`, the blocks of :mod:`lessons_lib.blocks` and the
    :class:`~lessons_lib.feedforward.MixtureOfExperts` inside ``model``. Where the experts alone are of interest, as in
    a training loop, :func:`observe_routing` costs nothing. When the ``with`` ends, by an error too, nothing of this
    remains on the model.

    Raises:
        ValueError: if there is nothing of that kind to watch, or an implementation of attention does not declare its
            weights, see :func:`lessons_lib.attention.pattern_of`.
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
            f"model must contain a MultiHeadAttention, a block or experts, got {type(model).__name__} without"
        )
    with ExitStack() as undo:
        for name, layer in attentions.items():
            undo.callback(setattr, layer, "implementation", layer.implementation)
            layer.implementation = _recording(layer.implementation, name, seen)
        for name, block in blocks.items():
            undo.callback(block.register_forward_hook(_recorder(name, seen, undo)).remove)
        if mixtures:
            seen.routings = undo.enter_context(observe_routing(model))
        yield seen


@contextmanager
def observe_routing(model: nn.Module) -> Iterator[dict[str, Routing]]:
    """Watch where the mixtures of experts inside ``model`` send the tokens, by the names of the mixtures.

    ::

        with observe_routing(model) as routings:
            loss = next_token_losses(model, batch).mean()
        loss = loss + 0.01 * sum(routing.balance_loss for routing in routings.values())

    The routings are those that ``forward`` used, gradients included; a later pass replaces what an earlier one left.

    Raises:
        ValueError: if there are none.
    """
    mixtures = {name: module for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)}
    if not mixtures:
        raise ValueError(f"model must contain a MixtureOfExperts, got {type(model).__name__} without")
    routings: dict[str, Routing] = {}
    with ExitStack() as undo:
        for name, mixture in mixtures.items():
            undo.callback(mixture.router.register_forward_hook(_routing_recorder(name, routings)).remove)
        yield routings


def _routing_recorder(name: str, routings: dict[str, Routing]) -> Callable[..., None]:
    def write(module: nn.Module, args: tuple[Any, ...], routing: Routing) -> None:
        routings[name] = routing

    return write


def _recording(implementation: Callable[..., Tensor], name: str, seen: Observation) -> Callable[..., Tensor]:
    """The same implementation, which writes down its weights first."""
    pattern = pattern_of(implementation)

    @takes_rules
    @declares_pattern(pattern)
    def recording(
        q: Tensor, k: Tensor, v: Tensor, mask: Rule | Tensor | None, *, bias: Tensor | None, dropout_p: float
    ):
        mask = as_taken_by(implementation, mask, q.shape[2], k.shape[2], device=q.device)
        with torch.no_grad():
            seen.weights[name], seen.visible[name] = pattern(q, k, mask, bias=bias)
        return implementation(q, k, v, mask, bias=bias, dropout_p=dropout_p)

    return recording


def _recorder(name: str, seen: Observation, undo: ExitStack) -> Callable[..., None]:
    """A hook that writes down what goes into a block and comes out, and later the gradient of the latter."""

    def write_gradient(gradient: Tensor) -> None:
        seen.gradients[name] = gradient.detach()

    def write(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen.inputs[name], seen.outputs[name] = args[0].detach(), output.detach()
        if output.requires_grad:
            undo.callback(output.register_hook(write_gradient).remove)

    return write


# --- measuring ------------------------------------------------------------------------------------------------------


def attention_entropy(
    weights: Float[Tensor, "b h n m"], mask: Bool[Tensor, "*#batch #n #m"] | None = None
) -> Float[Tensor, " h"]:
    r"""Return how spread out each head's attention is: from 0 (one key) to 1 (all visible keys alike).

    .. math:: \frac{1}{|R|} \sum_{i \in R} \frac{H(a_i)}{\log v_i}

    where :math:`v_i` is the number of keys that query :math:`i` may see and :math:`R` holds the queries, of all
    sequences, that see at least two: the first row of a causal head has no choice and would always be 0. Entropy in
    nats could not be compared between rows: 0.5 is 72 % of the most that two keys allow, and 7 % for 1024.

    Raises:
        ValueError: if the mask does not fit, if a row is not a distribution, or if no query sees two keys.
    """
    check_floating(weights=weights)
    visible = torch.ones_like(weights, dtype=torch.bool)
    if mask is not None:
        check_mask(mask, weights)
        visible = visible & mask
    n_visible = visible.sum(-1)
    has_choice = n_visible >= 2
    if values_can_be_read(has_choice) and not has_choice.any((0, 2)).all():
        raise ValueError("in every head some query must see at least two keys, or there is no entropy to measure")
    rows = torch.where(has_choice[..., None], weights, 1 / weights.shape[-1])
    entropies = at_least_single(entropy(rows))
    shares = (entropies / n_visible.clamp_min(2).to(entropies).log()).masked_fill(~has_choice, 0.0)
    return (shares.sum((0, 2)) / has_choice.sum((0, 2))).to(weights.dtype)


def head_entropies(seen: Observation) -> dict[str, Float[Tensor, " _"]]:
    """Return :func:`attention_entropy` of every layer that was seen.

    Raises:
        ValueError: as there.
    """
    return {name: attention_entropy(weights, seen.visible[name]) for name, weights in seen.weights.items()}


def token_spread(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Return how different the tokens of a sequence still are: from 1 (their mean is zero) to 0 (all the same).

    .. math:: r = \frac{\lVert X - \mathbf 1 \bar x^\top \rVert_F}{\lVert X \rVert_F}

    This is the share of :math:`X` that lies outside the matrices of equal rows, to which attention alone contracts
    everything, doubly exponentially with depth [1]_.

    Raises:
        ValueError: if a sequence is zero or not finite.
    """
    check_floating(x=x)
    exact = at_least_single(x)
    length = torch.linalg.matrix_norm(exact)
    if values_can_be_read(length) and (not length.isfinite().all() or (length == 0).any()):
        raise ValueError(f"x must be finite and not zero in every sequence, got norms {length.tolist()}")
    return (torch.linalg.matrix_norm(exact - exact.mean(-2, keepdim=True)) / length).to(x.dtype)


class LayerSummary(NamedTuple):
    """One block in four numbers, averaged over the sequences."""

    activation_norm: float  # length of a token's vector in the stream after the block
    gradient_norm: float  # of the gradient with respect to the whole stream after the block; NaN if none was seen
    token_spread: float
    effective_rank: float


def summarise(seen: Observation) -> dict[str, LayerSummary]:
    """Return the norms, the spread and the rank of the stream after each block that was seen.

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
    """Return the norm of the gradient of every parameter that has one, after a backward pass.

    Raises:
        ValueError: if none has.
    """
    norms = {name: p.grad.norm().item() for name, p in model.named_parameters() if p.grad is not None}
    if not norms:
        raise ValueError("model must have gradients, got none; call backward() on a loss first")
    return norms


# --- judging --------------------------------------------------------------------------------------------------------


def entropy_collapse(
    now: Mapping[str, Float[Tensor, " _"]], before: Mapping[str, Float[Tensor, " _"]], *, share: float = 0.5
) -> list[tuple[str, int]]:
    """Return the heads, as (layer, number), whose entropy has fallen below ``share`` of what it was before.

    Compare :func:`head_entropies` during training with those at its start. A threshold in nats would mean different
    things for different lengths. *A sharp head is not yet a fault*: a head that has found the previous token is as
    sharp. It is one where many heads fall early and the loss stops falling with them [2]_.

    Raises:
        ValueError: if the two are not of the same heads, or ``share`` is not in (0, 1).
    """
    _check_share(share)
    if {name: len(heads) for name, heads in now.items()} != {name: len(heads) for name, heads in before.items()}:
        raise ValueError(f"now and before must be of the same heads, got layers {list(now)} and {list(before)}")
    return [
        (name, head)
        for name, heads in now.items()
        for head in (heads < share * before[name]).nonzero().flatten().tolist()
    ]


def rank_collapse(seen: Observation, *, share: float = 0.1) -> list[str]:
    """Return the blocks after which :func:`token_spread` is below ``share`` of that of the stream before the first.

    Three things are called rank collapse. This is the one with *depth*: tokens become the same [1]_. It says nothing
    of the rank of weight matrices, which may be full while all tokens are equal.

    Raises:
        ValueError: as :func:`token_spread`, or if ``share`` is not in (0, 1) or no block was seen.
    """
    _check_share(share)
    if not seen.inputs:
        raise ValueError("no block was seen; run the model inside `with observe(model) as seen:`")
    at_start = token_spread(next(iter(seen.inputs.values()))).mean()
    return [name for name, stream in seen.outputs.items() if token_spread(stream).mean() < share * at_start]


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")


# --- what stands elsewhere ------------------------------------------------------------------------------------------

_MOVED = {
    "QKNorm": "SharedQKNorm",
    **{name: name for name in ("SigmaReparam", "apply_qk_norm", "apply_sigma_reparam", "remove_sigma_reparam")},
}


def __getattr__(name: str) -> Any:
    """Find the remedies, which are :mod:`lessons_lib.stabilise`'s, with a warning."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is deprecated: import it from lessons_lib.stabilise", DeprecationWarning, 2)
    return getattr(stabilise, _MOVED[name])
