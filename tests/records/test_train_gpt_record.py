"""Tests of the record on training a GPT, whose runs use the chapter's own code."""

import json

import pytest

from benchmarks import train_gpt
from lessons_lib.training.datasets import ENGLISH_SHA256

RECORD = json.loads((train_gpt.ROOT / "benchmarks" / "results" / "train-gpt.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def code():
    return train_gpt.cells()


def test_record_has_every_run_of_the_command(monkeypatch):
    wanted = []
    monkeypatch.setattr(train_gpt, "record", lambda _doc, _name, jobs, text: wanted.extend(jobs))
    train_gpt.main()
    assert list(RECORD["runs"]) == [line for lines, _ in wanted for line in lines]
    assert RECORD["text"] == ENGLISH_SHA256
    for name, found in RECORD["runs"].items():
        (value,) = found
        low, high = {"two": (-17.1, -12), "sto": (0.01, 2.4), "eng": (0.5, 3.5)}[name[:3]]
        low, high = (0.001, 0.02) if "1000 steps" in name else (low, high)
        assert low < value < high, name


def test_chapter_code_trains_on_stories_in_every_number_format(code):
    numbers = sorted({how[-1] for how in train_gpt.STORIES.values()})
    assert numbers == ["bfloat16", "copy", "float32"]
    gaps = [train_gpt.told(code, 6, 4, 0.01, 0.05, number, seed=3)[0] for number in numbers]
    assert len(set(gaps)) == len(numbers)
    assert all(0.5 < gap < 2.4 for gap in gaps)


def test_chapter_code_trains_on_english(code):
    (loss,) = train_gpt.written(code, 3, 0.003, n_layers=1, d_model=16, seed=3)
    assert 2 < loss < 6
