"""The drawings of the book: one function for each, which returns a :class:`~lessons_lib.page.sketch.Sketch`.

A chapter calls a drawing in a cell of its own, ``drawings.attention_steps()``. The caption stands in the metadata of
the cell, as the caption of a plot does; the alternative text comes with the drawing. Queries, keys, values and outputs
have the colours of the plots and explorers.

The files, in reading order::

    lookup        attention as a look-up: one query, memories of fixed and of growing size, words in another order
    attention     projections, scores, their spread, masks, heads, rotary positions
    information   entropy, the trade between score and entropy, temperature
    geometry      scores as projections, outputs in the convex hull of the values
    markov        the attention matrix as a Markov chain
    masking       a mask before and after the softmax, the reach of layers of windows
    heads         one head and two heads, narrow heads, routes through two layers
    positions     rotary frequencies and distances
    training      residual branches, norms and warm-up
    transformer   residual stream, encoder and decoder, induction heads, experts, speculative decoding
    block         logit lens, units of a feed-forward layer, gradients behind a norm
    language      parts of the loss, shifted targets, cuts before sampling, byte-pair merges
    interventions the output of a head replaced, idle and busy rows of a head
    modern        two blocks beside one another, latent attention
    efficient     FLOPs, parallel scans, linear attention, FlashAttention, ring attention
    serving       memory traffic, prefill and decoding, paged KV caches, batches
    sparse        routes through a global token, kept keys, mixed keys, updates of a state
    flash         traffic between two memories, a softmax in two parts
    context       angles that are new in a long text, a cache of fixed size
    applications  image and text encoders, a shortcut feature
    encoders      an image as tokens, translation with one vector and with attention
    sequences     the reading of a path in CTC, static scores of graph attention
"""

from lessons_lib.page.drawings.applications import (
    spot_and_mark,
    two_towers,
)
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
from lessons_lib.page.drawings.block import (
    feedforward_units,
    logit_lens,
    norm_gradients,
)
from lessons_lib.page.drawings.context import (
    new_angles,
    streaming_cache,
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
from lessons_lib.page.drawings.encoders import (
    bottleneck_and_attention,
    image_as_tokens,
)
from lessons_lib.page.drawings.flash import (
    memory_passes,
    merged_parts,
)
from lessons_lib.page.drawings.geometry import (
    output_in_hull,
    projected_scores,
)
from lessons_lib.page.drawings.heads import (
    keys_on_circle,
    one_and_two_heads,
    relay_and_direct_route,
)
from lessons_lib.page.drawings.information import (
    score_and_entropy_levels,
    weights_by_temperature,
    yes_no_questions,
)
from lessons_lib.page.drawings.interventions import (
    head_interventions,
    idle_and_busy_rows,
)
from lessons_lib.page.drawings.language import (
    byte_pair_steps,
    loss_parts,
    sampling_cuts,
    shifted_targets,
)
from lessons_lib.page.drawings.lookup import (
    fixed_and_growing_memory,
    one_query,
    reordered_words,
)
from lessons_lib.page.drawings.markov import (
    causal_walk,
    content_path,
    markov_chain,
)
from lessons_lib.page.drawings.masking import (
    mask_orders,
    window_layers,
)
from lessons_lib.page.drawings.modern import (
    block_changes,
    latent_attention,
)
from lessons_lib.page.drawings.positions import (
    alibi_penalties,
    causal_averages,
    same_distance,
)
from lessons_lib.page.drawings.sequences import (
    ctc_reading,
    static_scores,
)
from lessons_lib.page.drawings.serving import (
    batching,
    operation_traffic,
    paged_cache,
    prefill_and_decoding,
)
from lessons_lib.page.drawings.sparse import (
    global_token_routes,
    key_mixtures,
    selected_keys,
    state_updates,
)
from lessons_lib.page.drawings.training import (
    averaged_tokens,
    norm_positions,
)
from lessons_lib.page.drawings.transformer import (
    encoder_and_decoder,
    induction_circuit,
    mixture_of_experts,
    residual_stream,
    speculative_decoding,
)

__all__ = [
    "alibi_penalties",
    "attention_steps",
    "averaged_tokens",
    "batching",
    "block_changes",
    "block_flops",
    "bottleneck_and_attention",
    "byte_pair_steps",
    "causal_averages",
    "causal_walk",
    "content_path",
    "ctc_reading",
    "dot_product",
    "encoder_and_decoder",
    "feedforward_units",
    "fixed_and_growing_memory",
    "global_token_routes",
    "gpu_levels",
    "grouped_query_attention",
    "head_interventions",
    "idle_and_busy_rows",
    "image_as_tokens",
    "induction_circuit",
    "key_mixtures",
    "keys_on_circle",
    "latent_attention",
    "linear_attention_orders",
    "logit_lens",
    "loss_parts",
    "markov_chain",
    "mask_orders",
    "masked_softmax",
    "masks",
    "memory_passes",
    "merged_parts",
    "mixture_of_experts",
    "new_angles",
    "norm_gradients",
    "norm_positions",
    "one_and_two_heads",
    "one_query",
    "online_softmax",
    "operation_traffic",
    "output_in_hull",
    "paged_cache",
    "parallel_scan",
    "ping_pong",
    "prefill_and_decoding",
    "projected_scores",
    "random_sums",
    "recurrence_and_lookup",
    "relay_and_direct_route",
    "reordered_words",
    "residual_stream",
    "ring_attention_steps",
    "rotated_pair",
    "same_distance",
    "sampling_cuts",
    "score_and_entropy_levels",
    "scores_to_weights",
    "selected_keys",
    "shifted_targets",
    "speculative_decoding",
    "split_heads",
    "spot_and_mark",
    "state_updates",
    "static_scores",
    "streaming_cache",
    "tile_orders",
    "two_memories",
    "two_towers",
    "weights_by_temperature",
    "window_layers",
    "yes_no_questions",
]
