"""FlashAttention: exact attention in memory linear in the sequence, forward and backward [1]_.

:func:`flash_attention` chooses among three implementations that agree on every meaning::

    tiled       PyTorch operations on tiles of scores; any device and precision
    triton      kernels to read beside their equations; NVIDIA GPUs (the extra ``gpu``)
    torch       PyTorch's own fused kernels

The specification of the result is :func:`lessons_lib.attention.attention`; :func:`as_implementation` gives
:func:`flash_attention` its call shape.

Who sees whom is a :class:`~lessons_lib.rules.Rule`: nothing over ``n x m`` is made, and tiles in which nobody sees
anybody are never visited. ``tiled`` takes any rule, the kernels take bands and key lengths.

The files, in reading order::

    inputs          what all three take, and what they refuse
    band            what the kernels know of a rule: two numbers, and lengths
    tiled           tile by tile in PyTorch, forward and backward
    configurations  sizes of tiles, by device, type and head width
    triton_kernels  the same tiles in Triton
    launch          the kernels joined into one differentiable step
    sdpa            PyTorch's own, made to mean the same

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
"""

import importlib.util
import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.flash.band import as_band
from lessons_lib.flash.inputs import check_inputs, check_window_and_backend, described, in_autocast_type, joined
from lessons_lib.flash.sdpa import needs_mask, torch_attention, torch_attention_in_linear_memory
from lessons_lib.flash.tiled import tiled_attention
from lessons_lib.rules import Rule, takes_rules


