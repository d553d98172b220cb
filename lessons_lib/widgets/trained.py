"""Trained models of two layers with four heads each, as an explorer's script carries them."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import traitlets
from torch import Tensor

from lessons_lib.gpt import GPT, GPTConfig
from lessons_lib.stories import VOCABULARY
from lessons_lib.widgets.assemble import read

HEADS = tuple(f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4))


def carried(script: str) -> dict[str, Any]:
    """Return what a script knows of its model."""
    return json.loads(read(script).removeprefix("export const MODEL = ").rstrip(";\n"))


def loaded(config: GPTConfig, parameters: Mapping[str, Tensor], off: Iterable[str]) -> GPT:
    """Return the model with these weights, in evaluation mode; what heads in ``off`` would add is zero.

    The parameters become the model's own, and those of the heads that are off are changed.
    """
    for layer, head in ((int(layer), int(head)) for layer, head in (name.split(".") for name in off)):
        own = slice(config.head_width * (head - 1), config.head_width * head)
        parameters[f"blocks.{layer - 1}.attention.sublayer.w_o.weight"][:, own] = 0.0
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):  # what is replaced at once leaves no trace
        model = GPT(config)
    model.load_state_dict({**parameters, "head.weight": parameters["embedding.weight"]}, assign=True)
    model.head.weight = model.embedding.weight
    return model.eval()


def encoded(numbers: Tensor) -> str:
    """Return the bytes of numbers as text, in base64; :func:`decoded` reads them."""
    return base64.b64encode(numbers.numpy().tobytes()).decode()


def decoded(text: str, dtype: torch.dtype) -> Tensor:
    """Return the numbers that :func:`encoded` wrote, in one row."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)


def known_words(name: str, text: str, *, at_least: int = 1, at_most: int) -> list[str]:
    """Return the words of a text.

    Raises:
        TraitError: if one is not of ``stories.VOCABULARY``, as nothing between two spaces is not, or if there are too
            few or too many.
    """
    words = text.split(" ")
    unknown = [word for word in words if word not in VOCABULARY]
    if unknown:
        raise traitlets.TraitError(f"{name} must be of stories.VOCABULARY, with single spaces, got {unknown[0]!r}")
    if not at_least <= len(words) <= at_most:
        raise traitlets.TraitError(f"{name} must be {at_least} to {at_most}, got {len(words)}")
    return words
