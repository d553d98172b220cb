"""Tables of measurements, and whether the targets are met."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from .record import Row


class Target(NamedTuple):
    """A speed that the kernels must reach at each of the ``places``: sequence lengths, or batch sizes of decoding."""

    direction: str
    d: int
    is_causal: bool | None  # None is both
    against: str
    at_least: float
    part: str
    places: tuple[int, ...] = (4096, 8192, 16384)


TARGETS = (
    Target("forward", 128, False, "sdpa-flash", 1.20, "d128"),
    Target("forward", 128, False, "sdpa-cudnn", 0.65, "d128"),
    Target("forward", 128, False, "matmul", 0.57, "d128"),
    Target("forward", 128, True, "sdpa-flash", 1.15, "d128"),
    Target("forward", 128, True, "sdpa-cudnn", 0.60, "d128"),
    Target("forward", 64, False, "sdpa-flash", 1.15, "d64"),
    Target("forward", 64, False, "sdpa-cudnn", 0.90, "d64"),
    Target("forward", 64, False, "matmul", 0.47, "d64"),
    Target("forward", 256, False, "sdpa-flash", 1.10, "d256"),
    Target("backward", 128, None, "sdpa-flash", 0.85, "d128"),
    Target("backward", 128, None, "sdpa-cudnn", 0.50, "d128"),
    Target("forward+backward", 128, None, "sdpa-flash", 0.95, "d128"),
    Target("forward", 128, None, "flex", 1.0, "flex", (4096, 16384)),
    Target("backward", 128, None, "flex", 0.9, "flex", (4096, 16384)),
    Target("decode", 128, None, "copy", 0.7, "decode", (1,)),
    Target("decode", 128, None, "copy", 0.7, "decode", (4,)),
    Target("decode", 128, None, "copy", 0.7, "decode", (16,)),
)
# The field of a row of the kernels for a target. Other targets use the field speed_of_triton of the rival's row.
FIGURES = {"matmul": "of_matmul", "copy": "of_copy"}


def judge(rows: Iterable[Row], parts: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return for each target of the ``parts`` the worst ratio, and whether it is met, missed or unmeasured.

    A target is missed if one measured place is below it. It is met only if every place was measured.
    """
    rows = list(rows)
    return [
        _judged(target, [row for row in rows if row.get("part", target.part) == target.part])
        for target in TARGETS
        if parts is None or target.part in parts
    ]


def _judged(target: Target, rows: list[Row]) -> dict[str, Any]:
    figure = FIGURES.get(target.against, "speed_of_triton")
    name = "triton" if target.against in FIGURES else target.against
    place = "b" if target.direction == "decode" else "n"
    found = {
        (row[place], row.get("is_causal")): row[figure]
        for row in rows
        if (row.get("pass"), row.get("d"), row.get("implementation")) == (target.direction, target.d, name)
        and row[place] in target.places
        and (target.is_causal is None or row["is_causal"] is target.is_causal)
        and figure in row
    }
    masks = {"decode": (None,)}.get(
        target.direction, (False, True) if target.is_causal is None else (target.is_causal,)
    )
    missing = [where for where in target.places for mask in masks if (where, mask) not in found]
    reached = min(found.values(), default=None)
    verdict = {"pass": target.direction, "d": target.d, "is_causal": target.is_causal, "against": target.against}
    verdict |= {place: list(target.places), "at_least": target.at_least, "reached": reached}
    if reached is not None and reached < target.at_least:
        return verdict | {"verdict": "missed"}
    if missing:
        return verdict | {"verdict": "unmeasured", "missing": sorted(set(missing))}
    return verdict | {"verdict": "met"}


def verdicts(found: Iterable[dict[str, Any]]) -> str:
    """Return one line for each target."""
    said = []
    for verdict in found:
        mask = {None: "", True: "causal ", False: "full "}[verdict["is_causal"]]
        batch = f"b {verdict['b'][0]} " if "b" in verdict else ""
        reached = "-" if verdict["reached"] is None else f"{verdict['reached']:.2f}"
        what = f"{verdict['pass']} d {verdict['d']} {mask}{batch}of {verdict['against']}"
        said.append(f"{verdict['verdict']:11}{what:42}{reached:>6}, wanted {verdict['at_least']:.2f}")
    return "\n".join(said)


def lines(item: str, rows: Iterable[Row]) -> str:
    """Return the rows of an item as lines of text, with the relative speed of the Triton kernels on the same pass."""
    rows = list(rows)
    ours = {
        row["pass"]: row["milliseconds"]
        for row in rows
        if row.get("implementation") == "triton" and "milliseconds" in row
    }
    return "\n".join([item, *(f"  {_line(row, ours)}" for row in rows)])


def _line(row: Row, ours: dict[str, float]) -> str:
    name = f"{row['pass']:17}{row['implementation']:15}" if "implementation" in row else row.get("tile", "")
    if "reason" in row:
        return f"{name} not run: {row['reason'][:100]}"
    if "unmeasured" in row:
        return f"{name} unmeasured: {row['unmeasured']}"
    if "right" in row:
        verdict = "right" if row["right"] else "WRONG"
        errors = f", error {row['error']:.1e}, allowed {row['allowed']:.1e}" if "error" in row else ""
        return f"{verdict}{errors}{_more(row)}"
    if "winner" in row:
        return f"take {row['winner']}, x{row['gain']:.3f}"
    if "milliseconds" not in row:
        return str({key: value for key, value in row.items() if key != "item"})
    said = [name, f"{row['milliseconds']:9.3f} ms"]
    if "tflops" in row:
        said.append(f"{row['tflops']:6.0f} TFLOP/s")
    said += [f"{row[figure]:.2f} of {other}" for other, figure in FIGURES.items() if figure in row]
    if "gb_per_s" in row:
        said.append(f"{row['gb_per_s']:.0f} GB/s")
    if "implementation" not in row:
        where = {key: row[key] for key in ("n", "is_causal", "b") if key in row}
        return " ".join([*said, str(where)])
    if row["pass"] in ours:
        said.append(f"triton x{row['milliseconds'] / ours[row['pass']]:.2f}")
    if "extra_mib" in row:
        said.append(f"+{row['extra_mib']:.0f} MiB")
    if "failed_once" in row:
        said.append(f"(failed once: {row['failed_once']})")
    return "  ".join(said)


def _more(row: Row) -> str:
    told = {key: row[key] for key in ("errors", "different", "dtype_of_output", "said") if key in row}
    return f" {told}" if told else ""
