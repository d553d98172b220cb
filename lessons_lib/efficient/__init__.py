"""Efficient attention: variants that cost less than ``n**2``, with the arguments of ``attention``.

Some variants compute the same as :func:`lessons_lib.attention.attention.attention` under a mask and skip the hidden
blocks of scores. Others approximate softmax attention or replace it. The files, in reading order::

    error           the relative error of an approximation
    validation      checks of the arguments that all variants share
    skipping        exact attention under any rule: the cost is the number of blocks with a visible key
    sliding_window  exact attention in a sliding window: the cost grows as ``n * window``
    block_sparse    exact attention under a block mask, as in Longformer and BigBird
    linear          linear attention, a product of features instead of ``exp``: the cost grows as ``n``
    performer       Performer: random features whose products are ``exp`` in expectation
    linformer       Linformer: keys and values projected to a fixed number
    recurrence      a linear recurrence instead of attention, computed as a parallel scan
    delta           linear attention with decay, and the delta rule

All variants but the last two can be the ``implementation`` of an attention layer, with their own options bound::

    MultiHeadAttention(64, 4, implementation=partial(sliding_window_attention, window=128))

A variant raises ``ValueError`` for arguments that it does not support (some masks, a bias, dropout) and never ignores
them. :func:`~lessons_lib.efficient.error.relative_error` measures the error of the variants that are not exact.
"""

from lessons_lib.efficient.block_sparse import big_bird_layout, block_sparse_attention, expand_layout, longformer_layout
from lessons_lib.efficient.delta import decayed_attention, delta_rule
from lessons_lib.efficient.error import relative_error
from lessons_lib.efficient.linear import LinearState, elu_plus_one, linear_attention, linear_attention_step
from lessons_lib.efficient.linformer import LinformerAttention
from lessons_lib.efficient.performer import orthogonal_projection, performer_attention, positive_features
from lessons_lib.efficient.skipping import skipping_attention, visited_blocks
from lessons_lib.efficient.sliding_window import sliding_window_attention

__all__ = [
    "LinearState",
    "LinformerAttention",
    "big_bird_layout",
    "block_sparse_attention",
    "decayed_attention",
    "delta_rule",
    "elu_plus_one",
    "expand_layout",
    "linear_attention",
    "linear_attention_step",
    "longformer_layout",
    "orthogonal_projection",
    "performer_attention",
    "positive_features",
    "relative_error",
    "skipping_attention",
    "sliding_window_attention",
    "visited_blocks",
]
