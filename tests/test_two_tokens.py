"""The record of the models that name two tokens is of the runs that the command makes, with the chapter's own code."""

import json

from benchmarks import two_tokens

RECORD = json.loads((two_tokens.ROOT / "benchmarks" / "results" / "two-tokens.json").read_text(encoding="utf-8"))


def test_the_record_is_whole():
    assert list(RECORD["runs"]) == list(two_tokens.wanted())
    assert all(len(found) == len(RECORD["numbers"]) for found in RECORD["runs"].values())
    assert all(0 <= share <= 1 for found in RECORD["runs"].values() for share in found[:4])


def test_the_commands_code_is_the_chapters_and_runs():
    code = two_tokens.cells()
    for heads, weigh, value in ((1, "place token", "token"), (2, "place", "place token")):
        found = two_tokens.run(code, heads, weigh, value, steps=21, rate=0.01, seed=0)
        assert len(found) == len(RECORD["numbers"])
        assert (found[4] == 0) == (weigh == "place"), "weights from places do not depend on the tokens"
