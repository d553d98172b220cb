"""Text generation: sampling, streams, beam search, speculative decoding.

Files in reading order: each imports only from files above it and from earlier rooms.

    next_token   the distribution of the next token: temperature, top-k, top-p, min-p, repetition penalty
    stopping     end-of-sequence tokens and the padding after them
    steps        the loop of autoregressive sampling, one step at a time
    sampling     autoregressive sampling and greedy decoding
    streaming    tokens and text as they are generated
    beam         beam search
    speculation  speculative decoding with a draft model
"""

from lessons_lib.generation.beam import Beams, beam_search
from lessons_lib.generation.next_token import next_token_probs, penalise_repetition, top_k_top_p_mask
from lessons_lib.generation.sampling import generate
from lessons_lib.generation.speculation import Acceptance, Speculation, accept_draft, speculate
from lessons_lib.generation.stopping import count_new_tokens
from lessons_lib.generation.streaming import IncrementalDecoder, Streamed, stream_generate

__all__ = [
    "Acceptance",
    "Beams",
    "IncrementalDecoder",
    "Speculation",
    "Streamed",
    "accept_draft",
    "beam_search",
    "count_new_tokens",
    "generate",
    "next_token_probs",
    "penalise_repetition",
    "speculate",
    "stream_generate",
    "top_k_top_p_mask",
]
