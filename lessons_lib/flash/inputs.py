"""What :func:`lessons_lib.flash.flash_attention` takes, whatever the backend."""

from functools import reduce
from operator import and_

import torch
from torch import Tensor

from lessons_lib.attention import check_options
from lessons_lib.rules import Causal, Everything, Padding, Rule, Table, Window, conjuncts, rule_over
from lessons_lib.shapes import check_floating, check_size

BACKENDS = ("auto", "triton", "tiled", "torch")


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int | None,
    scale: float | None,
    key_lengths: Tensor | None,
    backend: str,
) -> None:
    """Refuse what no backend can take.

    Raises:
        ValueError: as :func:`lessons_lib.flash.flash_attention`.
    """
    check_floating(q=q, k=k, v=v)
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"q must be of 16, 32 or 64 bits, got {q.dtype}")
    for name, heads in {"q": q, "k": k, "v": v}.items():
        if heads.ndim != 4 or not heads.numel():
            raise ValueError(
                f"{name} must be (batch, heads, sequence, width), each at least 1, got {tuple(heads.shape)}"
            )
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "k and v must have one shape, and q their batch and width, "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"the heads of k must divide those of q, got {k.shape[1]} and {q.shape[1]}")
    check_options(scale)
    check_window_and_backend(window, backend)
    if key_lengths is not None:
        _check_lengths("key_lengths", key_lengths, len(q), k.shape[2])


def in_autocast_type(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return what PyTorch's own function sees under ``torch.autocast``: all but float64 in the type asked for."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def joined(
    q: Tensor, k: Tensor, mask: Rule | Tensor | None, is_causal: bool, window: int | None, key_lengths: Tensor | None
) -> Rule:
    """Return the one rule that the mask and the options say together.

    Raises:
        ValueError: if the mask does not lie over the scores of these queries and keys.
    """
    said = [
        *([] if mask is None else [rule_over(mask, q.new_empty(()).expand(*q.shape[:3], k.shape[2]))]),
        *([Causal()] if is_causal else []),
        *([] if window is None else [Window(window)]),
        *([] if key_lengths is None else [Padding(key_lengths)]),
    ]
    return reduce(and_, said) if said else Everything()


def check_cache_lengths(cache_lengths: Tensor, b: int, m: int, rule: Rule, key_lengths: Tensor | None) -> None:
    """Refuse lengths that do not count the keys of each sequence, and what cannot be said beside them.

    Raises:
        ValueError: as :func:`lessons_lib.flash.flash_attention`.
    """
    if key_lengths is not None:
        raise ValueError(
            "key_lengths and cache_lengths must not both be given: the former hide keys and move no query, the latter "
            "move the queries to the end of each sequence's keys"
        )
    _check_lengths("cache_lengths", cache_lengths, b, m)
    if rule.device is not None:
        raise ValueError(
            "with cache_lengths the mask must be a rule about positions, such as Causal() & Window(256): one made from "
            f"a tensor was made for one number of keys, got {described(rule)}"
        )


def lengths_of(lengths: Tensor, m: int, name: str = "cache_lengths") -> list[int]:
    """Read the lengths, wherever they lie.

    Raises:
        ValueError: if one is negative or above the number of keys.
    """
    numbers = lengths.tolist()
    if not all(0 <= number <= m for number in numbers):
        raise ValueError(f"{name} must be in 0 .. m = {m}, got {numbers}")
    return numbers


def described(rule: Rule) -> str:
    """Name the parts of a rule without the tables they hold."""
    parts = conjuncts(rule)
    hint = " (a table; give the rule whose picture it is)" if any(isinstance(part, Table) for part in parts) else ""
    return " & ".join(type(part).__name__ for part in parts) + hint


def check_window_and_backend(window: int | None, backend: str) -> None:
    """Refuse a window that holds no key, and a backend that does not exist."""
    if window is not None:
        check_size("window", window, at_least=1)
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def _check_lengths(name: str, lengths: Tensor, b: int, m: int) -> None:
    """Refuse wrong lengths; their values only where the host can look at them without waiting for a device."""
    if lengths.dtype not in (torch.int32, torch.int64) or lengths.shape != (b,):
        raise ValueError(
            f"{name} must be integers over (batch,) = ({b},), got {lengths.dtype} over {tuple(lengths.shape)}"
        )
    if _is_on_host(lengths):
        lengths_of(lengths, m, name)


def _is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"
