"""Validation of the arguments of :func:`lessons_lib.flash.interface.flash_attention`, the same for all backends."""

from functools import reduce
from operator import and_

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from lessons_lib.attention.attention import check_options
from lessons_lib.attention.rules import Causal, Full, Padding, Rule, Table, Window, conjuncts, rule_for_scores
from lessons_lib.foundations.validation import check_floating, check_same_device

BACKENDS = ("auto", "triton", "tiled", "torch")


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    key_lengths: Tensor | None,
    backend: str,
    *,
    equal_widths: bool = False,
) -> None:
    """Raise an error for tensors, lengths, a scale or a backend that no backend accepts.

    With ``equal_widths``, values must be as wide as keys.

    Raises:
        ValueError: as :func:`lessons_lib.flash.interface.flash_attention`.
    """
    check_floating(q=q, k=k, v=v)
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"q must be of 16, 32 or 64 bits, got {q.dtype}")
    for name, heads in {"q": q, "k": k, "v": v}.items():
        if heads.ndim != 4 or not heads.numel():
            raise ValueError(
                f"{name} must be (batch, heads, sequence, width), each at least 1, got {tuple(heads.shape)}"
            )
    shapes = f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"k and v must have one shape but for the width, and q their batch and k's width, {shapes}")
    if equal_widths and k.shape != v.shape:
        raise ValueError(f"k and v must have one shape here, {shapes}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"the heads of k must divide those of q, got {k.shape[1]} and {q.shape[1]}")
    check_options(scale)
    check_backend(backend)
    if key_lengths is not None:
        _check_lengths("key_lengths", key_lengths, len(q), k.shape[2])


def cast_for_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast the tensors to the type of ``torch.autocast``, except float64, as PyTorch does for its own function."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def options_as_rule(*, is_causal: bool, window: int | None, key_lengths: Tensor | None) -> Rule:
    """Return the rule of the options: ``Causal()``, ``Window(window)`` and ``Padding(key_lengths)``, joined by ``&``.

    >>> options_as_rule(is_causal=True, window=3, key_lengths=None) == Causal() & Window(3)
    True

    Raises:
        ValueError: if the window is not a positive integer.
    """
    rules = [
        *([Causal()] if is_causal else []),
        *([] if window is None else [Window(window)]),
        *([] if key_lengths is None else [Padding(key_lengths)]),
    ]
    return reduce(and_, rules) if rules else Full()


def combine_masks(
    q: Tensor, k: Tensor, mask: Rule | Tensor | None, *, is_causal: bool, window: int | None, key_lengths: Tensor | None
) -> Rule:
    """Return the mask and :func:`options_as_rule` as one rule.

    Raises:
        ValueError: if the mask does not broadcast to the scores of these queries and keys; as
            :func:`options_as_rule`.
    """
    rule = options_as_rule(is_causal=is_causal, window=window, key_lengths=key_lengths)
    if mask is None:
        return rule
    mask = rule_for_scores(mask, q.new_empty(()).expand(*q.shape[:3], k.shape[2]))
    return mask if rule == Full() else mask & rule


def check_cache_lengths(
    cache_lengths: Tensor | None,
    cache_starts: Tensor | None,
    b: int,
    m: int,
    rule: Rule,
    key_lengths: Tensor | None,
) -> None:
    """Raise an error for invalid cache lengths or starts, or for arguments that cannot be combined with them.

    Raises:
        ValueError: as :func:`lessons_lib.flash.interface.flash_attention`.
    """
    name = "cache_lengths" if cache_starts is None else "cache_starts"
    if key_lengths is not None:
        raise ValueError(
            f"key_lengths and {name} must not both be given: key_lengths hide keys and move no query, "
            f"{name} move the queries to the end of each sequence's keys"
        )
    for each, lengths in {"cache_lengths": cache_lengths, "cache_starts": cache_starts}.items():
        if lengths is not None:
            _check_lengths(each, lengths, b, m)
    if all(x is None or _is_on_host(x) for x in (cache_lengths, cache_starts)):
        read_spans(cache_starts, cache_lengths, b, m)
    if rule.device is not None:
        raise ValueError(
            f"with {name} the mask must be a rule about positions, such as Causal() & Window(256): a rule made "
            f"from a tensor fits one number of keys only, got {rule_names(rule)}"
        )


def check_slopes_of_sequences(q: Tensor, alibi_slopes: Tensor) -> None:
    """Check that slopes over two axes are one floating-point number for each head of each sequence.

    Raises:
        ValueError: if they are not, or are on another device than the queries.
    """
    if not alibi_slopes.is_floating_point() or alibi_slopes.shape != q.shape[:2]:
        raise ValueError(
            "alibi_slopes must be one floating-point number for each head, over (h,) or "
            f"(b, h) = {tuple(q.shape[:2])}, got {alibi_slopes.dtype} over {tuple(alibi_slopes.shape)}"
        )
    check_same_device(q=q, alibi_slopes=alibi_slopes)


def read_spans(cache_starts: Tensor | None, cache_lengths: Tensor | None, b: int, m: int) -> list[tuple[int, int]]:
    """Return the first key of each sequence and the end of its keys as Python integers.

    >>> read_spans(torch.tensor([2, 0]), torch.tensor([5, 3]), b=2, m=8)
    [(2, 5), (0, 3)]

    Raises:
        ValueError: if a number is negative or above the number of keys, or a start above the length.
    """
    starts = [0] * b if cache_starts is None else read_lengths(cache_starts, m, "cache_starts")
    stops = [m] * b if cache_lengths is None else read_lengths(cache_lengths, m)
    if any(start > stop for start, stop in zip(starts, stops, strict=True)):
        raise ValueError(f"cache_starts must be at most cache_lengths, got {starts} and {stops}")
    return list(zip(starts, stops, strict=True))


def read_lengths(lengths: Tensor, m: int, name: str = "cache_lengths") -> list[int]:
    """Return the lengths as Python integers, from any device.

    Raises:
        ValueError: if one is negative or above the number of keys.
    """
    numbers = lengths.tolist()
    if not all(0 <= number <= m for number in numbers):
        raise ValueError(f"{name} must be in 0 .. m = {m}, got {numbers}")
    return numbers


def rule_names(rule: Rule) -> str:
    """Return the names of the rules that ``&`` joined, without their tensors.

    >>> rule_names(Causal() & Window(3))
    'Causal & Window'
    """
    parts = conjuncts(rule)
    names = " & ".join(type(part).__name__ for part in parts)
    has_table = any(isinstance(part, Table) for part in parts)
    return f"{names} (a Boolean table; give the rule that it was made from)" if has_table else names


def check_backend(backend: str) -> None:
    """Raise an error for the name of a backend that does not exist."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def _check_lengths(name: str, lengths: Tensor, b: int, m: int) -> None:
    """Raise an error for invalid lengths. Values are checked on the CPU only, so that the host waits for no device."""
    if lengths.dtype not in (torch.int32, torch.int64) or lengths.shape != (b,):
        raise ValueError(
            f"{name} must be integers over (batch,) = ({b},), got {lengths.dtype} over {tuple(lengths.shape)}"
        )
    if is_batchedtensor(lengths):
        raise ValueError(f"{name} must be the same for all entries of an axis of torch.func.vmap, got a batched tensor")
    if _is_on_host(lengths):
        read_lengths(lengths, m, name)


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"
