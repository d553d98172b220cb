"""Attention and the Transformer, from one softmax to a trained GPT, in a dozen rooms.

The rooms in reading order: a room imports only from rooms above it, and each room's docstring lists its files.

    foundations   argument validation, evaluation mode, normalisation layers
    attention     softmax, masks, the specification of attention, PyTorch's kernels, positions, several heads
    transformer   feed-forward layers, blocks, GPT, encoder-decoder, weights and files
    generation    sampling, beam search, speculative decoding
    training      the training loop, synthetic tasks, small datasets
    analysis      entropy, geometry, patterns, diagnostics, ablation and patching
    efficient     attention that costs less than n squared: sparse, linear, recurrent
    flash         exact attention in linear memory, tile by tile; kernels for a GPU
    distributed   one sequence on several devices: ring attention, split KV caches
    applications  images, graphs, speech
    page          what a notebook shows: tables, plots, drawings, explorers, guesses
    checks        what grades the exercises

Import from the room: ``from lessons_lib.attention import MultiHeadAttention``. A name that a room does not export is
imported from its file: ``from lessons_lib.attention.rules import tiles``.

Axis names are the ones the book uses on paper:

    b           batch; ``*batch`` is any number of leading axes, possibly none
    n, m        queries, keys (m = n in self-attention)
    h, g        query heads, key/value heads (g = h unless heads are grouped)
    d_model     width of the residual stream
    d_k, d_v    width of a query or key, width of a value, inside one head

A mask is Boolean and reads as a permission: True means "this query may attend to this key".
Scores become weights in the softmax. Logarithms are natural, so information is in nats.
"""
