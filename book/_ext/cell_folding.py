"""Display of notebooks as pages: fold code cells, remove repeated scripts and styles, and adapt figures to the theme.

The notebooks themselves do not change, only the pages made from them.
"""

import ast
import json
import re
from pathlib import Path

from catalogs import gettext, mark
from docutils import nodes
from rewriting import rewrite_pages

ON_PAPER = re.compile(r"^(\(On paper nothing moves\b.*?\))[ \t]*$", re.MULTILINE)
PART = re.compile(r'<(script|style) data-part="[^"]+">.*?</\1>', re.DOTALL)
SIZE = re.compile(r'<svg[^>]*\bwidth="([\d.]+)pt" height="([\d.]+)pt"')
PICTURE = re.compile(r'<img\b(?![^>]*\bloading=)[^>]*\bsrc="[^"]*_images/([^"/]+)"[^>]*>')
# The theme's collapsible lists in the sidebar, whose summary is an icon without text and follows the link to the parent
# page; and the label that MyST-NB gives to every collapsible cell.
SUBPAGES = re.compile(r'(<a class="[^"]*\breference[^>]*>((?:(?!</a>).)*)</a>\s*<details[^>]*>\s*<summary)>', re.DOTALL)
GENERIC_SUMMARY = '<summary aria-label="Toggle hidden content">'
# The theme loads Sphinx's search on every page. The book has its own (search.py).
SEARCH = re.compile(r'<script src="[^"]*(?:searchindex|searchtools|language_data)\.js"></script>')
BACKGROUND = re.compile(r'(<g id="patch_[12]">\s*<path d="[^"]*"\s+style="fill: )#ffffff')
# The labels of folded code, for the catalogs: before and after it is unfolded.
PROMPTS = (
    *(mark("Show the code"), mark("Show the imports"), mark("Show the check"), mark("Show the numbers of the text")),
    *(mark("Hide the code"), mark("Hide the imports"), mark("Hide the check"), mark("Hide the numbers of the text")),
    *(mark("Show the code of this figure"), mark("Hide the code of this figure")),
)
# Figures are designed for the width of a phone. Where the page shows a figure larger, its text is scaled down around
# its anchor point, so that letters grow less than lines. The media queries use the figure's own width.
FONT_SCALING = """<style id="letters">
[id^="text_"] { transform-box: fill-box; transform-origin: center; }
[id^="legend_"] [id^="text_"], [id^="text_end_"], #matplotlib\\.axis_4 [id^="text_"] { transform-origin: left; }
[id^="xtick_"] [id^="text_"] { transform-origin: top; }
[id^="xtick_"] [id^="text_"]:has([transform*="rotate"]) { transform-origin: top right; }
#matplotlib\\.axis_2 [id^="text_"] { transform-origin: right; }
@media (min-width: %.0fpx) { [id^="text_"] { transform: scale(0.84); } }
@media (min-width: %.0fpx) { [id^="text_"] { transform: scale(0.7); } }
</style>"""


def mark_print_paragraphs(app, docname, source) -> None:
    """Give a notebook's remarks for readers of the printed page a class, by which they are shown in print only."""
    if not str(app.env.doc2path(docname)).endswith(".ipynb"):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = ON_PAPER.sub(r"::::{div} only-print\n\1\n::::", "".join(cell["source"]))
    source[0] = json.dumps(notebook)


