"""A context manager that switches a model to evaluation mode and restores each module's mode afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode (no dropout) and restore the mode of each module on exit, also after an error.

    ``model.train()`` on exit would be wrong, because some modules may be in evaluation mode on purpose.

    >>> model = nn.Dropout(0.5)
    >>> with eval_mode(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
