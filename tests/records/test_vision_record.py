"""Tests of the record on vision and language, whose runs use the chapter's own code."""

import json

import pytest
import torch

from benchmarks import vision_and_language as made
from lessons_lib.training.datasets import ENGLISH_SHA256

RECORD = json.loads((made.ROOT / "benchmarks" / "results" / "vision-and-language.json").read_text(encoding="utf-8"))
NETS = "convolution", "ViT, 2 x 2"
OF = "1000, in order", "100, in order", "1000, shuffled"


@pytest.fixture
def code():
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # as in the page
    yield made.cells()
    torch.set_default_dtype(kept)


def test_record_has_every_run_of_the_command(code):
    parts = (made.spots, made.pairs, made.digits, made.gaps, made.dates)
    assert list(RECORD["runs"]) == [line for part in parts for lines, _ in part(code) for line in lines]
    assert RECORD["text"] == ENGLISH_SHA256
    for name, found in RECORD["runs"].items():
        if "test, " in name:
            assert found[0] in {0.001, 0.002, 0.003, 0.005, 0.006, 0.008, 0.01, 0.012, 0.016}, name
            assert all(0 <= one <= (8 if name.startswith("gap") else 1) for one in found[1:]), name


def test_tested_learning_rate_is_the_best_on_validation():
    runs = RECORD["runs"]
    tried = {name.partition(": val")[0] for name in runs if ": val, rate" in name}
    assert len(tried) > 10
    for name in tried:
        scores = {
            float(line.rpartition(" ")[2]): found[0] for line, found in runs.items() if line.startswith(f"{name}: val")
        }
        best = (min if name.startswith("gap") else max)(scores.values())
        assert scores[runs[f"{name}: test, rate, seed 0"][0]] == best, name


def test_chapter_code_reproduces_recorded_digits(code):
    lines, run = next(job for job in made.digits(code) if job[0][0].startswith("digits, 100, in order, nearest"))
    assert lines[1] == "digits, 100, in order, kernel machine"
    assert [[round(x, 3) for x in found] for found in run()] == [RECORD["runs"][line] for line in lines]


def scores(name, at=0, what="test, rate"):
    """Return one of the scores that follow the learning rate, for each seed."""
    lines = [found for line, found in RECORD["runs"].items() if line.startswith(f"{name}: {what}, seed ")]
    assert lines, name
    return torch.tensor([line[1 + at] for line in lines])


def alone(name, at=0):
    return RECORD["runs"][name][at]


def test_statements_on_digits_hold():
    net = {(net, of): scores(f"digits, {of}, {net}").mean() for net in NETS for of in OF}
    conv, vit = (net[name, "1000, in order"] for name in NETS)
    rivals = [alone(f"digits, 1000, in order, {name}") for name in ("nearest neighbours", "kernel machine")]
    wide = {of: scores(f"digits, {of}, ViT, 4 x 4").mean() for of in OF[:2]}
    assert abs(conv - sum(rivals) / 2) < 0.01
    assert conv > vit + 0.03
    assert conv > wide[OF[0]] + 0.01 > vit + 0.02
    few = [alone(f"digits, 100, in order, {name}") for name in ("nearest neighbours", "kernel machine")]
    for name in NETS:
        assert min(few) - net[name, "100, in order"] > max(rivals) - net[name, "1000, in order"] + 0.01
    assert min(few) - wide[OF[1]] > max(rivals) - wide[OF[0]] + 0.01
    late = [scores(f"digits, 1000, in order, {name}", what="test, 4 x") for name in (*NETS, "ViT, 4 x 4")]
    assert late[0] > max(late[1:]) + 0.01
    assert abs(late[0] - sum(rivals) / 2) < 0.01
    lost = [scores(f"digits, 1000, in order, {name}") - scores(f"digits, 1000, shuffled, {name}") for name in NETS]
    assert min(one.min() for one in lost) > 0
    for name in NETS:
        rates = [alone(f"digits, 1000, {order}, {name}: test, rate, seed 0") for order in ("in order", "shuffled")]
        assert rates[0] == rates[1], name
    assert scores(f"digits, 1000, shuffled, {NETS[0]}").mean() > scores(f"digits, 1000, shuffled, {NETS[1]}").mean()


