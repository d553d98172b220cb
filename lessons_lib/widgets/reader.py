"""The pattern explorer: what eight heads look at before a verb, and which of them its number needs."""

from collections.abc import Sequence
from math import nan
from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib import patterns
from lessons_lib.diagnostics import observe
from lessons_lib.stories import VERBS, VOCABULARY, encode, next_word
from lessons_lib.widgets.drawing import map_of, picture, text
from lessons_lib.widgets.explorer import Card, Explorer
from lessons_lib.widgets.gpt import language_model
from lessons_lib.widgets.trained import HEADS, known_words
from lessons_lib.widgets.traits import Whole

LONGEST = 16
BEFORE_A_SUBJECT = frozenset(
    ["then", "a", "the", "these", "this", "two", "brave", "happy", "quiet", "small", "tired", "young"]
)
PLURAL = sorted(VOCABULARY.index(verb) for verb in VERBS if f"{verb}s" in VERBS)
SINGULAR = sorted(VOCABULARY.index(f"{verb}s") for verb in VERBS if f"{verb}s" in VERBS)


class PatternExplorer(Explorer):
    r"""See what eight heads look at before a verb, say which the verb's number needs, and switch them off.

    .. math:: \text{agreement} = \frac{p(\text{verbs of the subject's number})}{p(\text{all verbs})}

    The model is that of :class:`GPTExplorer`. A head's scores are those of :mod:`lessons_lib.patterns`, and the weight
    of the word that asks on the subject of the verb that may follow. What a head that is off adds is zero.

    Args:
        words: 1 to 16 words of ``stories.VOCABULARY``, with single spaces; the full stop is a word.
        query: the place of the word after which the verb is expected, counted from 0; the last if there are fewer.
        off: the heads that are switched off, of ``1.1`` to ``2.4``.
        head: the one that is shown large.
        guess: the head without which the reader expects the agreement to suffer most; empty for none.

    Raises:
        ValueError: if the words are not as said, ``query`` is not in 0 .. 15, or a head is named that there is not.
    """

    script = "reader"
    card = Card(
        title="Which head is needed?",
        question="Without which of eight heads does a verb lose its number?",
        sentence=(
            "In the live figure the maps of eight heads can be read and scored, for sentences that one types; each "
            "head can be switched off, and the probability that the verb has its subject's number follows."
        ),
    )

    words = traitlets.Unicode("the dogs behind the king").tag(sync=True)
    query = Whole(4, min=0, max=LONGEST - 1).tag(sync=True)
    off = traitlets.List(traitlets.Enum(HEADS)).tag(sync=True)
    head = traitlets.Enum(HEADS, "1.1").tag(sync=True)
    guess = traitlets.Enum(["", *HEADS], "").tag(sync=True)

    @traitlets.validate("words")
    def _words_are_known(self, proposal: Any) -> str:
        known_words("words", proposal["value"], at_most=LONGEST)
        return proposal["value"]

    def weights(self) -> Float[Tensor, "8 n n"]:
        """Return what the heads look at up to the word that asks, each row a word that reads, in float64."""
        model = language_model(self.off).double()
        with torch.no_grad(), observe(model) as seen:
            model(encode(" ".join(self._read()))[None])
        return torch.cat([seen.weights[f"blocks.{layer}.attention.sublayer"][0] for layer in (0, 1)])

    def scores(self) -> dict[str, Float[Tensor, "8"]]:
        """Return each head's scores by their names, and its weight on the ``subject``; ``NaN`` where there is none."""
        weights, place = self.weights(), subject(self._read())
        scores = {name: getattr(patterns, name)(weights) for name in ("previous_token", "sink", "diagonal", "diffuse")}
        return scores | {"subject": torch.full((8,), nan).double() if place is None else weights[:, -1, place]}

    def agreement(self) -> float:
        """Return how likely the next verb has its subject's number, given that a verb comes; ``NaN`` if none may."""
        words = self._read()
        if subject(words) is None:
            return nan
        with torch.no_grad():
            p = language_model(self.off).double()(encode(" ".join(words))[None])[0, -1].softmax(-1)
        plural, singular = p[PLURAL].sum().item(), p[SINGULAR].sum().item()
        right = plural if next_word(encode(" ".join(words)))[-1, PLURAL].sum() > 0 else singular
        return right / (plural + singular)

    def still(self) -> str:
        """Draw what the heads look at."""
        weights = self.weights().tolist()
        maps = [
            text(name, x=80 * (i % 4), y=12 + 92 * (i // 4))
            + "".join(map_of(80 * (i % 4), 18 + 92 * (i // 4), 68, weights[i]))
            for i, name in enumerate(HEADS)
        ]
        said = f"weights of eight heads, a row for each word of: {' '.join(self._read())}"
        if subject(self._read()) is not None:
            said += f"; the next verb agrees with its subject with probability {self.agreement():.3f}"
        return picture(320, 184, said, *maps)

    def _read(self) -> list[str]:
        """The words up to the one that asks."""
        return self.words.split(" ")[: self.query + 1]


def subject(words: Sequence[str]) -> int | None:
    """Return the place of the subject of a verb that may come next; ``None`` if the grammar has no verb there."""
    if not next_word(encode(" ".join(words)))[-1, PLURAL + SINGULAR].nan_to_num().sum() > 0:
        return None
    start = max((i + 1 for i, word in enumerate(words) if word == "."), default=0)
    clause = list(words).index("that", start) + 1 if "that" in words[start:] else len(words)
    if clause < len(words) and not any(word in VERBS for word in words[clause:]):
        start = clause  # the verb is that of the clause, whose own subject has been named
    return next(i for i in range(start, len(words)) if words[i] not in BEFORE_A_SUBJECT)
