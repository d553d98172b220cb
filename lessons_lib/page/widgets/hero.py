"""The hero of the first page: attention weights of a trained model as arcs over a sentence, and its next word."""

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.page.widgets.assemble import in_page, page_scripts, read, style_element
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.heads import HeadsExplorer, head_model
from lessons_lib.page.widgets.trained import HEADS, parse_words
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import mark, say, with_words
from lessons_lib.training.stories import VOCABULARY, encode

LONGEST = 8
FAINT = 0.1
SENTENCES = (
    "the king near the birds",
    "the birds near the king",
    "the woman beside the boys",
    "the queen that these dogs follow",
)
FORMULA = (
    '<p class="h-formula"><i class="h-sign h-output">{output}</i> = softmax(<i class="h-sign h-query">Q</i>'
    '<i class="h-sign h-key">K</i><sup>T</sup> / √<i>d</i><sub>k</sub>) <i class="h-sign h-value">V</i></p>'
)


class Arc(NamedTuple):
    """An attention weight that is large enough to be drawn: query ``to`` attends to key ``origin`` in this head.

    ``share`` is the part of it that reaches the selected query: 1 for the selected query in layer 2, else 0; in layer 1
    it is the largest weight with which a head of layer 2 attends to ``to`` at the selected query, and 1 if ``to`` is
    the selected query.
    """

    head: str
    origin: int
    to: int
    weight: float
    share: float


class Hero(HeadsExplorer):
    """Attention weights of ``HeadsExplorer``'s model as arcs above and below a sentence, and bars for the next word.

    The arcs above the sentence are the weights of the selected query in layer 2. Those below it are the weights in
    layer 1 of this word and of the words that it attends to. Any head can be ablated; a button offers the head whose
    ablation makes a verb of the wrong number most likely. At first the sentence is read word by word, once.

    Args:
        words: 2 to 8 words of ``stories.VOCABULARY``, with single spaces.
        query: position of the selected query, counted from 0; the last word if there are fewer words.
        off: the heads that are ablated.
        sentences: the sentences that a button shows in turn, each as ``words``.

    Raises:
        ValueError: as ``HeadsExplorer``, if ``query`` is not in 0 .. 7, or if a sentence breaks the rule of ``words``.
    """

    script = "hero"
    sentence = mark(
        "In the live figure you can switch off any head, select another query, and continue the sentence word by word."
    )
    _css = traitlets.Unicode(read("hero.css")).tag(sync=True)

    words = traitlets.Unicode(SENTENCES[0]).tag(sync=True)
    query = Whole(4, min=0, max=LONGEST - 1).tag(sync=True)
    sentences = traitlets.List(traitlets.Unicode(), list(SENTENCES), minlen=1).tag(sync=True)

    @traitlets.validate("words")
    def _words_are_known(self, proposal: Any) -> str:
        parse_words("words", proposal["value"], at_least=2, at_most=LONGEST)
        return proposal["value"]

    @traitlets.validate("sentences")
    def _sentences_are_known(self, proposal: Any) -> list[str]:
        for words in proposal["value"]:
            parse_words("words of sentences", words, at_least=2, at_most=LONGEST)
        return proposal["value"]

    def next_word(self) -> Float[Tensor, " vocabulary"]:
        """Return the probabilities of the word after the selected query."""
        with torch.no_grad():
            return head_model(self.off)(encode(self.words)[None]).softmax(-1)[0, self._query_position()]

    def arcs(self) -> list[Arc]:
        """Return the attention weights that are drawn, in the order of the heads."""
        return list(self._arcs())

    def still(self) -> str:
        """Draw the arcs, and write the most probable next words."""
        words, last, arcs = self.words.split(), self._query_position(), self.arcs()
        ends = [sum(9.5 * len(word) + 18 for word in words[:i]) for i in range(len(words) + 1)]
        middle = [(a + b) / 2 for a, b in pairwise(ends)]
        names = [
            text(word, x=middle[i], y=96, anchor="middle", class_="h-last" if i == last else "")
            for i, word in enumerate(words)
        ]
        drawn = [self._drawn(arc, [middle[arc.origin], middle[arc.to]]) for arc in arcs]
        p = self.next_word()
        likely = ", ".join(f"<b>{VOCABULARY[i]}</b> ({p[i]:.0%})" for i in p.argsort(descending=True)[:5].tolist())
        alt = say("arcs of attention weights on the paths to {word}", word=words[last])
        told = say(
            "After {word} a trained model expects {likely}. Each arc is an attention weight. Above the sentence are "
            "the weights of this word in layer 2, below it the weights in layer 1 of this word and of the words that "
            "it attends to. Weights below {faint} are not drawn.",
            word=f"<b>{escape(words[last])}</b>",
            likely=likely,
            faint=FAINT,
        )
        return picture(ends[-1], 182, alt, *drawn, *names) + FORMULA.format(output=say("output")) + f"<p>{told}</p>"

    def to_html(self) -> str:
        """Return HTML that is live in any page, and shows a picture and a sentence where scripts are off."""
        still = f"{self.still()}<p>{say(self.sentence)}</p>"
        return in_page(
            "hero",
            style_element("hero", read("hero.css")),
            still,
            page_scripts(self.script, {**self._state(), **with_words(self._words)}),
        )

    def _query_position(self) -> int:
        return min(self.query, len(self.words.split()) - 1)

    def _arcs(self) -> Iterator[Arc]:
        weights, last = self.weights(), self._query_position()
        on = [head not in self.off for head in HEADS]
        seen = torch.stack([row[last] for row in weights[4:]])[on[4:]]
        shares = seen.amax(0) if len(seen) else torch.zeros(weights.shape[-1])
        for head, table, is_on in zip(HEADS, weights, on, strict=True):
            for to, row in enumerate(table.tolist() if is_on else []):
                share = float(to == last) if head.startswith("2") else 1.0 if to == last else shares[to].item()
                for origin, weight in enumerate(row):
                    if weight >= FAINT and share >= FAINT:
                        yield Arc(head, origin, to, weight, share)

    def _drawn(self, arc: Arc, ends: list[float]) -> str:
        up, base = (-1, 78) if arc.head.startswith("2") else (1, 104)
        lane = 4 * (int(arc.head[2]) - 2.5)
        start, end = ends[0] + lane, ends[1] + lane
        aside, tall = (8, 24) if arc.origin == arc.to else (0, min(98, 40 + 0.25 * abs(end - start)))
        tip = base + up * tall
        return element(
            "path",
            class_="h-arc",
            d=f"M{start:.4g} {base}C{start - aside:.4g} {tip:.4g} {end + aside:.4g} {tip:.4g} {end:.4g} {base}",
            stroke_width=0.5 + 4 * arc.weight,
            stroke_opacity=(0.75 if arc.origin != arc.to else 0.35) * arc.share,
        )
