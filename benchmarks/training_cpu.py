"""Measure a training step of the book's GPT on a CPU, and beside another model of the same size if its file is given.

One thread, float32: forward, loss, backward and each model's own AdamW, on a batch of random tokens. All models are
measured in one process, in turns, so that a disturbance falls on all; reported are medians of processor time, and
speeds relative to the other model. That is a Python file in nanoGPT's shape: a ``GPTConfig(block_size, vocab_size,
n_layer, n_head, n_embd, dropout, bias)`` and a ``GPT(config)`` whose ``forward(tokens, targets)`` returns logits and
loss and whose ``configure_optimizers(weight_decay, lr, betas, device)`` makes the optimizer. The file is read where it
lies; nothing of it is kept.

``python benchmarks/training_cpu.py [MODEL.py]`` writes ``benchmarks/results/training-cpu.json``.
"""

import argparse
import contextlib
import datetime
import importlib.util
import io
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lessons_lib.attention.attention import attention
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.flash import as_implementation
from lessons_lib.training.loop import TrainConfig, Training
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, BATCH = 65, 256, 192, 4, 6, 8
IMPLEMENTATIONS = {"fused": fused_attention, "specification": attention, "flash": as_implementation()}
ROUNDS = 15


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=Path, help="a model in nanoGPT's shape")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "training-cpu.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    models = {name: ours(implementation) for name, implementation in IMPLEMENTATIONS.items()}
    parameters = {name: model.config.n_parameters() for name, (model, _) in models.items()}
    steps = {name: step for name, (_, step) in models.items()}
    if given.other is not None:
        other, steps["other"] = theirs(given.other)
        parameters["other"] = sum(weight.numel() for weight in other.parameters())
    seconds = measured(steps)

    middle = {name: statistics.median(times) for name, times in seconds.items()}
    for name, value in middle.items():
        print(
            f"{name:14} {1000 * value:8.1f} ms a step, {middle['other' if 'other' in middle else 'fused'] / value:.2f}"
        )
    report = {
        "command": "python benchmarks/training_cpu.py [MODEL.py]",
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()}, {platform.system()}, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "setting": {
            "vocabulary": VOCABULARY,
            "length": LENGTH,
            "width": WIDTH,
            "layers": LAYERS,
            "heads": HEADS,
            "batch": BATCH,
            "dtype": "float32",
            "rounds": ROUNDS,
        },
        "parameters": parameters,
        "milliseconds": {name: round(1000 * value, 2) for name, value in middle.items()},
        "spread": {name: round((max(times) - min(times)) / middle[name], 3) for name, times in seconds.items()},
    }
    if "other" in middle:
        report["speed_relative_to_other"] = {name: round(middle["other"] / value, 3) for name, value in middle.items()}
    given.out.write_text(json.dumps(report, indent=2) + "\n")


def ours(implementation: Callable[..., Tensor]) -> tuple[GPT, Callable[[], None]]:
    """The book's GPT in GPT-2's form, and one step of its training."""
    config = GPTConfig(VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, feedforward="gelu", bias=False)
    model = GPT(config, implementation=implementation)
    optimizer = Training(model, TrainConfig(n_steps=1, lr=1e-3)).optimizer
    return model, stepping(model, optimizer, lambda x, y: cross_entropy(model(x).flatten(0, 1), y.flatten()))


def theirs(path: Path) -> tuple[torch.nn.Module, Callable[[], None]]:
    """The other model and one step of its training; what its constructor prints is not shown."""
    module = loaded(path)
    with contextlib.redirect_stdout(io.StringIO()):
        model = module.GPT(
            module.GPTConfig(
                block_size=LENGTH,
                vocab_size=VOCABULARY,
                n_layer=LAYERS,
                n_head=HEADS,
                n_embd=WIDTH,
                dropout=0.0,
                bias=False,
            )
        )
        optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.95), "cpu")
    return model, stepping(model, optimizer, lambda x, y: model(x, y)[1])


def stepping(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[], None]:
    """One step of a model's own optimizer, on a batch that is always the same."""
    draw = torch.Generator().manual_seed(1)
    tokens, following = torch.randint(VOCABULARY, (2, BATCH, LENGTH), generator=draw)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(tokens, following).backward()
        optimizer.step()

    return step


def measured(steps: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds of processor time for each step in each round, the first two rounds left out."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 2):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    return {name: times[2:] for name, times in seconds.items()}


def loaded(path: Path) -> ModuleType:
    """Import a file that lies anywhere."""
    spec = importlib.util.spec_from_file_location("other_model", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"other must be a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
