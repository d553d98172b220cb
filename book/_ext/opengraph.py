"""Open Graph tags for chat programs and search engines: a page's title, description, picture and canonical address.

The description consists of sentences of the page without formulas and code. The picture is drawn by
``social_cards.py``: each page has its own, except that the exercises of a chapter have that of the chapter. Relative
addresses do not work in these tags, so picture, address and sitemap are written only if the repository has an address
of its own. (The package sphinxext-opengraph always takes the first words of a page, does not handle pages without a
source, and always writes an address; only its list of tags is used here.)
"""

import html
import re
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from catalogs import gettext, is_translated, language, language_of_page, mark
from docutils import nodes
from social_cards import HEIGHT, PLOTS, WIDTH, draw_card, write_card

LONGEST, SHORTEST = 220, 50  # characters of a description; programs cut off longer ones
LEAD = "You will be able to"
BELOW = mark("A book that runs")  # the last line of the pictures of pages that are not chapters
NO_TEXT = "\0"  # stands for a formula that has no plain text, and for code
LETTERS = {"infty": "∞", "sqrt": "√", "beta": "β", "lambda": "λ", "pi": "π", "tau": "τ", "theta": "θ"}
LETTERS |= {"alpha": "α", "gamma": "γ", "sigma": "σ"}  # noqa: RUF001
CHINESE_STOPS = "\u3002\uff1f\uff01"
MINUS = "−"  # noqa: RUF001
SUBSCRIPTS = {"_k": "ₖ", "_v": "ᵥ", "_i": "ᵢ", "_j": "ⱼ", "_n": "ₙ", "_m": "ₘ", "_t": "ₜ"}
PAGE_ALT = mark("{title} Beside it a matrix of attention weights, and arcs between words with large attention weights.")
PLOT_ALT = mark("{title} Beside it a plot. {plot}")


def unicode_formula(tex: str) -> str:
    r"""Return a short formula in Unicode characters, or ``NO_TEXT`` if that is not possible.

    >>> unicode_formula(r"\sqrt{d_k}")
    '√dₖ'
    """
    text = re.sub(r"\\([a-z]+)\s*", lambda name: LETTERS.get(name[1], NO_TEXT), tex.replace("\\,", " "))
    text = re.sub(r"√\{([^{}]*)\}", r"√\1", text)
    text = re.sub(r"_[a-z]\b", lambda index: SUBSCRIPTS.get(index[0], NO_TEXT), text).replace("-", MINUS)
    return NO_TEXT if re.search(r"[\\{}_^\0]", text) else text


def plain_text(node: nodes.Node) -> str:
    """Return the plain text of a node, with ``NO_TEXT`` for formulas and code."""
    if isinstance(node, nodes.math):
        return unicode_formula(node.astext())
    if isinstance(node, nodes.literal | nodes.raw | nodes.image | nodes.math_block):
        return NO_TEXT
    if isinstance(node, nodes.footnote_reference | nodes.citation_reference):
        return ""
    if isinstance(node, nodes.Text):
        return re.sub(r"\s*\[\d+\]", "", str(node))
    inside = "".join(map(plain_text, node.children))
    return f"“{inside}”" if isinstance(node, nodes.emphasis) and " " in inside else inside


def sentences(paragraph: nodes.Node) -> list[str]:
    """Return the sentences of a paragraph, without an incomplete one at its end."""
    text = re.sub(r"\s+", " ", plain_text(paragraph)).strip()
    found = re.split(rf"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.) (?=[“(]?[A-Z\0])|(?<=[.?!]”) |(?<=[{CHINESE_STOPS}])", text)
    found = [one for one in found if one] or [""]
    return found if re.search(rf"[.?!{CHINESE_STOPS}][”)]*$", found[-1]) else found[:-1]


def description(doctree: nodes.document) -> str:
    """Return the page's learning goals, or else its first sentences without a formula, or an empty string."""
    best = ""
    for paragraph in doctree.findall(nodes.paragraph):
        in_short = isinstance(paragraph.parent, nodes.admonition) and "in-short" in paragraph.parent["classes"]
        if not in_short and not isinstance(paragraph.parent, nodes.section | nodes.document):
            continue  # in a list, another box or a table
        if paragraph.astext().startswith(LEAD):
            return shorten(plain_text(paragraph).removesuffix("."), "; ") + "."
        if isinstance(paragraph.children[0], nodes.strong):
            continue  # prerequisites, reading time, a guess
        found = sentences(paragraph)
        while found and NO_TEXT in found[0]:
            found.pop(0)
        whole = next((i for i, sentence in enumerate(found) if NO_TEXT in sentence), len(found))
        if found and len(found[0]) > LONGEST:
            found, whole = [shorten(found[0], ", ") + " …"], 1
        if re.search(f"[{CHINESE_STOPS}]", "".join(found[:whole])):
            return shorten("".join(found[:whole]), f"(?<=[{CHINESE_STOPS}])")
        text = shorten(" ".join(found[:whole]), "(?<=[.?!]) |(?<=[.?!]”) ")
        if len(text) >= SHORTEST:
            return text
        best = max(best, text, key=len)
    return best


