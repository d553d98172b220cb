"""The language of the words that code writes on a page: English, or the one that ``BOOK_LANGUAGE`` names.

A text is looked up by its English words when it is shown, so that English needs no catalog and code stays English.
``make book LANGUAGE=zh_CN`` compiles the catalogs of ``locale/zh_CN`` into ``_build/locale`` and sets the variables:
``BOOK_LANGUAGE``, ``BOOK_PAGE`` for the words of one notebook, and ``BOOK_MISSING``, a file that receives the texts
that have no translation.

A message of a catalog is a format string. Code may have filled its fields already, as an f-string does: the text
``"query 3"`` is found by the message ``"query {i}"``, and what a field contains is looked up in turn.
"""

import gettext as compiled
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import NamedTuple

VARIABLE, PAGE, MISSING = "BOOK_LANGUAGE", "BOOK_PAGE", "BOOK_MISSING"
CATALOGS = Path(__file__).resolve().parents[2] / "_build" / "locale"
PAGES = "code"  # the folder with the words of each notebook; the other catalogs hold words of the library
CHECKS, SHARED = "checks", "shared"  # the folder with the messages of checks, read for these alone; those of all files
SENTENCES, COMMA = (". ", "; "), ", "  # between the parts of a list that code has joined
SHORT = 4  # places at which a list is cut in two, since a part may itself have commas
MATCHES = 64  # ways to read a text by one message that are tried

_WORD = re.compile(r"[A-Za-z]{2,}")  # of an English text
_SPECIFICATION = re.compile(r"\{(\w+):[^{}]*\}")
_FORMULA = re.compile(r"\$[^$]*\$")


def language() -> str:
    """Return the language of the book that is being built, such as ``zh_CN``; ``en`` if none is named."""
    return os.environ.get(VARIABLE) or "en"


