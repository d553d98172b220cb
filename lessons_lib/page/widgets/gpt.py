"""The GPT explorer: a language model of stories beside their grammar, and a language model of English."""

import json
from collections.abc import Sequence
from math import nan
from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.generation.next_token import next_token_probs
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import HEADS, from_base64, load_model, parse_words, script_data
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say
from lessons_lib.training.stories import VOCABULARY, encode, next_word_probs
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

LONGEST = 96  # words of a story
LONGEST_TEXT = 240  # characters of English
ROWS = 8  # of the still picture
SCRIPTS = {"stories": "gpt_model.js", "english": "gpt_english.js"}
CHARACTERS = " %'(),-.:;0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class GPTExplorer(Explorer):
    r"""Type a text or generate one; see the next-token probabilities of a GPT beside those of the true grammar.

    .. math:: p = \operatorname{softmax}(\text{logits} / T) \quad\text{restricted to the kept words}

    Each model is a :class:`lessons_lib.transformer.gpt.GPT` of two layers with four heads each, named ``1.1`` to
    ``2.4``; ``language_model`` returns it. One was trained on ``lessons_lib.training.stories``, word by word, the
    other on the sentences of ``lessons_lib.training.datasets.english``, character by character. The true probabilities
    of English characters are unknown; the explorer shows the frequencies after the same character in the training data
    instead. Weights are rounded to eight bits; the mean KL divergence of the next-token distribution caused by rounding
    is 1e-5 nats (stories) and 2e-4 nats (English). The input is truncated to the last 63 tokens, since the context
    length is 64. Ablating a head sets its output to zero. The random number that draws the token at a position depends
    only on ``seed`` and on the position.

    Args:
        words: the story, 1 to 96 words of ``stories.VOCABULARY``, with single spaces; the full stop is a word.
        query: position of the word or character after which the next token is predicted, counted from 0; the last if
            there are fewer.
        off: the heads that are ablated.
        temperature: :math:`T`; 0 always selects the most probable token.
        top_k: number of the most probable tokens that may be drawn.
        top_p: of these tokens, the fewest whose probabilities reach this sum may be drawn.
        seed: seed of the sampling.
        model: the model that is shown, ``"stories"`` or ``"english"``.
        text: the prompt of the English model, 1 to 240 letters, digits, spaces and ``%'(),-.:;``.

    Raises:
        ValueError: if words or text break these rules, ``query`` is not in 0 .. 239, ``off`` names an unknown head,
            the temperature is not between 0 and 2, ``top_k`` not in 1 .. 72, ``top_p`` not between 0.05 and 1,
            ``seed`` not in ``0 .. 2**31 - 1``, or ``model`` is unknown.
    """

    script = "gpt"
    card = Card(
        title="A GPT in this page",
        question="What does the model predict next, and what does the grammar predict?",
        sentence=(
            "In the live figure a story can be typed or generated; the model's next-word probabilities stand beside "
            "the grammar's, heads can be ablated, and the words that a cut removes are struck through; a second model "
            "predicts English, character by character."
        ),
        tries={
            "A distant plural subject": {"words": "the queens that this dog follows", "query": 5, "model": "stories"},
            "Top-p 0.9": {"top_p": 0.9, "model": "stories"},
            "Temperature 0.5": {"temperature": 0.5, "model": "stories"},
            "English, character by character": {"model": "english", "text": "The govern", "query": 9},
        },
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
        parse_words("words", proposal["value"], at_most=LONGEST)
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
        """Return the sampling probability of each word, or character, after the query, in float64."""
        model = language_model(self.off, self.model).double()
        with torch.no_grad():
            logits = model(self._seen()[None, 1 - model.config.n_context :])[0, -1]
        return next_token_probs(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def grammar(self) -> Float[Tensor, " vocabulary"]:
        """Return the grammar's probability of each next word; ``NaN`` for an ungrammatical text, and for English."""
        if self.model == "english":
            return torch.full((len(CHARACTERS),), nan, dtype=torch.float64)
        return next_word_probs(self._seen())[-1]

    def still(self) -> str:
        """Draw the most probable next words, each with its probability in the grammar below."""
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
        query = self.words.split()[len(self._seen()) - 1]
        likely = ", ".join(f"{VOCABULARY[word]} {p[word]:.2f} ({exact[word]:.2f})" for word in order[:4])
        alt = say("after {query} the model expects, and in brackets the grammar: {likely}", query=query, likely=likely)
        return picture(324, 24 * ROWS + 4, alt, *rows)

    def _still_of_english(self) -> str:
        p = self.next_word()
        order = p.argsort(descending=True, stable=True)[:ROWS].tolist()
        names = [say("space") if CHARACTERS[i] == " " else CHARACTERS[i] for i in order]
        rows = [
            text(name, x=84, y=24 * i + 16, anchor="end")
            + element("rect", class_="x-solid", x=92, y=24 * i + 4, width=150 * p[token].sqrt().item(), height=16)
            + text(f"{p[token]:.3f}", x=246, y=24 * i + 16)
            for i, (name, token) in enumerate(zip(names, order, strict=True))
        ]
        likely = ", ".join(f"{name} {p[token]:.2f}" for name, token in zip(names[:4], order, strict=False))
        alt = say("after {query} the model expects: {likely}", query=self.text[: self.query + 1], likely=likely)
        return picture(324, 24 * ROWS + 4, alt, *rows)

    def _seen(self) -> Tensor:
        """Return the tokens up to the query."""
        if self.model == "english":
            return torch.tensor([CHARACTERS.index(character) for character in self.text[: self.query + 1]])
        return encode(self.words)[: self.query + 1]


def language_model(off: Sequence[str] = (), name: str = "stories") -> GPT:
    """Return a model of the explorer in evaluation mode, with the heads in ``off`` ablated to zero.

    Its weights are integers from -127 to 127 times a step for each row; biases and norms are not rounded.
    ``model_record`` returns how it was trained and the cost of rounding.

    Raises:
        ValueError: if ``name`` is neither ``"stories"`` nor ``"english"``.
    """
    described = _model_data(name)
    parameters = {name: unpack_parameter(packed) for name, packed in described["parameters"].items()}
    config = GPTConfig.from_json(json.dumps(described["config"]))
    return load_model(config, parameters, off)


def model_record(name: str = "stories") -> dict[str, Any]:
    """Return how a model of the explorer was trained: command, settings, losses in nats, and the cost of rounding.

    ``loss`` is the loss of the trained model, ``loss_rounded`` that of the rounded model in the page, ``floor``
    (stories) the loss of the grammar itself, all on the same held-out rows. ``kl_of_rounding`` is the mean KL
    divergence between the next-token distributions of the trained and the rounded model. ``source`` (English) names the
    source of the text.

    Raises:
        ValueError: if ``name`` is neither ``"stories"`` nor ``"english"``.
    """
    return _model_data(name)["record"]


def unpack_parameter(packed: dict[str, Any]) -> Float[Tensor, "*shape"]:
    """Return a parameter that ``tools/train_gpt.py`` rounded."""
    if "float32" in packed:
        return from_base64(packed["float32"], torch.float32)
    whole = from_base64(packed["int8"], torch.int8).reshape(packed["shape"])
    return whole * from_base64(packed["steps"], torch.float32)[:, None]


def _model_data(name: str) -> dict[str, Any]:
    if name not in SCRIPTS:
        raise ValueError(f"name must be one of {', '.join(SCRIPTS)}, got {name!r}")
    return script_data(SCRIPTS[name])
