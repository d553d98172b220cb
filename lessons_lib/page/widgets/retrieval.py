"""The retrieval explorer: attention as a soft look-up, beside a hard one, for all directions of the query."""

import math
from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention.attention import attention
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real
from lessons_lib.page.widgets.words import say

SHORTEST, LONGEST = 0.1, 20.0
FARTHEST = 2.0


class RetrievalExplorer(Explorer):
    """Turn a query among keys in the plane; the weights and the output follow, beside the value of the best key.

    .. math:: o = \\sum_j p_j v_j, \\qquad p = \\operatorname{softmax}(s), \\qquad s_j = q \\cdot k_j

    Raises:
        ValueError: if there are fewer than two keys or more than six, a key is longer than 2, the query is not
            between 0.1 and 20 long, a value is not between -50 and 50, or values or labels are not as many as keys.
    """

    script = "retrieval"
    card = Card(
        title="A look-up by vectors",
        question="Turn the query: which answer comes back?",
        sentence=(
            "In the live figure the query turns and keys can be dragged, and each value has a slider; "
            "the weights and the answer follow, and the curve shows the answer for every direction of the query."
        ),
        tries={
            "A long query": {"query": [-12.0, -16.0]},
            "A short query": {"query": [-0.06, -0.08]},
            "Half-way between two keys": {"query": [-2.0, -2.0]},
        },
    )

    query = traitlets.List(Real(), minlen=2, maxlen=2).tag(sync=True, required=True)
    key = traitlets.List(traitlets.List(Real(), minlen=2, maxlen=2), minlen=2, maxlen=6).tag(sync=True, required=True)
    value = traitlets.List(Real(min=-50.0, max=50.0)).tag(sync=True, required=True)
    labels = traitlets.List(traitlets.Unicode()).tag(sync=True, required=True)

    @traitlets.validate("query")
    def _neither_short_nor_long(self, proposal: Any) -> list[float]:
        length = round(math.hypot(*proposal["value"]), 6)  # a slider's end may be off by a rounding
        if not SHORTEST <= length <= LONGEST:
            raise traitlets.TraitError(
                f"query must be between {SHORTEST:g} and {LONGEST:g} long, got {proposal['value']}, {length:g} long"
            )
        return proposal["value"]

    @traitlets.validate("key")
    def _within_the_dial(self, proposal: Any) -> list[list[float]]:
        for point in proposal["value"]:
            length = round(math.hypot(*point), 6)
            if length > FARTHEST:
                raise traitlets.TraitError(f"key must be at most {FARTHEST:g} long, got {point}, {length:g} long")
        return proposal["value"]

    @traitlets.validate("value", "labels")
    def _one_per_key(self, proposal: Any) -> list:
        name, given = proposal["trait"].name, proposal["value"]
        if len(given) != len(self.key):
            raise traitlets.TraitError(f"{name} must be as many as key, got {len(given)} for {len(self.key)} keys")
        return given

    def answer(self, query: Float[Tensor, "p 2"]) -> Float[Tensor, "p"]:
        """Return the output of attention for each query, in float64."""
        key, value = (torch.tensor(trait, dtype=torch.float64) for trait in (self.key, self.value))
        return attention(query, key, value[:, None], scale=1.0)[:, 0]

    def still(self) -> str:
        """Draw the keys and the query on the left, the output against the direction of the query on the right."""
        turn = torch.linspace(-math.pi, math.pi, 61, dtype=torch.float64)
        length, angle = math.hypot(*self.query), math.atan2(self.query[1], self.query[0])
        answers = self.answer(length * torch.stack([turn.cos(), turn.sin()], dim=-1))
        now = self.answer(torch.tensor([self.query], dtype=torch.float64)).item()
        low, high = min(self.value), max(self.value)

        def place(theta: float, height: float) -> tuple[float, float]:
            return 250 + 60 * theta / math.pi, 130 - 100 * (height - low) / (high - low or 1.0)

        x, y = place(angle, now)
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in map(place, turn.tolist(), answers.tolist()))
        return picture(
            320,
            160,
            say(
                "query at {angle} degrees among the keys {keys}; answer {answer}",
                angle=f"{math.degrees(angle):.0f}",
                keys=", ".join(self.labels),
                answer=f"{now:.2f}",
            ),
            element("circle", class_="x-axis", cx=80, cy=80, r=60),
            element(
                "line",
                class_="x-line x-first",
                x1=80,
                y1=80,
                x2=80 + 60 * math.cos(angle),
                y2=80 - 60 * math.sin(angle),
            ),
            *self._dots(),
            element("polyline", class_="x-line", style="stroke: var(--output)", points=path),
            element("circle", class_="x-dot", style="stroke: var(--output)", cx=x, cy=y, r=5),
            text(say("answer"), x=190, y=20),
            text(say("direction of the query"), x=250, y=152, anchor="middle"),
        )

    def _dots(self) -> list[str]:
        drawn = []
        for point, label in zip(self.key, self.labels, strict=True):
            x, y = 80 + 25 * point[0], 80 - 25 * point[1]
            drawn.append(element("circle", cx=x, cy=y, r=5, style="fill: var(--key)"))
            drawn.append(text(label, x=x + 7, y=y - 5))
        return drawn
