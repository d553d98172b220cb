"""Extract the text of pages and notebooks, block by block, to compare them.

Formulas are left out, since pages and notebook programs typeset them differently.
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
# Most of a page, without text: scripts, formulas, and the words of code cells, each an element of its own.
NOT_PARSED = re.compile(
    r"""<(script|style|mjx-container)\b.*?</\1>"""
    r"""|(?<=<div class="highlight-ipython3 notranslate"><div class="highlight"><pre>).*?(?=</pre>)""",
    re.DOTALL,
)
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)


def blocks(html: str | Tag) -> list[str]:
    """Return the text of every block without inner blocks, with straight quotation marks."""
    soup = BeautifulSoup(html, "html.parser") if isinstance(html, str) else html
    for part in soup.select(NO_TEXT):
        part.decompose()
    innermost = (block for block in soup.find_all(BLOCKS) if not block.find(BLOCKS))
    texts = (re.sub(r"\s+", " ", block.get_text()).strip().translate(TYPESET) for block in innermost)
    return [text for text in texts if text]


def page(path: Path) -> list[str]:
    """Return a page's text without code, outputs, the cards of a gallery and the chapter's number."""
    _, start, rest = path.read_text(encoding="utf-8").partition("<article")
    text = NOT_PARSED.sub("", start + rest.partition("</article>")[0])
    article = BeautifulSoup(text, "html.parser").select_one("article.bd-article")
    assert article is not None, path
    for output in article.select(".cell_output"):
        output.replace_with(*output.select("figcaption"))
    for part in article.select(
        ".cell_input, details.hide > summary, h1 .section-number, .gallery, .g-mode, .fold-minutes"
    ):
        part.decompose()
    for part in article.select(".fold-lead"):  # the first paragraph of a folded section
        part.name = "p"
    return blocks(article)


def markdown_text(cells: Iterable[str]) -> list[str]:
    """Return the text of Markdown cells of the edition, given as HTML, without the edition's notice."""
    text = [block for html in cells for block in blocks(FOLDED.sub("", html) if "<p><strong>Fig. " in html else html)]
    captions = [re.sub(r"^(Fig\. [\d.]+)\. ", r"\1 ", block) for block in text]
    return [block for block in captions if not block.startswith("You are in the runnable edition of ")]


def notebook(path: Path) -> list[str]:
    """Return the text of a notebook of the edition, rendered by nbconvert, Jupyter's own converter."""
    cells = nbformat.v4.reads(path.read_text(encoding="utf-8")).cells  # not validated: a test of its own does that
    markdown = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return markdown_text([FORMULA.sub("", markdown2html(source)) for source in markdown])
