"""Tests of tools/run_mutants.py: its mutants apply to the current files, and it recognises mutants that escape."""

import re
import subprocess

import pytest
import run_mutants
from run_mutants import MUTANTS, Mutant, mutate, problem
from run_tests import TEST, Lane

PYTHON = Lane("a script that asserts", (), ("test_two.py",))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.part)
def test_mutant_text_occurs_once_in_its_file(mutant):
    text = (run_mutants.ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old


def test_every_lane_has_a_mutant_and_parts_are_unique():
    lanes = {lane.name.removesuffix(", other half") for lane in TEST} | {"shapes"}
    assert {mutant.lane.name for mutant in MUTANTS} == lanes
    assert len({mutant.part for mutant in MUTANTS}) == len(MUTANTS) >= 12


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one function and its test."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "wrong.py").write_text("def two():\n    return 1 + 1  # one and one\n")
    (tmp_path / "test_two.py").write_text("from wrong import two\n\nassert two() == 2\n")
    monkeypatch.setattr(run_mutants, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("mutant", "reason"),
    [
        (Mutant("seen", "wrong.py", "1 + 1", "1 - 1", PYTHON), ""),
        (Mutant("harmless", "wrong.py", "1 + 1", "2", PYTHON), "its tests do not fail: exit status 0"),
        (Mutant("no test", "wrong.py", "1 + 1", "1 - 1", PYTHON, ("three.py",)), "its tests fail without the change"),
        (Mutant("unbuilt", "wrong.py", "1 + 1", "1 - 1", PYTHON, built="_build/wrong.py"), "has not been built"),
    ],
    ids=lambda value: getattr(value, "part", None),
)
def test_problem_is_empty_only_if_tests_fail_because_of_the_mutant(repository, mutant, reason):
    assert reason in (found := problem(mutant))
    assert bool(reason) == bool(found)
    assert "1 + 1" in (repository / "wrong.py").read_text()


@pytest.mark.parametrize(("old", "count"), [("1 - 1", 0), ("one", 2)])
def test_mutate_text_that_does_not_occur_once_raises(repository, old, count):
    with pytest.raises(
        ValueError, match=re.escape(f"wrong.py must hold this text exactly once, found {count} times: {old}")
    ):
        mutate(repository, Mutant("stale", "wrong.py", old, "3", PYTHON))
