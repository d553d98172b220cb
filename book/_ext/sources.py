"""The page *Sources*: what the chapters cite, gathered from their own lists when the book is built.

The lists are written by hand, at the end of each chapter, so that they read well in any notebook. An entry reads
``[1] Authors, *Title*, 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762)``; a DOI or, where a source has
neither, another address may stand in place of the number. What follows up to the next entry is a remark on it.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chapters import chapters, filling, texts

PAGE = "book/references"
MARK = "<!-- sources -->"
HEADING = "**Sources.**"
START = re.compile(r"(?:^|(?<=\n)|(?<=\* )|(?<=[.)] ))(?=\[\d+\] )")  # of a text, a line, a point or a sentence
ENTRY = re.compile(
    r"\[(?P<number>\d+)\] (?P<authors>[^*\[\]]+?), \*(?P<title>[^*]+)\*,(?P<edition> [^*\[\]]+?,)? "
    r"(?P<year>(?:19|20)\d\d), \[(?P<label>[^\]]+)\]\((?P<address>https://[^\s)]+)\)"
)
CITED = re.compile(r"\[(\d+(?:, ?\d+)*)(?:, [^\d\]][^\]]*)?\](?![(\[])")  # [1], [1, 2] and [1, figure 2]
IDS = {"arXiv:": "https://arxiv.org/abs/", "doi:": "https://doi.org/"}


@dataclass(frozen=True)
class Source:
    """What one entry says, without its number."""

    authors: str
    title: str
    edition: str
    year: str
    label: str
    address: str

    def __str__(self) -> str:
        return f"{self.authors}, *{self.title}*,{self.edition} {self.year}, [{self.label}]({self.address})"

    @property
    def place(self) -> tuple[str, str, str]:
        """Where it stands in an alphabet: by the first author's name, accents left aside, then by year and title."""
        name = unicodedata.normalize("NFKD", self.authors).encode("ascii", "ignore").decode()
        return name.casefold(), self.year, self.title.casefold()


def listed(chapter: Path) -> dict[int, Source]:
    """The chapter's entries by their numbers.

    Raises:
        ValueError: if the chapter has no list or more than one, a number comes twice or out of order, or an entry is
            not of the form.
    """
    lists = [text.split(HEADING, 1)[1] for text in texts(chapter) if HEADING in text]
    if len(lists) != 1:
        raise ValueError(f"{chapter.name} must have one list after {HEADING}, got {len(lists)}")
    found = {}
    before, *entries = START.split(lists[0].strip())
    if before.strip(" *") or not entries:
        raise ValueError(f"the list of {chapter.name} must begin with an entry, got {lists[0].strip()[:60]!r}")
    for text in entries:
        entry = ENTRY.match(text)
        if entry is None:
            raise ValueError(
                f"an entry of {chapter.name} must read [1] Authors, *Title*, 2017, [arXiv:…](https://…), got {text!r}"
            )
        said = entry.groupdict(default="")
        number = int(said.pop("number"))
        if number != len(found) + 1:
            raise ValueError(f"the entries of {chapter.name} must count from 1, got {number} after {len(found)}")
        prefix = next((prefix for prefix in IDS if said["label"].startswith(prefix)), "")
        if prefix and said["address"] != IDS[prefix] + said["label"].removeprefix(prefix):
            raise ValueError(f"{said['label']} in {chapter.name} must lead to its own page, got {said['address']}")
        found[number] = Source(**said)
    return found


def cited(chapter: Path) -> set[int]:
    """The numbers in square brackets that the chapter's text holds; formulas, code and the list itself left out."""
    plain = (re.sub(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", "", t.split(HEADING)[0], flags=re.DOTALL) for t in texts(chapter))
    return {int(number) for text in plain for group in CITED.findall(text) for number in group.split(",")}


def with_lists(root: Path) -> dict[str, Path]:
    """The chapters that have a list, by their titles."""
    return {title: path for title, path in chapters(root).items() if any(HEADING in text for text in texts(path))}


def gathered(root: Path) -> dict[Source, list[str]]:
    """Every source once, in alphabetical order, with the titles of the chapters that have it."""
    found: dict[Source, list[str]] = {}
    for title, path in with_lists(root).items():
        for source in listed(path).values():
            found.setdefault(source, []).append(title)
    return dict(sorted(found.items(), key=lambda item: item[0].place))


def written(root: Path) -> str:
    """The list of the page, in Markdown."""
    links = {title: f"[{title}](/{path.relative_to(root)})" for title, path in with_lists(root).items()}

    def line(source: Source, titles: Iterable[str]) -> str:
        return f"* {source}. In {', '.join(links[title] for title in titles)}."

    return "\n".join(line(source, titles) for source, titles in gathered(root).items())


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", filling(PAGE, lambda text, root: text.replace(MARK, written(root))))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
