"""Tests of benchmarks.grading_class: the generated class, and the measurements."""

import os
import random
import sys

import nbformat
import pytest

pytest.importorskip("nbgrader")
if not sys.platform.startswith("linux"):
    pytest.skip("it reads /proc", allow_module_level=True)
from students import CLASS, RIGHT

from benchmarks import grading_class as benchmark


def read(*parts: str):
    return nbformat.read(benchmark.ROOT.joinpath(*parts, "scaling/scaling.ipynb"), as_version=4)


def test_hand_in_is_reproducible_and_has_every_kind_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    first, again = (benchmark.hand_in(tmp_path / name, n=200) for name in ("first", "again"))
    kinds = list(first.values())
    assert first == again
    assert {kind: kinds.count(kind) for kind in CLASS} == dict.fromkeys(CLASS, 1)
    assert kinds.count("honest") == 200 - len(CLASS)
    for student in list(first)[:20]:
        file = f"submitted/{student}/scaling/scaling.ipynb"
        assert (tmp_path / "first" / file).read_text() == (tmp_path / "again" / file).read_text()


def test_honest_answers_vary_and_are_mostly_correct():
    released, master = read("book/exercises"), read("assignments/source")
    draw = random.Random(0)
    handed_in = [benchmark.honest(draw, released, master, RIGHT) for _ in range(30)]
    scales = [cell.source for notebook in handed_in for cell in notebook.cells if cell.id == "scale"]
    assert 15 < scales.count(RIGHT["scale"]) < 30
    assert len({cell.source for notebook in handed_in for cell in notebook.cells if cell.id == "softmax"}) > 10
    assert {cell.id: cell.source for cell in released.cells}["scale"] not in (RIGHT["scale"], "")


def test_watch_measures_time_and_memory_of_a_process():
    watch = benchmark.Watch(os.getpid())
    watch.look()
    assert watch.resident["grading"] > 10_000
    assert watch.together > 0
    assert watch.at_once >= 1
    assert sum(watch.seconds.values()) > 0


def test_size_sums_file_sizes(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(bytes(3 * 2**20))
    (tmp_path / "d").write_bytes(bytes(2**19))
    assert benchmark.size(tmp_path, "a", "d", "none") == 3.5
