"""Train the Vision Transformers of the patches explorer on digits, and write their weights as a script.

Five models for each seed take two to three minutes on an idle core: patches of 1, 2 and 4 pixels, and of 2 and 4 pixels
on images whose pixels are permuted, all in the same way. With patches of one pixel the permuted model would be the same
model with permuted positions. The same seeds on the same machine give the same weights. The file contains the weights
of the first seed, rounded to 8 bits, how they were trained, how many test digits each model classifies correctly, and
the effect of rounding.
"""

import argparse
import gzip
import json
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pin_library import library_commit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lessons_lib.analysis.information import kl_divergence
from lessons_lib.applications.vision import VisionTransformer
from lessons_lib.page.widgets.patches import DIGITS, SCRIPT, TRAINED, patch_config, unpack_int8
from lessons_lib.page.widgets.trained import to_base64
from lessons_lib.training.datasets import load
from lessons_lib.training.loop import train

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "page" / "widgets" / "static" / SCRIPT
HEAD = (
    "/** Vision Transformers of the digits, in eight bits, and thirty digits. Written by tools/train_patches.py. */\n"
)
DROPOUT, BATCH_SIZE = 0.1, 32
SETTINGS: dict[str, Any] = {"lr": 4e-3, "n_warmup": 50, "final_share": 0.05, "weight_decay": 0.05}
N_TRAIN, FIRST_TEST = 1000, 1250  # in the file's order, so that the test digits were written by other people


def main() -> None:
    """Train and evaluate the models, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = script(given.seeds, given.steps)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


def moved() -> Tensor:
    """Return the permutation of the pixels: the index of the pixel at each position."""
    return torch.randperm(64, generator=torch.Generator().manual_seed(0))


def digits(pixels: str) -> tuple[Tensor, Tensor]:
    """Return all images, with pixels from 0 to 1, and their labels."""
    images, labels = load("digits")
    flat = (images / 16).flatten(1)
    return (flat if pixels == "in order" else flat[:, moved()]).view(-1, 8, 8), labels


def trained(size: int, pixels: str, seed: int, n_steps: int) -> VisionTransformer:
    """Return the model after ``n_steps`` steps of training, in evaluation mode."""
    torch.manual_seed(seed)
    model = VisionTransformer(replace(patch_config(size), dropout=DROPOUT))
    settings = SETTINGS | {"n_warmup": min(SETTINGS["n_warmup"], n_steps)}
    for _ in train(model, batches(pixels, seed), n_steps=n_steps, losses=losses, progress=False, **settings):
        pass
    return model.eval()


def batches(pixels: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of training digits, drawn with replacement."""
    images, labels = digits(pixels)
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(N_TRAIN, (BATCH_SIZE,), generator=generator)
        yield images[rows], labels[rows]


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross entropy of each digit, in nats."""
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


def script(seeds: list[int], n_steps: int) -> str:
    """Return the file's text: digits, models, and the record of training and evaluation."""
    images, labels = load("digits")
    models, right = {}, {}
    for size, pixels in TRAINED:
        name = f"{size} {pixels}"
        by_seed = [trained(size, pixels, seed, n_steps) for seed in seeds]
        right[name] = [n_correct(model, pixels) for model in by_seed]
        parameters = {key: pack_int8(parameter.detach()) for key, parameter in by_seed[0].named_parameters()}
        rounded = VisionTransformer(by_seed[0].config).eval()
        rounded.load_state_dict({key: unpack_int8(parameter) for key, parameter in parameters.items()})
        exact, near = (logits_of(model, pixels).double().softmax(-1) for model in (by_seed[0], rounded))
        models[name] = {
            "right": n_correct(rounded, pixels),
            "kl_of_rounding": float(f"{kl_divergence(exact, near).mean().item():.3g}"),
            "parameters": parameters,
        }
        print(name, right[name], models[name]["right"], models[name]["kl_of_rounding"], flush=True)
    record = {
        "command": f"python tools/train_patches.py --seeds {' '.join(map(str, seeds))} --steps {n_steps}",
        "seeds": seeds,
        "steps": n_steps,
        "batch_size": BATCH_SIZE,
        "dropout": DROPOUT,
        **SETTINGS,
        "digits": {"learned": N_TRAIN, "first_test": FIRST_TEST, "test": len(labels) - FIRST_TEST},
        "source": "Alpaydin and Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0",
        "right": right,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": library_commit(),
    }
    shown = slice(FIRST_TEST, FIRST_TEST + DIGITS)
    about = {
        "record": record,
        "moved": to_base64(moved().to(torch.uint8)),
        "images": to_base64(images[shown].to(torch.uint8)),
        "labels": labels[shown].tolist(),
        "models": models,
    }
    lines = json.dumps(about, separators=(",", ":")).replace("},", "},\n")
    return f"{HEAD}export const MODEL = {lines};\n"


@torch.no_grad()
def logits_of(model: VisionTransformer, pixels: str) -> Tensor:
    """Return the model's logits for the test digits."""
    return model(digits(pixels)[0][FIRST_TEST:])


def n_correct(model: VisionTransformer, pixels: str) -> int:
    """Return how many test digits the model classifies correctly."""
    return int((logits_of(model, pixels).argmax(-1) == digits(pixels)[1][FIRST_TEST:]).sum())


def pack_int8(parameter: Tensor) -> dict[str, object]:
    """Return a parameter as integers from -127 to 127, and the step size."""
    step = float(f"{parameter.abs().max().clamp(min=1e-12).item() / 127:.6g}")
    whole = (parameter / step).round().clamp(-127, 127).to(torch.int8)
    return {"shape": list(parameter.shape), "step": step, "int8": to_base64(whole)}


if __name__ == "__main__":
    main()
