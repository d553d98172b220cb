"""Tests of notebook_export: conversion of MyST to plain Markdown, and warnings for syntax without a rule."""

import io
import sys

import nbformat
import pytest

pytest.importorskip("jupyter_book")

from build_book import ROOT
from sample_book import sphinx_app

ADDRESS = "https://github.com/Someone/a-fork"
PAGES = "https://someone.github.io/a-fork/"
PAPER = r"::::{div} only-print\n(On paper.)\n::::"  # in JSON, as another extension writes it
PROSE = """\
# The first *page*

(here)=
It was {glue:text}`spread`, by {eq}`eq-sum` and {eq}`eq-other`; see {doc}`two`,
{doc}`the other <two>`, {doc}`plain`. Code stays: `{eq}`, ``a `$$` b``. Links:
[two](two.ipynb#eq-other), [words](plain.md), [out](https://example.org/a.md).
Jumps: [a heading](#what-is--then), [a place](#here).
Sets: [*causal*](<#explore=masks&parts=["causal"]>), [n](#explore=masks&n=3).

$$
a + b
$$ (eq-sum)

$$ not numbered $$

## What is $d_k$, then?

:::{note}
Mind {eq}`eq-sum`.

* and this
:::

```{admonition} On *trust*
:class: tip
Short.
```

```python
x = "{eq}`eq-sum`"
```

{.only-print}
On paper nothing moves.

:::{div} only-print
Nor here.
:::

PAPER

{.wide}
A wide paragraph, {eq}`eq-sum`.
"""
RESOLVED = f"""\
# The first *page*

<a id="here"></a>


It was 16.12, by [(1.1)](#eq-sum) and [(2.1)](two.ipynb#eq-other); see [Page two](two.ipynb),
[the other](two.ipynb), [In words]({PAGES}plain.html). Code stays: `{{eq}}`, ``a `$$` b``. Links:
[two](two.ipynb#eq-other), [words]({PAGES}plain.html), [out](https://example.org/a.md).
Jumps: [a heading](#what-is--then), [a place](#here).
Sets: *causal*, n.

<a id="eq-sum"></a>

$$
a + b \\tag{{1.1}}
$$

$$ not numbered $$

<a id="what-is--then"></a>

## What is $d_k$, then?

> **Note**
>
> Mind [(1.1)](#eq-sum).
>
> * and this

> **On *trust***
>
> Short.

```python
x = "{{eq}}`eq-sum`"
```







A wide paragraph, [(1.1)](#eq-sum).
"""


def code(source: str, tags=(), outputs=(), **metadata) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags), **metadata}, outputs=list(outputs))


def glued(name: str, text: str) -> nbformat.NotebookNode:
    prefix = "application/papermill.record/"
    about = {"scrapbook": {"name": name, "mime_prefix": prefix}}
    return nbformat.v4.new_output("display_data", {f"{prefix}text/plain": text}, metadata=about)


@pytest.fixture
def edition(tmp_path, monkeypatch):
    """Build a small book of two notebooks and one page; return the first exported notebook, and the warnings."""
    source = tmp_path / "source"
    source.mkdir()
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}

    def write(name: str, cells: list) -> None:
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), source / name)

    def built(cells: list, builder: str = "runnable") -> tuple[nbformat.NotebookNode, str]:
        (source / "index.md").write_text("# All\n\n```{toctree}\n:numbered: 1\none\ntwo\nplain\n```\n")
        (source / "plain.md").write_text("# In words\n")
        write("two.ipynb", [nbformat.v4.new_markdown_cell("# Page two\n\n$$ c $$ (eq-other)")])
        write("one.ipynb", cells)
        options = {"extensions": ["myst_nb", "notebook_export"], "nb_execution_mode": "off", "numfig": True}
        options |= {"html_theme": "basic", "html_theme_options": {"repository_url": ADDRESS}, "html_title": "A book"}
        options |= {"myst_enable_extensions": ["attrs_block", "colon_fence", "dollarmath"], "myst_heading_anchors": 3}
        said = io.StringIO()
        target = tmp_path / "build" / builder
        app = sphinx_app(source, target, options, builder, said)
        app.connect("source-read", lambda app, docname, text: text.append(text.pop().replace("PAPER", PAPER)))
        app.build()
        return nbformat.read(tmp_path / "build/notebooks/one.ipynb", as_version=4), said.getvalue()

    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    yield built
    sys.modules.pop("notebook_export", None)


