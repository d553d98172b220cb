"""Train a language model of the GPT explorer, and write its 8-bit weights as a script.

The model of stories takes half a minute on an idle core, the model of English two minutes. The same seed on the same
machine gives the same weights. The file records how they were trained, the loss, for stories also the entropy of the
grammar that generated them, and the effect of rounding to 8 bits.

The English text is :func:`lessons_lib.training.datasets.english`: The World Factbook's histories of countries, public
domain.
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

from lessons_lib.analysis.information import kl_divergence
from lessons_lib.page.widgets.gpt import CHARACTERS, SCRIPTS, unpack_parameter
from lessons_lib.page.widgets.trained import to_base64
from lessons_lib.training import datasets
from lessons_lib.training.loop import evaluate, train
from lessons_lib.training.stories import VOCABULARY, StoryBatch, sample_stories
from lessons_lib.training.tasks import Batch, stream
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

STATIC = Path(__file__).resolve().parents[1] / "lessons_lib" / "page" / "widgets" / "static"
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
    """Train and evaluate the model, and write the file."""
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
    """Return the model after ``n_steps`` steps of training, in evaluation mode."""
    torch.manual_seed(seed)
    model, generator = GPT(CONFIGS[name]), torch.Generator().manual_seed(seed)
    if name == "stories":
        batches = stream(sample_stories, generator, batch_size=BATCH_SIZE, n=model.config.n_context)
    else:
        batches = random_batches(english()[0], generator)
    settings = SETTINGS | {"n_warmup": min(SETTINGS["n_warmup"], n_steps)}
    for _ in train(model, batches, n_steps=n_steps, **settings):
        pass
    return model.eval()


def held_out() -> StoryBatch:
    """Return held-out stories from another seed than the training data."""
    return sample_stories(torch.Generator().manual_seed(HELD_OUT_SEED), batch_size=ROWS, n=CONFIGS["stories"].n_context)


def english() -> tuple[Tensor, Tensor]:
    """Return the tokens for training, the first nine tenths of the text, and the held-out tokens, the last tenth.

    The text has those sentences that use only the model's characters; quotation marks are removed.
    """
    found = [
        sentence
        for paragraph in datasets.english().splitlines()
        for sentence in SENTENCE.findall(paragraph.replace('"', ""))
        if len(sentence.split()) > 3 and set(sentence) <= set(CHARACTERS)
    ]
    tokens = torch.tensor([CHARACTERS.index(character) for character in " ".join(found)])
    return tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]


def random_batches(tokens: Tensor, generator: torch.Generator) -> Iterator[Batch]:
    """Yield batches of sequences that start at random positions of a text."""
    n = CONFIGS["english"].n_context
    while True:
        yield batch_at(tokens, torch.randint(len(tokens) - n, (BATCH_SIZE,), generator=generator))


def batch_at(tokens: Tensor, starts: Tensor) -> Batch:
    """Return the batch of sequences that begin at ``starts``; every position counts in the loss."""
    rows = tokens[starts[:, None] + torch.arange(CONFIGS["english"].n_context + 1)]
    return Batch(rows[:, :-1], rows[:, 1:], torch.ones_like(rows[:, 1:], dtype=torch.bool))


def held_out_english() -> Batch:
    """Return sequences of the held-out text, at evenly spaced positions."""
    tokens = english()[1]
    return batch_at(tokens, torch.linspace(0, len(tokens) - CONFIGS["english"].n_context - 1, ROWS).long())


def pairs() -> Tensor:
    """Return the bigram counts of the training text: how often the column's character follows the row's."""
    tokens = english()[0]
    counts = (tokens[:-1] * len(CHARACTERS) + tokens[1:]).bincount(minlength=len(CHARACTERS) ** 2)
    return counts.reshape(len(CHARACTERS), -1)


def script(name: str, model: GPT, seed: int, n_steps: int) -> str:
    """Return the file's text: the model's configuration, the record of training and evaluation, and the weights."""
    parameters = {name: pack_parameter(parameter.detach().float()) for name, parameter in model.named_parameters()}
    rounded = GPT(model.config).eval()
    rounded.load_state_dict({name: unpack_parameter(parameter) for name, parameter in parameters.items()}, strict=False)

    batch = held_out() if name == "stories" else held_out_english()
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
        about["pairs"] = to_base64(pairs().to(torch.uint16))
    lines = json.dumps(about | {"parameters": parameters}).replace("}, ", "},\n")
    return f"{HEAD.format(name.replace('eng', 'Eng'))}export const MODEL = {lines};\n"


def fingerprint() -> str:
    """Return a hash of the English text."""
    return hashlib.sha256(torch.cat(english()).to(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def pack_parameter(parameter: Tensor) -> dict[str, object]:
    """Return a matrix as integers from -127 to 127 with a step size for each row, and a vector in float32."""
    shape = list(parameter.shape)
    if parameter.ndim == 1:
        return {"shape": shape, "float32": to_base64(parameter)}
    step = parameter.abs().amax(-1).clamp(min=1e-12) / 127
    whole = (parameter / step[:, None]).round().to(torch.int8)
    return {"shape": shape, "steps": to_base64(step), "int8": to_base64(whole)}


if __name__ == "__main__":
    main()
