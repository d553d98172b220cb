"""FlashAttention: exact attention in memory linear in the sequence, forward and backward [1]_.

:func:`flash_attention` chooses among three implementations that agree on every meaning::

    tiled       PyTorch operations on tiles of scores; any device and precision
    triton      kernels to read beside their equations; NVIDIA GPUs (the extra ``gpu``)
    torch       PyTorch's own fused kernels

The specification of the result is :func:`lessons_lib.attention.attention`; :func:`as_implementation` gives
:func:`flash_attention` its call shape, and :func:`chosen_backend` says which of the three runs, and why.

Who sees whom is a :class:`~lessons_lib.rules.Rule`: nothing over ``n x m`` is made, and tiles in which nobody sees
anybody are never visited. The kernels know bands and key lengths by two numbers and a list; through any other rule they
are led by a table of tiles, which the host writes once and keeps with the rule.

The files, in reading order::

    inputs          what all three take, and what they refuse
    scores          what becomes of a score before the softmax
    band            what the kernels know of a rule: two numbers, and lengths
    tiled           tile by tile in PyTorch, forward and backward
    configurations  sizes of tiles, by device, type and head width
    table           a rule that is no band, as the kernels read it: which tiles to visit, and what is hidden in them
    triton_kernels  the same tiles in Triton
    table_kernels   the same for any rule, led by a table
    launch          the kernels joined into one differentiable step
    sdpa            PyTorch's own, made to mean the same

.. [1] Dao et al., *FlashAttention*, 2022. arXiv:2205.14135.
"""

