"""Build one page into the site that is there: make page CHAPTER=attention/scaling.

Its notebook runs if its outputs may have changed. What other pages show of it, such as its heading, changes with the
next ``make book``.
"""

import os
import sys
from pathlib import Path

import yaml
from runs import BUILD, ROOT, run_notebooks

SITE = BUILD / "html"
STATE = BUILD / ".doctrees" / "environment.pickle"  # what Sphinx knows of all pages


def pages(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of the pages in the contents by their names, such as ``attention/scaling`` and ``intro``."""

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


def page(asked: str, known: dict[str, Path]) -> Path:
    """Return the file of the page that is asked for, by its whole name or by the end of it, if that is unique.

    Raises:
        ValueError: if there is no such page, or more than one.
    """
    name = asked.strip().removeprefix("book/")
    name = name.removesuffix(".ipynb").removesuffix(".md").removesuffix(".rst")
    if name in known:
        return known[name]
    found = [one for one in known if one.endswith(f"/{name}")] if name else []
    chapters = [one for one in found if not one.startswith("exercises/")] or found
    if len(chapters) != 1:
        what = f"of these pages one: {', '.join(chapters)}" if chapters else f"a page of: {', '.join(known)}"
        raise ValueError(f"CHAPTER must name {what}; got {asked!r}")
    return known[chapters[0]]


def build_page(path: Path) -> int:
    """Run the notebook if need be and write its page; return the exit status."""
    name = path.relative_to(ROOT)
    if path.suffix == ".ipynb" and not run_notebooks(ROOT, only=[name]):
        return 1
    from jupyter_book.sphinx import build_sphinx  # after what may have failed: this takes seconds

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
    if not STATE.exists():  # Sphinx forgets all pages after an error; the next try needs them
        STATE.write_bytes(state)
    return 0 if status == 0 else 1


def main(arguments: list[str]) -> int:
    """Build the page; say where it is."""
    try:
        path = page(arguments[0] if arguments else "", pages())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not (STATE.exists() and SITE.is_dir()):
        print("There is no site yet to put the page into: run make book first.", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    if status := build_page(path):
        return status
    print((SITE / path.relative_to(ROOT)).with_suffix(".html").as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
