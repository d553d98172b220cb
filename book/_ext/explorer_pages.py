"""A page for each explorer of the explorers' page: the figure alone, to be shared by a link or embedded in other pages.

A page has the explorer's question as its heading, the text of its section, a link to the chapter, a button that copies
a link with the explorer's state, and the line of HTML that embeds it. With ``?embed`` in its address it shows only the
explorer. A page contains neither the theme nor MathJax; ``templates/explorer.html`` is its template.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from catalogs import gettext, language_of_page
from docutils import nodes
from gallery import EXPLORERS, explorer_sections, output_html
from opengraph import (
    NO_TEXT,
    SHORTEST,
    alt_of,
    locale_of,
    plot_svg,
    sentences,
    short_title,
    shorten,
    site_address,
    tags,
    unicode_formula,
)
from social_cards import draw_card, write_card
from sphinx.addnodes import pending_xref
from sphinx.errors import ExtensionError
from sphinx.util import docname_join

FOLDER = "explorers"
TEMPLATE = "explorer.html"
HEIGHT = 700  # of the frame, in pixels, where the page's script has not measured the explorer
MARKUP = {nodes.emphasis: "em", nodes.strong: "strong", nodes.literal: "code"}


@dataclass(frozen=True)
class ExplorerPage:
    """What the page of one explorer shows."""

    name: str  # of the explorer's script, and of the page
    title: str
    question: str
    about: str  # HTML
    description: str
    chapter: str
    html: str

    @property
    def docname(self) -> str:
        """The page's name in the site."""
        return f"{FOLDER}/{self.name}"

    @property
    def anchor(self) -> str:
        """The name of the explorer's section on the explorers' page."""
        return self.title.lower()

    @property
    def picture(self) -> str:
        """The path of the page's picture among the static files."""
        return f"cards/explorer-{self.name}.png"


def explorer_page(section: nodes.section) -> ExplorerPage:
    """Return the page of the explorer in a section: a heading, a paragraph that names the chapter, the explorer.

    Raises:
        ExtensionError: if the section's text names no chapter, or the explorer has no question.
    """
    html = next(html for html in output_html(section) if 'class="explorer' in html)
    title = section[0].astext().partition(": ")[0]
    name = re.search(r'class="explorer x-(\w+)"', html)
    question = re.search(r'class="x-question">(.*?)</p>', html)
    links = list(section.findall(pending_xref))
    if not (name and question and links):
        raise ExtensionError(f"the section {title} of {EXPLORERS} must show an explorer and name its chapter")
    paragraphs = [node for node in section.children if isinstance(node, nodes.paragraph)]
    return ExplorerPage(
        name[1],
        title,
        unescape(question[1]),
        " ".join(inline_html(paragraph.children) for paragraph in paragraphs),
        described(paragraphs[0], unescape(question[1])),
        docname_join(EXPLORERS, links[-1]["reftarget"]),
        html,
    )


def inline_html(children: list[nodes.Node]) -> str:
    """Return the HTML of a paragraph without its last sentence, which only names the chapter."""
    last = next((i for i, node in enumerate(children) if isinstance(node, pending_xref)), len(children))
    return "".join(map(markup, children[:last])).strip()


def markup(node: nodes.Node) -> str:
    """Return the HTML of a piece of text, its formulas in Unicode characters."""
    if isinstance(node, nodes.Text):
        return escape(node)
    if isinstance(node, nodes.math):
        return f"<i>{escape(unicode_formula(node.astext()).replace(NO_TEXT, '…'))}</i>"
    inside = "".join(map(markup, node.children))
    if isinstance(node, nodes.reference):
        return f'<a class="sets-explorer" href="{escape(node["refuri"])}">{inside}</a>'
    tag = MARKUP.get(type(node))
    return f"<{tag}>{inside}</{tag}>" if tag else inside


def described(paragraph: nodes.paragraph, question: str) -> str:
    """Return the sentences before the first task, and the question if they are short, for search engines."""
    before = nodes.paragraph()
    for node in paragraph.children:
        if isinstance(node, nodes.strong):
            break
        before += node.deepcopy()
    plain = [sentence for sentence in sentences(before) if NO_TEXT not in sentence]
    text = shorten(" ".join(plain), r"(?<=[.?!]) ")
    return text if len(text) >= SHORTEST else f"{text} {question}".strip()


