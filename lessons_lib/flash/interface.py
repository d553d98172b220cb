"""The public functions of the room: :func:`flash_attention`, which dispatches to a backend, and the choice it makes."""

import importlib.util
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.attention.attention import WeightsAndMask, attention_weights_and_mask, with_positive_scale
from lessons_lib.attention.rules import Rule
from lessons_lib.flash.band import KernelBand, kernel_band, padding_lengths
from lessons_lib.flash.block_mask import TileTable, cached_tile_table, make_tile_table
from lessons_lib.flash.score_mods import Scores
from lessons_lib.flash.sdpa import (
    memory_efficient_kernel_runs,
    needs_mask,
    torch_attention,
    torch_attention_in_linear_memory,
)
from lessons_lib.flash.tiled import tiled_attention
from lessons_lib.flash.validation import (
    cast_for_autocast,
    check_backend,
    check_cache_lengths,
    check_inputs,
    combine_masks,
    options_as_rule,
    read_lengths,
)


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
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    cache_lengths: Int[Tensor, " b"] | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h n d_k"] | tuple[Float[Tensor, "b h n d_k"], Float[Tensor, "b h n"]]:
    r"""Return the output of :func:`lessons_lib.attention.attention.attention` without storing the attention weights.

    .. math:: O = \operatorname{softmax}(S)\, V, \qquad \ell_i = \log \sum_{j \text{ visible to } i} e^{s_{ij}}, \qquad
              s_{ij} = \tau\, q_i \cdot k_j

    Consecutive query heads share a key/value head; ``k`` and ``v`` are not repeated in memory. Query ``i`` is at
    position :math:`p_i = i + m - n`, so the last query is at the position of the last key.

    **Masks.** A query may attend to a key if the ``mask`` allows the pair, and so do the rules of
    :mod:`lessons_lib.attention.rules` for which three options are short::

        is_causal=True          Causal()                   j <= p_i
        window=w                Window(w)                  p_i - j < w and j - p_i < w
        key_lengths=lengths     Padding(lengths)           j < lengths[b]; moves no position

    Thus ``mask=Causal() & Window(256)`` is the same call as ``is_causal=True, window=256``. A query that may attend to
    no key gets the output 0 and :math:`\ell` = ``-inf``, and contributes nothing to any gradient. Keys and values in
    the padding are not read, except by ``torch``. A Boolean table as ``mask`` takes ``n x m`` bytes itself.

    ``cache_lengths`` are for keys written into a longer cache (FlashAttention's ``cache_seqlens``). Sequence ``b`` is
    attention over its first :math:`L_b` keys only, and its queries are at the end of *these* keys,
    :math:`p_i = i + L_b - n`. The rule for sequence ``b`` is therefore
    ``rule.shifted(L_b - m, 0) & Padding(cache_lengths)``. Keys and values behind the first :math:`L_b` are not read.

    **Scores.** ``scale``, ``softcap``, ``alibi_slopes`` and ``sinks`` are described in
    :func:`lessons_lib.attention.attention.attention_weights`. A sink takes part in :math:`\ell`; for a query that may
    attend to no key, :math:`\ell` is the sink.

    **Precision and memory layout.** Half-precision tensors are multiplied as they are (``tiled``: in float32), and the
    products are added up in float32. ``triton`` lays out its results and gradients as their inputs: heads that are a
    view of ``(b, n, h, d)`` give an output that becomes ``(b, n, h d)`` without a copy. Under ``torch.compile`` it runs
    between two compiled graphs, so ``fullgraph=True`` is not possible.

    **Derivatives**::

        tiled, triton   First derivatives in reverse mode. Second derivatives, forward mode and the transforms of
                        ``torch.func`` raise ``NotImplementedError``, with a message of this library; a batch of
                        upstream gradients (``vectorize=True``) raises an error of PyTorch.
        torch           First derivatives in reverse mode, ``torch.func.grad`` and ``vmap``. The others raise an error
                        of PyTorch wherever it takes a fused kernel, on a CPU and on a GPU. Where it takes none, as for
                        sinks or slopes that require gradients, they are available.

    :func:`lessons_lib.attention.attention.attention` has all derivatives. ``auto`` has those of the backend it chooses.

    **NaN.** Suppose a *key* that is hidden from a query holds NaN, or their product overflows. ``tiled`` keeps this
    out of the query's output and gradient, as ``attention`` keeps it out of the output. ``torch`` adds its mask to the
    scores, so with any mask but a full and a causal square NaN reaches every query. On a CPU, ``torch`` also returns
    zeros for a query all of whose visible keys are NaN, if there are fewer of them than the processor adds up at once
    (8 or 16). A hidden *value* must be finite for all backends.

    **Not supported.** An argument for one of these is refused with an error message:

    * dropout, and additive biases other than ALiBi slopes; keys and values of different widths, ``d_v != d_k``;
    * paged caches; 8-bit numbers;
    * on ``triton`` also float64, heads wider than 256, and GPUs of other makers than NVIDIA (ROCm); ``auto`` takes
      another backend there.

    >>> q, k = torch.randn(2, 8, 100, 64), torch.randn(2, 2, 120, 64)  # four query heads share a key/value head
    >>> flash_attention(q, k, k, is_causal=True, window=30).shape
    torch.Size([2, 8, 100, 64])

    Args:
        q, k, v: queries, keys and values, of one type on one device; any strides. Under ``torch.autocast`` they are
            cast to its type first, as for PyTorch's own function.
        mask: a rule, or a Boolean table that broadcasts to ``(b, h, n, m)``, True = may attend. With ``cache_lengths``
            it must be a rule about positions, not one made from a tensor.
        is_causal: the rule ``Causal()``.
        window: the rule ``Window(window)``, the number of visible keys on each visible side, the query's own included.
        scale: see **Scores**; ``1 / sqrt(d_k)`` when omitted.
        key_lengths: the rule ``Padding(key_lengths)``, the number of keys of each sequence, 0 to ``m``. Lengths on the
            CPU are checked. ``triton`` uses lengths on the GPU without reading them on the host (a length below 0
            counts as 0, one above ``m`` as ``m``), so a decoding step whose lengths grow in place can be captured in a
            CUDA graph.
        softcap, alibi_slopes, sinks: see **Scores**.
        cache_lengths: the number of keys in each sequence's cache, 0 to ``m``, checked as ``key_lengths`` are.
        backend: ``auto`` takes the fastest backend whose memory is linear in ``n`` and ``m``, see
            :func:`chosen_backend`. ``torch``, if requested by name, may make an ``n x m`` mask.
        return_lse: return the pair ``(out, lse)``, which :func:`~lessons_lib.attention.softmax.merge_attention` takes.
            ``lse`` is at least float32 and carries gradients. Merging parts counts a sink once for each part that has
            it.

    Raises:
        ValueError: if shapes, types or devices do not fit, if an argument is out of range, or if the backend cannot
            compute this call here; the message says why.
        NotImplementedError: for derivatives that are not available, as above.
    """
    q, k, v = cast_for_autocast(q, k, v)
    check_inputs(q, k, v, scale, key_lengths, backend)
    rule = combine_masks(q, k, mask, is_causal=is_causal, window=window, key_lengths=key_lengths)
    scores = Scores.checked(q, k, scale, softcap, alibi_slopes, sinks)
    call = _resolve_call(q, k, rule, scores, key_lengths, cache_lengths, return_lse)
    problem = _why_backend_cannot_run(backend, q, call)
    if problem is not None:
        raise ValueError(f"backend={backend!r} cannot run here: {problem}")
    q, scale = with_positive_scale(q, scores.scale)
    scores = Scores(scale, *scores[1:])  # torch.compile of PyTorch 2.11 loses fields in ``_replace``

    chosen = _choose_backend(q, k, v, call).backend if backend == "auto" else backend
    if chosen == "torch":
        return (torch_attention_in_linear_memory if backend == "auto" else torch_attention)(q, k, v, rule, scores)
    if chosen == "triton":
        from lessons_lib.flash.autograd import triton_attention  # needs triton

        if call.band is None:
            kernel_mask, lengths = _tile_table(q, k, call), padding_lengths(rule, len(q))
        else:
            kernel_mask, lengths = call.band
        at_end = cache_lengths is not None
        out, lse = triton_attention(q, k, v, kernel_mask, scores, cache_lengths if at_end else lengths, at_end=at_end)
    else:
        rule.check_sizes(q.shape[2], k.shape[2])
        out, lse = tiled_attention(q, k, v, rule, scores, cache_lengths)
    return (out, lse) if return_lse else out


