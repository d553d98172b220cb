"""The texts of explorers, those of the scripts and those of the classes, in the language of the book.

A script gives its English texts to ``say``, ``sayWith`` and ``mark`` of ``static/words.js``, and a class gives its own
to ``say`` and ``mark`` of this file; ``make catalogs`` finds them there. The catalogs are ``explorers/NAME.po``. As all
explorers of a page share one table, a text has the same translation in every catalog.
"""

import ast
import json
import re
from functools import cache
from pathlib import Path

from lessons_lib.page import language
from lessons_lib.page.language import mark
from lessons_lib.page.widgets.assemble import files, without_comments

__all__ = ["mark", "say", "texts_of_class", "texts_of_script", "translated_texts", "with_words"]

ZEROS = {"zh": "4"}  # how many zeros each name of a large number adds, where these are not three

_LITERAL = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_CALL = re.compile(rf"\b(?:say|sayWith|mark)\(\s*({_LITERAL}(?:\s*\+\s*{_LITERAL})*)")


def say(text: str, **fields: object) -> str:
    """Return a text in the language of the book, with its fields filled; a translation may order them anew.

    Raises:
        KeyError: if fields are given, but not all that the text has.

    >>> say("{n} of {total} keys", n=3, total=8)
    '3 of 8 keys'
    """
    words = _translations(language.language(), language.CATALOGS).get(text, text)
    return words.format(**fields) if fields else words


def translated_texts(name: str) -> dict[str, str]:
    """Return the translations of the texts of ``static/NAME.js`` and of the files that it imports; empty in English.

    The empty text stands for how many zeros each name of a large number adds, if these are not three.
    """
    known = _translations(language.language(), language.CATALOGS)
    texts = [text for script in files(name).values() for text in texts_of_script(script)] if known else []
    zeros = ZEROS.get(language.language().partition("_")[0])
    return {text: known[text] for text in texts if text in known} | ({"": zeros} if zeros else {})


def with_words(words: dict[str, str]) -> dict[str, object]:
    """Return the table as a part of the state on a page, or nothing if it is empty."""
    return {"_words": words} if words else {}


def texts_of_script(script: str) -> list[str]:
    r"""Return the texts that JavaScript gives to ``say``, ``sayWith`` and ``mark``, each once.

    >>> texts_of_script('say("{n} of {total} keys", { n, total }); mark("a " + "b")')
    ['{n} of {total} keys', 'a b']
    """
    calls = _CALL.finditer(without_comments(script))
    return list(dict.fromkeys("".join(map(_value, re.findall(_LITERAL, call[1]))) for call in calls))


def texts_of_class(path: Path) -> list[str]:
    """Return the texts of a Python file: those of its ``Card``, and those that it gives to ``say`` and ``mark``."""
    found: list[str] = []
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if call.func.id == "Card":
            given = {one.arg: one.value for one in call.keywords}
            found += [_constant(given[name]) for name in ("title", "question", "sentence")]
            tries = given.get("tries")
            found += [_constant(one) for one in tries.keys if one] if isinstance(tries, ast.Dict) else []
        elif call.func.id in ("say", "mark") and isinstance(call.args[0], ast.Constant):
            found.append(_constant(call.args[0]))
    return list(dict.fromkeys(found))


@cache
def _translations(name: str, folder: Path) -> dict[str, str]:
    """Return the translations in all catalogs of explorers, by their English texts."""
    folder = folder / name / "LC_MESSAGES" / "explorers"
    return language.compiled_messages([] if name == "en" else sorted(folder.glob("*.mo")))


def _value(literal: str) -> str:
    """Return the text of a literal of JavaScript; one in single quotes is written with double quotes first."""
    if literal.startswith("'"):
        literal = '"' + literal[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    return json.loads(literal)


def _constant(node: ast.expr) -> str:
    text = ast.literal_eval(node)
    assert isinstance(text, str), f"line {node.lineno}: a text of an explorer must be a literal"
    return text
