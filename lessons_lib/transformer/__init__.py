"""Transformer models: feed-forward layers, blocks, GPT, encoder-decoder, initial weights and checkpoints.

Files in reading order: each imports only from files above it and from earlier rooms.

    feedforward      feed-forward layers and mixture of experts
    blocks           residual blocks of attention and feed-forward layers
    stabilise        QK-norm and sigmaReparam, which bound attention scores
    initialise       initial weights
    checkpoints      atomic writing and reading of safetensors files
    configuration    the settings of a GPT, and those of known models
    gpt              a decoder-only language model
    huggingface      loads pretrained models: GPT-2, Llama, Mistral, Qwen and others
    encoder_decoder  the encoder-decoder Transformer of 2017
"""

from lessons_lib.transformer.blocks import (
    CrossAttentionBlock,
    OutputNorm,
    ParallelBlock,
    PostNorm,
    PreNorm,
    SandwichNorm,
    TransformerBlock,
)
from lessons_lib.transformer.checkpoints import read_tensors, write_tensors
from lessons_lib.transformer.configuration import GPTConfig, gpt2_medium, gpt2_small, llama3_8b, llama_tiny
from lessons_lib.transformer.encoder_decoder import Decoder, Encoder, EncoderDecoder, EncoderDecoderConfig
from lessons_lib.transformer.feedforward import (
    GEGLU,
    FeedForward,
    MixtureOfExperts,
    Router,
    Routing,
    SwiGLU,
    gelu,
    gelu_tanh,
    relu,
    swiglu_width,
)
from lessons_lib.transformer.gpt import GPT
from lessons_lib.transformer.huggingface import gpt_from_huggingface
from lessons_lib.transformer.initialise import initialise, initialise_normal, initialise_xavier, rng_from
from lessons_lib.transformer.stabilise import (
    QKNorm,
    QKNormAcrossHeads,
    SigmaReparam,
    apply_qk_norm,
    apply_sigma_reparam,
    remove_sigma_reparam,
)

__all__ = [
    "GEGLU",
    "GPT",
    "CrossAttentionBlock",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "FeedForward",
    "GPTConfig",
    "MixtureOfExperts",
    "OutputNorm",
    "ParallelBlock",
    "PostNorm",
    "PreNorm",
    "QKNorm",
    "QKNormAcrossHeads",
    "Router",
    "Routing",
    "SandwichNorm",
    "SigmaReparam",
    "SwiGLU",
    "TransformerBlock",
    "apply_qk_norm",
    "apply_sigma_reparam",
    "gelu",
    "gelu_tanh",
    "gpt2_medium",
    "gpt2_small",
    "gpt_from_huggingface",
    "initialise",
    "initialise_normal",
    "initialise_xavier",
    "llama3_8b",
    "llama_tiny",
    "read_tensors",
    "relu",
    "remove_sigma_reparam",
    "rng_from",
    "swiglu_width",
    "write_tensors",
]
