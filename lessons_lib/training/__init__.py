"""Training: the loop, synthetic tasks, small datasets.

Files in reading order: each imports only from files above it and from earlier rooms.

    tasks     synthetic sequence tasks with known answers; used as a module: ``tasks.repetition(...)``
    stories   stories from a small grammar with exact next-word probabilities; used as a module
    datasets  three small data sets and an English text
    loop      the training loop, its learning-rate schedule and saved training states
"""

from lessons_lib.training.datasets import Dataset, english, load
from lessons_lib.training.loop import (
    Record,
    TrainConfig,
    Training,
    evaluate,
    load_training_state,
    next_token_losses,
    save_training_state,
    train,
    warmup_cosine,
)
from lessons_lib.training.tasks import Batch

__all__ = [
    "Batch",
    "Dataset",
    "Record",
    "TrainConfig",
    "Training",
    "english",
    "evaluate",
    "load",
    "load_training_state",
    "next_token_losses",
    "save_training_state",
    "train",
    "warmup_cosine",
]
