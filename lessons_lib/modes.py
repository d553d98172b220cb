"""Evaluation mode and back: a model that is looked at or written with is left as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch every part to evaluation, which is without dropout, and each back to what it was, whatever happens.

    ``model.train()`` at the end would not do: parts of a model may be in evaluation mode on purpose.
    """
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
