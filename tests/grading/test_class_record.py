"""The numbers on time and memory in the grading guide agree with the recorded benchmark."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "assignments/README.md").read_text(encoding="utf-8")
RECORD = json.loads((ROOT / "benchmarks/results/grading-class.json").read_text(encoding="utf-8"))


def test_guide_states_the_recorded_measurements():
    runs = RECORD["runs"][:2]  # further runs may have been added on other machines
    assert [(run["students"], run["graded"], run["part"], run["jobs"]) for run in runs] == [
        (200, 40, "1/5", 2),
        (200, 40, "2/5", 2),
    ]
    seconds = sum(run["processor_seconds"] for run in runs)
    each = seconds / sum(run["graded"] for run in runs)
    grading, kernel, together = (max(run["peak_MiB"][what] for run in runs) for what in runs[0]["peak_MiB"])
    loads = [f"{run['load']:.0f}" for run in runs]
    minutes = [f"{run['seconds']['grading'] / 60:.0f}" for run in runs]
    size = sum(run["MiB"]["gradebook.db"] + run["MiB"]["checked and autograded"] for run in runs)
    for said in (
        f"{seconds} seconds of processor time, {each:.0f} for each",
        f"(load {' and '.join(loads)}) the two parts took {' and '.join(minutes)} minutes",
        f"at most {grading} MiB, a kernel {kernel}, all of it together {together} MiB",
        f"take {size:.1f} MiB",
    ):
        assert said in GUIDE, said
    assert 12 < 200 * each / 2 / 60 < 16, "a quarter of an hour on two idle cores"
