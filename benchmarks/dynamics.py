"""Train the small models of the chapter on how training breaks for longer, at other rates, and with other seeds.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Each run leaves the
mean loss of its last steps (ten, or a twelfth of all if these are more), those of the hurried model that of the last
twenty, and the mean entropy of its heads; a stuck run that goes on leaves the loss of the last 90, and the spread
behind its last block. One thread, float32; a quarter of an hour on one idle core. It writes after every run, and goes
on where it was.

``python benchmarks/dynamics.py`` writes ``benchmarks/results/dynamics.json``, which the chapter reads.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.records import ROOT, defined, record
from lessons_lib.analysis import diagnostics
from lessons_lib.training import loop as training
from lessons_lib.training import stories, tasks
from lessons_lib.transformer import stabilise
from lessons_lib.transformer.blocks import PostNorm
from lessons_lib.transformer.gpt import GPT, GPTConfig
from lessons_lib.transformer.initialise import initialise, initialise_normal, initialise_xavier, rng_from

CHAPTER = ROOT / "book" / "training" / "dynamics.ipynb"
CELLS = "init-starts", "warmup-model", "warmup-learn", "warmup-inside", "entropy-run", "entropy-rush"
SEEDS = 0, 1, 2
STARTS = "Xavier, normal", "He", "0.02", "0.02 and 1/√2L"
# Post-LN, steps, warm-up, rate, start
PLACES = {
    **{
        f"{'Post' if post else 'Pre'}-LN, 6 layers, {steps} steps, warm-up {warmup}, rate {rate}": (
            post, steps, warmup, rate, STARTS[0],
        )
        for steps, warmup, rates in (
            (120, 0, (0.001, 0.003, 0.01)),
            (120, 60, (0.01,)),
            (300, 100, (0.001, 0.003, 0.01)),
        )
        for rate in rates for post in (True, False)
    },
    "Post-LN, 6 layers, 1200 steps, warm-up 0, rate 0.01": (True, 1200, 0, 0.01, STARTS[0]),
}  # fmt: skip
STARTED = {f"{start}, rate {rate}": (False, 120, 60, rate, start) for start in STARTS for rate in (0.003, 0.01, 0.03)}
# treatment, rate, warm-up, clip
HURRIED = {
    "plain": (None, 0.03, 0, None),
    "clipped at 1": (None, 0.03, 0, 1.0),
    "warm-up": (None, 0.03, 30, None),
    "QK-norm": (stabilise.apply_qk_norm, 0.03, 0, None),
    "sigmaReparam": (stabilise.apply_sigma_reparam, 0.03, 0, None),
    "rate 0.005": (None, 0.005, 0, None),
    "rate 0.01": (None, 0.01, 0, None),
    "rate 0.01, warm-up": (None, 0.01, 30, None),
    "rate 0.3": (None, 0.3, 0, None),
}
# Whether Adam is a new one, rate
RESTARTED = {
    **{f"new Adam, rate {rate}": (True, rate) for rate in (0.01, 0.003, 0.001)},
    "old Adam, rate 0.001": (False, 0.001),
}


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    kinds: dict[str, Callable[..., list[float]]] = {
        "hurried": hurried, "places": trained, "starts": trained, "restarted": restarted,
    }  # fmt: skip
    jobs = [
        ([name], lambda kind=kind, how=how, seed=seed: [kinds[kind](code, *how, seed)])
        for name, (kind, how, seed) in wanted().items()
    ]
    record(__doc__, "dynamics", jobs)


def wanted() -> dict[str, tuple[str, tuple[Any, ...], int]]:
    """All runs by their names: of which kind, how, seed."""
    kinds = {"hurried": HURRIED, "places": PLACES, "starts": STARTED, "restarted": RESTARTED}
    return {
        f"{kind}: {name}, seed {seed}": (kind, how, seed)
        for kind, settings in kinds.items() for name, how in settings.items() for seed in SEEDS
    }  # fmt: skip


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {
        "SEED": 0, "math": math, "torch": torch, "nn": nn, "diagnostics": diagnostics, "stories": stories,
        "tasks": tasks, "training": training, "PostNorm": PostNorm, "GPT": GPT, "GPTConfig": GPTConfig,
        "rng_from": rng_from, "initialise": initialise, "initialise_normal": initialise_normal,
        "initialise_xavier": initialise_xavier,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def trained(
    code: dict[str, Any], post: bool, steps: int, warmup: int, rate: float, start: str, seed: int
) -> list[float]:
    """Train one of the models of six layers; return its loss at the end."""
    model = code["new_model"](post, start, seed=seed)
    found = code["losses"](model, steps, rate, n_warmup=warmup, seed=seed)
    return [round(found[-max(10, steps // 12) :].mean().item(), 3)]


def hurried(code: dict[str, Any], treat: Any, rate: float, warmup: int, clip: float | None, seed: int) -> list[float]:
    """Train the model of two layers; return its loss and the mean entropy of its heads at the end."""
    _, loss, heads = code["rush"](treat, rate, seed, n_warmup=warmup, clip=clip)
    return [round(loss.item(), 3), round(heads[-1].mean().item(), 3)]


def restarted(
    code: dict[str, Any], is_new: bool, rate: float, seed: int, steps: tuple[int, int] = (120, 1080)
) -> list[float]:
    """Let a stuck run, Post-LN without warm-up, go on, with a new Adam or with its own; return its loss and spread."""
    model, adam, found = code["new_model"](post=True, seed=seed), None, []
    for n_steps, lr, drawn in zip(steps, (0.01, rate), (seed, seed + len(SEEDS)), strict=True):
        if adam is None or is_new:
            adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.999), weight_decay=0.0)
        source = torch.Generator().manual_seed(drawn)
        batches = tasks.stream(stories.sample_stories, source, batch_size=16, n=model.config.n_context)
        config = training.TrainConfig(n_steps=n_steps, lr=lr, final_share=0.0, clip=None)
        run = training.Training(model, config, optimizer=adam)
        found = [each.loss for each in run.run(batches, progress=False)]
    *_, last = diagnostics.summarise_layers(code["look"](model)).values()
    return [sum(found[-90:]) / len(found[-90:]), last.token_spread]


if __name__ == "__main__":
    main()
