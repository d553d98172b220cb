"""What chat programs and search engines read of a page: its title, what it says, a picture, and its one address.

The words are sentences of the page without formulas and code, and the picture is drawn (``cards.py``). Those who read
them know no relative addresses, so picture, address and sitemap are named only when the repository has an address of
its own. (The package sphinxext-opengraph takes the first words of a page whatever they are, knows nothing of pages
without a source, and names an address in any case; what remains of it is the list of tags below.)
"""

import html
import re
from pathlib import Path
from xml.sax.saxutils import escape

from cards import HEIGHT, WIDTH, drawn
from docutils import nodes

LONGEST, SHORTEST = 220, 50  # letters of a description: of longer ones nobody shows the rest
LEAD = "You will be able to"
UNSAYABLE = "\0"  # in the place of a formula, or of code
LETTERS = {"infty": "∞", "sqrt": "√", "beta": "β", "lambda": "λ", "pi": "π", "tau": "τ", "theta": "θ"}
LETTERS |= {"alpha": "α", "gamma": "γ", "sigma": "σ"}  # noqa: RUF001
MINUS = "−"  # noqa: RUF001
SUBSCRIPTS = {"_k": "ₖ", "_v": "ᵥ", "_i": "ᵢ", "_j": "ⱼ", "_n": "ₙ", "_m": "ₘ", "_t": "ₜ"}
PAGE_ALT = "{title} Beside it a matrix of attention weights, and arcs between the words that look at each other."


def in_letters(tex: str) -> str:
    """A short formula as one would type it, ``UNSAYABLE`` for any other."""
    text = re.sub(r"\\([a-z]+)\s*", lambda name: LETTERS.get(name[1], UNSAYABLE), tex.replace("\\,", " "))
    text = re.sub(r"√\{([^{}]*)\}", r"√\1", text)
    text = re.sub(r"_[a-z]\b", lambda index: SUBSCRIPTS.get(index[0], UNSAYABLE), text).replace("-", MINUS)
    return UNSAYABLE if re.search(r"[\\{}_^\0]", text) else text


def words(node: nodes.Node) -> str:
    """What a node says, in plain words."""
    if isinstance(node, nodes.math):
        return in_letters(node.astext())
    if isinstance(node, nodes.literal | nodes.raw | nodes.image | nodes.math_block):
        return UNSAYABLE
    if isinstance(node, nodes.footnote_reference | nodes.citation_reference):
        return ""
    if isinstance(node, nodes.Text):
        return re.sub(r"\s*\[\d+\]", "", str(node))
    inside = "".join(map(words, node.children))
    return f"“{inside}”" if isinstance(node, nodes.emphasis) and " " in inside else inside


def sentences(paragraph: nodes.Node) -> list[str]:
    """What a paragraph says, sentence by sentence; what is no whole sentence is left out at the end."""
    text = re.sub(r"\s+", " ", words(paragraph)).strip()
    found = re.split(r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.) (?=[“(]?[A-Z\0])|(?<=[.?!]”) ", text)
    return found if re.search(r"[.?!][”)]*$", found[-1]) else found[:-1]


def description(doctree: nodes.document) -> str:
    """What the page lets one do, or else its first sentences that need no formula; nothing, if it has none."""
    best = ""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section | nodes.document):
            continue  # of a list, a box, a table
        if paragraph.astext().startswith(LEAD):
            return fitting(words(paragraph).removesuffix("."), "; ") + "."
        if isinstance(paragraph.children[0], nodes.strong):
            continue  # what one needs, how long it takes, a guess
        said = sentences(paragraph)
        while said and UNSAYABLE in said[0]:
            said.pop(0)
        whole = next((i for i, sentence in enumerate(said) if UNSAYABLE in sentence), len(said))
        if said and len(said[0]) > LONGEST:
            said, whole = [fitting(said[0], ", ") + " …"], 1
        text = fitting(" ".join(said[:whole]), "(?<=[.?!”]) ")
        if len(text) >= SHORTEST:
            return text
        best = max(best, text, key=len)
    return best


def fitting(text: str, between: str) -> str:
    """As many parts of the text as fit, those with a formula left out."""
    parts = [part for part in re.split(between, text) if UNSAYABLE not in part]
    joint = " " if between.startswith("(") else between
    text = parts[0] if parts else ""
    for part in parts[1:]:
        if len(text) + len(joint) + len(part) > LONGEST:
            break
        text += joint + part
    return re.sub(r"\s+", " ", text).strip()


