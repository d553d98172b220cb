"""The record of the longer translators is of the runs that the command makes, with the chapter's own code."""

import json

from benchmarks import translators

RECORD = json.loads((translators.ROOT / "benchmarks" / "results" / "translators.json").read_text(encoding="utf-8"))


def test_the_record_holds_every_run_that_the_command_makes():
    assert list(RECORD["runs"]) == list(translators.wanted())
    assert RECORD["lengths"] == translators.LENGTHS
    assert all(len(right) == len(translators.LENGTHS) for right in RECORD["runs"].values())


def test_the_chapters_cells_train_and_judge_a_translator():
    code = translators.cells()
    for looks_back in (True, False):
        right = translators.run(code, looks_back, width=6, steps=3, rate=0.01, seed=0)
        assert len(right) == len(translators.LENGTHS)
        assert all(0 <= share <= 1 for share in right)
