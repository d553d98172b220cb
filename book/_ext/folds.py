"""Fold the sections that a reader can skip: the topics under *Going deeper*, the table of claims and the sources.

In the notebook they are ordinary sections. On the page each of them is a ``<details>`` element, whose summary contains
the heading, the section's first paragraph (one sentence that says what the section shows) and its reading time. Folds
need no script; ``folds.js`` opens the fold that a link leads into.

The paragraph that answers a section's heading begins with ``**So:**`` and gets the class ``so``.
"""

from pathlib import Path

from catalogs import gettext, mark
from docutils import nodes
from times import Section, sections

DEEPER = "Going deeper"
WITHOUT_LEAD = ("Claims you will meet", "Sources")  # folded sections that need no first sentence
CONCLUSION = mark("So:")


def conclusions() -> tuple[str, str]:
    """Return the words that begin a conclusion, in English and in the language of this build."""
    return CONCLUSION, gettext(CONCLUSION)


def is_named(section: nodes.section, heading: str) -> bool:
    """Return whether a section has this heading in English: its anchor is the same in every language."""
    return section[0].astext() == heading or nodes.make_id(heading) in section["ids"]


class folded_section(nodes.section):
    """A section whose body is shown when the reader opens it."""


class lead(nodes.General, nodes.Element):
    """The first paragraph of a folded section, shown beside its heading."""


def fold(section: nodes.section, minutes: int) -> None:
    """Replace a section of the document by a folded section.

    Raises:
        ValueError: if a topic does not begin with a paragraph.
    """
    title, *body = section.children
    first = lead(minutes=minutes)
    if body and isinstance(body[0], nodes.paragraph):
        first += body.pop(0).children
    elif not any(is_named(section, heading) for heading in WITHOUT_LEAD):
        raise ValueError(f"the topic {title.astext()!r} must begin with a sentence that says what it shows")
    folded = folded_section("", title, first, *body, **section.attributes)
    folded.source, folded.line = section.source, section.line
    section.parent.replace(section, folded)


def fold_sections(app, doctree, docname) -> None:
    """Fold the sections that a reader can skip, and mark the paragraphs that answer a heading."""
    if app.builder.format != "html" or (path := Path(app.env.doc2path(docname))).suffix != ".ipynb":
        return
    for paragraph in doctree.findall(nodes.paragraph):
        first = next((child for child in paragraph.children if child.astext()), None)  # MyST begins with an empty text
        if isinstance(first, nodes.strong) and first.astext() in conclusions():
            paragraph["classes"].append("so")
    if not doctree.children or not isinstance(doctree[0], nodes.section):
        return
    chapters_sections = [one for one in doctree[0].children if isinstance(one, nodes.section)]
    if not any(is_named(one, DEEPER) for one in chapters_sections):
        return
    timed = sections(path)
    for section in chapters_sections:
        heading = next((one for one in WITHOUT_LEAD if is_named(section, one)), "")
        if is_named(section, DEEPER):
            topics = [one for one in section.children if isinstance(one, nodes.section)]
            for topic, minutes in zip(topics, topic_minutes(timed), strict=True):
                fold(topic, minutes)
        elif heading:
            fold(section, next(round(one.minutes) for one in timed if one.title == heading))


def topic_minutes(timed: list[Section]) -> list[int]:
    """Return the reading time of each topic under *Going deeper*, subsections included, in minutes."""
    found: list[float] = []
    inside = False
    for section in timed:
        if section.level <= 2:
            inside = section.title == DEEPER
        elif inside and section.level == 3:
            found.append(section.minutes)
        elif inside:
            found[-1] += section.minutes
    return [max(1, round(minutes)) for minutes in found]


def visit_folded_section(self, node) -> None:
    """Write the start of the section, its details element and its summary; the title follows."""
    self.visit_section(node)
    self.body.append('<details class="fold"><summary>')


def depart_folded_section(self, node) -> None:
    """Write the end of the details element and the section."""
    self.body.append("</details>")
    self.depart_section(node)


def visit_lead(self, node) -> None:
    """Write the start of the sentence below the heading."""
    self.body.append('<span class="fold-lead">')


def depart_lead(self, node) -> None:
    """Write the reading time and the end of the summary."""
    time = gettext("{minutes} min").format(minutes=node["minutes"])
    minutes = f'<span class="fold-minutes">{time}</span>' if node["minutes"] else ""
    self.body.append(f"</span>{minutes}</summary>")


def add_script(app, pagename, templatename, context, doctree) -> None:
    """Add ``folds.js`` to a page with a folded section."""
    if '<details class="fold">' in (context.get("body") or ""):
        app.add_js_file("folds.js", loading_method="defer")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_node(folded_section, html=(visit_folded_section, depart_folded_section))
    app.add_node(lead, html=(visit_lead, depart_lead))
    app.connect("doctree-resolved", fold_sections)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
