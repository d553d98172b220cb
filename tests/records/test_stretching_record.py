"""Tests of the record on long context, whose runs use the chapter's own code."""

import json

import torch

from benchmarks import records, stretching
from lessons_lib.training.datasets import ENGLISH_SHA256

RECORD = json.loads((stretching.ROOT / "benchmarks" / "results" / "stretching.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == [name for names, _ in stretching.wanted() for name in names]
    assert RECORD["text"] == ENGLISH_SHA256
    for name, row in RECORD["runs"].items():
        assert len(row) == len(RECORD["gaps" if name.startswith("searcher") else "lengths"])


def test_chapter_code_uses_recorded_lengths_and_gaps():
    """Run the cell without training, with models as initialised."""
    code = dict(records.defined(stretching.CHAPTER, stretching.CELLS, {"SEED": 0}))
    code["train"] = lambda *_, **__: ()
    exec(records.sources(stretching.CHAPTER)["text-train"], code)
    assert code["lengths"] == RECORD["lengths"]
    assert code["gaps"] == RECORD["gaps"]
    assert code["trained"]("rotary").config.n_layers == 2


def test_seed_changes_the_test_data():
    drawn = [stretching.cells(seed)["test"] for seed in (0, 1)]
    assert drawn[0].shape == drawn[1].shape
    assert not torch.equal(*drawn)
