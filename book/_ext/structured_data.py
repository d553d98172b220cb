"""Structured data for search engines, as JSON-LD with the terms of schema.org: a book, and its chapters.

The first page is a ``Book``, a chapter is a ``Chapter``; both are a ``LearningResource``. Addresses are written only if
the site has an address of its own.
"""

import json
from pathlib import Path

from catalogs import gettext, language_of_page
from opengraph import card_name, chapters, description, short_title, site_address, title_of
from times import rounded, sections, whole

LICENSE = "https://opensource.org/license/mit"


def common(app, docname: str) -> dict:
    """Return the properties that the book and its chapters share."""
    return {
        "inLanguage": language_of_page(app.env, docname),
        "isAccessibleForFree": True,
        "license": LICENSE,
        "author": {"@type": "Organization", "name": app.config.author},
    }


def addressed(app, docname: str) -> dict[str, str]:
    """Return the address and the picture of a page, or nothing while the site has no address."""
    base = site_address(app.config)
    if not base:
        return {}
    url = base + app.builder.get_target_uri(docname)
    return {"@id": url, "url": url, "image": f"{base}_static/{card_name(app.env, docname)}"}


def book(app) -> dict:
    """Return the data of the book."""
    env, root = app.env, app.config.root_doc
    parts = [
        {"@type": "Chapter", "name": short_title(env, name), "position": i} | addressed(app, name)
        for i, name in enumerate(chapters(env), 1)
    ]
    return {
        "@context": "https://schema.org",
        "@type": ["Book", "LearningResource"],
        "name": app.config.html_title,
        "description": description(env.get_doctree(root)),
        "bookFormat": "https://schema.org/EBook",
        "learningResourceType": gettext("interactive textbook"),
        "teaches": gettext("attention and the Transformer"),
        **common(app, root),
        **addressed(app, root),
        "hasPart": parts,
    }


def chapter(app, docname: str) -> dict:
    """Return the data of a chapter."""
    env, root = app.env, app.config.root_doc
    path = Path(env.doc2path(docname))
    time = {"timeRequired": f"PT{rounded(whole(sections(path)))}M"} if path.suffix == ".ipynb" else {}
    return {
        "@context": "https://schema.org",
        "@type": ["Chapter", "LearningResource"],
        "name": title_of(env, docname),
        "description": description(env.get_doctree(docname)),
        "position": chapters(env).index(docname) + 1,
        "learningResourceType": gettext("chapter"),
        "teaches": short_title(env, docname),
        **time,
        **common(app, docname),
        **addressed(app, docname),
        "isPartOf": {"@type": "Book", "name": app.config.html_title} | addressed(app, root),
    }


def script(data: dict) -> str:
    """Return the element of the page's head; ``<`` is escaped, so that no text can end the element.

    >>> script({"name": "a </script>"})
    '<script type="application/ld+json">{"name": "a \\\\u003c/script>"}</script>'
    """
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/ld+json">{text}</script>'


def add_data(app, pagename, templatename, context, doctree) -> None:
    """Add the structured data to the head of the first page and of each chapter."""
    if pagename == app.config.root_doc:
        data = book(app)
    elif doctree is not None and pagename in chapters(app.env):
        data = chapter(app, pagename)
    else:
        return
    context["metatags"] = f"{context.get('metatags', '')}\n{script(data)}"


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", add_data)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
