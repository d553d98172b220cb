"""Search by section: every section of every page, and every function of the library, is an entry of the index.

An entry has the section's heading, its page, the words by which people look for it, its first words, the captions of
its figures, and a snippet: the sentence that answers the heading (**So:**), or else the first sentences.
``book/search.yml`` lists words of the same meaning, and further phrases for pages and sections.

The index is a script, ``search-index.js``, so that it can be read from a file. ``search.js`` ranks the entries with
Lunr when a reader opens the search. Lunr comes from the package MkDocs, which has it for its own search.

The site in another language has its own index. ``locale/LANGUAGE/search.yml`` has further words of that language. The
anchor of a section is made of its English heading, whose words find it, too.
"""

import json
import re
import shutil
import unicodedata
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path

import catalogs
import yaml
from catalogs import gettext
from docutils import nodes
from folds import DEEPER, conclusions, is_named
from opengraph import LETTERS, NO_TEXT, chapters, heading_text, sentences, short_title, unicode_formula
from sphinx import addnodes
from translation import CHINESE

WORDS = "book/search.yml"
LUNR = "mkdocs/contrib/search/templates/search/lunr.js"
FIRST_WORDS = 60  # words of a section in the index, beside its captions and its terms in bold
FIRST_CHARACTERS = 150  # of a Chinese section: words are not separated there
SNIPPET, SHORTEST = 230, 40  # characters
OF_CHINESE = 0.4  # a Chinese text has about so many characters for each character of an English one
NOT_FOUND = ("Sources", "Exercises", "Remember")  # sections of every chapter, which no one looks for by name
WITHOUT_SECTIONS = ("book/in-short",)  # pages that repeat what stands elsewhere: found by their titles only
SYMBOLS = LETTERS | {
    "cdot": "·",
    "times": "×",  # noqa: RUF001
    "to": "→",
    "le": "≤",
    "ge": "≥",
    "approx": "≈",
    "top": "ᵀ",
    "ldots": "…",
}
SYMBOLS |= {name: name for name in ("log", "ln", "exp", "max", "min", "softmax", "Var")}
KINDS = (("book/questions", "question"), ("book/exercises/", "exercise"), ("book/reference/", "library"))


def kind_of(docname: str, numbered: list[str]) -> str:
    """Return the kind of a page, by which results are ordered."""
    if docname in numbered:
        return "chapter"
    return next((kind for start, kind in KINDS if docname.startswith(start)), "page")


def normalised(text: str) -> str:
    """Return a text as it is indexed: in small letters, with plain letters for Unicode ones and a word for a root.

    >>> normalised("Why divide by √dₖ?")
    'why divide by sqrt dk?'
    """
    return unicodedata.normalize("NFKC", text.replace("√", " sqrt ").lower()).replace("  ", " ").strip()


def formula_text(tex: str) -> str:
    r"""Return a formula as text for a snippet, or ``NO_TEXT`` if it has fractions, sums or other structure.

    >>> formula_text(r"e^H \le \ln m")
    'e^H ≤ ln m'
    """
    if (short := unicode_formula(tex)) != NO_TEXT:
        return short
    text = re.sub(r"\\(?:operatorname|text|mathrm)\{([^{}]*)\}", r"\1", tex)
    text = re.sub(r"\\([A-Za-z]+)\s*", lambda name: f"{SYMBOLS.get(name[1], NO_TEXT)} ", text.replace("\\,", " "))
    text = re.sub(r"([_^])\{(\w+)\}", r"\1\2", text)
    return NO_TEXT if re.search(r"[\\{}\0]", text) else re.sub(r"\s+", " ", text).strip()


def with_formulas(paragraph: nodes.Node) -> nodes.Node:
    """Return a copy of a paragraph whose formulas are text, where that is possible."""
    found = paragraph.deepcopy()
    for formula in list(found.findall(nodes.math)):
        if (text := formula_text(formula.astext())) != NO_TEXT:
            formula.replace_self(nodes.Text(text))
    return found


