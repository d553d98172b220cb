"""The record of the chapter on sequences, graphs and decisions is of the runs that the command makes, with its code."""

import json

import torch

from benchmarks import sequences

RECORD = json.loads((sequences.ROOT / "benchmarks" / "results" / "sequences.json").read_text(encoding="utf-8"))


def test_the_record_holds_every_run_that_the_command_makes():
    assert list(RECORD["runs"]) == [line for lines, _ in sequences.wanted() for line in lines]
    assert all(RECORD["runs"].values())


def test_the_cells_that_it_runs_are_the_chapters():
    cells = sequences.sources(sequences.CHAPTER)
    assert {name for names in sequences.PARTS.values() for name in (*sequences.SHARED, *names)} <= cells.keys()


def test_a_corridor_pays_what_its_first_sign_says():
    code = sequences.cells("corridor")
    seen, side = code["corridors"](torch.Generator().manual_seed(1), 11, 50)
    assert seen.shape == (50, 11)
    first = (seen < 2).int().argmax(-1)
    assert torch.equal(seen.gather(1, first[:, None])[:, 0], side)


def test_a_reader_of_a_dictionary_is_asked_for_what_stands_beside_its_word():
    x, values = sequences.cells("dictionary")["dictionaries"](torch.Generator().manual_seed(1), 3)
    words, told = x[:, 8:, :8].argmax(-1), x[:, 8:, 8:].argmax(-1)
    for u in range(8):
        entry = (words == u).int().argmax(-1)
        assert torch.equal(told[torch.arange(3), entry], values[:, u])
