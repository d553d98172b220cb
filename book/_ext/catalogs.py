"""Read the catalogs of a translation: ``locale/LANGUAGE/LC_MESSAGES/PAGE.po``, one for each page.

``locale/LANGUAGE/pages.txt`` lists the pages that are translated completely; a test compares them with their sources.
The environment variable ``BOOK_LANGUAGE`` names the language of a build. Without it the book is English, and no catalog
is read. ``_toc.po`` has the titles of ``_toc.yml``, and ``site.po`` the words that the extensions and scripts write.
The words that code shows are in ``lessons_lib.po`` and, for each notebook, in ``code/PAGE.po``; a notebook that runs in
the language reads them (``lessons_lib/page/language.py``). The messages of the exercises' checks are in
``checks/FILE.po``.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po

ROOT = Path(__file__).resolve().parents[2]
CONTENTS, SITE, LIBRARY, CODE, CHECKS = "_toc", "site", "lessons_lib", "code", "checks"
WORDS = (LIBRARY, CODE, CHECKS, "explorers")  # the catalogs, and folders of catalogs, that notebooks read when they run
IN_SCRIPT = re.compile(r'\bgettext\(\s*("(?:[^"\\]|\\.)*"),?\s*\)')


def language() -> str:
    """Return the language of this build, such as ``zh_CN``, or an empty string for English."""
    return os.environ.get("BOOK_LANGUAGE", "")


def folder(name: str, root: Path = ROOT) -> Path:
    """Return the folder of a language's catalogs."""
    return root / "locale" / name / "LC_MESSAGES"


def languages(root: Path = ROOT) -> list[str]:
    """Return the languages that have catalogs."""
    return sorted(path.parent.name for path in (root / "locale").glob("*/LC_MESSAGES"))


def finished(name: str, root: Path = ROOT) -> list[str]:
    """Return the pages that are translated completely, as ``pages.txt`` lists them."""
    return (root / "locale" / name / "pages.txt").read_text(encoding="utf-8").split()


def read_catalog(path: Path) -> Catalog:
    """Return the catalog in a file."""
    with path.open("rb") as file:
        return read_po(file)


def translations(path: Path) -> dict[str, str]:
    """Return the finished translations of a catalog by their messages: those that are not empty and not fuzzy."""
    if not path.exists():
        return {}
    return {str(one.id): str(one.string) for one in read_catalog(path) if one.id and one.string and not one.fuzzy}


@cache
def of_page(name: str, docname: str) -> dict[str, str]:
    """Return the translations of one page into the language ``name``."""
    return translations(folder(name) / f"{docname}.po")


@cache
def of_all_pages(name: str) -> dict[str, str]:
    """Return the translations of all pages, for pages that are filled with the text of others."""
    found: dict[str, str] = {}
    for docname in docnames(name):
        found |= of_page(name, docname)
    return found


def code_catalog(docname: str) -> str:
    """Return the catalog with the words of a notebook's code."""
    return f"{CODE}/{docname}"


def docnames(name: str) -> Iterator[str]:
    """Yield the pages that have a catalog."""
    for path in sorted((folder(name) / "book").rglob("*.po")):
        yield path.relative_to(folder(name)).with_suffix("").as_posix()


def words_of_extensions(root: Path = ROOT) -> list[str]:
    """Return the texts that the extensions mark by ``gettext`` or ``mark``."""
    found = extract_from_dir(root / "book" / "_ext", [("*.py", "python")], keywords={"gettext": None, "mark": None})
    return list(dict.fromkeys(str(text) for _, _, text, _, _ in sorted(found, key=lambda one: (one[0], one[1]))))


def words_of_scripts(root: Path = ROOT) -> list[str]:
    """Return the texts that the site's scripts mark by ``gettext``."""
    scripts = sorted((root / "book" / "_static").glob("*.js"))
    found = (IN_SCRIPT.findall(path.read_text(encoding="utf-8")) for path in scripts)
    return list(dict.fromkeys(json.loads(text) for texts in found for text in texts))


def headings_of_reference(root: Path = ROOT) -> dict[str, str]:
    """Return the headings of the library's reference by page; the contents list them, and its text has no catalogs."""
    pages = sorted((root / "book" / "reference").glob("*.rst"))
    return {f"book/reference/{path.stem}": path.read_text(encoding="utf-8").split("\n", 1)[0] for path in pages}


def gettext(text: str) -> str:
    """Return a text of the extensions in the language of this build."""
    return of_page(language(), SITE).get(text, text) if language() else text


def mark(text: str) -> str:
    """Return the text unchanged; the call marks it for the catalog, and ``gettext`` translates it later."""
    return text


def is_translated(env, docname: str) -> bool:
    """Return whether a page is listed as finished and all its text turned out to be translated."""
    return docname in finished(language()) and bool(env.metadata.get(docname, {}).get("translated"))


def language_of_page(env, docname: str) -> str:
    """Return the language of a page as HTML names it, such as ``zh-CN``: English if the page is not translated.

    A page without a source, such as that of the search, is in the language of the build.
    """
    if not language() or (docname in env.found_docs and not is_translated(env, docname)):
        return "en"
    return language().replace("_", "-")


def title(text: str) -> str:
    """Return a title of ``_toc.yml`` in the language of this build."""
    return of_page(language(), CONTENTS).get(text, text) if language() else text
