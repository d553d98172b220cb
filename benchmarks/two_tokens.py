"""Train the models that name two earlier tokens, of the chapter on several heads, for longer and at other rates.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Each run counts the
share of tokens named right, the one two places back and the one five places back, in 640 new sequences; then the same
with each head's weights replaced by their mean over these sequences, so that they depend on places only; then the
standard deviation, over the sequences, of the first head's weight two places back; and last, if weights and values are
both made from place and token, both shares with the mean weights for one part of the values alone, that of the places,
and that of the tokens. Three seeds; three rates, but for two of the long settings one. One thread, float32; ten minutes
on one idle core. It writes after every run, and goes on where it was.

``python benchmarks/two_tokens.py`` writes ``benchmarks/results/two-tokens.json``, which the chapter reads.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.records import ROOT, defined, record
from lessons_lib.attention.masks import causal
from lessons_lib.attention.multihead import MultiHeadAttention
from lessons_lib.training.loop import train

CHAPTER = ROOT / "book" / "attention" / "multi-head.ipynb"
CELLS = "two-model", "two-forward", "two-task", "two-learn", "two-right"
SEEDS, RATES = (0, 1, 2), (0.01, 0.003, 0.03)
# heads, what the weights are made from, and the values, steps, rates
SETTINGS = (
    (1, "place", "place token", 300, RATES),
    (2, "place", "place token", 300, RATES),
    (1, "place token", "place token", 300, RATES),
    (1, "place token", "place token", 3000, RATES[:1]),
    (1, "place token", "token", 3000, RATES),
    (1, "place", "place token", 3000, RATES[:1]),
)

NUMBERS = [
    "two back", "five back", "two back, mean weights", "five back, mean weights", "spread",
    "two back, mean weights for places", "five back, mean weights for places",
    "two back, mean weights for tokens", "five back, mean weights for tokens",
]  # fmt: skip


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    jobs = [([name], lambda how=how: [run(code, *how)]) for name, how in wanted().items()]
    record(__doc__, "two-tokens", jobs, numbers=NUMBERS)


def wanted() -> dict[str, tuple[int, str, str, int, float, int]]:
    """All runs by their names: heads, what weights and values are made from, steps, rate, seed; by rates."""
    return {
        f"heads: {heads}, weights: {weigh}, values: {value}, {steps} steps, rate {rate}, seed {seed}": (
            heads, weigh, value, steps, rate, seed,
        )
        for tried in RATES for heads, weigh, value, steps, rates in SETTINGS
        for rate in rates if rate == tried for seed in SEEDS
    }  # fmt: skip


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {
        "torch": torch, "nn": nn, "cross_entropy": cross_entropy, "causal": causal,
        "MultiHeadAttention": MultiHeadAttention, "train": train,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def run(code: dict[str, Any], heads: int, weigh: str, value: str, steps: int, rate: float, seed: int) -> list[float]:
    """Train one model; return both shares, both with the mean weights, the weights' spread, and the shares by part."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(1000 + seed)
    model = code["learn"](code["TwoBack"](heads, weigh, value), draw, steps, rate)
    test = torch.randint(16, (640, 16), generator=draw)
    weights = model.weights(test)
    mean = weights.mean(0, keepdim=True)
    shares = torch.cat([code["right"](model, test), code["right"](model, test, mean)])
    spread = weights[:, 0].std(0, correction=0).diagonal(-2)[3:].mean()
    parts = ("place", "token") if weigh == value == "place token" else ()
    by_part = [share.item() for part in parts for share in code["right"](weighed_anew(model, part, mean), test)]
    return [round(x, 3) for x in [*shares.tolist(), spread.item(), *by_part]]


def weighed_anew(model: nn.Module, part: str, weights: torch.Tensor) -> Callable[..., list[torch.Tensor]]:
    """The model with other weights for one part of its values; the rest is weighed as the model does.

    What is read is linear in the values, so the change of this part alone is added to what the model says.
    """
    whole = str(model.value)

    def said(x: torch.Tensor, _: None = None) -> list[torch.Tensor]:
        out = model(x)
        model.value = part  # pyright: ignore[reportArgumentType]
        changes = [new - old for new, old in zip(model(x, weights), model(x), strict=True)]
        model.value = whole  # pyright: ignore[reportArgumentType]
        return [said + change for said, change in zip(out, changes, strict=True)]

    return said


if __name__ == "__main__":
    main()