def flash_attention(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b g m d_k"],
    v: Float[Tensor, "b g m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    key_lengths: Int[Tensor, " b"] | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h n d_k"] | tuple[Float[Tensor, "b h n d_k"], Float[Tensor, "b h n"]]:
    r"""Average the values with the weights of :func:`lessons_lib.attention.attention`, without storing the weights.

    .. math:: O = \operatorname{softmax}\!\left(\tau\, Q K^\top\right) V, \qquad
              \ell_i = \log \sum_{j \text{ seen by } i} e^{\tau\, q_i \cdot k_j}

    Consecutive query heads share a key/value head; ``k`` and ``v`` are not repeated in memory. Query ``i`` stands at
    position :math:`p_i = i + m - n`, so that the last query stands at the last key. It sees key ``j`` if all of these
    hold, and if it sees none its output is 0, its :math:`\ell` is ``-inf`` and it sends back no gradient:

    * with a ``mask``, it allows the pair;
    * with ``is_causal``, :math:`j \le p_i`;
    * with a ``window``, :math:`p_i - j < \text{window}`, and on the other side :math:`j - p_i < \text{window}`;
    * with ``key_lengths``, :math:`j < \text{key\_lengths}_b`. These hide padding at the end and move no positions:
      the mask is ``masks.causal(n, m) & masks.padding(key_lengths, m)``. What lies in the padding is not read, except
      by ``torch``.

    The last three are ``Causal()``, ``Window(window)`` and ``Padding(key_lengths)`` of :mod:`lessons_lib.rules`, said
    as options: ``mask=Causal() & Window(256)`` is ``is_causal=True, window=256``. A Boolean table is taken too, and
    takes ``n x m`` bytes itself.

    Half precision is multiplied as it is (``tiled``: in float32) and added up in float32. ``triton`` lays results and
    gradients out in memory as what they belong to: heads that are a view of ``(b, n, h, d)`` give ``(b, n, h d)`` free.
    Under ``torch.compile`` it runs between two graphs, one before and one after it (so not with ``fullgraph=True``).

    Not here; what can be asked for all the same is refused in words, and where ``triton`` refuses, ``auto`` takes
    ``tiled``:

    * dropout and additive biases; keys and values of different widths, ``d_v != d_k``;
    * keys in pages; several sequences in one row of the batch, but by a rule; lengths that move positions;
    * numbers of 8 bits; on ``triton`` also float64, heads wider than 256, and GPUs other than NVIDIA's (ROCm);
    * second derivatives (except with ``torch``); forward-mode differentiation with ``triton`` and ``tiled``.

    Args:
        q, k, v: queries, keys and values, of one type on one device; any strides. Under ``torch.autocast`` they are
            cast to its type first, as for PyTorch's own function.
        mask: a rule, or a Boolean table that broadcasts to ``(b, h, n, m)``, True = may attend.
        is_causal: hide what comes after a query.
        window: number of visible keys, the query's own included, counted to each side that is visible.
        scale: multiplier :math:`\tau` of the scores; ``1 / sqrt(d_k)`` when omitted.
        key_lengths: how many keys each sequence has, 0 to ``m``. Lengths on the CPU are checked. ``triton`` takes those
            on the GPU without a look from the host (one below 0 counts as 0, one above ``m`` as ``m``), so that a step
            of decoding with lengths that grow in place can be captured in a CUDA graph.
        backend: ``auto`` takes ``triton`` on an NVIDIA GPU for what comes to a band and key lengths; on the CPU
            ``torch`` where it needs no mask; and ``tiled`` elsewhere, so memory stays linear in ``n`` and ``m``.
            ``torch``, asked for by name, may make an ``n x m`` mask.
        return_lse: return the pair ``(out, lse)``, as :func:`lessons_lib.softmax.merge_attention` takes it. ``lse`` is
            at least float32 and carries gradients.

    Raises:
        ValueError: if shapes, types or devices do not fit, an argument is out of range, or the backend cannot do this
            here; the message says why.
    """
    q, k, v = in_autocast_type(q, k, v)
    check_inputs(q, k, v, window, scale, key_lengths, backend)
    rule = joined(q, k, mask, is_causal, window, key_lengths)
    band = as_band(rule, q.shape[0], q.shape[2], k.shape[2])
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if scale <= 0:  # the kernels take a row's maximum before they multiply by the scale
        q, scale = (-q, -scale) if scale else (0 * q, 1.0)

    refusal = _refusal(backend, q, rule, band, return_lse)
    if refusal is not None:
        raise ValueError(f"backend={backend!r} cannot run here: {refusal}")
    if backend == "auto" and q.device.type == "cpu" and not return_lse and band is not None and not needs_mask(*band):
        return torch_attention_in_linear_memory(q, k, v, rule, scale)
    if backend == "torch":
        return torch_attention(q, k, v, rule, scale)
    if backend == "triton" or (
        backend == "auto" and q.is_cuda and _refusal("triton", q, rule, band, return_lse) is None
    ):
        from lessons_lib.flash.launch import triton_attention  # needs triton

        assert band is not None
        out, lse = triton_attention(q, k, v, band[0], scale, band[1])
    else:
        rule.check_sizes(q.shape[2], k.shape[2])
        out, lse = tiled_attention(q, k, v, rule, scale)
    return (out, lse) if return_lse else out


def as_implementation(
    *, is_causal: bool = False, window: int | None = None, backend: str = "auto"
) -> Callable[..., Tensor]:
    """Return :func:`flash_attention` in the call shape of :func:`lessons_lib.attention.attention`.

    It is made for ``MultiHeadAttention(implementation=...)``, and so for every model built of such layers. The layers
    of a decoder are causal and need no mask::

        MultiHeadAttention(768, 12, implementation=as_implementation(is_causal=True))

    A layer's mask hides more: a rule, as a :class:`~lessons_lib.gpt.GPT` passes it on, costs nothing over ``n x m``; a
    Boolean table is honoured too, and takes its ``n x m`` bytes.

    Raises:
        ValueError: if ``window`` is not positive or ``backend`` is unknown; when called, as :func:`flash_attention`,
            and for a bias or dropout, of which flash attention knows nothing.
    """
    check_window_and_backend(window, backend)

    @takes_rules
    def implementation(
        query: Float[Tensor, "b h n d_k"],
        key: Float[Tensor, "b g m d_k"],
        value: Float[Tensor, "b g m d_k"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        dropout_p: float = 0.0,
    ) -> Tensor:
        if bias is not None:
            raise ValueError("bias must be None, flash attention adds nothing to the scores; use attention instead")
        if dropout_p:
            raise ValueError(f"dropout_p must be 0, flash attention keeps every weight, got {dropout_p}")
        out = flash_attention(query, key, value, mask, is_causal=is_causal, window=window, scale=scale, backend=backend)
        assert isinstance(out, Tensor)
        return out

    return implementation


# --- parts ----------------------------------------------------------------------------------------------------------


def _refusal(backend: str, q: Tensor, rule: Rule, band: tuple | None, return_lse: bool) -> str | None:
    """Why the backend cannot do this here, or None."""
    if backend == "torch" and return_lse:
        return "PyTorch's function does not return the log-sum-exp; use backend='tiled'"
    if backend != "triton":
        return None
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; on Linux, pip install 'lessons-lib[gpu]'"
    if q.dtype == torch.float64:
        return "the kernels add up in float32, got float64; use backend='tiled'"
    if q.shape[-1] > 256:
        return f"the kernels take heads at most 256 wide, got {q.shape[-1]}; use backend='tiled'"
    if band is None:
        return (
            "the kernels know bands and key lengths (Causal, Window, Padding, and what & makes of them), "
            f"got {described(rule)}; use backend='tiled'"
        )
    from lessons_lib.flash.launch import IS_INTERPRETED, interpreter_fault  # needs triton

    if IS_INTERPRETED:
        return interpreter_fault()
    if not q.is_cuda or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, got tensors on {q.device}; use backend='tiled'"
    capability = torch.cuda.get_device_capability(q.device)
    if capability < (8, 0):
        return f"the kernels need compute capability 8.0, {torch.cuda.get_device_name(q.device)} has {capability}"
    return None
