"""Tests of the runnable edition: a chapter opened in a real JupyterLab shows the text of the page."""

import json
import shutil
from pathlib import Path

import nbformat
import prose
import pytest
from built_site import HTML, ROOT
from test_live_kernel import jupyterlab

# One JupyterLab for all: the tests of a group share a process.
pytestmark = [pytest.mark.browser, pytest.mark.thorough, pytest.mark.xdist_group("the edition in JupyterLab")]

CHAPTER = "book/attention/scaling"
EVERY_CELL = {"windowingMode": "none"}  # JupyterLab otherwise draws what is in view
OPEN = """async (path) => {
  await jupyterapp.restored;
  const notebook = await jupyterapp.commands.execute("docmanager:open", { path });
  await Promise.all([notebook.context.ready, notebook.revealed]);
}"""
DRAWN = "() => [...document.querySelectorAll('.jp-RenderedMarkdown')].map((cell) => cell.innerHTML)"


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """The chapter in JupyterLab with all cells rendered and none executed."""
    folder = tmp_path_factory.mktemp("jupyterlab")
    settings = folder / "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(EVERY_CELL))
    (folder / "work").mkdir()  # a copy: JupyterLab leaves its own files beside what it opens
    shutil.copy(ROOT / f"_build/notebooks/{CHAPTER}.ipynb", folder / "work")
    with jupyterlab(folder) as address:
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        page = context.new_page()
        page.goto(f"{address}lab?token=test")
        page.wait_for_function("window.jupyterapp")
        page.evaluate(OPEN, Path(CHAPTER).name + ".ipynb")
        page.locator(".jp-RenderedMarkdown mjx-container").last.wait_for(state="attached")
        yield page
        context.close()


def test_edition_shows_the_text_of_the_page(opened):
    assert prose.markdown_text(opened.evaluate(DRAWN)) == prose.page(HTML / f"{CHAPTER}.html")


def test_formulas_are_set_and_numbered(opened):
    assert opened.locator("mjx-merror").count() == 0
    tagged = opened.locator(".jp-RenderedMarkdown mjx-container mjx-mlabeledtr").count()
    numbered = (HTML / f"{CHAPTER}.html").read_text(encoding="utf-8").count('class="eqno"')
    assert tagged == numbered > 3


def test_folded_cells_are_folded(opened):
    cells = nbformat.read(ROOT / f"{CHAPTER}.ipynb", as_version=4).cells
    folding = [cell for cell in cells if {"hide-cell", "hide-input"} & set(cell.metadata.get("tags", []))]
    assert opened.locator(".jp-InputPlaceholder").count() == len(folding) > 3


def test_a_link_to_a_section_jumps_there(opened):
    link = opened.locator(".jp-RenderedMarkdown table a[href^='#']").last
    section = opened.locator(f"[data-jupyter-id={link.get_attribute('href').removeprefix('#')}]")
    link.click()
    opened.wait_for_function("e => Math.abs(e.getBoundingClientRect().top - 100) < 200", arg=section.element_handle())
