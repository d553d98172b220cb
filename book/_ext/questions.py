"""The page *Questions people ask*: short answers, each with a formula or a drawing that is copied from its chapter.

An entry of the page is a heading, which is the question, and a block of this form::

    :::{question} why-sqrt-d-k
    :section: attention/scaling#how-large-is-a-dot-product
    :formula: eq-variance
    :where: $d_k$ is the number of entries.
    :try: scaling&width=1024 | Set the width to 1024.
    The answer, in at most five sentences.
    :::

``why-sqrt-d-k`` is the anchor of the question. ``section`` is the section of a chapter to which the answer links.
``formula`` is the label of a formula in a chapter, ``box`` for the formula of the box *In short* of that chapter, or
TeX; ``where`` says what its symbols are. ``figure`` is the name of a drawing in a chapter, shown with its caption.
``try`` sets an explorer by the fragment of an address. In the answer, ``{so}`attention/scaling#...``` becomes the last
paragraph of a section, without *So:*, and ``{number}`attention/scaling largest``` a number that a chapter glues.

Each question also has a small page of its own, such as ``questions/why-sqrt-d-k.html``, for chat programs and search
engines: it has a title, a description and a picture, and redirects to the question.
"""

import ast
import html
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import catalogs
import drawing_words
from catalogs import gettext
from chapters import chapters, in_language, markdown_cells, page_filler
from docutils import nodes
from folds import conclusions
from formulas import labelled_formulas, without_stop
from notebook_export import slug_of
from opengraph import alt_of, description, locale_of, plot_svg, site_address, tags
from social_cards import draw_card, write_card
from summaries import LOCAL_LINK, box

