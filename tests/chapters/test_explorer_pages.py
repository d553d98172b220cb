"""Tests of explorer_pages and explore_links: the page of an explorer, and links in Markdown that set explorers."""

import io
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sphinx")

from docutils import nodes
from sample_book import sphinx_app
from sphinx.addnodes import pending_xref
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]
HTML = '<div class="explorer x-walk"><p class="x-question">Where &amp; when?</p></div>'


@pytest.fixture
def extension(monkeypatch):
    """Import a module of book/_ext by name."""
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    return import_module


def section(*, chapter="attention/matrix", html=HTML) -> nodes.section:
    """A section of the explorers' page, as Sphinx reads it."""
    link = nodes.reference("", "", nodes.Text("five layers"), refuri="#explore=walk&layers=5")
    text = nodes.paragraph("", "", nodes.Text("A walker steps from query to key, one layer further back each time. "))
    text += nodes.strong("", "Predict:")
    text += [nodes.Text(" after "), link, nodes.Text(", of "), nodes.math("", r"\sqrt{d_k}"), nodes.Text(" < 9? ")]
    if chapter:
        text += [pending_xref("", nodes.inline("", "Markov"), reftarget=chapter), nodes.Text(" is the chapter.")]
    return nodes.section("", nodes.title("", "Walk: a chain"), text, nodes.raw("", html, format="html"))


def test_page_takes_question_text_and_chapter_from_the_section(extension):
    page = extension("explorer_pages").explorer_page(section())
    assert (page.name, page.title, page.question, page.chapter) == (
        "walk",
        "Walk",
        "Where & when?",
        "book/attention/matrix",
    )
    assert page.about == (
        "A walker steps from query to key, one layer further back each time. <strong>Predict:</strong> after "
        '<a class="sets-explorer" href="#explore=walk&amp;layers=5">five layers</a>, of <i>√dₖ</i> &lt; 9?'
    )
    assert page.description == "A walker steps from query to key, one layer further back each time."
    short = nodes.paragraph("", "", nodes.Text("Five scores. "))
    assert extension("explorer_pages").described(short, "Where & when?") == "Five scores. Where & when?"
    assert (page.docname, page.anchor, page.picture) == ("explorers/walk", "walk", "cards/explorer-walk.png")


@pytest.mark.parametrize("fault", [{"chapter": ""}, {"html": '<div class="explorer x-walk"></div>'}])
def test_section_without_a_chapter_or_a_question_raises(extension, fault):
    with pytest.raises(ExtensionError, match=r"section Walk .* must show an explorer and name its chapter"):
        extension("explorer_pages").explorer_page(section(**fault))


def test_explorer_in_two_sections_raises(extension):
    doctree = nodes.section("", section(), section())
    env = SimpleNamespace(found_docs={"book/explorers"}, get_doctree=lambda _: doctree)
    with pytest.raises(ExtensionError, match="the explorer walk in one section, got 2"):
        extension("explorer_pages").explorer_pages(SimpleNamespace(env=env))


@pytest.mark.parametrize(
    ("base", "address"),
    [("", "walk.html"), ("https://a.org/b/", "https://a.org/b/explorers/walk.html")],
)
def test_embed_code_has_the_configured_address_or_a_relative_one(extension, base, address):
    pages = extension("explorer_pages")
    code = pages.embed_code(pages.explorer_page(section()), base)
    assert code.startswith(f'<iframe src="{address}?embed" title="Where &amp; when?" width="100%"')


def test_address_in_markdown_is_encoded(extension):
    encoded = extension("explore_links").encoded
    assert encoded('#explore=masks&parts=["block 2","%26 causal"]&n=8') == (
        "#explore=masks&parts=%5B%22block+2%22%2C%22%26+causal%22%5D&n=8"
    )
    assert encoded(encoded("#explore=scaling&scaling=1/sqrt%28d%29")) == "#explore=scaling&scaling=1%2Fsqrt%28d%29"


def test_runnable_edition_has_the_words_of_a_link_only(extension):
    without_links = extension("explore_links").without_links
    assert without_links('Then [*causal* $x$](<#explore=masks&parts=["causal"]>), [on](#explore=masks&n=3).') == (
        "Then *causal* $x$, on."
    )
    assert without_links("[a](#b) ![c](#explore=d)") == "[a](#b) ![c](#explore=d)"


@pytest.mark.filterwarnings("ignore")
def test_link_in_a_page_is_encoded_and_no_heading_is_looked_for(extension, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/index.md").write_text('# One\n\n[set $x$](<#explore=masks&parts=["a b"]>), [up](#one)\n')
    options = {"extensions": ["myst_nb", "explore_links"], "nb_execution_mode": "off", "html_theme": "basic"}
    options |= {"myst_enable_extensions": ["dollarmath"], "myst_heading_anchors": 2}
    said = io.StringIO()
    build = tmp_path / "build"
    sphinx_app(tmp_path / "source", build, options, warning=said).build()
    page = (build / "index.html").read_text(encoding="utf-8")
    assert 'class="sets-explorer reference internal" href="#explore=masks&amp;parts=%5B%22a+b%22%5D"' in page
    assert "cross-reference target" not in said.getvalue()
