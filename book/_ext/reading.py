"""What a reader of the page sees of a notebook: results before code, nothing twice, figures without a plate.

The notebooks stay as they are; only what is read from them for the page changes.
"""

import ast
import json
import re
from pathlib import Path

from docutils import nodes

ON_PAPER = re.compile(r"^(\(On paper nothing moves\b.*?\))[ \t]*$", re.MULTILINE)
PART = re.compile(r'<(script|style) data-part="[^"]+">.*?</\1>', re.DOTALL)
SIZE = re.compile(r'<svg[^>]*\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
PICTURE = re.compile(r'<img\b(?![^>]*\bloading=)[^>]*\bsrc="[^"]*_images/([^"/]+)"[^>]*>')
# The theme's fold in the sidebar, which holds an icon alone, behind the link to the page whose subpages it folds; and
# what MyST-NB calls every fold, whatever it says.
SUBPAGES = re.compile(r'(<a class="[^"]*\breference[^>]*>((?:(?!</a>).)*)</a>\s*<details[^>]*>\s*<summary)>', re.DOTALL)
UNTOLD = '<summary aria-label="Toggle hidden content">'
INDEX = re.compile(r'<script src="[^"]*searchindex\.js"></script>')
GROUND = re.compile(r'(<g id="patch_[12]">\s*<path d="[^"]*"\s+style="fill: )#ffffff')
# A figure is made for a phone. Where the page shows it larger each text shrinks towards what it belongs to, so that
# letters grow less than lines do; the width that is asked for is that of the picture on the page.
LETTERS = """<style id="letters">
[id^="text_"] { transform-box: fill-box; transform-origin: center; }
[id^="legend_"] [id^="text_"], [id^="text_end_"], #matplotlib\\.axis_4 [id^="text_"] { transform-origin: left; }
[id^="xtick_"] [id^="text_"] { transform-origin: top; }
[id^="xtick_"] [id^="text_"]:has([transform*="rotate"]) { transform-origin: top right; }
#matplotlib\\.axis_2 [id^="text_"] { transform-origin: right; }
@media (min-width: %.0fpx) { [id^="text_"] { transform: scale(0.84); } }
@media (min-width: %.0fpx) { [id^="text_"] { transform: scale(0.7); } }
</style>"""


def mark_paper(app, docname, source) -> None:
    """Mark the paragraphs of a notebook that are said to those who read on paper."""
    if not str(app.env.doc2path(docname)).endswith(".ipynb"):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = ON_PAPER.sub(r"::::{div} only-print\n\1\n::::", "".join(cell["source"]))
    source[0] = json.dumps(notebook)


def fold(app, doctree) -> None:
    """Fold away code that is there for the machine, and say what lies under each fold.

    This comes after the outputs: tags in the notebook would change what its outputs are known by.
    """
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code" or not cell.children:
            continue
        code = next((node.astext() for node in cell.children[0].findall(nodes.literal_block)), "")
        hidden = cell.get("hide_mode")
        words = hidden_words(code) if hidden == "all" else folded(code) or ("the code" if hidden == "input" else "")
        if words and cell.children[0].get("nb_element") == "cell_code_source":
            cell.attributes |= {
                "hide_mode": hidden or "input",
                "prompt_show": f"Show {words}",
                "prompt_hide": f"Hide {words}",
            }
            join(cell)


def join(cell: nodes.container) -> None:
    """Put imports that stand in several cells, one right after another, under one fold."""
    place = cell.parent.index(cell)
    above = cell.parent[place - 1] if place else None
    if not isinstance(above, nodes.container) or len(above) != 1:
        return
    if above.get("prompt_show") == cell["prompt_show"] == "Show the imports":
        first, more = (next(each.findall(nodes.literal_block)) for each in (above, cell))
        first.rawsource = f"{first.astext().rstrip()}\n{more.astext()}"
        first[:] = [nodes.Text(first.rawsource)]
        above.extend(cell[1:])
        cell.parent.remove(cell)


def hidden_words(code: str) -> str:
    """Say in words what a cell holds that the notebook itself asks to hide."""
    return "the check" if re.search(r"^\s*assert(?:_close)?\b", code, re.MULTILINE) else "the numbers of the text"


def folded(code: str) -> str:
    """Say in words what a cell holds that is to be folded away, or nothing if it is to be seen."""
    try:
        statements = ast.parse(re.sub(r"^\s*[%!].*$", "", code, flags=re.MULTILINE)).body
    except SyntaxError:
        return ""
    if not statements:
        return ""
    plain = [isinstance(one, ast.Import | ast.ImportFrom) for one in statements]
    if any(plain) and all(
        is_import or ast.unparse(one).startswith(("SEED = ", "torch.manual_seed("))
        for is_import, one in zip(plain, statements, strict=True)
    ):
        return "the imports"
    return "the code of this figure" if draws(statements[-1]) else ""


def draws(last: ast.stmt) -> bool:
    """Say whether a cell that ends so shows an explorer, a plot or a drawing."""
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)):
        return False
    made = ast.unparse(last.value.func)
    return made.endswith("Explorer") or made == "ax.set" or made.startswith(("plots.", "drawings."))


