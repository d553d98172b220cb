"""Tests of the Open Graph tags and social cards, with an address of the repository and without."""

import re
import sys
from html import unescape
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("jupyter_book")

from build_book import ROOT

EXTENSIONS = ("repository_url", "social_cards", "index_redirect", "opengraph")
# In two pieces, so that ``make repository`` does not replace the address here.
PLACEHOLDER, OWN = "https://github.com/" + "OWNER/attention-book", "https://github.com/Someone/a-fork"
PUBLISHED = "https://someone.github.io/a-fork/"
INTRO = r"""# A book

$$ x $$

Every word asks $\frac{n}{2}$ others.
Then it *averages* what they say, as *a busy person* would & does [1]. What is `x`?

```{toctree}
:numbered: 1
scaling
```
"""
CHAPTER = r"""# Why divide by $\sqrt{d_k}$?

**You need** nothing.

**You will be able to** derive $1/\sqrt{d_k}$; say what $\operatorname{softmax}(x)$ is; tell a sound argument from one
that only sounds sound.
"""


@pytest.fixture
def extensions(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    yield
    for name in EXTENSIONS:
        sys.modules.pop(name, None)


@pytest.fixture
def site(extensions, tmp_path):
    """Build a book of two pages with a repository address."""
    from sphinx.application import Sphinx

    def built(address: str, **options) -> Path:
        source, target = tmp_path / "source", tmp_path / "html"
        source.mkdir()
        (source / "intro.md").write_text(INTRO)
        (source / "scaling.md").write_text(CHAPTER)
        (source / "icon.svg").write_text("<svg/>")
        options |= {"extensions": ["myst_nb", *EXTENSIONS[::-1]], "nb_execution_mode": "off"}
        options["myst_enable_extensions"] = ["dollarmath"]
        options["extensions"].remove("social_cards")
        options |= {"html_theme": "sphinx_book_theme", "html_theme_options": {"repository_url": address}}
        options |= {"root_doc": "intro", "html_title": "A book", "html_favicon": "icon.svg"}
        Sphinx(source, None, target, target / ".doctrees", "html", options, status=None, warning=None).build()
        return target

    return built


def said(page: Path) -> dict[str, str]:
    found = re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', page.read_text(encoding="utf-8"))
    return {name: unescape(text) for name, text in found}


@pytest.mark.filterwarnings("ignore")
def test_description_consists_of_sentences_of_the_page(site):
    html = site(PLACEHOLDER)
    chapter = said(html / "scaling.html")
    assert chapter["og:title"] == "Why divide by √dₖ?"
    sentence = "You will be able to derive 1/√dₖ; tell a sound argument from one that only sounds sound."
    assert chapter["description"] == chapter["og:description"] == sentence
    assert chapter["og:type"] == "article"
    intro = "Then it averages what they say, as “a busy person” would & does."
    assert said(html / "intro.html")["description"] == intro
    assert said(html / "index.html")["description"] == said(html / "genindex.html")["description"] == intro


def test_description_of_a_chapter_with_a_box_is_the_box(extensions):
    from docutils import nodes

    opengraph = import_module("opengraph")
    sentence = "Attention divides the dot product of a query and a key by the square root of their number of entries."
    box = nodes.admonition("", nodes.title("", "In short"), nodes.paragraph("", sentence), classes=["in-short"])
    other = nodes.admonition("", nodes.title("", "Note"), nodes.paragraph("", "Not this: " + sentence))
    section = nodes.section("", nodes.title("", "Scaling"), other, box, nodes.paragraph("", "Later: " + sentence))
    assert opengraph.description(section) == sentence


def test_description_ends_with_a_whole_sentence(extensions):
    from docutils import nodes

    opengraph = import_module("opengraph")
    first = "A quoted term stands inside a sentence, and a description must not end behind it." + " More words." * 5
    rest = nodes.Text(" is a token that" + " gets much weight" * 8 + ".")
    paragraph = nodes.paragraph("", f"{first} An ", nodes.emphasis("", "attention sink"), rest)
    assert opengraph.description(nodes.section("", paragraph)) == first


@pytest.mark.filterwarnings("ignore")
def test_tags_without_an_address_have_no_links(site):
    html = site(PLACEHOLDER)
    for page in html.glob("*.html"):
        assert not {"og:url", "og:image"} & set(said(page))
        assert "canonical" not in page.read_text(encoding="utf-8")
    assert not (html / "sitemap.xml").exists()
    assert not (html / "robots.txt").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "base"),
    [({}, PUBLISHED), ({"html_baseurl": "https://book.example.org"}, "https://book.example.org/")],
    ids=["derived", "set"],
)
def test_tags_with_an_address_have_url_and_picture(site, options, base):
    html = site(OWN, **options)
    for name, page, card in (
        ("intro.html", "intro.html", "book"),
        ("index.html", "intro.html", "book"),
        ("scaling.html", "scaling.html", "scaling"),
        ("genindex.html", "genindex.html", "book"),
    ):
        tags = said(html / name)
        assert tags["og:url"] == base + page
        assert tags["og:image"] == f"{base}_static/cards/{card}.png"
        assert (html / f"_static/cards/{card}.png").is_file()
        assert tags["twitter:card"] == "summary_large_image"
        assert "matrix" in tags["og:image:alt"]
        assert f'<link rel="canonical" href="{base}{page}"' in (html / name).read_text(encoding="utf-8")
    places = [one.text for one in ElementTree.parse(html / "sitemap.xml").iter() if one.tag.endswith("loc")]
    assert places == [f"{base}intro.html", f"{base}scaling.html"]
    assert f"Sitemap: {base}sitemap.xml\n" in (html / "robots.txt").read_text()


@pytest.mark.parametrize(
    ("repository", "pages"),
    [
        ("https://github.com/Someone/a-fork/", "https://someone.github.io/a-fork/"),
        ("https://github.com/Someone/someone.github.io", "https://someone.github.io/"),
    ],
)
def test_pages_address_is_that_of_github_pages(extensions, repository, pages):
    pages_address = import_module("repository_url").pages_address

    assert pages_address({"repository_url": repository}) == pages


@pytest.mark.parametrize(
    ("tex", "letters"),
    [("1/\\sqrt{d_k}", "1/√dₖ"), ("-\\infty", "−∞"), ("n", "n"), ("\\frac12", "\0"), ("d_\\text{model}", "\0")],  # noqa: RUF001
)
def test_unicode_formula_converts_short_formulas_only(extensions, tex, letters):
    unicode_formula = import_module("opengraph").unicode_formula

    assert unicode_formula(tex) == letters


def test_draw_card_is_reproducible_and_has_the_right_size(extensions):
    import io

    draw_card = import_module("social_cards").draw_card
    from PIL import Image

    card = draw_card("Scaling", "Why divide by the square root of the width?", "A book", "scaling")
    assert card == draw_card("Scaling", "Why divide by the square root of the width?", "A book", "scaling")
    assert card != draw_card("Scaling", "Why divide by the square root of the width?", "A book", "another")
    assert len(card) < 30_000
    image = Image.open(io.BytesIO(card))
    assert image.size == (1200, 630)
    for question in ("One", "word " * 40):
        text = Image.open(io.BytesIO(draw_card("S", question, "B"))).convert("L").crop((700, 0, 745, 630))
        assert text.getextrema() == (255, 255), "the question overlaps the matrix"
