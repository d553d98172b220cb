"""The record of the eight choices is of the runs that the command makes, with the chapter's own code."""

import json

import pytest

from benchmarks import modern

RECORD = json.loads((modern.ROOT / "benchmarks" / "results" / "modern.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def code():
    return modern.cells()


def test_the_record_holds_every_run_that_the_command_makes(code):
    names, scaled = (
        [line for name in given for line in modern.lines(name)] for given in (modern.variants(code), modern.SCALED)
    )
    assert list(RECORD["runs"]) == [*names, *modern.gates(), *modern.wider(code), *scaled]
    for name, found in RECORD["runs"].items():
        losses = found[1:] if name.endswith("runs") else found
        assert len(losses) == (3 if name.endswith("runs") else 1 if "tried" in name else 2), name
        assert all(0.03 < loss < 2.5 for loss in losses), name


def test_the_rate_that_is_run_is_the_better_of_the_two(code):
    for name in modern.variants(code):
        *tried, (best, *_) = (RECORD["runs"][line] for line in modern.lines(name))
        assert best == modern.RATES[min(range(2), key=lambda i: tried[i])], name


def test_the_chapters_cells_train_a_variant_and_a_gate(code):
    tried, also_tried, (rate, loss) = modern.tuned(code, code["new"], seeds=(3,), n_steps=26)
    assert rate in modern.RATES
    assert all(0.3 < one < 3.5 for one in (*tried, *also_tried, loss))
    plain, own = (modern.gated(code, "swiglu", 0.02, 0.008, larger, n_steps=24) for larger in (1.0, 10.0))
    assert len(plain) == len(own) == len(modern.GATE_SEEDS)
    assert plain != own


def test_the_factor_on_the_embedding_reaches_the_model(code):
    how = {}, {"scale": 7.0}, {"larger": 7.0}
    found = [modern.tuned(code, code["new"], seeds=(), n_steps=24, **one)[0][0] for one in how]
    assert len(set(found)) == 3
