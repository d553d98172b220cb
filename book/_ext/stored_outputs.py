"""Put the outputs of a notebook's stored run into its page; nothing is executed while pages are made.

``_build/runs.json`` names the run of each notebook (``tools/runs.py``). What an explorer or a guess shows is made anew
from the state that its output carries: so a page has the scripts and styles of today, without another run.
"""

import importlib
import json
from functools import cache
from pathlib import Path

from sphinx.util import logging
from sphinx.util.build_phase import BuildPhase

LOG = logging.getLogger(__name__)


def fill(app, docname, source) -> None:
    """Fill in the outputs of the notebook that is read."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".ipynb" or app.phase is not BuildPhase.READING:
        return
    listed = Path(app.outdir).parent / "runs.json"
    runs = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    name = path.relative_to(app.srcdir).as_posix()
    if name not in runs:
        LOG.warning("there is no run of this notebook: build with make book", location=docname)
    elif runs[name] is not None:
        notebook, ran = (json.loads(text) for text in (source[0], Path(runs[name]).read_text(encoding="utf-8")))
        if not with_outputs(notebook, ran):
            LOG.warning("the code has changed since the notebook ran: build with make book", location=docname)
        source[0] = json.dumps(notebook)


def with_outputs(notebook: dict, ran: dict) -> bool:
    """Give the notebook the outputs of its run in place; return False if that was a run of other code."""
    cells, cells_that_ran = ([c for c in n["cells"] if c["cell_type"] == "code"] for n in (notebook, ran))
    if ["".join(c["source"]) for c in cells] != ["".join(c["source"]) for c in cells_that_ran]:
        return False
    for cell, cell_that_ran in zip(cells, cells_that_ran, strict=True):
        cell["outputs"] = [renewed(output) for output in cell_that_ran["outputs"]]
        cell["execution_count"] = cell_that_ran["execution_count"]
    notebook["metadata"]["language_info"] = ran["metadata"].get("language_info", {"name": "python"})
    return True


def renewed(output: dict) -> dict:
    """Return the output; the page of an explorer or a guess is made again from its state."""
    made_from = output.get("metadata", {}).get("text/html", {}).get("made_from")
    if made_from is None:
        return output
    html = made(made_from["class"], made_from["state"])
    return {**output, "data": {**output["data"], "text/html": html}}


@cache
def made(name: str, state: str) -> str:
    """Make the page of a class of the library from its state.

    Raises:
        ValueError: if it is no class of the library.
    """
    module, _, kind = name.partition(":")
    if module.split(".")[0] != "lessons_lib":
        raise ValueError(f"made_from must name a class of lessons_lib, got {name!r}")
    return getattr(importlib.import_module(module), kind)(**json.loads(state)).to_html()


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
