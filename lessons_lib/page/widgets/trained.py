"""Read the trained models of the explorers: two layers of four heads each, stored in data scripts."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import traitlets
from torch import Tensor

from lessons_lib.page.widgets.assemble import read
from lessons_lib.training.stories import VOCABULARY
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

HEADS = tuple(f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4))


def script_data(script: str) -> dict[str, Any]:
    """Return the data that a script of ``static/`` exports: one JSON object, written by a tool."""
    text = read(script)
    return json.loads(text[text.index("{", text.index("export const ")) :].rstrip(";\n"))


@contextmanager
def placeholder_weights() -> Iterator[None]:
    """Create a model whose weights are replaced at once: on the CPU, and without an effect on later random numbers.

    The device ``meta`` would need no random numbers, but its first use makes PyTorch import 900 modules, for a second.
    """
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        yield


def load_model(config: GPTConfig, parameters: Mapping[str, Tensor], off: Iterable[str]) -> GPT:
    """Return the model with these weights, in evaluation mode, with the heads in ``off`` ablated to zero.

    The model shares the tensors of ``parameters``; the output matrix of each ablated head is set to zero in place.
    """
    for layer, head in ((int(layer), int(head)) for layer, head in (name.split(".") for name in off)):
        columns = slice(config.head_width * (head - 1), config.head_width * head)
        parameters[f"blocks.{layer - 1}.attention.sublayer.w_o.weight"][:, columns] = 0.0
    with placeholder_weights():
        model = GPT(config)
    model.load_state_dict({**parameters, "head.weight": parameters["embedding.weight"]}, assign=True)
    model.head.weight = model.embedding.weight
    return model.eval()


def to_base64(numbers: Tensor) -> str:
    """Return the bytes of a tensor in base64."""
    return base64.b64encode(numbers.numpy().tobytes()).decode()


def from_base64(text: str, dtype: torch.dtype) -> Tensor:
    """Return the tensor that :func:`to_base64` wrote, flattened."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)


def parse_words(name: str, text: str, *, at_least: int = 1, at_most: int) -> list[str]:
    """Split a text into words.

    Raises:
        TraitError: if a word is not in ``stories.VOCABULARY`` (the empty word between two spaces is not), or if there
            are fewer than ``at_least`` or more than ``at_most`` words.
    """
    words = text.split(" ")
    unknown = [word for word in words if word not in VOCABULARY]
    if unknown:
        raise traitlets.TraitError(f"{name} must be of stories.VOCABULARY, with single spaces, got {unknown[0]!r}")
    if not at_least <= len(words) <= at_most:
        raise traitlets.TraitError(f"{name} must be {at_least} to {at_most}, got {len(words)}")
    return words
