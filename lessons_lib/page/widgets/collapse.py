"""The collapse explorer: tokens and attention in a deep, randomly initialised stack."""

import math
from collections.abc import Iterator

import torch
import traitlets
from torch import Tensor

from lessons_lib.analysis.diagnostics import token_spread
from lessons_lib.attention import masks
from lessons_lib.attention.attention import attention
from lessons_lib.foundations.norms import RMSNorm
from lessons_lib.page.widgets.arithmetic import normal, uniform
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Real, Whole
from lessons_lib.page.widgets.words import say

TOKENS, WIDTH, LAYERS = 12, 16, 32


class CollapseExplorer(Explorer):
    r"""Send twelve random tokens through up to 32 random attention layers, and see whether they remain distinct.

    .. math::
        \text{after:}\quad X_{t} = \operatorname{norm}\bigl(r\, X_{t-1} + A_t X_{t-1} W_t\bigr), \qquad
        \text{before:}\quad X_{t} = r\, X_{t-1} + A_t \operatorname{norm}(X_{t-1})\, W_t

    with the RMS norm of each token and :math:`r` the ``residual`` strength. The weights :math:`A_t` are the softmax
    of :math:`\operatorname{norm}(x_i) B_t \operatorname{norm}(x_j)^\top / d` divided by the temperature; the entries of
    :math:`B_t` are standard normal and those of :math:`W_t` have variance :math:`1/d`, so that the scores have about
    the variance of standard normal numbers.

    Raises:
        ValueError: if ``depth`` is not in 0 .. 32, the residual strength not between 0 and 1, the temperature not
            between 0.05 and 20, ``norm`` neither ``"after"`` nor ``"before"``, or ``seed`` not in ``0 .. 2**31 - 1``.
    """

    script = "collapse"
    card = Card(
        title="Tokens in a deep stack",
        question="How many layers until all tokens are equal?",
        sentence=(
            "In the live figure twelve tokens go through up to 32 layers with a chosen residual strength, temperature "
            "and position of the norm; their directions, their rank and the entropy of the attention follow."
        ),
        tries={
            "32 layers without a residual": {"depth": 32, "residual": 0.0},
            "Residual 1, norm after the sum": {"depth": 32, "residual": 1.0, "norm": "after"},
            "Residual 1, norm before attention": {"depth": 32, "residual": 1.0, "norm": "before"},
        },
    )

    depth = Whole(8, min=0, max=LAYERS).tag(sync=True)
    residual = Real(0.0, min=0.0, max=1.0).tag(sync=True)
    temperature = Real(1.0, min=0.05, max=20.0).tag(sync=True)
    norm = traitlets.Enum(["after", "before"], "after").tag(sync=True)
    causal = traitlets.Bool(False).tag(sync=True)
    seed = Whole(0, min=0, max=2**31 - 1).tag(sync=True)

    def spreads(self) -> list[float]:
        """Return the spread of the tokens after 0 .. ``depth`` layers: 1 if unrelated, 0 if all are equal."""
        random, unit = uniform(self.seed), RMSNorm(WIDTH, eps=0.0).double().requires_grad_(False)
        mask = masks.causal(TOKENS) if self.causal else None
        x = unit(_drawn(random, TOKENS))
        found = [token_spread(x).item()]
        for _ in range(self.depth):
            bilinear, values = _drawn(random, WIDTH), _drawn(random, WIDTH) / math.sqrt(WIDTH)
            normed = unit(x)
            mixed = attention(normed @ bilinear, normed, normed @ values, mask, scale=1 / WIDTH / self.temperature)
            x = self.residual * x + mixed
            x = unit(x) if self.norm == "after" else x
            found.append(token_spread(x).item())
        return found

    def still(self) -> str:
        """Draw the spread of the tokens after each layer, down to 10^-12, and a dot at ``depth``."""
        spreads = type(self)(**{**self._state(), "depth": LAYERS}).spreads()
        end = next((t for t, spread in enumerate(spreads) if spread < 1e-12), LAYERS)  # below is rounding
        heights = [12 + 112 * min(12.0, -math.log10(max(spread, 1e-12))) / 12 for spread in spreads]
        points = [(44 + 268 * t / LAYERS, y) for t, y in enumerate(heights)]
        line = element(
            "path", class_="x-line x-first", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points[: end + 1])
        )
        dot = element("circle", class_="x-dot x-first", cx=points[self.depth][0], cy=points[self.depth][1], r=4)
        axis = element("path", class_="x-axis", d="M44 12V124H312")
        levels = [text(name, x=38, y=16 + 112 * i / 3, anchor="end") for i, name in enumerate(_LEVELS)]
        marks = [text(str(t), x=44 + 268 * t / LAYERS, y=142, anchor="middle") for t in range(0, LAYERS + 1, 8)]
        before, now = spreads[0], spreads[self.depth]
        alt = say(
            "spread of the tokens after {depth} layers: {now}, from {before} before them",
            depth=self.depth,
            now=f"{now:.2g}",
            before=f"{before:.2g}",
        )
        return picture(320, 148, alt, axis, *levels, *marks, line, dot)


_LEVELS = ("1", "10⁻⁴", "10⁻⁸", "10⁻¹²")


def _drawn(random: Iterator[float], rows: int) -> Tensor:
    return torch.tensor([normal(random) for _ in range(rows * WIDTH)], dtype=torch.float64).reshape(rows, WIDTH)
