"""The runs of notebooks whose outputs the book shows: stored under what they depend on, made if there is none.

A run is stored in ``_build/outputs`` by the notebook's place and by its key (``dependencies.py``). Tests store what
they have run (``book/conftest.py``), the build runs the rest. ``_build/runs.json`` beside a site says which run each of
its notebooks shows; ``book/_ext/stored_outputs.py`` reads it.
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
KEPT = 4  # runs of a notebook: who changes branches finds them again
LINES = 8  # of an error's message are shown

Task = tuple[Path, nbformat.NotebookNode, int]  # a notebook, what it holds, and the seconds that a cell may take


def place_of(name: Path, key: str) -> Path:
    """Return where the run of a notebook with this key is stored; ``name`` is the notebook's path in the book."""
    return STORE / name.with_suffix("") / f"{key}.ipynb"


def keep(name: Path, ran: nbformat.NotebookNode, key: str) -> Path | None:
    """Store a run under the key that the notebook had before it ran.

    Returns:
        the place of the run, or None if the library or the notebook has changed since: nobody knows then what has run.
    """
    if Library(ROOT).key(ran) != key:
        return None
    place = place_of(name, key)
    place.parent.mkdir(parents=True, exist_ok=True)
    ran.metadata.pop("widgets", None)  # all explorers once more, for a widget manager
    unfinished = place.with_suffix(f".{os.getpid()}")
    nbformat.write(ran, unfinished)
    unfinished.replace(place)
    for old in sorted(place.parent.glob("*.ipynb"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return place


def notebooks(source: Path) -> dict[Path, bool]:
    """Return the notebooks of the book in ``source`` by their paths, with whether the book shows their outputs."""
    excluded = _settings(source)["exclude_patterns"]
    names = sorted(path.relative_to(source) for path in (source / "book").rglob("*.ipynb"))
    return {
        name: not any(fnmatch.fnmatch(str(name), pattern) for pattern in excluded)
        for name in names
        if ".ipynb_checkpoints" not in name.parts
    }


def run_notebooks(source: Path, only: Iterable[Path] | None = None) -> bool:
    """Run the notebooks of the book in ``source`` that have no stored run, some at once; ``only`` these, if given.

    Each one that fails is reported with its cell and its error. Afterwards ``_build/runs.json`` names the run of each.

    Returns:
        whether there is a run of each notebook now.
    """
    library, wanted, timeout = Library(ROOT), notebooks(source), _settings(source)["timeout"]
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
        runs[str(name)] = str(place_of(name, keys[name]))
        if not place_of(name, keys[name]).exists():
            waiting.append((source / name, notebook, timeout))
    failed = list(_run_all(source, waiting, keys))
    if failed:
        print(f"The book was not built. What failed is named above: {', '.join(failed)}.", file=sys.stderr)
        return False
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(json.dumps(runs, indent=1), encoding="utf-8")
    return True


def _run_all(source: Path, waiting: list[Task], keys: dict[Path, str]) -> Iterable[str]:
    """Run these notebooks, the longest first as far as size tells, four at once at most; yield which ones failed."""
    if not waiting:
        return
    waiting.sort(key=lambda task: -task[0].stat().st_size)
    with multiprocessing.Pool(min(4, os.cpu_count() or 1)) as pool:
        for path, ran, error in tqdm(pool.imap_unordered(_run, waiting), total=len(waiting), unit="notebook"):
            name = path.relative_to(source)
            if not error and keep(name, ran, keys[name]) is None:
                error = "    the library or the notebook was changed while it ran: run it again"
            if error:
                tqdm.write(f"\n{name} failed{error}\n", file=sys.stderr)
                yield name.stem


def _run(task: Task) -> tuple[Path, nbformat.NotebookNode, str]:
    """Run one notebook; return it with its outputs, and its error in words, if there is one."""
    path, notebook, timeout = task
    at = [0]

    def note(cell: nbformat.NotebookNode, cell_index: int) -> None:
        at[0] = cell_index

    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=resources, on_cell_start=note)
    try:
        client.execute(stderr=subprocess.DEVNULL)  # the kernel's own remarks
    except CellExecutionError as error:
        return path, notebook, _failure(notebook, at[0], where([error.traceback]), f"{error.ename}: {error.evalue}")
    except (CellTimeoutError, DeadKernelError) as error:
        return path, notebook, _failure(notebook, at[0], "", f"{type(error).__name__}: {error}")
    return path, notebook, ""


def _failure(notebook: nbformat.NotebookNode, index: int, line: str, message: str) -> str:
    cell = notebook.cells[index]
    said = [text for text in message.strip().splitlines() if text.strip()][:LINES]
    lines = [*([line] if line else []), *said]
    heading = f" in cell {cell.get('id', '?')}, which is cell {index + 1} of {len(notebook.cells)}:"
    return "\n    ".join([heading, *lines])


def where(traceback: Iterable[str]) -> str:
    """Return the line of the cell that failed, as the traceback's arrow marks it."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))
    marked = re.search(r"^-+> *\d+ (.*)$", plain, re.MULTILINE)
    return marked[1].strip() if marked else ""


def _settings(source: Path) -> dict:
    return yaml.safe_load((source / "_config.yml").read_text(encoding="utf-8"))["execute"]
