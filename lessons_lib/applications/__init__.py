"""Applications beyond text: images, graphs, speech.

Files in reading order: each imports only from files above it and from earlier rooms.

    vision  a Vision Transformer
    graphs  graph attention, graph convolution and label propagation
    speech  a vowel synthesiser, log-mel spectrograms, CTC decoding and edit distance
"""

from lessons_lib.applications.graphs import (
    GraphAttention,
    GraphConvolution,
    dot_scores,
    gat_scores,
    gatv2_scores,
    propagate_labels,
)
from lessons_lib.applications.vision import VisionConfig, VisionTransformer, patchify, unpatchify

__all__ = [
    "GraphAttention",
    "GraphConvolution",
    "VisionConfig",
    "VisionTransformer",
    "dot_scores",
    "gat_scores",
    "gatv2_scores",
    "patchify",
    "propagate_labels",
    "unpatchify",
]
