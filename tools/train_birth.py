"""Train the model of the birth explorer with three seeds, and write 20 checkpoints of the first in 8-bit weights.

This takes half a minute on an idle core. The same command on the same machine gives the same file, byte for byte. The
file also records how the models were trained, their accuracy and head scores during training, the accuracy of the
checkpoints for each setting of the explorer's switches, and the effect of rounding to 8 bits.
"""

import argparse
import gzip
import json
import platform
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lessons_lib.analysis import patterns
from lessons_lib.analysis.diagnostics import observe
from lessons_lib.analysis.information import kl_divergence
from lessons_lib.page.widgets.birth import (
    CONFIG,
    HIDEABLE,
    STEPS,
    add_position_embeddings,
    forward_with_switches,
    load_checkpoint,
    pack_checkpoint,
    unpack_checkpoint,
)
from lessons_lib.training.loop import evaluate, train
from lessons_lib.training.tasks import RepetitionBatch, repetition, stream
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.initialise import initialise_normal

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "page" / "widgets" / "static" / "birth_model.js"
HEAD = "/** Two layers of attention at twenty steps of a run, in eight bits. Written by tools/train_birth.py. */\n"
BATCH_SIZE = 64
SETTINGS: dict[str, Any] = {"lr": 5e-3, "n_warmup": 50, "final_share": 0.3, "clip": None}
PLACES_STD = 0.5
HELD_OUT_SEED = 10_000
EVERY = 5  # steps between two points of a curve


def main() -> None:
    """Train and evaluate the models, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = script(given.seeds)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


def script(seeds: list[int]) -> str:
    """Return the file's text: the record of training and evaluation, and the first model's checkpoints."""
    batch, curves, kept = held_out(), {}, []
    for seed in seeds:
        curve = curves[str(seed)] = {"accuracy": [], "previous_token": [], "induction": []}
        for step, model in trained(seed):
            if step % EVERY == 0:
                for name, number in measured(model, batch).items():
                    curve[name].append(round(number, 3))
            if step in STEPS and seed == seeds[0]:
                kept.append({name: weight.detach().clone() for name, weight in model.state_dict().items()})
    checkpoints = [pack_checkpoint(state) for state in kept]
    pairs = [
        (load_checkpoint(state), load_checkpoint(unpack_checkpoint(small)))
        for state, small in zip(kept, checkpoints, strict=True)
    ]
    record = {
        "command": f"python tools/train_birth.py --seeds {' '.join(map(str, seeds))}",
        "seeds": seeds,
        "steps": STEPS[-1],
        "batch_size": BATCH_SIZE,
        **SETTINGS,
        "places_std": PLACES_STD,
        "held_out": {"seed": HELD_OUT_SEED, "rows": len(batch.inputs)},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "every": EVERY,
        "curves": curves,
        "switched": [[round(accuracy(small, batch, *setting), 3) for setting in settings()] for _, small in pairs],
        "rounding": [rounding_effect(model, small, batch) for model, small in pairs],
    }
    about = {"record": record, "config": json.loads(CONFIG.to_json()), "checkpoints": checkpoints}
    return f"{HEAD}export const MODEL = {json.dumps(about).replace('}, ', '},' + chr(10))};\n"


def trained(seed: int) -> Iterator[tuple[int, GPT]]:
    """Yield the number of steps and the model in evaluation mode, before the first step and after each.

    Initially, matrices have the standard deviation of PyTorch's linear layers, the embedding and the head a smaller
    one, and the position embeddings a larger one.
    """
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    initialise_normal(model, std=(3 * CONFIG.d_model) ** -0.5)
    for end in (model.embedding.weight, model.head.weight):
        nn.init.normal_(end, std=0.02)
    nn.init.normal_(add_position_embeddings(model).get_parameter("places.weight"), std=PLACES_STD)
    yield 0, model.eval()
    batches = stream(repetition, torch.Generator().manual_seed(seed), batch_size=BATCH_SIZE)
    for record in train(model, batches, n_steps=STEPS[-1], progress=False, **SETTINGS):
        yield record.step + 1, model.eval()


def held_out() -> RepetitionBatch:
    """Return held-out sequences from another seed than any training run."""
    return repetition(torch.Generator().manual_seed(HELD_OUT_SEED), batch_size=256)


def settings() -> Iterator[tuple[list[str], bool]]:
    """Yield, for each setting of the four switches, the ablated parts and whether layer 1's pattern is fixed."""
    for forced, *hidden in product((False, True), repeat=4):
        yield [part for part, is_hidden in zip(HIDEABLE, reversed(hidden), strict=True) if is_hidden], forced


@torch.no_grad()
def accuracy(model: GPT, batch: RepetitionBatch, hide: list[str], forced: bool) -> float:
    """Return the accuracy at the positions where the next symbol can be known."""
    best = forward_with_switches(model, batch.inputs, hide, forced).logits.argmax(-1)
    return (best == batch.targets)[batch.loss_mask].float().mean().item()


@torch.no_grad()
def measured(model: GPT, batch: RepetitionBatch) -> dict[str, float]:
    """Return the values of one point of the curves."""
    with observe(model) as seen:
        best = model(batch.inputs).argmax(-1)
    first, second = seen.weights.values()
    return {
        "accuracy": (best == batch.targets)[batch.loss_mask].float().mean().item(),
        "previous_token": patterns.previous_token_score(first).mean().item(),
        "induction": patterns.induction_score(second, batch.inputs[:, None]).nanmean().item(),
    }


@torch.no_grad()
def rounding_effect(model: GPT, small: GPT, batch: RepetitionBatch) -> dict[str, float]:
    """Return the effect of rounding at the positions where the next symbol can be known."""
    logits, near = (each(batch.inputs)[batch.loss_mask].double() for each in (model, small))
    return {
        "loss": round(evaluate(model, [batch]), 5),
        "loss_rounded": round(evaluate(small, [batch]), 5),
        "kl": float(f"{kl_divergence(logits.softmax(-1), near.softmax(-1)).mean().item():.3g}"),
        "kept": round((logits.argmax(-1) == near.argmax(-1)).double().mean().item(), 4),
    }


if __name__ == "__main__":
    main()
