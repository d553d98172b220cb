"""The pattern explorer: attention patterns of eight heads before a verb, and the effect of ablating them."""

from collections.abc import Sequence
from math import nan
from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.analysis import patterns
from lessons_lib.analysis.diagnostics import observe
from lessons_lib.page.widgets.drawing import picture, text, weight_map
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.gpt import language_model
from lessons_lib.page.widgets.trained import HEADS, parse_words
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import say
from lessons_lib.training.stories import VERBS, VOCABULARY, encode, next_word_probs

LONGEST = 16
BEFORE_A_SUBJECT = frozenset(
    ["then", "a", "the", "these", "this", "two", "brave", "happy", "quiet", "small", "tired", "young"]
)
PLURAL = sorted(VOCABULARY.index(verb) for verb in VERBS if f"{verb}s" in VERBS)
SINGULAR = sorted(VOCABULARY.index(f"{verb}s") for verb in VERBS if f"{verb}s" in VERBS)


class PatternExplorer(Explorer):
    r"""See the attention patterns of eight heads before a verb, guess which head agreement needs, and ablate heads.

    .. math:: \text{agreement} = \frac{p(\text{verbs of the subject's number})}{p(\text{all verbs})}

    The model is that of :class:`GPTExplorer`. The scores of a head are those of :mod:`lessons_lib.analysis.patterns`,
    and the weight of the query on the subject of the verb that may follow. The output of an ablated head is zero.

    Args:
        words: 1 to 16 words of ``stories.VOCABULARY``, with single spaces; the full stop is a word.
        query: position of the word after which the verb is predicted, counted from 0; the last if there are fewer.
        off: the heads that are ablated, of ``1.1`` to ``2.4``.
        head: the head whose pattern is shown enlarged.
        guess: the head whose ablation the reader expects to reduce agreement most; empty for none.

    Raises:
        ValueError: if the words break this rule, ``query`` is not in 0 .. 15, or a head is unknown.
    """

    script = "reader"
    card = Card(
        title="Which head is needed?",
        question="Without which of eight heads does a verb lose its number?",
        sentence=(
            "In the live figure the maps of eight heads can be read and scored, for sentences that one types; each "
            "head can be switched off, and the probability that the verb has its subject's number follows."
        ),
        tries={
            "A relative clause": {"words": "the horses that a boy likes", "query": 5},
            "Head 2.4": {"words": "the dogs behind the king", "query": 4, "head": "2.4"},
            "Head 1.2": {"words": "the dogs behind the king", "query": 4, "head": "1.2"},
        },
    )

    words = traitlets.Unicode("the dogs behind the king").tag(sync=True)
    query = Whole(4, min=0, max=LONGEST - 1).tag(sync=True)
    off = traitlets.List(traitlets.Enum(HEADS)).tag(sync=True)
    head = traitlets.Enum(HEADS, "1.1").tag(sync=True)
    guess = traitlets.Enum(["", *HEADS], "").tag(sync=True)

    @traitlets.validate("words")
    def _words_are_known(self, proposal: Any) -> str:
        parse_words("words", proposal["value"], at_most=LONGEST)
        return proposal["value"]

    def weights(self) -> Float[Tensor, "8 n n"]:
        """Return the attention weights of the heads up to the query, one row per query, in float64."""
        model = language_model(self.off).double()
        with torch.no_grad(), observe(model) as seen:
            model(encode(" ".join(self._read()))[None])
        return torch.cat([seen.weights[f"blocks.{layer}.attention.sublayer"][0] for layer in (0, 1)])

    def scores(self) -> dict[str, Float[Tensor, "8"]]:
        """Return the pattern scores of each head, and its weight on the ``subject``; ``NaN`` without a subject."""
        weights, place = self.weights(), subject(self._read())
        scores = {
            "previous_token": patterns.previous_token_score(weights),
            "sink": patterns.sink_score(weights),
            "diagonal": patterns.diagonal_score(weights),
            "diffuse": patterns.diffuse_score(weights),
        }
        return scores | {"subject": torch.full((8,), nan).double() if place is None else weights[:, -1, place]}

    def agreement(self) -> float:
        """Return the probability of agreement, given that the next word is a verb; ``NaN`` if no verb may follow."""
        words = self._read()
        if subject(words) is None:
            return nan
        with torch.no_grad():
            p = language_model(self.off).double()(encode(" ".join(words))[None])[0, -1].softmax(-1)
        plural, singular = p[PLURAL].sum().item(), p[SINGULAR].sum().item()
        right = plural if next_word_probs(encode(" ".join(words)))[-1, PLURAL].sum() > 0 else singular
        return right / (plural + singular)

    def still(self) -> str:
        """Draw the attention weights of the heads."""
        weights = self.weights().tolist()
        maps = [
            text(name, x=80 * (i % 4), y=12 + 92 * (i // 4))
            + "".join(weight_map(80 * (i % 4), 18 + 92 * (i // 4), 68, weights[i]))
            for i, name in enumerate(HEADS)
        ]
        words = " ".join(self._read())
        alt = say("weights of eight heads, a row for each word of: {words}", words=words)
        if subject(self._read()) is not None:
            alt = say(
                "weights of eight heads, a row for each word of: {words}; the next verb agrees with its subject with "
                "probability {p}",
                words=words,
                p=f"{self.agreement():.3f}",
            )
        return picture(320, 184, alt, *maps)

    def _read(self) -> list[str]:
        """Return the words up to the query."""
        return self.words.split(" ")[: self.query + 1]


def subject(words: Sequence[str]) -> int | None:
    """Return the position of the subject of the next verb; ``None`` if the grammar allows no verb there."""
    if not next_word_probs(encode(" ".join(words)))[-1, PLURAL + SINGULAR].nan_to_num().sum() > 0:
        return None
    start = max((i + 1 for i, word in enumerate(words) if word == "."), default=0)
    clause = list(words).index("that", start) + 1 if "that" in words[start:] else len(words)
    if clause < len(words) and not any(word in VERBS for word in words[clause:]):
        start = clause  # the next verb is that of the clause, which has its own subject
    return next(i for i in range(start, len(words)) if words[i] not in BEFORE_A_SUBJECT)
