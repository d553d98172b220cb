"""Ablation, activation patching and path patching of attention heads: causal tests of what a head does in a model.

A head adds :math:`z^{(l, h)} W_O^{(l, h)}` to the residual stream, where the head output :math:`z` is the weighted
average of its values. Replacing :math:`z` changes this head only, and every later layer that reads its output. The
replacement must be reported, because the choices answer different questions [1]_: zeros (zero ablation), the mean
(mean ablation), or the output on another sequence (resample ablation, activation patching).

A head is the pair ``(layer, head)``, both counted from 0.

.. [1] Zhang & Nanda, *Towards Best Practices of Activation Patching in Language Models*, 2023. arXiv:2309.16042.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeAlias, get_args

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.validation import broadcasts_to
from lessons_lib.transformer.gpt import GPT

Head: TypeAlias = tuple[int, int]
Ablation = Literal["zero", "mean", "resample"]


def head_outputs(model: GPT, tokens: Int[Tensor, "b n"]) -> dict[Head, Float[Tensor, "b n d_head"]]:
    """Return each head's output, the weighted average of its values, before the output projection.

    ::

        >>> from lessons_lib.transformer.gpt import GPTConfig
        >>> model = GPT(GPTConfig(11, 7, d_model=12, n_layers=2, n_heads=3))
        >>> z = head_outputs(model, torch.zeros(5, 7, dtype=torch.int64))
        >>> len(z), z[1, 2].shape  # layer 1, head 2
        (6, torch.Size([5, 7, 4]))

    Args:
        model: evaluated in evaluation mode; each module's mode is restored afterwards.
        tokens: the sequences.
    """
    return _head_outputs_and_logits(model, tokens)[0]


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
    _check_heads(model, by)
    with ExitStack() as undo:
        for number, layer in enumerate(_attention_layers(model)):
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

    Raises:
        ValueError: if a head or the kind of ablation does not exist, or ``"resample"`` gets a single sequence.
    """
    _check_heads(model, heads)
    if how not in get_args(Ablation):
        raise ValueError(f"how must be one of {get_args(Ablation)}, got {how!r}")
    if how == "zero":
        by = dict.fromkeys(heads, torch.zeros(model.config.head_width))
    else:
        z = head_outputs(model, tokens)
        others = None if how == "mean" else _random_derangement(len(tokens), generator, tokens.device)
        by = {head: z[head].mean(dim=0) if others is None else z[head][others] for head in heads}
    with patch_heads(model, by), eval_mode(model):
        return model(tokens)


def path_patch(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    other: Int[Tensor, "b n"],
    sender: Head,
    receivers: Collection[Head] = (),
) -> Float[Tensor, "b n vocab"]:
    r"""Return the logits after path patching [2]_ [3]_ of the paths from the ``sender`` head to the ``receivers``.

    Only the receivers read the sender's output on ``other``; all other heads read its output on ``tokens``. Path
    patching takes three steps:

    1. Record all head outputs on ``tokens``, and the sender's output on ``other``.
    2. Run ``tokens`` with the sender patched to its output on ``other`` and every other head, except the receivers,
       frozen at its recorded output. Record the outputs of the receivers.
    3. Run ``tokens`` with the receivers patched to the outputs of step 2.

    Feed-forward layers are recomputed in every step, as in [2]_, so a path may lead through them.

    Without receivers the path ends at the logits, and the result of step 2 is returned: the direct effect of the
    sender on the logits, which passes through no other head.

    Args:
        model: evaluated in evaluation mode; each module's mode is restored afterwards.
        tokens: the sequences whose logits are returned.
        other: the sequences from which the sender's output is taken, in the shape of ``tokens``.
        sender: the head at the start of the path.
        receivers: the heads at the end of the path.

    Raises:
        ValueError: if a head does not exist, a receiver is not in a later layer than the sender, or ``other`` differs
            from ``tokens`` in shape.

    .. [2] Wang et al., *Interpretability in the Wild*, 2022. arXiv:2211.00593.
    .. [3] Goldowsky-Dill et al., *Localizing Model Behavior with Path Patching*, 2023. arXiv:2304.05969.
    """
    _check_heads(model, [sender, *receivers])
    for receiver in receivers:
        if receiver[0] <= sender[0]:
            raise ValueError(f"receivers must be in later layers than the sender {sender}, got {receiver}")
    if tokens.shape != other.shape:
        raise ValueError(f"other must have the shape of tokens, {tuple(tokens.shape)}, got {tuple(other.shape)}")
    frozen = head_outputs(model, tokens)
    frozen[sender] = head_outputs(model, other)[sender]
    with patch_heads(model, {head: z for head, z in frozen.items() if head not in receivers}):
        patched, logits = _head_outputs_and_logits(model, tokens)
    if not receivers:
        return logits
    with patch_heads(model, {receiver: patched[receiver] for receiver in receivers}), eval_mode(model):
        return model(tokens)


# --- parts ----------------------------------------------------------------------------------------------------------


def _attention_layers(model: GPT) -> list[MultiHeadAttention]:
    return [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]


def _head_outputs_and_logits(model: GPT, tokens: Tensor) -> tuple[dict[Head, Tensor], Tensor]:
    """Return the output of each head before the output projection, after any patching, and the logits."""
    outputs: dict[Head, Tensor] = {}

    def recording_hook(number: int, n_heads: int) -> Callable[..., None]:
        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            for head, z in enumerate(rearrange(args[0], "b n (h d) -> h b n d", h=n_heads)):
                outputs[number, head] = z

        return record

    with ExitStack() as undo, eval_mode(model):
        # These hooks run after those of ``patch_heads``, because hooks run in the order of registration.
        for number, layer in enumerate(_attention_layers(model)):
            undo.callback(layer.w_o.register_forward_pre_hook(recording_hook(number, layer.n_heads)).remove)
        logits = model(tokens)
    return outputs, logits


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


def _check_heads(model: GPT, heads: Collection[Head]) -> None:
    layers = _attention_layers(model)
    for head in heads:
        known = isinstance(head, tuple) and len(head) == 2 and all(isinstance(index, int) for index in head)
        if not (known and 0 <= head[0] < len(layers) and 0 <= head[1] < layers[head[0]].n_heads):
            raise ValueError(
                f"heads must be (layer, head), both from 0, of {len(layers)} layers with "
                f"{[layer.n_heads for layer in layers]} heads, got {head!r}"
            )
