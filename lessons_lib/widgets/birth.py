"""The birth explorer: an induction head comes to be, seen at twenty steps of one training run."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import traitlets
from jaxtyping import Float, Int
from torch import Tensor

from lessons_lib import masks
from lessons_lib.attention import attention_weights
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.multihead import MultiHeadAttention
from lessons_lib.positions import LearnedPositions
from lessons_lib.widgets.drawing import map_of, picture, text
from lessons_lib.widgets.explorer import Card, Explorer
from lessons_lib.widgets.trained import carried, decoded, encoded
from lessons_lib.widgets.traits import Whole

SCRIPT = "birth_model.js"
SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
LONGEST = 48
STEPS = [0, 25, 50, 75, 90, 100, 105, 110, 115, 120, 125, 130, 140, 150, 165, 180, 200, 230, 260, 300]
HIDEABLE = ["queries", "keys", "values"]
CONFIG = GPTConfig(
    len(SYMBOLS), LONGEST, 32, 2, 1, feedforward="none", position="none", bias=False, tied=False
)  # attention and nothing else


class BirthExplorer(Explorer):
    r"""Go through the training of two layers of attention: what both look at, and what the second needs of the first.

    .. math:: x_1 = x_0 + \operatorname{head}_1(x_0), \qquad x_2 = x_1 + \operatorname{head}_2(x_1)

    The model has one head in each layer and no feed-forward; queries and keys, and nothing else, are told their places.
    It learned to go on with a passage of 8 to 24 different symbols, said again and again (``tasks.repetition``).
    ``checkpoint`` returns it as it was after so many steps, its weights rounded to eight bits.

    Args:
        step: after how many steps, one of 0, 25, 50, 75, 90, 100, 105, 110, 115, 120, 125, 130, 140, 150, 165, 180,
            200, 230, 260, 300.
        symbols: 2 to 48 of the letters ``A`` to ``Z`` and the digits ``2`` to ``7``.
        query: the place of the symbol after which the next is expected, counted from 0; the last if there are fewer.
        hide: which of layer 2's ``"queries"``, ``"keys"``, ``"values"`` are made from :math:`x_0` instead of
            :math:`x_1`. What layer 1 tells the output past layer 2 stays.
        forced: whether layer 1 looks at the previous symbol with all its weight, the first symbol at itself.
        guess: the step at which the reader expects half of the predictable symbols to be right; 0 for no guess.

    Raises:
        ValueError: if ``step`` is none of those, the symbols are not as said, ``query`` is not in 0 .. 47, ``hide``
            names something else, or ``guess`` is not in 0 .. 300.
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
    )

    step = traitlets.Enum(STEPS, 0).tag(sync=True)
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
        """Return what layer 1 and layer 2 look at, each row a symbol that asks, in float64."""
        return self._seen().weights

    def next_symbol(self) -> Float[Tensor, " symbols"]:
        """Return how likely the model takes each symbol to be after the one that asks, in float64."""
        return self._seen().logits[min(self.query, len(self.symbols) - 1)].softmax(-1)

    def still(self) -> str:
        """Draw what both layers look at."""
        maps = [
            text(f"layer {layer + 1}", x=166 * layer, y=12) + "".join(map_of(166 * layer, 20, 154, rows))
            for layer, rows in enumerate(self.weights().tolist())
        ]
        p = self.next_symbol()
        asks = self.symbols[: self.query + 1][-1]
        said = (
            f"weights of both layers after {self.step} steps, a row for each symbol; after the {asks} that asks the "
            f"model expects {SYMBOLS[p.argmax()]} with probability {p.max():.2f}"
        )
        return picture(320, 176, said, *maps)

    def _seen(self) -> "Seen":
        with torch.no_grad():
            seen = looked_into(checkpoint(self.step).double(), encode(self.symbols)[None], self.hide, self.forced)
        return Seen(seen.weights[:, 0], seen.logits[0])


class Seen(NamedTuple):
    """What the model makes of symbols: the weights of both layers, and the logits of the symbol after each."""

    weights: Float[Tensor, "2 b n n"]
    logits: Float[Tensor, "b n symbols"]