def once(app, pagename, templatename, context, doctree) -> None:
    """Leave of what explorers and guesses on a page share only the first.

    Every output of a notebook carries all that it needs, to be live wherever it is shown.
    """
    seen: set[str] = set()

    def first(found: re.Match) -> str:
        if found[0] in seen:
            return ""
        seen.add(found[0])
        return found[0]

    context["body"] = PART.sub(first, context.get("body") or "")


def take_the_ground_away(app, exception) -> None:
    """Make the figures transparent, so that they lie on the page in either theme; see to the size of their letters."""
    if exception is not None or app.builder.format != "html":
        return
    for figure in Path(app.outdir, "_images").glob("*.svg"):
        text = figure.read_text(encoding="utf-8")
        size = SIZE.search(text)
        if size and "matplotlib" in text.lower() and 'id="letters"' not in text:
            letters = LETTERS % (1.6 * float(size[1]), 1.95 * float(size[1]))
            clear = GROUND.sub(r"\1none", text).replace("</svg>", letters + "</svg>")
            figure.write_text(clear, encoding="utf-8")


def fetch_late(app, exception) -> None:
    """Let a figure be fetched when the reader comes near it, its place free until then; the index by the search alone.

    The theme loads the index of the search on every page, for a search while one types, which the book does not have.
    """
    if exception is not None or app.builder.format != "html":
        return
    sizes = {}
    for figure in Path(app.outdir, "_images").glob("*.svg"):
        if size := SIZE.search(figure.read_text(encoding="utf-8")):
            width, height = float(size[1]), float(size[2])
            place = f'width="{width:.0f}" height="{height:.0f}" style="--points: {width:.0f}"'
            sizes[figure.name] = f'loading="lazy" {place}'

    def late(found: re.Match) -> str:
        return f"<img {sizes[found[1]]} {found[0][5:]}" if found[1] in sizes else found[0]

    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        lighter = PICTURE.sub(late, text)
        if page.name != "search.html":
            lighter = INDEX.sub("", lighter)
        if lighter != text:
            page.write_text(lighter, encoding="utf-8")


def name_folds(app, exception) -> None:
    """Name each fold for a screen reader: one of the sidebar after its page, any other by the words on it."""
    if exception is not None or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if (named := with_names(text)) != text:
            page.write_text(named, encoding="utf-8")


def with_names(text: str) -> str:
    """Return a page whose folds have names."""

    def name(found: re.Match) -> str:
        title = " ".join(re.sub(r"<[^>]+>", "", found[2]).split()).replace('"', "&quot;")
        return f'{found[1]} aria-label="Pages under {title}">'

    return SUBPAGES.sub(name, text).replace(UNTOLD, "<summary>")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", mark_paper)
    app.connect("doctree-read", fold)
    app.connect("html-page-context", once, priority=900)
    app.connect("build-finished", take_the_ground_away)
    app.connect("build-finished", fetch_late)
    app.connect("build-finished", name_folds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