def shorten(text: str, between: str) -> str:
    """Return as many parts of the text as fit into ``LONGEST`` characters, without parts that have a formula.

    >>> shorten("plot a softmax; derive it", "; ")
    'plot a softmax; derive it'
    """
    parts = [part for part in re.split(between, text) if NO_TEXT not in part]
    joint = "" if CHINESE_STOPS in between else " " if between.startswith("(") else between
    text = parts[0] if parts else ""
    for part in parts[1:]:
        if len(text) + len(joint) + len(part) > LONGEST:
            break
        text += joint + part
    return re.sub(r"\s+", " ", text).strip()


def chapter_of(env, docname: str) -> str | None:
    """Return the chapter that a page is, or whose exercises it contains, or ``None`` for any other page."""
    name = docname.rsplit("/", 1)[-1]
    return next((one for one in chapters(env) if one == docname or one.rsplit("/", 1)[-1] == name), None)


def chapters(env) -> list[str]:
    """Return the numbered pages in order."""
    numbers = {docname: found.get("") for docname, found in env.toc_secnumbers.items()}
    return sorted((one for one, number in numbers.items() if number and len(number) == 1), key=numbers.__getitem__)


def heading_text(title: nodes.title) -> str:
    """Return a heading on one line, without formulas that have no plain text."""
    return re.sub(r"\s+", " ", "".join(map(plain_text, title.children))).replace(NO_TEXT, "").strip()


def title_of(env, docname: str) -> str:
    """Return the page's heading, without its number."""
    return heading_text(env.titles[docname])


def short_title(env, docname: str) -> str:
    """Return a chapter's short title in the table of contents, or its heading if it has none."""
    site = getattr(env, "external_site_map", {})
    return (docname in site and site[docname].title) or title_of(env, docname)


def site_address(config) -> str:
    """Return the address of the site with a slash at its end, or an empty string while it has none."""
    return f"{config.html_baseurl.rstrip('/')}/" if config.html_baseurl else ""


def locale_of(env, docname: str) -> str:
    """Return the locale of a translated page, such as ``zh_CN``; an English page needs none."""
    tag = language_of_page(env, docname)
    return "" if tag == "en" else tag.replace("-", "_")


def tags(title: str, text: str, book: str, *, kind="website", address="", picture="", alt="", locale="") -> str:
    """Return the ``meta`` tags of a page; X reads Open Graph tags where it has none of its own."""
    lines = [("name", "description", text), ("property", "og:type", kind), ("property", "og:site_name", book)]
    lines += [("property", "og:title", title), ("property", "og:description", text)]
    lines += [("property", "og:locale", locale)]
    if address:
        size = [("property", "og:image:width", str(WIDTH)), ("property", "og:image:height", str(HEIGHT))]
        lines += [("property", "og:url", address), ("property", "og:image", picture), *size]
        lines += [("property", "og:image:alt", alt), ("name", "twitter:card", "summary_large_image")]
    else:
        lines += [("name", "twitter:card", "summary")]
    return "".join(f'<meta {how}="{name}" content="{html.escape(text)}">\n' for how, name, text in lines if text)


def page_tags(app, pagename: str, doctree: nodes.document | None, heading: str = "") -> str:
    """Return the ``meta`` tags of one page; a page without a source has the description of the book."""
    env, config = app.env, app.config
    root, book = config.root_doc, config.html_title
    text = description(doctree) if doctree else ""
    title = title_of(env, pagename) if pagename in env.titles else heading
    chapter = chapter_of(env, pagename)
    base = site_address(config)
    return tags(
        title or book,
        text or description(env.get_doctree(root)),
        book,
        kind="website" if pagename == root or doctree is None else "article",
        address=base and base + app.builder.get_target_uri(pagename),
        picture=f"{base}_static/{card_name(env, pagename)}",
        alt=card_alt(env, chapter or (pagename if pagename in env.titles else root)) if base else "",
        locale=locale_of(env, pagename),
    )


