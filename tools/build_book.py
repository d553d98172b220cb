"""Build the site into _build/html with warnings as errors, running each notebook whose code or library has changed."""

import fnmatch
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from pin_library import pin_edition
from set_repository import defined_address
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "_build"
TESTED = "tested"  # the folder of _build with notebooks as nbval ran them, outputs included


def fingerprint() -> str:
    """Hash what a notebook's outputs depend on besides its own cells: the library and the pins."""
    files = [ROOT / "requirements.txt", *sorted((ROOT / "lessons_lib").rglob("*"))]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def forget_stale_outputs() -> None:
    """Empty the cache of outputs if the library or a pin has changed since: it knows the cells alone."""
    stamp, now = BUILD / "outputs-depend-on", fingerprint()
    if not stamp.exists() or stamp.read_text() != now:
        shutil.rmtree(BUILD / ".jupyter_cache", ignore_errors=True)
        shutil.rmtree(BUILD / TESTED, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    stamp.write_text(now)


def keep(path: Path, ran: nbformat.NotebookNode) -> None:
    """Keep the notebook of the book as a test ran it (``book/conftest.py``), for ``run_notebooks`` to use."""
    target = BUILD / TESTED / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(ran, target)


def kept(name: Path, notebook: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """Return the notebook with the outputs of a test's run, if its code is still what ran."""
    if not (BUILD / TESTED / name).exists():
        return None
    ran = nbformat.read(BUILD / TESTED / name, as_version=4)
    code, code_that_ran = ([c.source for c in n.cells if c.cell_type == "code"] for n in (notebook, ran))
    return ran if code == code_that_ran else None


def run_notebooks(source: Path) -> None:
    """Run the notebooks whose outputs are not known, some at once; Jupyter Book would run them one after another.

    What a test has run since the library last changed is not run again. What fails is not kept: Jupyter Book runs it
    again and reports it. (jupyter-cache's own ``local-parallel`` executor starts one process for each core, in any
    order and in silence, and takes its notebooks from a project that somebody has staged; here the longest come first,
    four run at once at most, and a bar moves.)
    """
    settings = yaml.safe_load((source / "_config.yml").read_text(encoding="utf-8"))["execute"]
    cache = get_cache(str(BUILD / ".jupyter_cache"))
    waiting = []
    for path in (source / "book").rglob("*.ipynb"):
        if any(fnmatch.fnmatch(str(path.relative_to(source)), pattern) for pattern in settings["exclude_patterns"]):
            continue
        notebook = nbformat.read(path, as_version=4)
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            if ran := kept(path.relative_to(source), notebook):
                cache.cache_notebook_bundle(CacheBundleIn(ran, str(path)), check_validity=False, overwrite=True)
            else:
                waiting.append((path, notebook, settings["timeout"]))
    if not waiting:
        return
    waiting.sort(key=lambda task: -task[0].stat().st_size)  # the longest first, as far as size tells
    with multiprocessing.Pool(min(4, os.cpu_count() or 1)) as pool:
        for path, notebook, seconds in tqdm(pool.imap_unordered(_run, waiting), total=len(waiting), unit="notebook"):
            if notebook is not None:
                bundle = CacheBundleIn(notebook, str(path), data={"execution_seconds": seconds})
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def _run(task: tuple[Path, nbformat.NotebookNode, int]) -> tuple[Path, nbformat.NotebookNode | None, float | None]:
    path, notebook, timeout = task
    done = single_nb_execution(notebook, cwd=str(path.parent), timeout=timeout, allow_errors=False)
    return path, None if done.err else notebook, done.time


def run_jupyter_book(source: Path, *builder: str) -> int:
    """Build the site of ``source`` into ``source/_build/html``; return the exit status, 0 if nothing was amiss.

    Arguments of jupyter-book may name another builder.
    """
    run_notebooks(source)
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    # --all: an incremental build forgets the warnings of the one before.
    build = subprocess.run([jupyter_book, "build", source, "--all", "-W", "-n", "--keep-going", *builder], cwd=source)
    if build.returncode:
        print("The book was not built: see the warnings above; each of them counts as an error.", file=sys.stderr)
    return build.returncode


def without_address(root: Path = ROOT) -> str:
    """Say that the repository's address is still the placeholder, or nothing if it is not."""
    address = defined_address(root)
    if "/OWNER/" not in address:
        return ""
    return f"No launch buttons: {address} is a placeholder. Set it with make repository URL=https://github.com/you/your-fork"


def main() -> int:
    """Build; say where the site is, or that it is not."""
    forget_stale_outputs()
    shutil.rmtree(BUILD / "html", ignore_errors=True)  # a page that is gone must not linger
    if status := run_jupyter_book(ROOT):
        return status
    notes = pin_edition(BUILD), without_address()
    print(f"\nThe book: {(BUILD / 'html' / 'index.html').as_uri()}   (or: make serve)")
    for said in filter(None, notes):
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
