"""Train one layer of each kind to recall what it was told, all with the same room for it, each at a rate of its own.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. A kind is first
trained with another seed than those that are reported, at three rates; while the best of them is the largest or the
smallest tried, the next beyond it is tried, too. The best (mean accuracy over all numbers of pairs, on texts of that
seed) is then trained with three seeds, and five kinds also four times as long. A run leaves its accuracy for each
number of pairs. One thread, float32; about half an hour on one core. It writes after every run, and goes on where it
was.

``python benchmarks/recall.py`` writes ``benchmarks/results/recall.json``, which the chapter reads; its ``table`` says
for each kind how many numbers it keeps of a text with so many pairs, and how much it recalls. Its ``longer`` has the
same for the longer runs.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.records import ROOT, begun, defined, processor, write
from lessons_lib.attention.attention import attention
from lessons_lib.attention.rules import Causal, Window
from lessons_lib.efficient.delta import decayed_attention, delta_rule
from lessons_lib.efficient.linear import linear_attention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention
from lessons_lib.foundations.norms import LayerNorm, RMSNorm
from lessons_lib.training.loop import train
from lessons_lib.training.tasks import Batch
from lessons_lib.transformer.feedforward import FeedForward
from lessons_lib.transformer.initialise import rng_from

CHAPTER = ROOT / "book" / "efficient" / "sparse-and-linear.ipynb"
CELLS = (
    "recall-task", "recall-ways", "recall-states-1", "recall-states", "recall-layer", "recall-rivals", "recall-gru",
    "recall-mixing", "recall-model", "recall-forward", "recall-learn", "recall-accuracy",
)  # fmt: skip
KINDS = "attention", "window", "elu + 1", "sum", "delta", "gated delta", "Performer", "GRU"
PAIRS = 4, 8, 16, 32
N_STEPS = 800
LONGER, N_LONGER = ("elu + 1", "sum", "delta", "gated delta", "Performer"), 3200
RATES = 0.001, 0.003, 0.01, 0.03, 0.1
FIRST = 1, 2, 3  # of the rates
TUNED_ON, SEEDS = 100, (0, 1, 2)


def main() -> None:
    """Run what is missing, and write."""
    out, runs = begun(__doc__, "recall")
    code = cells()
    for kind in KINDS:
        while (wanted := missing(kind, runs)) is not None:
            rate, seed = wanted
            runs[line(kind, rate, seed)] = trained(code, kind, rate, seed)
            save(out, runs)
    for kind, seed in ((kind, seed) for kind in LONGER for seed in SEEDS):
        rate = best_rate(kind, runs)
        if (name := line(kind, rate, seed, N_LONGER)) not in runs:
            runs[name] = trained(code, kind, rate, seed, N_LONGER)
            save(out, runs)


def save(out: Path, runs: dict[str, Any]) -> None:
    """Write the record."""
    ordered = {name: runs[name] for kind in KINDS for name in lines(kind, runs)}
    write(
        out, "recall", ordered, processor=processor(), steps=N_STEPS, steps_longer=N_LONGER, pairs=PAIRS,
        tuned_on=TUNED_ON, seeds=SEEDS, table=rows(ordered), longer=longer_rows(ordered),
    )  # fmt: skip


def line(kind: str, rate: float, seed: int, n_steps: int = N_STEPS) -> str:
    """The name of a run."""
    return f"{kind}, rate {rate}, seed {seed}" + (f", {n_steps} steps" if n_steps != N_STEPS else "")


def tried(kind: str, runs: dict[str, Any]) -> dict[float, float]:
    """The rates that were tried, with the mean accuracy of each."""
    found = {rate: runs.get(line(kind, rate, TUNED_ON)) for rate in RATES}
    return {rate: sum(x) / len(x) for rate, x in found.items() if x is not None}


def best_rate(kind: str, runs: dict[str, Any]) -> float:
    """The rate with the largest mean accuracy."""
    score = tried(kind, runs)
    return max(score, key=score.__getitem__)


def missing(kind: str, runs: dict[str, Any]) -> tuple[float, int] | None:
    """Rate and seed of the next run of a kind; None if there is none."""
    score = tried(kind, runs)
    for place in FIRST:
        if RATES[place] not in score:
            return RATES[place], TUNED_ON
    best = best_rate(kind, runs)
    place = RATES.index(best)
    for beyond in (place - 1, place + 1):
        if 0 <= beyond < len(RATES) and RATES[beyond] not in score:
            return RATES[beyond], TUNED_ON
    return next(((best, seed) for seed in SEEDS if line(kind, best, seed) not in runs), None)


def lines(kind: str, runs: dict[str, Any]) -> list[str]:
    """The runs of a kind, in order."""
    names = [line(kind, rate, seed) for rate in RATES for seed in (TUNED_ON, *SEEDS)]
    names += [line(kind, rate, seed, N_LONGER) for rate in RATES for seed in SEEDS]
    return [name for name in names if name in runs]


def state(kind: str, n_pairs: int, wide: int = 32, few: int = 8) -> int:
    """How many numbers a layer keeps of a text with so many pairs, at its last token."""
    if kind == "attention":
        return 2 * n_pairs * 2 * wide
    if kind == "window":
        return few // 2 * 2 * wide
    return few * (wide + (kind in ("elu + 1", "Performer")))


def rows(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """The record as a table: a row for each kind and number of pairs, of kinds that are finished."""
    table = []
    for kind in KINDS:
        if missing(kind, runs) is not None:
            continue
        score, best = tried(kind, runs), best_rate(kind, runs)
        found = [runs[line(kind, best, seed)] for seed in SEEDS]
        table += [
            {
                "method": kind, "state": state(kind, n_pairs), "pairs": n_pairs,
                "accuracy": [round(each[i], 3) for each in found], "rate": best, "tried": sorted(score),
            }
            for i, n_pairs in enumerate(PAIRS)
        ]  # fmt: skip
    return table


def longer_rows(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """The longer runs as a table, of kinds whose seeds are all there."""
    table = []
    for kind in LONGER:
        rate = best_rate(kind, runs)
        names = [line(kind, rate, seed, N_LONGER) for seed in SEEDS]
        if all(name in runs for name in names):
            found = [runs[name] for name in names]
            table += [
                {"method": kind, "pairs": n_pairs, "accuracy": [round(each[i], 3) for each in found], "rate": rate}
                for i, n_pairs in enumerate(PAIRS)
            ]
    return table


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {
        "SEED": 0, "torch": torch, "nn": nn, "functional": functional, "partial": partial, "attention": attention,
        "Batch": Batch, "Causal": Causal, "Window": Window, "FeedForward": FeedForward, "LayerNorm": LayerNorm,
        "RMSNorm": RMSNorm, "decayed_attention": decayed_attention, "delta_rule": delta_rule,
        "rng_from": rng_from, "linear_attention": linear_attention, "train": train,
        "orthogonal_projection": orthogonal_projection, "performer_attention": performer_attention,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def trained(code: dict[str, Any], kind: str, rate: float, seed: int, n_steps: int = N_STEPS) -> list[float]:
    """Train one layer; return its accuracy for each number of pairs."""
    model = code["learn"](kind, rate, seed, n_steps=n_steps)
    return [round(code["accuracy"](model, n_pairs, seed), 3) for n_pairs in PAIRS]


if __name__ == "__main__":
    main()
