"""The page *How this book is made*: its tables of versions, records and weights, generated when the book is built."""

import json
import re
from pathlib import Path
from typing import NamedTuple

from catalogs import gettext, mark
from catalogs import title as title_of
from chapters import chapters, page_filler

PAGE = "book/back/colophon"
RECORDS, SCRIPTS = "benchmarks/results", "lessons_lib/page/widgets/static"
# What requirements are for, as requirements.txt says it, for the catalogs.
PURPOSES = (
    *(mark("the library"), mark("the notebooks"), mark("the book"), mark("the exercises")),
    *(mark("the wheel"), mark("the tests")),
)
# What records say of a device besides its name, and what separates the device from the versions.
ONE_THREAD, SEPARATOR = mark("one thread"), mark("; ")
COMMAND = re.compile(r'"command": "([^"]*)"')
MAKER = re.compile(r"^/\*\* .*\bby (tools/\w+\.py)")


class Recorded(NamedTuple):
    """A file of recorded runs: its command, date, device and versions, and the titles of the chapters that read it."""

    command: str
    date: str
    device: str
    versions: str
    read_in: list[str]


def pins(root: Path) -> dict[str, dict[str, str]]:
    """Return the direct requirements and their versions by purpose: the upper part of ``requirements.txt``."""
    groups: dict[str, dict[str, str]] = {}
    for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# what these bring"):
            break
        if line.startswith("# the "):
            purpose = line.removeprefix("# ").partition(" (")[0]
        elif "==" in line:
            name, _, version = line.partition(";")[0].partition("==")
            groups.setdefault(purpose, {})[name] = version
    return groups


def records(root: Path) -> dict[str, Recorded]:
    """Return the records that chapters read, by file name.

    Raises:
        ValueError: if a record does not state its command, date, device and versions.
    """
    found = {}
    sources = {title: path.read_text(encoding="utf-8") for title, path in chapters(root).items()}
    for path in sorted((root / RECORDS).glob("*.json")):
        read_in = [title for title, source in sources.items() if path.name in source]
        about = json.loads(path.read_text(encoding="utf-8"))
        if not read_in or isinstance(about, list):  # a list is the compilers' output on the kernels, not a run
            continue
        missing = {"command", "date", "device", "versions"} - set(about)
        if missing:
            raise ValueError(f"{path.name} must say how it was made, but has no {sorted(missing)}")
        versions = ", ".join(f"{name} {version.partition('+')[0]}" for name, version in about["versions"].items())
        found[path.name] = Recorded(about["command"], about["date"], about["device"], versions, read_in)
    return found


def generated_scripts(root: Path) -> dict[str, tuple[str, int]]:
    """Return, for each generated script of weights or numbers, the command that wrote it and its size in bytes."""
    found = {}
    for path in sorted((root / SCRIPTS).glob("*.js")):
        text = path.read_text(encoding="utf-8")
        if maker := MAKER.match(text):
            command = COMMAND.search(text)
            found[path.name] = (command[1] if command else f"python {maker[1]}", len(text.encode()))
    return found


def tables(root: Path) -> dict[str, str]:
    """Return the Markdown table that replaces each mark on the page."""
    links = {title: f"[{title_of(title)}](/{path.relative_to(root)})" for title, path in chapters(root).items()}
    versions = [
        f"| {gettext(purpose)} | {gettext(', ').join(f'{name} {version}' for name, version in named.items())} |"
        for purpose, named in pins(root).items()
    ]
    runs = [
        f"| {gettext(', ').join(links[title] for title in run.read_in)} | `{run.command}` | {run.date} "
        f"| {in_words(run.device)}{gettext(SEPARATOR)}{in_words(run.versions)} |"
        for run in records(root).values()
    ]
    scripts = generated_scripts(root)
    weights = [f"| `{name}` | `{command}` | {size / 1000:.0f} |" for name, (command, size) in scripts.items()]
    return {
        "<!-- versions -->": table((mark("for"), mark("pinned")), versions),
        "<!-- records -->": table((mark("read in"), mark("made by"), mark("on"), mark("device, versions")), runs),
        "<!-- weights -->": table((mark("script"), mark("written by"), mark("kB")), weights),
    }


def in_words(listed: str) -> str:
    """Return what a record lists, between commas, in the language of this build; names stay as they are."""
    return gettext(", ").join(map(gettext, listed.split(", ")))


def table(columns: tuple[str, ...], rows: list[str]) -> str:
    """Return a Markdown table with the names of its columns in the language of this build."""
    head = "".join(f"| {gettext(column)} " for column in columns) + "|"
    return "\n".join((head, "|---" * len(columns) + "|", *rows))


def with_tables(text: str, root: Path) -> str:
    """Return the page's Markdown with each mark replaced by its table."""
    for place, filled in tables(root).items():
        text = text.replace(place, filled)
    return text


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", page_filler(PAGE, with_tables))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
