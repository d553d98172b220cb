"""Bundle the modules of an explorer into one script: an ES module for a notebook, a classic script for a page.

Each file in ``static/`` is an ES module that may import from the files beside it. Over HTTP a browser loads the files
as they are, and so do the tests. A live notebook takes a single module, and a page that is opened from ``file://``
loads no module at all. For these two, every imported file becomes a function that runs the file and returns the object
of its exports. These functions stand in front of the script, each after the files that it imports.

On a page the object of a file is stored under a key made of the file's name and content, so that several explorers
share one copy of ``kit.js``. A dynamic import, ``await import("./NAME.js")``, becomes a promise of such an object; a
book may keep that file elsewhere and fetch it when it is needed (``window.xLater``). An import or export in any other
form raises an error.

The scripts are not minified: comments and spaces make the explorers 11 % larger after compression, weights included.
Files are read at each call, so a changed script is used by the next explorer. What is made of the same texts is kept.
"""

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"

_IMPORT = re.compile(r'^import (\{[\w\s,]+\}) from "\./([\w.]+)\.js";$', re.MULTILINE)
# Not followed by a dot: `import("./kit.js").Value` is a type in a comment.
_DYNAMIC_IMPORT = re.compile(r'\bimport\("\./([\w.]+)\.js"\)(?!\.)')
_EXPORT = re.compile(r"^export (?=(?:function|const|class) (\w+))", re.MULTILINE)
_DEFAULT = re.compile(r"^export default (?=\{)", re.MULTILINE)
_COMMENT = re.compile(r"/\*\*.*?\*/|^[ \t]*//[^\n]*", re.MULTILINE | re.DOTALL)
_KEYWORD = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)
_ANY_IMPORT = re.compile(r"\bimport\b\s*[\w{*\"'(]")

_PARTS = "window.xParts"
_LATER = "window.xLater"


def read(file: str) -> str:
    """Return the text of a file in ``static/``; raise an error if it would end the HTML element that holds it."""
    text = (STATIC / file).read_text(encoding="utf-8")
    closing = _closing(text)
    assert not closing, f"{file}: {closing} would end the element that holds it"
    return text


def files(name: str) -> dict[str, str]:
    """Return the texts of ``static/NAME.js`` and of the files that it imports at once, by their names."""
    return {file: read(f"{file}.js") for file in (*_imports(name), name)}


def without_comments(script: str) -> str:
    """Return a script without the comments that begin a line, and without those of the form ``/** */``."""
    return _COMMENT.sub("", script)


def es_module(name: str) -> str:
    """Return ``static/NAME.js`` and the files that it imports as one ES module."""
    return _as_module(_sources(name))


def style_sheets(name: str) -> dict[str, str]:
    """Return the rules of all explorers and, if ``static/NAME.css`` exists, the explorer's own, nested in its class.

    The element of an explorer has the classes ``explorer`` and ``x-NAME``. Its own rules therefore apply to no other
    explorer of the page, and override the common ones whatever the order of the two sheets.
    """
    sheets = {"explorer": read("explorer.css")}
    if (STATIC / f"{name}.css").exists():
        sheets[name] = f".explorer.x-{name}{{{read(f'{name}.css')}}}"
    return sheets


def style_element(name: str, style: str) -> str:
    """Return a style element whose key lets a page leave out further copies of the same style."""
    return f'<style data-part="{_key(f"{name}-css", style)}">{style}</style>'


def page_scripts(
    name: str, state: dict[str, object], rules: dict[str, object] | None = None
) -> tuple[dict[str, str], str]:
    """Return the scripts of the imported files by their keys, and the script that draws the explorer.

    The last script draws into the element that contains it, and starts with ``state``. A key changes with the content
    of its file, and a file whose key the page knows is not run again, so a page may keep one copy of each.

    Args:
        name: of the explorer, ``static/NAME.js``.
        state: the value of each trait.
        rules: for each trait, the values that it may take; a page checks the state in its address against them.
    """
    sources = _sources(name)
    _as_module(sources)  # raises an error if the files cannot be bundled
    scripts, module, model = _as_parts(sources, read("page_model.js"))
    about = "" if rules is None else f"explorer.about = {_json({'name': name, 'rules': rules})};\n"
    start = f'xParts["{model}"].mount(explorer, {_json(state)});'
    return dict(scripts), f'(() => {{\n"use strict";\n{module}\n{about}{start}\n}})();'


def classic_script(name: str, state: dict[str, object], rules: dict[str, object] | None = None) -> str:
    """Return the scripts of :func:`page_scripts` as one script."""
    scripts, own = page_scripts(name, state, rules)
    return "\n".join([*scripts.values(), own])


def in_page(kind: str, styles: str, still: str, scripts: tuple[dict[str, str], str]) -> str:
    """Return HTML that is live in any page, and shows ``still`` where scripts are off.

    ``scripts`` come from :func:`page_scripts`. All scripts but the last are marked ``data-part`` with their keys, as
    ``styles`` are by :func:`style_element`: a page needs one element of each key.
    """
    shared, own = scripts
    parts = "".join(f'<script data-part="{key}">{script}</script>' for key, script in shared.items())
    return f'<div class="{kind}">{styles}<div class="x-still">{still}</div>{parts}<script>{own}</script></div>'