import importlib.util
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.attention import Pattern, attention_pattern, with_positive_scale
from lessons_lib.flash.band import Band, as_band, lengths_in
from lessons_lib.flash.inputs import (
    check_cache_lengths,
    check_inputs,
    check_window_and_backend,
    in_autocast_type,
    joined,
    lengths_of,
)
from lessons_lib.flash.scores import Scores
from lessons_lib.flash.sdpa import (
    memory_efficient_kernel_runs,
    needs_mask,
    torch_attention,
    torch_attention_in_linear_memory,
)
from lessons_lib.flash.table import TileTable, kept_table_of, table_of
from lessons_lib.flash.tiled import tiled_attention
from lessons_lib.rules import Rule


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
    slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    cache_lengths: Int[Tensor, " b"] | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h n d_k"] | tuple[Float[Tensor, "b h n d_k"], Float[Tensor, "b h n"]]:
    r"""Average the values with the weights of :func:`lessons_lib.attention.attention`, without storing the weights.

    .. math:: O = \operatorname{softmax}(S)\, V, \qquad \ell_i = \log \sum_{j \text{ seen by } i} e^{s_{ij}}, \qquad
              s_{ij} = \tau\, q_i \cdot k_j

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

    ``softcap``, ``slopes`` and ``sinks`` change the scores as in ``attention``. A sink takes part in :math:`\ell`: for
    a query that sees no key, it *is* :math:`\ell`.

    ``cache_lengths`` are for keys written into a longer cache: sequence ``b`` is attention over its first
    :math:`L_b = \text{cache\_lengths}_b` keys and no others, so its queries stand at *their* end,
    :math:`p_i = i + L_b - n` (FlashAttention's ``cache_seqlens``). What lies behind them is not read.

    Half precision is multiplied as it is (``tiled``: in float32) and added up in float32. ``triton`` lays results and
    gradients out in memory as what they belong to: heads that are a view of ``(b, n, h, d)`` give ``(b, n, h d)`` free.
    Under ``torch.compile`` it runs between two graphs, one before and one after it (so not with ``fullgraph=True``).

    Derivatives::

        tiled, triton   first derivatives, backwards; second ones, tangents (forward mode) and the transforms of
                        ``torch.func`` raise ``NotImplementedError`` in words of ours; gradients of a whole batch of
                        upstream gradients (``vectorize=True``) raise an error of PyTorch's
        torch           first derivatives, backwards, ``torch.func.grad`` and ``vmap`` too; the others raise an error of
                        PyTorch's wherever it takes a fused kernel, on a CPU and on a GPU. Where it takes none, as for
                        sinks or slopes that learn, it has them

    :func:`lessons_lib.attention.attention` has them all. ``auto`` has what the backend that it takes has.

    NaN (or products that overflow) in a *key* that a query may not see: ``tiled`` keeps it out of the query's output
    and gradient, as ``attention`` keeps it out of the output. ``torch`` adds its mask to the scores, so that beside any
    mask but a full and a causal square it reaches every query. And on a CPU ``torch`` gives zeros for a query that sees
    nothing but NaN, if it sees fewer keys than the processor adds up at once (8 or 16). A hidden *value* has to be
    finite for all.

    Not here; what can be asked for all the same is refused in words:

    * dropout and additive biases but slopes; keys and values of different widths, ``d_v != d_k``;
    * keys in pages; numbers of 8 bits;
    * on ``triton`` also float64, heads wider than 256, and GPUs other than NVIDIA's (ROCm); ``auto`` then takes
      ``tiled``.

    Args:
        q, k, v: queries, keys and values, of one type on one device; any strides. Under ``torch.autocast`` they are
            cast to its type first, as for PyTorch's own function.
        mask: a rule, or a Boolean table that broadcasts to ``(b, h, n, m)``, True = may attend. Beside
            ``cache_lengths`` a rule about positions.
        is_causal: hide what comes after a query.
        window: number of visible keys, the query's own included, counted to each side that is visible.
        scale: multiplier :math:`\tau` of the scores; ``1 / sqrt(d_k)`` when omitted.
        key_lengths: how many keys each sequence has, 0 to ``m``. Lengths on the CPU are checked. ``triton`` takes those
            on the GPU without a look from the host (one below 0 counts as 0, one above ``m`` as ``m``), so that a step
            of decoding with lengths that grow in place can be captured in a CUDA graph.
        softcap: bound on the size of the scaled scores.
        slopes: what a step of distance costs, for each head.
        sinks: a score for each head that belongs to no key; ``-inf`` for none.
        cache_lengths: how many keys each sequence's cache holds, 0 to ``m``; checked as ``key_lengths`` are.
        backend: ``auto`` takes what is fastest in memory linear in ``n`` and ``m``; :func:`chosen_backend` says what
            that is. ``torch``, asked for by name, may make an ``n x m`` mask.
        return_lse: return the pair ``(out, lse)``, as :func:`lessons_lib.softmax.merge_attention` takes it. ``lse`` is
            at least float32 and carries gradients. Merging counts a sink once for each part that has it.

    Raises:
        ValueError: if shapes, types or devices do not fit, an argument is out of range, or the backend cannot do this
            here; the message says why.
        NotImplementedError: for derivatives that there are not, as above.
    """
    q, k, v = in_autocast_type(q, k, v)
    check_inputs(q, k, v, window, scale, key_lengths, backend)
    changes = {"softcap": softcap, "slopes": slopes, "sinks": sinks}
    asked = _asked(q, k, mask, is_causal, window, key_lengths, scale, changes, cache_lengths, return_lse)
    refusal = _refusal(backend, q, asked)
    if refusal is not None:
        raise ValueError(f"backend={backend!r} cannot run here: {refusal}")
    rule, scores = asked.rule, asked.scores
    q, scale = with_positive_scale(q, scores.scale)
    scores = scores._replace(scale=scale)

    chosen = _choice(q, k, v, asked).backend if backend == "auto" else backend
    if chosen == "torch":
        return (torch_attention_in_linear_memory if backend == "auto" else torch_attention)(q, k, v, rule, scores)
    if chosen == "triton":
        from lessons_lib.flash.launch import triton_attention  # needs triton

        seen, lengths = (_table(q, k, asked), lengths_in(rule, len(q))) if asked.band is None else asked.band
        at_end = cache_lengths is not None
        out, lse = triton_attention(q, k, v, seen, scores, cache_lengths if at_end else lengths, at_end=at_end)
    else:
        rule.check_sizes(q.shape[2], k.shape[2])
        out, lse = tiled_attention(q, k, v, rule, scores, cache_lengths)
    return (out, lse) if return_lse else out


