"""Train the language models of the chapter on positions for longer, at other learning rates and with other seeds.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ, and a run with seed 1
is what the page shows with ``SEED = 1``. A line holds the loss of the same characters with 32, 64, 128 and 256
characters of context, unless it says otherwise.

The lines come in two groups. First, 300 steps as on the page: every kind of position at three learning rates, and
RoPE with scaled frequencies at two rates. Then 2000 steps at rate 0.004, and 8000 for two models, on which the
chapter's conclusions rest. Each of these models is also read through a window of 32 keys; ``weight far back`` holds
the weight on keys 32 and more back of the four heads, layer by layer. The models with RoPE and 2000 steps are also
read with far keys rotated as if they were nearer, with far keys that count as one, with the wrong pairs and with
scaled frequencies, before and after some steps at 256 characters.

One thread, float32; about half an hour on one idle core. It writes after every run, and goes on where it was.

``python benchmarks/positions.py`` writes ``benchmarks/results/positions.json``, which the chapter reads.
"""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.records import ROOT, Job, defined, record
from lessons_lib.training.datasets import ENGLISH_SHA256

CHAPTER = ROOT / "book" / "attention" / "positions.ipynb"
CELLS = (
    *("imports-positions", "length-imports", "length-data", "length-stream", "length-train", "length-evaluate"),
    *("length-bigram", "length-window-parts", "length-crowd-parts", "length-few-parts", "length-pairs-parts"),
    *("stretch-models-parts", "stretch-models", "tune-parts", "far-parts"),
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
ROPE, SHALLOW, STEEP = (list(MODELS)[i] for i in (0, 2, 4))
# model, steps, rate, seeds
LONG_RUNS: tuple[tuple[str, int, float, tuple[int, ...]], ...] = (
    *((name, 2000, 0.004, SEEDS) for name in (ROPE, SHALLOW, STEEP)),
    *((name, 8000, 0.004, SEEDS[:1]) for name in (SHALLOW, ROPE)),
    *((name, 2000, 0.004, SEEDS) for name in ("sines", "none")),
)


def main() -> None:
    """Run what is missing, and write."""
    record(__doc__, "positions", wanted(), contexts=[32, 64, 128, 256], text=ENGLISH_SHA256)


def wanted() -> Iterator[Job]:
    """Yield all runs: the names of the lines that one gives, and what makes them."""
    for seed in SEEDS:
        yield [f"letter pairs, seed {seed}"], lambda seed=seed: [4 * [float(cells(seed)["bigram"])]]
    for rate in RATES:
        for seed in SEEDS:
            for name, how in MODELS.items():
                line = f"{name}, rate {rate}, seed {seed}"
                yield [line], lambda how=how, rate=rate, seed=seed: [read(cells(seed), how, rate)]
    ways = list(cells(0, run=False)["scalings"](2.0))
    for rate in RATES[:2]:
        for seed in SEEDS:
            names = [
                f"RoPE slowed by {factor:g}, {way}, {when}, rate {rate}, seed {seed}"
                for factor in FACTORS for way in ways for when in ("as it is", "practised")
            ]  # fmt: skip
            yield names, lambda rate=rate, seed=seed: slowed(cells(seed), rate)
    for name, n_steps, rate, seeds in LONG_RUNS:
        for seed in seeds:
            run = f"{name}, {n_steps} steps, rate {rate}, seed {seed}"
            lines = [run, *(f"{run}: {reading}" for reading in readings(name, n_steps, ways))]
            yield lines, lambda name=name, n=n_steps, rate=rate, seed=seed: long_run(cells(seed), name, n, rate)


def cells(seed: int, *, run: bool = True) -> dict[str, Any]:
    """Return what the chapter's cells define with this seed; without ``run`` only what needs no text."""
    names = CELLS if run else ("imports-positions", "stretch-models")
    return defined(CHAPTER, names, {"torch": torch, "SEED": seed})


def read(code: dict[str, Any], how: dict[str, Any], rate: float) -> list[float]:
    """Train one model as the page does; return its loss with each length of context."""
    return code["losses"](code["trained_model"](**how, lr=rate)).tolist()


def slowed(code: dict[str, Any], rate: float) -> list[list[float]]:
    """Train the page's model with RoPE; return its losses with lower frequencies, without fine-tuning and with it."""
    model, found = code["trained_model"]("rotary", lr=rate), []
    for factor in FACTORS:
        for scaling in code["scalings"](factor).values():
            for reader in (code["stretched"](model, scaling), code["fine_tuned"](model, scaling)):
                found.append(code["losses"](reader).tolist())
    return found


def is_read_often(name: str, n_steps: int) -> bool:
    """Return whether a model is read in every way: RoPE after 2000 steps."""
    return (name, n_steps) == (ROPE, 2000)


def readings(name: str, n_steps: int, ways: list[str]) -> list[str]:
    """Return the names of the ways in which a model is read after a long run, besides its own."""
    found = ["window of 32", "weight far back"]
    if is_read_often(name, n_steps):
        found += [*(f"far keys at {distance}" for distance in (16, 24, 31)), "far keys as one", "wrong pairs"]
        found += [f"{way} by {factor}" for factor in (2, 4, 8) for way in ways[1:]]
        found += [f"{way} by 8, {n} steps at 256" for n in (30, 120) for way in ways]
    return found


def long_run(code: dict[str, Any], name: str, n_steps: int, rate: float) -> list[list[float]]:
    """Train one model for longer than the page does; return its losses in each of its readings."""
    model = code["trained_model"](**MODELS[name], lr=rate, n_steps=n_steps)
    models = [model, code["Windowed"](model)]
    if is_read_often(name, n_steps):
        with_attention, scalings = code["with_attention"], code["scalings"]
        models += [with_attention(model, code["far_keys_at"](distance)) for distance in (16, 24, 31)]
        models += [with_attention(model, code["far_keys_as_one"]), code["with_wrong_pairs"](model)]
        ways = [way for factor in (2.0, 4.0, 8.0) for way in list(scalings(factor).values())[1:]]
        models += [code["stretched"](model, way) for way in ways]
        models += [code["fine_tuned"](model, way, n) for n in (30, 120) for way in scalings(8.0).values()]
    found = [code["losses"](each).tolist() for each in models]
    return [*found[:2], code["weight_far_back"](model).flatten().tolist(), *found[2:]]


if __name__ == "__main__":
    main()
