"""One JavaScript source, two forms: an ES module for a live notebook, a classic script for a page.

An explorer's file is a genuine ES module that may import from shared files beside it, which import nothing.
Browsers load it as it is over http, and so do the tests. A live notebook takes a single module and a page opened
from ``file://`` takes no module at all, so the shared files are put in front: each becomes an object of its exports.
What cannot be put together by these few rules is refused.
"""

import json
import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"

_IMPORT = re.compile(r'^import (\{[\w\s,]+\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:function|const|class) (\w+))", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*.*?\*/[ \t]*\n?|//[^\n]*\n)", re.MULTILINE | re.DOTALL)
_KEYWORD = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)
_ANY_IMPORT = re.compile(r"\bimport\b\s*[\w{*\"'(]")
_DEFAULT = re.compile(r"^export default (?=\{)", re.MULTILINE)


def read(file: str) -> str:
    """Return a file of ``static/`` without comments and indentation, refused if an element of a page cannot hold it.

    Both are dropped at the beginning of a line, so a string must not go on over several lines.
    """
    text = _COMMENT.sub("", (STATIC / file).read_text(encoding="utf-8"))
    text = re.sub(r"^\s+", "", text, flags=re.MULTILINE)
    for closing in ("</script", "</style", "<!--"):
        assert closing not in text.lower(), f"{file}: {closing} would end the element that holds it"
    return text


def es_module(name: str) -> str:
    """Return ``static/NAME.js`` and what it imports as one ES module."""
    module = read(f"{name}.js")
    shared = dict.fromkeys(imported[2] for imported in _IMPORT.finditer(module))
    text = "\n".join([*map(_as_object, shared), _IMPORT.sub(r"const \1 = \2;", module)])
    assert not _ANY_IMPORT.search(text), f"{name}.js: imports more than names from shared files beside it"
    assert len(_DEFAULT.findall(text)) == 1, f"{name}.js: needs exactly one `export default {{ render }}`"
    return text


def classic_script(name: str, state: dict[str, object]) -> str:
    """Return a script that makes the explorer in the element that holds it, beginning with ``state``."""
    module = _EXPORT.sub("", _DEFAULT.sub("const explorer = ", es_module(name)))
    assert not _KEYWORD.search(module), f"{name}.js: exports in a form that a script cannot take"
    start = json.dumps(state, allow_nan=False).replace("<", "\\u003c")  # no label may end the script
    return f'(() => {{\n"use strict";\n{read("host.js")}\n{module}\nhost(explorer, {start});\n}})();'


def _as_object(name: str) -> str:
    text = read(f"{name}.js")
    exports = _EXPORT.findall(text)
    body = _EXPORT.sub("", text)
    assert not _KEYWORD.search(body), f"{name}.js: a shared file imports nothing and exports plain names"
    return f"const {name} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"
