"""Pack the figures of all chapters as SVG into _build/figures.zip, with a table of captions, chapters and licence.

The pictures are for slides and handouts: a drawing brings its style and has plain colours, because few programs besides
a browser know the variables of a style sheet. ``captions.csv`` and ``captions.html`` hold the same table.
"""

import csv
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from html import escape, unescape
from pathlib import Path

from lessons_lib.page.palette import KEY, OUTPUT, QUERY, VALUE  # isort: skip
from runs import BUILD, ROOT
from typeset_page import self_contained, to_html

from chapters import chapters  # isort: skip  # of book/_ext, which typeset_page puts on the path

FIGURE = re.compile(r'<figure[^>]* id="([\w-]+)"[^>]*>(.*?)</figure>', re.DOTALL)
PLOT = re.compile(r'<img [^>]*src="[^"]*_images/([^"]+\.svg)"')
DRAWING = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
STYLE = re.compile(r'<style data-part="drawing-css[^>]*>(.*?)</style>', re.DOTALL)
NUMBER = re.compile(r'class="caption-number">Fig\. ([\d.]+)')
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
COLOURS = {"query": QUERY, "key": KEY, "value": VALUE, "output": OUTPUT}
INK, FONT = "#222832", "Inter, 'DejaVu Sans', Arial, sans-serif"


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    file: str
    number: str
    chapter: str
    caption: str  # Markdown, with formulas in TeX
    description: str  # in words
    licence: str


def figures(root: Path, site: Path) -> Iterator[tuple[Figure, str]]:
    """Yield the figures of the chapters in the order of the book, each with its SVG.

    Raises:
        FileNotFoundError: if the book has not been built.
    """
    terms = licence(root)
    for title, path in chapters(root).items():
        page = site / path.relative_to(root).with_suffix(".html")
        if not page.is_file():
            raise FileNotFoundError(f"the book must have been built, found no {page}: run make book")
        text = page.read_text(encoding="utf-8")
        style = plain_style(found[1]) if (found := STYLE.search(text)) else ""
        named = described(path)
        for name, content in FIGURE.findall(text):
            plot = PLOT.search(content)
            if name not in named or not (plot or DRAWING.search(content)):
                continue
            if plot:
                svg = (site / "_images" / plot[1]).read_text(encoding="utf-8")
            else:
                svg = alone(matched(DRAWING, content)[0], style)
            number = matched(NUMBER, content)[1].rstrip(".")
            caption, words = named[name]
            yield Figure(f"{path.stem}/{name}.svg", number, title, caption, words or words_of(content), terms), svg


def licence(root: Path) -> str:
    """Return the licence and its copyright line."""
    kind, owner = re.findall(
        r"^(\w+) License$|^(Copyright .+)$", (root / "LICENSE").read_text(encoding="utf-8"), re.MULTILINE
    )
    return f"{kind[0]}, {owner[1]}"


def described(notebook: Path) -> dict[str, tuple[str, str]]:
    """Return the caption and the description of each figure of a chapter by its name."""
    found = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        about = cell["metadata"].get("mystnb", {})
        if figure := about.get("figure"):
            found[figure["name"]] = figure["caption"], about.get("image", {}).get("alt", "")
    return found


def words_of(figure: str) -> str:
    """Return the description that a drawing carries itself."""
    return unescape(matched(re.compile(r'aria-label="([^"]*)"'), figure)[1])


def matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """Return the first match of a pattern.

    Raises:
        ValueError: if there is none.
    """
    found = pattern.search(text)
    if found is None:
        raise ValueError(f"expected {pattern.pattern} in a figure, found {text[:80]!r}")
    return found


def plain_style(css: str) -> str:
    """Return the style of drawings for a file of its own: light, without variables, nested queries and lists."""
    css = re.sub(r"(@media|@container)[^{]*\{(?:[^{}]*\{[^}]*\})*[^}]*\}", "", css)
    rules = re.findall(r"([^{}]+)\{([^}]*)\}", css)
    kept = [(names.strip(), body) for names, body in rules if "data-theme" not in names and "svg" not in names]
    kept = [(re.sub(r"^\.drawing :is\((.*)\)$", r"\1", names), body) for names, body in kept]
    return "\n".join(f"{names.removeprefix('.drawing ')} {{{body}}}" for names, body in kept if names != ".drawing")


def alone(svg: str, style: str) -> str:
    """Return a drawing as a file: with a namespace, a size, its style, and colours in place of variables."""
    width, height = matched(SIZE, svg).groups()
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="{FONT}" color="{INK}"'
    svg = svg.replace("<svg ", f"<svg {size} ", 1)
    start = svg.index(">") + 1
    svg = f"{svg[:start]}<style>{style}</style>{svg[start:]}"
    for name, colour in COLOURS.items():
        svg = svg.replace(f"var(--{name})", colour)
    svg = re.sub(r"--full: ?([\d.]+)", r"fill-opacity:\1", svg)  # how strong the colour of a cell is
    svg = re.sub(r"var\(--[\w-]+, ((?:\"[^\"]*\"|[^()])*)\)", r"\1", svg)
    return svg.replace("currentColor", INK)


def table(rows: list[Figure]) -> str:
    """Return the table as a page, with the pictures."""
    shown = "\n".join(
        f'<tr><td><a href="{row.file}"><img src="{row.file}" alt="{escape(row.description)}"></a></td>'
        f"<td>Fig. {row.number}<br>{escape(row.chapter)}</td><td>{to_html(row.caption)}</td></tr>"
        for row in rows
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Figures</title>\n<style>\n'
        "body { font: 1rem/1.4 system-ui, sans-serif; margin: 2rem; } img { width: 20rem; }\n"
        "td { padding: 0.5rem; vertical-align: top; border-top: 1px solid #c5ccd3; }\n</style>\n</head>\n<body>\n"
        f"<h1>Figures of <em>Attention, understood</em></h1>\n<p>Licence: {escape(rows[0].licence)}.</p>\n"
        f"<table>\n{shown}\n</table>\n</body>\n</html>\n"
    )


def pack(root: Path, site: Path, target: Path) -> int:
    """Write the zip; return the number of figures. The same figures give the same bytes."""
    found = list(figures(root, site))
    rows = [row for row, _ in found]
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow([field.name for field in fields(Figure)])
    writer.writerows(astuple(row) for row in rows)
    files = {row.file: svg for row, svg in found}
    files |= {"captions.csv": lines.getvalue(), "captions.html": self_contained(table(rows))}
    files["LICENSE"] = (root / "LICENSE").read_text(encoding="utf-8")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(f"figures/{name}"), text, zipfile.ZIP_DEFLATED)  # dated 1980
    return len(rows)


def main() -> int:
    """Pack the zip and print its path."""
    target = BUILD / "figures.zip"
    try:
        count = pack(ROOT, BUILD / "html", target)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{target.relative_to(ROOT)}: {count} figures, with captions.csv and captions.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
