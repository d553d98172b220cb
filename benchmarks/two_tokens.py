"""Train the models of the chapter on multi-head attention that predict two earlier tokens, longer and at other rates.

The code is the chapter's: its cells are read and run, so that page and record cannot differ. Each run records the
accuracy on the token two positions back and on the token five positions back, in 640 new sequences; then both
accuracies with the weights of each head replaced by their mean over these sequences, so that they depend on positions
only; then the standard deviation, over the sequences, of the first head's weight two positions back. If the weights
are made from position and token, both accuracies follow with the mean weights for one part of the values only: the
position part, and the token part. Three seeds; three learning rates for the first settings, one for the others. One
thread, float32; ten minutes on one idle core. The record is written after every run, and a restarted command continues.

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
CELLS = "two-model", "two-forward", "two-task", "two-learn"
SEEDS, RATES = (0, 1, 2), (0.01, 0.003, 0.03)
# heads, what the weights are made from, steps, learning rates; values are made from position and token
SETTINGS = (
    (1, "position", 300, RATES),
    (2, "position", 300, RATES),
    (1, "position token", 300, RATES),
    (1, "position token", 3000, RATES[:1]),
    (1, "position token", 12_000, RATES[:1]),
    (1, "position", 3000, RATES[:1]),
    (2, "position token", 300, RATES[:1]),
)

NUMBERS = [
    "two back", "five back", "two back, mean weights", "five back, mean weights", "spread",
    "two back, mean weights for positions", "five back, mean weights for positions",
    "two back, mean weights for tokens", "five back, mean weights for tokens",
]  # fmt: skip


def main() -> None:
    """Run what is missing, and write the record."""
    code = cells()
    jobs = [([name], lambda how=how: [run(code, *how)]) for name, how in wanted().items()]
    record(__doc__, "two-tokens", jobs, numbers=NUMBERS)


def wanted() -> dict[str, tuple[int, str, int, float, int]]:
    """Return heads, what weights are made from, steps, learning rate and seed of all runs by name, ordered by rate."""
    return {
        f"heads: {heads}, weights: {weights_from}, {steps} steps, rate {rate}, seed {seed}": (
            heads, weights_from, steps, rate, seed,
        )
        for tried in RATES for heads, weights_from, steps, rates in SETTINGS
        for rate in rates if rate == tried for seed in SEEDS
    }  # fmt: skip


def cells() -> dict[str, Any]:
    """Return what the chapter's cells define."""
    given = {
        "torch": torch, "nn": nn, "cross_entropy": cross_entropy, "causal": causal,
        "MultiHeadAttention": MultiHeadAttention, "train": train,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def run(code: dict[str, Any], heads: int, weights_from: str, steps: int, rate: float, seed: int) -> list[float]:
    """Train one model; return both accuracies, both with mean weights, the weights' spread, and accuracies by part."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(1000 + seed)
    accuracies = code["accuracies"]
    model = code["train_two_back"](code["TwoBack"](heads, weights_from), rng, steps, rate)
    test = torch.randint(16, (640, 16), generator=rng)
    weights = model.weights(test)
    mean = weights.mean(0, keepdim=True)
    both = torch.cat([accuracies(model, test), accuracies(model, test, mean)])
    spread = weights[:, 0].std(0, correction=0).diagonal(-2)[3:].mean()
    parts = ("position", "token") if "token" in weights_from else ()
    by_part = [value.item() for part in parts for value in accuracies(with_weights_for(model, part, mean), test)]
    return [round(x, 3) for x in [*both.tolist(), spread.item(), *by_part]]


def with_weights_for(model: nn.Module, part: str, weights: torch.Tensor) -> Callable[..., list[torch.Tensor]]:
    """Return the model with the given weights for one part of its values, and its own weights for the rest.

    The logits are linear in the values, so the change of this part alone is added to the logits of the model.
    """
    whole = str(model.values_from)

    def logits(x: torch.Tensor, _: None = None) -> list[torch.Tensor]:
        own = model(x)
        model.values_from = part  # pyright: ignore[reportArgumentType]
        changes = [new - old for new, old in zip(model(x, weights), model(x), strict=True)]
        model.values_from = whole  # pyright: ignore[reportArgumentType]
        return [logit + change for logit, change in zip(own, changes, strict=True)]

    return logits


if __name__ == "__main__":
    main()
