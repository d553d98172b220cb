"""Tests of the record on the eight architecture choices, whose runs use the chapter's own code."""

import json

import pytest

from benchmarks import modern

RECORD = json.loads((modern.ROOT / "benchmarks" / "results" / "modern.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def code():
    return modern.cells()


def test_record_has_every_run_of_the_command(code):
    tuned = modern.variants(code), modern.SCALED, modern.POSITIONS
    names, scaled, positions = ([line for name in given for line in modern.lines(name)] for given in tuned)
    others = *modern.gates(), *modern.untuned(code)
    assert list(RECORD["runs"]) == [*names, *others, *scaled, *positions]
    for name, found in RECORD["runs"].items():
        losses = found[1:] if name.endswith("runs") else found
        seeds = 3 if name.endswith("runs") or name.startswith("longer") else 1 if "tried" in name else 2
        low, high = (0.005, 0.1) if name.startswith("longer") else (0.03, 2.5)
        assert len(losses) == seeds, name
        assert all(low < loss < high for loss in losses), name


def test_recorded_learning_rate_is_the_better_of_two(code):
    for name in [*modern.variants(code), *modern.POSITIONS]:
        *tried, (best, *_) = (RECORD["runs"][line] for line in modern.lines(name))
        assert best == modern.RATES[min(range(2), key=lambda i: tried[i])], name


@pytest.mark.thorough
def test_chapter_code_trains_a_variant_and_a_gate(code):
    tried, also_tried, (rate, loss) = modern.tuned(code, code["new"], seeds=(3,), n_steps=26)
    assert rate in modern.RATES
    assert all(0.3 < one < 3.5 for one in (*tried, *also_tried, loss))
    plain, own = (modern.gated(code, "swiglu", 0.02, 0.008, larger, n_steps=24) for larger in (1.0, 10.0))
    assert len(plain) == len(own) == len(modern.GATE_SEEDS)
    assert plain != own


@pytest.mark.thorough
def test_embedding_scale_and_factor_change_the_loss(code):
    how = {}, {"scale": 7.0}, {"larger": 7.0}
    found = [modern.tuned(code, code["new"], seeds=(), n_steps=24, **one)[0][0] for one in how]
    assert len(set(found)) == 3