def made_from(kind: type, state: dict[str, object]) -> dict[str, object]:
    """Return the metadata of an output that ``kind(**state).to_html()`` made.

    A book that stores the output makes it again when a script or a style has changed. The state is one string because a
    notebook sorts the names in its metadata when it is written.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    return {"text/html": {"made_from": {"class": name, "state": json.dumps(state)}}}


class _Sources(NamedTuple):
    """The text of an explorer's file, and names and texts of the files that it imports, dynamically and at once."""

    name: str
    module: str
    dynamic: tuple[tuple[str, str], ...]
    imported: tuple[tuple[str, str], ...]


def _sources(name: str) -> _Sources:
    at_once = files(name)
    later = dict.fromkeys(other for text in at_once.values() for other in _find_all(_DYNAMIC_IMPORT, text))
    module = at_once.pop(name)
    return _Sources(name, module, tuple((other, read(f"{other}.js")) for other in later), tuple(at_once.items()))


@cache
def _as_module(sources: _Sources) -> str:
    """Return the files as one ES module."""
    name, module, dynamic, imported = sources
    for other, text in dynamic:
        assert other not in dict(imported), f"{name}.js: imports {other}.js at once and later"
        code = without_comments(_without_exports(text))
        assert not _KEYWORD.search(code), f"{other}.js: comes later and imports nothing"
    later = [f"const {_variable(other)} = async {_as_function(other, text)};" for other, text in dynamic]
    at_once = [f"const {_variable(other)} = ({_as_function(other, text)})();" for other, text in imported]
    text = "\n".join([*later, *at_once, _link_variables(module)])
    text = _DYNAMIC_IMPORT.sub(lambda found: f"{_variable(found[1])}()", text)
    code = without_comments(text)
    assert not _ANY_IMPORT.search(code), f"{name}.js: imports more than names from files beside it"
    assert len(_DEFAULT.findall(code)) == 1, f"{name}.js: needs exactly one `export default {{ render }}`"
    return text


@cache
def _as_parts(sources: _Sources, page_model: str) -> tuple[dict[str, str], str, str]:
    """Return the scripts of the imported files by their keys, the explorer's own, and the key of the page's model."""
    name, module, dynamic, imported = sources
    keys: dict[str, str] = {}
    scripts: dict[str, str] = {}
    for other, text in [*dynamic, *imported, ("page_model", page_model)]:
        linked = _link_parts(text, keys)
        body = f"{_without_exports(linked)}\nreturn {{ {', '.join(_find_all(_EXPORT, linked))} }};"
        keys[other] = _key(other, body)
        scripts[keys[other]] = f'({_PARTS} ??= {{}})["{keys[other]}"] ??= (() => {{\n{body}\n}})();'
    own = _without_exports(_DEFAULT.sub("const explorer = ", _link_parts(module, keys)))
    assert not _KEYWORD.search(without_comments(own)), f"{name}.js: exports in a form that a script cannot take"
    return scripts, own, keys["page_model"]


def _key(name: str, text: str) -> str:
    """Return a key that changes with the text."""
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _json(value: object) -> str:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # so that no label ends the script


def _imports(name: str, importing: tuple[str, ...] = ()) -> list[str]:
    """Return the files that a file imports, directly or not, each once and after the files that it imports itself."""
    path = (*importing, name)
    cycle = " and ".join(path[path.index(name) + 1 : -1])
    assert name not in importing, f"{name}.js: imports itself, by way of {cycle}"
    importer = importing[-1] if importing else name
    assert (STATIC / f"{name}.js").exists(), f"{importer}.js: imports {name}.js, which is not there"
    needed = [other for _, file in _find_all(_IMPORT, read(f"{name}.js")) for other in (*_imports(file, path), file)]
    return list(dict.fromkeys(needed))


def _link_variables(text: str) -> str:
    """Take the imports from the variables that hold the objects of the files."""
    for found in _IMPORT.finditer(text):
        own = rf"^(?:export )?(?:async )?(?:function|const|let|class) {_variable(found[2])}\b"
        assert not re.search(own, text, re.MULTILINE), f"{found[2]}.js: the importing file uses {_variable(found[2])}"
    return _IMPORT.sub(lambda found: f"const {found[1]} = {_variable(found[2])};", text)


def _link_parts(text: str, keys: dict[str, str]) -> str:
    """Take the imports from the page's objects of the files."""
    text = _IMPORT.sub(lambda found: f'const {found[1]} = xParts["{keys[found[2]]}"];', text)
    return _DYNAMIC_IMPORT.sub(lambda found: f'({_LATER} ?? (async (key) => {_PARTS}[key]))("{keys[found[1]]}")', text)


def _as_function(name: str, text: str) -> str:
    """Return a function that runs the file and returns the object of its exports."""
    text = _link_variables(text)
    body = _without_exports(text)
    plain = not _KEYWORD.search(without_comments(body))
    assert plain, f"{name}.js: an imported file exports plain names, and imports plain names"
    return f"() => {{\n{body}\nreturn {{ {', '.join(_find_all(_EXPORT, text))} }};\n}}"


@cache
def _closing(text: str) -> str:
    """Return what would end the HTML element that holds a text, or an empty text."""
    return next((one for one in ("</script", "</style", "<!--") if one in text.lower()), "")


@cache
def _find_all(pattern: re.Pattern[str], text: str) -> tuple:
    return tuple(pattern.findall(text))


def _without_exports(text: str) -> str:
    """Return the script without the keyword ``export`` before its definitions."""
    return _EXPORT.sub("", text)


def _variable(name: str) -> str:
    """Return the variable that holds the object of a file's exports: ``kit.math`` becomes ``kit_math_js``."""
    return f"{name.replace('.', '_')}_js"
