"""The deliberate mistakes of ``tools/run_mutants.py`` still fit the files, and the tool knows a mutant that escapes."""

import re
import subprocess

import pytest
import run_mutants
from run_mutants import MUTANTS, Mutant, caught, mutate
from run_tests import TEST, Lane

PYTHON = Lane("a script that asserts", (), ("test_two.py",))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.part)
def test_a_mutant_changes_a_file_that_is_there_in_one_place(mutant):
    text = (run_mutants.ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old


def test_every_lane_has_a_mutant():
    assert {mutant.lane.name for mutant in MUTANTS} == {lane.name.removesuffix(", other half") for lane in TEST}
    assert len({mutant.part for mutant in MUTANTS}) == len(MUTANTS) >= 12


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one function with its test."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "wrong.py").write_text("def two():\n    return 1 + 1  # one and one\n")
    (tmp_path / "test_two.py").write_text("from wrong import two\n\nassert two() == 2\n")
    monkeypatch.setattr(run_mutants, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("mutant", "amiss"),
    [
        (Mutant("seen", "wrong.py", "1 + 1", "1 - 1", PYTHON), ""),
        (Mutant("harmless", "wrong.py", "1 + 1", "2", PYTHON), "its tests do not fail: exit status 0"),
        (Mutant("no test", "wrong.py", "1 + 1", "1 - 1", PYTHON, ("three.py",)), "its tests fail without the change"),
        (Mutant("unbuilt", "wrong.py", "1 + 1", "1 - 1", PYTHON, built="_build/wrong.py"), "has not been built"),
    ],
    ids=lambda value: getattr(value, "part", None),
)
def test_only_tests_that_pass_before_and_fail_after_catch_a_mutant(repository, mutant, amiss):
    assert amiss in (found := caught(mutant))
    assert bool(amiss) == bool(found)
    assert "1 + 1" in (repository / "wrong.py").read_text()


@pytest.mark.parametrize(("old", "count"), [("1 - 1", 0), ("one", 2)])
def test_a_change_that_does_not_fit_exactly_once_is_refused(repository, old, count):
    with pytest.raises(
        ValueError, match=re.escape(f"wrong.py must hold this text exactly once, found {count} times: {old}")
    ):
        mutate(repository, Mutant("stale", "wrong.py", old, "3", PYTHON))
