"""Tests in a real JupyterLab: with a live kernel, traits and figure change each other."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import nbformat
import pytest

pytestmark = pytest.mark.browser

CELL = """
from lessons_lib.page.guess import predict_number
from lessons_lib.page.widgets import MasksExplorer, TemperatureExplorer
explorer = TemperatureExplorer(scores=[2.0, 1.0, 0.0], labels=["cat", "dog", "mat"])
seen = []
explorer.observe(lambda change: seen.append(change["new"]), "temperature")
masks = MasksExplorer(n=4)
display(explorer, masks)
guess = predict_number("How far?", 1, 1000, log=True)
"""

CONFIG = {
    "ServerApp": {"token": "test", "port": 0, "open_browser": False, "allow_root": True, "ip": "127.0.0.1"},
    "LabApp": {
        "expose_app_in_browser": True,
        "extension_manager": "readonly",
        "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "news_url": None,
    },
}

OPEN_AND_RUN = """async () => {
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error("no kernel in two minutes")), 120_000));
  await jupyterapp.restored;
  const notebook = await jupyterapp.commands.execute("docmanager:open", { path: "live.ipynb" });
  await Promise.race([Promise.all([notebook.context.ready, notebook.sessionContext.ready]), late]);
  await jupyterapp.commands.execute("notebook:run-all-cells");
}"""

IN_THE_KERNEL = """async (code) => {
  const future = jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code });
  let printed = "";
  future.onIOPub = ({ content }) => { printed += content.text ?? content.traceback?.join("") ?? ""; };
  await future.done;
  return printed;
}"""


@contextmanager
def jupyterlab(folder):
    """A JupyterLab of this environment with settings of its own; gives its address and always ends it."""
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run", "IPYTHONDIR": "ip"}
    own |= {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    environment = os.environ | {name: str(folder / path) for name, path in own.items()}
    (folder / "config").mkdir()
    (folder / "config" / "jupyter_lab_config.json").write_text(json.dumps(CONFIG))
    work = folder / "work"
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={work}"]
        server = subprocess.Popen(command, env=environment, cwd=work, stdout=log, stderr=log)
    try:
        yield wait_for_address(server, folder)
    finally:
        server.terminate()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_for_address(server, folder, seconds=600):
    """Read the address from the file that a Jupyter server leaves when it is ready."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        for file in (folder / "run").glob("jpserver-*.json"):
            if file.read_text().endswith("}"):
                return json.loads(file.read_text())["url"]
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{(folder / 'log').read_text()}")


@pytest.fixture
def notebook(browser, tmp_path):
    """The page of a notebook whose one cell has been run, and a function that runs code in its kernel."""
    (tmp_path / "work").mkdir()
    cells = [nbformat.v4.new_code_cell(CELL)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / "work" / "live.ipynb")
    with jupyterlab(tmp_path) as address:
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        asked = []
        here = (address, address.replace("http", "ws", 1), "data:", "blob:")
        context.route(lambda url: not url.startswith(here), lambda r: (asked.append(r.request.url), r.abort()))
        page = context.new_page()
        page.goto(f"{address}lab?token=test")
        page.wait_for_function("window.jupyterapp")
        page.evaluate(OPEN_AND_RUN)
        page.locator(".jp-OutputArea .explorer input[type=range]").first.wait_for()
        yield page, lambda code: page.evaluate(IN_THE_KERNEL, code)
        context.close()
        assert not asked


def until_it_prints(expected, run, expression, seconds=600):
    """Ask the kernel until it has heard what the browser sent."""
    deadline = time.monotonic() + seconds
    while (printed := run(f"print({expression})").strip()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return printed == expected


@pytest.mark.thorough
def test_python_and_reader_change_the_same_figure(notebook):
    page, run = notebook
    explorer = page.locator(".jp-OutputArea .explorer").first
    slider = page.get_by_label("Temperature T")
    bar = explorer.locator(".x-bar").first

    # the widget is shown, not the page that is stored beside it
    assert page.locator(".jp-OutputArea .explorer").count() == 2
    assert explorer.locator("script, style, .x-still").count() == 0
    assert slider.get_attribute("aria-valuetext") == "1.00"

    # a trait set in Python moves the picture
    before = bar.evaluate("b => b.style.width")
    run("explorer.temperature = 20.0")
    page.wait_for_function("([b, before]) => b.style.width !== before", arg=[bar.element_handle(), before])
    assert slider.get_attribute("aria-valuetext") == "20.00"

    # a slider moved in the browser changes the trait in Python, and whoever observes it is told
    slider.press("Home")
    assert until_it_prints("0.05", run, "explorer.temperature")
    assert run("print(seen[0], seen[-1])").split() == ["20.0", "0.05"]

    # arrow keys move the slider, not the notebook's cells
    for key in ("ArrowRight", "ArrowUp", "ArrowLeft"):
        slider.press(key)
    assert until_it_prints("0.0531", run, "explorer.temperature")
    assert page.locator(".jp-Cell.jp-mod-selected").count() == 1
    assert slider.evaluate("s => s === document.activeElement")

    # one entry of a list comes back as a list
    page.get_by_label("score of dog").press("End")
    assert until_it_prints("[2.0, 5.0, 0.0]", run, "explorer.scores")

    # what Python refuses is said in the kernel, and the figure keeps what it had
    assert "at most 20" in run("explorer.temperature = 21.0")
    assert slider.get_attribute("aria-valuetext") == "0.05"

    # the arrow keys are the matrix's own there, and what is painted is a tensor in Python
    page.get_by_role("gridcell", name="query 0, key 0:").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Space"):
        page.keyboard.press(key)
    assert until_it_prints("[True, True, True, False]", run, "masks.mask[1]")

    # a guess is set with the keys, which JupyterLab leaves alone, and compared when the kernel reveals
    card, setting = page.locator(".jp-OutputArea .g-card"), page.get_by_label("your guess")
    setting.press("Home")
    setting.press("ArrowUp")
    setting.press("Enter")
    assert until_it_prints("1", run, "guess.value")
    run("guess.reveal(16)")
    card.get_by_text("it is 16", exact=True).wait_for()
    assert card.locator(".g-verdict").inner_text() == "You said 1; it is 16, a factor of 16 too low."
    assert page.locator(".guess script, .guess .x-still").count() == 0
