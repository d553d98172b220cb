"""Tests of the synthetic tasks: the inputs determine the answers."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from lessons_lib.training import stories, tasks

TASKS = {
    tasks.copy: {"batch_size": 5, "length": 7, "n_symbols": 11},
    tasks.sorting: {"batch_size": 5, "length": 7, "n_symbols": 11},
    tasks.modular_addition: {"batch_size": 5, "modulus": 11, "n_terms": 3},
    tasks.repetition: {"batch_size": 5, "n": 23, "n_symbols": 13, "min_period": 3, "max_period": 11},
    stories.sample_stories: {"batch_size": 5, "n": 23},
}
each_task = pytest.mark.parametrize(
    ("task", "settings"), TASKS.items(), ids=lambda value: getattr(value, "__name__", "")
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def equal(ours, theirs):
    return all(map(torch.equal, vars(ours).values(), vars(theirs).values()))


# --- every task -----------------------------------------------------------------------------------------------------


@each_task
def test_batches_depend_only_on_the_generator(task, settings):
    before = torch.get_rng_state()
    ours, again = task(generator(3), **settings), task(generator(3), **settings)
    torch.set_default_dtype(torch.float32)
    in_single = task(generator(3), **settings)
    assert equal(ours, again)
    assert equal(ours, in_single)
    assert not torch.equal(ours.inputs, task(generator(4), **settings).inputs)
    assert torch.equal(torch.get_rng_state(), before)


def test_seed_gives_the_same_rows_in_every_release():
    """Chapters quote results of a seed, so the order of the random numbers must not change."""
    first = {task: task(generator(3), **settings).inputs[0].tolist() for task, settings in TASKS.items()}
    assert first == {
        tasks.copy: [9, 8, 7, 3, 6, 6, 0, 11, 9, 8, 7, 3, 6, 6],
        tasks.sorting: [9, 8, 7, 3, 6, 6, 0, 11, 0, 3, 6, 6, 7, 8],
        tasks.modular_addition: [9, 8, 7, 11],
        tasks.repetition: [0, 3, 10, 6, 1, 8, 0, 3, 10, 6, 1, 8, 0, 3, 10, 6, 1, 8, 0, 3, 10, 6, 1],
        stories.sample_stories: [12, 17, 33, 9, 13, 31, 64, 0, 3, 45, 64, 0, 3, 45, 62, 44, 1, 50, 16, 10, 19, 0, 45],
    }


@each_task
def test_stream_is_lazy_and_resumes_from_generator_state(task, settings):
    ours = generator(3)
    batches = tasks.stream(task, ours, **settings)
    next(batches)
    state = ours.get_state()
    second = next(batches)
    resumed = tasks.stream(task, generator().set_state(state), **settings)
    assert equal(second, next(resumed))


@each_task
def test_batches_have_one_shape_and_integer_tokens(task, settings):
    batch = task(generator(), **settings)
    assert batch.inputs.shape == batch.targets.shape == batch.loss_mask.shape
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.loss_mask.any(-1).all()


@each_task
def test_batch_size_zero_raises(task, settings):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        task(generator(), **settings | {"batch_size": 0})


# --- symbols: an oracle that reads only earlier inputs predicts all targets inside the loss mask ----------------------


def copies(seen, length):
    return seen[len(seen) - length - 1]


def sorts(seen, length):
    return sorted(seen[:length])[len(seen) - length - 1]


def adds(seen, length):
    return sum(seen[:length]) % seen[length]  # the separator equals the number of symbols, which is the modulus here


def follows_the_last_copy(seen, _):
    return next(seen[i + 1] for i in reversed(range(len(seen) - 1)) if seen[i] == seen[-1])


def answers(batch, oracle, length):
    return [
        oracle(row[: i + 1].tolist(), length) == batch.targets[b, i].item()
        for b, row in enumerate(batch.inputs)
        for i in batch.loss_mask[b].nonzero().flatten().tolist()
    ]


@pytest.mark.parametrize(
    ("task", "oracle", "length", "n_counted"),
    [
        (tasks.copy, copies, 7, 7),
        (tasks.sorting, sorts, 7, 7),
        (tasks.modular_addition, adds, 3, 1),
        (tasks.repetition, follows_the_last_copy, None, None),
    ],
    ids=["copy", "sorting", "modular_addition", "repetition"],
)
def test_inputs_determine_every_target_inside_loss_mask(task, oracle, length, n_counted):
    batch = task(generator(), **TASKS[task])
    assert all(answers(batch, oracle, length))
    if n_counted:
        assert batch.loss_mask.sum(-1).tolist() == [n_counted] * 5
    wrong = replace(batch, targets=batch.targets.roll(1, dims=-1))
    assert not all(answers(wrong, oracle, length))


def test_targets_are_the_inputs_one_step_later():
    for task, settings in TASKS.items():
        batch = task(generator(), **settings)
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


def test_sorting_returns_the_same_symbols_in_order():
    batch = tasks.sorting(generator(), batch_size=5, length=7, n_symbols=4)
    for question, answer in zip(batch.inputs[:, :7], batch.targets[:, 7:], strict=True):
        assert Counter(question.tolist()) == Counter(answer.tolist())
        assert answer.tolist() == sorted(answer.tolist())


def test_repetition_repeats_distinct_symbols_with_period_of_row():
    batch = tasks.repetition(generator(), **TASKS[tasks.repetition] | {"batch_size": 301})
    tokens = torch.cat([batch.inputs, batch.targets[:, -1:]], dim=-1)
    for row, mask, period in zip(tokens, batch.loss_mask, batch.periods.tolist(), strict=True):
        assert torch.equal(row[period:], row[:-period])
        assert len(set(row[:period].tolist())) == period
        assert mask.tolist() == [i >= period for i in range(23)]
    assert set(batch.periods.tolist()) == set(range(3, 12))


def test_loss_mask_of_repetition_starts_as_early_as_possible():
    batch = tasks.repetition(generator(), **TASKS[tasks.repetition])
    earlier = batch.loss_mask | batch.loss_mask.roll(-1, dims=-1)
    with pytest.raises(StopIteration):
        answers(replace(batch, loss_mask=earlier), follows_the_last_copy, None)


@pytest.mark.parametrize(
    ("task", "impossible", "message"),
    [
        (tasks.copy, {"length": 0}, "length must be at least 1, got 0"),
        (tasks.copy, {"n_symbols": 1}, "n_symbols must be at least 2, got 1"),
        (tasks.sorting, {"n_symbols": 1}, "n_symbols must be at least 2, got 1"),
        (tasks.modular_addition, {"modulus": 1}, "modulus must be at least 2, got 1"),
        (tasks.modular_addition, {"n_terms": 0}, "n_terms must be at least 1, got 0"),
        (tasks.repetition, {"n": 1}, "n must be at least 2, got 1"),
        (tasks.repetition, {"max_period": 23, "n_symbols": 31}, "max_period must be at most 22, got 23"),
        (tasks.repetition, {"min_period": 12}, "min_period must be at most 11, got 12"),
        (tasks.repetition, {"min_period": 0}, "min_period must be at least 1, got 0"),
        (tasks.repetition, {"n_symbols": 10}, "n_symbols must be at least 11, got 10"),
        (stories.sample_stories, {"n": 0}, "n must be at least 1, got 0"),
    ],
)
def test_invalid_settings_raise(task, impossible, message):
    with pytest.raises(ValueError, match=message):
        task(generator(), **TASKS[task] | impossible)
