"""Tests of the record on the run time and memory of attention and other layers."""

import json

import pytest
import torch

from benchmarks import complexity_cpu as command

RECORD = json.loads((command.ROOT / "benchmarks" / "results" / f"{command.NAME}.json").read_text(encoding="utf-8"))


def test_record_has_every_run_of_the_command():
    lengths = {f"time: {name}": len(command.LENGTHS) - (name == command.SHORTER) for name in command.rivals(8)}
    lengths |= {f"widths: {name}": len(command.WIDTHS) for name in ("loop", "scan")}
    lengths |= {f"memory: {name}": len(command.LONG) for name in command.IN_MEMORY}
    lengths |= {"columns": len(command.COLUMNS), "square": 1, "copy": 1}
    assert {name: len(found) for name, found in RECORD["runs"].items()} == lengths
    assert all(x > 0 for found in RECORD["runs"].values() for x in found)
    assert {"device", "commit", "load", "versions", "date", "setting"} <= set(RECORD)
    assert RECORD["setting"]["lengths"] == list(command.LENGTHS)


def test_recorded_memory_is_at_least_that_of_the_output():
    for name in command.IN_MEMORY:
        for n, grown in zip(command.LONG, RECORD["runs"][f"memory: {name}"], strict=True):
            assert grown > n * command.WIDTH * 4 / 2**20, (name, n)


def test_compared_methods_agree_and_have_expected_shapes():
    tasks = command.rivals(37)
    with torch.no_grad():
        torch.testing.assert_close(tasks["attention, fused"](), tasks["attention, as written"]())
        torch.testing.assert_close(tasks["scan"](), tasks["loop"]())
        shapes = {name: tuple(tasks[name]()[0].shape) for name in ("GRU", "LSTM")}
    assert shapes == {"GRU": (1, 37, command.WIDTH), "LSTM": (1, 37, command.WIDTH)}


@pytest.mark.another_process
def test_attention_memory_is_about_that_of_its_scores():
    """At least a float32 and a Boolean for each pair of positions and head."""
    n = 1024
    grown = command.in_a_process_of_its_own("attention, as written", n)
    assert command.HEADS * n**2 * 4 / 2**20 < grown < 10 * command.HEADS * n**2 * 4 / 2**20


def test_best_runs_a_task_at_least_twice():
    ran = []
    assert command.best(lambda: ran.append(sum(range(10_000))), budget=0.0) > 0
    assert len(ran) == 2
