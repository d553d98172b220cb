"""The GPT explorer: two language models in the page, of stories beside the grammar that told them, and of English."""

import json
from collections.abc import Sequence
from math import nan
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

LONGEST = 96  # words of a story
LONGEST_TEXT = 240  # characters of English
ROWS = 8  # of the still picture
SCRIPTS = {"stories": "gpt_model.js", "english": "gpt_english.js"}
CHARACTERS = " %'(),-.:;0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class GPTExplorer(Explorer):
    r"""Type or let write: what a GPT expects next, and how likely the grammar that it learned from makes each word.

    .. math:: p = \operatorname{softmax}(\text{logits} / T) \quad\text{restricted to the kept words}

    Each model is a :class:`lessons_lib.gpt.GPT` of two layers with four heads each, named ``1.1`` to ``2.4``;
    ``language_model`` returns it. One was trained on ``lessons_lib.stories``, word by word, the other on the sentences
    of ``lessons_lib.datasets.english``, character by character: how likely a character is in English nobody knows
    exactly, so beside it stands how often it followed the same character in what the model learned from. Weights are
    rounded to eight bits, which moves the next token by 1e-5 nats of divergence (stories) and 2e-4 (English), in the
    mean. A model is shown the last 63 tokens at most, since it never saw more than 64. Switching a head off replaces
    what it adds by zero. The chance by which the token at a place is drawn depends on ``seed`` and on the place alone.

    Args:
        words: the story, 1 to 96 words of ``stories.VOCABULARY``, with single spaces; the full stop is a word.
        query: the place of the word or character after which the next is expected, counted from 0; the last if there
            are fewer.
        off: the heads that are switched off.
        temperature: :math:`T`; 0 always takes the most probable.
        top_k: how many of the most probable words or characters may be drawn.
        top_p: of these, the fewest whose probabilities reach this together.
        seed: of what is drawn.
        model: which is shown, ``"stories"`` or ``"english"``.
        text: what the second goes on with, 1 to 240 letters, digits, spaces and ``%'(),-.:;``.

    Raises:
        ValueError: if words or text are not as said, ``query`` is not in 0 .. 239, ``off`` names a head that there is
            not, the temperature is not between 0 and 2, ``top_k`` not in 1 .. 72, ``top_p`` not between 0.05 and 1,
            ``seed`` not in ``0 .. 2**31 - 1``, or there is no such model.
    """

    script = "gpt"
    card = Card(
        title="A GPT in this page",
        question="What does it expect next, and what would the grammar have said?",
        sentence=(
            "In the live figure a story can be typed or written by the model itself; its next words stand beside those "
            "of the grammar, its heads can be switched off, and the words that sampling cuts are struck through; a "
            "second model goes on with English, letter by letter."
        ),
    )

    words = traitlets.Unicode("the queen that these dogs follow").tag(sync=True)
    query = Whole(5, min=0, max=LONGEST_TEXT - 1).tag(sync=True)
    off = traitlets.List(traitlets.Enum(HEADS)).tag(sync=True)
    temperature = Real(1.0, min=0.0, max=2.0).tag(sync=True)
    top_k = Whole(len(VOCABULARY), min=1, max=len(VOCABULARY)).tag(sync=True)
    top_p = Real(1.0, min=0.05, max=1.0).tag(sync=True)
    seed = Whole(0, min=0, max=2**31 - 1).tag(sync=True)
    model = traitlets.Enum(list(SCRIPTS), "stories").tag(sync=True)
    text = traitlets.Unicode("The go").tag(sync=True)

    @traitlets.validate("words")
    def _words_are_known(self, proposal: Any) -> str:
        known_words("words", proposal["value"], at_most=LONGEST)
        return proposal["value"]

    @traitlets.validate("text")
    def _characters_are_known(self, proposal: Any) -> str:
        text = proposal["value"]
        unknown = [character for character in text if character not in CHARACTERS]
        if unknown:
            raise traitlets.TraitError(f"text must be letters, digits, spaces and %'(),-.:;, got {unknown[0]!r}")
        if not 1 <= len(text) <= LONGEST_TEXT:
            raise traitlets.TraitError(f"text must be 1 to {LONGEST_TEXT} characters, got {len(text)}")
        return text

    def next_word(self) -> Float[Tensor, " vocabulary"]:
        """Return how likely each word, or character, is to be drawn after the one that asks, in float64."""
        model = language_model(self.off, self.model).double()
        with torch.no_grad():
            logits = model(self._seen()[None, 1 - model.config.n_context :])[0, -1]
        return chances(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def grammar(self) -> Float[Tensor, " vocabulary"]:
        """Return how likely the grammar makes each word there; ``NaN`` once the text has left it, and for English."""
        if self.model == "english":
            return torch.full((len(CHARACTERS),), nan, dtype=torch.float64)
        return next_word(self._seen())[-1]

    def still(self) -> str:
        """Draw what is likeliest next, and below each word what the grammar gives it."""
        if self.model == "english":
            return self._still_of_english()
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

    def _still_of_english(self) -> str:
        p = self.next_word()
        order = p.argsort(descending=True, stable=True)[:ROWS].tolist()
        names = ["space" if CHARACTERS[i] == " " else CHARACTERS[i] for i in order]
        rows = [
            text(name, x=84, y=24 * i + 16, anchor="end")
            + element("rect", class_="x-solid", x=92, y=24 * i + 4, width=150 * p[token].sqrt().item(), height=16)
            + text(f"{p[token]:.3f}", x=246, y=24 * i + 16)
            for i, (name, token) in enumerate(zip(names, order, strict=True))
        ]
        likely = ", ".join(f"{name} {p[token]:.2f}" for name, token in zip(names[:4], order, strict=False))
        said = f"after {self.text[: self.query + 1]} the model expects: {likely}"
        return picture(324, 24 * ROWS + 4, said, *rows)

    def _seen(self) -> Tensor:
        """The words, or characters, up to the one that asks."""
        if self.model == "english":
            return torch.tensor([CHARACTERS.index(character) for character in self.text[: self.query + 1]])
        return encode(self.words)[: self.query + 1]


def language_model(off: Sequence[str] = (), name: str = "stories") -> GPT:
    """Return a model of the explorer, in evaluation mode; what heads in ``off`` would add is zero.

    Its weights are whole numbers from -127 to 127 times the step of their row; biases and norms are as trained.
    ``model_record`` says how it was trained and what the rounding costs.

    Raises:
        ValueError: if ``name`` is neither ``"stories"`` nor ``"english"``.
    """
    described = _carried(name)
    parameters = {name: unpacked(packed) for name, packed in described["parameters"].items()}
    config = GPTConfig.from_json(json.dumps(described["config"]))
    return loaded(config, parameters, off)


def model_record(name: str = "stories") -> dict[str, Any]:
    """Return how a model of the explorer was made: command, settings, losses in nats, what rounding its weights costs.

    ``loss`` is that of the model as trained, ``loss_rounded`` that of the one in the page, ``floor`` (stories) the loss
    of the grammar itself, all on the same held-out rows; ``kl_of_rounding`` is the mean divergence of the next token as
    the rounded model expects it from the next token as the trained one does. ``source`` (English) is whose the text is.

    Raises:
        ValueError: if ``name`` is neither ``"stories"`` nor ``"english"``.
    """
    return _carried(name)["record"]


def unpacked(packed: dict[str, Any]) -> Float[Tensor, "*shape"]:
    """Return a parameter as ``tools/train_gpt.py`` rounded it."""
    if "float32" in packed:
        return decoded(packed["float32"], torch.float32)
    whole = decoded(packed["int8"], torch.int8).reshape(packed["shape"])
    return whole * decoded(packed["steps"], torch.float32)[:, None]


def _carried(name: str) -> dict[str, Any]:
    if name not in SCRIPTS:
        raise ValueError(f"name must be one of {', '.join(SCRIPTS)}, got {name!r}")
    return carried(SCRIPTS[name])
