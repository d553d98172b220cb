"""The plane explorer: lengths and angles of query and keys, the region in which each key wins, and the output."""

import math
from typing import Any

import torch
import traitlets
from torch import Tensor

from lessons_lib.analysis.geometry import cosine_similarity
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.palette import COLOURS
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real
from lessons_lib.page.widgets.words import say

SHORTEST, LONGEST = 0.1, 3.0


class PlaneExplorer(Explorer):
    """Drag query, keys and values in the plane; the weights, the region of each key and the output follow.

    .. math:: p = \\operatorname{softmax}(s / T), \\qquad s_j = \\lVert q \\rVert \\lVert k_j \\rVert \\cos\\theta_j

    With ``similarity="cosine"`` the score is :math:`\\cos\\theta_j` alone. Without ``value`` the keys are also the
    values.

    Raises:
        ValueError: if there is no key or there are more than six, a key or the query is not between 0.1 and 3 long, a
            value lies outside the square from -3 to 3, values are not as many as keys, the temperature is not between
            0.05 and 20, or the similarity is neither ``dot`` nor ``cosine``.
    """

    script = "plane"
    card = Card(
        title="Lengths and angles",
        question="Which key wins: the longest, or the nearest in direction?",
        sentence=(
            "In the live figure query, keys and values can be dragged, and each length has a slider; "
            "the weights, the region in which each key wins, and the output follow."
        ),
        tries={
            "A long key 4": {"key": [[1.8, 0.4], [-0.6, 1.7], [-1.1, -1.2], [2.0, 2.0]]},
            "A long query": {"query": [2.4, 1.8]},
            "Only the angle counts": {"similarity": "cosine"},
        },
    )

    query = traitlets.List(Real(), minlen=2, maxlen=2).tag(sync=True, required=True)
    key = traitlets.List(traitlets.List(Real(), minlen=2, maxlen=2), minlen=1, maxlen=6).tag(sync=True, required=True)
    value = traitlets.List(
        traitlets.List(Real(min=-3.0, max=3.0), minlen=2, maxlen=2), default_value=None, allow_none=True
    ).tag(sync=True)
    temperature = Real(1.0, min=0.05, max=20.0).tag(sync=True)
    similarity = traitlets.Enum(("dot", "cosine"), default_value="dot").tag(sync=True)

    @traitlets.validate("query", "key")
    def _neither_short_nor_long(self, proposal: Any) -> list:
        name, given = proposal["trait"].name, proposal["value"]
        for point in given if name == "key" else [given]:
            length = round(math.hypot(*point), 6)  # a slider's end may be off by a rounding
            if not SHORTEST <= length <= LONGEST:
                raise traitlets.TraitError(
                    f"{name} must be between {SHORTEST:g} and {LONGEST:g} long, got {point}, {length:g} long"
                )
        return given

    @traitlets.validate("value")
    def _one_value_per_key(self, proposal: Any) -> list | None:
        given = proposal["value"]
        if given is not None and len(given) != len(self.key):
            raise traitlets.TraitError(
                f"value must be as many as key, got {len(given)} values for {len(self.key)} keys"
            )
        return given

    def still(self) -> str:
        """Draw the keys and the query on the left, the values and the output on the right."""
        keys, query = torch.tensor(self.key, dtype=torch.float64), torch.tensor([self.query], dtype=torch.float64)
        values = keys if self.value is None else torch.tensor(self.value, dtype=torch.float64)
        scores = cosine_similarity(query, keys) if self.similarity == "cosine" else query @ keys.T
        [weights] = softmax(scores, temperature=self.temperature)
        output = weights @ values
        shares = ", ".join(say("key {j} {weight}", j=j + 1, weight=f"{weight:.2f}") for j, weight in enumerate(weights))
        return picture(
            320,
            160,
            say(
                "query, keys and values in the plane; weights: {shares}; output at {x}, {y}",
                shares=shares,
                x=f"{output[0]:.2f}",
                y=f"{output[1]:.2f}",
            ),
            *_plane(80, keys, query[0], say("query"), rays=True),
            *_plane(240, values, output, say("output"), rays=False),
        )


def _plane(middle: float, points: Tensor, special: Tensor, name: str, *, rays: bool) -> list[str]:
    """Draw numbered points and one special point in the plane."""

    def place(point: Tensor) -> tuple[float, float]:
        return float(middle + 22 * point[0]), float(80 - 22 * point[1])

    drawn = []
    for j, point in enumerate([*points, special]):
        x, y = place(point)
        last = j == len(points)
        if rays:
            drawn.append(element("line", class_="x-axis", x1=middle, y1=80, x2=x, y2=y))
        look = {"class_": "x-dot x-first"} if last else {"fill": COLOURS[j]}
        drawn.append(element("circle", cx=x, cy=y, r=5, **look))
        drawn.append(text(name, x=x - 7, y=y - 5, anchor="end") if last else text(str(j + 1), x=x + 7, y=y - 5))
    return drawn
