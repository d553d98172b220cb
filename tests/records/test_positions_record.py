"""Tests of the record on position encodings, whose runs use the chapter's own code."""

import json

import pytest

from benchmarks import positions, records
from lessons_lib.training.datasets import ENGLISH_SHA256

RECORD = json.loads((positions.ROOT / "benchmarks" / "results" / "positions.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    assert list(RECORD["runs"]) == [name for names, _ in positions.wanted() for name in names]
    assert all(len(losses) == len(RECORD["contexts"]) for losses in RECORD["runs"].values())
    assert RECORD["text"] == ENGLISH_SHA256


@pytest.mark.thorough
def test_run_uses_chapter_code_with_its_own_seed_and_learning_rate():
    asked = []

    def losses(model, seed=0, rate=0.008):
        code = positions.cells(seed)
        assert code["SEED"] == seed
        train = code["train"]

        def two_steps(model, batches, **settings):
            asked.append(settings)
            return train(model, batches, **settings | {"n_steps": 2, "n_warmup": 0}, progress=False)

        code["train"] = two_steps
        assert code["contexts"] == RECORD["contexts"]
        return positions.read(code, positions.MODELS[model], rate)

    found = [
        losses("RoPE, base 10000"),
        losses("RoPE, base 100", seed=1, rate=0.004),
        losses("ALiBi, slopes 1 and 1/8"),
    ]
    assert all(len(row) == len(RECORD["contexts"]) for row in found)
    assert len({tuple(row) for row in found}) == len(found)
    assert asked[:2] == [{"n_steps": 300, "lr": rate, "n_warmup": 30} for rate in (0.008, 0.004)]
    assert "lr=8e-3" in records.sources(positions.CHAPTER)["length-train"], (
        "the page's own rate is the first of the record"
    )
    assert positions.RATES[0] == 0.008
