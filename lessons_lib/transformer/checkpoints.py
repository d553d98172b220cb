"""Atomic writing and reading of safetensors files: saved models and training states.

A file holds tensors and, as metadata, a few strings. The callers define the names and meanings of both:
:meth:`lessons_lib.transformer.gpt.GPT.save` and :func:`lessons_lib.training.loop.save_training_state`.
``RENAMED`` maps module names in earlier files to the names of today.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

# Module names in files that earlier versions wrote, and the names of today.
RENAMED = {"prepare": "process_qk"}


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata to one safetensors file, atomically.

    The data go to a temporary file in the same folder. It replaces ``path`` once it is complete and on the disk, so an
    interruption leaves the previous file unchanged.

    Raises:
        RuntimeError: if two of the tensors share memory. Write such a tensor only once.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, unfinished, metadata)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file that :func:`write_tensors` wrote.

    The tensors are copies on the CPU and do not depend on the file afterwards. Modules that were renamed since
    (``RENAMED``) have their names of today.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as folder:
    ...     write_tensors(f"{folder}/file", {"weight": torch.ones(2, 3)}, {"format": "example"})
    ...     tensors, metadata = read_tensors(f"{folder}/file")
    >>> tensors["weight"].shape, metadata
    (torch.Size([2, 3]), {'format': 'example'})

    Raises:
        ValueError: if the file is truncated or has another format.
        FileNotFoundError: if there is no file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            # The tensors are copied because the file may be overwritten while they are in use.
            tensors = {_renamed(name): file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} must be a complete safetensors file, got: {error}") from error


def tensor_loaders(path: str | os.PathLike[str]) -> dict[str, Callable[[], Tensor]]:
    """Return, for each tensor of a safetensors file, a function that reads it from the file.

    So a model larger than half of the memory can be copied tensor by tensor. The tensors may be views of the file,
    which must not change while they are in use.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as folder:
    ...     write_tensors(f"{folder}/file", {"weight": torch.ones(2, 3)}, {})
    ...     loaders = tensor_loaders(f"{folder}/file")
    ...     loaders["weight"]().shape
    torch.Size([2, 3])

    Raises:
        ValueError: if the file is truncated or has another format.
        FileNotFoundError: if there is no file.
    """
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} must be a complete safetensors file, got: {error}") from error
    return {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def shape_mismatches(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]:
    """Return the pairs of shapes (expected, found) that differ, by tensor name; ``None`` marks a missing tensor.

    >>> import torch
    >>> shape_mismatches({"a": torch.ones(2, 3), "b": torch.ones(4)}, {"a": torch.ones(3, 2)})
    {'a': ((2, 3), (3, 2)), 'b': ((4,), None)}
    """
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (expected, found)]
    pairs = {name: (shapes[0].get(name), shapes[1].get(name)) for name in sorted(expected.keys() | found.keys())}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _renamed(name: str) -> str:
    return ".".join(RENAMED.get(part, part) for part in name.split("."))