def readable(node: nodes.Node) -> str:
    """Return the text of a node on one line, with short formulas in Unicode and without other formulas."""
    if isinstance(node, nodes.math):
        return formula_text(node.astext()).replace(NO_TEXT, "")
    if isinstance(node, nodes.math_block | nodes.raw | nodes.literal_block | nodes.comment | nodes.image):
        return " "
    if isinstance(node, nodes.container) and str(node.get("nb_element", "")).startswith("cell_code"):
        return " ".join(readable(caption) for caption in node.findall(nodes.caption))
    if isinstance(node, nodes.Text):
        return str(node)
    between = "" if isinstance(node, nodes.TextElement) else " "
    return re.sub(r"\s+", " ", between.join(map(readable, node.children)))


def snippet(section: nodes.section) -> str:
    """Return the sentence that answers the section's heading, or its first sentences that need no formula."""
    paragraphs = [p for p in own(section) for p in p.findall(nodes.paragraph)]
    begins = "|".join(map(re.escape, conclusions()))
    answer = next((p for p in paragraphs if p.astext().lstrip().startswith(conclusions())), None)
    short = ""
    for paragraph in ([answer] if answer is not None else []) + paragraphs:
        said = [one for one in sentences(with_formulas(paragraph)) if NO_TEXT not in one]
        is_chinese = bool(CHINESE.search("".join(said)))
        share = OF_CHINESE if is_chinese else 1
        text = re.sub(rf"^(?:{begins}) ?", "", ("" if is_chinese else " ").join(said[:3])).strip()
        if len(text) >= share * SHORTEST:
            text = text[0].upper() + text[1:]
            return shortened(text, round(share * SNIPPET), "" if is_chinese else " ")
        short = short or text
    return short


def shortened(text: str, most: int, between: str) -> str:
    """Return a text of at most ``most`` characters, cut off before the last ``between`` that fits.

    >>> shortened("one two three", 9, " ")
    'one two …'
    """
    if len(text) <= most:
        return text
    return text[:most].rsplit(between, 1)[0] + " …" if between else text[:most] + "…"


def own(section: nodes.Element) -> list[nodes.Node]:
    """Return what belongs to a section itself: all but its title, its subsections and the library's entries."""
    return [one for one in section.children if not isinstance(one, nodes.title | nodes.section | addnodes.desc)]


def body(section: nodes.section) -> str:
    """Return the words of a section that are indexed: its first ones, its terms in bold and its captions."""
    parts = own(section)
    first = beginning(" ".join(readable(part) for part in parts))
    bold = [readable(term) for part in parts for term in part.findall(nodes.strong)]
    captions = [readable(caption) for part in parts for caption in part.findall(nodes.caption)]
    return " ".join((first, *bold, *captions))


def beginning(text: str) -> str:
    """Return the first words of a text, or its first characters if it is Chinese."""
    return text[:FIRST_CHARACTERS] if CHINESE.search(text) else " ".join(text.split()[:FIRST_WORDS])


def entries(doctree: nodes.document, docname: str, page: str) -> Iterator[dict[str, str]]:
    """Yield an entry for each section of a page and for each documented name of the library."""
    top = next(iter(doctree.findall(nodes.section)), None)
    for section in doctree.findall(nodes.section):
        heading = heading_text(section[0])
        if any(is_named(section, one) for one in NOT_FOUND) or (docname in WITHOUT_SECTIONS and section is not top):
            continue
        yield {
            "address": f"{docname}.html" + ("" if section is top else f"#{section['ids'][0]}"),
            "page": page,
            "heading": heading,
            "body": body(section),
            "snippet": snippet(section),
            "place": place_of(section, top),
            "english": section["ids"][0].replace("-", " "),
        }
    for entry in doctree.findall(addnodes.desc):
        signature = entry[0]
        if not signature.get("ids"):
            continue
        said = next(entry.findall(nodes.paragraph), None)
        text = readable(said) if said is not None else ""
        yield {
            "address": f"{docname}.html#{signature['ids'][0]}",
            "page": page,
            "heading": signature.get("fullname", signature.astext()),
            "body": text,
            "snippet": text[:SNIPPET],
            "place": "section",
            "english": "",
        }


def place_of(section: nodes.section, top: nodes.section | None) -> str:
    """Return where a section stands: ``top``, ``section``, or ``deeper`` for a topic that is folded at first."""
    above = section.parent
    deeper = isinstance(above, nodes.section) and is_named(above, DEEPER)
    return "top" if section is top else "deeper" if deeper else "section"