PAGE = "book/questions"
MARK = "<!-- questions -->"
ENTRY = re.compile(
    r"^### (?P<title>.+)\n\n:::\{question\} (?P<anchor>[\w-]+)\n(?P<options>(?::\w+: .+\n)+)(?P<answer>.+)\n:::$",
    re.MULTILINE,
)
OPTION = re.compile(r"^:(\w+): (.+)$", re.MULTILINE)
OPTIONS = {"section", "formula", "figure", "where", "try"}
SO = re.compile(r"\{so\}`([^`]+)`")
NUMBER = re.compile(r"\{number\}`([^` ]+) ([^`]+)`")
HEADING = re.compile(r"^(#{2,4}) (.+)$", re.MULTILINE)
DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
STYLE = re.compile(r'<style data-part="drawing-css">.*?</style>', re.DOTALL)
SHARED = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<title>{title} — {book}</title>
{tags}{canonical}<link rel="icon" href="{icon}">
<meta http-equiv="refresh" content="0; url={target}">
<article>
<h1>{title}</h1>
<p>{answer}</p>
<p><a href="{target}">{to_answer}</a></p>
</article>
</html>
"""


class Question(NamedTuple):
    """One entry of the page, as it is written there."""

    title: str
    anchor: str
    options: dict[str, str]
    answer: str


class Drawing(NamedTuple):
    """A drawing of a chapter: its HTML, its caption in Markdown, and the path of its chapter in the book."""

    svg: str
    caption: str
    chapter: str


# --- what chapters contain ------------------------------------------------------------------------------------------


def chapter_path(root: Path, chapter: str) -> Path:
    """Return the notebook of a chapter, such as ``attention/scaling``.

    Raises:
        ValueError: if there is no such chapter.
    """
    path = root / "book" / f"{chapter}.ipynb"
    if path not in chapters(root).values():
        raise ValueError(f"a question names the chapter {chapter}, which the book does not have")
    return path


def sections(root: Path, chapter: str) -> dict[str, tuple[str, str]]:
    """Return the sections of a chapter by their anchors: the heading and the text up to the next heading."""
    parts = HEADING.split("\n\n".join(markdown_cells(chapter_path(root, chapter))))[1:]
    return {slug_of(title): (title, text) for _, title, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


def section(root: Path, address: str) -> tuple[str, str]:
    """Return the heading and the text of a section, given its address such as ``attention/scaling#remember``.

    Raises:
        ValueError: if the chapter has no such section.
    """
    chapter, _, anchor = address.partition("#")
    known = sections(root, chapter)
    if anchor not in known:
        raise ValueError(f"a question names the section {address}, which the chapter does not have")
    return known[anchor]


def so_line(root: Path, address: str) -> str:
    """Return the last paragraph of a section without **So:**, with links that work on another page.

    It is in the language of this build if the chapter is translated.

    Raises:
        ValueError: if the section has no such paragraph.
    """
    _, text = section(root, address)
    found = re.search(r"^\*\*So:\*\* (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"the section {address} has no paragraph that begins with **So:**")
    chapter = address.partition("#")[0]
    words = in_language(found[0], chapter_path(root, chapter), root)
    for begins in conclusions():
        words = words.removeprefix(f"**{begins}**").lstrip()
    return LOCAL_LINK.sub(f"](/book/{chapter}.ipynb#", words[0].upper() + words[1:])


class Runs:
    """The numbers and drawings of the chapters, from the runs that the site shows (``_build/runs.json``)."""

    def __init__(self, listed: Path):
        self.runs = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}

    @cache  # noqa: B019 - one object for each build
    def outputs(self, chapter: str) -> list[tuple[dict, dict]]:
        """Return the outputs of a chapter's run, each with the metadata of its cell.

        Raises:
            ValueError: if the chapter has no run.
        """
        path = self.runs.get(f"book/{chapter}.ipynb")
        if path is None:
            raise ValueError(f"there is no run of {chapter}: build with make book")
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        return [(output, cell["metadata"]) for cell in cells for output in cell.get("outputs", [])]

    def number(self, chapter: str, name: str) -> str:
        """Return the text of a number that a chapter glues.

        Raises:
            ValueError: if the chapter glues no such number.
        """
        for output, _ in self.outputs(chapter):
            if output.get("metadata", {}).get("scrapbook", {}).get("name") == name:
                return str(ast.literal_eval("".join(output["data"]["application/papermill.record/text/plain"])))
        raise ValueError(f"{chapter} glues no number {name}")

    def drawing(self, name: str) -> Drawing:
        """Return a drawing of a chapter.

        Raises:
            ValueError: if no chapter has a drawing of this name.
        """
        for page in self.runs:
            chapter = page.removeprefix("book/").removesuffix(".ipynb")
            for output, metadata in self.outputs(chapter) if self.runs[page] else []:
                figure = metadata.get("mystnb", {}).get("figure", {})
                svg = "".join(output.get("data", {}).get("text/html", ""))
                if figure.get("name") == name and 'class="drawing"' in svg:
                    return Drawing(svg, figure["caption"], chapter)
        raise ValueError(f"no chapter has a drawing {name}")


# --- the page -------------------------------------------------------------------------------------------------------


def questions(text: str) -> list[Question]:
    """Return the entries of the page.

    Raises:
        ValueError: if an entry has no section or an unknown option, or does not have either a formula or a figure.
    """
    found = [
        Question(entry["title"], entry["anchor"], dict(OPTION.findall(entry["options"])), entry["answer"].strip())
        for entry in ENTRY.finditer(text)
    ]
    for one in found:
        if unknown := set(one.options) - OPTIONS:
            raise ValueError(f"the question {one.anchor} has unknown options: {', '.join(sorted(unknown))}")
        if "section" not in one.options or ("formula" in one.options) == ("figure" in one.options):
            raise ValueError(f"the question {one.anchor} must have a section, and either a formula or a figure")
    return found


def answer(one: Question, root: Path, runs: Runs) -> str:
    """Return the Markdown of an answer, with the sentences and numbers of the chapters filled in."""
    text = SO.sub(lambda so: so_line(root, so[1]), one.answer)
    return NUMBER.sub(lambda number: runs.number(number[1], number[2]), text)


def formula(one: Question, root: Path) -> str:
    """Return the TeX of a question's formula.

    Raises:
        ValueError: if no chapter has the formula.
    """
    named = one.options["formula"]
    if named == "box":
        shown = DISPLAYED.search(box(chapter_path(root, one.options["section"].partition("#")[0])))
        return without_stop(shown[1].strip())
    if not named.startswith("eq-"):
        return named
    known = labelled_formulas(root)
    if named not in known:
        raise ValueError(f"the question {one.anchor} names the formula {named}, which no chapter has")
    return without_stop(known[named][0])


def picture(one: Question, root: Path, runs: Runs) -> str:
    """Return the Markdown of a question's formula or drawing, with what its symbols mean or its caption."""
    if "formula" in one.options:
        shown = f"$$\n{formula(one, root)}\n$$"
        below = one.options.get("where", "")
    else:
        drawing = runs.drawing(one.options["figure"])
        words = drawing_words.in_language(drawing.svg, f"book/{drawing.chapter}")
        shown = f"```{{raw}} html\n{words}\n```"
        below = drawing.caption
    return f":::{{container}} question-figure\n{shown}\n\n{below}\n:::"


def links(one: Question, root: Path) -> str:
    """Return the Markdown of the links below an answer: the section, the explorer, and the page to share."""
    heading, _ = section(root, one.options["section"])
    chapter, _, anchor = one.options["section"].partition("#")
    path = chapter_path(root, chapter)
    title = catalogs.title(next(title for title, other in chapters(root).items() if other == path))
    heading = in_language(f"# {heading}", path, root).removeprefix("# ")
    linked = f"[{heading}](/book/{chapter}.ipynb#{anchor})"
    parts = [gettext("**Read more:** {chapter}, {section}").format(chapter=title, section=linked)]
    if "try" in one.options:
        state, _, words = one.options["try"].partition(" | ")
        link = f'<a href="{explorer_address(state)}">{html.escape(words)}</a>'
        parts.append(gettext("**Try it:** {link}").format(link=link))
    shared = os.path.relpath(f"{PAGE}/{one.anchor}.html", Path(PAGE).parent)
    words = html.escape(gettext("Copy link"))
    parts.append(f'<a class="question-link" href="{shared}">{words}</a>')
    return ":::{container} question-links\n" + "\n\n".join(parts) + "\n:::"


