"""Path patching: the effect of one attention head on the logits through chosen later heads alone.

Activation patching replaces the output of a head for everything that reads it. Path patching replaces it for the
*receivers* alone, and, on request, for one of the three things that a receiver computes from the residual stream: its
queries, its keys or its values. An induction head, for instance, reads a previous-token head through its keys.

.. [1] Wang et al., *Interpretability in the Wild*, 2022. arXiv:2211.00593.
.. [2] Goldowsky-Dill et al., *Localizing Model Behavior with Path Patching*, 2023. arXiv:2304.05969.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Literal, TypeAlias, get_args

from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from lessons_lib.analysis.interventions import (
    Head,
    attention_layers,
    check_heads_exist,
    head_outputs,
    patch_heads,
    record_heads,
)
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.rules import Rule, declare_rule_support, mask_for_implementation
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.transformer.gpt import GPT

AttentionInput = Literal["queries", "keys", "values"]
_INPUTS: tuple[AttentionInput, ...] = get_args(AttentionInput)
_Recorded: TypeAlias = dict[int, dict[AttentionInput, Tensor]]  # queries, keys and values of a layer, by its number


def path_patch(
    model: GPT,
    tokens: Int[Tensor, "b n"],
    other: Int[Tensor, "b n"],
    sender: Head,
    receivers: Collection[Head] = (),
    *,
    through: Collection[AttentionInput] = _INPUTS,
    mask: Rule | Bool[Tensor, "*#batch #n #n"] | None = None,
    positions: Num[Tensor, "*#rows n"] | None = None,
) -> Float[Tensor, "b n vocab"]:
    r"""Return the logits after path patching [1]_ [2]_ of the paths from the ``sender`` head to the ``receivers``.

    Only the receivers read the sender's output on ``other``; all other heads read its output on ``tokens``. Path
    patching takes three steps:

    1. Record all head outputs on ``tokens``, and the sender's output on ``other``.
    2. Run ``tokens`` with the sender patched to its output on ``other`` and every other head, except the receivers,
       frozen at its recorded output. Record the outputs of the receivers.
    3. Run ``tokens`` with the receivers patched to the outputs of step 2.

    Feed-forward layers are recomputed in every step, as in [1]_, so a path may lead through them.

    Without receivers the path ends at the logits, and the result of step 2 is returned: the direct effect of the
    sender on the logits, which passes through no other head.

    ::

        >>> import torch
        >>> from lessons_lib.transformer.configuration import GPTConfig
        >>> model = GPT(GPTConfig(11, 7, d_model=12, n_layers=2, n_heads=3))
        >>> tokens, other = torch.randint(11, (2, 5, 7))  # five sequences each
        >>> path_patch(model, tokens, other, (0, 2), [(1, 0), (1, 1)], through=["keys"]).shape
        torch.Size([5, 7, 11])

    Args:
        model: evaluated in evaluation mode; each module's mode is restored afterwards.
        tokens: the sequences whose logits are returned.
        other: the sequences from which the sender's output is taken, in the shape of ``tokens``.
        sender: the head at the start of the path.
        receivers: the heads at the end of the path.
        through: what the receivers compute from the patched residual stream in step 2. The rest of their queries, keys
            and values is that of step 1. All three by default. Heads that share keys and values are still separate
            receivers.
        mask, positions: as in ``GPT.forward``, for both ``tokens`` and ``other``.

    Raises:
        ValueError: if a head does not exist, a receiver is not in a later layer than the sender, ``other`` differs
            from ``tokens`` in shape, ``through`` is empty or names something else, or it is given without receivers.
    """
    _check(model, tokens, other, sender, receivers, through)
    where = {"mask": mask, "positions": positions}
    layers = {layer for layer, _ in receivers}
    frozen: dict[Head, Tensor] = {}
    clean: _Recorded = {}
    with record_heads(model, frozen), _record_inputs(model, layers, clean), eval_mode(model):
        model(tokens, **where)
    frozen[sender] = head_outputs(model, other, **where)[sender]
    kept: _Recorded = {
        layer: {name: t for name, t in inputs.items() if name not in through} for layer, inputs in clean.items()
    }
    patched: dict[Head, Tensor] = {}
    with (
        patch_heads(model, {head: z for head, z in frozen.items() if head not in receivers}),
        _replace_inputs(model, kept),
        record_heads(model, patched),
        eval_mode(model),
    ):
        logits = model(tokens, **where)
    if not receivers:
        return logits
    with patch_heads(model, {receiver: patched[receiver] for receiver in receivers}), eval_mode(model):
        return model(tokens, **where)


# --- queries, keys and values of a layer ----------------------------------------------------------------------------


@contextmanager
def _record_inputs(model: GPT, layers: Collection[int], recorded: _Recorded) -> Iterator[None]:
    """Write queries, keys and values of the given layers, as the attention function gets them, into ``recorded``."""

    def recorder(layer: int) -> Callable[..., tuple[Tensor, ...]]:
        def record(*tensors: Tensor) -> tuple[Tensor, ...]:
            recorded[layer] = dict(zip(_INPUTS, tensors, strict=True))
            return tensors

        return record

    with _changed_inputs(model, {layer: recorder(layer) for layer in layers}):
        yield


@contextmanager
def _replace_inputs(model: GPT, by: Mapping[int, Mapping[AttentionInput, Tensor]]) -> Iterator[None]:
    """Replace the given queries, keys and values of the given layers."""

    def replacer(new: Mapping[AttentionInput, Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        return lambda *tensors: tuple(new.get(name, t) for name, t in zip(_INPUTS, tensors, strict=True))

    with _changed_inputs(model, {layer: replacer(new) for layer, new in by.items() if new}):
        yield


@contextmanager
def _changed_inputs(model: GPT, changes: Mapping[int, Callable[..., tuple[Tensor, ...]]]) -> Iterator[None]:
    """Apply a function to queries, keys and values of each layer: after positions and norms, with their own heads."""
    with ExitStack() as undo:
        layers = attention_layers(model)
        for number, change in changes.items():
            layer = layers[number]
            undo.callback(setattr, layer, "implementation", layer.implementation)
            layer.implementation = _changed_implementation(layer, change)
        yield


def _changed_implementation(
    layer: MultiHeadAttention, change: Callable[..., tuple[Tensor, ...]]
) -> Callable[..., Tensor]:
    implementation = layer.implementation

    @declare_rule_support
    def changed(
        q: Tensor, k: Tensor, v: Tensor, mask: Rule | Tensor | None, *, bias: Tensor | None, dropout_p: float
    ) -> Tensor:
        q, k, v = change(q, k, v)
        mask = mask_for_implementation(implementation, mask, q.shape[2], k.shape[2], device=q.device)
        return implementation(q, k, v, mask, bias=bias, dropout_p=dropout_p)

    return changed


def _check(
    model: GPT,
    tokens: Tensor,
    other: Tensor,
    sender: Head,
    receivers: Collection[Head],
    through: Collection[AttentionInput],
) -> None:
    check_heads_exist(model, [sender, *receivers])
    for receiver in receivers:
        if receiver[0] <= sender[0]:
            raise ValueError(f"receivers must be in later layers than the sender {sender}, got {receiver}")
    if tokens.shape != other.shape:
        raise ValueError(f"other must have the shape of tokens, {tuple(tokens.shape)}, got {tuple(other.shape)}")
    if isinstance(through, str) or not through or not set(through) <= set(_INPUTS):
        raise ValueError(f"through must be one or more of {_INPUTS}, got {through!r}")
    if not receivers and set(through) != set(_INPUTS):
        raise ValueError(f"through says what the receivers read and needs receivers, got {through!r} without any")
