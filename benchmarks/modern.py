"""Train the block of 2017, that of 2025, and all that differ from one of them by one choice, for the chapter on both.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Each variant is tried
at two rates with one seed; the better rate is then used with three other seeds. A run leaves the nats above the floor
on held-out stories. The lines *gate* are of a model of GPT-2's kind with a GELU or a SwiGLU, from two starts at two
rates, with two seeds; where it says *its own*, the matrix before the bend or gate starts ten times as large. The lines
*wider* are of four variants at twice the larger rate, the lines *longer* of four variants with four times the steps,
at two rates. The lines with *√d* are of the block of 2025 with the factor on its embedding that goes with sines, or
with an embedding drawn so much larger, tuned as the variants are; so are the lines *no positions* and *ALiBi*. One
thread, float32; ten minutes on one idle core. It writes after every variant, and goes on where it was.

``python benchmarks/modern.py`` writes ``benchmarks/results/modern.json``, which the chapter reads.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.records import ROOT, Job, defined, record
from lessons_lib.training import stories, tasks
from lessons_lib.training.loop import evaluate, next_token_losses, train
from lessons_lib.transformer.blocks import PostNorm
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import initialise_normal, rng_from

CHAPTER = ROOT / "book" / "transformer" / "modern.ipynb"
CELLS = "kept-old", "compare-choices", "compare-post", "compare-build", "compare-learn"
RATES = 0.008, 0.016
WIDTH, STEPS = 48, 150
TRIED, SEEDS = 10, (0, 1, 2)
GATES, GATE_STARTS, GATE_SEEDS = ("gelu", "swiglu"), (0.02, 0.144), (0, 1)
WIDER = "2017", "2017, new position", "2025", "2025, old place"
LONGER, LONGER_RATES = ("2017", "2017, new position", "2025", "2025, old position"), (0.004, 0.008)
ROOT_D = WIDTH**0.5
# of which block, what its embedding is multiplied by, and how much larger it is drawn
SCALED = {
    "2025, times √d": ("2025", ROOT_D, 1.0),
    "2025, old place, times √d": ("2025, old place", ROOT_D, 1.0),
    "2025, drawn √d larger": ("2025", 1.0, ROOT_D),
    "2025, times √d, drawn √d smaller": ("2025", ROOT_D, 1 / ROOT_D),
}
POSITIONS = {
    f"{block}, {name}": (block, kind)
    for block in ("2025", "2017")
    for name, kind in (("no positions", "none"), ("ALiBi", "alibi"))
}


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    jobs: list[Job] = [
        (lines(name), lambda choice=choice: tuned(code, choice)) for name, choice in variants(code).items()
    ]
    jobs += [([line], lambda how=how: [gated(code, *how)]) for line, how in gates().items()]
    jobs += [([line], lambda how=how: [trained(code, *how)]) for line, how in untuned(code).items()]
    jobs += [
        (lines(name), lambda of=of, how=how: tuned(code, variants(code)[of], scale=how[0], larger=how[1]))
        for name, (of, *how) in SCALED.items()
    ]
    jobs += [(lines(name), lambda choice=choice: tuned(code, choice)) for name, choice in positions(code).items()]
    record(__doc__, "modern", jobs)


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {
        "SEED": 0, "torch": torch, "nn": nn, "stories": stories, "tasks": tasks, "PostNorm": PostNorm, "GPT": GPT,
        "GPTConfig": GPTConfig, "rng_from": rng_from, "initialise_normal": initialise_normal, "train": train,
        "evaluate": evaluate, "next_token_losses": next_token_losses,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def variants(code: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The two blocks and what lies one step from either, by name."""
    old, new = code["old"], code["new"]
    return {
        "2017": old,
        **{f"2017, new {name}": {**old, name: new[name]} for name in old},
        "2025": new,
        **{f"2025, old {name}": {**new, name: old[name]} for name in new},
    }


def gates() -> dict[str, tuple[str, float, float, float]]:
    """The runs with a bend or a gate: which, start, rate, and how many times as large the matrix before it starts."""
    alike = {
        f"gate: {gate}, start {start}, rate {rate}": (gate, start, rate, 1.0)
        for gate in GATES for start in GATE_STARTS for rate in RATES
    }  # fmt: skip
    own = {
        f"gate: {gate}, start 0.02, its own 0.2, rate {rate}": (gate, 0.02, rate, 10.0)
        for gate in GATES for rate in RATES
    }  # fmt: skip
    return alike | own


def untuned(code: dict[str, Any]) -> dict[str, tuple[dict[str, Any], float, Sequence[int], int]]:
    """Return the runs at a given rate by name: the choices, the rate, the seeds, and the number of steps."""
    runs: dict[str, tuple[dict[str, Any], float, Sequence[int], int]] = {
        f"wider: {name}, rate 0.032": (variants(code)[name], 0.032, GATE_SEEDS, STEPS) for name in WIDER
    }
    for name in LONGER:
        for rate in LONGER_RATES:
            runs[f"longer: {name}, rate {rate}"] = variants(code)[name], rate, SEEDS, 4 * STEPS
    return runs


def positions(code: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the two blocks without positions and with ALiBi, by name."""
    return {
        name: {**code["old" if block == "2017" else "new"], "position": kind}
        for name, (block, kind) in POSITIONS.items()
    }


def trained(
    code: dict[str, Any], choice: dict[str, Any], rate: float, seeds: Sequence[int], n_steps: int
) -> list[float]:
    """Train with each seed at this rate."""
    return [code["learn"](code["build"](choice, seed), seed, rate, n_steps) for seed in seeds]


def lines(name: str) -> list[str]:
    """The lines of one variant: what was tried, and the better rate with its runs."""
    return [*(f"{name}: tried rate {rate}" for rate in RATES), f"{name}: rate, runs"]


def tuned(
    code: dict[str, Any],
    choice: dict[str, Any],
    seeds: Sequence[int] = SEEDS,
    n_steps: int = STEPS,
    scale: float = 1.0,
    larger: float = 1.0,
) -> list[list[float]]:
    """Try each rate, and run the better one with seeds of its own.

    What the model looks up is multiplied by ``scale`` in each pass, and by ``larger`` once, at the start.
    """

    def loss(rate: float, seed: int) -> float:
        model = code["build"](choice, seed)
        model.embedding_scale *= scale
        with torch.no_grad():
            model.embedding.weight.mul_(larger)
        return code["learn"](model, seed, rate, n_steps)

    tried = {rate: loss(rate, TRIED) for rate in RATES}
    best = min(tried, key=lambda rate: tried[rate])
    return [*([found] for found in tried.values()), [best, *(loss(best, seed) for seed in seeds)]]


def gated(
    code: dict[str, Any], gate: str, start: float, rate: float, larger: float, n_steps: int = STEPS
) -> list[float]:
    """Train a model of GPT-2's kind, with learned positions, and this bend or gate."""
    choice = {**code["old"], "place": "pre", "position": "learned", "feedforward": gate}

    def loss(seed: int) -> float:
        model = code["build"](choice, seed, start)
        for block in model.blocks:
            layer = block.feedforward.sublayer
            with torch.no_grad():
                (layer.w_gate if gate == "swiglu" else layer.w_up).weight.mul_(larger)
        return code["learn"](model, seed, rate, n_steps)

    return [loss(seed) for seed in GATE_SEEDS]


if __name__ == "__main__":
    main()
