"""Tests of the record on attention patterns, whose runs use the chapter's own code."""

import json

import pytest

from benchmarks import patterns

RECORD = json.loads((patterns.ROOT / "benchmarks" / "results" / "patterns.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == list(patterns.wanted())
    for name, found in RECORD["runs"].items():
        assert (len(found) == 16 + 1 + 28) if name.startswith("storyteller") else (len(found) % 3 == 0), name
        assert all(0 <= number <= 1 for number in found), name


@pytest.mark.thorough
def test_chapter_code_trains_each_model_of_the_command():
    code = patterns.cells()
    for build in ({}, {"n_layers": 1, "n_heads": 4}, {"in_stream": 0.5}):
        found = patterns.born(code, build, n_steps=52, lr=0.001, every=51, seed=1)
        assert len(found) == 3 * 2
        assert all(0 <= number <= 1 for number in found)