def explorer_address(state: str) -> str:
    """Return the address of an explorer's page, which sets it; ``state`` is ``name&trait=value&…``."""
    name = state.partition("&")[0]
    return html.escape(f"../explorers/{name}.html#explore={quote(state, safe='&=')}")


def filled(text: str, root: Path, runs: Runs) -> str:
    """Return the Markdown of the page: ``MARK`` replaced by the list of questions, and each entry by its section."""
    by_anchor = {one.anchor: one for one in questions(text)}

    def shown(entry: re.Match) -> str:
        one = by_anchor[entry["anchor"]]
        parts = (answer(one, root, runs), picture(one, root, runs), links(one, root))
        return f"{{#{one.anchor}}}\n### {one.title}\n\n" + "\n\n".join(parts)

    return ENTRY.sub(shown, text.replace(MARK, contents(text)))


def contents(text: str) -> str:
    """Return the list of all questions in Markdown, by group."""
    groups = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    parts = []
    for group, entries in zip(groups[::2], groups[1::2], strict=True):
        items = "\n".join(f"* [{one.title}](#{one.anchor})" for one in questions(entries))
        parts.append(f"**{group}**\n\n{items}")
    return ":::{container} question-list\n" + "\n\n".join(parts) + "\n:::"


# --- what is written beside the page --------------------------------------------------------------------------------


def fill_page(app, docname, source) -> None:
    """Fill in the page when Sphinx reads it; it is read again when a chapter or a run changes."""
    if docname != PAGE:
        return
    listed = Path(app.outdir).parent / "runs.json"
    app.env.note_dependency(str(listed))
    runs = Runs(listed)
    page_filler(PAGE, lambda text, root: filled(text, root, runs))(app, docname, source)


def add_files(app, pagename, templatename, context, doctree) -> None:
    """Load the style sheet and the script on this page only."""
    if pagename == PAGE:
        app.add_css_file("questions.css", priority=900)
        app.add_js_file("questions.js", defer="defer")


def write_shared_pages(app, exception) -> None:
    """Write the page of each question that a link to it shows, with its picture, unless only another page is built."""
    if getattr(app.config, "one_page", "") not in ("", PAGE):
        return
    if exception is not None or app.builder.format != "html" or PAGE not in app.env.found_docs:
        return
    root, config = Path(app.srcdir), app.config
    base = site_address(config)
    shown = {anchor: one for one in app.env.get_doctree(PAGE).findall(nodes.section) for anchor in one["ids"]}
    icon = quote(Path(app.outdir, "_static", Path(config.html_favicon).name).read_text(encoding="utf-8"))
    page = app.builder.get_target_uri(PAGE)
    folder, cards = Path(app.outdir, PAGE), Path(app.outdir, "_static", "cards", "questions")
    folder.mkdir(parents=True, exist_ok=True)
    titles = {path.stem: catalogs.title(title) for title, path in chapters(root).items()}
    for one in questions(in_language((root / f"{PAGE}.md").read_text(encoding="utf-8"), root / f"{PAGE}.md", root)):
        name = one.options["section"].partition("#")[0].rsplit("/", 1)[-1]
        card = draw_card(titles[name], one.title, config.html_title, plot_svg(app, name))
        write_card(cards / f"{one.anchor}.png", card)
        text = description(shown[one.anchor])
        meta = tags(
            one.title,
            text,
            config.html_title,
            kind="article",
            address=base and f"{base}{PAGE}/{one.anchor}.html",
            picture=f"{base}_static/cards/questions/{one.anchor}.png",
            alt=alt_of(app.env, one.title, name) if base else "",
            locale=locale_of(app.env, PAGE),
        )
        filled_in = SHARED.format(
            title=html.escape(one.title),
            book=html.escape(config.html_title),
            tags=meta,
            canonical=f'<link rel="canonical" href="{base}{page}">\n' if base else "",
            icon=f"data:image/svg+xml,{icon}",
            target=f"../{Path(page).name}#{one.anchor}",
            answer=html.escape(text),
            to_answer=html.escape(gettext("The answer in the book")),
            language=catalogs.language_of_page(app.env, PAGE),
        )
        (folder / f"{one.anchor}.html").write_text(filled_in, encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", fill_page)
    app.connect("html-page-context", add_files)
    app.connect("build-finished", write_shared_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
