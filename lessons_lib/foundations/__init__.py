"""Foundations of all other rooms: argument validation, evaluation mode, normalisation layers.

Files in reading order: each imports only from files above it and from earlier rooms.

    mkl_first_call  a workaround for a race in the first calls of Intel's MKL
    validation      checks of arguments, whose errors name the argument
    derivatives     errors for derivatives that a custom autograd function does not support
    eval_mode       a context manager for evaluation mode
    norms           layer norm and RMS norm
"""

from lessons_lib.foundations.eval_mode import eval_mode
from lessons_lib.foundations.norms import LayerNorm, RMSNorm

__all__ = ["LayerNorm", "RMSNorm", "eval_mode"]
