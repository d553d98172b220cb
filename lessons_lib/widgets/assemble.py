"""One JavaScript source, two forms: an ES module for a live notebook, a classic script for a page.

An explorer's file is a genuine ES module that may import from files beside it, which may do the same. Browsers load
it as it is over http, and so do the tests. A live notebook takes a single module and a page opened from ``file://``
takes no module at all, so what is imported is put in front, each file after those that it imports: it becomes an
object of its exports. On a page that object is known by the file's name and content, so that ten explorers can share
one kit. What an explorer needs only when it is asked for, ``await import("./NAME.js")``, is a promise of such an
object, in a page too: a book may carry it elsewhere and bring it then (``window.xLater``). What cannot be put together
by these few rules is refused.

Files are read whenever they are asked for, so that who edits one sees the next explorer change; what is made of a text
is kept.
"""

import hashlib
import json
import re
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"

_IMPORT = re.compile(r'^import (\{[\w\s,]+\}) from "\./([\w.]+)\.js";$', re.MULTILINE)
_LATER = re.compile(r'\bimport\("\./([\w.]+)\.js"\)')
_EXPORT = re.compile(r"^export (?=(?:function|const|class) (\w+))", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*.*?\*/[ \t]*\n?|//[^\n]*\n)", re.MULTILINE | re.DOTALL)
_ASIDE = re.compile(r"/\*\* @type [^\n]*?\*/ ?|(?<=[;,{(\[]) //[^\n]*")
_KEYWORD = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)
_ANY_IMPORT = re.compile(r"\bimport\b\s*[\w{*\"'(]")
_DEFAULT = re.compile(r"^export default (?=\{)", re.MULTILINE)


def read(file: str) -> str:
    """Return a file of ``static/`` without comments and indentation, refused if an element of a page cannot hold it.

    Both are dropped at the beginning of a line, so a string must not go on over several lines; types, and remarks after
    the end of a statement, are dropped everywhere. Line breaks stay where a statement may end.
    """
    return _lean(file, (STATIC / file).read_text(encoding="utf-8"))


@cache
def _lean(file: str, text: str) -> str:
    text = _ASIDE.sub("", _COMMENT.sub("", text))
    text = re.sub(r"^\s+", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=[(\[{,])\n|\n(?=[)\]}])", "", text)
    if file.endswith(".css"):
        text = re.sub(r"\n|(?<=[{};:,>/]) | (?=[{>/])|;(?=\s*})|(?<=[ :(,-])0(?=\.\d)|(?<=@media) (?=\()", "", text)
        text = re.sub(r'="([a-z]+)"\]', r"=\1]", text)
    assert " //" not in text, f"{file}: a remark in the middle of a statement would hide what follows it"
    for closing in ("</script", "</style", "<!--"):
        assert closing not in text.lower(), f"{file}: {closing} would end the element that holds it"
    return text


def es_module(name: str) -> str:
    """Return ``static/NAME.js`` and what it imports as one ES module."""
    module = read(f"{name}.js")
    later = [f"const {_variable(other)} = async {_maker(other)};" for other in _later(name)]
    imported = [f"const {_variable(other)} = ({_maker(other)})();" for other in _imported(name)]
    text = "\n".join([*later, *imported, _with_objects(module)])
    text = _LATER.sub(lambda found: f"{_variable(found[1])}()", text)
    assert not _ANY_IMPORT.search(text), f"{name}.js: imports more than names from files beside it"
    assert len(_DEFAULT.findall(text)) == 1, f"{name}.js: needs exactly one `export default {{ render }}`"
    return text


def style_sheets(name: str) -> dict[str, str]:
    """Return the rules of all explorers and, where ``static/NAME.css`` exists, those of this one, nested in its class.

    An explorer's element has the classes ``explorer`` and ``x-NAME``. So its own rules reach no other explorer of the
    page, and outweigh the common ones in whichever order a page or a notebook brings them.
    """
    sheets = {"explorer": read("explorer.css")}
    if (STATIC / f"{name}.css").exists():
        sheets[name] = f".explorer.x-{name}{{{read(f'{name}.css')}}}"
    return sheets


def style_element(name: str, style: str) -> str:
    """Return the style as an element that a page leaves out if it holds the same one already."""
    return f'<style data-part="{_key(f"{name}-css", style)}">{style}</style>'


def page_scripts(
    name: str, state: dict[str, object], rules: dict[str, object] | None = None
) -> tuple[dict[str, str], str]:
    """Return the scripts that make the explorer in the element that holds the last of them, beginning with ``state``.

    First those of the files that it imports, by their keys, then its own. A key changes with what it names, and
    a file whose key is known to the page already is not evaluated again: a page may leave out all but the first.
    ``rules`` say for each trait what it may be: a page that keeps the state in its address needs to know.
    """
    es_module(name)  # refuses what cannot be put together
    keys: dict[str, str] = {}
    scripts: dict[str, str] = {}
    for other in [*_later(name), *_imported(name), "host"]:
        text = _with_parts(read(f"{other}.js"), keys)
        exports = _found(_EXPORT, text) or [other]
        body = f"{_squeezed(_bare(text))}\nreturn{{{','.join(exports)}}}"
        keys[other] = _key(other, body)
        scripts[keys[other]] = f'({_PARTS}??={{}})["{keys[other]}"]??=(()=>{{{body}}})();'
    module = _with_parts(read(f"{name}.js"), keys)
    module = _bare(_DEFAULT.sub("const explorer = ", module))
    assert not _KEYWORD.search(module), f"{name}.js: exports in a form that a script cannot take"
    about = "" if rules is None else f"explorer.about={_json({'name': name, 'rules': rules})};"
    start = f'let{{host}}=xParts["{keys["host"]}"];{about}host(explorer, {_json(state)});'
    return scripts, f'(()=>{{"use strict";{_squeezed(module)}\n{start}\n}})();'


