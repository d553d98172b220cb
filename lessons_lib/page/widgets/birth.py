"""The birth explorer: the emergence of an induction head at twenty steps of a training run."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import traitlets
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention_weights
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.attention.positions import LearnedPositions
from lessons_lib.page.widgets.drawing import picture, text, weight_map
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import from_base64, placeholder_weights, script_data, to_base64
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

SCRIPT = "birth_model.js"
SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
LONGEST = 48
STEPS = [0, 25, 50, 75, 90, 100, 105, 110, 115, 120, 125, 130, 140, 150, 165, 180, 200, 230, 260, 300]
HIDEABLE = ["queries", "keys", "values"]
CONFIG = GPTConfig(
    len(SYMBOLS), LONGEST, 32, 2, 1, feedforward="none", position="none", bias=False, tied=False
)  # attention and nothing else


class BirthExplorer(Explorer):
    r"""Go through the training of two attention layers: their attention weights, and what layer 2 needs of layer 1.

    .. math:: x_1 = x_0 + \operatorname{head}_1(x_0), \qquad x_2 = x_1 + \operatorname{head}_2(x_1)

    The model has one head in each layer and no feed-forward layers; position embeddings are added to the inputs of
    queries and keys only. It was trained to continue a repeated passage of 8 to 24 different symbols
    (``tasks.repetition``). ``checkpoint`` returns the model after a number of steps, its weights rounded to eight bits.

    Args:
        step: number of training steps, one of 0, 25, 50, 75, 90, 100, 105, 110, 115, 120, 125, 130, 140, 150, 165, 180,
            200, 230, 260, 300.
        symbols: 2 to 48 of the letters ``A`` to ``Z`` and the digits ``2`` to ``7``.
        query: position of the symbol after which the next is predicted, counted from 0; the last if there are fewer.
        hide: which of layer 2's ``"queries"``, ``"keys"``, ``"values"`` are computed from :math:`x_0` instead of
            :math:`x_1`. The direct contribution of layer 1 to the output is kept.
        forced: whether layer 1 has weight 1 on the previous symbol, and the first symbol on itself.
        guess: the step at which the reader expects an accuracy of one half on predictable symbols; 0 for no guess.

    Raises:
        ValueError: if ``step`` is not one of these, the symbols break this rule, ``query`` is not in 0 .. 47, ``hide``
            has another entry, or ``guess`` is not in 0 .. 300.
    """

    script = "birth"
    card = Card(
        title="Birth of a head",
        question="At which step of its training does the model notice repetition?",
        sentence=(
            "In the live figure twenty steps of a training run can be gone through; both attention maps and the next "
            "symbol follow, for symbols that one types, and layer 1 can be hidden from the queries, keys and values of "
            "layer 2, or made to look at the previous symbol exactly."
        ),
        tries={
            "Before the first step": {"step": 0},
            "Step 300, layer 1 hidden from the keys": {"step": 300, "hide": ["keys"]},
            "Step 125, layer 1 on the previous symbol": {"step": 125, "forced": True},
        },
    )

    step = traitlets.Enum(STEPS, STEPS[-1]).tag(sync=True)
    symbols = traitlets.Unicode("BIRTHDAYBIRTHDAYBIR").tag(sync=True)
    query = Whole(18, min=0, max=LONGEST - 1).tag(sync=True)
    hide = traitlets.List(traitlets.Enum(HIDEABLE)).tag(sync=True)
    forced = traitlets.Bool(False).tag(sync=True)
    guess = Whole(0, min=0, max=STEPS[-1]).tag(sync=True)

    @traitlets.validate("symbols")
    def _symbols_are_known(self, proposal: Any) -> str:
        symbols = proposal["value"]
        unknown = [symbol for symbol in symbols if symbol not in SYMBOLS]
        if unknown:
            raise traitlets.TraitError(f"symbols must be letters from A to Z or digits from 2 to 7, got {unknown[0]!r}")
        if not 2 <= len(symbols) <= LONGEST:
            raise traitlets.TraitError(f"symbols must be 2 to {LONGEST}, got {len(symbols)}")
        return symbols

    def weights(self) -> Float[Tensor, "2 n n"]:
        """Return the attention weights of layer 1 and layer 2, one row per query, in float64."""
        return self._seen().weights

    def next_symbol(self) -> Float[Tensor, " symbols"]:
        """Return the probability of each symbol after the query, in float64."""
        return self._seen().logits[min(self.query, len(self.symbols) - 1)].softmax(-1)

    def still(self) -> str:
        """Draw the attention weights of both layers."""
        maps = [
            text(say("layer {layer}", layer=layer + 1), x=166 * layer, y=12)
            + "".join(weight_map(166 * layer, 20, 154, rows))
            for layer, rows in enumerate(self.weights().tolist())
        ]
        p = self.next_symbol()
        query = self.symbols[: self.query + 1][-1]
        alt = say(
            "weights of both layers after {steps} steps, a row for each symbol; after the query {query} the "
            "model expects {symbol} with probability {p}",
            steps=self.step,
            query=query,
            symbol=SYMBOLS[p.argmax()],
            p=f"{p.max():.2f}",
        )
        return picture(320, 176, alt, *maps)

    def _seen(self) -> "Seen":
        with torch.no_grad():
            seen = forward_with_switches(
                checkpoint(self.step).double(), encode_symbols(self.symbols)[None], self.hide, self.forced
            )
        return Seen(seen.weights[:, 0], seen.logits[0])


class Seen(NamedTuple):
    """Attention weights of both layers, and the logits of the next symbol at each position."""

    weights: Float[Tensor, "2 b n n"]
    logits: Float[Tensor, "b n symbols"]


def forward_with_switches(
    model: GPT, tokens: Int[Tensor, "b n"], hide: Collection[str] = (), forced: bool = False
) -> Seen:
    """Run the model with parts of layer 2 that do not read layer 1's output, or with a fixed pattern in layer 1.

    With the defaults this is the forward pass of the model.
    """
    n = tokens.shape[-1]
    before = model.embedding(tokens)
    previous = torch.eye(n, dtype=before.dtype).roll(-1, dims=-1).tril()
    previous[0, 0] = 1.0
    by_hand = previous.expand(len(tokens), n, n) if forced else None
    first, written = _attend(model, 0, [before] * 3, by_hand)
    after = before + written
    second, more = _attend(model, 1, [before if part in hide else after for part in HIDEABLE])
    return Seen(torch.stack([first, second]), model.head(model.norm(after + more)))


def checkpoint(step: int) -> GPT:
    """Return the model after ``step`` training steps, in evaluation mode, its weights rounded to eight bits.

    Its position embeddings ``places`` are added to the inputs of queries and keys in both layers. ``birth_record``
    returns how it was trained and the cost of rounding.

    Raises:
        ValueError: if there is no checkpoint of this step.
    """
    if step not in STEPS:
        raise ValueError(f"step must be one of {', '.join(map(str, STEPS))}, got {step!r}")
    return load_checkpoint(unpack_checkpoint(script_data(SCRIPT)["checkpoints"][STEPS.index(step)]))


def birth_record() -> dict[str, Any]:
    """Return how the models were trained, and their results on held-out passages.

    ``curves`` has for each seed, every few steps, the ``accuracy`` on predictable symbols, the ``previous_token`` score
    of layer 1 and the ``induction`` score of layer 2 (:mod:`lessons_lib.analysis.patterns`), all before rounding.
    ``switched`` has the accuracy of the rounded model at each checkpoint for each setting of the four switches, the
    first three counting 1, 2, 4 and the last 8. ``rounding`` has the losses without and with rounding, and how often
    the most probable symbol stayed the same.
    """
    return script_data(SCRIPT)["record"]


def add_position_embeddings(model: GPT) -> GPT:
    """Add position embeddings, one table for all layers, to the inputs of queries and keys, but not of values.

    The table is the attribute ``places`` of the model, which is changed in place.
    """
    model.places = places = LearnedPositions(model.config.n_context, model.config.d_model)
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.process_qk = _Placed(layer, places)
    return model


def load_checkpoint(state: Mapping[str, Tensor]) -> GPT:
    """Return the model with these weights, in evaluation mode."""
    with placeholder_weights():
        model = add_position_embeddings(GPT(CONFIG))
    model.load_state_dict(state)
    return model.eval()


def encode_symbols(symbols: str) -> Int[Tensor, " n"]:
    """Return the token ids of the symbols."""
    return torch.tensor([SYMBOLS.index(symbol) for symbol in symbols])


def matrices() -> list[str]:
    """Return the names of the matrices that are stored in eight bits, in order; all other parameters are norm gains."""
    layers = [f"blocks.{layer}.attention.sublayer.w_{part}.weight" for layer in (0, 1) for part in "qkvo"]
    return ["embedding.weight", "places.weight", *layers, "head.weight"]


def pack_checkpoint(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the parameters of a model in base64: integers from -127 to 127, the step of each row, and the gains.

    Steps and gains are stored in bfloat16, the upper half of a float32.
    """
    rows = torch.cat([state[name] for name in matrices()])
    steps = (rows.abs().amax(-1).clamp(min=1e-12) / 127).bfloat16()
    whole = (rows / steps[:, None].float()).round().clamp(-127, 127).to(torch.int8)
    gains = torch.cat([state[name] for name in _gains()]).bfloat16()
    return {
        "int8": to_base64(whole),
        "steps": to_base64(steps.view(torch.int16)),
        "gains": to_base64(gains.view(torch.int16)),
    }


