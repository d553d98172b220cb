"""The record of the chapter on long context is of the runs that the command makes, with the chapter's own code."""

import json

import torch

from benchmarks import records, stretching
from lessons_lib.datasets import ENGLISH_SHA256

RECORD = json.loads((stretching.ROOT / "benchmarks" / "results" / "stretching.json").read_text(encoding="utf-8"))


def test_the_record_holds_every_run_that_the_command_makes():
    assert list(RECORD["runs"]) == [name for names, _ in stretching.wanted() for name in names]
    assert RECORD["text"] == ENGLISH_SHA256
    for name, row in RECORD["runs"].items():
        assert len(row) == len(RECORD["gaps" if name.startswith("searcher") else "lengths"])


def test_the_names_of_a_run_are_as_many_as_its_lines():
    """With training left out: each model is read as it was drawn."""
    code = dict(records.defined(stretching.CHAPTER, stretching.CELLS, {"SEED": 0}))
    code["train"] = lambda *_, **__: ()
    exec(records.sources(stretching.CHAPTER)["text-train"], code)
    assert code["lengths"] == RECORD["lengths"]
    assert code["gaps"] == RECORD["gaps"]
    assert code["trained"]("rotary").config.n_layers == 2


def test_a_run_differs_by_its_seed_alone():
    drawn = [stretching.cells(seed)["test"] for seed in (0, 1)]
    assert drawn[0].shape == drawn[1].shape
    assert not torch.equal(*drawn)
