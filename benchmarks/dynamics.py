"""Train the small models of the chapter on training dynamics for longer, at other rates, and with other seeds.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Each run leaves the
mean loss of its last steps (ten, or a twelfth of all if these are more), those of the hurried model that of the last
twenty, and the mean entropy of its heads; a stuck run that goes on leaves the loss of the last 90, and the spread
behind its last block. One thread, float32; twenty minutes on one idle core. It writes after every run, and goes
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
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import initialise, initialise_normal, initialise_xavier, rng_from

CHAPTER = ROOT / "book" / "training" / "dynamics.ipynb"
CELLS = "init-starts", "warmup-model", "warmup-learn", "warmup-inside", "entropy-run", "entropy-rush"
SEEDS = 0, 1, 2
RATES = 0.001, 0.003, 0.01
STARTS = "Xavier, normal", "He", "0.02", "0.02 and 1/√2L"


def _places(post: bool, steps: int, warmup: int, rate: float, n_layers: int = 6, **how: Any) -> dict[str, Any]:
    """Return the name and the settings of a model of stories, with the norm after the sum or before the sublayer."""
    name = f"{'Post' if post else 'Pre'}-LN, {n_layers} layers, {steps} steps, warm-up {warmup}"
    name += f", clipped at {how['clip']:g}, rate {rate}" if "clip" in how else f", rate {rate}"
    return {name: {"post": post, "steps": steps, "warmup": warmup, "rate": rate, "n_layers": n_layers} | how}


PLACES = {
    name: {"start": STARTS[0]} | how
    for settings in (
        *(_places(post, 120, 0, rate) for rate in RATES for post in (True, False)),
        *(_places(post, 120, 60, 0.01) for post in (True, False)),
        *(_places(post, 300, 100, rate) for rate in RATES for post in (True, False)),
        _places(False, 480, 0, 0.01),
        _places(True, 480, 0, 0.01, n_layers=3),
        *(_places(post, 480, 0, 0.01, n_layers=12) for post in (True, False)),
        _places(True, 480, 0, 0.01, clip=1.0),
        _places(True, 1200, 0, 0.01),
    )
    for name, how in settings.items()
}
STARTED = {
    f"{start}, rate {rate}": {"post": False, "steps": 120, "warmup": 60, "rate": rate, "start": start}
    for start in STARTS for rate in (0.003, 0.01, 0.03)
} | {
    f"{start}, 480 steps, rate 0.01": {"post": False, "steps": 480, "warmup": 60, "rate": 0.01, "start": start}
    for start in STARTS[:3]
}  # fmt: skip
# treatment, rate, warm-up, clip
TREATED = {
    "plain": (None, 0.03, 0, None),
    "clipped at 1": (None, 0.03, 0, 1.0),
    "warm-up": (None, 0.03, 30, None),
    "QK-norm": (stabilise.apply_qk_norm, 0.03, 0, None),
    "sigmaReparam": (stabilise.apply_sigma_reparam, 0.03, 0, None),
    "rate 0.005": (None, 0.005, 0, None),
    "rate 0.06, warm-up": (None, 0.06, 30, None),
    "rate 0.06, warm-up over 90": (None, 0.06, 90, None),
    "rate 0.01": (None, 0.01, 0, None),
    "rate 0.01, warm-up": (None, 0.01, 30, None),
    "rate 0.3": (None, 0.3, 0, None),
}
HURRIED = {
    f"{name}{'' if steps == 100 else f', {steps} steps'}": {
        **dict(zip(("treat", "rate", "warmup", "clip"), how, strict=True)), "steps": steps,
    }
    for steps in (100, 400) for name, how in list(TREATED.items())[: 8 if steps == 400 else None]
}  # fmt: skip
RESTARTED = {
    **{f"new Adam, rate {rate}": {"is_new": True, "rate": rate} for rate in (0.01, 0.003, 0.001)},
    "old Adam, rate 0.001": {"is_new": False, "rate": 0.001},
}


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    kinds: dict[str, Callable[..., list[float]]] = {
        "hurried": hurried, "places": trained, "starts": trained, "restarted": restarted,
    }  # fmt: skip
    jobs = [
        ([name], lambda kind=kind, how=how, seed=seed: [kinds[kind](code, **how, seed=seed)])
        for name, (kind, how, seed) in wanted().items()
    ]
    record(__doc__, "dynamics", jobs)


def wanted() -> dict[str, tuple[str, dict[str, Any], int]]:
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
    code: dict[str, Any],
    post: bool,
    steps: int,
    warmup: int,
    rate: float,
    start: str,
    seed: int,
    n_layers: int = 6,
    **how: Any,
) -> list[float]:
    """Train a model of stories; return its loss at the end."""
    model = code["new_model"](post, start, n_layers, seed)
    found = code["losses"](model, steps, rate, n_warmup=warmup, seed=seed, **how)
    return [round(found[-max(10, steps // 12) :].mean().item(), 3)]


def hurried(
    code: dict[str, Any], treat: Any, rate: float, warmup: int, clip: float | None, seed: int, steps: int = 100
) -> list[float]:
    """Train the model of two layers; return its loss and the mean entropy of its heads at the end."""
    _, loss, heads = code["rush"](treat, rate, seed, steps, n_warmup=warmup, clip=clip)
    return [round(loss.item(), 3), round(heads[-1].mean().item(), 3)]


def restarted(
    code: dict[str, Any],
    is_new: bool,
    rate: float,
    seed: int,
    steps: tuple[int, int] = (120, 1080),
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
