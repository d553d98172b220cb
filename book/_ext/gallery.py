"""Pictures that lead on: the hero and the chapters as cards on the first page, the explorers as cards on theirs.

The cards are made of what is there: the chapters of ``_toc.yml`` and the sections of the explorers' page, each with its
drawing from ``thumbnails`` if there is one. So no new one can be forgotten.
"""

import re
from html import escape, unescape

from docutils import nodes
from sharing import chapters, subject_of
from sphinx.util.docutils import SphinxDirective
from thumbnails import thumbnail

from lessons_lib.widgets import Hero

EXPLORERS = "book/explorers"
# What each chapter asks, in a line; of one that is not here its heading is shown.
QUESTIONS = {
    "why-attention": "What does a memory of fixed size forget?",
    "information": "What is it that a softmax maximises?",
    "geometry": "What counts for more, a key's length or its angle?",
    "scaling": "Why divide by the square root of the width?",
    "matrix": "Where does the content of an output come from?",
    "masks": "Who may look at whom?",
    "multi-head": "What can several heads do that one cannot?",
    "positions": "How is a set of words told their order?",
    "dynamics": "How does training break, and what holds it?",
    "block": "What becomes of a word, besides looking around?",
    "train-gpt": "How good can a language model get, and how would you know?",
    "patterns": "You see a bright line in an attention map. What do you know?",
    "modern": "Of eight changes since 2017, which can one see?",
    "complexity": "At which length do pairs of words cost more than the words?",
    "sparse-and-linear": "What can a cheaper attention not do?",
    "flash": "Why is attention slow, if it computes so little?",
    "long-context": "A model trained at 64 reads 512. What breaks first?",
    "vision-and-language": "Pictures, captions, gaps, dates, spots: does attention beat what costs nothing?",
    "sequences-graphs-decisions": "Vowels, imports, sunspots, code, graphs, a corridor: who beats the cheap rival?",
}


class ShowHero(SphinxDirective):
    """The trained model that reads a sentence, as HTML."""

    def run(self) -> list[nodes.Node]:
        """Return it."""
        return [_html(Hero().to_html())]


class Chapters(nodes.General, nodes.Element):
    """The place of the chapters' cards, until their numbers are known."""


class ShowChapters(SphinxDirective):
    """A card for each numbered chapter of ``_toc.yml``, in its order."""

    def run(self) -> list[nodes.Node]:
        """Return the place."""
        return [Chapters()]


def fill(app, doctree, docname) -> None:
    """Put the chapters' cards in their place."""
    for place in list(doctree.findall(Chapters)):
        cards = []
        for number, name in enumerate(chapters(app.env), 1):
            stem, title = name.rsplit("/", 1)[-1], subject_of(app.env, name)
            question = QUESTIONS.get(stem) or app.env.titles[name].astext()
            address = app.builder.get_relative_uri(docname, name)
            cards.append(card(address, thumbnail(stem), f"{number}. {title}", question))
        place.replace_self(gallery("chapters", cards))


def lead_to_explorers(app, doctree) -> None:
    """Give each explorer of their page a short address, such as ``#clocks``, and put a card for each above them all.

    The name is what stands before the colon in the heading. A card asks what the explorer's own card asks, or says what
    stands behind the colon; it has the drawing of the explorer or of the chapter that the section leads to.
    """
    if app.env.docname != EXPLORERS:
        return
    sections = [
        section
        for section in doctree.findall(nodes.section)
        if any('class="explorer' in raw for raw in written(section))
    ]
    sections = [section for section in sections if not list(section.findall(nodes.section))[1:]]
    cards = []
    for section in sections:
        name, _, rest = section[0].astext().partition(": ")
        anchor = name.lower()
        section["ids"].append(anchor)
        found = re.search(r'class="x-question">(.*?)</p>', "".join(written(section)))
        question = unescape(found[1]) if found else (rest[:1].upper() + rest[1:]).replace("d_k", "dₖ")
        leads = [
            xref.get("reftarget", "").rsplit("/", 1)[-1]
            for xref in section.findall(lambda n: "reftarget" in getattr(n, "attributes", {}))
        ]
        drawing = next(filter(None, map(thumbnail, [anchor, *leads])), "")
        cards.append(card(f"#{anchor}", drawing, name, question))
    if sections:
        top = sections[0].parent
        below = next(i for i, child in enumerate(top) if child in sections or child.get("nb_element") == "cell_code")
        top.insert(below, gallery("explorers", cards))


def written(section: nodes.section) -> list[str]:
    """Return the HTML that a section's outputs hold."""
    return [raw.astext() for raw in section.findall(nodes.raw) if raw.get("format") == "html"]


def card(address: str, drawing: str, title: str, question: str) -> str:
    """Write one card, which is a link."""
    picture = drawing or "<i></i>"
    said = f"<b>{escape(title)}</b><span>{escape(question)}</span>"
    return f'<li><a href="{escape(address)}">{picture}{said}</a></li>'


def gallery(kind: str, cards: list[str]) -> nodes.raw:
    """Put cards side by side."""
    return _html(f'<ul class="gallery of-{kind}">{"".join(cards)}</ul>')


def leave_mathjax_out(app, pagename, templatename, context, doctree) -> None:
    """Load MathJax, half of a page's weight, on pages that hold a formula: Sphinx brings it to those above them too."""
    if 'class="math' not in (context.get("body") or ""):
        context["script_files"] = [
            script for script in context["script_files"] if "mathjax" not in str(getattr(script, "filename", ""))
        ]


def bring_styles(app, pagename, templatename, context, doctree) -> None:
    """Load the style sheet on pages that need it."""
    if re.search(r'class="(?:gallery|hero)\b', context.get("body") or ""):
        app.add_css_file("gallery.css")


def _html(text: str) -> nodes.raw:
    return nodes.raw("", text, format="html")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_node(Chapters)
    app.add_directive("hero", ShowHero)
    app.add_directive("chapters", ShowChapters)
    app.connect("doctree-read", lead_to_explorers)
    app.connect("doctree-resolved", fill)
    app.connect("html-page-context", bring_styles)
    app.connect("html-page-context", leave_mathjax_out, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
