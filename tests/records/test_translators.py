"""Tests of the record on the longer training of translators, whose runs use the chapter's own code."""

import json

from benchmarks import translators

RECORD = json.loads((translators.ROOT / "benchmarks" / "results" / "translators.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == list(translators.wanted())
    assert RECORD["lengths"] == translators.LENGTHS
    assert all(len(right) == len(translators.LENGTHS) for right in RECORD["runs"].values())


def test_chapter_code_trains_and_evaluates_a_translator():
    code = translators.cells()
    for looks_back in (True, False):
        right = translators.run(code, looks_back, width=6, steps=3, rate=0.01, seed=0)
        assert len(right) == len(translators.LENGTHS)
        assert all(0 <= share <= 1 for share in right)
