"""Store and reuse the runs of notebooks whose outputs the book shows; run a notebook that has no stored run.

A run is stored in ``_build/outputs`` by the notebook's path and by its key (``dependencies.py``). The tests store the
notebooks that they run (``book/conftest.py``), and the build runs the rest. ``_build/runs.json`` beside a site lists
the run that each of its notebooks shows, for ``book/_ext/stored_outputs.py``.
"""

import fnmatch
import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
import yaml
from dependencies import Library
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "_build"
STORE = BUILD / "outputs"
KEPT = 4  # stored runs of a notebook, so that they are reused after a change of branches
LINES = 8  # of an error's message that are shown

Task = tuple[Path, nbformat.NotebookNode, int]  # a notebook's path, its content, and the time limit of a cell


def stored_path(name: Path, key: str) -> Path:
    """Return the path of the stored run of a notebook with this key; ``name`` is the notebook's path in the book."""
    return STORE / name.with_suffix("") / f"{key}.ipynb"


def keep(name: Path, ran: nbformat.NotebookNode, key: str) -> Path | None:
    """Store a run under the key that the notebook had before it ran.

    Returns:
        the path of the run, or ``None`` if the library or the notebook has changed since, so that it is unknown which
        version has run.
    """
    if Library(ROOT).key(ran) != key:
        return None
    path = stored_path(name, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    ran.metadata.pop("widgets", None)  # a second copy of all explorers, for a widget manager
    unfinished = path.with_suffix(f".{os.getpid()}")
    nbformat.write(ran, unfinished)
    unfinished.replace(path)
    for old in sorted(path.parent.glob("*.ipynb"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def notebooks(source: Path) -> dict[Path, bool]:
    """Return the paths of the notebooks of the book in ``source``, each with whether the book shows its outputs."""
    excluded = _settings(source)["exclude_patterns"]
    names = sorted(path.relative_to(source) for path in (source / "book").rglob("*.ipynb"))
    return {
        name: not any(fnmatch.fnmatch(str(name), pattern) for pattern in excluded)
        for name in names
        if ".ipynb_checkpoints" not in name.parts
    }


def run_notebooks(source: Path, only: Iterable[Path] | None = None) -> bool:
    """Run the notebooks of the book in ``source`` that have no stored run, in parallel; ``only`` these, if given.

    A notebook that fails is reported with its cell and error. If all succeed, ``_build/runs.json`` lists their runs.

    Returns:
        whether every notebook has a run now.
    """
    library, wanted, timeout = Library(ROOT), notebooks(source), time_limit(source)
    only = set(wanted if only is None else only)
    listed = source / "_build" / "runs.json"
    shown = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    runs = {str(name): shown.get(str(name)) for name in wanted}
    waiting: list[Task] = []
    keys: dict[Path, str] = {}
    for name, is_run in wanted.items():
        if name not in only or not is_run:
            continue
        notebook = nbformat.read(source / name, as_version=4)
        keys[name] = library.key(notebook)
        runs[str(name)] = str(stored_path(name, keys[name]))
        if not stored_path(name, keys[name]).exists():
            waiting.append((source / name, notebook, timeout))
    failed = list(_run_all(source, waiting, keys))
    if failed:
        print(f"The book was not built. What failed is named above: {', '.join(failed)}.", file=sys.stderr)
        return False
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(json.dumps(runs, indent=1), encoding="utf-8")
    return True


def _run_all(source: Path, waiting: list[Task], keys: dict[Path, str]) -> Iterable[str]:
    """Run these notebooks, the largest file first, at most four at a time; yield the names of those that failed."""
    if not waiting:
        return
    waiting.sort(key=lambda task: -task[0].stat().st_size)
    with multiprocessing.Pool(min(4, os.cpu_count() or 1)) as pool:
        for path, ran, error in tqdm(pool.imap_unordered(run, waiting), total=len(waiting), unit="notebook"):
            name = path.relative_to(source)
            if not error and keep(name, ran, keys[name]) is None:
                error = "    the library or the notebook was changed while it ran: run it again"
            if error:
                tqdm.write(f"\n{name} failed{error}\n", file=sys.stderr)
                yield name.stem


def run(task: Task) -> tuple[Path, nbformat.NotebookNode, str]:
    """Run one notebook; return its path, the notebook with outputs, and an error message or an empty string."""
    path, notebook, timeout = task
    at = [0]

    def note(cell: nbformat.NotebookNode, cell_index: int) -> None:
        at[0] = cell_index

    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=resources, on_cell_start=note)
    try:
        client.execute(stderr=subprocess.DEVNULL)  # the kernel's own messages
    except CellExecutionError as error:
        return (
            path,
            notebook,
            _failure(notebook, at[0], failed_line([error.traceback]), f"{error.ename}: {error.evalue}"),
        )
    except (CellTimeoutError, DeadKernelError) as error:
        return path, notebook, _failure(notebook, at[0], "", f"{type(error).__name__}: {error}")
    return path, notebook, ""


def _failure(notebook: nbformat.NotebookNode, index: int, line: str, message: str) -> str:
    cell = notebook.cells[index]
    shown = [text for text in message.strip().splitlines() if text.strip()][:LINES]
    lines = [*([line] if line else []), *shown]
    heading = f" in cell {cell.get('id', '?')}, which is cell {index + 1} of {len(notebook.cells)}:"
    return "\n    ".join([heading, *lines])


def failed_line(traceback: Iterable[str]) -> str:
    """Return the line of the cell that failed, which an arrow marks in the traceback."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))
    marked = re.search(r"^-+> *\d+ (.*)$", plain, re.MULTILINE)
    return marked[1].strip() if marked else ""


def time_limit(source: Path) -> int:
    """Return how many seconds a cell may run."""
    return _settings(source)["timeout"]


def _settings(source: Path) -> dict:
    return yaml.safe_load((source / "_config.yml").read_text(encoding="utf-8"))["execute"]