def read_words(root: Path, language: str = "") -> tuple[list[list[str]], dict[str, str]]:
    """Return the groups of words of the same meaning, and the further words of pages and sections.

    Those of another language are added to the English ones, as far as it has a list.

    Raises:
        ValueError: if a group has fewer than two words.
    """
    groups, further = [], {}
    for path in (root / WORDS, root / "locale" / language / Path(WORDS).name):
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {"same": [], "further": {}}
        for group in content["same"]:
            if len(group) < 2:
                raise ValueError(f"a group in {path.name} must have two words or more, got {group}")
        groups += [[normalised(str(word)) for word in group] for group in content["same"]]
        for place, phrases in content["further"].items():
            further[place] = f"{further[place]}, {phrases}" if place in further else phrases
    return groups, further


def synonyms(text: str, groups: list[list[str]]) -> str:
    """Return the words that mean the same as words of a text.

    >>> synonyms("Rotary positions", [["rope", "rotary"]])
    'rope'
    >>> synonyms("因果掩码", [["掩码", "mask"]])
    'mask'
    """
    text = f" {spaced(normalised(text))} "
    found = []
    for group in groups:
        if present := [
            word for word in group if f" {spaced(word)} " in text or (CHINESE.search(word) and word in text)
        ]:
            found += [word for word in group if word not in present]
    return " ".join(found)


def spaced(text: str) -> str:
    """Return a text with a space for each run of other characters than Latin letters and digits."""
    return re.sub(r"[^a-z0-9]+", " ", text)


def index(env, root: Path) -> list[dict[str, str]]:
    """Return all entries, each with its kind, its further phrases and its synonyms.

    Raises:
        ValueError: if ``search.yml`` names a page or section that does not exist.
    """
    groups, further = read_words(root, catalogs.language())
    numbered = chapters(env)
    found = []
    for docname in sorted(env.found_docs):
        kind = kind_of(docname, numbered)
        page = short_title(env, docname)
        if kind == "chapter":
            page = gettext("Chapter {number}, {title}").format(number=numbered.index(docname) + 1, title=page)
        for entry in entries(env.get_doctree(docname), docname, page):
            phrases = further.get(entry["address"].replace(".html", "", 1), "")
            anchor = entry.pop("english")
            english = anchor if CHINESE.search(entry["heading"]) else ""
            same = synonyms(f"{entry['heading']} {english} {phrases}", groups)
            found.append(entry | {"kind": kind, "phrases": phrases, "words": f"{same} {english}".strip()})
    known = {entry["address"].replace(".html", "", 1) for entry in found}
    if unknown := sorted(further.keys() - known):
        raise ValueError(f"{WORDS} names sections that do not exist: {', '.join(unknown)}")
    return found


def write_index(app, exception) -> None:
    """Write the index and Lunr into the site, unless only one page is built: the index has words of all pages."""
    if exception is not None or app.builder.format != "html" or app.config.one_page:
        return
    static = Path(app.outdir, "_static")
    content = json.dumps(index(app.env, Path(app.srcdir)), ensure_ascii=False, separators=(",", ":"))
    (static / "search-index.js").write_text(f"window.SEARCH_INDEX = {content};\n", encoding="utf-8")
    script = next(f for f in files("mkdocs") or [] if str(f) == LUNR)
    (static / "vendor" / "lunr").mkdir(parents=True, exist_ok=True)
    shutil.copy(str(script.locate()), static / "vendor" / "lunr" / "lunr.js")


def without_words_index(app) -> None:
    """Switch off Sphinx's own index, which knows pages only; its page for results is replaced by ``search.html``."""
    if app.builder.format == "html":
        app.builder.search = False


def result_page(app) -> Iterator[tuple[str, dict, str]]:
    """Yield the page that shows all results."""
    context = {"title": gettext("Search"), "needs_script": gettext("The search needs JavaScript.")}
    yield "search", context, "search_results.html"


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_js_file("search.js", loading_method="defer")
    app.add_css_file("search.css")
    app.setup_extension("one_page")
    app.setup_extension("page_templates")
    app.connect("builder-inited", without_words_index)
    app.connect("html-collect-pages", result_page)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
