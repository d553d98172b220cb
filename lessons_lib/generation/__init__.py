"""Text generation: sampling, beam search, speculative decoding.

Files in reading order: each imports only from files above it and from earlier rooms.

    sampling     autoregressive sampling with temperature, top-k and top-p, and greedy decoding
    beam         beam search
    speculation  speculative decoding with a draft model
"""

from lessons_lib.generation.beam import Beams, beam_search
from lessons_lib.generation.sampling import generate, next_token_probs, top_k_top_p_mask
from lessons_lib.generation.speculation import Acceptance, Speculation, accept_draft, speculate

__all__ = [
    "Acceptance",
    "Beams",
    "Speculation",
    "accept_draft",
    "beam_search",
    "generate",
    "next_token_probs",
    "speculate",
    "top_k_top_p_mask",
]
