"""The parts joined into one result file, whether the file is out of date, and the exit status."""

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from .parts import NOTHING, UNMEASURED, WHOLE, WRONG
from .record import read, write
from .report import TARGETS, judge
from .sources import ROOT, changed, commit
from .timing import with_speeds

FOLDER = Path(__file__).resolve().parents[1] / "results"
TABLES = ("d128", "d64", "d256", "flex", "plain", "rules")
KEPT = ("checks", "sanitizer", *TABLES, "decode")  # the parts of a result file; the others serve development
Content = dict[str, Any]


def file_name(device: str) -> str:
    """Return the name of a result file: ``flash-nvidia-h200.json`` for ``NVIDIA H200``."""
    return f"flash-{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"


def status(contents: Iterable[Content], wanted: Iterable[str]) -> int:
    """Return the exit status of the command: whether the parts ``wanted`` are complete, right and on target."""
    found = {content["part"]: content for content in contents}
    wanted = list(wanted)
    rows = [row | {"part": part} for part in wanted if part in found for row in found[part]["rows"]]
    if not rows:
        return NOTHING
    targets = judge(with_speeds(rows), wanted)
    if any(row.get("right") is False for row in rows) or any(one["verdict"] == "missed" for one in targets):
        return WRONG
    if any(row["part"] == "checks" and "reason" in row for row in rows):  # a check that raised
        return WRONG
    missing = [part for part in wanted if part not in found or found[part]["left_out"]]
    failed = [row for row in rows if "reason" in row and row.get("implementation", "triton") == "triton"]
    failed = [row for row in failed if "tile" not in row]  # a tile may be too large for a device
    failed += [row for row in rows if "unmeasured" in row and row["part"] == "checks"]
    return UNMEASURED if missing or failed or any(one["verdict"] == "unmeasured" for one in targets) else WHOLE


def gather(folders: Iterable[Path]) -> list[Content]:
    """Return the parts in these folders; of several records of a part, the one that was begun last."""
    found: dict[str, Content] = {}
    for folder in folders:
        for part in KEPT:
            content = read(folder / f"{part}.json")
            if content is not None and content["rows"] and content["began"] >= found.get(part, content)["began"]:
                found[part] = content
    return [found[part] for part in KEPT if part in found]


def join(contents: list[Content], root: Path = ROOT) -> Content:
    """Return one result of the parts. Parts that measured other code than the newest are left out, with a reason.

    Raises:
        ValueError: if there is no part to join.
    """
    usual = [content for content in contents if not content["tiles"]]
    if not usual:
        raise ValueError("there is nothing to join: no part of the tables was measured with the library's own tiles")
    newest = max(usual, key=lambda content: content["began"])
    parts, left_out = {}, {}
    for content in contents:
        different = [key for key in ("device", "kernels", "versions", "tiles") if content[key] != newest[key]]
        if different:
            left_out[content["part"]] = f"measured with other {' and '.join(different)} than {newest['part']}"
        else:
            parts[content["part"]] = content
    every = with_speeds([row | {"part": part} for part, content in parts.items() for row in content["rows"]])
    checks = [row for row in every if row["part"] in ("checks", "sanitizer")]
    result = {
        "command": "python benchmarks/flash_gpu.py",
        "date": newest["date"],
        "device": newest["device"],
        "versions": newest["versions"],
        "commit": _commit(parts.values(), newest["kernels"], root),
        "kernels": newest["kernels"],
        "stale": None,
        "wrong": [row["item"] for row in checks if row.get("right") is False or "reason" in row],
        "unmeasured": {part: content["left_out"] for part, content in parts.items() if content["left_out"]}
        | {part: "it was not run" for part in KEPT if part not in parts and part not in left_out}
        | left_out,
        "dtype": "bfloat16",
        "seeds": {part: content["seed"] for part, content in parts.items()},
        **_rates(parts.values()),
        "state": {part: _states(content) for part, content in parts.items()},
        "targets": judge(every),
        "rows": [row for row in every if row["part"] in TABLES],
        "decode": [row for row in every if row["part"] == "decode"],
        "checks": checks,
    }
    return result | {"stale": stale(result, root)}


def stale(result: Content, root: Path = ROOT) -> str | None:
    """Return which sources of the kernels have changed since the measurement, or None if none has."""
    files = changed(result["kernels"], root)
    if not files:
        return None
    return (
        f"measured at commit {result['commit'] or 'unknown'}; since then the kernels have changed: {', '.join(files)}"
    )


def mark(folder: Path | None = None, root: Path = ROOT) -> list[str]:
    """Update the stale flag of every result file; return the names of the files that changed."""
    marked = []
    for path in sorted((folder or FOLDER).glob("flash-*.json")):
        result = read(path)
        if result is not None and "kernels" in result and result["stale"] != (now := stale(result, root)):
            write(path, result | {"stale": now})
            marked.append(path.name)
    return marked


# --- parts ----------------------------------------------------------------------------------------------------------


def _commit(contents: Iterable[Content], kernels: dict[str, str], root: Path) -> str | None:
    """Return the commit of the parts; without one, the current commit if its kernels are the same."""
    named = {content["commit"] for content in contents} - {None}
    if named:
        return named.pop() if len(named) == 1 else ", ".join(sorted(named))
    here = commit(root)
    return here if here and not here.endswith("+") and not changed(kernels, root) else None


def _rates(contents: Iterable[Content]) -> dict[str, Any]:
    """Return the rates of the machine: the median over all processes, and each value."""
    found: dict[str, list[float]] = {}
    for content in contents:
        for name, values in content["rates"].items():
            found.setdefault(name, []).extend(values)
    names = ("matmul_tflops", "copy_gb_per_s")
    return {name: median(found[name]) if found.get(name) else None for name in names} | {"rates": found}


def _states(content: Content) -> list[Any]:
    """Return the state of the device after the first item and after the last."""
    states = [done["state"] for done in content["done"].values() if done["state"] is not None]
    return states if len(states) < 2 else [states[0], states[-1]]


assert {target.part for target in TARGETS} <= set(KEPT)
