"""The drawings of the book: one function for each, which returns a :class:`~lessons_lib.page.sketch.Sketch`.

A chapter calls a drawing in a cell of its own, ``drawings.attention_steps()``. The caption stands in the metadata of
the cell, as the caption of a plot does; the alternative text comes with the drawing. Queries, keys, values and outputs
have the colours of the plots and explorers.

The files, in reading order, one for each part of the book::

    attention     projections, scores, their spread, masks, heads, rotary positions
    transformer   residual stream, encoder and decoder, induction heads, experts, speculative decoding
    efficient     FLOPs, parallel scans, linear attention, FlashAttention, ring attention
    applications  image and text encoders, a shortcut feature
"""

from lessons_lib.page.drawings.applications import spot_and_mark, two_towers
from lessons_lib.page.drawings.attention import (
    attention_steps,
    dot_product,
    grouped_query_attention,
    masked_softmax,
    masks,
    random_sums,
    recurrence_and_lookup,
    rotated_pair,
    scores_to_weights,
    split_heads,
)
from lessons_lib.page.drawings.efficient import (
    block_flops,
    gpu_levels,
    linear_attention_orders,
    online_softmax,
    parallel_scan,
    ping_pong,
    ring_attention_steps,
    tile_orders,
    two_memories,
)
from lessons_lib.page.drawings.transformer import (
    encoder_and_decoder,
    induction_circuit,
    mixture_of_experts,
    residual_stream,
    speculative_decoding,
)

__all__ = [
    "attention_steps",
    "block_flops",
    "dot_product",
    "encoder_and_decoder",
    "gpu_levels",
    "grouped_query_attention",
    "induction_circuit",
    "linear_attention_orders",
    "masked_softmax",
    "masks",
    "mixture_of_experts",
    "online_softmax",
    "parallel_scan",
    "ping_pong",
    "random_sums",
    "recurrence_and_lookup",
    "residual_stream",
    "ring_attention_steps",
    "rotated_pair",
    "scores_to_weights",
    "speculative_decoding",
    "split_heads",
    "spot_and_mark",
    "tile_orders",
    "two_memories",
    "two_towers",
]
