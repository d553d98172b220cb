"""Tests of what a site says about itself in its head, and of its page 404, with an address and without.

Open Graph tags, social cards, structured data and the touch icon.
"""

import io
import json
import re
import sys
from html import unescape
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("jupyter_book")

from build_book import ROOT
from sample_book import sphinx_app

EXTENSIONS = (
    *("repository_url", "plot_svg", "social_cards", "index_redirect", "opengraph"),
    *("structured_data", "not_found", "touch_icon"),
)
# In two pieces, so that ``make repository`` does not replace the address here.
PLACEHOLDER, OWN = "https://github.com/" + "OWNER/attention-book", "https://github.com/Someone/a-fork"
PUBLISHED = "https://someone.github.io/a-fork/"
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<rect width="16" height="16" rx="3" fill="#0b3c5d"/>
<g fill="#fff"><rect x="4" y="4" width="4" height="8"/><rect x="8" y="4" width="4" height="8" opacity=".5"/></g>
</svg>"""
INTRO = r"""# A book

$$ x $$

Every word asks $\frac{n}{2}$ others.
Then it *averages* what they say, as *a busy person* would & does [1]. What is `x`?

```{toctree}
:numbered: 1
scaling
```

```{toctree}
notes
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


@pytest.fixture(scope="module")
def books() -> dict[str, Path]:
    """The books that were built, by their addresses and options."""
    return {}


@pytest.fixture
def site(extensions, books, tmp_path_factory):
    """Build a book of two pages with a repository address, once for each address and options."""

    def built(address: str, **options) -> Path:
        if (name := f"{address} {options}") in books:
            return books[name]
        source = tmp_path_factory.mktemp("source")
        target = books[name] = source.with_name(f"{source.name}-html")
        (source / "intro.md").write_text(INTRO)
        (source / "scaling.md").write_text(CHAPTER)
        (source / "notes.md").write_text("# Notes\n\nThey say in a sentence what the page is about, and go on.\n")
        (source / "icon.svg").write_text(ICON)
        options |= {"extensions": ["myst_nb", *EXTENSIONS[::-1]], "nb_execution_mode": "off"}
        options["myst_enable_extensions"] = ["dollarmath"]
        for module in ("social_cards", "plot_svg"):
            options["extensions"].remove(module)
        options |= {"html_theme": "sphinx_book_theme", "html_theme_options": {"repository_url": address}}
        options |= {"root_doc": "intro", "html_title": "A book", "html_favicon": "icon.svg"}
        sphinx_app(source, target, options).build()
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
        ("notes.html", "notes.html", "notes"),
    ):
        tags = said(html / name)
        assert tags["og:url"] == base + page
        assert tags["og:image"] == f"{base}_static/cards/{card}.png"
        assert (html / f"_static/cards/{card}.png").is_file()
        assert tags["twitter:card"] == "summary_large_image"
        assert "matrix" in tags["og:image:alt"]
        assert f'<link rel="canonical" href="{base}{page}"' in (html / name).read_text(encoding="utf-8")
    places = [one.text for one in ElementTree.parse(html / "sitemap.xml").iter() if one.tag.endswith("loc")]
    assert places == [f"{base}intro.html", f"{base}notes.html", f"{base}scaling.html"]
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


def plot() -> str:
    """A plot as the chapters store it."""
    from matplotlib.figure import Figure

    figure, written = Figure(figsize=(4.5, 2.8)), io.StringIO()
    figure.subplots().plot([0, 1, 4])
    figure.savefig(written, format="svg")
    return written.getvalue()


@pytest.mark.parametrize("svg", ["", plot()], ids=["weights", "plot"])
def test_draw_card_is_reproducible_and_has_the_right_size(extensions, svg):
    draw_card = import_module("social_cards").draw_card
    from PIL import Image

    card = draw_card("Scaling", "Why divide by the square root of the width?", "A book", svg)
    assert card == draw_card("Scaling", "Why divide by the square root of the width?", "A book", svg)
    assert len(card) < 30_000
    image = Image.open(io.BytesIO(card))
    assert image.size == (1200, 630)
    left, right = (500, 540) if svg else (700, 745)
    for question in ("One", "word " * 30, "FlashAttention: how can the same attention be faster?"):
        text = Image.open(io.BytesIO(draw_card("S", question, "B", svg))).convert("L").crop((left, 0, right, 630))
        assert text.getextrema() == (255, 255), "the question overlaps the picture"


def test_no_word_of_a_question_is_broken(extensions):
    cards = import_module("social_cards")
    for fits, most in ((cards.NARROW, 5), (cards.LINES, 4)):
        points, lines = cards._wrapped("FlashAttention: how can the same attention be faster?", fits, most)
        assert lines[0].startswith("FlashAttention:")
        assert points <= fits[0][1]


def test_every_chapter_has_a_plot_on_its_picture(extensions):
    import yaml

    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    numbered = [part for part in toc["parts"] if part.get("numbered")]
    files = {chapter["file"].rsplit("/", 1)[-1]: chapter["file"] for part in numbered for chapter in part["chapters"]}
    plots = import_module("social_cards").PLOTS
    assert list(plots) == list(files)
    for chapter, name in plots.items():
        cells = json.loads((ROOT / f"{files[chapter]}.ipynb").read_text(encoding="utf-8"))["cells"]
        [about] = [
            about
            for cell in cells
            if name == (about := cell["metadata"].get("mystnb", {})).get("figure", {}).get("name")
        ]
        assert about["image"]["alt"]


def test_plot_of_a_chapter_is_the_chosen_one_or_the_first(extensions):
    from docutils import nodes

    opengraph = import_module("opengraph")
    found = [("fig-drawn", ""), ("fig-ratios", "a.svg"), ("fig-photo", "a.png"), ("fig-entropy", "b.svg")]
    section = nodes.section()
    for name, uri in found:
        section += nodes.figure("", *([nodes.image(uri=uri)] if uri else []), names=[name])
    doctrees = {"book/scaling": section, "book/mine": section, "book/none": nodes.section()}

    class Environment:
        get_doctree = staticmethod(doctrees.get)

    env = Environment()
    assert opengraph.plot_of(env, "book/scaling")["uri"] == "b.svg"
    assert opengraph.plot_of(env, "book/mine")["uri"] == "a.svg"
    assert opengraph.plot_of(env, "book/none") is None


@pytest.mark.filterwarnings("ignore")
def test_build_in_a_test_leaves_the_defaults_of_sphinx(site):
    from sphinx.config import Config

    before = dict(Config.config_values["source_suffix"].default)
    site(PLACEHOLDER, project="not built before")
    assert Config.config_values["source_suffix"].default == before == {".rst": "restructuredtext"}


# --- structured data --------------------------------------------------------------------------------------------------

# Properties of schema.org for these types, among them those of Thing and CreativeWork.
PROPERTIES = {
    "Chapter": {"position", "isPartOf"},
    "LearningResource": {"learningResourceType", "teaches", "timeRequired"},
    "Book": {"bookFormat", "hasPart"},
    "Thing": {"name", "description", "url", "image"},
    "CreativeWork": {"inLanguage", "isAccessibleForFree", "license", "author"},
}


def structured(page: Path) -> list[dict]:
    found = re.findall(
        r'<script type="application/ld\+json">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL
    )
    return [json.loads(text) for text in found]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("address", "base"), [(PLACEHOLDER, ""), (OWN, PUBLISHED)], ids=["none", "published"])
def test_structured_data_describe_book_and_chapters(site, address, base):
    html = site(address)
    [book], [chapter] = structured(html / "intro.html"), structured(html / "scaling.html")
    for data in (book, chapter):
        known = set().union(*(PROPERTIES[kind] for kind in ("Thing", "CreativeWork", *data["@type"])))
        assert set(data) - known <= {"@context", "@type", "@id"}
        assert data["@context"] == "https://schema.org"
    assert book["@type"] == ["Book", "LearningResource"]
    assert book["name"] == chapter["isPartOf"]["name"] == "A book"
    assert [part["position"] for part in book["hasPart"]] == [chapter["position"]] == [1]
    assert chapter["@type"] == ["Chapter", "LearningResource"]
    assert chapter["name"] == "Why divide by √dₖ?"
    assert chapter["description"] == said(html / "scaling.html")["description"]
    assert book.get("url", "") == (base and f"{base}intro.html") == chapter["isPartOf"].get("url", "")
    assert chapter.get("url", "") == (base and f"{base}scaling.html")
    assert chapter.get("image", "") == (base and f"{base}_static/cards/scaling.png")
    assert structured(html / "notes.html") == structured(html / "genindex.html") == []


def test_structured_data_cannot_end_their_element(extensions):
    written = import_module("structured_data").script({"name": "</script><b>"})
    assert written.count("</script>") == 1
    assert json.loads(written.split(">", 1)[1].removesuffix("</script>")) == {"name": "</script><b>"}


# --- the touch icon ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_every_page_links_to_the_touch_icon(site):
    from PIL import Image

    html = site(PLACEHOLDER)
    for page in set(html.glob("*.html")) - {html / "index.html"}:  # which redirects
        assert '<link rel="apple-touch-icon" href="_static/touch-icon.png">' in page.read_text(encoding="utf-8")
    icon = Image.open(html / "_static/touch-icon.png")
    assert (icon.size, icon.mode) == ((180, 180), "RGB")
    assert icon.getpixel((0, 0)) == icon.getpixel((179, 179)) == (11, 60, 93), "the phone cuts the corners"
    assert icon.getpixel((60, 60)) == (255, 255, 255)
    half = icon.getpixel((100, 60))
    assert isinstance(half, tuple)
    assert all(abs(got - (255 + ground) / 2) < 2 for got, ground in zip(half, (11, 60, 93), strict=True))


def test_icon_with_another_shape_raises(extensions):
    circle = ICON.replace("<rect x", "<circle r")
    with pytest.raises(ValueError, match=r"must consist of rectangles .* got circle"):
        import_module("touch_icon").draw_icon(circle)


# --- the page 404 -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "base"),
    [({}, "/a-fork/"), ({"html_baseurl": "https://book.example.org"}, "/")],
    ids=["derived", "set"],
)
def test_links_of_the_page_404_are_absolute(site, options, base):
    html = site(OWN, **options)
    page = (html / "404.html").read_text(encoding="utf-8")
    links = re.findall(r'\s(?:href|src|action)="([^"#]+)"', page)
    own = [link.split("?")[0].split("#")[0] for link in links if not re.match("[a-z]+:", link)]
    assert len(own) > 10
    assert [link for link in own if not link.startswith(base)] == []
    names = {link.removeprefix(base) for link in own} - {"book/explorers.html"}  # this book has none
    assert [name for name in names if not (html / name).is_file()] == []
    assert f'data-content_root="{base}' in page
    assert '<meta name="robots" content="noindex">' in page
    assert "noindex" not in (html / "intro.html").read_text(encoding="utf-8")
    assert "404" not in (html / "sitemap.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ('<a href="book/a.html#b">', '<a href="/book-at/book/a.html#b">'),
        ('<html data-content_root="./">', '<html data-content_root="/book-at/">'),
        ('<form action="search.html">', '<form action="/book-at/search.html">'),
        ('<a href="#top">', '<a href="#top">'),
        ('<a href="https://example.org">', '<a href="https://example.org">'),
        ('<img src="data:image/png;base64,A">', '<img src="data:image/png;base64,A">'),
        ('<a href="/already">', '<a href="/already">'),
    ],
)
def test_with_absolute_links_changes_relative_links_only(extensions, link, wanted):
    assert import_module("not_found").with_absolute_links(link, "/book-at/") == wanted
