"""Train the models of the chapter on what a head does with other seeds, for longer, and in other shapes.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. A run of the task of
repetition leaves the share that is predicted right, the best previous-token score of its first layer and the best
induction score of its last, at the first step, after every so many, and at the end. A storyteller leaves, for each of
its eight heads, the weight on the subject across a noun of the other number and how likely the right number is without
the head; then the same for the whole model, and for each pair of heads without both. One thread, float32; about five
minutes on one idle core. It writes after every run, and goes on where it was.

``python benchmarks/patterns.py`` writes ``benchmarks/results/patterns.json``, which the chapter reads.
"""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import torch

from benchmarks.records import ROOT, defined, record
from lessons_lib.analysis import patterns
from lessons_lib.analysis.diagnostics import observe
from lessons_lib.analysis.interventions import ablate_heads
from lessons_lib.training import stories, tasks
from lessons_lib.training.loop import train
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import initialise_normal, rng_from

CHAPTER = ROOT / "book" / "transformer" / "patterns.ipynb"
CELLS = (
    "birth-positions", "birth-add", "birth-initialise", "birth-model", "birth-task", "birth-measures", "birth-learn",
    "subject-train", "subject-words", "subject-verbs", "subject-agreement", "subject-heads",
)  # fmt: skip
# what to build, steps, rate, after how many steps to look, seeds
TRAINED = {
    "two layers": ({}, 300, 0.005, 30, 3),
    "two layers, 1200 steps": ({}, 1200, 0.005, 400, 3),
    "one layer": ({"n_layers": 1}, 1500, 0.005, 300, 1),
    "one layer, width 128": ({"n_layers": 1, "d": 128}, 600, 0.005, 150, 1),
    "one layer, four heads": ({"n_layers": 1, "n_heads": 4}, 900, 0.005, 300, 1),
    "positions in the stream, 0.02": ({"in_stream": 0.02}, 600, 0.005, 200, 2),
    "positions in the stream, 0.5": ({"in_stream": 0.5}, 2400, 0.005, 600, 3),
}
TELLERS = 4


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    jobs = [([name], lambda run=run: [run(code)]) for name, run in wanted().items()]
    record(__doc__, "patterns", jobs)


def wanted() -> dict[str, Callable[..., list[float]]]:
    """All runs by their names: what takes the chapter's code and gives the numbers."""
    runs = {f"storyteller, seed {seed}": partial(told, seed=seed) for seed in range(TELLERS)}
    for name, (build, n_steps, lr, every, seeds) in TRAINED.items():
        for seed in range(seeds):
            runs[f"{name}, seed {seed}"] = partial(born, build=build, n_steps=n_steps, lr=lr, every=every, seed=seed)
    return runs


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {
        "SEED": 0, "torch": torch, "patterns": patterns, "stories": stories, "tasks": tasks, "GPT": GPT,
        "GPTConfig": GPTConfig, "rng_from": rng_from, "initialise_normal": initialise_normal, "train": train,
        "observe": observe, "ablate_heads": ablate_heads,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def born(code: dict[str, Any], build: dict[str, Any], n_steps: int, lr: float, every: int, seed: int) -> list[float]:
    """Train one model of repetition; return three numbers for each look at it."""
    rows = code["learn"](code["new_model"](**build, seed=seed), n_steps, lr, every, seed)
    return rows[:, 1:].flatten().tolist()


def told(code: dict[str, Any], seed: int) -> list[float]:
    """Train one storyteller; return two numbers for each head, one for the whole and one for each pair."""
    model = code["storyteller"](seed)
    without = [
        code["agreement"](ablate_heads(model, code["test_stories"].inputs, pair, "mean"))
        for pair in [(), *combinations(code["HEADS"], 2)]
    ]
    return [*code["head_table"](model).flatten().tolist(), *without]


if __name__ == "__main__":
    main()
