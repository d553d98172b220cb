"""FlashAttention: exact attention in memory linear in the sequence length, forward and backward [1]_.

:func:`flash_attention` dispatches to one of three backends with the same semantics::

    tiled       PyTorch operations on tiles of scores; any device and precision
    triton      Triton kernels with their equations; NVIDIA GPUs (the extra ``gpu``)
    torch       PyTorch's own fused kernels

The specification of the result is :func:`lessons_lib.attention.attention.attention`. :func:`as_implementation` returns
:func:`flash_attention` with the signature of ``attention``, and :func:`chosen_backend` returns the backend for a call
with the reason.

The mask is a :class:`~lessons_lib.attention.rules.Rule`. No ``n x m`` matrix is made, and tiles without a visible pair
are never visited. The kernels take bands and key lengths as two numbers and a list. Any other rule becomes a table of
tiles, which the host computes once and caches with the rule.

The files, in reading order::

    reference           the algorithm as a plain loop over tiles: start here
    validation          checks of the arguments, for all backends
    score_mods          scale, soft cap, ALiBi slopes and sinks
    band                a band and key lengths, as the kernels take them
    tile_shapes         tiles in memory: sizes, buffers, views
    tile_scores         the scores of a tile: slopes, bias, sinks, mask
    dropout             which weights are kept, as a function of the seed and the place
    tile_loops          the optimised loops over tiles in PyTorch, forward and backward
    tiled               these loops as one differentiable function, also under ``vmap``
    configurations      tile sizes by device, type and head width
    block_mask          any other rule as a table of tiles
    triton_kernels      the loop over tiles in Triton, for bands
    block_mask_kernels  the same for any rule, with a table of tiles
    autograd            the kernels as one differentiable function
    sdpa                PyTorch's fused kernels with the same semantics
    call                a call with all its arguments checked
    backends            the choice of a backend, with the reason
    interface           the public functions, which dispatch to a backend

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
"""

from lessons_lib.flash.backends import Choice
from lessons_lib.flash.dropout import dropout_mask
from lessons_lib.flash.interface import FlashImplementation, as_implementation, chosen_backend, flash_attention

__all__ = [
    "Choice",
    "FlashImplementation",
    "as_implementation",
    "chosen_backend",
    "dropout_mask",
    "flash_attention",
]
