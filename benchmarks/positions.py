"""Train the language models of the chapter on positions at other rates, with other knobs and other seeds.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ, and a run with seed 1
is what the page shows with ``SEED = 1``. Each line is the loss of the same characters after up to 32, 64, 128 and 256
characters of context. A model's knob is its own: the base of the rotation, the slopes of ALiBi. The last lines are
those of models with RoPE at two rates, read with clocks slowed down, as they are and after a little practice. One
thread, float32; twelve minutes on one idle core. It writes after every run, and goes on where it was.

``python benchmarks/positions.py`` writes ``benchmarks/results/positions.json``, which the chapter reads.
"""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.records import ROOT, Job, defined, record
from lessons_lib.training.datasets import ENGLISH_SHA256

CHAPTER = ROOT / "book" / "attention" / "positions.ipynb"
CELLS = (
    *("imports-positions", "length-imports", "length-data-parts", "length-data", "length-train-parts", "length-train"),
    *("length-evaluate", "length-bigram", "stretch-models-parts", "stretch-models", "tune-parts"),
)
SEEDS, RATES, FACTORS = (0, 1, 2), (0.008, 0.004, 0.002), (4.0, 8.0)  # the chapter's own rate is the first
# name: how the chapter's function is called
MODELS: dict[str, dict[str, Any]] = {
    "RoPE, base 10000": {"position": "rotary"},
    "RoPE, base 100": {"position": "rotary", "rope_base": 100.0},
    "ALiBi, slopes 1/16 and 1/256": {"position": "alibi"},
    "ALiBi, slopes 1/2 and 1/16": {"position": "alibi", "slopes": (1 / 2, 1 / 16)},
    "ALiBi, slopes 1 and 1/8": {"position": "alibi", "slopes": (1.0, 1 / 8)},
    "sines": {"position": "sinusoidal"},
    "none": {"position": "none"},
}


def main() -> None:
    """Run what is missing, and write."""
    record(__doc__, "positions", wanted(), contexts=[32, 64, 128, 256], text=ENGLISH_SHA256)


def wanted() -> Iterator[Job]:
    """All runs: the names of the lines that one gives, and what makes them."""
    for seed in SEEDS:
        yield [f"letter pairs, seed {seed}"], lambda seed=seed: [4 * [float(cells(seed)["bigram"])]]
    for rate in RATES:
        for seed in SEEDS:
            for name, how in MODELS.items():
                told = f"{name}, rate {rate}, seed {seed}"
                yield [told], lambda how=how, rate=rate, seed=seed: [read(cells(seed), how, rate)]
    for rate in RATES[:2]:
        for seed in SEEDS:
            code = cells(seed, run=False)
            names = [
                f"RoPE slowed by {factor:g}, {way}, {when}, rate {rate}, seed {seed}"
                for factor in FACTORS for way in code["ways_by"](factor) for when in ("as it is", "practised")
            ]  # fmt: skip
            yield names, lambda rate=rate, seed=seed: slowed(cells(seed), rate)


def cells(seed: int, *, run: bool = True) -> dict[str, Any]:
    """What the chapter's cells define with this seed; without ``run`` only what needs no text."""
    names = CELLS if run else ("imports-positions", "stretch-models")
    return defined(CHAPTER, names, {"torch": torch, "SEED": seed})


def read(code: dict[str, Any], how: dict[str, Any], rate: float) -> list[float]:
    """Train one model; return its loss with each length of context."""
    return code["losses"](code["trained_model"](**how, lr=rate)).tolist()


def slowed(code: dict[str, Any], rate: float) -> list[list[float]]:
    """Train the chapter's model with RoPE; return its losses with slower clocks, without practice and with it."""
    model, found = code["trained_model"]("rotary", lr=rate), []
    for factor in FACTORS:
        for way in code["ways_by"](factor).values():
            found += [code["losses"](code["stretched"](model, way)).tolist(), code["tuned"](model, way).tolist()]
    return found


if __name__ == "__main__":
    main()
