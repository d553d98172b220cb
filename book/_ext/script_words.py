"""Give the site's scripts their words in another language: a table from each English text to its translation.

A script of ``book/_static`` writes ``gettext("Copy link")``, which looks into ``window.bookWords``. The English site
has no table, so that its words are those of the scripts.
"""

import json
from functools import cache

import catalogs


def table() -> dict[str, str]:
    """Return the translations of the scripts' texts into the language of this build."""
    return {text: words for text in catalogs.words_of_scripts() if (words := catalogs.gettext(text)) != text}


@cache
def script() -> str:
    """Return the script that sets the table; ``<`` is escaped, so that no text can end the element."""
    text = json.dumps(table(), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"window.bookWords = {text};"


def give_to_template(app, pagename, templatename, context, doctree) -> None:
    """Give the script to the templates of pages without the theme."""
    context["script_words"] = script()


def setup(app) -> dict:
    """Register with Sphinx if another language than English is built."""
    if catalogs.language():
        app.add_js_file(None, body=script(), priority=90)  # before every script that reads the table
        app.connect("html-page-context", give_to_template)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
