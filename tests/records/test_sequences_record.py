"""Tests of the record on sequences, graphs and decisions, whose runs use the chapter's own code."""

import json

import torch

from benchmarks import sequences

RECORD = json.loads((sequences.ROOT / "benchmarks" / "results" / "sequences.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == [line for lines, _ in sequences.wanted() for line in lines]
    assert all(RECORD["runs"].values())


def test_named_cells_exist_in_the_chapter():
    cells = sequences.sources(sequences.CHAPTER)
    assert {name for names in sequences.PARTS.values() for name in (*sequences.SHARED, *names)} <= cells.keys()


def test_corridor_reward_is_given_by_its_first_sign():
    code = sequences.cells("corridor")
    seen, side = code["corridors"](torch.Generator().manual_seed(1), 11, 50)
    assert seen.shape == (50, 11)
    first = (seen < 2).int().argmax(-1)
    assert torch.equal(seen.gather(1, first[:, None])[:, 0], side)


def test_dictionary_targets_are_the_values_of_the_words():
    x, values = sequences.cells("dictionary")["dictionaries"](torch.Generator().manual_seed(1), 3)
    words, told = x[:, 8:, :8].argmax(-1), x[:, 8:, 8:].argmax(-1)
    for u in range(8):
        entry = (words == u).int().argmax(-1)
        assert torch.equal(told[torch.arange(3), entry], values[:, u])
