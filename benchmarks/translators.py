"""Train the two translators of the chapter on why attention for longer, wider, at other rates and with other seeds.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Each run counts the
share of words right, every word judged given the right words before it, in 300 new sentences of each length. Settings
of 400 steps are run at three rates, the long one at the middle one alone. One thread, float32; five minutes on one
idle core. It writes after every run, and goes on where it was.

``python benchmarks/translators.py`` writes ``benchmarks/results/translators.json``, which the chapter reads.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.records import ROOT, defined, record
from lessons_lib.attention.attention import attention_weights

CHAPTER = ROOT / "book" / "attention" / "why-attention.ipynb"
CELLS = "origin-task", "origin-model", "origin-forward", "origin-train", "origin-judge"
LENGTHS, SEEDS, RATES = list(range(2, 25, 2)), (0, 1, 2), (0.005, 0.01, 0.02)
# looks back, width of the state, steps, rates
SETTINGS = (
    (True, 32, 400, RATES),
    (False, 16, 400, RATES),
    (False, 32, 400, RATES),
    (False, 64, 400, RATES),
    (False, 128, 400, RATES),
    (False, 32, 2000, RATES[1:2]),
)


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    jobs = [([name], lambda how=how: [run(code, *how)]) for name, how in wanted().items()]
    record(__doc__, "translators", jobs, lengths=LENGTHS)


def wanted() -> dict[str, tuple[bool, int, int, float, int]]:
    """All runs by their names: looks back, width, steps, rate, seed."""
    return {
        f"{'looks back' if back else 'one vector'}, width {width}, {steps} steps, rate {rate}, seed {seed}": (
            back, width, steps, rate, seed,
        )
        for back, width, steps, rates in SETTINGS for rate in rates for seed in SEEDS
    }  # fmt: skip


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {"torch": torch, "nn": nn, "cross_entropy": cross_entropy, "attention_weights": attention_weights}
    return defined(CHAPTER, CELLS, given)


def run(code: dict[str, Any], looks_back: bool, width: int, steps: int, rate: float, seed: int) -> list[float]:
    """Train one translator; return its share of words right at each length."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(1000 + seed)
    model = code["trained"](looks_back, draw, steps, width, rate)
    return [round(code["share_right"](model, length, draw), 3) for length in LENGTHS]


if __name__ == "__main__":
    main()
