"""The reach explorer: sparse attention patterns, and what the last word can depend on after several layers."""

from itertools import islice

import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from lessons_lib.attention import masks
from lessons_lib.attention.rules import Causal, Dilated, GlobalTokens, Rule, Table, Window
from lessons_lib.attention.rules.ranges import true_ranges
from lessons_lib.page.widgets.arithmetic import uniform
from lessons_lib.page.widgets.drawing import element, picture, text
from lessons_lib.page.widgets.explorer import Card, Explorer
from lessons_lib.page.widgets.traits import Whole
from lessons_lib.page.widgets.words import mark, say

N = 60
MASKS = ["window", "dilated", "longformer", "bigbird"]
PATTERN_NAMES = {
    "window": mark("window"),
    "dilated": mark("dilated window"),
    "longformer": mark("Longformer"),
    "bigbird": mark("BigBird"),
}


class ReachExplorer(Explorer):
    """Choose a sparse attention pattern; the computed pairs and the reach of the last of 60 words follow.

    Args:
        way: ``"window"``, ``"dilated"``, ``"longformer"`` (window and global tokens) or ``"bigbird"`` (these and random
            keys), as in :mod:`lessons_lib.attention.rules`.
        window: number of visible keys to each side, the query's own position included.
        step: step between the keys of a dilated window.
        n_global: number of global tokens at the beginning, which attend to all words and are visible to all.
        n_random: number of random keys for each query.
        causal: apply the causal mask.
        layers: number of layers with this pattern.
        seed: seed of the random keys.

    Raises:
        ValueError: if ``way`` is none of those offered, ``window`` not in 1 .. 60, ``step`` or ``layers`` not in
            1 .. 8, ``n_global`` not in 0 .. 8, ``n_random`` not in 0 .. 16, or ``seed`` not in 0 .. 999.
    """

    script = "reach"
    card = Card(
        title="How far a sparse pattern reaches",
        question="After how many layers can the output of the last word depend on all words?",
        sentence=(
            "In the live figure you choose a sparse attention pattern and a number of layers. It shows the computed "
            "pairs, and how many words the output of the last word can depend on."
        ),
        tries={
            "A causal window": {"way": mark("window"), "window": 8, "layers": 8, "causal": True},
            "Longformer without a causal mask": {"way": "longformer", "n_global": 1, "layers": 2, "causal": False},
            "BigBird, causal": {"way": "bigbird", "n_random": 3, "layers": 4, "causal": True},
        },
    )

    way = traitlets.Enum(MASKS, "longformer").tag(sync=True)
    window = Whole(8, min=1, max=N).tag(sync=True)
    step = Whole(2, min=1, max=8).tag(sync=True)
    n_global = Whole(1, min=0, max=8).tag(sync=True)
    n_random = Whole(3, min=0, max=16).tag(sync=True)
    causal = traitlets.Bool(True).tag(sync=True)
    layers = Whole(2, min=1, max=8).tag(sync=True)
    seed = Whole(0, min=0, max=999).tag(sync=True)

    def rule(self) -> Rule:
        """Return the computed pairs as a rule of the library."""
        return pattern_rule(self.way, self.window, self.step, self.n_global, self.n_random, self.causal, self.seed)

    def reach_of_last(self) -> int:
        """Return how many words can influence the output of the last word after ``layers`` layers."""
        return int(masks.reach(self.rule().to_mask(N), self.layers)[-1].sum())

    def still(self) -> str:
        """Draw the pairs within reach, the computed pairs over them, and write the reach of the last word."""
        allowed = self.rule().to_mask(N)
        alt = say(
            "{pattern}: {computed} of {pairs} pairs are computed; {reached} of {n} words can influence the output of "
            "the last word through {layers} layers",
            pattern=say(PATTERN_NAMES[self.way]),
            computed=int(allowed.sum()),
            pairs=N * N,
            reached=self.reach_of_last(),
            n=N,
            layers=self.layers,
        )
        near = element("path", class_="x-fill", d=cells(masks.reach(allowed, self.layers), 4))
        computed = element("path", class_="x-may", d=cells(allowed, 4))
        ground = element("rect", class_="x-ground", x=0, y=0, width=4 * N, height=4 * N)
        axes = text(say("rows: queries, columns: keys"), x=0, y=4 * N + 16)
        return picture(300, 4 * N + 20, alt, ground, near, computed, axes)


def pattern_rule(way: str, window: int, step: int, n_global: int, n_random: int, causal: bool, seed: int) -> Rule:
    """Return a sparse pattern on the 60 words as a rule; the arguments are those of :class:`ReachExplorer`."""
    rule: Rule = Dilated(window, step) if way == "dilated" else Window(window)
    if way in {"longformer", "bigbird"}:
        rule = rule | GlobalTokens(range(n_global))
    if way == "bigbird":
        fixed = rule.to_mask(N)
        drawn = uniform_matrix(seed, N, N).masked_fill(fixed, -1.0).topk(n_random).indices
        rule = Table(fixed.scatter(-1, drawn, True))
    return rule & Causal() if causal else rule


def uniform_matrix(seed: int, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Return a matrix of the numbers in (0, 1) that the script draws from the seed."""
    return torch.tensor(list(islice(uniform(seed), rows * columns)), dtype=torch.float64).reshape(rows, columns)


def cells(allowed: Tensor, side: int) -> str:
    """Return an SVG path over the true entries of a Boolean matrix, with squares of this side."""
    return "".join(
        f"M{side * keys.start} {side * i}h{side * len(keys)}v{side}H{side * keys.start}z"
        for i, row in enumerate(allowed.numpy())
        for keys in true_ranges(row)
    )
