"""Tests of the record on associative recall, whose runs use the chapter's own code."""

import json

import pytest

from benchmarks import recall

RECORD = json.loads((recall.ROOT / "benchmarks" / "results" / "recall.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert all(recall.missing(kind, RECORD["runs"]) is None for kind in recall.KINDS)
    assert set(RECORD["runs"]) == {name for kind in recall.KINDS for name in recall.lines(kind, RECORD["runs"])}
    assert {"device", "processor", "versions", "date", "command", "steps", "seeds"} <= set(RECORD)


def test_table_matches_the_runs():
    assert RECORD["table"] == recall.rows(RECORD["runs"])
    assert len(RECORD["table"]) == len(recall.KINDS) * len(recall.PAIRS)
    for row in RECORD["table"]:
        assert row["rate"] in row["tried"]
        assert len(row["accuracy"]) == len(recall.SEEDS)
        assert row["tried"][0] < row["rate"] < row["tried"][-1] or row["rate"] in (recall.RATES[0], recall.RATES[-1])


def test_longer_table_matches_the_longer_runs():
    assert RECORD["longer"] == recall.longer_rows(RECORD["runs"])
    assert [row["method"] for row in RECORD["longer"][:: len(recall.PAIRS)]] == list(recall.LONGER)
    assert RECORD["steps_longer"] >= 4 * RECORD["steps"]


def test_missing_requests_next_rate_if_the_best_is_at_the_edge():
    runs = {recall.line("sum", rate, recall.TUNED_ON): [0.1 + rate] * 4 for rate in (0.003, 0.01, 0.03)}
    assert recall.missing("sum", runs) == (0.1, recall.TUNED_ON)
    runs[recall.line("sum", 0.1, recall.TUNED_ON)] = [0.0] * 4
    assert recall.missing("sum", runs) == (0.03, recall.SEEDS[0])


@pytest.mark.parametrize("kind", recall.KINDS)
def test_chapter_code_trains_every_kind(kind):
    code = recall.cells()
    model = code["learn"](kind, 0.01, 0, n_steps=4)
    assert 0 <= code["accuracy"](model, 3, 0) <= 1


def test_state_sizes_match_the_table():
    code = recall.cells()
    wide, few = code["WIDE"], code["FEW"]
    assert recall.state("attention", 5, wide, few) == 640
    for kind in ("window", "sum", "delta", "gated delta", "GRU"):
        assert recall.state(kind, 5, wide, few) == 256
    assert code["mixing"]("GRU", None).gru.hidden_size == recall.state("GRU", 5)
    assert recall.state("elu + 1", 5) == recall.state("Performer", 5) == 264
