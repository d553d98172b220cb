"""Tests of stored_outputs: pages show stored outputs, and explorers and guesses with the current scripts."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("anywidget")

from examples import NAMES, example
from sphinx.util.build_phase import BuildPhase

from lessons_lib.page.guess import GuessCard
from lessons_lib.page.widgets import Hero, TemperatureExplorer, assemble

ROOT = Path(__file__).resolve().parents[2]
GUESSES = {
    "choice": ("choice", "How many?", {"options": ["1", "4"]}),
    "number": ("number", "How much?", {"low": 0.5, "high": 10, "log": True, "unit": "nats"}),
    "curve": ("curve", "How?", {"x": [0, 1], "y": [0, 2], "log": "", "xlabel": "t", "ylabel": "loss"}),
}


@pytest.fixture
def stored_outputs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import stored_outputs

    stored_outputs.rendered.cache_clear()
    return stored_outputs


def output_of(shown) -> dict:
    """Return the output that a notebook file stores for a cell that ends with this object."""
    data, metadata = shown._repr_mimebundle_()
    return json.loads(json.dumps({"output_type": "execute_result", "data": data, "metadata": metadata}))


def shown_by(name: str):
    if name == "Hero":
        return Hero()
    return GuessCard(*GUESSES[name]) if name in GUESSES else example(name)


@pytest.mark.parametrize("name", [*NAMES, "Hero", *GUESSES])
def test_rerendered_restores_html_from_the_state(stored_outputs, name):
    made = shown_by(name)
    stale = output_of(made)
    stale["data"]["text/html"] = "of an older script"
    assert stored_outputs.rerendered(stale)["data"]["text/html"] == made.to_html()


def test_rerendered_uses_the_current_scripts(stored_outputs, monkeypatch, tmp_path):
    output = output_of(TemperatureExplorer(scores=[1.0, 2.0]))
    for path in assemble.STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        changed = text.replace("export default", 'console.log("changed");\nexport default')
        (tmp_path / path.name).write_text(changed if path.name == "temperature.js" else text, encoding="utf-8")
    monkeypatch.setattr(assemble, "STATIC", tmp_path)
    assert 'console.log("changed")' not in output["data"]["text/html"]
    assert 'console.log("changed")' in stored_outputs.rerendered(output)["data"]["text/html"]


def test_rerendered_keeps_other_outputs(stored_outputs):
    for output in ({"output_type": "stream", "text": "1"}, {"data": {"text/html": "<b>"}, "metadata": {}}):
        assert stored_outputs.rerendered(output) == output


def test_rendered_class_outside_of_the_library_raises(stored_outputs):
    with pytest.raises(ValueError, match="must name a class of lessons_lib, got 'os:system'"):
        stored_outputs.rendered("os:system", "{}")


@pytest.fixture
def app(tmp_path):
    """A stand-in for Sphinx with the attributes that the extension uses."""
    book = tmp_path / "book"
    env = SimpleNamespace(doc2path=lambda docname: str(tmp_path / f"{docname}.ipynb"))
    return SimpleNamespace(env=env, srcdir=tmp_path, outdir=book / "html", phase=BuildPhase.READING)


def notebook(code: str, *outputs: dict) -> dict:
    cell = {"cell_type": "code", "source": [code], "outputs": [*outputs], "execution_count": None, "metadata": {}}
    text = {"cell_type": "markdown", "source": "Words.", "metadata": {}}
    return {"cells": [text, cell], "metadata": {"language_info": {"name": "python"}}}


def read(stored_outputs, app, written: dict, ran: dict | None) -> dict:
    """Return the notebook that Sphinx reads if ``ran`` is its stored run; ``None`` means that it shows no outputs."""
    (app.outdir.parent).mkdir(exist_ok=True)
    (app.outdir.parent / "ran.ipynb").write_text(json.dumps(ran))
    shown = None if ran is None else str(app.outdir.parent / "ran.ipynb")
    (app.outdir.parent / "runs.json").write_text(json.dumps({"a.ipynb": shown}))
    source = [json.dumps(written)]
    stored_outputs.add_outputs(app, "a", source)
    return json.loads(source[0])


@pytest.fixture
def warned(stored_outputs, monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(stored_outputs.LOG, "warning", lambda text, location: said.append(f"{location}: {text}"))
    return said


RAN = notebook("x", {"output_type": "stream", "text": "1"})


def test_add_outputs_adds_the_outputs_of_the_run(stored_outputs, app, warned):
    result = read(stored_outputs, app, notebook("x"), RAN)
    assert result["cells"][1]["outputs"] == RAN["cells"][1]["outputs"]
    assert not warned


def test_add_outputs_run_of_other_code_is_a_warning(stored_outputs, app, warned):
    assert read(stored_outputs, app, notebook("y"), RAN) == notebook("y")
    assert warned == ["a: the code has changed since the notebook ran: build with make book"]


def test_add_outputs_missing_run_is_a_warning(stored_outputs, app, warned):
    source = [json.dumps(notebook("x"))]
    stored_outputs.add_outputs(app, "a", source)
    assert warned == ["a: there is no run of this notebook: build with make book"]


def test_add_outputs_keeps_notebooks_that_are_not_run(stored_outputs, app, warned):
    assert read(stored_outputs, app, notebook("x"), None) == notebook("x")
    assert not warned


def test_add_outputs_only_while_sphinx_reads(stored_outputs, app, warned):
    app.phase = BuildPhase.RESOLVING
    assert read(stored_outputs, app, notebook("x"), RAN) == notebook("x")
