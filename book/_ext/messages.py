"""Find the messages of a page, which are the texts of its blocks, and replace them by their translations.

A message is what Sphinx's gettext builder extracts: the Markdown of one paragraph, heading, list item, table cell,
title of an admonition or caption. MyST's own parser finds the blocks, so that targets, directives, displayed formulas
and code around them stay as they are written. Text without words, such as a cell that contains only a formula, is no
message.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

EXTENSIONS = {"amsmath", "attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath", "html_image"}
TITLED = ("admonition",)  # directives whose argument is text
OPTION = re.compile(r":(\w+): ?(.*)")
WITH_TEXT = ("where", "try")  # options of the directive ``question`` that contain text
SUMMARY = re.compile(r"<summary>(.+?)</summary>")
AFTER_COMMENT = re.compile(r"\s*<!--.*?--> *(?P<text>[^<\s].*)")  # what follows the reading times of a chapter
CELL = re.compile(r"(?:[^|\\]|\\.)+")

FORMULA = re.compile(r"\$\$.+?\$\$|(?<![\\$])\$(?!\$)(?:[^$\\]|\\.)+\$", re.DOTALL)
ROLE = re.compile(r"\{([\w:]+)\}`([^`]+)`")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(r"\]\((<[^<>]*>|(?:[^()\s]|\([^()]*\))*)\)")
TAG = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>", re.DOTALL)
ENTRY = re.compile(r"^eq-[\w-]+:")  # of the cheat-sheet
RELEASE = re.compile(r"[\w.-]+(?:\[\w+\])? \d+(?:\.\w+)+")  # the name and the version of a package
CITATION = re.compile(r"\[\d+(?:, ?\d+)*(?:, [^\d\]][^\]]*)?\](?!\()")
NUMBER = re.compile(r"\d+(?:[. ,]\d+)*")
# Chinese counts in ten thousands and in hundred millions: "1.3 million" is "130 万".
LARGE = re.compile(r"(\d+(?:\.\d+)?) ?(million|billion|万|亿)(?![a-z])")
RANGE = re.compile(r"(\d+(?:\.\d+)?)(?= to \d+(?:\.\d+)? (million|billion)\b)")  # its first number has no unit
UNITS = {"million": 10**6, "billion": 10**9, "万": 10**4, "亿": 10**8}

Lookup = Callable[[str], str | None]


class Message(NamedTuple):
    """A text of a page: its Markdown, its place in the source, and whether it is a heading."""

    text: str
    start: int
    end: int
    is_heading: bool = False


@cache
def parser() -> MarkdownIt:
    """Return MyST's parser with the extensions of the book (``_config.yml``)."""
    return create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)


def messages(text: str, offset: int = 0) -> Iterator[Message]:
    """Yield the messages of Markdown in order; ``offset`` is added to their places.

    >>> [message.text for message in messages("# A *title*\\n\\n* one\\n* two\\n\\n$$\\nx\\n$$")]
    ['A *title*', 'one', 'two']
    """
    lines = text.splitlines(keepends=True)
    places = [offset]
    for line in lines:
        places.append(places[-1] + len(line))
    row, cursor = None, 0
    before = None
    for token in parser().parse(text):
        if token.type == "tr_open" and token.map:
            row, cursor = token.map[0], 0
        elif token.type == "tr_close":
            row = None
        elif token.type == "colon_fence" and token.map:
            yield from of_directive(token.info, token.content, token.map[0], lines, places)
        elif token.type == "html_block" and token.map:
            block = "".join(lines[token.map[0] : token.map[1]])
            for summary in SUMMARY.finditer(block):
                start = places[token.map[0]] + summary.start(1)
                yield from worded(Message(summary[1], start, start + len(summary[1])))
            if after := AFTER_COMMENT.match(lines[token.map[0]]):
                start = places[token.map[0]] + after.start("text")
                text = after["text"].rstrip()
                yield from worded(Message(text, start, start + len(text)))
        elif token.type == "inline" and row is not None:
            cell, cursor = next_cell(lines[row], cursor)
            yield from worded(Message(cell.text, places[row] + cell.start, places[row] + cell.end))
        elif token.type == "inline" and token.map:
            found = of_block(token.content, token.map[0], lines, places)
            yield from worded(found._replace(is_heading=before == "heading_open"))
        before = token.type


def of_block(content: str, first: int, lines: list[str], places: list[int]) -> Message:
    """Return the message of a paragraph or heading that begins in line ``first``."""
    parts = [part.strip() for part in content.split("\n")]
    last = first + len(parts) - 1
    start = places[first] + lines[first].index(parts[0])
    end = places[last] + lines[last].rindex(parts[-1]) + len(parts[-1])
    return Message(content, start, end)


def next_cell(line: str, cursor: int) -> tuple[Message, int]:
    """Return the next cell of a table's row as it is written, and the place after it."""
    if cursor == 0:
        cursor = len(line) - len(line.lstrip())
        cursor += line[cursor : cursor + 1] == "|"
    found = CELL.match(line, cursor)
    if found is None:  # an empty cell, or a cell that the row does not have
        return Message("", cursor, cursor), cursor + 1
    text = found[0].strip()
    start = cursor + found[0].index(text) if text else cursor
    return Message(text, start, start + len(text)), found.end() + 1


