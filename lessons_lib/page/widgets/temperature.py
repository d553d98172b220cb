"""The temperature explorer: softmax maximises expected score plus temperature times entropy."""

from typing import Any

import torch
import traitlets

from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real
from lessons_lib.page.widgets.words import say


class TemperatureExplorer(Explorer):
    """Change the scores and the temperature; the weights, their entropy and the free energy follow.

    .. math:: p = \\operatorname{softmax}(s / T) = \\arg\\max_p \\; \\langle p, s \\rangle + T H(p)

    Raises:
        ValueError: if there is no score, a score is not finite, the labels are not as many as the scores, or the
            temperature is not between 0.05 and 20.
    """

    script = "temperature"
    card = Card(
        title="Softmax: weights, entropy and temperature",
        question="How does the temperature change the weights of the same scores?",
        sentence=(
            "In the live figure each score and the temperature have a slider; the weights, their entropy, "
            "and the balance of expected score against temperature times entropy follow."
        ),
        tries={
            "Temperature 0.05": {"temperature": 0.05},
            "Temperature 20": {"temperature": 20.0},
            "Two equal scores, temperature 0.05": {"scores": [2.0, 2.0, 0.5, 0.0, -1.0], "temperature": 0.05},
        },
    )

    scores = traitlets.List(Real(), minlen=1).tag(sync=True, required=True)
    labels = traitlets.List(traitlets.Unicode(), default_value=None, allow_none=True).tag(sync=True)
    temperature = Real(1.0, min=0.05, max=20.0).tag(sync=True)

    @traitlets.validate("scores", "labels")
    def _one_label_per_score(self, proposal: Any) -> list | None:
        given = {"scores": self.scores, "labels": self.labels, proposal["trait"].name: proposal["value"]}
        scores, labels = given["scores"], given["labels"]
        if labels is not None and len(labels) != len(scores):
            raise traitlets.TraitError(
                f"labels must be as many as scores, got {len(labels)} labels for {len(scores)} scores"
            )
        return proposal["value"]

    def still(self) -> str:
        """Draw one bar for each weight."""
        weights = softmax(torch.tensor(self.scores, dtype=torch.float64), temperature=self.temperature).tolist()
        labels = self.labels or [str(i + 1) for i in range(len(weights))]
        rows = [
            text(label, x=70, y=20 * i + 15, anchor="end")
            + element("rect", class_="x-solid", x=80, y=20 * i + 4, width=180 * weight, height=14)
            + text(f"{weight:.3f}", x=270, y=20 * i + 15)
            for i, (label, weight) in enumerate(zip(labels, weights, strict=True))
        ]
        alt = ", ".join(f"{label} {weight:.2f}" for label, weight in zip(labels, weights, strict=True))
        return picture(
            320,
            20 * len(rows) + 4,
            say("weights at temperature {temperature}: {weights}", temperature=f"{self.temperature:g}", weights=alt),
            *rows,
        )
