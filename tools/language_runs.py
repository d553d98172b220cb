"""Run notebooks in another language: compile its catalogs, and run the pages whose code words are translated.

The runs are kept in ``_build/LANGUAGE/outputs``, one for each page, so that the English runs stay as they are. A page
runs again if its English run, its catalogs or the font changes. All other pages show the outputs of their English runs.

Both runs have the same seeds. Numbers that differ nevertheless, such as measured times, are taken from the English run.
"""

import ast
import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable
from html import escape, unescape
from pathlib import Path

import nbformat
from babel.messages.mofile import write_mo
from code_words import words_of_library, words_of_notebook
from dependencies import Library
from fontTools.ttLib import TTCollection, TTFont
from matplotlib.font_manager import findSystemFonts
from runs import BUILD, ROOT, Task, notebooks, run, time_limit

sys.path += [str(ROOT / "book" / "_ext"), str(ROOT)]
from catalogs import LIBRARY, WORDS, code_catalog, finished, folder, read_catalog, translations  # isort: skip
from lessons_lib.page.language import CATALOGS, MISSING, PAGE, VARIABLE, gettext  # isort: skip

TABLE, CELL = '<table class="numbers">', re.compile("<td>(.*?)</td>")

# Fonts for the words in plots, the first that is installed; their names as the font files give them.
FONTS = {
    "zh_CN": (
        "Noto Sans CJK SC",
        "Noto Sans SC",
        "Source Han Sans SC",
        "Source Han Sans CN",
        "PingFang SC",
        "Hiragino Sans GB",
        "Microsoft YaHei",
        "WenQuanYi Micro Hei",
        "WenQuanYi Zen Hei",
        "SimHei",
    )
}


Work = tuple[Task, str, str, str]  # with the language, the key, and the path of the English run


def compile_catalogs(language: str, root: Path = ROOT, target: Path = CATALOGS) -> None:
    """Compile the catalogs that hold words of code, for :mod:`lessons_lib.page.language`."""
    source = folder(language, root)
    compiled = target / language / "LC_MESSAGES"
    for path in sorted(source.rglob("*.po")):
        name = path.relative_to(source).with_suffix("")
        if name.parts[0] in WORDS:
            (compiled / name).parent.mkdir(parents=True, exist_ok=True)
            with (compiled / name.with_suffix(".mo")).open("wb") as file:
                write_mo(file, read_catalog(path))
    for old in compiled.rglob("*.mo"):
        if not (source / old.relative_to(compiled)).with_suffix(".po").exists():
            old.unlink()


def find_font(language: str, target: Path = CATALOGS) -> str:
    """Copy a font of this machine with the language's characters to where plots find it; return its name, or ``""``.

    Matplotlib reads only the first font of a collection: another one of it becomes a file of its own.
    """
    wanted = FONTS.get(language, ())
    found: dict[str, tuple[Path, int]] = {}
    for path in map(Path, sorted(findSystemFonts()) if wanted else ()):
        several = path.suffix in (".ttc", ".otc")
        with TTCollection(path, lazy=True) if several else TTFont(path, lazy=True) as file:
            for number, font in enumerate(file.fonts if isinstance(file, TTCollection) else [file]):
                regular = str(font["name"].getDebugName(2)) in ("Regular", "Medium")  # type: ignore[attr-defined]
                if regular:
                    found.setdefault(str(font["name"].getDebugName(1)), (path, number))  # type: ignore[attr-defined]
    name = next((one for one in wanted if one in found), "")
    copy, note = target / language / "font.otf", target / language / "font.txt"
    if name and not (copy.exists() and note.exists() and note.read_text(encoding="utf-8") == name):
        path, number = found[name]
        copy.parent.mkdir(parents=True, exist_ok=True)
        with TTFont(path, fontNumber=number if path.suffix in (".ttc", ".otc") else -1) as font:
            font.save(copy)
        note.write_text(name, encoding="utf-8")
    elif wanted and not name:
        copy.unlink(missing_ok=True)
        print(f"No font for {language} is installed, such as {wanted[0]}: browsers write the words in plots.")
    return name


def with_translated_words(language: str) -> list[Path]:
    """Return the notebooks among the finished pages whose code words are all translated, as paths in the book."""
    library = translations(folder(language) / f"{LIBRARY}.po")
    if any(text not in library for text in words_of_library()):
        return []
    shown = [name for name, is_shown in notebooks(ROOT).items() if is_shown]
    pages = [name for name in shown if name.with_suffix("").as_posix() in finished(language)]
    return [name for name in pages if not untranslated(language, name)]


