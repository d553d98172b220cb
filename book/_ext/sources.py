"""The page *Sources*: the sources of all chapters, collected from the chapters' lists when the book is built.

The lists are written by hand at the end of each chapter, so that they read well in any notebook. An entry reads
``[1] Authors, *Title*, 2017, [arXiv:1706.03762](https://arxiv.org/abs/1706.03762)``. A DOI may stand in place of the
arXiv number, and another address if a source has neither. The text up to the next entry is a remark.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from catalogs import gettext
from catalogs import title as title_of
from chapters import chapters, markdown_cells, page_filler

PAGE = "book/references"
MARK = "<!-- sources -->"
HEADING = re.compile(r"^## Sources$", re.MULTILINE)
START = re.compile(
    r"(?:^|(?<=\n)|(?<=\* )|(?<=[.)] ))(?=\[\d+\] )"
)  # at the start of a text, a line, a list item or a sentence
ENTRY = re.compile(
    r"\[(?P<number>\d+)\] (?P<authors>[^*\[\]]+?), \*(?P<title>[^*]+)\*,(?P<edition> [^*\[\]]+?,)? "
    r"(?P<year>(?:19|20)\d\d), \[(?P<label>[^\]]+)\]\((?P<address>https://[^\s)]+)\)"
)
CITED = re.compile(r"\[(\d+(?:, ?\d+)*)(?:, [^\d\]][^\]]*)?\](?![(\[])")  # [1], [1, 2] and [1, figure 2]
NOT_CITED = re.compile(r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\[[^\]]*\]\(<?#explore=[^)]*\)", re.DOTALL)
IDS = {"arXiv:": "https://arxiv.org/abs/", "doi:": "https://doi.org/"}


@dataclass(frozen=True)
class Source:
    """One entry of a list of sources, without its number."""

    authors: str
    title: str
    edition: str
    year: str
    label: str
    address: str

    def __str__(self) -> str:
        return f"{self.authors}, *{self.title}*,{self.edition} {self.year}, [{self.label}]({self.address})"

    @property
    def sort_key(self) -> tuple[str, str, str]:
        """Return the key for alphabetical order: the authors without accents, the year, the title."""
        name = unicodedata.normalize("NFKD", self.authors).encode("ascii", "ignore").decode()
        return name.casefold(), self.year, self.title.casefold()


def sources_of(chapter: Path) -> dict[int, Source]:
    """Return a chapter's sources by their numbers.

    Raises:
        ValueError: if the chapter has no list or more than one, the numbers do not count from 1, or an entry has not
            the required form.
    """
    lists = [HEADING.split(text, maxsplit=1)[1] for text in markdown_cells(chapter) if HEADING.search(text)]
    if len(lists) != 1:
        raise ValueError(f"{chapter.name} must have one list under ## Sources, got {len(lists)}")
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
        fields = entry.groupdict(default="")
        number = int(fields.pop("number"))
        if number != len(found) + 1:
            raise ValueError(f"the entries of {chapter.name} must count from 1, got {number} after {len(found)}")
        prefix = next((prefix for prefix in IDS if fields["label"].startswith(prefix)), "")
        if prefix and fields["address"] != IDS[prefix] + fields["label"].removeprefix(prefix):
            raise ValueError(f"{fields['label']} in {chapter.name} must lead to its own page, got {fields['address']}")
        found[number] = Source(**fields)
    return found


def cited_numbers(chapter: Path) -> set[int]:
    """Return the numbers of the citations in a chapter's text, outside of formulas, code, links and the list."""
    texts = (HEADING.split(text)[0] for text in markdown_cells(chapter))
    plain = (NOT_CITED.sub("", text) for text in texts)
    return {int(number) for text in plain for group in CITED.findall(text) for number in group.split(",")}


def chapters_with_sources(root: Path) -> dict[str, Path]:
    """Return the chapters that have a list of sources, by their titles."""
    found = chapters(root).items()
    return {title: path for title, path in found if any(HEADING.search(text) for text in markdown_cells(path))}


def chapters_by_source(root: Path) -> dict[Source, list[str]]:
    """Return every source once, in alphabetical order, with the titles of the chapters that list it."""
    found: dict[Source, list[str]] = {}
    for title, path in chapters_with_sources(root).items():
        for source in sources_of(path).values():
            found.setdefault(source, []).append(title)
    return dict(sorted(found.items(), key=lambda item: item[0].sort_key))


def markdown_list(root: Path) -> str:
    """Return the Markdown list of all sources, which replaces ``MARK`` on the page."""
    links = {
        title: f"[{title_of(title)}](/{path.relative_to(root)})" for title, path in chapters_with_sources(root).items()
    }

    def line(source: Source, titles: Iterable[str]) -> str:
        named = gettext(", ").join(links[title] for title in titles)
        return "* " + gettext("{source}. In {chapters}.").format(source=source, chapters=named)

    return "\n".join(line(source, titles) for source, titles in chapters_by_source(root).items())


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", page_filler(PAGE, lambda text, root: text.replace(MARK, markdown_list(root))))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
