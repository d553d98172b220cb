"""Train a language model of the GPT explorer, and write its weights, eight bits each, as a script.

That of stories takes half a minute on an idle core, that of English two minutes. The same seed on the same machine
gives the same weights. The file says how they were made, how far the model of stories is from the grammar that told
them, and what rounding to eight bits costs.

English is that of :func:`lessons_lib.datasets.english`: The World Factbook's histories of countries, public domain.
"""

import argparse
import gzip
import hashlib
import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pin_library import library_commit
from torch import Tensor

from lessons_lib import datasets
from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.information import kl_divergence
from lessons_lib.stories import VOCABULARY, StoryBatch, tell
from lessons_lib.tasks import Batch, stream
from lessons_lib.training import evaluate, train
from lessons_lib.widgets.gpt import CHARACTERS, SCRIPTS, unpacked
from lessons_lib.widgets.trained import encoded

STATIC = Path(__file__).resolve().parents[1] / "lessons_lib" / "widgets" / "static"
HEAD = "/** A language model of {}: two layers of four heads, in eight bits. Written by tools/train_gpt.py. */\n"
CONFIGS = {
    "stories": GPTConfig(len(VOCABULARY), 64, 64, 2, 4, position="rotary"),
    "english": GPTConfig(len(CHARACTERS), 64, 80, 2, 4, position="rotary"),
}
STEPS = {"stories": 500, "english": 1500}
BATCH_SIZE = 32
SETTINGS: dict[str, Any] = {"lr": 3e-3, "n_warmup": 50, "final_share": 0.05}
HELD_OUT_SEED, ROWS = 10_000, 256
SENTENCE = re.compile(r"[A-Z][^.]*(?:\.(?! [A-Z]|$)[^.]*)*\.(?= |$)")


def main() -> None:
    """Train, measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=sorted(CONFIGS), default="stories")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    n_steps = given.steps or STEPS[given.name]
    torch.set_num_threads(1)
    text = script(given.name, trained(given.name, given.seed, n_steps), given.seed, n_steps)
    out = given.out or STATIC / SCRIPTS[given.name]
    out.write_text(text, encoding="utf-8")
    print(f"{out.name}: {len(text)} bytes, {len(gzip.compress(text.encode()))} of them compressed")


def trained(name: str, seed: int, n_steps: int) -> GPT:
    """The model after so many steps."""
    torch.manual_seed(seed)
    model, generator = GPT(CONFIGS[name]), torch.Generator().manual_seed(seed)
    if name == "stories":
        batches = stream(tell, generator, batch_size=BATCH_SIZE, n=model.config.n_context)
    else:
        batches = stretches(english()[0], generator)
    settings = SETTINGS | {"n_warmup": min(SETTINGS["n_warmup"], n_steps)}
    for _ in train(model, batches, n_steps=n_steps, **settings):
        pass
    return model.eval()


def held_out() -> StoryBatch:
    """Stories that no training has seen, but for chance."""
    return tell(torch.Generator().manual_seed(HELD_OUT_SEED), batch_size=ROWS, n=CONFIGS["stories"].n_context)


def english() -> tuple[Tensor, Tensor]:
    """The sentences of the text that need no other character than the model's, quotation marks left out, one by one.

    The first nine tenths are learned from, the last is held out.
    """
    found = [
        sentence
        for paragraph in datasets.english().splitlines()
        for sentence in SENTENCE.findall(paragraph.replace('"', ""))
        if len(sentence.split()) > 3 and set(sentence) <= set(CHARACTERS)
    ]
    tokens = torch.tensor([CHARACTERS.index(character) for character in " ".join(found)])
    return tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]


def stretches(tokens: Tensor, generator: torch.Generator) -> Iterator[Batch]:
    """Batches of a text, cut out anywhere."""
    n = CONFIGS["english"].n_context
    while True:
        yield cut_out(tokens, torch.randint(len(tokens) - n, (BATCH_SIZE,), generator=generator))


def cut_out(tokens: Tensor, starts: Tensor) -> Batch:
    """What follows each start, and each next character; all of them count."""
    rows = tokens[starts[:, None] + torch.arange(CONFIGS["english"].n_context + 1)]
    return Batch(rows[:, :-1], rows[:, 1:], torch.ones_like(rows[:, 1:], dtype=torch.bool))


def unread() -> Batch:
    """Stretches of the text that was held out, spread evenly over it."""
    tokens = english()[1]
    return cut_out(tokens, torch.linspace(0, len(tokens) - CONFIGS["english"].n_context - 1, ROWS).long())


def pairs() -> Tensor:
    """How often each character, a column, followed each character, a row, in the text that was learned from."""
    tokens = english()[0]
    counts = (tokens[:-1] * len(CHARACTERS) + tokens[1:]).bincount(minlength=len(CHARACTERS) ** 2)
    return counts.reshape(len(CHARACTERS), -1)


def script(name: str, model: GPT, seed: int, n_steps: int) -> str:
    """The file: what the model is, how it was made and measured, and its weights."""
    parameters = {name: packed(parameter.detach().float()) for name, parameter in model.named_parameters()}
    rounded = GPT(model.config).eval()
    rounded.load_state_dict({name: unpacked(parameter) for name, parameter in parameters.items()}, strict=False)

    batch = held_out() if name == "stories" else unread()
    of_english = "english " if name == "english" else ""
    with torch.no_grad():
        exact, near = (each(batch.inputs).double().softmax(-1) for each in (model, rounded))
    record = {
        "command": f"python tools/train_gpt.py {of_english}--seed {seed} --steps {n_steps}",
        "seed": seed,
        "steps": n_steps,
        "batch_size": BATCH_SIZE,
        **SETTINGS,
        "held_out": ({"seed": HELD_OUT_SEED} if name == "stories" else {"text": fingerprint()}) | {"rows": ROWS},
        "loss": round(evaluate(model, [batch]), 6),
        "loss_rounded": round(evaluate(rounded, [batch]), 6),
        **({"floor": round(batch.surprisals.mean().item(), 6)} if isinstance(batch, StoryBatch) else {}),
        "kl_of_rounding": float(f"{kl_divergence(exact, near).mean().item():.3g}"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": library_commit(),
    }
    vocabulary = " ".join(VOCABULARY) if name == "stories" else CHARACTERS
    about = {"record": record, "config": json.loads(model.config.to_json()), "vocabulary": vocabulary}
    if name == "english":
        record["source"] = "The World Factbook, Central Intelligence Agency, public domain"
        about["pairs"] = encoded(pairs().to(torch.uint16))
    lines = json.dumps(about | {"parameters": parameters}).replace("}, ", "},\n")
    return f"{HEAD.format(name.replace('eng', 'Eng'))}export const MODEL = {lines};\n"


def fingerprint() -> str:
    """What the text is known by."""
    return hashlib.sha256(torch.cat(english()).to(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def packed(parameter: Tensor) -> dict[str, object]:
    """A matrix as whole numbers from -127 to 127 and the step between them in each row; a vector as it is."""
    shape = list(parameter.shape)
    if parameter.ndim == 1:
        return {"shape": shape, "float32": encoded(parameter)}
    step = parameter.abs().amax(-1).clamp(min=1e-12) / 127
    return {"shape": shape, "steps": encoded(step), "int8": encoded((parameter / step[:, None]).round().to(torch.int8))}


if __name__ == "__main__":
    main()