def chapter_of(env, docname: str) -> str | None:
    """The chapter that a page is, or whose exercises it holds; None for any other page."""
    name = docname.rsplit("/", 1)[-1]
    return next((one for one in chapters(env) if one == docname or one.rsplit("/", 1)[-1] == name), None)


def chapters(env) -> list[str]:
    """The numbered pages, in order."""
    numbers = {docname: found.get("") for docname, found in env.toc_secnumbers.items()}
    return sorted((one for one, number in numbers.items() if number and len(number) == 1), key=numbers.__getitem__)


def title_of(env, docname: str) -> str:
    """The page's heading, without its number."""
    return re.sub(r"\s+", " ", "".join(map(words, env.titles[docname].children))).replace(UNSAYABLE, "").strip()


def subject_of(env, docname: str) -> str:
    """The field's word for a chapter, as the contents have it."""
    site = getattr(env, "external_site_map", {})
    return (docname in site and site[docname].title) or title_of(env, docname)


def tags(title: str, said: str, book: str, *, kind="website", address="", picture="", alt="") -> str:
    """The lines for the head of a page; X reads what is not its own from those of Open Graph."""
    lines = [("name", "description", said), ("property", "og:type", kind), ("property", "og:site_name", book)]
    lines += [("property", "og:title", title), ("property", "og:description", said)]
    if address:
        size = [("property", "og:image:width", str(WIDTH)), ("property", "og:image:height", str(HEIGHT))]
        lines += [("property", "og:url", address), ("property", "og:image", picture), *size]
        lines += [("property", "og:image:alt", alt), ("name", "twitter:card", "summary_large_image")]
    else:
        lines += [("name", "twitter:card", "summary")]
    return "".join(f'<meta {how}="{name}" content="{html.escape(text)}">\n' for how, name, text in lines if text)


def tags_of(app, pagename: str, doctree: nodes.document | None, heading: str = "") -> str:
    """The lines for one page. A page that the build makes says what the book says."""
    env, config = app.env, app.config
    root, book = config.root_doc, config.html_title
    said = description(doctree) if doctree else ""
    title = title_of(env, pagename) if pagename in env.titles else heading
    chapter = chapter_of(env, pagename)
    base = config.html_baseurl.rstrip("/") + "/" if config.html_baseurl else ""
    return tags(
        title or book,
        said or description(env.get_doctree(root)),
        book,
        kind="website" if pagename == root or doctree is None else "article",
        address=base and base + app.builder.get_target_uri(pagename),
        picture=f"{base}_static/{card_name(chapter)}",
        alt=PAGE_ALT.format(title=title_of(env, chapter or root).rstrip(".?!") + "."),
    )


def card_name(chapter: str | None) -> str:
    """Where the picture lies among the static files."""
    return f"cards/{chapter.rsplit('/', 1)[-1] if chapter else 'book'}.png"


def describe(app, pagename, templatename, context, doctree) -> None:
    """Put the lines into the head of each page."""
    heading = html.unescape(re.sub(r"<[^>]+>", "", context.get("title") or ""))
    context["metatags"] = f"{context.get('metatags', '')}\n{tags_of(app, pagename, doctree, heading)}"


def draw(app, exception) -> None:
    """Draw the picture of each chapter, and one for all other pages."""
    if exception is not None or app.builder.format != "html":
        return
    folder, book, env = Path(app.outdir, "_static", "cards"), app.config.html_title, app.env
    folder.mkdir(parents=True, exist_ok=True)
    first = description(env.get_doctree(app.config.root_doc)).split(". ")[0].rstrip(".") + "."
    Path(app.outdir, "_static", card_name(None)).write_bytes(drawn(book, first, "A book that runs"))
    for chapter in chapters(env):
        name = chapter.rsplit("/", 1)[-1]
        card = drawn(subject_of(env, chapter), title_of(env, chapter), book, name)
        Path(app.outdir, "_static", card_name(chapter)).write_bytes(card)


def list_pages(app, exception) -> None:
    """Write the list of all pages, and where it is, for those who read a whole site."""
    base = app.config.html_baseurl.rstrip("/") if app.config.html_baseurl else ""
    if exception is not None or app.builder.format != "html" or not base:
        return
    pages = (f"{base}/{app.builder.get_target_uri(docname)}" for docname in sorted(app.env.found_docs))
    places = "".join(f"<url><loc>{escape(page)}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    Path(app.outdir, "sitemap.xml").write_text(f"{head}{places}</urlset>\n", encoding="utf-8")
    Path(app.outdir, "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {base}/sitemap.xml\n")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", describe)
    app.connect("build-finished", draw)
    app.connect("build-finished", list_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
