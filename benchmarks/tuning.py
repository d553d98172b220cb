"""Rivals tuned alike: each chooses its learning rate on a validation split, and the rate chosen is run with every seed.

    jobs = [job("convolution", build, draw, losses, score, steps=300, rates=(0.002, 0.006))]
    record(__doc__, "vision-and-language", jobs)

The lines of a name, in a record of :mod:`benchmarks.records`:

    convolution: val, rate 0.002     score on the validation split, mean of the seeds that choose, one line a rate
    convolution: test, rate, seed 0  the rate chosen, then the scores on the test split, one line a seed
    convolution: test, 3 x, seed 0   the same with so many times the steps
    convolution: weights, seconds    number of weights; processor time of one training, as the machine was
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.records import Job
from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.training.loop import train
from lessons_lib.transformer.initialise import rng_from

Scores = float | Sequence[float]


def fit(
    build: Callable[[], nn.Module],
    draw: Callable[[torch.Generator], Any],
    losses: Callable[[nn.Module, Any], Tensor],
    *,
    steps: int,
    rate: float,
    seed: int,
    **settings: Any,
) -> tuple[nn.Module, float]:
    """Build a model and train it on batches from ``draw``; return it, to be used, and seconds of processor time.

    The seed alone decides start, dropout and batches; PyTorch's own generator stays where it is. ``settings`` are
    those of :class:`~lessons_lib.training.loop.TrainConfig`; the warm-up is a twentieth of the steps unless it is
    given.
    """
    batches_from = torch.Generator().manual_seed(1000 + seed)
    settings = {"n_warmup": max(1, steps // 20), **settings}
    with rng_from(torch.Generator().manual_seed(seed)):
        model = build()
        start = time.process_time()
        batches = islice(_each(draw, batches_from), steps)
        for _ in train(model, batches, n_steps=steps, lr=rate, losses=losses, progress=False, **settings):
            pass
        seconds = time.process_time() - start
    return model.eval(), seconds


def compare(
    name: str,
    build: Callable[[], nn.Module],
    draw: Callable[[torch.Generator], Any],
    losses: Callable[[nn.Module, Any], Tensor],
    score: Callable[[nn.Module, str], Scores],
    *,
    steps: int,
    rates: Sequence[float] = (2e-3, 6e-3),
    seeds: Sequence[int] = (0, 1, 2),
    chosen_with: Sequence[int] = (0,),
    longer: int = 2,
    longer_seeds: Sequence[int] = (0,),
    smaller_is_better: bool = False,
    **settings: Any,
) -> dict[str, list[float]]:
    """Choose the rate on the validation split, run it with ``seeds``, and some ``longer`` times as long.

    Args:
        name: in front of every line that is returned.
        build: makes the model.
        draw: a batch for training, from a generator.
        losses: as :func:`~lessons_lib.training.loop.train` has it.
        score: of a model, in evaluation mode, on the split ``"val"`` or ``"test"``: a number or several. The first
            decides.
        steps: of one training.
        rates: that are tried; the first of the best is taken. One rate is taken without a trial. A record keeps three
            decimals of them.
        seeds: of the runs that are tested.
        chosen_with: seeds of the runs by whose mean the rate is chosen.
        longer: how many times the steps; 0 for none.
        longer_seeds: of the longer runs.
        smaller_is_better: for errors.
        settings: of :func:`fit`, the same for all.
    """
    found: dict[str, list[float]] = {}

    def run(rate: float, seed: int, n_steps: int) -> tuple[nn.Module, float]:
        return fit(build, draw, losses, steps=n_steps, rate=rate, seed=seed, **settings)

    tried, kept = {}, {}  # of each rate the scores, and what was trained
    for rate in rates if len(rates) > 1 else ():
        kept |= {(rate, seed): run(rate, seed, steps) for seed in chosen_with}
        by_seed = [_scores(score, kept[rate, seed][0], "val") for seed in chosen_with]
        tried[rate] = [sum(one) / len(one) for one in zip(*by_seed, strict=True)]
        found[f"{name}: val, rate {rate:g}"] = tried[rate]
    sign = -1 if smaller_is_better else 1
    best = max(tried, key=lambda rate: sign * tried[rate][0]) if tried else rates[0]
    about: list[float] = []
    for seed in seeds:
        model, seconds = kept.get((best, seed)) or run(best, seed, steps)
        about = about or [sum(p.numel() for p in model.parameters()), seconds]
        found[f"{name}: test, rate, seed {seed}"] = [best, *_scores(score, model, "test")]
    for seed in longer_seeds if longer else ():
        model, _ = run(best, seed, longer * steps)
        found[f"{name}: test, {longer} x, seed {seed}"] = [best, *_scores(score, model, "test")]
    found[f"{name}: weights, seconds"] = about
    return found


def lines(
    name: str,
    *,
    rates: Sequence[float] = (2e-3, 6e-3),
    seeds: Sequence[int] = (0, 1, 2),
    longer: int = 2,
    longer_seeds: Sequence[int] = (0,),
    **_: Any,
) -> list[str]:
    """The names of the lines that :func:`compare` returns with these settings, in their order."""
    return [
        *(f"{name}: val, rate {rate:g}" for rate in rates if len(rates) > 1),
        *(f"{name}: test, rate, seed {seed}" for seed in seeds),
        *(f"{name}: test, {longer} x, seed {seed}" for seed in longer_seeds if longer),
        f"{name}: weights, seconds",
    ]


def job(name: str, *what: Any, **settings: Any) -> Job:
    """What :func:`benchmarks.records.record` runs to make the lines of one rival; arguments as for :func:`compare`."""
    return lines(name, **settings), lambda: list(compare(name, *what, **settings).values())


def _each(draw: Callable[[torch.Generator], Any], generator: torch.Generator) -> Iterator[Any]:
    while True:
        yield draw(generator)


def _scores(score: Callable[[nn.Module, str], Scores], model: nn.Module, split: str) -> list[float]:
    with torch.no_grad(), eval_mode(model):
        found = score(model, split)
    return [float(one) for one in found] if isinstance(found, Sequence) else [float(found)]
