"""What one reads in a page and in a notebook, block by block, so that the two can be compared.

Formulas are left out: the page and each notebook program set them in their own way.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import nbformat
from bs4 import BeautifulSoup, Tag
from nbconvert.filters import markdown2html

BLOCKS = ("h1", "h2", "h3", "h4", "p", "li", "td", "th", "dt", "dd")
NO_TEXT = ".math, mjx-container, .headerlink, .anchor-link, .jp-InternalAnchorLink, .only-print, script, style"
FORMULA = re.compile(r"\$\$.*?\$\$|\$.*?\$", re.DOTALL)
TYPESET = str.maketrans(dict(zip("\u201c\u201d\u2018\u2019\u2026", ('"', '"', "'", "'", "..."), strict=True)))
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)


def blocks(html: str | Tag) -> list[str]:
    """The text of every block that holds no other block; quotation marks are typed."""
    soup = BeautifulSoup(html, "html.parser") if isinstance(html, str) else html
    for part in soup.select(NO_TEXT):
        part.decompose()
    innermost = (block for block in soup.find_all(BLOCKS) if not block.find(BLOCKS))
    texts = (re.sub(r"\s+", " ", block.get_text()).strip().translate(TYPESET) for block in innermost)
    return [text for text in texts if text]


def page(path: Path) -> list[str]:
    """What stands in a page besides code, its output and the cards of a gallery; without the number of a chapter."""
    article = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select_one("article.bd-article")
    assert article is not None, path
    for output in article.select(".cell_output"):
        output.replace_with(*output.select("figcaption"))
    for part in article.select(".cell_input, details.hide > summary, h1 .section-number, .gallery"):
        part.decompose()
    return blocks(article)


def read_aloud(cells: Iterable[str]) -> list[str]:
    """What stands in the Markdown cells of the edition, given as HTML, but for what it says of itself."""
    text = [block for html in cells for block in blocks(FOLDED.sub("", html) if "<p><strong>Fig. " in html else html)]
    captions = [re.sub(r"^(Fig\. [\d.]+)\. ", r"\1 ", block) for block in text]
    return [block for block in captions if not block.startswith("You are in the runnable edition of ")]


def notebook(path: Path) -> list[str]:
    """What stands in a notebook of the edition when nbconvert, Jupyter's own converter, shows it."""
    cells = nbformat.read(path, as_version=4).cells
    markdown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return read_aloud([FORMULA.sub("", markdown2html(source)) for source in markdown])
