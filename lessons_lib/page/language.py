"""The language of the words that code writes on a page: English, or the one that ``BOOK_LANGUAGE`` names.

A text is looked up by its English words, so that English needs no catalog. ``make book LANGUAGE=zh_CN`` compiles the
catalogs of ``locale/zh_CN`` into ``_build/locale`` and sets the variable.
"""

import gettext as compiled
import os
from functools import cache
from pathlib import Path

VARIABLE = "BOOK_LANGUAGE"
CATALOGS = Path(__file__).resolve().parents[2] / "_build" / "locale"


def language() -> str:
    """Return the language of the book that is being built, such as ``zh_CN``; ``en`` if none is named."""
    return os.environ.get(VARIABLE) or "en"


def gettext(text: str) -> str:
    """Return a text in the language of the book, or the text itself if it has no translation.

    Raises:
        ValueError: if the language has no compiled catalogs.

    >>> gettext("largest weight")
    'largest weight'
    """
    if language() == "en" or not text:
        return text
    return _translations(language(), CATALOGS).gettext(text)


def filled(text: str, **values: object) -> str:
    """Return a text in the language of the book with its fields filled; a translation may order them anew.

    Raises:
        KeyError: if a field of the text has no value.

    >>> filled("{n} of {total} keys", n=3, total=8)
    '3 of 8 keys'
    """
    return gettext(text).format(**values)


def mark(text: str) -> str:
    """Return the text unchanged; ``make catalogs`` finds it here, and ``gettext`` translates it where it is shown."""
    return text


@cache
def _translations(name: str, folder: Path) -> compiled.NullTranslations:
    found = compiled.NullTranslations()
    files = sorted((folder / name / "LC_MESSAGES").rglob("*.mo"))
    if not files:
        raise ValueError(f"{VARIABLE}={name} has no catalogs in {folder}; run make book LANGUAGE={name}")
    for path in files:
        with path.open("rb") as file:
            found.add_fallback(compiled.GNUTranslations(file))
    return found