class Choice(NamedTuple):
    """What :func:`chosen_backend` returns: a backend's name, and why in words."""

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
    slopes: Float[Tensor, " h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    cache_lengths: Int[Tensor, " b"] | None = None,
    return_lse: bool = False,
) -> Choice:
    """Return which backend :func:`flash_attention` takes for this call with ``backend="auto"``, and why.

    It is the first of these that can do what is asked for, here, in memory linear in ``n`` and ``m``:

    * ``triton`` on an NVIDIA GPU of compute capability 8.0 or more (A100 and later). On older ones, such as the T4
      with 7.5, the kernels would be compiled without tensor cores and spill their registers;
    * ``torch``, held to one fused kernel: PyTorch's flash attention on the CPU, its memory-efficient attention on an
      NVIDIA GPU. They know a full and a causal square, and no more without a table over ``n x m``;
    * ``tiled``, which can do everything everywhere.

    ::

        >>> x = torch.randn(1, 2, 100, 16)
        >>> chosen_backend(x, x, x, is_causal=True).backend
        'torch'
        >>> chosen_backend(x, x, x, window=10)
        Choice(backend='tiled', reason="PyTorch's fused kernel would need a table over n x m")

    Raises:
        ValueError: as :func:`flash_attention`.
    """
    q, k, v = in_autocast_type(q, k, v)
    check_inputs(q, k, v, window, scale, key_lengths, "auto")
    changes = {"softcap": softcap, "slopes": slopes, "sinks": sinks}
    return _choice(
        q, k, v, _asked(q, k, mask, is_causal, window, key_lengths, scale, changes, cache_lengths, return_lse)
    )


def as_implementation(
    *, is_causal: bool = False, window: int | None = None, backend: str = "auto"
) -> "FlashImplementation":
    """Return :func:`flash_attention` in the call shape of :func:`lessons_lib.attention.attention`.

    It is made for ``MultiHeadAttention(implementation=...)``, and so for every model built of such layers. The layers
    of a decoder are causal and need no mask::

        MultiHeadAttention(768, 12, implementation=as_implementation(is_causal=True))

    What else the scores go through may be fixed with ``functools.partial``, as in
    ``partial(as_implementation(is_causal=True), softcap=50.0)``. The layer's ``weights`` and
    :func:`lessons_lib.diagnostics.observe` show the pattern with all of this.

    A layer's mask hides more: a rule, as a :class:`~lessons_lib.gpt.GPT` passes it on, costs nothing over ``n x m``; a
    Boolean table is honoured too, and takes its ``n x m`` bytes.

    Raises:
        ValueError: if ``window`` is not positive or ``backend`` is unknown; when called, as :func:`flash_attention`,
            and for a bias or dropout, of which flash attention knows nothing.
    """
    return FlashImplementation(is_causal, window, backend)


@dataclass(frozen=True)
class FlashImplementation:
    """What :func:`as_implementation` returns: :func:`flash_attention` with fixed settings, as a value to be pickled."""

    is_causal: bool
    window: int | None
    backend: str
    takes_rules: ClassVar[bool] = True  # as lessons_lib.rules.takes_rules marks a function

    def __post_init__(self) -> None:
        check_window_and_backend(self.window, self.backend)

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
        slopes: Float[Tensor, " h"] | None = None,
        sinks: Float[Tensor, " h"] | None = None,
    ) -> Tensor:
        """Call :func:`flash_attention`."""
        _refuse_bias(bias)
        if dropout_p:
            raise ValueError(f"dropout_p must be 0, flash attention keeps every weight, got {dropout_p}")
        hidden = {"is_causal": self.is_causal, "window": self.window}
        changes = {"softcap": softcap, "slopes": slopes, "sinks": sinks}
        out = flash_attention(query, key, value, mask, scale=scale, backend=self.backend, **hidden, **changes)
        assert isinstance(out, Tensor)
        return out

    def pattern(
        self,
        query: Float[Tensor, "b h n d_k"],
        key: Float[Tensor, "b g m d_k"],
        mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        softcap: float | None = None,
        slopes: Float[Tensor, " h"] | None = None,
        sinks: Float[Tensor, " h"] | None = None,
    ) -> Pattern:
        """Return the weights that a call averages with, see :func:`lessons_lib.attention.declares_pattern`."""
        _refuse_bias(bias)
        rule = joined(query, key, mask, self.is_causal, self.window, None)
        return attention_pattern(query, key, rule, scale=scale, softcap=softcap, slopes=slopes, sinks=sinks)


# --- parts ----------------------------------------------------------------------------------------------------------


def _refuse_bias(bias: Tensor | None) -> None:
    if bias is not None:
        raise ValueError(
            "bias must be None, flash attention adds nothing to the scores but slopes; use attention instead"
        )


class _Asked(NamedTuple):
    """A call, read: who sees whom, what becomes of the scores, and what is to be returned."""

    rule: Rule
    band: tuple[Band, Tensor | None] | None
    scores: Scores
    cache_lengths: Tensor | None
    return_lse: bool