class Choice(NamedTuple):
    """What :func:`chosen_backend` returns: the name of a backend and the reason for the choice."""

    backend: str
    reason: str


def chosen_backend(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b g m d_k"],
    v: Float[Tensor, "b g m d_k"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    key_lengths: Int[Tensor, " b"] | None = None,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    cache_lengths: Int[Tensor, " b"] | None = None,
    return_lse: bool = False,
) -> Choice:
    """Return the backend that :func:`flash_attention` takes for this call with ``backend="auto"``, and the reason.

    It is the first of these that can compute the call on this device, in memory linear in ``n`` and ``m``:

    * ``triton`` on an NVIDIA GPU of compute capability 8.0 or more (A100 and later). The kernels are not written for
      older ones, such as the T4 with 7.5;
    * ``torch``, restricted to one fused kernel: PyTorch's flash attention on the CPU, its memory-efficient attention on
      an NVIDIA GPU. Without a mask over ``n x m`` they can compute full attention and a causal square only;
    * ``tiled``, which can compute every call on every device.

    Arguments are those of :func:`flash_attention`.

    ::

        >>> x = torch.randn(1, 2, 100, 16)
        >>> chosen_backend(x, x, x, is_causal=True).backend
        'torch'
        >>> chosen_backend(x, x, x, window=10)
        Choice(backend='tiled', reason="PyTorch's fused kernel would need a mask over n x m")

    Raises:
        ValueError: as :func:`flash_attention`.
    """
    q, k, v = cast_for_autocast(q, k, v)
    check_inputs(q, k, v, scale, key_lengths, "auto")
    rule = combine_masks(q, k, mask, is_causal=is_causal, window=window, key_lengths=key_lengths)
    scores = Scores.checked(q, k, scale, softcap, alibi_slopes, sinks)
    return _choose_backend(q, k, v, _resolve_call(q, k, rule, scores, key_lengths, cache_lengths, return_lse))


def as_implementation(
    *, is_causal: bool = False, window: int | None = None, backend: str = "auto"
) -> "FlashImplementation":
    """Return :func:`flash_attention` in the call shape of :func:`lessons_lib.attention.attention.attention`.

    It is meant for ``MultiHeadAttention(implementation=...)`` and for every model made of such layers. The layers of a
    decoder are causal and then need no mask.

    >>> q, k = torch.randn(2, 4, 10, 16), torch.randn(2, 4, 10, 16)
    >>> as_implementation(is_causal=True)(q, k, k).shape
    torch.Size([2, 4, 10, 16])

    Options that change the scores may be fixed with ``functools.partial``, for example
    ``partial(as_implementation(is_causal=True), softcap=50.0)``. The layer's ``weights`` and
    :func:`lessons_lib.analysis.diagnostics.observe` show the attention weights with all these options.

    The mask of a call is combined with the fixed options by ``&``. A rule, as a
    :class:`~lessons_lib.transformer.gpt.GPT` passes it on, takes no memory over ``n x m``; a Boolean table takes its
    ``n x m`` bytes.

    Raises:
        ValueError: if ``window`` is not positive or ``backend`` is unknown; when called, as :func:`flash_attention`,
            and for a bias or dropout, which flash attention does not support.
    """
    return FlashImplementation(is_causal, window, backend)


@dataclass(frozen=True)
class FlashImplementation:
    """What :func:`as_implementation` returns: :func:`flash_attention` with fixed settings; it can be pickled."""

    is_causal: bool
    window: int | None
    backend: str
    supports_rules: ClassVar[bool] = True  # as lessons_lib.attention.rules.declare_rule_support marks a function

    def __post_init__(self) -> None:
        options_as_rule(is_causal=self.is_causal, window=self.window, key_lengths=None)
        check_backend(self.backend)

    def __call__(
        self,
        query: Float[Tensor, "b h n d_k"],
        key: Float[Tensor, "b g m d_k"],
        value: Float[Tensor, "b g m d_k"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        dropout_p: float = 0.0,
        softcap: float | None = None,
        alibi_slopes: Float[Tensor, " h"] | None = None,
        sinks: Float[Tensor, " h"] | None = None,
    ) -> Tensor:
        """Return the output of :func:`flash_attention` with the fixed settings and these arguments."""
        _refuse_bias(bias)
        if dropout_p:
            raise ValueError(f"dropout_p must be 0, flash attention keeps every weight, got {dropout_p}")
        settings = {"is_causal": self.is_causal, "window": self.window, "backend": self.backend}
        score_mods = {"scale": scale, "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks}
        out = flash_attention(query, key, value, mask, **settings, **score_mods)
        assert isinstance(out, Tensor)
        return out

    def weights_function(
        self,
        query: Float[Tensor, "b h n d_k"],
        key: Float[Tensor, "b g m d_k"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        alibi_slopes: Float[Tensor, " h"] | None = None,
        sinks: Float[Tensor, " h"] | None = None,
    ) -> WeightsAndMask:
        """Return the weights that a call averages with, see
        :func:`lessons_lib.attention.attention.declare_weights`."""
        _refuse_bias(bias)
        rule = combine_masks(query, key, mask, is_causal=self.is_causal, window=self.window, key_lengths=None)
        return attention_weights_and_mask(
            query, key, rule, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks
        )


# --- parts ----------------------------------------------------------------------------------------------------------


def _refuse_bias(bias: Tensor | None) -> None:
    if bias is not None:
        raise ValueError(
            "bias must be None, flash attention adds only ALiBi slopes to the scores; use attention instead"
        )


class _Call(NamedTuple):
    """A checked call of :func:`flash_attention`."""

    rule: Rule  # the mask and the options is_causal, window and key_lengths as one rule
    band: tuple[KernelBand, Tensor | None] | None  # the rule as a band with key lengths, if it has this form
    scores: Scores
    cache_lengths: Tensor | None
    return_lse: bool


def _resolve_call(
    q: Tensor,
    k: Tensor,
    rule: Rule,
    scores: Scores,
    key_lengths: Tensor | None,
    cache_lengths: Tensor | None,
    return_lse: bool,
) -> _Call:
    """Check the cache lengths, and look for a band in the rule."""
    if cache_lengths is not None:
        check_cache_lengths(cache_lengths, len(q), k.shape[2], rule, key_lengths)
    return _Call(rule, kernel_band(rule, q.shape[0], q.shape[2], k.shape[2]), scores, cache_lengths, return_lse)


def _tile_table(q: Tensor, k: Tensor, call: _Call) -> TileTable:
    """Return the tiles that the kernels visit under a rule that is no band. The host reads cache lengths."""
    n, m = q.shape[2], k.shape[2]
    if call.cache_lengths is None:
        call.rule.check_sizes(n, m)
        return cached_tile_table(call.rule, n, m, q.device)
    lengths = torch.tensor(read_lengths(call.cache_lengths, m))
    return make_tile_table(call.rule, n, m, cache_lengths=lengths, device=q.device)


def _choose_backend(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> Choice:
    """Return the fastest backend whose memory is linear."""
    no_kernel = _why_backend_cannot_run("triton", q, call) if q.is_cuda else None
    if q.is_cuda and no_kernel is None:
        return Choice("triton", f"the kernels can do this on {torch.cuda.get_device_name(q.device)}")
    instead = "" if no_kernel is None else f"; not triton: {no_kernel}"
    missing = _why_torch_is_not_linear(call)
    if missing is not None:
        return Choice("tiled", missing + instead)
    if q.device.type == "cpu":
        return Choice("torch", "PyTorch's fused kernel for the CPU can do this")
    if q.is_cuda and memory_efficient_kernel_runs(q, k, v):
        return Choice("torch", "PyTorch's memory-efficient kernel can do this" + instead)
    return Choice(
        "tiled", f"PyTorch's memory-efficient kernel does not take {q.dtype} here, {q.shape[-1]} wide" + instead
    )


def _why_torch_is_not_linear(call: _Call) -> str | None:
    """Return why PyTorch's fused kernels cannot compute this call in linear memory, or None if they can."""
    if call.return_lse:
        return "PyTorch's fused kernel does not return the log-sum-exp"
    if call.cache_lengths is not None:
        return "PyTorch's fused kernel does not support cache_lengths"
    if not call.scores.plain:
        return f"PyTorch's fused kernel does not support {' and '.join(call.scores.score_mods)}"
    if call.band is None or needs_mask(*call.band):
        return "PyTorch's fused kernel would need a mask over n x m"
    return None


def _why_backend_cannot_run(backend: str, q: Tensor, call: _Call) -> str | None:
    """Return why the backend cannot compute this call on this device, or None if it can."""
    if backend == "torch":
        return _why_torch_cannot_run(call)
    if backend != "triton":
        return None
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; on Linux, pip install 'lessons-lib[gpu]'"
    if q.dtype == torch.float64:
        return "the kernels add up in float32, got float64; use backend='tiled'"
    if q.shape[-1] > 256:
        return f"the kernels take heads at most 256 wide, got {q.shape[-1]}; use backend='tiled'"
    from lessons_lib.flash.autograd import IS_INTERPRETED, interpreter_fault  # needs triton

    if IS_INTERPRETED:
        return interpreter_fault()
    if not q.is_cuda or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, got tensors on {q.device}; use backend='tiled'"
    capability = torch.cuda.get_device_capability(q.device)
    if capability < (8, 0):
        return f"the kernels need compute capability 8.0, {torch.cuda.get_device_name(q.device)} has {capability}"
    return None


def _why_torch_cannot_run(call: _Call) -> str | None:
    if call.return_lse:
        return "PyTorch's function does not return the log-sum-exp; use backend='tiled'"
    if call.scores.softcap is not None:
        return "PyTorch's function does not support softcap; use backend='tiled'"
    if call.cache_lengths is not None:
        return "PyTorch's function has one number of keys for all sequences; use backend='tiled' for cache_lengths"
    return None
