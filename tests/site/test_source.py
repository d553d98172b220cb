"""Tests of the HTML of the built pages, without a browser."""

import html
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from build_book import placeholder_notice
from built_site import HTML, ROOT, read
from set_repository import defined_address


def test_page_loads_no_external_resources(path):
    """Links to other sites are allowed; external scripts, styles, images, fonts and imports are not."""
    page = read(path)
    asked = re.findall(r'<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc="((?:https?:)?//[^"]*)"', page)
    asked += re.findall(r'<link\b(?![^>]*rel="canonical")[^>]*\bhref="((?:https?:)?//[^"]*)"', page)
    asked += re.findall(r"""\bimport\s*(?:\(|[^;\n"']*from)\s*["']((?:https?:)?//[^"']*)""", page)
    assert not asked


@cache
def anchors(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\s(?:id|name)="([^"]*)"', file.read_text(encoding="utf-8")))


def test_internal_links_have_existing_targets(path):
    page, missing = read(path), []
    for link in map(html.unescape, re.findall(r'<a\b[^>]*\bhref="([^"]*)"', page)):
        parts = urlsplit(link)
        if parts.scheme or link in {"#", ""}:
            continue
        target = HTML / path if not parts.path else (HTML / path).parent / unquote(parts.path)
        if not target.resolve().is_file():
            missing.append(link)
        elif target.suffix == ".html" and parts.fragment and not parts.fragment.startswith("explore="):
            missing += [link] if unquote(parts.fragment) not in anchors(target.resolve()) else []
    assert not missing


def test_images_have_alternative_texts(path):
    pictures = [tag for tag in re.findall(r"<img\b[^>]*>", read(path)) if "_images/" in tag]
    alts = [re.search(r'\balt="([^"]*)"', tag) for tag in pictures]
    silent = [tag for tag, alt in zip(pictures, alts, strict=True) if alt is None or len(alt[1].split()) < 4]
    assert not silent


def test_launch_buttons_link_to_the_notebook(path):
    """While the address is the placeholder, there must be no buttons."""
    notebook = (ROOT / path).with_suffix(".ipynb")
    if not notebook.exists():
        pytest.skip("not a notebook")
    links = re.findall(r'href="(https://(?:colab\.research\.google\.com|mybinder\.org)/[^"]*)"', read(path))
    if placeholder_notice():
        assert links == []
        return
    owner = defined_address().removeprefix("https://github.com/")
    relative = notebook.relative_to(ROOT)
    assert any(f"/github/{owner}/blob/notebooks/{relative}" in link for link in links), links
    assert any(f"/v2/gh/{owner}/notebooks?urlpath=lab/tree/{relative}" in link for link in links), links


def solutions() -> list[set[str]]:
    """Return each solution's characteristic lines: the long ones that are not imports."""
    found = []
    for master in (ROOT / "assignments/source").glob("*/*.ipynb"):
        for cell in nbformat.read(master, 4).cells:
            marked = re.findall(r"### BEGIN (?:SOLUTION|HIDDEN TESTS)\n(.*?)### END", cell.source, re.DOTALL)
            if cell.cell_type == "markdown" and cell.metadata.get("nbgrader", {}).get("solution"):
                marked.append(cell.source)
            for text in marked:
                lines = {line.strip() for line in text.splitlines() if len(line.strip()) > 24}
                found.append({line for line in lines if not line.startswith(("from ", "import "))})
    return [lines for lines in found if lines]


def test_site_contains_no_solutions():
    """A chapter may share one line with a solution (``with rng_from(generator):``); two of them are its answer."""
    hidden = solutions()
    assert hidden
    for file in HTML.rglob("*"):
        if file.suffix in {".html", ".ipynb", ".txt", ".md"} or file.name == "search-index.js":
            text = html.unescape(file.read_text(encoding="utf-8"))
            is_chapter = file.is_relative_to(HTML / "_sources/book") and "exercises" not in file.parts
            for lines in hidden:
                seen = {line for line in lines if line in text}
                n_shared = 1 if is_chapter and len(lines) > 1 else 0
                assert len(seen) <= n_shared, f"{file.relative_to(HTML)} holds a solution: {seen}"


def test_every_explorer_is_on_the_explorers_page():
    import lessons_lib.page.widgets as widgets

    code = re.sub(r"<[^>]+>", "", read("book/explorers.html"))
    assert widgets.__all__
    assert [name for name in widgets.__all__ if name != "Hero" and f"{name}(" not in code] == []
    assert '<div class="hero">' in read("book/intro.html")


def test_copy_buttons_and_tabs_are_loaded_only_where_needed(path):
    page = read(path)
    body = page.split("<article", 1)[-1]
    assert ("copybutton.js" in page) == ("clipboard.min.js" in page) == ('<div class="highlight' in body)
    assert ("design-tabs.js" in page) == ('class="sd-tab' in body)
    assert ("sphinx-design.min.css" in page) == ('class="sd-' in body)
    assert ("_static/mystnb." in page) == ('class="cell' in body)


def test_formulas_are_typeset_with_fonts_of_the_site(path):
    page = read(path)
    assert page.count('<mjx-container class="MathJax"') >= page.count('<span class="math ') + page.count(
        '<div class="math '
    )
    assert "\\(" not in "".join(re.findall(r'<(?:span|div) class="math .*?</(?:span|div)>', page, re.DOTALL))
    assert "tex-mml-chtml.js" not in page, "Node did not run when the site was built"
    assert "<mjx-merror" not in page
    for font in set(re.findall(r'url\("?([^")]*MathJax_[^")]*)', page)):
        assert (HTML / path).parent.joinpath(font).exists()


def test_no_page_loads_a_search_index(path):
    page = read(path)
    scripts = ("searchindex.js", "searchtools.js", "search-index.js", "lunr.js")
    assert not [script for script in scripts if script in page]
