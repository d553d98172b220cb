"""Tests of the training loop against a manual loop, and of saved training states."""

import json
import math
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from itertools import islice, pairwise
from pathlib import Path

import data_parallel_worker
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.testing import assert_close

from lessons_lib.foundations import norms
from lessons_lib.training import loop as training
from lessons_lib.training import tasks
from lessons_lib.training.loop import (
    TrainConfig,
    Training,
    load_training_state,
    save_training_state,
    train,
    warmup_cosine,
)
from lessons_lib.transformer import checkpoints

TASK = {"batch_size": 3, "n": 13, "n_symbols": 7, "min_period": 2, "max_period": 5}


class Tiny(nn.Module):
    """A small model from tokens to logits, with dropout, a bare parameter and tied weights."""

    def __init__(self, width=5, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(7, width)
        self.position_table = nn.Parameter(torch.randn(13, width))
        self.norm, self.dropout = norms.LayerNorm(width), nn.Dropout(dropout)
        self.w_down = nn.Linear(width, width)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position_table
        return self.head(self.norm(x + self.w_down(self.dropout(x.cumsum(dim=1)))))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batches(source=None):
    return tasks.stream(tasks.repetition, source or generator(), **TASK)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identical(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- learning rate --------------------------------------------------------------------------------------------------


def test_warmup_cosine_decay_matches_pytorch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = CosineAnnealingLR(optimizer, T_max=17 - 5, eta_min=0.1)
    for step in range(5, 17):
        assert warmup_cosine(step, n_warmup=5, n_steps=17, final_share=0.1) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_warmup_cosine_is_linear_then_decreasing_then_constant():
    shares = [warmup_cosine(step, n_warmup=5, n_steps=17) for step in range(41)]
    assert shares[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert all(later < earlier for earlier, later in pairwise(shares[5:18]))
    assert shares[17:] == [0.0] * 24


def test_warmup_cosine_with_final_share_one_and_without_warmup():
    assert [warmup_cosine(step, n_warmup=2, n_steps=5, final_share=1.0) for step in range(7)] == [0.5, *[1.0] * 6]
    assert warmup_cosine(0, n_warmup=0, n_steps=5) == 1.0
    assert [warmup_cosine(step, n_warmup=3, n_steps=3) for step in range(3)] == pytest.approx([1 / 3, 2 / 3, 1.0])


@pytest.mark.parametrize(
    ("step", "settings", "message"),
    [
        (-1, {}, "step must be at least 0, got -1"),
        (0, {"n_steps": 0}, "n_steps must be at least 1, got 0"),
        (0, {"n_warmup": 18}, "n_warmup must be at most 17, got 18"),
        (0, {"final_share": 1.5}, r"final_share must be in \[0, 1\], got 1.5"),
    ],
)
def test_warmup_cosine_with_invalid_arguments_raises(step, settings, message):
    with pytest.raises(ValueError, match=message):
        warmup_cosine(step, **{"n_warmup": 5, "n_steps": 17} | settings)


# --- training loop --------------------------------------------------------------------------------------------------


def test_next_token_losses_match_pytorch_inside_loss_mask():
    batch, model = next(batches()), Tiny(dropout=0.0)
    targets = batch.targets.masked_fill(~batch.loss_mask, -100)
    theirs = cross_entropy(model(batch.inputs).mT, targets, reduction="none", ignore_index=-100)
    assert_close(training.next_token_losses(model, batch), theirs[batch.loss_mask])


def manual_loop(model, n_steps):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    for step, batch in enumerate(islice(batches(), n_steps)):
        lr = 0.02 * warmup_cosine(step, n_warmup=2, n_steps=n_steps, final_share=0.1)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = cross_entropy(model(batch.inputs)[batch.loss_mask], batch.targets[batch.loss_mask])
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        yield training.Record(step, loss.item(), lr, norm.item())


def test_train_matches_manual_loop():
    ours, theirs = Tiny(dropout=0.0), Tiny(dropout=0.0)
    theirs.load_state_dict(ours.state_dict())
    settings = {"n_warmup": 2, "weight_decay": 0.3, "clip": 0.5}
    records = list(train(ours, batches(), n_steps=7, lr=0.02, progress=False, **settings))
    expected = list(manual_loop(theirs, 7))
    assert_close(torch.tensor(records), torch.tensor(expected))
    assert any(record.grad_norm > 0.5 for record in records)
    assert_close(weights(ours), weights(theirs))


def test_train_ignores_targets_outside_loss_mask():
    ours, theirs = Tiny(dropout=0.0), Tiny(dropout=0.0)
    theirs.load_state_dict(ours.state_dict())
    batch = next(batches())
    other = replace(batch, targets=torch.where(batch.loss_mask, batch.targets, (batch.targets + 1) % 7))
    list(train(ours, [batch], n_steps=1, lr=0.01, progress=False))
    list(train(theirs, [other], n_steps=1, lr=0.01, progress=False))
    assert identical(weights(ours), weights(theirs))


def test_training_accepts_another_optimizer_and_objective():
    """Gradient descent on (w - 3)^2 with learning rate 1/4 halves the distance of w from 3 at every step."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(11.0)
    run = Training(
        model,
        TrainConfig(n_steps=3, lr=0.25, final_share=1.0, clip=None),
        optimizer=torch.optim.SGD(model.parameters()),
        losses=lambda model, batch: (model(batch) - 3.0).square().flatten(),
    )
    losses = [record.loss for record in run.run([torch.ones(1, 1)] * 3, progress=False)]
    assert losses == pytest.approx([64.0, 16.0, 4.0])
    assert model.weight.item() == pytest.approx(4.0)


def test_train_starts_with_the_first_requested_record():
    model, source = Tiny(), generator()
    before, state = weights(model), source.get_state()
    records = train(model, batches(source), n_steps=5, lr=0.1, progress=False)
    assert identical(weights(model), before)
    assert torch.equal(source.get_state(), state)
    next(records)
    assert not identical(weights(model), before)


def test_train_restores_training_mode_at_each_step():
    ours, theirs = Tiny(), Tiny()
    theirs.load_state_dict(ours.state_dict())
    torch.manual_seed(1)
    for _ in train(ours, batches(), n_steps=5, lr=0.1, progress=False):
        ours.eval()
    torch.manual_seed(1)
    list(train(theirs, batches(), n_steps=5, lr=0.1, progress=False))
    assert identical(weights(ours), weights(theirs))


def test_progress_bar_can_be_disabled(capsys):
    list(train(Tiny(), batches(), n_steps=2, lr=0.1, progress=False))
    assert capsys.readouterr() == ("", "")
    list(train(Tiny(), batches(), n_steps=2, lr=0.1))
    out, err = capsys.readouterr()
    assert out == ""
    assert "2/2" in err
    assert "loss=" in err


def test_train_with_too_few_batches_raises():
    with pytest.raises(ValueError, match="batches must be enough for n_steps=5 steps, got only 3"):
        list(train(Tiny(), islice(batches(), 3), n_steps=5, lr=0.1, progress=False))


def test_train_and_evaluate_without_losses_raise():
    batch = next(batches())
    batch = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    with pytest.raises(ValueError, match="the batch must have at least one loss to minimise, got none"):
        list(train(Tiny(), [batch], n_steps=1, lr=0.1, progress=False))
    with pytest.raises(ValueError, match="batches must have at least one loss, got none"):
        training.evaluate(Tiny(), [batch])
    with pytest.raises(ValueError, match="batches must have at least one loss, got none"):
        training.evaluate(Tiny(), [])


def test_train_with_nonfinite_loss_raises_before_the_update():
    model = Tiny()
    model.position_table.data[3, 2] = torch.inf
    before = weights(model)
    with pytest.raises(FloatingPointError, match="loss nan with a gradient of norm nan at step 0: try a lower lr"):
        list(train(model, batches(), n_steps=5, lr=0.1, progress=False))
    assert identical(weights(model), before)


def test_train_of_model_without_parameters_raises():
    with pytest.raises(ValueError, match="parameters that require gradients, got none"):
        train(nn.Identity(), batches(), n_steps=1, lr=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"lr": math.inf}, "lr must be positive and finite, got inf"),
        ({"clip": -1.0}, "clip must be positive and finite, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and not negative, got -0.1"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ({"n_warmup": 6}, "n_warmup must be at most 5, got 6"),
        ({"final_share": -0.1}, "final_share must be in"),
    ],
)
def test_train_with_invalid_settings_raises_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        train(Tiny(), batches(), **{"n_steps": 5, "lr": 0.1} | settings)


def test_config_is_frozen_and_rejects_unknown_settings():
    with pytest.raises(FrozenInstanceError):
        TrainConfig(n_steps=5, lr=0.1).lr = 0.2
    with pytest.raises(TypeError, match="momentum"):
        train(Tiny(), batches(), n_steps=5, lr=0.1, momentum=0.9)


def test_evaluate_averages_over_targets_without_dropout_and_restores_modes():
    model, found = Tiny(), list(islice(batches(), 3))
    model.norm.eval()
    before = weights(model)
    ours = training.evaluate(model, found)
    assert model.training
    assert not model.norm.training
    assert identical(weights(model), before)
    model.eval()
    losses = [training.next_token_losses(model, batch) for batch in found]
    assert ours == pytest.approx(torch.cat(losses).mean().item())
    assert ours != pytest.approx(torch.stack([loss.mean() for loss in losses]).mean().item())


# --- training states ------------------------------------------------------------------------------------------------

CONFIG = TrainConfig(n_steps=11, lr=0.02, n_warmup=2)


def new_run(seed, config=CONFIG, width=5, **kwargs):
    torch.manual_seed(seed)
    source = generator(seed)
    return Training(Tiny(width), config, generators={"data": source}, **kwargs), batches(source)


def remaining_records(run, stream):
    return list(run.run(stream, progress=False))


@pytest.fixture
def saved(tmp_path):
    """Save a run after 6 steps; return the file, the remaining 5 records and the final weights."""
    run, stream = new_run(0)
    list(islice(run.run(stream, progress=False), 6))
    path = tmp_path / "run.safetensors"
    save_training_state(run, path)
    return path, remaining_records(run, stream), weights(run.model)


def test_resumed_run_is_bitwise_identical(saved):
    path, records, after = saved
    run, stream = new_run(1)
    load_training_state(run, path)
    assert run.step == 6
    assert remaining_records(run, stream) == records
    assert identical(weights(run.model), after)


@pytest.mark.parametrize("missing", ["dropout", "data", "memory", "step"])
def test_resume_test_catches_each_missing_part_of_the_state(saved, missing):
    path, records, after = saved
    run, stream = new_run(1)
    load_training_state(run, path)
    if missing == "dropout":
        torch.manual_seed(1)
    elif missing == "data":
        run.generators["data"].manual_seed(1)
    elif missing == "memory":
        run.optimizer.state.clear()
    else:
        run.step = 5
    assert remaining_records(run, stream) != records
    assert not identical(weights(run.model), after)


def test_saved_state_contains_config_and_tied_weights(saved):
    path, *_ = saved
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["settings"])["config"]["lr"] == 0.02
    assert torch.equal(load_file(path)["model.head.weight"], load_file(path)["model.embedding.weight"])


def test_run_can_be_saved_before_its_first_step(tmp_path):
    run, stream = new_run(0)
    save_training_state(run, tmp_path / "start.safetensors")
    records = remaining_records(run, stream)
    again, stream = new_run(1)
    remaining_records(again, stream)
    load_training_state(again, tmp_path / "start.safetensors")
    assert remaining_records(again, stream) == records


def test_interrupted_save_leaves_the_previous_file(saved, monkeypatch):
    path, *_ = saved
    before = path.read_bytes()

    def write_part(tensors, file, metadata):
        Path(file).write_bytes(before[:100])
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoints, "save_file", write_part)
    with pytest.raises(OSError, match="no space left"):
        save_training_state(new_run(1)[0], path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def everything(run):
    return training._tensors(run) | {"step": torch.tensor(run.step)}


def assert_load_raises(path, message, run=None):
    """Check that loading the file raises an error and leaves the run unchanged."""
    run = run or new_run(1)[0]
    before = everything(run)
    with pytest.raises(ValueError, match=message):
        load_training_state(run, path)
    assert identical(everything(run), before)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_load_of_truncated_file_raises(saved, share):
    path, *_ = saved
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert_load_raises(path, "must be a complete safetensors file")


def test_load_of_foreign_file_raises(saved):
    path, *_ = saved
    save_file(load_file(path), path)
    assert_load_raises(path, "must have the format 'lessons_lib training state, version 1', got None")
    path.write_text("not a checkpoint")
    assert_load_raises(path, "must be a complete safetensors file")
    with pytest.raises(FileNotFoundError):
        load_training_state(new_run(1)[0], path.with_name("absent.safetensors"))


def test_load_of_state_from_another_run_raises(saved):
    path, *_ = saved
    assert_load_raises(path, "another config", new_run(1, replace(CONFIG, lr=0.03))[0])
    wider, _ = new_run(1, width=6)
    assert_load_raises(
        path, r"model.embedding.weight must be torch.float64 over \(7, 6\), got torch.float64 over \(7, 5\)", wider
    )
    deeper, _ = new_run(1)
    deeper.model.extra = nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    assert_load_raises(path, r"missing are \['model.extra'\], unexpected are \[\]", deeper)
    fewer, _ = new_run(1)
    fewer.generators.clear()
    assert_load_raises(path, r"missing are \[\], unexpected are \['generator.data'\]", fewer)
    descending, _ = new_run(1)
    descending.optimizer = torch.optim.SGD(descending.model.parameters())
    assert_load_raises(path, "another optimizer", descending)
    half, _ = new_run(1)
    half.model.float()
    assert_load_raises(path, r"must be torch.float32 over", half)


def test_save_of_optimizer_state_that_is_no_tensor_raises(tmp_path):
    run, _ = new_run(0)
    run.optimizer = torch.optim.LBFGS(run.model.parameters())
    run.optimizer.state[run.parameters[0]]["n_iter"] = 3
    with pytest.raises(ValueError, match="must hold only tensors to be saved, got 3 as its n_iter"):
        save_training_state(run, tmp_path / "run.safetensors")
    assert not os.listdir(tmp_path)


# --- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.another_process
def test_data_parallel_training_matches_one_process_with_joined_batch(tmp_path):
    """Compare weights and records after 6 steps of a small GPT; measured differences are 1e-14 and 4e-16.

    The shards of a batch have different numbers of targets. With the common average of the processes' means, the
    weights would differ by 4e-2.
    """
    data_parallel_worker.main(str(tmp_path / "one"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
    command = [sys.executable, data_parallel_worker.__file__, str(tmp_path / "two")]
    started = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(process.returncode for process in started), "\n".join(errors)
    assert_close(load_file(tmp_path / "two"), load_file(tmp_path / "one"), rtol=0, atol=1e-12)