def untranslated(language: str, name: Path) -> list[str]:
    """Return the words of a notebook's code that have no translation."""
    known = translations(folder(language) / f"{code_catalog(name.with_suffix('').as_posix())}.po")
    return [text for text in words_of_notebook(ROOT / name) if text not in known]


def run_in_language(language: str, listed: Path) -> bool:
    """Run the pages whose code words are translated, and list the runs that the site in this language shows.

    The list is that of the English site with these runs in place of the English ones. A page that fails is named.
    """
    compile_catalogs(language)
    font, library = find_font(language), Library(ROOT)
    shown = json.loads((BUILD / "runs.json").read_text(encoding="utf-8"))
    waiting: list[Work] = []
    for name in with_translated_words(language):
        path = BUILD / language / "outputs" / name
        notebook = nbformat.read(ROOT / name, as_version=4)
        key = key_of(language, name, font, library.key(notebook))
        english, shown[name.as_posix()] = shown[name.as_posix()], str(path)
        if not path.exists() or nbformat.read(path, as_version=4).metadata.get("key") != key:
            waiting.append(((ROOT / name, notebook, time_limit(ROOT)), language, key, english))
    failed = list(_run_all(waiting))
    if not failed:
        listed.write_text(json.dumps(shown, indent=1), encoding="utf-8")
    return not failed


def key_of(language: str, name: Path, font: str, english: str) -> str:
    """Return the key of a run: that of the English run, with all words that the page may show, and the font."""
    page = folder(language) / f"{code_catalog(name.with_suffix('').as_posix())}.po"
    explorers = sorted(folder(language).glob("explorers/*.po"))
    words = [translations(path) for path in (folder(language) / f"{LIBRARY}.po", page, *explorers)]
    return hashlib.sha256(json.dumps([english, words, font, language]).encode()).hexdigest()[:32]


def take_numbers(ran: nbformat.NotebookNode, english: nbformat.NotebookNode) -> list[str]:
    """Replace glued values and cells of tables that differ by those of the English run, in its language.

    Returns:
        the names of the values, and the English cells, that differed.
    """
    differing: list[str] = []
    for output, other in zip(shown_outputs(ran), shown_outputs(english), strict=True):
        data, wanted = output.data, other.data
        name = output.metadata.get("scrapbook", {}).get("name")
        if name:
            (mime,) = data
            value = repr(gettext(ast.literal_eval(wanted[mime])))
            differing += [name] * (value != data[mime])
            data[mime] = value
        elif TABLE in data.get("text/html", ""):
            cells = CELL.findall(wanted["text/html"])
            values = [escape(gettext(unescape(cell))) for cell in cells]
            was = CELL.findall(data["text/html"])
            differing += [cell for cell, old, new in zip(cells, was, values, strict=True) if old != new]
            parts = CELL.split(data["text/html"])  # what is between the cells, and their contents, in turn
            parts[1::2] = [f"<td>{value}</td>" for value in values]
            data["text/html"] = "".join(parts)
    return differing


def shown_outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the outputs of a run that hold values: what its cells glue, and their tables."""
    found = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [
        one
        for one in found
        if "data" in one and ("scrapbook" in one.metadata or TABLE in one.data.get("text/html", ""))
    ]


def _run_all(waiting: list[Work]) -> Iterable[str]:
    if not waiting:
        return
    with multiprocessing.Pool(min(4, os.cpu_count() or 1, len(waiting))) as pool:
        for name, missing, error in pool.imap_unordered(_run_and_keep, waiting):
            if error:
                print(f"\n{name} failed{error}\n")
                yield name
            elif missing:
                print(f"{name}: without a translation: {', '.join(missing)}")


def _run_and_keep(work: Work) -> tuple[str, list[str], str]:
    """Run one notebook in a language and keep its run; return its name, what stayed English, and an error or ``""``."""
    task, language, key, english = work
    name = task[0].relative_to(ROOT).with_suffix("")
    missing = BUILD / language / "missing" / f"{name}.txt"
    missing.parent.mkdir(parents=True, exist_ok=True)
    missing.write_text("", encoding="utf-8")
    os.environ |= {VARIABLE: language, PAGE: name.as_posix(), MISSING: str(missing)}
    _, ran, error = run(task)
    if not error:
        path = BUILD / language / "outputs" / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        ran.metadata.pop("widgets", None)
        del os.environ[MISSING]
        differing = take_numbers(ran, nbformat.read(english, as_version=4))
        ran.metadata |= {"language": language, "key": key, "differing": differing}
        nbformat.write(ran, path)
    return str(name), list(dict.fromkeys(missing.read_text(encoding="utf-8").splitlines())), error
