"""Tests of the record files: one run a line, written unchanged, and extended by the missing runs only."""

import json
import sys

import pytest

from benchmarks import records

RESULTS = records.ROOT / "benchmarks" / "results"
USUAL = {"command", "date", "device", "versions", "runs"}


@pytest.mark.parametrize(
    "name",
    [
        "complexity-cpu",
        "dynamics",
        "modern",
        "positions",
        "recall",
        "sequences",
        "stretching",
        "train-gpt",
        "translators",
        "two-tokens",
        "vision-and-language",
    ],
)
def test_write_reproduces_existing_records(name, tmp_path):
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    stands = json.loads(text)
    about = {key: stands[key] for key in stands if key not in USUAL}
    records.write(tmp_path / "again.json", name, stands["runs"], **about)
    again = (tmp_path / "again.json").read_text(encoding="utf-8")
    assert again[again.index('"runs"') :] == text[text.index('"runs"') :]
    assert json.loads(again) | {key: stands[key] for key in ("date", "device", "versions")} == stands


def test_record_runs_only_missing_lines(tmp_path, monkeypatch):
    out = tmp_path / "few.json"
    monkeypatch.setattr(sys, "argv", ["few.py", "--out", str(out)])
    ran = []

    def job(*lines):
        return lines, lambda: ran.append(lines) or [[len(line) / 3] for line in lines]

    records.record("", "few", [job("b")])
    records.record("", "few", [job("aa", "c"), job("b")], unit="nats")
    assert ran == [("b",), ("aa", "c")]
    written = json.loads(out.read_text(encoding="utf-8"))
    assert list(written["runs"].items()) == [("aa", [0.667]), ("c", [0.333]), ("b", [0.333])]
    assert written["unit"] == "nats"
    assert written["command"] == "python benchmarks/few.py"
