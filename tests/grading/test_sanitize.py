"""Tests of grading.sanitize: scripts in a submission do not run in Formgrader, and harmless content stays readable."""

import nbformat
import pytest
from nbformat import NotebookNode

pytest.importorskip("nbgrader")
from nbconvert.exporters import HTMLExporter
from nbgrader.server_extensions.formgrader import handlers

from grading.sanitize import Sanitize, clean_html, clean_markdown, clean_output

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PLANT = "window.planted = 1"
TEXTS = {
    "script": f"<script>{PLANT}</script>",
    "picture": f"<img src=nope onerror='{PLANT}'>",
    "in a paragraph": f"text <img src=nope onerror='{PLANT}'> text",
    "svg": f"<svg onload='{PLANT}'></svg>",
    "frame": f"<iframe srcdoc='<script>parent.{PLANT}</script>'></iframe>",
    "link": f"[press](javascript:{PLANT.replace(' ', '')})",
    "link in other letters": f"[press](&#106;aVascript:{PLANT.replace(' ', '')})",
    "link by reference": f"[press]\n\n[press]: javascript:{PLANT.replace(' ', '')}",
    "bare link": f"<javascript:{PLANT.replace(' ', '')}>",
    "link in html": f"<a href='javascript:{PLANT}'>press</a>",
    "button": f"<button onclick='{PLANT}'>press</button>",
    "form": f"<form action='javascript:{PLANT}'><input type=submit class=press></form>",
    "code that ends": f"```html\n</pre><script>{PLANT}</script>\n```",
    "in a formula": f"$$\\text{{<img src=nope onerror='{PLANT}'>}}$$",
    "math": f"<math><mtext><img src=nope onerror='{PLANT}'></mtext></math>",
    "unfinished": f"<img src=nope onerror='{PLANT}' ",
    "comment": f"<!-- --><script>{PLANT}</script><!-- -->",
    "twice": f"&lt;script&gt;{PLANT}&lt;/script&gt;",
}
OUTPUTS = {
    "html": {"text/html": f"<script>{PLANT}</script><img src=nope onerror='{PLANT}'>"},
    "script": {"application/javascript": PLANT},
    "svg": {"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg' onload='{PLANT}'></svg>"},
    "markdown": {"text/markdown": f"<img src=nope onerror='{PLANT}'>"},
    "latex": {"text/latex": f"<img src=nope onerror='{PLANT}'>"},
    "picture": {"image/png": f"x\" onerror='{PLANT}' y=\""},
    "widget": {"application/vnd.jupyter.widget-view+json": {"model_id": f"</script><script>{PLANT}</script>"}},
}


PRESS = """
for (const one of document.querySelectorAll("#notebook-container :is(a, button, .press), body > .jp-Notebook a")) {
  if (one.tagName !== "A" || one.protocol === "javascript:") one.click();
}
"""


def as_formgrader_shows(path_or_notebook) -> str:
    exporter = HTMLExporter(template_name="formgrade", extra_template_basedirs=[handlers.template_path])
    resources = {"base_url": "", "index": 0, "total": 1, "notebook_id": "x", "notebook_path": "x"}
    if isinstance(path_or_notebook, NotebookNode):
        return exporter.from_notebook_node(path_or_notebook, resources)[0]
    return exporter.from_filename(str(path_or_notebook), resources)[0]


@pytest.fixture
def opened(browser):
    """Open a page in Chromium, click all links and buttons, and return its text; no script may have run."""

    def open_and_press(html: str, *, harmless: bool = True) -> str:
        page = browser.new_page()
        page.route("**/*", lambda route: route.abort())
        page.set_content(html, wait_until="load")
        page.evaluate(PRESS)
        page.wait_for_timeout(50)
        assert page.evaluate("window.planted === undefined") == harmless
        text = page.inner_text("body")
        page.close()
        return text

    return open_and_press