def explorer_pages(app) -> list[ExplorerPage]:
    """Return the pages of all explorers.

    Raises:
        ExtensionError: if two sections show the same explorer.
    """
    if EXPLORERS not in app.env.found_docs:
        return []
    pages = [explorer_page(section) for section in explorer_sections(app.env.get_doctree(EXPLORERS))]
    names = [page.name for page in pages]
    if again := next((name for name in names if names.count(name) > 1), None):
        raise ExtensionError(f"{EXPLORERS} must show the explorer {again} in one section, got {names.count(again)}")
    return pages


def collect_pages(app) -> Iterator[tuple[str, dict, str]]:
    """Give Sphinx the name, context and template of each page, unless only another page is built."""
    if app.builder.name != "html" or app.config.one_page not in ("", EXPLORERS):
        return
    for page in explorer_pages(app):
        title = short_title(app.env, page.chapter)
        code = embed_code(page, site_address(app.config))
        context = {"explorer": page, "title": page.question, "body": page.html, "favicon": favicon(app)}
        context["language"] = language_of_page(app.env, EXPLORERS)
        words = template_words(f'<a href="{address_of(app, page)}">{escape(title)}</a>')
        yield page.docname, {**context, "words": words, "embed_code": code}, TEMPLATE


def address_of(app, page: ExplorerPage) -> str:
    """Return the address of an explorer's chapter, relative to the explorer's page."""
    return escape(app.builder.get_relative_uri(page.docname, page.chapter))


def template_words(chapter: str) -> dict[str, str]:
    """Return the words of the template in the language of this build; ``chapter`` is the link to the chapter."""
    return {
        "all": gettext("All explorers"),
        "copy_link": gettext("Copy link"),
        "embed": gettext("Embed"),
        "shows": gettext("This line shows the explorer, as it is set now, in another page:"),
        "code": gettext("HTML that embeds the explorer"),
        "relative": gettext(
            "The address in it is relative, because this copy of the book has no address of its own: "
            "put yours before it."
        ),
        "copy_line": gettext("Copy the line"),
        "explains": gettext("The chapter {chapter} explains the figure.").format(chapter=chapter),
    }


def embed_code(page: ExplorerPage, base: str) -> str:
    """Return the HTML that embeds an explorer, with the site's address if it has one."""
    address = f"{base}{page.docname}.html" if base else f"{page.name}.html"
    frame = f'width="100%" height="{HEIGHT}" style="border: 0" loading="lazy"'
    return f'<iframe src="{escape(address)}?embed" title="{escape(page.question)}" {frame}></iframe>'


def favicon(app) -> str:
    """Return the path of the site's icon."""
    return f"_static/{Path(app.config.html_favicon).name}"


def add_tags(app, pagename, templatename, context, doctree) -> None:
    """Write the ``meta`` tags of an explorer's page, in place of those of a page without a source."""
    if not isinstance(page := context.get("explorer"), ExplorerPage):
        return
    base = site_address(app.config)
    context["metatags"] = tags(
        page.question,
        page.description,
        app.config.html_title,
        kind="article",
        address=base and f"{base}{page.docname}.html",
        picture=f"{base}_static/{page.picture}",
        alt=alt_of(app.env, page.question, page.chapter) if base else "",
        locale=locale_of(app.env, EXPLORERS),
    )


def draw_pictures(app, exception) -> None:
    """Draw the picture of each page: its question, beside the plot of its chapter."""
    if exception is not None or app.builder.name != "html" or app.config.one_page not in ("", EXPLORERS):
        return
    for page in explorer_pages(app):
        below = gettext("{book}: an explorer").format(book=app.config.html_title)
        picture = draw_card(page.title, page.question, below, plot_svg(app, page.chapter))
        write_card(Path(app.outdir, "_static", page.picture), picture)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.setup_extension("one_page")
    app.setup_extension("page_templates")
    app.connect("html-collect-pages", collect_pages)
    app.connect("html-page-context", add_tags, priority=700)  # after those of opengraph.py
    app.connect("build-finished", draw_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
