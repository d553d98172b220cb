"""The public functions of the room: :func:`flash_attention`, which dispatches to a backend, and the choice it makes."""

from dataclasses import dataclass
from typing import ClassVar

import torch  # noqa: F401 (in the examples)
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lessons_lib.attention.attention import WeightsAndMask, attention_weights_and_mask, with_positive_scale
from lessons_lib.attention.rules import Rule
from lessons_lib.flash.backends import Choice, choose_backend, tile_table, why_backend_cannot_run
from lessons_lib.flash.band import padding_lengths
from lessons_lib.flash.call import Call
from lessons_lib.flash.dropout import seed_tensor
from lessons_lib.flash.score_mods import Scores
from lessons_lib.flash.sdpa import torch_attention, torch_attention_in_linear_memory
from lessons_lib.flash.tile_scores import ScoreTerms
from lessons_lib.flash.tiled import TiledOptions, tiled_attention
from lessons_lib.flash.validation import cast_for_autocast, check_backend, combine_masks, options_as_rule


def flash_attention(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b g m d_k"],
    v: Float[Tensor, "b g m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    key_lengths: Int[Tensor, " b"] | None = None,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, "*sequences h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | Int[Tensor, ""] | None = None,
    cache_lengths: Int[Tensor, " b"] | None = None,
    cache_starts: Int[Tensor, " b"] | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h n d_v"] | tuple[Float[Tensor, "b h n d_v"], Float[Tensor, "b h n"]]:
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

    ``cache_starts`` are for sequences that begin at different places of the cache, as after left padding
    (FlashAttention's ``cache_leftpad``): sequence ``b`` is attention over its keys from ``cache_starts[b]`` on. They
    are counted from 0 by the mask: position 0 is the first key of the sequence. Other keys and values are not read.

    **Scores.** ``scale``, ``softcap``, ``alibi_slopes``, ``sinks`` and ``bias`` are described in
    :func:`lessons_lib.attention.attention.attention_weights`. A sink takes part in :math:`\ell`; for a query that may
    attend to no key, :math:`\ell` is the sink. A bias is read tile by tile, and its gradient is added up tile by tile
    over the axes that it shares. So a bias over ``(1, h, n, m)`` (T5 [2]_, Swin [3]_) takes its own memory, twice with
    a gradient, and no more. With cached keys its columns are the places in the cache.

    **Dropout.** Each weight is set to zero with probability ``dropout_p``, and the others are divided by ``1 -
    dropout_p``; :math:`\ell` is that of all weights. Which weights are kept is a function of the seed, sequence, head,
    query and key, :func:`lessons_lib.flash.dropout.dropout_mask`, and is not stored. The function does not know whether
    a model is trained: pass 0 in evaluation, as :class:`~lessons_lib.attention.multihead.MultiHeadAttention` does.

    **Precision and memory layout.** Half-precision tensors are multiplied as they are (``tiled``: in float32), and the
    products are added up in float32. ``triton`` lays out its results and gradients as their inputs: heads that are a
    view of ``(b, n, h, d)`` give an output that becomes ``(b, n, h d)`` without a copy. Under ``torch.compile`` it runs
    between two compiled graphs, so ``fullgraph=True`` is not possible.

    **Derivatives**::

        tiled           First derivatives in reverse mode, also by ``torch.func.grad``, ``vjp`` and ``jacrev``, and
                        ``vmap``, also of gradients (per-sample gradients). Second derivatives and forward mode raise
                        ``NotImplementedError``, with a message of this library; so does a mask that differs between
                        the entries of an axis of ``vmap``. A batch of upstream gradients (``vectorize=True``) raises
                        an error of PyTorch.
        triton          First derivatives in reverse mode. The transforms of ``torch.func`` raise
                        ``NotImplementedError``, too; ``auto`` takes another backend inside them.
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

    * paged caches; 8-bit numbers;
    * on all but ``tiled``: dropout, ``alibi_slopes`` of each sequence, ``cache_starts``;
    * on ``triton`` also a ``bias``, values of another width than the keys, float64, heads wider than 256, and GPUs of
      other makers than NVIDIA (ROCm).

    ``auto`` takes another backend there, and :func:`chosen_backend` says why.

    >>> q, k = torch.randn(2, 8, 100, 64), torch.randn(2, 2, 120, 64)  # four query heads share a key/value head
    >>> flash_attention(q, k, k, is_causal=True, window=30).shape
    torch.Size([2, 8, 100, 64])

    A bias that all sequences share, as in T5, with dropout, for values of another width:

    >>> bias, v = torch.randn(1, 8, 100, 120, requires_grad=True), torch.randn(2, 2, 120, 32)
    >>> out = flash_attention(q, k, v, bias=bias, dropout_p=0.1, dropout_seed=3)
    >>> out.shape, torch.autograd.grad(out.sum(), bias)[0].shape
    (torch.Size([2, 8, 100, 32]), torch.Size([1, 8, 100, 120]))

    One gradient for each of three inputs, and a step of decoding for sequences that begin at different places:

    >>> loss = lambda q: flash_attention(q, k, k, window=30, backend="tiled").square().sum()
    >>> torch.func.vmap(torch.func.grad(loss))(torch.randn(3, 2, 8, 100, 64)).shape
    torch.Size([3, 2, 8, 100, 64])
    >>> starts, lengths = torch.tensor([0, 70]), torch.tensor([120, 90])
    >>> flash_attention(q[:, :, -1:], k, k, is_causal=True, cache_starts=starts, cache_lengths=lengths).shape
    torch.Size([2, 8, 1, 64])

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
        softcap, alibi_slopes, sinks, bias: see **Scores**. Slopes may also be over ``(b, h)``, for each sequence.
        dropout_p: see **Dropout**; in ``[0, 1)``.
        dropout_seed: an integer of 64 bits, or a tensor of one. When omitted, PyTorch's generator for the CPU draws
            one. With probability 0 every seed gives the same result.
        cache_lengths: the number of keys in each sequence's cache, 0 to ``m``, checked as ``key_lengths`` are.
        cache_starts: the place of each sequence's first key in the cache, 0 to ``cache_lengths``, or to ``m`` when
            these are omitted.
        backend: ``auto`` takes the fastest backend whose memory is linear in ``n`` and ``m``, see
            :func:`chosen_backend`. ``torch``, if requested by name, may make an ``n x m`` mask.
        return_lse: return the pair ``(out, lse)``, which :func:`~lessons_lib.attention.softmax.merge_attention` takes.
            ``lse`` is at least float32 and carries gradients. Merging parts counts a sink once for each part that has
            it.

    Raises:
        ValueError: if shapes, types or devices do not fit, if an argument is out of range, or if the backend cannot
            compute this call here; the message says why.
        NotImplementedError: for derivatives that are not available, as above.

    .. [2] Raffel et al., *Exploring the Limits of Transfer Learning* (T5), 2019. arXiv:1910.10683.
    .. [3] Liu et al., *Swin Transformer*, 2021. arXiv:2103.14030.
    """
    q, k, v = cast_for_autocast(q, k, v)
    call = Call.checked(
        q,
        k,
        v,
        mask,
        is_causal=is_causal,
        window=window,
        scale=scale,
        key_lengths=key_lengths,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        bias=bias,
        dropout_p=dropout_p,
        cache_lengths=cache_lengths,
        cache_starts=cache_starts,
        backend=backend,
        return_lse=return_lse,
    )
    seed = seed_tensor(dropout_seed, q.device) if dropout_p or dropout_seed is not None else None
    problem = why_backend_cannot_run(backend, q, call)
    if problem is not None:
        raise ValueError(f"backend={backend!r} cannot run here: {problem}")
    q, scale = with_positive_scale(q, call.scores.scale)
    scores = Scores(scale, *call.scores[1:])  # torch.compile of PyTorch 2.11 loses fields in ``_replace``

    chosen = choose_backend(q, k, v, call).backend if backend == "auto" else backend
    if chosen == "torch":
        if backend == "auto":
            return torch_attention_in_linear_memory(q, k, v, call.rule, scores)
        return torch_attention(q, k, v, call.rule, scores, bias)
    if chosen == "triton":
        from lessons_lib.flash.autograd import triton_attention  # needs triton

        if call.band is None:
            kernel_mask, lengths = tile_table(q, k, call), padding_lengths(call.rule, len(q))
        else:
            kernel_mask, lengths = call.band
        at_end = cache_lengths is not None
        out, lse = triton_attention(q, k, v, kernel_mask, scores, cache_lengths if at_end else lengths, at_end=at_end)
    else:
        call.rule.check_sizes(q.shape[2], k.shape[2])
        options = TiledOptions(call.rule, scale, call.spans(k), softcap, dropout_p)
        terms = ScoreTerms.of(alibi_slopes, sinks, bias)
        out, lse = tiled_attention(q, k, v, options, terms, seed if dropout_p else None)
    return (out, lse) if return_lse else out


def chosen_backend(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b g m d_k"],
    v: Float[Tensor, "b g m d_v"],
    mask: Rule | Bool[Tensor, "*#batch #n #m"] | None = None,
    *,
    is_causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    key_lengths: Int[Tensor, " b"] | None = None,
    softcap: float | None = None,
    alibi_slopes: Float[Tensor, "*sequences h"] | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    bias: Float[Tensor, "*#batch #n #m"] | None = None,
    dropout_p: float = 0.0,
    cache_lengths: Int[Tensor, " b"] | None = None,
    cache_starts: Int[Tensor, " b"] | None = None,
    return_lse: bool = False,
) -> Choice:
    """Return the backend that :func:`flash_attention` takes for this call with ``backend="auto"``, and the reason.

    It is the first of these that can compute the call on this device, in memory linear in ``n`` and ``m``:

    * ``triton`` on an NVIDIA GPU of compute capability 8.0 or more (A100 and later). The kernels are not written for
      older ones, such as the T4 with 7.5;
    * ``torch``, restricted to one fused kernel: PyTorch's flash attention on the CPU, its memory-efficient attention on
      an NVIDIA GPU. Without a mask over ``n x m`` they can compute full attention and a causal square only;
    * ``tiled``, which can compute every call on every device.

    Arguments are those of :func:`flash_attention`. The seed of a dropout has no influence.

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
    call = Call.checked(
        q,
        k,
        v,
        mask,
        is_causal=is_causal,
        window=window,
        scale=scale,
        key_lengths=key_lengths,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        bias=bias,
        dropout_p=dropout_p,
        cache_lengths=cache_lengths,
        cache_starts=cache_starts,
        backend="auto",
        return_lse=return_lse,
    )
    return choose_backend(q, k, v, call)


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
        ValueError: if ``window`` is not positive or ``backend`` is unknown; when called, as :func:`flash_attention`.
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
        value: Float[Tensor, "b g m d_v"],
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
        settings = {"is_causal": self.is_causal, "window": self.window, "backend": self.backend}
        terms = {"softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks, "bias": bias}
        out = flash_attention(query, key, value, mask, scale=scale, dropout_p=dropout_p, **settings, **terms)
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
        rule = combine_masks(query, key, mask, is_causal=self.is_causal, window=self.window, key_lengths=None)
        return attention_weights_and_mask(
            query, key, rule, scale=scale, bias=bias, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks
        )
