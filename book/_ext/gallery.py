"""The galleries: the hero and the chapters' cards on the first page, and the explorers' cards on the explorers' page.

Cards are generated from the chapters in ``_toc.yml`` and the sections of the explorers' page, each with its drawing
from ``thumbnails`` if there is one, so that a new chapter or explorer cannot be forgotten.
"""

import re
from html import escape, unescape

from catalogs import gettext, mark
from docutils import nodes
from opengraph import chapters, short_title
from sphinx.util.docutils import SphinxDirective
from thumbnails import thumbnail

from lessons_lib.page.widgets import Hero

EXPLORERS = "book/explorers"
OWN_PAGE = '<div class="own-page"><a href="{address}">{words}</a></div>'
# The question of each chapter, in one line. A chapter that is not here is shown with its heading.
QUESTIONS = {
    "why-attention": mark("How does a word collect information from the others?"),
    "information": mark("Which quantity does a softmax maximise?"),
    "geometry": mark("Which matters more, a key's length or its angle?"),
    "scaling": mark("Why divide by the square root of the width?"),
    "matrix": mark("Where does the content of an output come from?"),
    "masks": mark("Which keys may each query attend to?"),
    "multi-head": mark("Why several heads instead of one?"),
    "positions": mark("How does attention know the order of the words?"),
    "dynamics": mark("How does training fail, and what keeps it stable?"),
    "block": mark("What do attention, norms and the feed-forward layer each do?"),
    "train-gpt": mark("How good can a language model get, and how would you know?"),
    "patterns": mark("What does an attention map prove about a head?"),
    "modern": mark("Which of eight changes since 2017 make a measurable difference?"),
    "complexity": mark("At which length do pairs of words cost more than the words?"),
    "sparse-and-linear": mark("What can a cheaper attention not do?"),
    "flash": mark("How can exact attention be faster without fewer operations?"),
    "long-context": mark("Why does a model fail on texts longer than those it was trained on?"),
    "vision-and-language": mark("What does attention do in ViT, CLIP, BERT and translation?"),
    "sequences-graphs-decisions": mark("Where does attention beat each field's own method?"),
}


class ShowHero(SphinxDirective):
    """The directive ``hero``: the figure of a trained model that reads a sentence."""

    def run(self) -> list[nodes.Node]:
        """Return the hero's HTML."""
        return [_html(Hero().to_html())]


class Chapters(nodes.General, nodes.Element):
    """A placeholder for the chapters' cards, until the chapters' numbers are known."""


class ShowChapters(SphinxDirective):
    """The directive ``chapters``: a card for each numbered chapter of ``_toc.yml``, in its order."""

    def run(self) -> list[nodes.Node]:
        """Return the placeholder."""
        return [Chapters()]


def add_chapter_cards(app, doctree, docname) -> None:
    """Replace the placeholder by the chapters' cards."""
    for place in list(doctree.findall(Chapters)):
        cards = []
        for number, name in enumerate(chapters(app.env), 1):
            stem, title = name.rsplit("/", 1)[-1], short_title(app.env, name)
            question = gettext(QUESTIONS.get(stem, "")) or app.env.titles[name].astext()
            address = app.builder.get_relative_uri(docname, name)
            cards.append(card(address, thumbnail(stem), f"{number}. {title}", question))
        place.replace_self(gallery("chapters", cards))


def add_explorer_cards(app, doctree) -> None:
    """Give each explorer on their page a short anchor, such as ``#clocks``, and put a card for each at the top.

    The explorer's name is the part of the heading before the colon. A card shows the question on the explorer's own
    card, or else the part of the heading after the colon. Its drawing is that of the explorer, or else of the chapter
    to which the section links.
    """
    if app.env.docname != EXPLORERS:
        return
    sections = explorer_sections(doctree)
    cards = []
    for section in sections:
        name, _, rest = section[0].astext().partition(": ")
        anchor = name.lower()
        section["ids"].append(anchor)
        found = re.search(r'class="x-question">(.*?)</p>', "".join(output_html(section)))
        question = unescape(found[1]) if found else (rest[:1].upper() + rest[1:]).replace("d_k", "dₖ")
        linked = [
            xref.get("reftarget", "").rsplit("/", 1)[-1]
            for xref in section.findall(lambda n: "reftarget" in getattr(n, "attributes", {}))
        ]
        drawing = next(filter(None, map(thumbnail, [anchor, *linked])), "")
        cards.append(card(f"#{anchor}", drawing, name, question))
        script = re.search(r'class="explorer x-(\w+)', "".join(output_html(section)))
        if script:
            words = escape(gettext("Open this explorer alone, to share or embed it"))
            section.append(_html(OWN_PAGE.format(address=f"../explorers/{script[1]}.html", words=words)))
    if sections:
        top = sections[0].parent
        below = next(i for i, child in enumerate(top) if child in sections or child.get("nb_element") == "cell_code")
        top.insert(below, gallery("explorers", cards))


def explorer_sections(doctree: nodes.document) -> list[nodes.section]:
    """Return the innermost sections that show an explorer."""
    sections = [
        section
        for section in doctree.findall(nodes.section)
        if any('class="explorer' in raw for raw in output_html(section))
    ]
    return [section for section in sections if not list(section.findall(nodes.section))[1:]]


def output_html(section: nodes.section) -> list[str]:
    """Return the HTML outputs in a section."""
    return [raw.astext() for raw in section.findall(nodes.raw) if raw.get("format") == "html"]


def card(address: str, drawing: str, title: str, question: str) -> str:
    """Return the HTML of one card, which is a link."""
    picture = drawing or "<i></i>"
    text = f"<b>{escape(title)}</b><span>{escape(question)}</span>"
    return f'<li><a href="{escape(address)}">{picture}{text}</a></li>'


def gallery(kind: str, cards: list[str]) -> nodes.raw:
    """Return the list of cards, which the style sheet shows side by side."""
    return _html(f'<ul class="gallery of-{kind}">{"".join(cards)}</ul>')


def add_stylesheet(app, pagename, templatename, context, doctree) -> None:
    """Load the style sheet on pages with a gallery or the hero."""
    if re.search(r'class="(?:gallery|hero)\b', context.get("body") or ""):
        app.add_css_file("gallery.css")


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_node(Chapters)
    app.add_directive("hero", ShowHero)
    app.add_directive("chapters", ShowChapters)
    app.connect("doctree-read", add_explorer_cards)
    app.connect("doctree-resolved", add_chapter_cards)
    app.connect("html-page-context", add_stylesheet)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