def test_statements_on_pairs_hold():
    plain = {kind: scores(f"pairs, said in one way, {kind}") for kind in ("linear", "transformers")}
    assert plain["linear"].min() > plain["transformers"].max() + 0.02
    for kind in plain:
        assert 0 < (scores(f"pairs, said in one way, {kind}", 1) - plain[kind]).mean() < 0.15
    shown = [scores(f"pairs, said in one way, {kind}", 1).mean() for kind in plain]
    assert abs(shown[0] - shown[1]) < 0.02
    harder = {kind: scores(f"pairs, said in two ways, {kind}") for kind in plain}
    for kind in plain:
        assert harder[kind].max() < 0.5
        assert (scores(f"pairs, said in two ways, {kind}", 2) - 0.5).abs().max() < 0.1
        assert scores(f"pairs, said in two ways, {kind}", 2).mean() < 0.5
    longer = {
        kind: sum(scores(f"pairs, said in two ways, {kind}, 3200 steps", way) for way in (2, 3)) / 2 for kind in plain
    }
    assert (longer["linear"] - 0.5).abs().max() < 0.1
    assert abs(longer["transformers"].min() - 0.5) < 0.1 < 0.8 < longer["transformers"].max()
    asked = [scores(f"pairs, asked for the order, {kind}", way) for kind in plain for way in (0, 1)]
    assert min(one.min() for one in asked) > 0.6
    assert min(one.mean() for one in asked[:2]) > 0.9


def test_statements_on_gaps_hold():
    reader, left, bayes = scores("gap, reader", 1), scores("gap, writer", 1), scores("gap, writer", 2)
    counts = alone("gap, counts, both", 1)
    assert counts < bayes.min() - 0.1
    assert bayes.max() < left.min() - 0.5
    assert left.max() < reader.min() - 0.3
    assert bayes.max() < scores("gap, reader", 1, "test, 7 x") < left.min()
    assert alone("gap, counts, both") < alone("gap, counts, left") - 0.5
    assert alone("gap, counts, left", 1) < scores("gap, reader", 1, "test, 7 x") - 0.3  # worse than all counts


def test_statements_on_dates_hold():
    assert alone("dates, table and rule") == 1
    one, two = (scores("dates, one vector", n).mean() for n in (1, 2))
    assert two < 0.1 < scores("dates, one vector", 2, "test, 2 x") < 0.7 < one
    assert scores("dates, one vector and a look").min() > 0.95
    assert scores("dates, attention alone").max() < scores("dates, one vector and a look").min() - 0.05
    names = "attention alone", "attention alone, wide", "one vector and a look"
    sizes = [alone(f"dates, {name}: weights, seconds") for name in names]
    assert sizes[0] < 0.5 * sizes[2] < sizes[2] < sizes[1]
    assert scores(f"dates, {names[1]}").max() < scores(f"dates, {names[2]}").min() - 0.03
    assert scores(f"dates, {names[1]}", what="test, 2 x") > 0.95  # almost catches up


def test_statements_on_spots_hold():
    blind = "spot, pooling after a block"
    assert scores(blind).max() < 0.6
    assert scores(blind, 2).min() > (12 / 22) ** 2 + 0.05  # it uses the spot, but barely distinguishes it
    assert scores(blind, 1).min() > (12 / 22) ** 2 + 0.05
    assert scores("spot, pooling").mean() < alone("spot, filter") - 0.02
    level = (scores("spot, pooling") - alone("spot, filter")).abs() < 0.01
    assert level.tolist() == [True, False, False]
    assert 0.01 < scores("spot, pooling", what="test, 2 x") - alone("spot, filter") < 0.05
    assert (scores("spot, convolution") > alone("spot, filter")).sum() == 2
    for kind in ("pooling", "pooling after a block"):
        name = f"spot and mark, {kind}"
        assert scores(name, 7).min() > 0.9
        assert (scores(name, 3) - scores(name, 0)).min() > 0.1
    name = "spot and mark, pooling"
    assert (scores(name, 6) - scores(name, 7)).abs().max() < 0.05
    maps, bare, marked = (scores("spot and mark, pooling after a block", at) for at in (6, 0, 3))
    rest = torch.arange(len(maps)) != maps.argmax()
    assert len(maps) == 5
    assert maps[rest].max() - maps[rest].min() > 0.4
    assert bare[~rest] < bare[rest].min() - 0.05
    assert marked.max() - marked.min() < 0.03


def test_statement_that_no_task_favours_attention_holds():
    assert alone("digits, 1000, in order, kernel machine") > scores("digits, 1000, in order, ViT, 4 x 4").max() + 0.02
    assert (
        scores("pairs, said in one way, linear").mean() > scores("pairs, said in one way, transformers").mean() + 0.02
    )
    assert alone("dates, table and rule") > scores("dates, attention alone, wide").mean() + 0.02
    assert scores("spot, convolution").mean() > scores("spot, pooling").mean() + 0.02
