"""Build the pages in another language: replace the messages of a page's source by those of its catalog.

``BOOK_LANGUAGE`` names the language (``catalogs.py``); without it this extension does nothing. The text is replaced in
the source, not in the document as Sphinx's own transform does it. MyST then reads the translation in its place, with
all roles, targets and glued numbers of the page. (Sphinx's transform reads each message as a document of its own: for a
page with the suffix ``.ipynb`` it expects a notebook, and a glued number has no notebook to come from.) The same
sources make the runnable edition.

A page is translated before it is filled with the text of other pages, which is English and is translated afterwards
from their catalogs.

Sections keep their English anchors, so that links and the switch between the languages lead to the same section.
"""

import json
import re
from pathlib import Path

import catalogs
from docutils import nodes
from messages import messages, notebook_translated, parser, translated
from myst_parser.mdit_to_docutils.base import default_slugify
from sphinx.util import logging

LOG = logging.getLogger(__name__)
BEFORE_FILLING, AFTER_FILLING = 100, 600  # priorities; pages are filled at 500, reading times at 700
LINK = re.compile(r"\[(?P<words>.+)\](?P<target>\([^()]*\))")
LIST_OF_PAGES = "translated.json"
CHINESE = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")

# A formula and the punctuation after it: a browser may break a line between an inline box and any character.
PUNCTUATED = re.compile(
    r'(<span class="math notranslate nohighlight">[^<]*</span>)([\u3001\u3002\uff01\uff09\uff0c\uff1a\uff1b\uff1f]+)'
)

make_id = nodes.make_id
english_headings: dict[str, str] = {}  # of the page that is read: the normalised translation, and the English heading


def plain(heading: str, kinds: tuple[str, ...] = ()) -> str:
    """Return the text of a heading without markup; ``kinds`` restricts it to tokens of these types."""
    (inline,) = parser().parseInline(heading)
    return "".join(token.content for token in inline.children or [] if not kinds or token.type in kinds)


def note_heading(words: str, original: str) -> None:
    """Remember the English heading of a translated one."""
    for kinds in ((), ("text", "code_inline")):  # what anchors of docutils and of MyST are made from
        english_headings[nodes.fully_normalize_name(plain(words, kinds))] = plain(original, kinds)


def english(heading: str) -> str:
    """Return the English heading of a translated one on the page that is read, or the heading itself."""
    return english_headings.get(nodes.fully_normalize_name(heading), heading)


def slug(heading: str) -> str:
    """Return MyST's anchor of a section: that of its English heading."""
    return default_slugify(english(heading))


def id_of_english(text: str) -> str:
    """Return docutils's anchor for a name: that of the English heading."""
    return make_id(nodes.fully_normalize_name(english(text)))


def lookup_in_all(text: str) -> str | None:
    """Return the translation of a message of any page or of a title, also if the whole message has become a link."""
    language = catalogs.language()
    pages, titles = catalogs.of_all_pages(language), catalogs.of_page(language, catalogs.CONTENTS)
    link = LINK.fullmatch(text)
    if text not in pages and link and (words := pages.get(link["words"]) or titles.get(link["words"])):
        return f"[{words}]{link['target']}"
    return pages.get(text)


def translate_page(app, docname, source) -> None:
    """Translate the messages that the page itself has, before it is filled with the text of other pages."""
    english_headings.clear()
    if not is_notebook(app, docname):
        own = catalogs.of_page(catalogs.language(), docname)
        source[0] = translated(source[0], own.get, note_heading)


def translate_filled_page(app, docname, source) -> None:
    """Translate a notebook, or what a page was filled with, and note whether all its messages are translated."""
    if is_notebook(app, docname):
        own = catalogs.of_page(catalogs.language(), docname)
        source[0] = notebook_translated(source[0], own.get, note_heading)
        cells = json.loads(source[0])["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    else:
        source[0] = translated(source[0], lookup_in_all, note_heading)
        texts = [source[0]]
    language = catalogs.language()
    known = {*catalogs.of_all_pages(language).values(), *catalogs.of_page(language, catalogs.SITE).values()}
    left = [
        message.text
        for text in texts
        for message in messages(text)
        if message.text not in known
        and not CHINESE.search(message.text)
        and lookup_in_all(message.text) != message.text
    ]
    app.env.metadata[docname]["translated"] = not left
    if left and docname in catalogs.finished(catalogs.language()):
        LOG.warning("a message has no translation: %s", left[0], location=docname)


def is_notebook(app, docname: str) -> bool:
    """Return whether a page is a notebook."""
    return str(app.env.doc2path(docname)).endswith(".ipynb")


def finished_pages(env) -> list[str]:
    """Return the listed pages whose text turned out to be translated completely."""
    listed = catalogs.finished(catalogs.language())
    return [name for name in listed if catalogs.is_translated(env, name)]


def write_list(app, exception) -> None:
    """Write the list of finished pages, to which the pages of the other language link."""
    if exception is None and app.builder.format == "html":
        text = json.dumps(finished_pages(app.env), indent=1)
        Path(app.outdir, LIST_OF_PAGES).write_text(f"{text}\n", encoding="utf-8")


def mark_untranslated(app, pagename, templatename, context, doctree) -> None:
    """Say on a page that is not translated that its text is English."""
    if doctree is not None and not catalogs.is_translated(app.env, pagename):
        context["language"] = "en"
        context["pageurl"] = english_address(context.get("pageurl"), app.config.html_baseurl, catalogs.language())
        note = f'<p class="not-translated" lang="{app.config.language.replace("_", "-")}">%s</p>'
        context["body"] = note % catalogs.gettext("This page is not translated yet.") + (context.get("body") or "")


def english_address(address: str | None, base: str, language: str) -> str | None:
    """Return the address of the English page, for a copy of it in the site of another language at ``base``.

    >>> english_address("https://a.org/zh_CN/book/run.html", "https://a.org/zh_CN/", "zh_CN")
    'https://a.org/book/run.html'
    """
    return address and address.replace(base, base.removesuffix(f"{language}/"), 1)


def keep_punctuation(app, pagename, templatename, context, doctree) -> None:
    """Keep Chinese punctuation on the line of the formula before it."""
    context["body"] = PUNCTUATED.sub(r'<span class="unbroken">\1\2</span>', context.get("body") or "")


def setup(app) -> dict:
    """Register with Sphinx if another language than English is built."""
    safe = {"parallel_read_safe": False, "parallel_write_safe": True}
    if not catalogs.language():
        return safe | {"parallel_read_safe": True}
    nodes.make_id = id_of_english
    app.config.myst_heading_slug_func = f"{__name__}.{slug.__name__}"  # by name, so that Sphinx can store it
    app.connect("source-read", translate_page, priority=BEFORE_FILLING)
    app.connect("source-read", translate_filled_page, priority=AFTER_FILLING)
    app.connect("html-page-context", mark_untranslated, priority=300)
    app.connect("html-page-context", keep_punctuation)
    app.connect("build-finished", write_list)
    return safe
