"""Build a single page into the existing site: make page CHAPTER=attention/scaling.

Its notebook is run if its outputs may have changed. Parts of the page that other pages show, such as its heading, are
updated there by the next ``make book``.
"""

import os
import sys
from pathlib import Path

import yaml
from runs import BUILD, ROOT, run_notebooks

SITE = BUILD / "html"
STATE = BUILD / ".doctrees" / "environment.pickle"  # Sphinx's data on all pages


def pages(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of the pages in ``_toc.yml`` by their names, such as ``attention/scaling`` and ``intro``."""

    def listed(entries: object) -> list[str]:
        if isinstance(entries, list):
            return [name for entry in entries for name in listed(entry)]
        if isinstance(entries, dict):
            own = [entries[key] for key in ("root", "file") if key in entries]
            return own + [name for value in entries.values() if isinstance(value, list) for name in listed(value)]
        return []

    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    files = {name: [root / f"{name}{suffix}" for suffix in (".ipynb", ".md", ".rst")] for name in listed(contents)}
    return {
        name.removeprefix("book/"): next(path for path in places if path.exists()) for name, places in files.items()
    }


def page(chapter: str, known: dict[str, Path]) -> Path:
    """Return the file of a page, given its full name or the end of its name, if that is unique.

    Raises:
        ValueError: if there is no such page, or more than one.
    """
    name = chapter.strip().removeprefix("book/")
    name = name.removesuffix(".ipynb").removesuffix(".md").removesuffix(".rst")
    if name in known:
        return known[name]
    found = [one for one in known if one.endswith(f"/{name}")] if name else []
    chapters = [one for one in found if not one.startswith("exercises/")] or found
    if len(chapters) != 1:
        what = f"one of these pages: {', '.join(chapters or known)}"
        raise ValueError(f"CHAPTER must name {what}; got {chapter!r}")
    return known[chapters[0]]


def build_page(path: Path) -> int:
    """Run the notebook if necessary and write its page; return the exit status."""
    name = path.relative_to(ROOT)
    if path.suffix == ".ipynb" and not run_notebooks(ROOT, only=[name]):
        return 1
    from jupyter_book.sphinx import build_sphinx  # imported late, since it takes seconds

    settings = {
        "external_toc_path": (ROOT / "_toc.yml").as_posix(),
        "latex_individualpages": False,
        "nitpicky": True,
        "one_page": name.with_suffix("").as_posix(),
    }
    state = STATE.read_bytes()
    status = build_sphinx(
        ROOT,
        SITE,
        noconfig=True,
        path_config=ROOT / "_config.yml",
        confoverrides=settings,
        filenames=[str(path)],
        quiet=True,
        warningiserror=True,
        keep_going=True,
    )
    if not STATE.exists():  # Sphinx deletes its data on all pages after an error; the next build needs them
        STATE.write_bytes(state)
    return 0 if status == 0 else 1


def main(arguments: list[str]) -> int:
    """Build the page and print its address."""
    try:
        path = page(arguments[0] if arguments else "", pages())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not (STATE.exists() and SITE.is_dir()):
        print("There is no site yet to which the page can be added: run make book first.", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    if status := build_page(path):
        return status
    print((SITE / path.relative_to(ROOT)).with_suffix(".html").as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
