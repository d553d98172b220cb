"""Translate the words of a drawing whose chapter has run in English.

A page in another language may show a drawing of a chapter that is not translated yet. The texts of a drawing are those
of the library's catalog and of the chapter's code, so that they can be replaced after the run, and the drawing is the
one that a run in the language would make.
"""

import html
import re
from functools import cache

import catalogs
from translation import CHINESE

from lessons_lib.page.language import Words, split
from lessons_lib.page.sketch import spans

TEXT = re.compile(r"(?P<start><text\b(?![^>]*translate=)[^>]*>)(?P<words>.*?)(?=</text>)", re.DOTALL)
LABEL = re.compile(r'(?P<start>aria-label=")(?P<words>[^"]*)')


def in_language(drawing: str, docname: str) -> str:
    """Return the HTML of a drawing of the page ``docname`` in the language of this build.

    A drawing of a page that has run in the language stays as it is. A text that is marked as verbatim, such as a word
    that a model reads, and a text without a translation stay English.
    """
    if not (language := catalogs.language()) or CHINESE.search(drawing):
        return drawing
    words, formulas = words_of(language, docname)

    def text(found: re.Match) -> str:
        if "<" in found["words"]:
            return found["start"] + formulas.get(found["words"], found["words"])
        return label(found, quote=False)

    def label(found: re.Match, quote: bool = True) -> str:
        return found["start"] + html.escape(words.reading(html.unescape(found["words"])).words, quote=quote)

    return LABEL.sub(label, TEXT.sub(text, drawing))


@cache
def words_of(language: str, docname: str) -> tuple[Words, dict[str, str]]:
    """Return the words that the code of a page shows, and the texts with formulas as a drawing contains them."""
    known = catalogs.of_page(language, catalogs.LIBRARY) | catalogs.of_page(language, catalogs.code_catalog(docname))
    whole = {message: words for message, words in known.items() if "$" in message and not split(message)[1]}
    return Words(known), {spans(message.format()): spans(words.format()) for message, words in whole.items()}
