"""Train the models of the chapter on training a GPT at other rates, in half the bytes, and on English.

The code is the chapter's own: its cells are read and run, so that page and record cannot differ. Each run on stories
leaves its gap to the grammar in nats, each on English its held-out loss; that of two processes, which ``torchrun``
starts, leaves the common logarithm of the largest difference between their weights and those of one process, in double
precision. One thread each; half an hour on one idle core. It writes after every run, and goes on where it was.

``python benchmarks/train_gpt.py`` writes ``benchmarks/results/train-gpt.json``, which the chapter reads.
"""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.records import ROOT, defined, record
from lessons_lib.training import loop as training
from lessons_lib.training import stories, tasks
from lessons_lib.training.datasets import ENGLISH_SHA256
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import rng_from

CHAPTER = ROOT / "book" / "transformer" / "train-gpt.ipynb"
CELLS = "floor", "gap", "model", "english-text", "english-batches"
SEEDS = 0, 1, 2
MORE = 3, 4, 5  # where formats are compared, seed by seed
RATES = 0.0003, 0.001, 0.003, 0.01, 0.03
# steps, batch, rate, final share of the rate, number format
STORIES = {
    **{f"rate {rate}": (250, 32, rate, 0.05, "float32") for rate in RATES},
    "weights in bfloat16": (250, 32, 0.003, 0.05, "bfloat16"),
    "bfloat16 with a float32 copy": (250, 32, 0.003, 0.05, "copy"),
    **{f"rate {rate}, 1000 steps": (1000, 32, rate, 0.05, "float32") for rate in RATES[1:]},
    "weights in bfloat16, 1000 steps": (1000, 32, 0.003, 0.05, "bfloat16"),
    "bfloat16 with a float32 copy, 1000 steps": (1000, 32, 0.003, 0.05, "copy"),
}  # fmt: skip
FORMATS = "rate 0.003", "weights in bfloat16", "bfloat16 with a float32 copy"
# steps, rate, layers, width
ENGLISH = {f"rate {rate}": (250, rate, 2, 64) for rate in (0.003, 0.01, 0.03)}
WORKER = ROOT / "tests" / "training" / "data_parallel_worker.py"


def main() -> None:
    """Run what is missing, and write."""
    code = cells()
    on_stories: Callable[..., list[float]] = told
    on_english: Callable[..., list[float]] = written
    jobs = [
        ([f"stories: {name}, seed {seed}"], lambda how=how, seed=seed: [on_stories(code, *how, seed)])
        for name, how in STORIES.items() for seed in (SEEDS + MORE if name in FORMATS else SEEDS)
    ]  # fmt: skip
    jobs += [
        ([f"english: {name}, seed {seed}"], lambda how=how, seed=seed: [on_english(code, *how, seed)])
        for name, how in ENGLISH.items() for seed in SEEDS
    ]  # fmt: skip
    record(__doc__, "train-gpt", [(["two processes"], lambda: [[apart()]]), *jobs], text=ENGLISH_SHA256)


def cells() -> dict[str, Any]:
    """What the chapter's cells define."""
    given = {
        "SEED": 0, "V": len(stories.VOCABULARY), "math": math, "torch": torch, "stories": stories, "tasks": tasks,
        "GPT": GPT, "GPTConfig": GPTConfig, "rng_from": rng_from, "table": lambda *_: None,
    }  # fmt: skip
    return defined(CHAPTER, CELLS, given)


def told(
    code: dict[str, Any], n_steps: int, batch_size: int, lr: float, final_share: float, number: str, seed: int
) -> list[float]:
    """Train on stories, with a tenth of the steps as warm-up; return the gap to the grammar, in nats.

    With ``number="bfloat16"`` weights, gradients and what Adam keeps are in it; with ``"copy"`` only what the model
    computes, from weights that are rounded for each step, while a float32 copy of them takes the step.
    """
    model = code["new_model"](seed)
    batches = tasks.stream(
        stories.sample_stories, torch.Generator().manual_seed(seed), batch_size=batch_size, n=model.config.n_context
    )
    if number == "bfloat16":
        model.bfloat16()

    def losses(model: nn.Module, batch: tasks.Batch) -> Tensor:
        if number == "copy":
            rounded = {name: parameter.bfloat16() for name, parameter in model.named_parameters()}
            logits = functional_call(model, rounded, (batch.inputs,)).float()
        else:
            logits = model(batch.inputs).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")

    how = {"n_steps": n_steps, "lr": lr, "n_warmup": n_steps // 10, "final_share": final_share}
    for _ in training.train(model, batches, losses=losses, progress=False, **how):
        pass
    if number == "copy":
        model.bfloat16()
    return [code["gap"](model)]


def written(code: dict[str, Any], n_steps: int, lr: float, n_layers: int, d_model: int, seed: int) -> list[float]:
    """Train on English; return the loss on what was not read, in nats a character."""
    model = code["new_model"](seed, vocab_size=len(code["alphabet"]), n_layers=n_layers, d_model=d_model)
    batches: Iterator[tasks.Batch] = code["endless"](code["read"], torch.Generator().manual_seed(seed))
    how = {"n_steps": n_steps, "lr": lr, "n_warmup": n_steps // 10, "final_share": 0.05}
    for _ in training.train(model, batches, progress=False, **how):
        pass
    return [training.evaluate(model, [code["unread_rows"]])]


def apart() -> float:
    """The common logarithm of the largest difference that a second process makes to a weight, after a few steps."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    launchers = [], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for launcher in launchers:
            end = Path(folder) / f"{len(launcher)}"
            subprocess.run([sys.executable, *launcher, str(WORKER), str(end)], env=environment, check=True)
            ends.append(load_file(end))
    one, two = ends
    return math.log10(max((two[name] - one[name]).abs().max().item() for name in one) or 1e-17)


if __name__ == "__main__":
    main()