def of_directive(info: str, content: str, first: int, lines: list[str], places: list[int]) -> Iterator[Message]:
    """Yield the messages of a directive: its title, if that is text, the texts of its options and of its content."""
    name, _, argument = info.strip().partition("}")
    argument = argument.strip()
    if name.lstrip("{") in TITLED and argument:
        start = places[first] + lines[first].index(argument)
        yield from worded(Message(argument, start, start + len(argument)))
    inner = first + 1
    while inner < len(lines) and (option := OPTION.match(lines[inner])):
        text = option[2].rpartition(" | ")[2]
        if option[1] in WITH_TEXT and text:
            start = places[inner] + lines[inner].index(text, option.start(2))
            yield from worded(Message(text, start, start + len(text)))
        inner += 1
    skipped = inner - first - 1
    yield from messages("".join(content.splitlines(keepends=True)[skipped:]), places[inner])


def worded(message: Message) -> Iterator[Message]:
    """Yield the message if it has words."""
    if has_words(message.text):
        yield message


def has_words(text: str) -> bool:
    r"""Return whether a text has words outside of formulas, code, roles, addresses, tags and names with a version.

    >>> has_words(r"$n \\times d$, `n`"), has_words("$n$ rows"), has_words("ruff 0.17.6")
    (False, True, False)
    """
    for pattern in (FORMULA, ROLE, CODE, TAG, ENTRY, RELEASE):
        text = pattern.sub(" ", text)
    return bool(re.search(r"[^\W\d_]{2}", TARGET.sub("]", text)))


def translated(text: str, lookup: Lookup, note_heading: Callable[[str, str], None] | None = None) -> str:
    """Return Markdown with each message replaced by its translation, if there is one."""
    parts, done = [], 0
    for message in messages(text):
        words = lookup(message.text)
        if words is None:
            continue
        parts += [text[done : message.start], words]
        done = message.end
        if message.is_heading and note_heading:
            note_heading(words, message.text)
    return "".join((*parts, text[done:]))


def captions(cell: dict) -> Iterator[tuple[dict, str]]:
    """Yield where a cell's metadata contain text: the caption and the description of its figure."""
    shown = cell.get("metadata", {}).get("mystnb", {})
    for group, name in (("figure", "caption"), ("image", "alt")):
        if name in shown.get(group, {}):
            yield shown[group], name


def notebook_translated(source: str, lookup: Lookup, note_heading: Callable[[str, str], None] | None = None) -> str:
    """Return a notebook as JSON, with the messages of its Markdown and its captions translated."""
    notebook = json.loads(source)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = translated("".join(cell["source"]), lookup, note_heading)
        for place, name in captions(cell):
            place[name] = lookup(place[name]) or place[name]
    return json.dumps(notebook)


def messages_of_page(path: Path) -> list[str]:
    """Return the different messages of a page in their order, those of its captions included."""
    source = path.read_text(encoding="utf-8")
    found: list[str] = []
    if path.suffix != ".ipynb":
        found = [message.text for message in messages(source)]
    else:
        for cell in json.loads(source)["cells"]:
            if cell["cell_type"] == "markdown":
                found += [message.text for message in messages("".join(cell["source"]))]
            found += [place[name] for place, name in captions(cell)]
    return list(dict.fromkeys(found))


def parts(text: str) -> Counter[str]:
    """Return what a translation must keep: formulas, code, roles, addresses, tags, citations and labels.

    The title of a role, ``{doc}`title <target>```, may differ.

    >>> sorted(parts("The [width](#width) $d$ {eq}`eq-scale` [2]."))
    ['$d$', '[2]', '](#width)', '{eq}`eq-scale`']
    """
    found: Counter[str] = Counter()

    def take(pattern: re.Pattern, rest: str, written: Callable[[re.Match], str]) -> str:
        found.update(map(written, pattern.finditer(rest)))
        return pattern.sub(" ", rest)

    def role(match: re.Match) -> str:
        target = re.search(r"<([^<>]+)>$", match[2])
        return f"{{{match[1]}}}`{target[1] if target else match[2]}`"

    text = take(ROLE, text, role)
    text = take(CODE, text, lambda match: match[0])
    text = take(FORMULA, text, lambda match: match[0])
    found.update(f"]({match[1]})" for match in TARGET.finditer(text))
    text = TARGET.sub("](", text)
    for pattern in (TAG, CITATION, ENTRY):
        text = take(pattern, text, lambda match: match[0])
    return found


def numbers(text: str) -> Counter[str]:
    """Return the numbers of a text that are written in digits, outside of formulas, code, roles and addresses.

    >>> numbers("1.3 million pairs of 16") == numbers("16 个中的 130 万对")
    True
    >>> numbers("14 to 300 million images") == numbers("1400 万到 3 亿张图像")
    True
    """
    for pattern in (ROLE, CODE, FORMULA, TAG, CITATION, ENTRY):
        text = pattern.sub(" ", text)
    text = RANGE.sub(r"\1 \2", text)
    text = LARGE.sub(lambda match: str(int(Decimal(match[1]) * UNITS[match[2]])), TARGET.sub("]", text))
    return Counter(NUMBER.findall(text))


def emphasis(text: str) -> Counter[str]:
    """Return how often a text has bold text and emphasis, as MyST's parser reads it."""
    tokens = (token for inline in parser().parseInline(text) for token in inline.children or [])
    return Counter(token.type for token in tokens if token.type in ("em_open", "strong_open", "link_open"))


def differences(original: str, words: str) -> list[str]:
    """Return what a translation has lost or added, in sentences; an empty list if it keeps everything.

    >>> differences("$n$ rows in 2017", "2017 年的行")
    ['$n$ is missing']
    """
    before, after = parts(original), parts(words)
    found = [f"{part} is missing" for part in before - after]
    found += [f"{part} is new" for part in after - before]
    found += [f"the number {number} is missing" for number in numbers(original) - numbers(words)]
    if emphasis(original) != emphasis(words):
        found.append("bold text or emphasis is lost or new: a space may be missing beside an asterisk")
    if "\n\n" in words:
        found.append("it has more than one paragraph")
    return found
