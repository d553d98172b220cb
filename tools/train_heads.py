"""Train the small model of the heads explorer on stories, and write its 8-bit weights as a script."""

import json
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.page.widgets.trained import to_base64
from lessons_lib.training.loop import train
from lessons_lib.training.stories import VERBS, VOCABULARY, sample_stories
from lessons_lib.training.tasks import stream
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "page" / "widgets" / "static" / "heads_model.js"
HEAD = "/** Two layers of four heads each, trained on stories and rounded to eight bits by tools/train_heads.py. */\n"
CONFIG = GPTConfig(len(VOCABULARY), 16, 32, 2, 4, feedforward="none", norm="rms", bias=False)


def main() -> None:
    """Train the model, which takes a minute and a half, and write the file."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    batches = stream(sample_stories, torch.Generator().manual_seed(0), batch_size=96, n=CONFIG.n_context)
    for _ in train(model, batches, n_steps=1500, lr=1e-2, n_warmup=50):
        pass
    one_per_line = json.dumps(pack_model(model)).replace("}, ", "},\n")
    TARGET.write_text(f"{HEAD}export const MODEL = {one_per_line};\n", encoding="utf-8")
    print(TARGET.name, TARGET.stat().st_size, "bytes")


def pack_model(model: GPT) -> dict[str, object]:
    """Return the data of the model that the script contains."""
    return {
        "n_heads": model.config.n_heads,
        "vocabulary": " ".join(VOCABULARY),
        "verbs": " ".join(sorted(VERBS)),
        "parameters": {name: rounded(parameter.detach()) for name, parameter in model.named_parameters()},
    }


def rounded(parameter: Tensor) -> dict[str, object]:
    """Return a parameter as integers from -127 to 127, encoded as text, and the step size."""
    step = float(f"{parameter.abs().max().item() / 127:.6g}")
    numbers = (parameter / step).round().clamp(-127, 127).to(torch.int8)
    return {"shape": list(parameter.shape), "step": step, "base64": to_base64(numbers)}


if __name__ == "__main__":
    main()
