"""What the guide says of time and memory is what was measured."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "assignments/README.md").read_text(encoding="utf-8")
RECORD = json.loads((ROOT / "benchmarks/results/grading-class.json").read_text(encoding="utf-8"))


def test_the_guide_tells_the_record():
    run = RECORD["runs"][0]
    peak, each = run["peak_MiB"], run["processor_seconds"] / run["graded"]
    assert (run["students"], run["graded"], run["part"], run["jobs"]) == (200, 40, "1/5", 2)
    for said in (
        f"{run['processor_seconds']} seconds of processor time, {each:.0f} for each",
        f"(load {run['load']:.0f}), that was {run['seconds']['grading'] / 60:.0f} minutes",
        f"at most {peak['one grading process, resident']} MiB, a kernel {peak['one kernel, resident']}",
        f"together {peak['all together, proportional']} MiB",
        f"take {run['MiB']['gradebook.db'] + run['MiB']['checked and autograded']:.1f} MiB",
    ):
        assert said in GUIDE, said
    assert 12 < run["students"] * each / 2 / 60 < 16, "a quarter of an hour on two idle cores"
