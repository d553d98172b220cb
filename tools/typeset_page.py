"""Write Markdown as HTML, and typeset the formulas of a page that needs no other file: fonts are in the page."""

import base64
import re
import sys
import tempfile
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from runs import ROOT

sys.path.append(str(ROOT / "book" / "_ext"))

from typesetting import FONTS, VENDOR, formulas_of, typeset, with_formulas, write_fonts

FONT = re.compile(r'url\("FONTS/([\w-]+\.woff2)"\)')


def tex(content: str, options: dict) -> str:
    r"""Return a formula in the form that Sphinx writes, which MathJax in Moodle also reads: ``\(x\)`` or ``\[x\]``."""
    escaped = content.strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if options["display_mode"]:
        return f'<div class="math notranslate nohighlight">\\[{escaped}\\]</div>'
    return f'<span class="math notranslate nohighlight">\\({escaped}\\)</span>'


MARKDOWN = MarkdownIt("commonmark", {"xhtmlOut": True, "html": True}).enable("table")
MARKDOWN.use(dollarmath_plugin, renderer=tex, allow_digits=True, double_inline=True)


def to_html(markdown: str) -> str:
    """Return Markdown with formulas as HTML.

    >>> print(to_html("The root of $d$.").strip())
    <p>The root of <span class="math notranslate nohighlight">\\(d\\)</span>.</p>
    """
    html = MARKDOWN.render(markdown)
    # the plugin wraps a formula in an element of its own
    return re.sub(r'<(span|div) class="math (?:inline|block|amsmath)">\s*(<(span|div).*?</\3>)\s*</\1>', r"\2", html)


def self_contained(page: str) -> str:
    """Return a page with its formulas typeset by MathJax and the fonts inside; TeX stays where Node does not run."""
    formulas = formulas_of(page)
    if not formulas:
        return page
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    try:
        (found,) = typeset([formulas], settings["sphinx"]["config"]["mathjax3_config"], "FONTS")
    except OSError as error:
        print(f"Node cannot run here, so formulas stay TeX: {error}", file=sys.stderr)
        return page
    css = found["css"].replace('.woff") format("woff")', '.woff2") format("woff2")')
    page = with_formulas(page, {**found, "css": css})
    with tempfile.TemporaryDirectory() as folder:
        write_fonts(Path(folder), [page])
        fonts = Path(folder, VENDOR, FONTS)

        def inside(url: re.Match) -> str:
            return f'url("data:font/woff2;base64,{base64.b64encode((fonts / url[1]).read_bytes()).decode()}")'

        return FONT.sub(inside, page)
