"""Records that chapters read: what their own cells give in runs that would take a page minutes.

The code is a chapter's: its cells are read and run, so that page and record cannot differ. A record is JSON with one
run a line; it is written after every run, and a command that is started again goes on where it was.
"""

import argparse
import datetime
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]

Job = tuple[Sequence[str], Callable[[], Sequence[Sequence[float]]]]  # the names of some lines, and what makes them


def sources(chapter: Path) -> dict[str, str]:
    """The code and text of a chapter's cells by their names."""
    return {cell["id"]: "".join(cell["source"]) for cell in json.loads(chapter.read_text(encoding="utf-8"))["cells"]}


def defined(chapter: Path, names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """What these cells of a chapter define, run in this order with what they are given."""
    cells, code = sources(chapter), dict(given)
    for name in names:
        exec(cells[name], code)
    return code


def record(doc: str | None, name: str, jobs: Iterable[Job], **about: object) -> None:
    """Be the command that makes ``benchmarks/results/NAME.json``: run the jobs whose lines are missing, on one thread.

    Args:
        doc: what the command says of itself.
        name: of the record; the command's own has underscores.
        jobs: all of them, in the order of the lines.
        about: what the record says besides.
    """
    out, runs = begun(doc, name)
    jobs = list(jobs)
    for lines, run in tqdm(jobs):
        if not all(line in runs for line in lines):
            runs |= dict(zip(lines, run(), strict=True))
            write(out, name, {line: runs[line] for all_lines, _ in jobs for line in all_lines if line in runs}, **about)


def begun(doc: str | None, name: str) -> tuple[Path, dict[str, Any]]:
    """Read the command's arguments; return where its record is written and the runs that are there, on one thread."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    return out, json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else {}


def write(out: Path, name: str, runs: Mapping[str, Sequence[float]], **about: object) -> None:
    """Write the record, one run a line, numbers to a thousandth."""
    report = {
        "command": f"python benchmarks/{name.replace('-', '_')}.py",
        "date": datetime.date.today().isoformat(),
        "device": f"{platform.machine()}, {platform.system()}, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **about,
    }
    lines = ",\n".join(
        f"    {json.dumps(line, ensure_ascii=False)}: {json.dumps([round(x, 3) for x in found])}"
        for line, found in runs.items()
    )
    out.write_text(json.dumps(report, indent=2)[:-2] + ',\n  "runs": {\n' + lines + "\n  }\n}\n", encoding="utf-8")


def processor() -> str:
    """The processor's name, as its maker gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