@contextmanager
def in_language(name: str) -> Iterator[None]:
    """Write the words of this block in another language, such as ``en`` for a page that is not translated."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def gettext(text: str) -> str:
    """Return a text in the language of the book, or the text itself if it has no translation.

    Raises:
        ValueError: if the language has no compiled catalogs.

    >>> gettext("largest weight")
    'largest weight'
    """
    if language() == "en" or not text:
        return text
    reading = _catalog(language(), os.environ.get(PAGE, ""), CATALOGS).reading(text)
    if reading.missing and (path := os.environ.get(MISSING)):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(part, ensure_ascii=False)}\n" for part in reading.missing)
    return reading.words


def filled(text: str, **values: object) -> str:
    """Return a text in the language of the book with its fields filled; a translation may order them anew.

    Raises:
        KeyError: if a field of the text has no value.

    >>> filled("{n} of {total} keys", n=3, total=8)
    '3 of 8 keys'
    """
    if language() != "en":
        text = _catalog(language(), os.environ.get(PAGE, ""), CATALOGS).messages.get(text, text)
    return text.format(**values)


def message_of_check(text: str, file: str) -> str:
    """Return the message of a check in the language of the book, or the text itself if its file has no translation.

    A check may name a mistake of another file of checks. So the messages of all these files are read; those of
    ``file``, which may be empty, have precedence.

    >>> message_of_check("the tanh is missing", "geometry")
    'the tanh is missing'
    """
    own = CATALOGS / language() / "LC_MESSAGES" / CHECKS / f"{file or SHARED}.mo"
    return _of_checks(own).reading(text).words if language() != "en" and own.exists() else text


def mark(text: str) -> str:
    """Return the text unchanged; ``make catalogs`` finds it here, and ``gettext`` translates it where it is shown."""
    return text


def font() -> Path | None:
    """Return the file of a font with the characters of the language that is built, if the build has found one."""
    return next(iter(sorted((CATALOGS / language()).glob("font.*"))), None)


def worded(text: str) -> bool:
    """Return whether a text has words outside of formulas: two letters side by side.

    >>> worded("1/√d"), worded("$d_model$"), worded("width $d$")
    (False, False, True)
    """
    return bool(_WORD.search(_FORMULA.sub(" ", text)))


class Words:
    """The translations of format strings, and the search for a text whose fields are filled already.

    A text may be read in several ways. The one that leaves the fewest words without a translation counts.

    >>> words = Words({"query {i}": "查询 {i}", "{name}, {n} steps": "{n} 步，{name}", "mean": "均值"})
    >>> words.translated("query 3"), words.translated("mean, 400 steps"), words.translated("median")
    ('查询 3', '400 步，均值', None)
    """

    def __init__(self, messages: Mapping[str, str]) -> None:
        self.messages = dict(messages)
        self._read: dict[str, Reading] = {}
        patterns: list[tuple[list[str], list[str], str]] = []
        for message, words in messages.items():
            literals, names = split(message)
            if names:
                patterns.append((literals, names, _SPECIFICATION.sub(r"{\1}", words)))
                self._read[message] = Reading(words, ())  # the format string itself, which a script fills
            else:
                self._read["".join(literals)] = Reading(words.format(), ())
        self._patterns = sorted(patterns, key=lambda one: -sum(map(len, one[0])))  # the most specific first

    def translated(self, text: str) -> str | None:
        """Return the translation of a text, or ``None`` if it has none."""
        reading = self.reading(text)
        return None if reading.missing == (text,) else reading.words

    def reading(self, text: str) -> "Reading":
        """Return the words for a text, and the parts of it that have no translation."""
        if text not in self._read:
            best = Reading(text, (text,) if worded(text) else ())
            for other in self._readings(text) if best.missing else ():
                if other.cost < best.cost:
                    best = other
                if not best.cost:
                    break
            self._read[text] = best
        return self._read[text]

    def _readings(self, text: str) -> "Iterator[Reading]":
        """Yield the ways to read a text: as a list of sentences, as a filled message, and as a list of words."""
        for separator in SENTENCES:
            yield from self._as_list(text, separator)
        unlikely = []  # a field that opens a bracket and does not close it
        for literals, names, words in self._patterns:
            for values in islice(fields(literals, text), MATCHES):
                parts = [self.reading(value) for value in values]
                filled_in = words.format(**dict(zip(names, (part.words for part in parts), strict=True)))
                reading = Reading(filled_in, tuple(left for part in parts for left in part.missing))
                if all(value.count("(") == value.count(")") for value in values):
                    yield reading
                else:
                    unlikely.append(reading)
        yield from self._as_list(text, COMMA)
        yield from unlikely

    def _as_list(self, text: str, separator: str) -> "Iterator[Reading]":
        pieces = text.split(separator)
        joined = self.messages.get(separator, separator)
        cuts = [[separator.join(pieces[:k]), separator.join(pieces[k:])] for k in range(1, len(pieces))]
        for cut in [*cuts[:SHORT], pieces] if len(pieces) > 1 else []:
            parts = [self.reading(part) for part in cut]
            words = joined.join(part.words for part in parts)
            yield Reading(words, tuple(left for part in parts for left in part.missing))


class Reading(NamedTuple):
    """A text in another language, and its parts that stayed English."""

    words: str
    missing: tuple[str, ...]

    @property
    def cost(self) -> int:
        """The number of words that stayed English."""
        return sum(len(_WORD.findall(part)) for part in self.missing)


def split(message: str) -> tuple[list[str], list[str]]:
    """Return the literal parts of a format string, one more than it has fields, and the names of its fields."""
    literals, names = [""], []
    for literal, name, _, _ in Formatter().parse(message):
        literals[-1] += literal
        if name is not None:
            names.append(name)
            literals.append("")
    return literals, names


def fields(literals: list[str], text: str) -> Iterator[list[str]]:
    """Yield all contents of the fields between the literal parts of a text, the shortest first.

    >>> list(fields(["after ", " ", ""], "after block 1 11%"))
    [['block', '1 11%'], ['block 1', '11%']]
    """
    first, *rest = literals
    if not text.startswith(first):
        return
    text = text[len(first) :]
    if len(rest) == 1:
        if text.endswith(rest[0]):
            yield [text[: len(text) - len(rest[0])]]
        return
    at = text.find(rest[0])
    while at >= 0:
        for others in fields(["", *rest[1:]], text[at + len(rest[0]) :]):
            yield [text[:at], *others]
        at = text.find(rest[0], at + 1) if rest[0] else -1


def compiled_messages(paths: Iterable[Path]) -> dict[str, str]:
    """Return the translations in compiled catalogs by their messages; a later catalog has precedence."""
    found: dict[str, str] = {}
    for path in paths:
        with path.open("rb") as file:
            entries = vars(compiled.GNUTranslations(file))["_catalog"]
        found |= {message: words for message, words in entries.items() if message and isinstance(message, str)}
    return found


@cache
def _catalog(name: str, page: str, folder: Path) -> Words:
    """Return the words of the library and of one page, which has precedence."""
    root = folder / name / "LC_MESSAGES"
    common = sorted(path for path in root.rglob("*.mo") if path.relative_to(root).parts[0] not in (PAGES, CHECKS))
    if not common:
        raise ValueError(f"{VARIABLE}={name} has no catalogs in {folder}; run make book LANGUAGE={name}")
    own = root / PAGES / f"{page}.mo"
    return Words(compiled_messages([*common, *([own] if page and own.exists() else [])]))


@cache
def _of_checks(own: Path) -> Words:
    """Return the messages of all checks; those of one catalog have precedence."""
    return Words(compiled_messages([*sorted(own.parent.glob("*.mo")), own]))
