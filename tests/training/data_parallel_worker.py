"""Train a small model for a few steps and save its weights, in one process or in several.

RANK=0 WORLD_SIZE=2 python tests/training/data_parallel_worker.py OUT & RANK=1 ...
"""

import os
import sys
from dataclasses import replace

import torch
from safetensors.torch import save_file
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from lessons_lib.training import tasks
from lessons_lib.training.loop import train
from lessons_lib.transformer.configuration import GPTConfig
from lessons_lib.transformer.gpt import GPT

N_STEPS = 6


def share(batches, rank, n_processes):
    """Yield this process's rows of every batch."""
    for batch in batches:
        rows = slice(rank, None, n_processes)
        yield replace(batch, **{name: tensor[rows] for name, tensor in vars(batch).items()})


def main(out: str) -> None:
    rank, n_processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = GPT(GPTConfig(11, 17, 12, 2, 3, position="alibi"))
    task = {"batch_size": 4, "n": 17, "n_symbols": 11, "min_period": 2, "max_period": 9}
    batches = share(tasks.stream(tasks.repetition, torch.Generator().manual_seed(0), **task), rank, n_processes)
    if n_processes == 1:
        records = list(train(model, batches, n_steps=N_STEPS, lr=0.01, progress=False))
    else:
        meet = f"file://{out}.meet"
        distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=n_processes)
        records = list(train(DistributedDataParallel(model), batches, n_steps=N_STEPS, lr=0.01, progress=False))
        distributed.destroy_process_group()
    if rank == 0:
        save_file({**dict(model.named_parameters()), "records": torch.tensor(records)}, out)


if __name__ == "__main__":
    main(sys.argv[1])
