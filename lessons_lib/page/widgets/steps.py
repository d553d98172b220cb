"""The steps explorer: one row of attention, from scores to the output, one step at a time."""

from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say

LARGEST = 4.0  # the largest score, and the largest negative one


class StepsExplorer(Explorer):
    r"""Step through one row of attention: scores, exponentials, weights, and the weighted average of the values.

    .. math:: o = \sum_j p_j v_j, \qquad p_j = \frac{e^{s_j}}{\sum_l e^{s_l}}

    Each word has one row of scores, and one number as its value.

    Raises:
        ValueError: if there are fewer than two words or more than five, ``scores`` is not a square of one row and one
            column for each word, a score is not between -4 and 4, ``values`` are not as many as words or not between
            0 and 10, ``query`` is not the index of a word, or ``step`` is not between 1 and 4.
    """

    script = "steps"
    card = Card(
        title="Attention, step by step",
        question="What does one word collect from the words of its sentence?",
        sentence=(
            "In the live figure a button goes from the scores to the exponentials, the weights and the output; "
            "the query can be any word, each score has a slider, and the bars follow."
        ),
        tries={
            "Equal scores": {"scores": [[0, 2, 0], [0, 0, 2], [0, 0, 0]], "query": 2, "step": 4},
            "Two equal high scores": {"scores": [[0, 2, 0], [0, 0, 2], [3, 3, 0]], "query": 2, "step": 4},
            "The output of the second word": {"query": 1, "step": 4},
        },
    )

    words = traitlets.List(traitlets.Unicode(), minlen=2, maxlen=5).tag(sync=True, required=True)
    scores = traitlets.List(traitlets.List(Real(min=-LARGEST, max=LARGEST), minlen=2, maxlen=5)).tag(
        sync=True, required=True
    )
    values = traitlets.List(Real(min=0.0, max=10.0)).tag(sync=True, required=True)
    query = Whole(0, min=0).tag(sync=True)
    step = Whole(1, min=1, max=4).tag(sync=True)

    @traitlets.validate("scores", "values")
    def _one_per_word(self, proposal: Any) -> list:
        name, given, n = proposal["trait"].name, proposal["value"], len(self.words)
        rows = given if name == "scores" else []
        if len(given) != n or any(len(row) != n for row in rows):
            expected = f"{n} rows of {n}" if name == "scores" else f"{n}"
            raise traitlets.TraitError(f"{name} must be {expected}, one for each word, got {given}")
        return given

    @traitlets.validate("query")
    def _one_of_the_words(self, proposal: Any) -> int:
        if proposal["value"] >= len(self.words):
            raise traitlets.TraitError(
                f"query must be the index of one of the {len(self.words)} words, got {proposal['value']}"
            )
        return proposal["value"]

    def weights(self) -> Float[Tensor, " n"]:
        """Return the attention weights of the query's row, in float64."""
        return softmax(torch.tensor(self.scores[self.query], dtype=torch.float64))

    def output(self) -> float:
        """Return the output of attention for the query, computed by the library."""
        one_hot = torch.eye(len(self.words), dtype=torch.float64)  # keys that turn a row of scores into a query
        row = torch.tensor([self.scores[self.query]], dtype=torch.float64)
        return attention(row, one_hot, torch.tensor(self.values, dtype=torch.float64)[:, None], scale=1.0).item()

    def still(self) -> str:
        """Draw all steps of the query's row, since a still picture has no button."""
        weights, row = self.weights().tolist(), self.scores[self.query]
        lefts, width = (58.0, 138.0, 218.0), 66.0
        drawn = [
            text(head, x=x, y=12) for head, x in zip((say("score"), say("weight"), say("value")), lefts, strict=True)
        ]
        most = max(*self.values, 1e-9)
        for i, (word, score, p, value) in enumerate(zip(self.words, row, weights, self.values, strict=True)):
            y = 22 + 34 * i
            drawn.append(text(word, x=50, y=y + 12, anchor="end"))
            bars = ((abs(score) / LARGEST, "query"), (p, "key"), (value / most, "value"))
            for (share, role), shown, x in zip(bars, (f"{score:g}", f"{p:.3f}", f"{value:g}"), lefts, strict=True):
                drawn.append(text(shown, x=x, y=y + 12))
                drawn.append(
                    element("rect", style=f"fill: var(--{role})", x=x, y=y + 17, width=share * width, height=8)
                )
        name, shares = self.words[self.query], ", ".join(f"{p:.3f}" for p in weights)
        height = 46 + 34 * len(row)
        drawn.append(
            text(say("output for {word}: {output}", word=name, output=f"{self.output():.2f}"), x=58, y=height - 12)
        )
        alt = say(
            "the weights of {word} on {words} are {shares}; the output is {output}",
            word=name,
            words=", ".join(self.words),
            shares=shares,
            output=f"{self.output():.2f}",
        )
        return picture(310, height, alt, *drawn)
