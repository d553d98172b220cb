"""Files of tensors that are whole or not there at all: what models and training runs are kept in.

A file is in the safetensors format, with a few strings beside the tensors. What the strings and the names mean is for
those who write and read them: :meth:`lessons_lib.gpt.GPT.save`, :func:`lessons_lib.training.save_training_state`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and strings to one file, all or nothing.

    A temporary file beside ``path`` takes its place once it is complete and on the disk, so that an interruption leaves
    the file that was there.

    Raises:
        RuntimeError: if two of the tensors share their memory: write such a one once.
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
    """Read what :func:`write_tensors` wrote: tensors on the CPU, which no longer depend on the file, and the strings.

    Raises:
        ValueError: if the file is truncated or of another format.
        FileNotFoundError: if there is none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: the file may be written over while they are in use.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} must be a complete safetensors file, got: {error}") from error


def different_shapes(
    wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]:
    """Return by name the pairs of shapes (wanted, found) that differ; ``None`` is that of a tensor that is missing."""
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (wanted, found)]
    pairs = {name: (shapes[0].get(name), shapes[1].get(name)) for name in sorted(wanted.keys() | found.keys())}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