def unpack_checkpoint(described: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the parameters that :func:`pack_checkpoint` stored, in float32."""
    steps, gains = (
        from_base64(described[part], torch.int16).view(torch.bfloat16).float() for part in ("steps", "gains")
    )
    rows = from_base64(described["int8"], torch.int8).reshape(len(steps), -1) * steps[:, None]
    heights = [LONGEST if name == "places.weight" else CONFIG.d_model for name in matrices()]
    named = dict(zip(matrices(), rows.split(heights), strict=True))
    return named | dict(zip(_gains(), gains.split(CONFIG.d_model), strict=True))


# --- parts ----------------------------------------------------------------------------------------------------------


class _Placed:
    """The ``process_qk`` of a layer: adds the projected position embeddings to queries and keys."""

    def __init__(self, layer: MultiHeadAttention, places: LearnedPositions) -> None:
        self.layer, self.places = layer, places

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        here = self.places(positions)
        return q + here @ self.layer.w_q.weight.T, k + here @ self.layer.w_k.weight.T


def _attend(model: Any, number: int, streams: Sequence[Tensor], pattern: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the attention weights and the output of a layer whose queries, keys and values read separate streams."""
    branch = model.blocks[number].attention
    layer, (queries, keys, values) = branch.sublayer, map(branch.norm, streams)
    here = model.places.weight[: keys.shape[-2]]
    if pattern is None:
        pattern = attention_weights(layer.w_q(queries + here), layer.w_k(keys + here), masks.causal(len(here)))
    return pattern, layer.w_o(pattern @ layer.w_v(values))


def _gains() -> list[str]:
    return ["blocks.0.attention.norm.weight", "blocks.1.attention.norm.weight", "norm.weight"]
