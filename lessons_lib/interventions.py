"""Taking a head away and putting another one in its place: what a head does for a model, tried instead of read off.

A head writes :math:`z^{(l, h)} W_O^{(l, h)}` into the stream, where :math:`z` is what it has gathered. Replacing
:math:`z` changes nothing but this head, and what listens to it. By what it is replaced is a choice that has to be
told: nothing, its mean, or what it gathers in another text answer different questions [1]_.

Heads are named by layer and number, both from 0.

.. [1] Zhang & Nanda, *Towards Best Practices of Activation Patching in Language Models*, 2023. arXiv:2309.16042.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from lessons_lib.gpt import GPT
from lessons_lib.modes import evaluating
from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.shapes import broadcasts_to

Head: TypeAlias = tuple[int, int]
Ablation = Literal["zero", "mean", "resample"]


def gathered(model: GPT, tokens: Int[Tensor, "b n"]) -> dict[Head, Float[Tensor, "b n d_head"]]:
    """Return what each head gathers in these texts: its weighted average of values, before the output matrix."""
    return _gathered_and_logits(model, tokens)[0]


@contextmanager
def replacing(model: GPT, by: Mapping[Head, Float[Tensor, "... d_head"]]) -> Iterator[None]:
    """Let the named heads write as if they had gathered something else; every pass inside the ``with`` is changed.

    ::

        with replacing(model, {(0, 2): torch.zeros(model.config.head_width)}):
            logits = model(tokens)  # without the third head of the first layer

    Args:
        model: unchanged when the ``with`` ends, by an error too.
        by: for each head what it is to have gathered, broadcast over texts and positions.

    Raises:
        ValueError: if there is no such head, or, in the pass, a replacement does not fit.
    """
    _check_heads(model, by)
    with ExitStack() as undo:
        for number, layer in enumerate(_layers(model)):
            own = {head: z for (where, head), z in by.items() if where == number}
            if own:
                undo.callback(layer.w_o.register_forward_pre_hook(_replacer(own, number, layer)).remove)
        yield


def ablated(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    heads: Collection[Head],
    how: Ablation,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b n vocab"]:
    r"""Return the logits without what the named heads tell.

    Args:
        model: left in the mode, training or not, that it was in.
        tokens: the texts.
        heads: the heads to take away together.
        how: ``"zero"``, they gather nothing, which the rest of the model may never have seen; ``"mean"``, what they
            gather at this position on average over the texts, so that only what differs from text to text is lost;
            ``"resample"``, what they gather at this position in another of the texts, so that what is read is always
            something that occurs.
        generator: says which text stands in for which with ``"resample"``, no text for itself; PyTorch's global one if
            omitted.

    Raises:
        ValueError: if there is no such head or no such ablation, or a single text is to be resampled.
    """
    _check_heads(model, heads)
    if how not in get_args(Ablation):
        raise ValueError(f"how must be one of {get_args(Ablation)}, got {how!r}")
    if how == "zero":
        by = dict.fromkeys(heads, torch.zeros(model.config.head_width))
    else:
        z = gathered(model, tokens)
        others = None if how == "mean" else _somebody_else(len(tokens), generator, tokens.device)
        by = {head: z[head].mean(dim=0) if others is None else z[head][others] for head in heads}
    with replacing(model, by), evaluating(model):
        return model(tokens)


def along_path(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    other: Int[Tensor, "b n"],
    sender: Head,
    receivers: Collection[Head] = (),
) -> Float[Tensor, "b n vocab"]:
    r"""Return the logits where ``receivers`` hear the sender as it is in ``other`` texts, and nobody else does.

    Path patching [2]_ [3]_ in three passes: what all heads gather in ``tokens``, and the sender in ``other``; then
    ``tokens`` once more, the sender as in ``other`` and every other head held at what it gathered, but for the
    receivers, which gather anew; at last ``tokens`` with the receivers as they then were. Feed-forward layers are
    computed anew everywhere, as in [2]_, so that a path may lead through them.

    Without receivers the path ends at the logits: it is what the sender tells the output directly, past all other
    heads.

    Raises:
        ValueError: if there is no such head, a receiver does not come after the sender, or the texts are of unequal
            shape.

    .. [2] Wang et al., *Interpretability in the Wild*, 2022. arXiv:2211.00593.
    .. [3] Goldowsky-Dill et al., *Localizing Model Behavior with Path Patching*, 2023. arXiv:2304.05969.
    """
    _check_heads(model, [sender, *receivers])
    for receiver in receivers:
        if receiver[0] <= sender[0]:
            raise ValueError(f"receivers must be in later layers than the sender {sender}, got {receiver}")
    if tokens.shape != other.shape:
        raise ValueError(f"other must have the shape of tokens, {tuple(tokens.shape)}, got {tuple(other.shape)}")
    held = gathered(model, tokens)
    held[sender] = gathered(model, other)[sender]
    with replacing(model, {head: z for head, z in held.items() if head not in receivers}):
        heard, logits = _gathered_and_logits(model, tokens)
    if not receivers:
        return logits
    with replacing(model, {receiver: heard[receiver] for receiver in receivers}), evaluating(model):
        return model(tokens)


# --- parts ----------------------------------------------------------------------------------------------------------


def _layers(model: GPT) -> list[MultiHeadAttention]:
    return [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]


def _gathered_and_logits(model: GPT, tokens: Tensor) -> tuple[dict[Head, Tensor], Tensor]:
    """What each head has before the output matrix, replacements included, and the logits."""
    seen: dict[Head, Tensor] = {}

    def reader(number: int, n_heads: int) -> Callable[..., None]:
        def read(module: nn.Module, args: tuple[Any, ...]) -> None:
            for head, z in enumerate(rearrange(args[0], "b n (h d) -> h b n d", h=n_heads)):
                seen[number, head] = z

        return read

    with ExitStack() as undo, evaluating(model):
        for number, layer in enumerate(_layers(model)):  # after the replacing hooks: hooks run in order
            undo.callback(layer.w_o.register_forward_pre_hook(reader(number, layer.n_heads)).remove)
        logits = model(tokens)
    return seen, logits


def _replacer(own: Mapping[int, Tensor], number: int, layer: MultiHeadAttention) -> Callable[..., tuple[Tensor]]:
    def replace(module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        heads = list(rearrange(args[0], "b n (h d) -> h b n d", h=layer.n_heads))
        for head, z in own.items():
            if not broadcasts_to(z.shape, heads[head].shape):
                raise ValueError(
                    f"what head {(number, head)} gathers must fit {tuple(heads[head].shape)}, got {tuple(z.shape)}"
                )
            heads[head] = z.to(heads[head]).expand_as(heads[head])
        return (torch.cat(heads, dim=-1),)

    return replace


def _somebody_else(b: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A random order in which no text stands in for itself: each takes the next one's place in a circle."""
    if b < 2:
        raise ValueError("tokens must hold at least two texts to resample from, got one")
    circle = torch.randperm(b, generator=generator, device=None if generator is None else generator.device)
    others = torch.empty_like(circle)
    others[circle] = circle.roll(1)
    return others.to(device)


def _check_heads(model: GPT, heads: Collection[Head]) -> None:
    layers = _layers(model)
    for head in heads:
        known = isinstance(head, tuple) and len(head) == 2 and all(isinstance(place, int) for place in head)
        if not (known and 0 <= head[0] < len(layers) and 0 <= head[1] < layers[head[0]].n_heads):
            raise ValueError(
                f"heads must be (layer, head), both from 0, of {len(layers)} layers with "
                f"{[layer.n_heads for layer in layers]} heads, got {head!r}"
            )