def card_alt(env, docname: str) -> str:
    """Return in words what the picture of a page shows."""
    return alt_of(env, title_of(env, docname).rstrip(".?!") + ".", docname)


def alt_of(env, title: str, docname: str) -> str:
    """Return in words what a picture with this title shows, for a page that belongs to a chapter or to none."""
    chapter = chapter_of(env, docname)
    plot = plot_of(env, chapter) if chapter else None
    if plot is None:
        return gettext(PAGE_ALT).format(title=title)
    return gettext(PLOT_ALT).format(title=title, plot=plot.get("alt", "")).strip()


def card_name(env, docname: str) -> str:
    """Return the path of a page's picture among the static files; a page without a source has that of the book."""
    if chapter := chapter_of(env, docname):
        return f"cards/{chapter.rsplit('/', 1)[-1]}.png"
    if docname not in env.titles or docname == env.config.root_doc:
        return "cards/book.png"
    return f"cards/{docname.removeprefix('book/').replace('/', '-')}.png"


def add_tags(app, pagename, templatename, context, doctree) -> None:
    """Add the ``meta`` tags to the head of each page."""
    heading = html.unescape(re.sub(r"<[^>]+>", "", context.get("title") or ""))
    context["metatags"] = f"{context.get('metatags', '')}\n{page_tags(app, pagename, doctree, heading)}"


def draw_cards(app, exception) -> None:
    """Draw the picture of each page; ``make page`` draws only those that are missing."""
    if exception is not None or app.builder.format != "html":
        return
    folder, env = Path(app.outdir, "_static"), app.env
    for docname in sorted(env.titles):
        path = folder / card_name(env, docname)
        is_of_another = chapter_of(env, docname) not in (None, docname)
        is_kept = path.exists() and getattr(app.config, "one_page", "")
        if not is_of_another and not is_kept:
            write_card(path, card_of(app, docname))


def card_of(app, docname: str) -> bytes:
    """Return the picture of a page that is not a chapter's exercises."""
    env, book = app.env, app.config.html_title
    if docname == app.config.root_doc:
        first = description(env.get_doctree(docname)).split(". ")[0].rstrip(".") + "."
        return draw_card(book, first, gettext(BELOW))
    if docname in chapters(env):
        return draw_card(short_title(env, docname), title_of(env, docname), book, plot_svg(app, docname))
    return draw_card(book, title_of(env, docname), gettext(BELOW))


@cache
def plot_of(env, docname: str) -> nodes.image | None:
    """Return the plot on a chapter's picture: that of ``PLOTS``, or else its first; ``None`` if it has no plot."""
    plots = {}
    for figure in env.get_doctree(docname).findall(nodes.figure):
        image = figure.next_node(nodes.image)
        if image is not None and image["uri"].endswith(".svg"):
            plots |= dict.fromkeys(figure["names"], image)
    return plots.get(PLOTS.get(docname.rsplit("/", 1)[-1])) or next(iter(plots.values()), None)


def plot_svg(app, docname: str) -> str:
    """Return the SVG of the plot of the chapter to which a page belongs, or an empty string if there is none."""
    chapter = chapter_of(app.env, docname)
    plot = plot_of(app.env, chapter) if chapter else None
    return Path(app.srcdir, plot["uri"]).read_text(encoding="utf-8") if plot else ""


def write_sitemap(app, exception) -> None:
    """Write ``sitemap.xml`` with all pages, and ``robots.txt`` with its address, for search engines."""
    base = site_address(app.config)
    if exception is not None or app.builder.format != "html" or not base:
        return
    # Pages that are not translated stand in the list of the English site.
    own = {name for name in app.env.found_docs if not language() or is_translated(app.env, name)}
    explorers = {f"explorers/{page.stem}" for page in Path(app.outdir, "explorers").glob("*.html")}  # explorer_pages.py
    pages = (f"{base}{app.builder.get_target_uri(docname)}" for docname in sorted(own | explorers))
    places = "".join(f"<url><loc>{escape(page)}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    Path(app.outdir, "sitemap.xml").write_text(f"{head}{places}</urlset>\n", encoding="utf-8")
    Path(app.outdir, "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {base}sitemap.xml\n")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", add_tags)
    app.connect("build-finished", draw_cards)
    app.connect("build-finished", write_sitemap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
