"""The record of what heads do is of the runs that the command makes, with the chapter's own code."""

import json

from benchmarks import patterns

RECORD = json.loads((patterns.ROOT / "benchmarks" / "results" / "patterns.json").read_text(encoding="utf-8"))


def test_the_record_holds_every_run_that_the_command_makes():
    assert list(RECORD["runs"]) == list(patterns.wanted())
    for name, found in RECORD["runs"].items():
        assert (len(found) == 16 + 1 + 28) if name.startswith("storyteller") else (len(found) % 3 == 0), name
        assert all(0 <= number <= 1 for number in found), name


def test_the_chapters_cells_train_what_the_command_asks_for():
    code = patterns.cells()
    for build in ({}, {"n_layers": 1, "n_heads": 4}, {"in_stream": 0.5}):
        found = patterns.born(code, build, n_steps=52, lr=0.001, every=51, seed=1)
        assert len(found) == 3 * 2
        assert all(0 <= number <= 1 for number in found)
