"""The walk explorer: the share of each token in an output, layer by layer, if layers only mix tokens."""

from typing import Any

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.analysis.markov import rollout
from lessons_lib.attention import masks
from lessons_lib.attention.softmax import softmax
from lessons_lib.page.widgets.arithmetic import normal, uniform
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say

STEPS = 16


class WalkExplorer(Explorer):
    r"""Follow a random walk from query to key, layer by layer: its distribution, and how fast all starts converge.

    .. math:: p_t = p_{t-1}\,\bigl(r\, I + (1 - r)\, A_t\bigr), \qquad p_0 \text{ all on the token } \texttt{start}

    The walk starts at an output, so the last layer comes first. The attention weights are the softmax of standard
    normal scores divided by the temperature, drawn for each layer or, with ``same``, once for all layers.

    Raises:
        ValueError: if ``n`` is not in 2 .. 16, ``start`` is not one of the ``n`` tokens, ``layers`` is not in 0 .. 16,
            the temperature not between 0.05 and 20, the residual share not between 0 and 1, or ``seed`` not in
            ``0 .. 2**31 - 1``.
    """

    script = "walk"
    card = Card(
        title="A walk from query to key",
        question="After how many layers can you no longer tell where the walk began?",
        sentence=(
            "The live figure shows walkers that step through sixteen layers and their distribution, causal or not, at "
            "any temperature and any residual share, beside the largest distance of two walkers."
        ),
        tries={
            "16 layers": {"layers": 16},
            "16 causal layers": {"layers": 16, "causal": True},
            "A walk in a circle": {"start": 9, "layers": 16, "temperature": 0.05, "same": True, "seed": 1},
        },
    )

    n = Whole(10, min=2, max=16).tag(sync=True)
    start = Whole(9, min=0).tag(sync=True)
    layers = Whole(4, min=0, max=STEPS).tag(sync=True)
    causal = traitlets.Bool(False).tag(sync=True)
    temperature = Real(1.0, min=0.05, max=20.0).tag(sync=True)
    residual = Real(0.0, min=0.0, max=1.0).tag(sync=True)
    same = traitlets.Bool(False).tag(sync=True)
    seed = Whole(0, min=0, max=2**31 - 1).tag(sync=True)

    @traitlets.validate("n", "start")
    def _start_is_a_token(self, proposal: Any) -> int:
        given = proposal["value"]
        n, start = (given, self.start) if proposal["trait"].name == "n" else (self.n, given)
        if start >= n:
            raise traitlets.TraitError(f"start must be one of the tokens 0 .. n - 1 = {n - 1}, got {start}")
        return given

    def mass(self) -> Float[Tensor, "n"]:
        """Return the distribution of the walk after ``layers`` steps, one share for each token."""
        if self.layers == 0:
            return torch.eye(self.n, dtype=torch.float64)[self.start]
        random, n_drawn = uniform(self.seed), 1 if self.same else self.layers
        scores = torch.tensor([normal(random) for _ in range(n_drawn * self.n**2)], dtype=torch.float64)
        mask = masks.causal(self.n) if self.causal else None
        weights = softmax(scores.reshape(n_drawn, self.n, self.n), mask, temperature=self.temperature)
        layers = weights.expand(self.layers, self.n, self.n).flip(0)  # the walk starts at the last layer
        return rollout(layers, residual=self.residual)[self.start]

    def still(self) -> str:
        """Draw the distribution of the walk after ``layers`` steps."""
        mass, side = self.mass().tolist(), 288 / self.n
        alt = ", ".join(
            say("token {token} {share}", token=token, share=f"{share:.2f}") for token, share in enumerate(mass)
        )
        bars = [
            element(
                "rect", class_="x-solid", x=16 + (i + 0.15) * side, y=130 - 110 * p, width=0.7 * side, height=110 * p
            )
            for i, p in enumerate(mass)
        ]
        names = [text(str(i), x=16 + (i + 0.5) * side, y=148, anchor="middle") for i in range(self.n)]
        axis = element("path", class_="x-axis", d="M16 130H304")
        begun = say(
            "a walker from token {start} after {layers} layers: {shares}",
            start=self.start,
            layers=self.layers,
            shares=alt,
        )
        return picture(320, 152, begun, *bars, axis, *names)
