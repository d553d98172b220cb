"""Tests of the tuning of compared models: the learning rate is chosen on validation data and reported on test data."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from benchmarks.tuning import compare, fit, job, lines


def build():
    return nn.Sequential(nn.Dropout(0.01), nn.Linear(3, 1))


def draw(generator):
    x = torch.randn(8, 3, generator=generator)
    return x, x @ torch.tensor([[2.0], [-1.0], [0.5]])


def losses(model, batch):
    return mse_loss(model(batch[0]), batch[1], reduction="none").flatten()


def error(model, split):
    x, y = draw(torch.Generator().manual_seed({"val": 5, "test": 6}[split]))
    return losses(model, (x, y)).mean().item()


def test_compare_tests_the_better_learning_rate():
    settings = {"steps": 40, "rates": (1e-5, 0.1), "seeds": (3, 4), "longer": 2, "longer_seeds": (7,)}
    found = compare("line", build, draw, losses, error, smaller_is_better=True, **settings)
    assert list(found) == lines("line", **settings)
    assert found["line: val, rate 1e-05"][0] > 1 > 0.5 > found["line: val, rate 0.1"][0]
    assert found["line: test, rate, seed 3"][0] == found["line: test, rate, seed 4"][0] == 0.1
    assert found["line: test, rate, seed 3"][1] != found["line: test, rate, seed 4"][1]
    assert found["line: test, 2 x, seed 7"][1] < found["line: test, rate, seed 4"][1]
    assert found["line: weights, seconds"][0] == 4


def test_compare_chooses_largest_score_by_default():
    found = compare("line", build, draw, losses, error, steps=5, rates=(1e-5, 0.1), seeds=(3,), longer=0)
    assert found["line: test, rate, seed 3"][0] == 1e-5


def test_compare_chooses_by_mean_over_chosen_with_seeds():
    settings = {"steps": 5, "rates": (0.01, 0.1), "seeds": (3, 8), "longer": 0, "smaller_is_better": True}
    alone = [compare("line", build, draw, losses, error, chosen_with=(seed,), **settings) for seed in (3, 4)]
    both = compare("line", build, draw, losses, error, chosen_with=(3, 4), **settings)
    assert list(both) == lines("line", chosen_with=(3, 4), **settings)
    for rate in settings["rates"]:
        scores = [found[f"line: val, rate {rate:g}"][0] for found in alone]
        assert scores[0] != scores[1]
        assert both[f"line: val, rate {rate:g}"][0] == sum(scores) / 2
    assert both["line: test, rate, seed 8"] == alone[0]["line: test, rate, seed 8"]


def test_job_with_one_rate_skips_validation():
    def two(model, split):
        assert split == "test"
        assert not model.training
        return 0.25, 0.5

    names, run = job("line", build, draw, losses, two, steps=2, rates=(0.1,), seeds=(3,), longer=0)
    assert names == ["line: test, rate, seed 3", "line: weights, seconds"]
    assert run()[0] == [0.1, 0.25, 0.5]


def test_fit_depends_only_on_seed_and_keeps_global_state():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first, _ = fit(build, draw, losses, steps=4, rate=0.1, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    again, _ = fit(build, draw, losses, steps=4, rate=0.1, seed=3)
    other, _ = fit(build, draw, losses, steps=4, rate=0.1, seed=4)
    x = torch.randn(5, 3)
    assert torch.equal(first(x), again(x))
    assert not torch.equal(first(x), other(x))
