"""Train the model of the birth explorer with three seeds, and write twenty steps of the first, eight bits a weight.

Half a minute on an idle core. The same command on the same machine gives the same file, byte for byte. The file says
how the models were made, what their heads did on the way, what the kept ones do with each switch, and what rounding
to eight bits costs.
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

from lessons_lib import patterns
from lessons_lib.diagnostics import observe
from lessons_lib.gpt import GPT
from lessons_lib.information import kl_divergence
from lessons_lib.initialise import initialise_normal
from lessons_lib.tasks import RepetitionBatch, repetition, stream
from lessons_lib.training import evaluate, train
from lessons_lib.widgets.birth import CONFIG, HIDEABLE, STEPS, looked_into, packed, unpacked, with_places, with_weights

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "widgets" / "static" / "birth_model.js"
HEAD = "/** Two layers of attention at twenty steps of a run, in eight bits. Written by tools/train_birth.py. */\n"
BATCH_SIZE = 64
SETTINGS: dict[str, Any] = {"lr": 5e-3, "n_warmup": 50, "final_share": 0.3, "clip": None}
PLACES_STD = 0.5
HELD_OUT_SEED = 10_000
EVERY = 5  # steps from one point of a curve to the next


def main() -> None:
    """Train, measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = script(given.seeds)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


def script(seeds: list[int]) -> str:
    """The file: how the models were made and what they did, and the weights of the first one at the kept steps."""
    batch, curves, kept = held_out(), {}, []
    for seed in seeds:
        curve = curves[str(seed)] = {"accuracy": [], "previous_token": [], "induction": []}
        for step, model in trained(seed):
            if step % EVERY == 0:
                for name, number in measured(model, batch).items():
                    curve[name].append(round(number, 3))
            if step in STEPS and seed == seeds[0]:
                kept.append({name: weight.detach().clone() for name, weight in model.state_dict().items()})
    checkpoints = [packed(state) for state in kept]
    pairs = [
        (with_weights(state), with_weights(unpacked(small))) for state, small in zip(kept, checkpoints, strict=True)
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
        "switched": [[round(right(small, batch, *way), 3) for way in ways()] for _, small in pairs],
        "rounding": [cost(model, small, batch) for model, small in pairs],
    }
    about = {"record": record, "config": json.loads(CONFIG.to_json()), "checkpoints": checkpoints}
    return f"{HEAD}export const MODEL = {json.dumps(about).replace('}, ', '},' + chr(10))};\n"


def trained(seed: int) -> Iterator[tuple[int, GPT]]:
    """The number of steps taken and the model, in evaluation mode, before the first step and after each.

    At first matrices are as large as PyTorch makes those of a linear layer, both ends small and places large.
    """
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    initialise_normal(model, std=(3 * CONFIG.d_model) ** -0.5)
    for end in (model.embedding.weight, model.head.weight):
        nn.init.normal_(end, std=0.02)
    nn.init.normal_(with_places(model).get_parameter("places.weight"), std=PLACES_STD)
    yield 0, model.eval()
    batches = stream(repetition, torch.Generator().manual_seed(seed), batch_size=BATCH_SIZE)
    for record in train(model, batches, n_steps=STEPS[-1], progress=False, **SETTINGS):
        yield record.step + 1, model.eval()


def held_out() -> RepetitionBatch:
    """Passages that no training has seen, but for chance."""
    return repetition(torch.Generator().manual_seed(HELD_OUT_SEED), batch_size=256)


def ways() -> Iterator[tuple[list[str], bool]]:
    """What is hidden, and whether layer 1 is forced, for each way to set the four switches."""
    for forced, *hidden in product((False, True), repeat=4):
        yield [part for part, is_hidden in zip(HIDEABLE, reversed(hidden), strict=True) if is_hidden], forced


@torch.no_grad()
def right(model: GPT, batch: RepetitionBatch, hide: list[str], forced: bool) -> float:
    """Where the next symbol can be known: how often it is the likeliest."""
    best = looked_into(model, batch.inputs, hide, forced).logits.argmax(-1)
    return (best == batch.targets)[batch.loss_mask].float().mean().item()


@torch.no_grad()
def measured(model: GPT, batch: RepetitionBatch) -> dict[str, float]:
    """What a point of the curves says."""
    with observe(model) as seen:
        best = model(batch.inputs).argmax(-1)
    first, second = seen.weights.values()
    return {
        "accuracy": (best == batch.targets)[batch.loss_mask].float().mean().item(),
        "previous_token": patterns.previous_token(first).mean().item(),
        "induction": patterns.induction(second, batch.inputs[:, None]).nanmean().item(),
    }


@torch.no_grad()
def cost(model: GPT, small: GPT, batch: RepetitionBatch) -> dict[str, float]:
    """What rounding costs where the next symbol can be known."""
    logits, near = (each(batch.inputs)[batch.loss_mask].double() for each in (model, small))
    return {
        "loss": round(evaluate(model, [batch]), 5),
        "loss_rounded": round(evaluate(small, [batch]), 5),
        "kl": float(f"{kl_divergence(logits.softmax(-1), near.softmax(-1)).mean().item():.3g}"),
        "kept": round((logits.argmax(-1) == near.argmax(-1)).double().mean().item(), 4),
    }


if __name__ == "__main__":
    main()
