"""Tests of the safetensors files: atomic writing, and tensors that do not depend on the file."""

import os

import pytest
import torch
from torch.testing import assert_close

from lessons_lib.transformer import checkpoints
from lessons_lib.transformer.checkpoints import read_tensors, shape_mismatches, write_tensors

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7, dtype=torch.int8), "c": torch.zeros(0, 5)}


def test_write_tensors_then_read_tensors_round_trip(tmp_path):
    path = tmp_path / "file"
    transposed = torch.randn(3, 5).T.requires_grad_()
    write_tensors(str(path), TENSORS | {"d": transposed}, {"format": "a test"})
    tensors, metadata = read_tensors(path)
    assert metadata == {"format": "a test"}
    assert_close(tensors, TENSORS | {"d": transposed.detach()}, rtol=0, atol=0)
    assert os.listdir(tmp_path) == ["file"]


def test_read_tensors_are_independent_of_the_file(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {})
    tensors, metadata = read_tensors(path)
    path.write_bytes(b"")
    assert metadata == {}
    assert_close(tensors, TENSORS, rtol=0, atol=0)


@pytest.mark.parametrize("failing", ["save_file", "os.replace", "os.fsync"])
def test_interrupted_write_leaves_only_the_previous_file(failing, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {})
    old = path.read_bytes()

    def interrupted(*given):
        if failing == "save_file":
            given[1].write_bytes(b"half of it")
        raise KeyboardInterrupt

    target = (checkpoints, failing) if failing == "save_file" else (os, failing.removeprefix("os."))
    monkeypatch.setattr(*target, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_tensors(path, {"other": torch.zeros(11)}, {})
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["file"]


def test_read_tensors_of_truncated_file_raises(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {})
    content = path.read_bytes()
    for length in [0, 4, 8, 100, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="file must be a complete safetensors file, got: "):
            read_tensors(path)


def test_read_tensors_of_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "nowhere")


def test_shape_mismatches_lists_different_and_missing_tensors():
    found = {"a": torch.zeros(3, 2), "b": torch.tensor(1.0), "d": torch.zeros(4)}
    assert shape_mismatches(TENSORS, found) == {"a": ((2, 3), (3, 2)), "c": ((0, 5), None), "d": (None, (4,))}
    assert shape_mismatches(TENSORS, TENSORS) == {}
