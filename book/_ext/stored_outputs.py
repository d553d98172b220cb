"""Add the outputs of a notebook's stored run to its page, so that nothing is executed while pages are built.

``_build/runs.json`` names the run of each notebook (``tools/runs.py``). The HTML of explorers and guesses is rendered
again from the state in their output, so that a page has the current scripts and styles without another run. They are
rendered in the language of the run, which is English on a page that is not translated.
"""

import importlib
import json
from functools import cache
from pathlib import Path

from sphinx.util import logging
from sphinx.util.build_phase import BuildPhase

from lessons_lib.page.language import in_language

LOG = logging.getLogger(__name__)


def add_outputs(app, docname, source) -> None:
    """Add the outputs of its stored run to the notebook that Sphinx reads."""
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
    """Add the outputs of the run ``ran`` to the notebook, in place; return False if the run has other code."""
    cells, cells_that_ran = ([c for c in n["cells"] if c["cell_type"] == "code"] for n in (notebook, ran))
    if ["".join(c["source"]) for c in cells] != ["".join(c["source"]) for c in cells_that_ran]:
        return False
    language = ran["metadata"].get("language", "en")
    for cell, cell_that_ran in zip(cells, cells_that_ran, strict=True):
        cell["outputs"] = [rerendered(output, language) for output in cell_that_ran["outputs"]]
        cell["execution_count"] = cell_that_ran["execution_count"]
    notebook["metadata"]["language_info"] = ran["metadata"].get("language_info", {"name": "python"})
    return True


def rerendered(output: dict, language: str = "en") -> dict:
    """Return the output, with the HTML of an explorer or a guess rendered again from its state in a language."""
    made_from = output.get("metadata", {}).get("text/html", {}).get("made_from")
    if made_from is None:
        return output
    html = rendered(made_from["class"], made_from["state"], language)
    return {**output, "data": {**output["data"], "text/html": html}}


@cache
def rendered(name: str, state: str, language: str = "en") -> str:
    """Return the HTML of a class of the library in a language, given its state as JSON.

    Raises:
        ValueError: if the class is not in the library.
    """
    module, _, kind = name.partition(":")
    if module.split(".")[0] != "lessons_lib":
        raise ValueError(f"made_from must name a class of lessons_lib, got {name!r}")
    with in_language(language):
        return getattr(importlib.import_module(module), kind)(**json.loads(state)).to_html()


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", add_outputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
