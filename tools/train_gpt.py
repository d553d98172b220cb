"""Train the language model of the GPT explorer on stories, and write its weights, eight bits each, as a script.

Half a minute on an idle core. The same seed on the same machine gives the same weights. The file says how they were
made, how far the model is from the grammar that told the stories, and what rounding to eight bits costs.
"""

import argparse
import gzip
import json
import platform
from pathlib import Path
from typing import Any

import torch
from pin_library import library_commit
from torch import Tensor

from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.information import kl_divergence
from lessons_lib.stories import VOCABULARY, StoryBatch, tell
from lessons_lib.tasks import stream
from lessons_lib.training import evaluate, train
from lessons_lib.widgets.gpt import unpacked
from lessons_lib.widgets.trained import encoded

TARGET = Path(__file__).resolve().parents[1] / "lessons_lib" / "widgets" / "static" / "gpt_model.js"
HEAD = "/** A language model of stories: two layers of four heads, in eight bits. Written by tools/train_gpt.py. */\n"
CONFIG = GPTConfig(len(VOCABULARY), 64, 64, 2, 4, position="rotary")
BATCH_SIZE = 32
SETTINGS: dict[str, Any] = {"lr": 3e-3, "n_warmup": 50, "final_share": 0.05}
HELD_OUT_SEED = 10_000


def main() -> None:
    """Train, measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=TARGET)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = script(trained(given.seed, given.steps), given.seed, given.steps)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


def trained(seed: int, n_steps: int) -> GPT:
    """The model after so many steps."""
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    batches = stream(tell, torch.Generator().manual_seed(seed), batch_size=BATCH_SIZE, n=CONFIG.n_context)
    settings = SETTINGS | {"n_warmup": min(SETTINGS["n_warmup"], n_steps)}
    for _ in train(model, batches, n_steps=n_steps, **settings):
        pass
    return model.eval()


def held_out() -> StoryBatch:
    """Stories that no training has seen, but for chance."""
    return tell(torch.Generator().manual_seed(HELD_OUT_SEED), batch_size=256, n=CONFIG.n_context)


def script(model: GPT, seed: int, n_steps: int) -> str:
    """The file: what the model is, how it was made and measured, and its weights."""
    parameters = {name: packed(parameter.detach().float()) for name, parameter in model.named_parameters()}
    rounded = GPT(CONFIG).eval()
    rounded.load_state_dict({name: unpacked(parameter) for name, parameter in parameters.items()}, strict=False)

    batch = held_out()
    with torch.no_grad():
        exact, near = (each(batch.inputs).double().softmax(-1) for each in (model, rounded))
    record = {
        "command": f"python tools/train_gpt.py --seed {seed} --steps {n_steps}",
        "seed": seed,
        "steps": n_steps,
        "batch_size": BATCH_SIZE,
        **SETTINGS,
        "held_out": {"seed": HELD_OUT_SEED, "rows": len(batch.inputs)},
        "loss": round(evaluate(model, [batch]), 6),
        "loss_rounded": round(evaluate(rounded, [batch]), 6),
        "floor": round(batch.surprisals.mean().item(), 6),
        "kl_of_rounding": float(f"{kl_divergence(exact, near).mean().item():.3g}"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": library_commit(),
    }
    about = {"record": record, "config": json.loads(CONFIG.to_json()), "vocabulary": " ".join(VOCABULARY)}
    lines = json.dumps(about | {"parameters": parameters}).replace("}, ", "},\n")
    return f"{HEAD}export const MODEL = {lines};\n"


def packed(parameter: Tensor) -> dict[str, object]:
    """A matrix as whole numbers from -127 to 127 and the step between them in each row; a vector as it is."""
    shape = list(parameter.shape)
    if parameter.ndim == 1:
        return {"shape": shape, "float32": encoded(parameter)}
    step = parameter.abs().amax(-1).clamp(min=1e-12) / 127
    return {"shape": shape, "steps": encoded(step), "int8": encoded((parameter / step[:, None]).round().to(torch.int8))}


if __name__ == "__main__":
    main()
