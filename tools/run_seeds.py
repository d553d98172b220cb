"""Run the chapters with other seeds in their first cell, and report which cells fail.

    python tools/run_seeds.py [--seeds 1 2 3] [--jobs 1] [CHAPTER ...]

A chapter is a name such as ``scaling``; without names all chapters run. The report says for each chapter and seed
whether every assertion held, which cells failed and in which line, and which guesses had an answer that the reader
could not have entered. The report is also written to ``_build/seeds.txt``. The exit status is 1 if a cell failed.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

import nbformat
import yaml
from nbclient import NotebookClient
from runs import failed_line
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "_build" / "seeds.txt"
SEED = re.compile(r"^SEED = 0\b", re.MULTILINE)
REVEALED = re.compile(r'class="g-truth"[^>]*data-answer="([^"]*)"')


@dataclass
class Outcome:
    """The outcome of one chapter with one seed: the number of its assertions, failed cells, and notes on guesses."""

    chapter: str
    seed: int
    n_assertions: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # by the cell's id: the line and the error
    beyond: list[str] = field(default_factory=list)  # notes on guesses whose answer is outside of the possible range

    def report(self) -> str:
        """Return the lines of the report."""
        kept = f"all {self.n_assertions} assertions held" if not self.failed else f"{len(self.failed)} cells failed"
        lines = [f"{self.chapter}, seed {self.seed}: {kept}"]
        lines += [f"    {cell}: {error}" for cell, error in self.failed.items()]
        lines += [f"    a guess: {note}" for note in self.beyond]
        return "\n".join(lines)


def chapters(root: Path = ROOT) -> dict[str, Path]:
    """Return the notebooks in ``_toc.yml`` that set a seed, by their names."""
    parts = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    files = [root / f"{page['file']}.ipynb" for part in parts for page in part["chapters"]]
    return {path.stem: path for path in files if path.exists() and SEED.search(code(read(path)))}


def read(path: Path) -> nbformat.NotebookNode:
    """Read a notebook in format 4."""
    return nbformat.read(path, as_version=4)


def code(notebook: nbformat.NotebookNode) -> str:
    """Return the source of all code cells."""
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def with_seed(notebook: nbformat.NotebookNode, seed: int) -> nbformat.NotebookNode:
    """Change the seed in the one cell that sets it.

    Raises:
        ValueError: if there is not exactly one such cell, or it sets the seed more than once.
    """
    setting = [cell for cell in notebook.cells if cell.cell_type == "code" and SEED.search(cell.source)]
    if len(setting) != 1 or len(SEED.findall(setting[0].source)) != 1:
        raise ValueError(f"one cell of a chapter must say SEED = 0, and once, got {len(setting)} such cells")
    setting[0].source = SEED.sub(f"SEED = {seed}", setting[0].source)
    return notebook


def n_assertions(source: str) -> int:
    """Count the assertions: ``assert`` statements, and calls of functions whose names begin with ``assert``.

    >>> n_assertions("assert x\\ntorch.testing.assert_close(x, y)")
    2
    """
    tree = ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE))
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [getattr(function, "attr", getattr(function, "id", "")) for function in called]
    return sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) + sum(n.startswith("assert") for n in names)


def run(path: Path, seed: int, after_cell: Callable[[], object] = lambda: None) -> Outcome:
    """Run the whole chapter, even if cells fail; ``after_cell`` is called when a cell starts."""
    notebook, found = with_seed(read(path), seed), Outcome(path.stem, seed)
    client = NotebookClient(
        notebook,
        timeout=600,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_start=lambda cell, cell_index: after_cell(),
    )
    client.execute(stderr=subprocess.DEVNULL)  # the kernel's own messages
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        found.n_assertions += n_assertions(cell.source)
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                line = failed_line(output.traceback)
                at = f"`{line}` " if line else ""
                found.failed[cell.id] = f"{at}{output.ename}: {first_line(output.evalue)}"
            for answer in REVEALED.findall(output.get("data", {}).get("text/html", "")):
                found.beyond += [note for note in [json.loads(unescape(answer))["note"]] if note]
    return found


def first_line(message: str) -> str:
    """Return the first line of a message, cut off after 120 characters."""
    return (message.strip().splitlines() or [""])[0][:120]


def main(arguments: list[str] | None = None) -> int:
    """Run the selected chapters, write the report, and return the exit status."""
    known = chapters()
    parser = argparse.ArgumentParser(description="Run the chapters with other seeds in their first cell.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help=f"of {', '.join(known)}; all when none is named")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="1 2 3 when none is named")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at a time")
    options = parser.parse_args(arguments)
    if unknown := set(options.chapters) - set(known):
        parser.error(f"chapters must be of {', '.join(known)}, got {', '.join(sorted(unknown))}")

    work = [(known[name], seed) for name in options.chapters or known for seed in options.seeds]
    n_cells = sum(len(read(path).cells) for path, _ in work)
    with tqdm(total=n_cells, unit="cell") as bar, ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for found in pool.map(lambda item: run(*item, after_cell=bar.update), work):
            outcomes.append(found)
            bar.write(found.report(), file=sys.stdout)
    failed = [found for found in outcomes if found.failed]
    summary = f"{len(outcomes) - len(failed)} of {len(outcomes)} runs without a failing cell"
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join([*(found.report() for found in outcomes), summary, ""]), encoding="utf-8")
    print(summary)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
