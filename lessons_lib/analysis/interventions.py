"""Ablation and activation patching of attention heads: causal tests of what a head does in a model.

A head adds :math:`z^{(l, h)} W_O^{(l, h)}` to the residual stream, where the head output :math:`z` is the weighted
average of its values. Replacing :math:`z` changes this head only, and every later layer that reads its output. The
replacement must be reported, because the choices answer different questions [1]_: zeros (zero ablation), the mean
(mean ablation), or the output on another sequence (resample ablation, activation patching).

A head is the pair ``(layer, head)``, both counted from 0. The functions work on every :class:`GPT`, also on one that
:func:`~lessons_lib.transformer.huggingface.gpt_from_huggingface` loaded. Of grouped heads each query head has its own
output. Where the output of an attention layer is normalised (OLMo 2, Gemma 2), the heads of a layer share that norm: a
replaced head also changes the factor by which the other heads are scaled.

Sequences of different lengths are padded on the left, as for
:func:`~lessons_lib.generation.sampling.generate`: ``mask=LeftPadding(n_padding)``, with ``positions`` that start at the
first token after the padding.

.. [1] Zhang & Nanda, *Towards Best Practices of Activation Patching in Language Models*, 2023. arXiv:2309.16042.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Rule
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import broadcasts_to
from lessons_lib.transformer.gpt import GPT

Head: TypeAlias = tuple[int, int]
Ablation = Literal["zero", "mean", "resample"]


def head_outputs(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    *,
    mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None,
    positions: Num[Tensor, "*#rows n"] | None = None,
) -> dict[Head, Float[Tensor, "b n d_head"]]:
    """Return each head's output, the weighted average of its values, before the output projection.

    ::

        >>> from lessons_lib.transformer.configuration import GPTConfig
        >>> model = GPT(GPTConfig(11, 7, d_model=12, n_layers=2, n_heads=3))
        >>> z = head_outputs(model, torch.zeros(5, 7, dtype=torch.int64))
        >>> len(z), z[1, 2].shape  # layer 1, head 2
        (6, torch.Size([5, 7, 4]))

    Args:
        model: evaluated in evaluation mode; each module's mode is restored afterwards.
        tokens: the sequences.
        mask, positions: as in ``GPT.forward``. A token that may attend to none, such as padding, has a head output of
            zeros.
    """
    outputs: dict[Head, Tensor] = {}
    with record_heads(model, outputs), eval_mode(model):
        model(tokens, mask=mask, positions=positions)
    return outputs


@contextmanager
def record_heads(model: GPT, outputs: dict[Head, Tensor]) -> Iterator[None]:
    """Write each head's output, after any patching, into ``outputs`` in every forward pass inside the ``with`` block.

    ::

        >>> from lessons_lib.transformer.configuration import GPTConfig
        >>> model, outputs = GPT(GPTConfig(11, 7, d_model=12, n_layers=2, n_heads=3)), {}
        >>> with record_heads(model, outputs):
        ...     logits = model(torch.zeros(5, 7, dtype=torch.int64))
        >>> logits.shape, outputs[1, 2].shape
        (torch.Size([5, 7, 11]), torch.Size([5, 7, 4]))

    Args:
        model: its hooks are removed when the ``with`` block ends, also by an exception.
        outputs: a dictionary that is filled; a later pass overwrites an earlier one.
    """
    with ExitStack() as undo:
        # These hooks run after those of an outer ``patch_heads``, because hooks run in the order of registration.
        for number, layer in enumerate(attention_layers(model)):
            undo.callback(layer.w_o.register_forward_pre_hook(_recording_hook(outputs, number, layer)).remove)
        yield


@contextmanager
def patch_heads(model: GPT, by: Mapping[Head, Float[Tensor, "... d_head"]]) -> Iterator[None]:
    """Replace the outputs of the given heads in every forward pass inside the ``with`` block (activation patching).

    ::

        with patch_heads(model, {(0, 2): torch.zeros(model.config.head_width)}):
            logits = model(tokens)  # zero ablation of head 2 of layer 0

    Args:
        model: its hooks are removed when the ``with`` block ends, also by an exception.
        by: the new output of each head, broadcast over batch and positions.

    Raises:
        ValueError: if a head does not exist, or, in the forward pass, if a new output does not broadcast.
    """
    check_heads_exist(model, by)
    with ExitStack() as undo:
        for number, layer in enumerate(attention_layers(model)):
            own = {head: z for (where, head), z in by.items() if where == number}
            if own:
                undo.callback(layer.w_o.register_forward_pre_hook(_patching_hook(own, number, layer)).remove)
        yield


def ablate_heads(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    heads: Collection[Head],
    how: Ablation,
    *,
    generator: torch.Generator | None = None,
    mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None,
    positions: Num[Tensor, "*#rows n"] | None = None,
) -> Float[Tensor, "b n vocab"]:
    r"""Return the logits of the model with the given heads ablated, all of them together.

    Args:
        model: evaluated in evaluation mode; each module's mode is restored afterwards.
        tokens: the sequences.
        heads: the heads to ablate.
        how: the new head outputs. ``"zero"`` (zero ablation): zeros, which may lie outside the distribution that the
            rest of the model was trained on. ``"mean"`` (mean ablation): the mean over the sequences at each position,
            which removes only what differs between sequences. ``"resample"`` (resample ablation): the output at the
            same position in another of the sequences, so that every replacement is a real head output.
        generator: draws the other sequence of each sequence for ``"resample"``; no sequence replaces itself. PyTorch's
            global generator if omitted.
        mask, positions: as in ``GPT.forward``. With a mask only ``"zero"`` is possible, because the other two read
            other sequences at the same position, where these may have padding.

    Raises:
        ValueError: if a head or the kind of ablation does not exist, ``"resample"`` gets a single sequence, or a mask
            is given with another kind than ``"zero"``.
    """
    check_heads_exist(model, heads)
    if how not in get_args(Ablation):
        raise ValueError(f"how must be one of {get_args(Ablation)}, got {how!r}")
    if how != "zero" and mask is not None:
        raise ValueError(
            f'how must be "zero" with a mask, got {how!r}: another sequence may have padding at the same position; '
            "choose the new outputs yourself and use patch_heads"
        )
    if how == "zero":
        by = dict.fromkeys(heads, torch.zeros(model.config.head_width))
    else:
        z = head_outputs(model, tokens, positions=positions)
        others = None if how == "mean" else _random_derangement(len(tokens), generator, tokens.device)
        by = {head: z[head].mean(dim=0) if others is None else z[head][others] for head in heads}
    with patch_heads(model, by), eval_mode(model):
        return model(tokens, mask=mask, positions=positions)


def attention_layers(model: GPT) -> list[MultiHeadAttention]:
    """Return the attention layer of each block, so that layer ``l`` of a head is the ``l``-th.

    ::

        >>> from lessons_lib.transformer.configuration import GPTConfig
        >>> len(attention_layers(GPT(GPTConfig(11, 7, d_model=12, n_layers=2, n_heads=3))))
        2
    """
    return [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]


def check_heads_exist(model: GPT, heads: Collection[Head]) -> None:
    """Check that the model has the given heads.

    Raises:
        ValueError: if one does not exist or is not a pair of integers.
    """
    layers = attention_layers(model)
    for head in heads:
        known = isinstance(head, tuple) and len(head) == 2 and all(isinstance(index, int) for index in head)
        if not (known and 0 <= head[0] < len(layers) and 0 <= head[1] < layers[head[0]].n_heads):
            raise ValueError(
                f"heads must be (layer, head), both from 0, of {len(layers)} layers with "
                f"{[layer.n_heads for layer in layers]} heads, got {head!r}"
            )


# --- parts ----------------------------------------------------------------------------------------------------------


def _recording_hook(outputs: dict[Head, Tensor], number: int, layer: MultiHeadAttention) -> Callable[..., None]:
    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        for head, z in enumerate(rearrange(args[0], "b n (h d) -> h b n d", h=layer.n_heads)):
            outputs[number, head] = z

    return record


def _patching_hook(own: Mapping[int, Tensor], number: int, layer: MultiHeadAttention) -> Callable[..., tuple[Tensor]]:
    def patch(module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        heads = list(rearrange(args[0], "b n (h d) -> h b n d", h=layer.n_heads))
        for head, z in own.items():
            if not broadcasts_to(z.shape, heads[head].shape):
                raise ValueError(
                    f"the output of head {(number, head)} must broadcast to {tuple(heads[head].shape)}, "
                    f"got {tuple(z.shape)}"
                )
            heads[head] = z.to(heads[head]).expand_as(heads[head])
        return (torch.cat(heads, dim=-1),)

    return patch


def _random_derangement(b: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Return a random cyclic permutation of the sequences, which maps no sequence to itself."""
    if b < 2:
        raise ValueError("tokens must hold at least two sequences to resample from, got one")
    cycle = torch.randperm(b, generator=generator, device=None if generator is None else generator.device)
    others = torch.empty_like(cycle)
    others[cycle] = cycle.roll(1)
    return others.to(device)
