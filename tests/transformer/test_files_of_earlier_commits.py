"""Files that were saved before modules were renamed can be loaded, under the names of today.

Commit 4066fac wrote the files, together with the expected outputs and losses.
"""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

from lessons_lib.training.loop import TrainConfig, Training, load_training_state
from lessons_lib.training.tasks import Batch
from lessons_lib.transformer.checkpoints import RENAMED
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

SAVED = Path(__file__).with_name("saved_before_rooms")
EXPECTED = load_file(SAVED / "expected.safetensors")
LLAMA = {"n_kv_heads": 1, "feedforward": "swiglu", "norm": "rms", "position": "rotary", "bias": False, "tied": False}


@pytest.mark.parametrize("name", ["learned", "qk-norm"])
def test_saved_model_gives_the_same_logits(name):
    model = GPT.load(SAVED / f"{name}.safetensors").eval()
    assert_close(model(EXPECTED["tokens"]), EXPECTED[name], rtol=0, atol=1e-5)


def test_saved_training_state_continues_with_the_same_losses():
    model = GPT(GPTConfig(5, 6, 8, 1, 2, d_ff=7, qk_norm=True, **LLAMA)).float()
    run = Training(model, TrainConfig(n_steps=4, lr=0.02, n_warmup=1))
    load_training_state(run, SAVED / "training.safetensors")
    batches = [Batch(x[:, :-1], x[:, 1:], torch.ones(3, 6, dtype=torch.bool)) for x in EXPECTED["sequences"]]
    losses = torch.tensor([record.loss for record in run.run(batches, progress=False)])
    # The losses are equal on the machine that saved the files; they are in float32.
    assert_close(losses, EXPECTED["losses"].double(), rtol=1e-4, atol=0)


def test_saved_files_contain_a_renamed_module():
    with safe_open(SAVED / "qk-norm.safetensors", framework="pt") as file:
        parts = {part for name in file.keys() for part in name.split(".")}  # noqa: SIM118 (no mapping)
    assert parts & RENAMED.keys()
