"""Tests of the record on training instability, whose runs use the chapter's own code."""

import json

from benchmarks import dynamics

RECORD = json.loads((dynamics.ROOT / "benchmarks" / "results" / "dynamics.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == list(dynamics.wanted())
    for name, found in RECORD["runs"].items():
        assert len(found) == (2 if name.startswith(("hurried", "restarted")) else 1), name
        assert 1.5 < found[0] < 4.5, name


def test_chapter_code_trains_both_kinds_of_models():
    code = dynamics.cells()
    [loss] = dynamics.trained(code, post=True, steps=12, warmup=3, rate=0.01, start="He", seed=0)
    assert 3 < loss < 6
    loss, entropy = dynamics.hurried(code, None, 0.001, 5, 1.0, seed=1)
    assert 2 < loss < 5
    assert 0.5 < entropy <= 1


def test_restarted_run_differs_between_old_and_new_adam_state():
    code = dynamics.cells()
    old, new = (dynamics.restarted(code, is_new, 0.002, seed=0, steps=(3, 11)) for is_new in (False, True))
    assert old != new
    for loss, spread in (old, new):
        assert 3 < loss < 6
        assert 0 <= spread < 1
