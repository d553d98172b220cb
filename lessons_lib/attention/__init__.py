"""Attention: softmax, masks, scaled dot-product attention, position encodings, KV caches and multi-head layers.

Files in reading order: each imports only from files above it and from earlier rooms.

    softmax       softmax, log-sum-exp, the merge of two partial results
    rules         masks as immutable rules that say which key a query may attend to
    masks         the same masks as Boolean tensors; used as a module: ``masks.causal(n)``
    attention     scaled dot-product attention, the specification, and its backward pass
    sdpa          the same function computed by PyTorch's ``scaled_dot_product_attention``
    positions     sinusoidal, learned, rotary and ALiBi positions
    rope_scaling  rotary positions beyond the trained length
    cache         KV caches: of all positions, or of the first and the last ones
    fixed_cache   KV caches in tensors that are allocated once, for compiled decoding
    multihead     multi-head and grouped-query attention
    latent        multi-head latent attention: one short vector for the keys and values of all heads
"""

from lessons_lib.attention.attention import (
    AttentionGradients,
    WeightsAndMask,
    attention,
    attention_vjp,
    attention_weights,
    attention_weights_and_mask,
    declare_weights,
    get_weights_function,
)
from lessons_lib.attention.cache import KVCache, StreamingCache
from lessons_lib.attention.fixed_cache import FixedCache, RingCache
from lessons_lib.attention.latent import LatentAttention, LatentCache
from lessons_lib.attention.multihead import AddPositions, MultiHeadAttention
from lessons_lib.attention.positions import (
    ROPE_BASE,
    AlibiBias,
    LearnedPositions,
    RotaryEmbedding,
    RotaryScaling,
    SinusoidalPositions,
    change_pairing,
    rotary_frequencies,
    sinusoidal,
)
from lessons_lib.attention.rope_scaling import (
    DynamicNTK,
    Llama3,
    NTKAware,
    PositionInterpolation,
    YaRN,
    yarn_attention_factor,
)
from lessons_lib.attention.rules import (
    Band,
    BigBird,
    Blocks,
    BlockSparse,
    Causal,
    Dilated,
    Documents,
    Full,
    GlobalTokens,
    LeftPadding,
    Neighbourhood2D,
    Padding,
    Prefix,
    Random,
    Rule,
    SharedPrefix,
    Window,
    as_rule,
)
from lessons_lib.attention.sdpa import fused_attention
from lessons_lib.attention.softmax import log_sum_exp, merge_attention, softmax, softmax_jacobian

__all__ = [
    "ROPE_BASE",
    "AddPositions",
    "AlibiBias",
    "AttentionGradients",
    "Band",
    "BigBird",
    "BlockSparse",
    "Blocks",
    "Causal",
    "Dilated",
    "Documents",
    "DynamicNTK",
    "FixedCache",
    "Full",
    "GlobalTokens",
    "KVCache",
    "LatentAttention",
    "LatentCache",
    "LearnedPositions",
    "LeftPadding",
    "Llama3",
    "MultiHeadAttention",
    "NTKAware",
    "Neighbourhood2D",
    "Padding",
    "PositionInterpolation",
    "Prefix",
    "Random",
    "RingCache",
    "RotaryEmbedding",
    "RotaryScaling",
    "Rule",
    "SharedPrefix",
    "SinusoidalPositions",
    "StreamingCache",
    "WeightsAndMask",
    "Window",
    "YaRN",
    "as_rule",
    "attention",
    "attention_vjp",
    "attention_weights",
    "attention_weights_and_mask",
    "change_pairing",
    "declare_weights",
    "fused_attention",
    "get_weights_function",
    "log_sum_exp",
    "merge_attention",
    "rotary_frequencies",
    "sinusoidal",
    "softmax",
    "softmax_jacobian",
    "yarn_attention_factor",
]
