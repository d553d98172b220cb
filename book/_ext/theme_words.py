"""Complete the theme's own translations, which lack some words, by those of ``site.po``.

Most words of Sphinx and of the theme are looked up in their catalogs, to which ours are added. Some stand in the
theme's templates; they are replaced in the written pages. The English site is not touched.
"""

import re
from html import escape

import catalogs
from catalogs import gettext, mark
from rewriting import rewrite_pages
from sphinx.locale import get_translator

# Looked up by Sphinx and the theme, without a translation of theirs or with one that is not good.
LOOKED_UP = (
    *(mark("Link to this heading"), mark("Link to this image"), mark("Link to this definition")),
    *(mark("Link to this table"), mark("Link to this code"), mark("Permalink to this equation")),
    *(mark("Color mode"), mark("System Settings"), mark("Light"), mark("Dark"), mark("Print to PDF")),
    *(mark("Collapse Sidebar"), mark("Expand Sidebar"), mark("Breadcrumb"), mark("Skip to main content")),
    *(mark("previous"), mark("next"), mark("Search"), mark("On this page"), mark("Back to top")),
    *(mark("Show Source"), mark("© Copyright %(copyright)s."), mark("Indices"), mark("Download source file")),
    *(mark("Download notebook file"), mark("Fullscreen mode"), mark("By")),
    *(mark("Launch on"), mark("Launch interactive content"), mark("logo")),
    *(mark("Repository"), mark("Source repository"), mark("Source repositories"), mark("Show source")),
    *(mark("Suggest edit"), mark("Open issue"), mark("Open an issue")),
)
# Written in the theme's templates: the values of titles and labels.
IN_TEMPLATES = (
    *(mark("Toggle primary sidebar"), mark("Toggle secondary sidebar"), mark("Main"), mark("Page")),
    mark("Search this book..."),
)
ATTRIBUTE = re.compile(rf'(?<= )(title|aria-label|placeholder)="({"|".join(map(re.escape, IN_TEMPLATES))})"')


def complete_catalogs(app) -> None:
    """Add our words to the catalogs that Sphinx and the theme have loaded."""
    words = {text: gettext(text) for text in LOOKED_UP if gettext(text) != text}
    for name in ("sphinx", "booktheme"):
        known = getattr(get_translator(name), "_catalog", None)  # of GNUTranslations; a language may have no catalog
        if known is not None:
            known.update(words)


def with_words(page: str) -> str:
    """Return the HTML of a page in which titles and labels of the theme are in the language of this build."""
    return ATTRIBUTE.sub(lambda found: f'{found[1]}="{escape(gettext(found[2]))}"', page)


def replace_in_pages(app, exception) -> None:
    """Replace the words that stand in the theme's templates."""
    if exception is not None or app.builder.format != "html":
        return
    rewrite_pages(app.outdir, with_words)


def setup(app) -> dict:
    """Register with Sphinx if another language than English is built."""
    if catalogs.language():
        app.connect("builder-inited", complete_catalogs)
        app.connect("build-finished", replace_in_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
