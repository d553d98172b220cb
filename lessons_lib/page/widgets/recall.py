"""The recall explorer: recorded recall of key-value pairs by layers with a state of fixed size."""

import traitlets

from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.trained import script_data
from lessons_lib.page.widgets.words import mark, say

SCRIPT = "recall_record.js"
RECALL_KINDS = [
    mark("attention"),
    mark("window"),
    "elu + 1",
    mark("sum"),
    mark("delta"),
    mark("gated delta"),
    "Performer",
    "GRU",
]


class RecallExplorer(Explorer):
    """Choose a number of pairs and a kind of layer; the recorded share of pairs that trained layers recall follows.

    A text has pairs of a key and a value, then the keys again in another order. One layer of each kind was trained to
    answer each key with its value (``benchmarks/recall.py``). Nothing is computed here.

    Args:
        pairs: number of pairs in the text: 4, 8, 16 or 32.
        kind: the kind of layer: ``"attention"``, ``"window"`` (the last 4 tokens), the states ``"elu + 1"``, ``"sum"``,
            ``"delta"``, ``"gated delta"`` and ``"Performer"``, or ``"GRU"``.
        steps: number of training steps: 800, or 3200 for the kinds that were also trained longer.

    Raises:
        ValueError: if ``pairs``, ``kind`` or ``steps`` is none of those offered.
    """

    script = "recall"
    card = Card(
        title="Recall from a state of fixed size",
        question="How many pairs of a key and a value does one trained layer recall?",
        sentence=(
            "In the live figure you choose the number of pairs and the kind of layer. It shows the share of pairs that "
            "recorded layers recall, with each of three seeds."
        ),
        tries={
            "Attention, 32 pairs": {"kind": "attention", "pairs": 32},
            "The seeds of the delta rule": {"kind": "delta", "pairs": 8, "steps": 800},
            "The delta rule after 3200 steps": {"kind": "delta", "pairs": 8, "steps": 3200},
        },
    )

    pairs = traitlets.Enum([4, 8, 16, 32], 16).tag(sync=True)
    kind = traitlets.Enum(RECALL_KINDS, "elu + 1").tag(sync=True)
    steps = traitlets.Enum([800, 3200], 800).tag(sync=True)

    def shares(self, kind: str) -> list[float]:
        """Return the share recalled by a kind of layer with each seed; empty if it was not trained so long."""
        record = script_data(SCRIPT)
        [own] = [one for one in record["kinds"] if one["kind"] == kind]
        rows = own["shares"][record["steps"].index(self.steps)]
        return rows[record["pairs"].index(self.pairs)] if rows else []

    def still(self) -> str:
        """Draw the mean share that each kind of layer recalls."""
        means = {kind: sum(shares) / len(shares) for kind in RECALL_KINDS if (shares := self.shares(kind))}
        rows = [
            text(say(kind), x=84, y=24 * i + 16, anchor="end")
            + element("rect", class_="x-solid", x=92, y=24 * i + 4, width=180 * share, height=16)
            + text(f"{share:.2f}", x=98 + 180 * share, y=24 * i + 16)
            for i, (kind, share) in enumerate(means.items())
        ]
        alt = ", ".join(f"{say(kind)} {share:.2f}" for kind, share in means.items())
        described = say(
            "share of {pairs} pairs recalled after {steps} steps: {shares}",
            pairs=self.pairs,
            steps=self.steps,
            shares=alt,
        )
        return picture(320, 24 * len(rows) + 4, described, *rows)
