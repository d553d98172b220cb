"""The grading guide states the recorded time, is short, and names commands and files that exist."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "assignments/README.md").read_text(encoding="utf-8")
RECORD = json.loads((ROOT / "benchmarks/results/grading-class.json").read_text(encoding="utf-8"))


def test_guide_states_the_recorded_time():
    runs = RECORD["runs"][:2]  # further runs may have been added on other machines
    assert [(run["students"], run["graded"], run["jobs"]) for run in runs] == [(200, 40, 2)] * 2
    each = sum(run["processor_seconds"] for run in runs) / sum(run["graded"] for run in runs)
    assert f"about {each:.0f} seconds of processor time for each student" in GUIDE
    assert "A class of 200 takes about a quarter of an hour on two idle cores" in GUIDE
    assert 12 < 200 * each / 2 / 60 < 16


def test_guide_has_at_most_1800_words_before_its_reference():
    guide, reference = GUIDE.split("\n## Reference\n")
    assert len(guide.split()) <= 1800
    assert reference


def test_commands_and_files_of_the_guide_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", GUIDE)) <= set(targets)
    modules = re.findall(r"python -m grading\.(\w+)", GUIDE)
    assert {"collect", "merge", "audit"} <= set(modules)
    assert all((ROOT / "grading" / f"{name}.py").is_file() for name in modules)
    for name in re.findall(r"\]\(([\w./-]+\.(?:png|md|json))\)", GUIDE):
        assert (ROOT / "assignments" / name).is_file(), name