def notebook(kind: str, what, *, cleaned: bool) -> NotebookNode:
    if kind == "output":
        cell = nbformat.v4.new_code_cell("1")
        cell.outputs = [nbformat.v4.new_output("display_data", what)]
    else:
        cell = (nbformat.v4.new_raw_cell if kind == "raw" else nbformat.v4.new_markdown_cell)(what)
    cell.metadata["tags"] = [f"<script>{PLANT}</script>"]
    made = nbformat.v4.new_notebook(cells=[cell])
    return Sanitize().preprocess(made, {})[0] if cleaned else made


@pytest.mark.browser
def test_sanitized_text_and_outputs_run_no_scripts(opened):
    cells = [notebook("text", text, cleaned=True).cells[0] for text in TEXTS.values()]
    cells += [notebook("raw", text, cleaned=True).cells[0] for text in TEXTS.values()]
    cells += [notebook("output", data, cleaned=True).cells[0] for data in OUTPUTS.values()]
    for i, cell in enumerate(cells):
        cell.id = f"cell-{i}"
    shown = opened(as_formgrader_shows(nbformat.v4.new_notebook(cells=cells)))
    assert shown.count(PLANT) >= len(TEXTS) / 2, "removed tags must be shown as text"


@pytest.mark.browser
@pytest.mark.parametrize(
    ("kind", "what"),
    [("text", TEXTS["picture"]), ("text", TEXTS["link"]), ("output", OUTPUTS["html"])],
)
def test_scripts_run_without_sanitizing(opened, kind, what):
    opened(as_formgrader_shows(notebook(kind, what, cleaned=False)), harmless=False)


def test_clean_markdown_keeps_harmless_content():
    text = "$a<b$, `x<y`, **bold**, [web](https://x.org/?a=b&c=d)\n\n|a|b|\n|-|-|\n|1|2|\n\n```\na\n\n\nb\n```"
    html = clean_markdown(text)
    assert "\n" not in html
    for part in ("$a&lt;b$", "x&lt;y", "<strong>bold</strong>", 'href="https://x.org/?a=b&amp;c=d"', "<td>2</td>"):
        assert part in html
    assert "a&#10;&#10;&#10;b" in html


def test_clean_markdown_keeps_attachments_and_shows_missing_ones_as_text():
    attached = {"a.png": {"image/png": PIXEL}}
    assert f'src="data:image/png;base64,{PIXEL}"' in clean_markdown("![a](attachment:a.png)", attached)
    assert clean_markdown("![a](attachment:a.png)") == "<div><pre>![a](attachment:a.png)</pre></div>"


def test_clean_output_keeps_images_and_text():
    data = {"image/png": PIXEL, "text/plain": "<Figure>", "text/html": "<table><tr><td onclick=x>1</td></tr></table>"}
    kept = clean_output(nbformat.v4.new_output("display_data", data)).data
    assert kept["image/png"] == PIXEL
    assert kept["text/plain"] == "<Figure>"
    assert kept["text/html"] == "<table><tbody><tr><td>1</td></tr></tbody></table>"
    left_out = clean_output(nbformat.v4.new_output("display_data", {"application/javascript": "1"})).data
    assert left_out == {"text/plain": "(left out: application/javascript)"}


@pytest.mark.parametrize("link", ["data:text/html,x", "javascript:x", " javascript:x", "vbscript:x", "//x.org", "x\ny"])
def test_clean_html_removes_links_outside_of_the_web(link):
    assert clean_html(f'<a href="{link}">x</a>') == "<a>x</a>"


def test_sanitize_keeps_locked_cells():
    made = notebook("text", "<details>ours</details>", cleaned=False)
    about = {"grade": False, "solution": False, "locked": True, "task": False, "grade_id": "a", "schema_version": 3}
    made.cells[0].metadata["nbgrader"] = about
    assert Sanitize().preprocess(made, {})[0].cells[0].source == "<details>ours</details>"