def _asked(
    q: Tensor,
    k: Tensor,
    mask: Rule | Tensor | None,
    is_causal: bool,
    window: int | None,
    key_lengths: Tensor | None,
    scale: float | None,
    changes: dict,
    cache_lengths: Tensor | None,
    return_lse: bool,
) -> _Asked:
    """Read and check what :func:`lessons_lib.flash.inputs.check_inputs` has not."""
    scores = Scores(1 / math.sqrt(q.shape[-1]) if scale is None else scale, **changes)
    scores.check(q, k.shape[2])
    rule = joined(q, k, mask, is_causal, window, key_lengths)
    if cache_lengths is not None:
        check_cache_lengths(cache_lengths, len(q), k.shape[2], rule, key_lengths)
    return _Asked(rule, as_band(rule, q.shape[0], q.shape[2], k.shape[2]), scores, cache_lengths, return_lse)


def _table(q: Tensor, k: Tensor, asked: _Asked) -> TileTable:
    """The tiles that the kernels visit under a rule that is no band. Lengths of caches are read by the host."""
    n, m = q.shape[2], k.shape[2]
    if asked.cache_lengths is None:
        asked.rule.check_sizes(n, m)
        return kept_table_of(asked.rule, n, m, q.device)
    lengths = torch.tensor(lengths_of(asked.cache_lengths, m))
    return table_of(asked.rule, n, m, cache_lengths=lengths, device=q.device)


def _choice(q: Tensor, k: Tensor, v: Tensor, asked: _Asked) -> Choice:
    """The fastest backend that is linear in memory."""
    no_kernel = _refusal("triton", q, asked) if q.is_cuda else None
    if q.is_cuda and no_kernel is None:
        return Choice("triton", f"the kernels can do this on {torch.cuda.get_device_name(q.device)}")
    instead = "" if no_kernel is None else f"; not triton: {no_kernel}"
    missing = _missing_in_torch(asked)
    if missing is not None:
        return Choice("tiled", missing + instead)
    if q.device.type == "cpu":
        return Choice("torch", "PyTorch's fused kernel for the CPU can do this")
    if q.is_cuda and memory_efficient_kernel_runs(q, k, v):
        return Choice("torch", "PyTorch's memory-efficient kernel can do this" + instead)
    return Choice(
        "tiled", f"PyTorch's memory-efficient kernel does not take {q.dtype} here, {q.shape[-1]} wide" + instead
    )


def _missing_in_torch(asked: _Asked) -> str | None:
    """Why PyTorch's fused kernels cannot do this in linear memory, or None."""
    if asked.return_lse:
        return "PyTorch's fused kernel does not return the log-sum-exp"
    if asked.cache_lengths is not None:
        return "PyTorch's fused kernel knows no cache_lengths"
    if not asked.scores.plain:
        return f"PyTorch's fused kernel knows no {' and no '.join(asked.scores.changes)}"
    if asked.band is None or needs_mask(*asked.band):
        return "PyTorch's fused kernel would need a table over n x m"
    return None


def _refusal(backend: str, q: Tensor, asked: _Asked) -> str | None:
    """Why the backend cannot do this here, or None."""
    if backend == "torch":
        return _refusal_of_torch(asked)
    if backend != "triton":
        return None
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; on Linux, pip install 'lessons-lib[gpu]'"
    if q.dtype == torch.float64:
        return "the kernels add up in float32, got float64; use backend='tiled'"
    if q.shape[-1] > 256:
        return f"the kernels take heads at most 256 wide, got {q.shape[-1]}; use backend='tiled'"
    from lessons_lib.flash.launch import IS_INTERPRETED, interpreter_fault  # needs triton

    if IS_INTERPRETED:
        return interpreter_fault()
    if not q.is_cuda or torch.version.cuda is None:
        return f"the kernels need an NVIDIA GPU, got tensors on {q.device}; use backend='tiled'"
    capability = torch.cuda.get_device_capability(q.device)
    if capability < (8, 0):
        return f"the kernels need compute capability 8.0, {torch.cuda.get_device_name(q.device)} has {capability}"
    return None


def _refusal_of_torch(asked: _Asked) -> str | None:
    if asked.return_lse:
        return "PyTorch's function does not return the log-sum-exp; use backend='tiled'"
    if asked.scores.softcap is not None:
        return "PyTorch's function caps no scores; use backend='tiled'"
    if asked.cache_lengths is not None:
        return "PyTorch's function has one number of keys for all sequences; use backend='tiled' for cache_lengths"
    return None
