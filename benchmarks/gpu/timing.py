"""The passes of all implementations for one shape: time, spread, memory and kernel. A failure affects one only."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from .bench import Bench, measure_rounded
from .record import Row, reason

PASSES = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}  # relative cost
Attend = Callable[[Tensor, Tensor, Tensor], Any]
Everyone = dict[str, Attend]


def flops(direction: str, b: int, h: int, n: int, d: int, is_causal: bool) -> float:
    """Return the FLOPs of a pass by the usual count, :math:`4 b h n^2 d` forward, half of it if causal."""
    return PASSES[direction] * 4 * b * h * n**2 * d / (2 if is_causal else 1)


def time_shape(
    bench: Bench,
    item: str,
    rows: list[Row],
    everyone: Everyone,
    d: int,
    n: int,
    is_causal: bool,
    *,
    rounds: int = 2,
    rule: tuple[str, float] | None = None,
) -> None:
    """Time the passes of all implementations for one shape and append a row for each.

    Every implementation has a turn in each round. The second round is in reverse order, because the device is cooler
    early in a round. A ``rule`` is its name and the share of visible pairs; FLOPs then count visible pairs only.
    """
    mask_fields = {"is_causal": is_causal} if rule is None else {"rule": rule[0], "share": measure_rounded(rule[1])}
    b, h = bench.heads(n, d)
    randn = bench.randn(item)
    qkv = [randn(b, h, n, d, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    upstream = randn(b, h, n, d, dtype=torch.bfloat16)
    matmul = bench.matmul()
    turns = take_turns(
        bench, everyone, lambda attend, known: passes(bench, attend, qkv, upstream, known), rounds=rounds
    )
    for name in everyone:
        for direction in PASSES:
            row = {"implementation": name, "b": b, "h": h, "n": n, "d": d, **mask_fields, "pass": direction}
            row |= merge_turns([turn[direction] for turn in turns[name]])
            if "milliseconds" in row:
                count = (
                    flops(direction, b, h, n, d, is_causal)
                    if rule is None
                    else rule[1] * flops(direction, b, h, n, d, False)
                )
                tflops = count / row["milliseconds"] / 1e9
                row["tflops"] = measure_rounded(tflops)
                row |= {} if matmul is None else {"of_matmul": measure_rounded(tflops / matmul)}
            rows.append(row)


def take_turns(bench: Bench, everyone: dict[str, Any], turn: Callable[[Any, Any], Any], *, rounds: int) -> dict:
    """Give every implementation a turn in each round, every second round in reverse order.

    ``turn(implementation, first)`` receives the result of the first turn, or None. After an error that makes the device
    unusable the others get no turn, which their rows record.
    """
    turns, lost = {name: [] for name in everyone}, None
    order = list(everyone)
    for k in range(rounds):
        for name in order[:: (-1) ** k]:
            if lost is None:
                turns[name].append(turn(everyone[name], turns[name][0] if turns[name] else None))
                try:
                    bench.machine.settle()
                except Exception as error:
                    lost = f"the device was lost while {name} ran: {reason(error)}"
    return {name: found or [Absent(lost)] for name, found in turns.items()}


class Absent(dict):
    """A turn that did not take place: every item of it has the same reason."""

    def __init__(self, why: str | None) -> None:
        super().__init__(reason=why or "it had no turn")

    def __missing__(self, key: str) -> Row:
        return {"reason": self["reason"]}


def passes(bench: Bench, attend: Attend, qkv: list[Tensor], upstream: Tensor, known: Any = None) -> dict[str, Row]:
    """Return the time of each pass, or the reason of its failure; forward is kept if backward fails.

    Memory and kernels are measured in the first turn only, when ``known`` is None.
    """
    found: dict[str, Row] = {}
    found["forward"] = timed(bench, lambda: attend(*qkv), known)

    def both() -> object:
        return torch.autograd.grad(attend(*qkv), qkv, upstream)

    out = None
    try:
        if "reason" in found["forward"]:
            found["backward"] = {"reason": "its forward pass did not run"}
        else:
            out = attend(*qkv)
            found["backward"] = timed(
                bench, lambda: torch.autograd.grad(out, qkv, upstream, retain_graph=True), known, memory_of=both
            )
    except Exception as error:
        found["backward"] = {"reason": reason(error)}
    finally:
        del out
    forward, backward = found["forward"], found["backward"]
    if "reason" in backward:
        found["forward+backward"] = {"reason": backward["reason"]}
    else:
        found["forward+backward"] = {
            name: forward[name] + backward[name] for name in ("milliseconds", "low", "high")
        } | {key: backward.pop(key) for key in ("extra_mib",) if key in backward}
    return found


def timed(
    bench: Bench,
    work: Callable[[], object],
    known: Any = None,
    *,
    memory_of: Callable[[], object] | None = None,
    milliseconds: int = 200,
) -> Row:
    """Return the milliseconds, memory and kernel of a call, or the reasons of failed measurements."""
    try:
        median, low, high = bench.machine.time(work, milliseconds)
    except Exception as error:
        return {"reason": reason(error)}
    row: Row = {"milliseconds": median, "low": low, "high": high}
    if known is None:
        try:
            row |= bench.machine.launched(work)
        except Exception as error:
            row["kernel"] = f"unknown: {reason(error)}"
        try:
            row["extra_mib"] = round(bench.machine.extra_mib(memory_of or work), 1)
        except Exception as error:
            row["extra_mib_unknown"] = reason(error)
    return row


def merge_turns(turns: list[Row]) -> Row:
    """Return one row for several turns: their mean, each value, the widest spread, and a failure of any turn."""
    times = [turn for turn in turns if "milliseconds" in turn]
    failures = [turn["reason"] for turn in turns if "reason" in turn]
    if not times:
        return {"reason": failures[0]}
    row = {key: value for key, value in turns[0].items() if key not in ("milliseconds", "low", "high")}
    row["milliseconds"] = measure_rounded(fmean(turn["milliseconds"] for turn in times))
    row["rounds"] = [measure_rounded(turn["milliseconds"]) for turn in times]
    row["low"] = measure_rounded(min(turn["low"] for turn in times))
    row["high"] = measure_rounded(max(turn["high"] for turn in times))
    if failures:
        row.pop("reason", None)
        row["failed_once"] = failures[0]
    return row


def time_decoding(bench: Bench, item: str, rows: list[Row], everyone: dict[str, Callable], b: int, d: int) -> None:
    """Time decoding, one query a sequence over a long cache; each implementation prepares a step from q, k, v."""
    h, g, m = 32, 8, bench.sizes.cache
    copy = bench.copy()
    randn = bench.randn(item)
    q, k, v = (randn(b, heads, n, d, dtype=torch.bfloat16) for heads, n in ((h, 1), (g, m), (g, m)))

    def turn(prepare: Callable, known: Any) -> Row:
        try:
            with torch.no_grad():
                return timed(bench, prepare(q, k, v), known)
        except Exception as error:
            return {"reason": reason(error)}

    turns = take_turns(bench, everyone, turn, rounds=2)
    for name in everyone:
        row = {"implementation": name, "b": b, "h": h, "g": g, "m": m, "d": d, "pass": "decode"}
        row |= merge_turns(turns[name])
        if "milliseconds" in row:
            rate = 2 * k.numel() * k.element_size() / row["milliseconds"] / 1e6
            row["gb_per_s"] = measure_rounded(rate)
            row |= {} if copy is None else {"of_copy": measure_rounded(rate / copy)}
        rows.append(row)


def with_speeds(rows: list[Row]) -> list[Row]:
    """Add to each row the relative speed of the Triton kernels on the same pass of the same item and part."""

    def place(row: Row) -> tuple:
        return row.get("part"), row.get("item"), row.get("pass")

    timed = [row for row in rows if "milliseconds" in row]
    ours = {place(row): row["milliseconds"] for row in timed if row.get("implementation") == "triton"}
    found = []
    for row in rows:
        mine = ours.get(place(row)) if "milliseconds" in row else None
        speed = {} if mine is None else {"speed_of_triton": measure_rounded(row["milliseconds"] / mine)}
        found.append(row | speed)
    return found
