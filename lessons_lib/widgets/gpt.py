"""The GPT explorer: a language model in the page, beside the grammar that it learned from."""

import json
from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.generation import chances
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.stories import VOCABULARY, encode, next_word
from lessons_lib.widgets.drawing import element, picture, text
from lessons_lib.widgets.explorer import Card, Explorer
from lessons_lib.widgets.trained import HEADS, carried, decoded, known_words, loaded
from lessons_lib.widgets.traits import Real, Whole

LONGEST = 96
ROWS = 8  # of the still picture
SCRIPTS = {"stories": "gpt_model.js", "english": "gpt_english.js"}
CHARACTERS = " '(),-.:;_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class GPTExplorer(Explorer):
    r"""Type or let write: what a GPT expects next, and how likely the grammar that it learned from makes each word.

    .. math:: p = \operatorname{softmax}(\text{logits} / T) \quad\text{restricted to the kept words}

    The model is a :class:`lessons_lib.gpt.GPT` of two layers with four heads each, named ``1.1`` to ``2.4``, trained on
    ``lessons_lib.stories``; its weights are rounded to eight bits. ``language_model`` returns it. It is shown the last
    63 words at most, since it never saw more than 64. Switching a head off replaces what it adds by zero. The chance by
    which the word at a place is drawn depends on ``seed`` and on the place alone.

    Args:
        words: 1 to 96 words of ``stories.VOCABULARY``, with single spaces; the full stop is a word.
        query: the place of the word after which the next is expected, counted from 0; the last if there are fewer.
        off: the heads that are switched off.
        temperature: :math:`T`; 0 always takes the most probable word.
        top_k: how many of the most probable words may be drawn.
        top_p: of these, the fewest whose probabilities reach this together.
        seed: of what is drawn.

    Raises:
        ValueError: if the words are not as said, ``query`` is not in 0 .. 95, ``off`` names a head that there is not,
            the temperature is not between 0 and 2, ``top_k`` not in 1 .. 72, ``top_p`` not between 0.05 and 1, or
            ``seed`` not in ``0 .. 2**31 - 1``.
    """

    script = "gpt"
    card = Card(
        title="A GPT in this page",
        question="What does it expect next, and what would the grammar have said?",
        sentence=(
            "In the live figure a story can be typed or written by the model itself; its next words stand beside those "
            "of the grammar, its heads can be switched off, and the words that sampling cuts are struck through."
        ),
    )

    words = traitlets.Unicode("the queen that these dogs follow").tag(sync=True)
    query = Whole(5, min=0, max=LONGEST - 1).tag(sync=True)
    off = traitlets.List(traitlets.Enum(HEADS)).tag(sync=True)
    temperature = Real(1.0, min=0.0, max=2.0).tag(sync=True)
    top_k = Whole(len(VOCABULARY), min=1, max=len(VOCABULARY)).tag(sync=True)
    top_p = Real(1.0, min=0.05, max=1.0).tag(sync=True)
    seed = Whole(0, min=0, max=2**31 - 1).tag(sync=True)

    @traitlets.validate("words")
    def _words_are_known(self, proposal: Any) -> str:
        known_words("words", proposal["value"], at_most=LONGEST)
        return proposal["value"]

    def next_word(self) -> Float[Tensor, " vocabulary"]:
        """Return how likely each word is to be drawn after the word that asks, in float64."""
        model = language_model(self.off).double()
        with torch.no_grad():
            logits = model(self._seen()[None, 1 - model.config.n_context :])[0, -1]
        return chances(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def grammar(self) -> Float[Tensor, " vocabulary"]:
        """Return how likely the grammar makes each word there; ``NaN`` once the text has left it."""
        return next_word(self._seen())[-1]

    def still(self) -> str:
        """Draw the likeliest next words, and below each what the grammar gives it."""
        p, exact = self.next_word(), self.grammar().nan_to_num()
        order = p.argsort(descending=True, stable=True)[:ROWS].tolist()
        rows = [
            text(VOCABULARY[word], x=84, y=24 * i + 16, anchor="end")
            + element("rect", class_="x-solid", x=92, y=24 * i + 4, width=150 * p[word].sqrt().item(), height=8)
            + element("rect", class_="x-dead", x=92, y=24 * i + 13, width=150 * exact[word].sqrt().item(), height=6)
            + text(f"{p[word]:.3f}, {exact[word]:.3f}", x=246, y=24 * i + 16)
            for i, word in enumerate(order)
        ]
        asks = self.words.split()[len(self._seen()) - 1]
        likely = ", ".join(f"{VOCABULARY[word]} {p[word]:.2f} ({exact[word]:.2f})" for word in order[:4])
        said = f"after {asks} the model expects, and in brackets the grammar: {likely}"
        return picture(324, 24 * ROWS + 4, said, *rows)

    def _seen(self) -> Tensor:
        """The words up to the one that asks."""
        return encode(self.words)[: self.query + 1]


def language_model(off: list[str] | tuple[str, ...] = ()) -> GPT:
    """Return the explorer's model, in evaluation mode; what heads in ``off`` would add is zero.

    Its weights are whole numbers from -127 to 127 times the step of their row; biases and norms are as trained.
    ``model_record`` says how it was trained and what the rounding costs.
    """
    described = carried(SCRIPTS["stories"])
    parameters = {name: unpacked(packed) for name, packed in described["parameters"].items()}
    config = GPTConfig.from_json(json.dumps(described["config"]))
    return loaded(config, parameters, off)


def model_record() -> dict[str, Any]:
    """Return how the explorer's model was made: command, settings, losses in nats, and what rounding its weights costs.

    ``loss`` is that of the model as trained, ``loss_rounded`` that of the one in the page, ``floor`` the loss of the
    grammar itself, all on the same held-out rows; ``kl_of_rounding`` is the mean divergence of the next word as the
    rounded model expects it from the next word as the trained one does.
    """
    return carried(SCRIPTS["stories"])["record"]


def unpacked(packed: dict[str, Any]) -> Float[Tensor, "*shape"]:
    """Return a parameter as ``tools/train_gpt.py`` rounded it."""
    if "float32" in packed:
        return decoded(packed["float32"], torch.float32)
    whole = decoded(packed["int8"], torch.int8).reshape(packed["shape"])
    return whole * decoded(packed["steps"], torch.float32)[:, None]