@pytest.mark.filterwarnings("ignore")
def test_export_replaces_only_myst_syntax(edition):
    cells = [nbformat.v4.new_markdown_cell(PROSE), code("glue()", outputs=[glued("spread", "'16.12'")])]
    written, said = edition(cells)
    assert written.cells[0].source.rstrip() == RESOLVED.rstrip()
    assert "runnable edition" not in said
    assert f"({PAGES}one.html)" in written.cells[1].source
    assert written.cells[2].outputs == []


@pytest.mark.filterwarnings("ignore")
def test_export_keeps_code_and_converts_tags(edition):
    figure = {"figure": {"caption": "The sum of {eq}`eq-sum`.", "name": "fig-sum"}, "image": {"alt": "Two dots."}}
    cells = [nbformat.v4.new_markdown_cell("# One\n\n$$ s $$ (eq-sum)"), code("install", ["remove-cell"])]
    cells += [code("fold", ["hide-input", "raises-exception"]), code("draw", outputs=[picture()], mystnb=figure)]
    written, said = edition(cells)
    given = [cell for cell in written.cells if cell.cell_type == "code"]
    assert [(cell.id, cell.source) for cell in given] == [(cell.id, cell.source) for cell in cells[1:]]
    assert [cell.metadata.get("tags", []) for cell in given] == [[], ["raises-exception"], []]
    assert [cell.metadata.get("jupyter") for cell in given] == [None, {"source_hidden": True}, None]
    caption, *in_words = written.cells[-1].source.split("\n\n")
    assert caption == "**Fig. 1.1.** The sum of [(1.1)](#eq-sum)."
    assert in_words == ["<details><summary>The figure in words</summary>", "Two dots.", "</details>"]
    assert "runnable edition" not in said


def picture() -> nbformat.NotebookNode:
    dot = "<svg xmlns='http://www.w3.org/2000/svg'/>"
    return nbformat.v4.new_output("display_data", {"image/svg+xml": dot, "text/plain": "<Figure>"})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("builder", ["html", "runnable"])
@pytest.mark.parametrize(
    ("prose", "complaint"),
    [
        ("An {abbr}`MHA (attention)`.", "the role abbr"),
        ("A {glue:text}`lost` value.", "the value lost"),
        ("By {eq}`eq-lost`.", "the equation eq-lost"),
        ("See {doc}`lost`.", "the page lost"),
        ("[There](#nowhere).", "the link to #nowhere"),
        (":::{dropdown} More\nText.\n:::", "the directive dropdown"),
    ],
)
def test_export_unknown_syntax_is_a_warning(edition, builder, prose, complaint):
    _, said = edition([nbformat.v4.new_markdown_cell(f"# One\n\n{prose}")], builder)
    assert f"runnable edition: no rule for {complaint}" in said


@pytest.mark.filterwarnings("ignore")
def test_export_caption_without_a_name_is_a_warning(edition):
    figure = {"figure": {"caption": "The sum."}}
    _, said = edition([nbformat.v4.new_markdown_cell("# One"), code("draw", outputs=[picture()], mystnb=figure)])
    assert "runnable edition: no rule for a figure without a name or number: The sum." in said


@pytest.mark.filterwarnings("ignore")
def test_export_does_not_change_hand_outs(edition):
    locked = {"grade": True, "grade_id": "a", "locked": True, "schema_version": 3, "solution": False}
    cells = [nbformat.v4.new_markdown_cell("# One\n\n[two](two.ipynb)"), code("install", ["remove-cell"])]
    cells += [code("check()", ["raises-exception"], nbgrader=locked)]
    written, _ = edition(cells)
    assert written.cells == cells


def test_solutions_site_has_no_runnable_edition(tmp_path):
    import yaml
    from build_solutions import write_sources

    write_sources(tmp_path)
    settings = yaml.safe_load((tmp_path / "_config.yml").read_text())
    assert "notebook_export" not in settings["sphinx"]["local_extensions"]
    assert "notebook_export" in yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["local_extensions"]


def test_launch_buttons_use_the_published_branch():
    import yaml

    branch = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["branch"]
    assert f" branch={branch}\n" in (ROOT / "tools/publish_notebooks.sh").read_text()
