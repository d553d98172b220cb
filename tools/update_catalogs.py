"""Update the catalogs of all languages from the book, and report what is missing or fuzzy: make catalogs.

A message that has changed keeps its translation as *fuzzy*, which no page shows until a person has removed the mark. A
message that no longer exists stays at the end of its catalog, commented out.

The words that the code of a notebook shows are found in its syntax tree (``code_words.py``): no build is needed.
They are in a catalog of their own, ``code/PAGE.po``, and those of the library in ``lessons_lib.po``. The messages of
the exercises' checks are in ``checks/FILE.po``, those of all checks in ``checks/shared.po``.

Only pages whose translation has begun have catalogs. The next page begins with

    python tools/update_catalogs.py --begin attention/masks

a file of checks with ``--begin checks/masks``, and a new language with ``--language fr --begin intro``. The texts of an
explorer have a catalog of their own, such as ``explorers/masks``; those of scripts that several explorers import are in
``explorers/shared``.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml
from babel.messages.catalog import Catalog
from babel.messages.pofile import write_po
from build_page import pages
from code_words import messages_of_checks, words_of_library, words_of_notebook
from runs import ROOT

sys.path.append(str(ROOT / "book" / "_ext"))
from catalogs import (  # isort: skip
    CHECKS,
    CODE,
    CONTENTS,
    LIBRARY,
    SITE,
    code_catalog,
    folder,
    headings_of_reference,
    languages,
    read_catalog,
    words_of_extensions,
    words_of_scripts,
)
from messages import messages_of_page  # isort: skip

sys.path.append(str(ROOT))  # a script has its own folder on the path, not the repository
from lessons_lib.page.language import COMMA, SHARED
from lessons_lib.page.widgets.assemble import STATIC, files
from lessons_lib.page.widgets.words import texts_of_class, texts_of_script

HEADER = """msgid ""
msgstr ""
"Language: {language}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"

"""


def domains(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the messages of each catalog: pages and their code, ``_toc.yml``, extensions, explorers, library, checks.

    The reference of the library is not among them: it is made from docstrings.
    """
    words = dict.fromkeys([*words_of_extensions(root), *words_of_scripts(root)])
    found = {CONTENTS: titles(root), SITE: list(words), LIBRARY: words_of_library(root), **words_of_explorers()}
    found |= words_of_checks(root)
    for path in pages(root).values():
        if path.suffix != ".rst" and "reference" not in path.parts:
            name = path.relative_to(root).with_suffix("").as_posix()
            found[name] = messages_of_page(path)
            if path.suffix == ".ipynb" and (words := words_of_notebook(path)):
                found[code_catalog(name)] = words
    return found


def titles(root: Path) -> list[str]:
    """Return the title and authors of the book, captions and titles in ``_toc.yml``, and headings of the reference."""
    parts = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    found = [settings["title"], settings["author"], *(part["caption"] for part in parts)]
    found += [page["title"] for part in parts for page in part["chapters"] if "title" in page]
    found += headings_of_reference(root).values()
    return list(dict.fromkeys(found))


def words_of_explorers() -> dict[str, list[str]]:
    """Return the texts of each explorer: of its class, and of the scripts that it alone imports."""
    names = sorted(path.stem for path in STATIC.glob("*.js") if "export default {" in path.read_text(encoding="utf-8"))
    scripts = {name: files(name) for name in names}
    importers = Counter(script for imported in scripts.values() for script in imported)
    texts: dict[str, list[str]] = {"shared": []}
    for name, imported in scripts.items():
        path = STATIC.parent / f"{name}.py"
        texts[name] = texts_of_class(path) if path.exists() else []
        for script, code in imported.items():
            texts["shared" if importers[script] > 1 else name] += texts_of_script(code)
    return {f"explorers/{name}": list(dict.fromkeys(found)) for name, found in texts.items()}


def words_of_checks(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the messages of each file of checks, and those of all checks with the separators of their lists."""
    files = sorted((root / "lessons_lib" / "checks").glob("*.py"))
    found = {f"{CHECKS}/{path.stem}": messages_of_checks(path) for path in files}
    return {f"{CHECKS}/{SHARED}": ["; ", COMMA, *found.pop(f"{CHECKS}/__init__")], **found}


def updated(path: Path, texts: Iterable[str], source: str, language: str) -> Catalog:
    """Return the catalog of a file, merged with the present messages."""
    template = Catalog()
    for text in texts:
        template.add(text, locations=[(source, 0)])
    catalog = read_catalog(path) if path.exists() else Catalog(locale=language)
    catalog.update(template, update_header_comment=False)
    return catalog


def write(catalog: Catalog, path: Path, language: str) -> None:
    """Write a catalog, without the time at which it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(HEADER.format(language=language).encode())
        write_po(file, catalog, width=0, omit_header=True, include_lineno=False)


def has_catalog(language: str, name: str, root: Path = ROOT) -> bool:
    """Return whether the translation of a page has begun."""
    return (folder(language, root) / f"{name}.po").exists()


def missing_and_fuzzy(catalog: Catalog) -> tuple[int, int]:
    """Return how many messages have no translation, and how many have a fuzzy one."""
    real = [one for one in catalog if one.id]
    return sum(not one.string for one in real), sum(bool(one.string) and one.fuzzy for one in real)


def update(language: str, begun: Iterable[str] = (), root: Path = ROOT) -> None:
    """Update the catalogs of one language, begin those of the pages ``begun``, and print what they lack.

    Raises:
        ValueError: if ``begun`` names a page that does not exist.
    """
    rows, waiting = [], []
    found = domains(root)
    wanted = {CONTENTS, SITE, LIBRARY}
    wanted |= {name if name.startswith(("book/", "explorers/", f"{CHECKS}/")) else f"book/{name}" for name in begun}
    if unknown := sorted(wanted - found.keys()):
        raise ValueError(
            f"--begin must name pages such as attention/masks or explorers/masks, got {', '.join(unknown)}"
        )
    for name, texts in found.items():
        path = folder(language, root) / f"{name}.po"
        page = name.removeprefix(f"{CODE}/")
        if not (path.exists() or page in wanted or has_catalog(language, page, root)):
            if page == name:
                waiting.append(name.removeprefix("book/"))
            continue
        catalog = updated(path, texts, name, language)
        write(catalog, path, language)
        rows.append((name, len(texts), *missing_and_fuzzy(catalog)))
    for old in sorted(folder(language, root).rglob("*.po")):
        if (name := old.relative_to(folder(language, root)).with_suffix("").as_posix()) not in found:
            print(f"{language}: {name}.po belongs to no page; remove it or rename it with its page")
    print(f"{language:<52}{'messages':>9}{'missing':>9}{'fuzzy':>9}")
    for name, total, missing, fuzzy in rows:
        if missing or fuzzy:
            print(f"  {name:<50}{total:>9}{missing:>9}{fuzzy:>9}")
    total, missing, fuzzy = (sum(row[i] for row in rows) for i in (1, 2, 3))
    print(f"  {'in all':<50}{total:>9}{missing:>9}{fuzzy:>9}")
    print(f"  not begun, {len(waiting)}: {', '.join(waiting)}")


def main(arguments: list[str] | None = None) -> int:
    """Update every language, or the one that ``--language`` names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", help="only this language, which may be new")
    parser.add_argument("--begin", nargs="+", default=[], metavar="PAGE", help="pages whose catalogs are begun")
    wanted = parser.parse_args(arguments)
    for language in [wanted.language] if wanted.language else languages():
        update(language, wanted.begin)
    return 0


if __name__ == "__main__":
    sys.exit(main())