def classic_script(name: str, state: dict[str, object], rules: dict[str, object] | None = None) -> str:
    """Return the same as one script."""
    scripts, own = page_scripts(name, state, rules)
    return "\n".join([*scripts.values(), own])


_PARTS = "window.xParts"
_LATE = "window.xLater"


def in_page(kind: str, styles: str, still: str, scripts: tuple[dict[str, str], str]) -> str:
    """Return a piece of HTML that is live in any page, and shows ``still`` where scripts are off.

    ``scripts`` are those of :func:`page_scripts`. All but the last are marked ``data-part`` with their keys, as
    ``styles`` are by :func:`style_element`: on a page with several such pieces one of each will do.
    """
    shared, own = scripts
    parts = "".join(f'<script data-part="{key}">{script}</script>' for key, script in shared.items())
    return f'<div class="{kind}">{styles}<div class="x-still">{still}</div>{parts}<script>{own}</script></div>'


def made_from(kind: type, state: dict[str, object]) -> dict[str, object]:
    """Return the metadata of an output that ``kind(**state).to_html()`` made.

    A book that stores the output can make it again when a script or a style has changed. The state is one string, since
    a notebook that is written sorts the names in its metadata.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    return {"text/html": {"made_from": {"class": name, "state": json.dumps(state)}}}


def _key(name: str, text: str) -> str:
    """A name that changes with what it names."""
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _with_parts(text: str, keys: dict[str, str]) -> str:
    at_once = _IMPORT.sub(lambda found: f'const {found[1]} = xParts["{keys[found[2]]}"];', text)
    return _LATER.sub(lambda found: f'({_LATE} ?? (async (key) => {_PARTS}[key]))("{keys[found[1]]}")', at_once)


def _json(value: object) -> str:
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c")  # no label may end the script


# What no space may be taken out of: strings, templates, regular expressions.
_WHOLE = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|(?<=[(,=:])\s*/(?:[^/\\\n]|\\.)+/[gu]*')
_BINARY = re.compile(r"(?<=[\w)\]]) ([-+/|^&]) (?=[\w(\[])")
_SPACES = re.compile(r" *(=>|[=!<>]=+|&&|\|\||\?\?=?|[-+*/%]=|[{}()\[\];,:?=<>*%]) *")
_NOUGHT = re.compile(r"(?<![\w.$])0(?=\.\d)")
# The brackets round a single parameter; a shorter word for names that tsc has seen to be constant.
_SINGLE = re.compile(r"\((\w+)\)(?= ?=>)")
_CONST = re.compile(r"(?<![\w.$])const(?= )")
# Line breaks that end no statement, the comma after a last item, the semicolon before a brace.
_IDLE = re.compile(r"(?<=[;{,(\[?:])\n|(?<=>)\n|\n(?=[.?:)\]}])|[,;](?=\n?[)\]}])")


@cache
def _squeezed(text: str) -> str:
    """Return the script without the spaces and signs that separate nothing."""
    pieces, end = [], 0
    for whole in [*_WHOLE.finditer(text), None]:
        code = text[end : whole.start() if whole else None]
        assert "${" not in code, "a template inside another one: give the inner one a name"
        code = _SINGLE.sub(r"\1", _CONST.sub("let", _NOUGHT.sub("", code)))
        code = _SPACES.sub(r"\1", _BINARY.sub(r"\1", code))
        pieces += [_IDLE.sub("", code), whole[0] if whole else ""]
        end = whole.end() if whole else end
    return "".join(pieces)


def _imported(name: str, above: tuple[str, ...] = ()) -> list[str]:
    """The files that a file needs, each once and after all that it needs itself."""
    path = (*above, name)
    assert name not in above, f"{name}.js: imports itself, by way of {' and '.join(path[path.index(name) + 1 : -1])}"
    assert (STATIC / f"{name}.js").exists(), f"{above[-1] if above else name}.js: imports {name}.js, which is not there"
    needed = [other for _, file in _found(_IMPORT, read(f"{name}.js")) for other in (*_imported(file, path), file)]
    return list(dict.fromkeys(needed))


def _later(name: str) -> list[str]:
    """The files that a file and those that it imports ask for when they need them."""
    imported = [*_imported(name), name]
    found = list(dict.fromkeys(other for file in imported for other in _found(_LATER, read(f"{file}.js"))))
    for other in found:
        assert other not in imported, f"{name}.js: imports {other}.js at once and later"
        assert not _KEYWORD.search(_bare(read(f"{other}.js"))), f"{other}.js: comes later and imports nothing"
    return found


@cache
def _with_objects(text: str) -> str:
    for found in _IMPORT.finditer(text):
        own = rf"^(?:export )?(?:async )?(?:function|const|let|class) {_variable(found[2])}\b"
        assert not re.search(own, text, re.MULTILINE), f"{found[2]}.js: who imports it has that name for something else"
    return _IMPORT.sub(lambda found: f"const {found[1]} = {_variable(found[2])};", text)


def _maker(name: str) -> str:
    """A function that runs the file and returns the object of its exports."""
    text = _with_objects(read(f"{name}.js"))
    exports, body = _found(_EXPORT, text), _bare(text)
    assert not _KEYWORD.search(body), f"{name}.js: a file that others import exports plain names, and imports such"
    return f"() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}}"


@cache
def _found(pattern: re.Pattern[str], text: str) -> tuple:
    return tuple(pattern.findall(text))


@cache
def _bare(text: str) -> str:
    """The script without the word *export*."""
    return _EXPORT.sub("", text)


def _variable(name: str) -> str:
    return name.replace(".", "_")