def fold_code(app, doctree) -> None:
    """Collapse cells whose code readers need not see first, and label each with its content.

    This happens after the outputs are added, since tags in the notebook would change the key of its stored outputs.
    """
    for cell in list(doctree.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code" or not cell.children:
            continue
        code = next((node.astext() for node in cell.children[0].findall(nodes.literal_block)), "")
        hidden = cell.get("hide_mode")
        label = hidden_label(code) if hidden == "all" else fold_label(code) or ("the code" if hidden == "input" else "")
        if label and cell.children[0].get("nb_element") == "cell_code_source":
            cell.attributes |= {
                "hide_mode": hidden or "input",
                "prompt_show": gettext(f"Show {label}"),
                "prompt_hide": gettext(f"Hide {label}"),
            }
            merge_with_the_fold_above(cell)


def merge_with_the_fold_above(cell: nodes.container) -> None:
    """Let a collapsed cell take in the code of the preceding one, if that has the same label and no output."""
    place = cell.parent.index(cell)
    above = cell.parent[place - 1] if place else None
    if not isinstance(above, nodes.container) or len(above) != 1 or above.get("prompt_show") != cell["prompt_show"]:
        return
    first, more = (next(each.findall(nodes.literal_block)) for each in (above, cell))
    between = "\n" if cell["prompt_show"] == gettext("Show the imports") else "\n\n"
    more.rawsource = f"{first.astext().rstrip()}{between}{more.astext()}"
    more[:] = [nodes.Text(more.rawsource)]
    cell.parent.remove(above)


def hidden_label(code: str) -> str:
    """Return the label of a cell that the notebook's own tag hides."""
    return "the check" if re.search(r"^\s*assert(?:_close)?\b", code, re.MULTILINE) else "the numbers of the text"


def fold_label(code: str) -> str:
    """Return the label of a cell to collapse, or an empty string if its code stays visible.

    >>> fold_label("import torch")
    'the imports'
    """
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
    return "the code of this figure" if is_figure(statements[-1]) else ""


def is_figure(last: ast.stmt) -> bool:
    """Return whether a cell with this last statement shows an explorer, a plot or a drawing."""
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)):
        return False
    made = ast.unparse(last.value.func)
    return made.endswith("Explorer") or made == "ax.set" or made.startswith(("plots.", "drawings."))


def drop_repeated_parts(app, pagename, templatename, context, doctree) -> None:
    """Keep only the first copy of each script and style that explorers and guesses on a page share.

    Every output of a notebook carries all of its scripts and styles, so that it works wherever it is shown.
    """
    seen: set[str] = set()

    def first(found: re.Match) -> str:
        if found[0] in seen:
            return ""
        seen.add(found[0])
        return found[0]

    context["body"] = PART.sub(first, context.get("body") or "")


def make_figures_transparent(app, exception) -> None:
    """Remove the white background of figures, so that they fit either theme, and scale their text."""
    if exception is not None or app.builder.format != "html":
        return
    for figure in Path(app.outdir, "_images").glob("*.svg"):
        text = figure.read_text(encoding="utf-8")
        size = SIZE.search(text)
        if size and "matplotlib" in text.lower() and 'id="letters"' not in text:
            letters = FONT_SCALING % (1.6 * float(size[1]), 1.95 * float(size[1]))
            clear = BACKGROUND.sub(r"\1none", text).replace("</svg>", letters + "</svg>")
            figure.write_text(clear, encoding="utf-8")


def load_lazily(app, exception) -> None:
    """Load figures lazily, with their size reserved on the page, and leave out Sphinx's search."""
    if exception is not None or app.builder.format != "html":
        return
    sizes = {}
    for figure in Path(app.outdir, "_images").glob("*.svg"):
        if size := SIZE.search(figure.read_text(encoding="utf-8")):
            width, height = float(size[1]), float(size[2])
            place = f'width="{width:.0f}" height="{height:.0f}" style="--points: {width:.0f}"'
            sizes[figure.name] = f'loading="lazy" {place}'

    def add_attributes(found: re.Match) -> str:
        return f"<img {sizes[found[1]]} {found[0][5:]}" if found[1] in sizes else found[0]

    rewrite_pages(app.outdir, lambda text: SEARCH.sub("", PICTURE.sub(add_attributes, text)))


def label_folds(app, exception) -> None:
    """Label collapsible elements for screen readers: sidebar lists by their page, others by their visible text."""
    if exception is not None or app.builder.format != "html":
        return
    rewrite_pages(app.outdir, with_labels)


def with_labels(text: str) -> str:
    """Return a page's HTML with a label for each collapsible element."""

    def name(found: re.Match) -> str:
        title = " ".join(re.sub(r"<[^>]+>", "", found[2]).split()).replace('"', "&quot;")
        label = gettext("Pages under {title}").format(title=title)
        return f'{found[1]} aria-label="{label}">'

    return SUBPAGES.sub(name, text).replace(GENERIC_SUMMARY, "<summary>")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", mark_print_paragraphs)
    app.connect("doctree-read", fold_code)
    app.connect("html-page-context", drop_repeated_parts, priority=900)
    app.connect("build-finished", make_figures_transparent)
    app.connect("build-finished", load_lazily)
    app.connect("build-finished", label_folds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