def looked_into(model: GPT, tokens: Int[Tensor, "b n"], hide: Collection[str] = (), forced: bool = False) -> Seen:
    """Run the model by hand, with some of layer 2 blind for what layer 1 wrote, and with layer 1's pattern as told.

    Without either it is what the model itself computes.
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
    """Return the model as it was after so many steps, in evaluation mode, its weights rounded to eight bits.

    Its table ``places`` tells queries and keys of both layers where their symbols stand. ``birth_record`` says how it
    was trained and what the rounding costs.

    Raises:
        ValueError: if the model of this step is not kept.
    """
    if step not in STEPS:
        raise ValueError(f"step must be one of {', '.join(map(str, STEPS))}, got {step!r}")
    return with_weights(unpacked(carried(SCRIPT)["checkpoints"][STEPS.index(step)]))


def birth_record() -> dict[str, Any]:
    """Return how the models were made, and what they did on held-out passages.

    ``curves`` has for each seed, every few steps, the ``accuracy`` where the symbol can be known, the score of layer 1
    as ``previous_token`` and that of layer 2 as ``induction`` (:mod:`lessons_lib.patterns`), all before rounding;
    ``switched`` the accuracy of the rounded model of each kept step for each way to set the four switches, the first
    three counting 1, 2, 4 and the last 8; ``rounding`` the losses without and with it, and how often the likeliest
    symbol stayed the same.
    """
    return carried(SCRIPT)["record"]


def with_places(model: GPT) -> GPT:
    """Tell the queries and keys of all layers their places, by one table whose vectors are added to what both are of.

    Values are told none. The table is the model's ``places``.
    """
    model.places = places = LearnedPositions(model.config.n_context, model.config.d_model)
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.prepare = _Placed(layer, places)
    return model


def with_weights(state: Mapping[str, Tensor]) -> GPT:
    """Return the model with these weights, in evaluation mode."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):  # what is replaced at once leaves no trace
        model = with_places(GPT(CONFIG))
    model.load_state_dict(state)
    return model.eval()


def encode(symbols: str) -> Int[Tensor, " n"]:
    """Return the symbols as numbers."""
    return torch.tensor([SYMBOLS.index(symbol) for symbol in symbols])


def matrices() -> list[str]:
    """The names of what is kept in eight bits, in the order in which it is kept; all else is a gain of a norm."""
    layers = [f"blocks.{layer}.attention.sublayer.w_{part}.weight" for layer in (0, 1) for part in "qkvo"]
    return ["embedding.weight", "places.weight", *layers, "head.weight"]


def packed(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a model's weights as text: whole numbers from -127 to 127, the step of each row, and the gains.

    Steps and gains are kept in bfloat16, the upper half of a float32.
    """
    rows = torch.cat([state[name] for name in matrices()])
    steps = (rows.abs().amax(-1).clamp(min=1e-12) / 127).bfloat16()
    whole = (rows / steps[:, None].float()).round().clamp(-127, 127).to(torch.int8)
    gains = torch.cat([state[name] for name in _gains()]).bfloat16()
    return {
        "int8": encoded(whole),
        "steps": encoded(steps.view(torch.int16)),
        "gains": encoded(gains.view(torch.int16)),
    }


def unpacked(described: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the weights that were packed, in float32."""
    steps, gains = (decoded(described[part], torch.int16).view(torch.bfloat16).float() for part in ("steps", "gains"))
    rows = decoded(described["int8"], torch.int8).reshape(len(steps), -1) * steps[:, None]
    heights = [LONGEST if name == "places.weight" else CONFIG.d_model for name in matrices()]
    named = dict(zip(matrices(), rows.split(heights), strict=True))
    return named | dict(zip(_gains(), gains.split(CONFIG.d_model), strict=True))


# --- parts ----------------------------------------------------------------------------------------------------------


class _Placed:
    """What a layer's queries and keys go through: each has the place's own share added."""

    def __init__(self, layer: MultiHeadAttention, places: LearnedPositions) -> None:
        self.layer, self.places = layer, places

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        here = self.places(positions)
        return q + here @ self.layer.w_q.weight.T, k + here @ self.layer.w_k.weight.T


def _attend(model: Any, number: int, streams: Sequence[Tensor], pattern: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A layer's weights and what it writes, its queries, keys and values made from streams of their own."""
    branch = model.blocks[number].attention
    layer, (queries, keys, values) = branch.sublayer, map(branch.norm, streams)
    here = model.places.weight[: keys.shape[-2]]
    if pattern is None:
        pattern = attention_weights(layer.w_q(queries + here), layer.w_k(keys + here), masks.causal(len(here)))
    return pattern, layer.w_o(pattern @ layer.w_v(values))


def _gains() -> list[str]:
    return ["blocks.0.attention.norm.weight", "blocks.1.attention.norm.weight", "norm.weight"]
