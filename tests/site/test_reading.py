"""Tests of the pages made from notebooks: menus, collapsed code, print, figures, and the state in the address."""

import importlib
import re
from pathlib import Path

import pytest
from built_site import HTML, read
from docutils import nodes, utils
from fonts import wide_serif
from thorough import all_but
from visits import STARTED

CHAPTER = "book/attention/scaling.html"


def test_print_remarks_are_hidden_on_screen(path):
    page = read(path)
    on_paper = page.count("On paper nothing moves")
    assert len(re.findall(r'<div class="only-print docutils">\s*<p>\(On paper nothing moves', page)) == on_paper


def test_code_of_explorers_and_imports_is_collapsed(path):
    page = re.sub(r"<details.*?</details>", "", read(path), flags=re.DOTALL)
    code = [re.sub(r"<[^>]+>", "", block) for block in re.findall(r"<pre>.*?</pre>", page, re.DOTALL)]
    if path.startswith(("book/exercises", "book/reference")):
        pytest.skip("this page shows its code")
    assert [
        block for block in code if re.search(r"^\w+Explorer\(|^(plots|drawings)\.", block.strip(), re.MULTILINE)
    ] == []
    assert "Show code cell" not in page


def a_cell(code: str) -> nodes.container:
    source = nodes.container("", nodes.literal_block(code, code), nb_element="cell_code_source")
    return nodes.container("", source, nb_element="cell_code")


def test_fold_code_merges_consecutive_imports(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "book/_ext")
    page = utils.new_document("page")
    cells = "import a", "from b import (\n    c)", "import d\nSEED = 0", "x = 1", "import e"
    page += [nodes.title("", "Imports"), *map(a_cell, cells), nodes.paragraph("", "More."), a_cell("import f")]

    importlib.import_module("cell_folding").fold_code(None, page)

    found = [(node.astext(), node.get("prompt_show")) for node in page.findall(nodes.container) if "nb_element" in node]
    shown = "Show the imports"
    assert [one for one in found if one[1]] == [("\n".join(cells[:3]), shown), ("import e", shown), ("import f", shown)]
    assert [node.astext() for node in page.findall(nodes.literal_block)] == [
        "\n".join(cells[:3]),
        *cells[3:],
        "import f",
    ]
    assert all(
        node.rawsource == node.astext() for node in page.findall(nodes.literal_block)
    )  # else it is not highlighted


def test_fold_code_merges_neighbours_with_one_label(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "book/_ext")
    page = utils.new_document("page")
    first, second, table, plot, other, check = map(
        a_cell, ("a = 1", "b = 2", "table(a)", "plots.bars(a)", "c = 3", "assert a")
    )
    for cell in (first, second, table, other):
        cell["hide_mode"] = "input"
    check["hide_mode"] = "all"
    table += nodes.container("", nodes.paragraph("", "1"), nb_element="cell_code_output")
    page += [first, second, table, plot, other, check]

    importlib.import_module("cell_folding").fold_code(None, page)

    found = [(node.astext(), node["prompt_show"]) for node in page]
    assert found == [
        ("a = 1\n\nb = 2\n\ntable(a)\n\n1", "Show the code"),
        ("plots.bars(a)", "Show the code of this figure"),
        ("c = 3", "Show the code"),
        ("assert a", "Show the check"),
    ]
    assert page[0].children[1]["nb_element"] == "cell_code_output"


# HTML as the theme and MyST-NB write it.
FOLDS = """<main><ul><li class="toctree-l1 has-children"><a class="reference internal" href="matrix.html">The
<em>whole</em> sequence</a><details><summary><span class="toctree-toggle" role="presentation"><i></i></span></summary>
<ul><li class="toctree-l2"><a class="reference internal" href="exercises.html">Exercises</a></li></ul></details></li>
<li><a class="reference internal" href="other.html">Other</a></li></ul>
<details class="hide above-input"><summary aria-label="Toggle hidden content">
<span class="collapsed">Show the imports</span><span class="expanded">Hide the imports</span>
</summary></details></main>"""


@pytest.mark.browser
def test_with_labels_names_each_collapsible_element(browser, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "book/_ext")
    page = browser.new_page()
    page.set_content(importlib.import_module("cell_folding").with_labels(FOLDS))
    page.add_style_tag(content=".expanded { display: none; }")
    said = page.locator("main").aria_snapshot()
    assert page.locator("summary").count() == 2
    assert page.locator("summary[aria-label='Pages under The whole sequence']").count() == 1
    assert "Show the imports" in said
    assert "Toggle" not in said
    page.close()


def test_collapsible_elements_have_specific_labels(path):
    page = read(path)
    assert "Toggle hidden content" not in page
    assert re.findall(r'<summary>\s*<span class="toctree-toggle', page) == []


def test_explorers_of_a_page_share_scripts_and_styles(path):
    page = read(path)
    parts = re.findall(r'<script data-part="([^"]+)"', page)
    assert len(parts) == len(set(parts))
    styles = re.findall(r'<style data-part="([^"]+)"', page)
    assert len(styles) == len(set(styles))
    if path == "book/explorers.html":
        assert sum(part.startswith("kit-") for part in parts) == 1
        assert sum(style.startswith("explorer-css-") for style in styles) == 1


@pytest.mark.parametrize(("chapter", "drawn"), [("scaling", 2), ("masks", 7)])
def test_chapter_results_are_tables_and_drawings(chapter, drawn):
    page = read(f"book/attention/{chapter}.html")
    outputs = re.findall(r'<div class="output[^"]*">\s*(?:<div[^>]*>)*<pre>(.*?)</pre>', page, re.DOTALL)
    raw = r"^(tensor\(|torch\.|[\[({]|-?\d[\d.e+-]*$|'|&#39;|True|False|None)"
    assert [words for words in outputs if re.match(raw, re.sub(r"<[^>]+>", "", words).strip())] == []
    assert page.count('<table class="numbers">') > 10
    assert page.count('<div class="drawing">') == drawn
    assert len(re.findall(r'<svg viewBox="[^"]*" role="img" aria-label="[^"]{80,}"', page)) >= drawn


@pytest.mark.browser
@pytest.mark.parametrize("theme", all_but(["light", "dark"], lambda theme: theme == "dark"))
def test_drawings_and_tables_follow_the_theme(visit, theme):
    look = """e => {
      const plate = getComputedStyle(e.closest("div.output")).backgroundColor;
      const ink = getComputedStyle(e.querySelector("text, td")), page = getComputedStyle(document.body).color;
      return [plate, e.matches("table") ? ink.color : ink.fill, page];
    }"""
    with visit(CHAPTER, color_scheme=theme) as page:
        for kind in ("div.drawing", "table.numbers"):
            plate, ink, text = page.locator(kind).first.evaluate(look)
            assert plate == "rgba(0, 0, 0, 0)"
            assert ink == text


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 768, 1440], lambda width: width == 360))
def test_drawing_fills_the_column_with_legible_text(visit, width):
    look = """e => { const text = e.querySelector("text"), svg = e.querySelector("svg");
      return [svg.clientWidth / e.closest("figure").clientWidth,
        parseFloat(getComputedStyle(text).fontSize) * svg.clientWidth / svg.viewBox.baseVal.width]; }"""
    with visit(CHAPTER) as page:
        page.set_viewport_size({"width": width, "height": 900})
        share, letters = page.locator("div.drawing").first.evaluate(look)
    assert 0.9 < share <= 1
    assert 9 < letters < 20


@pytest.mark.browser
def test_figures_are_inverted_in_the_dark_theme(visit):
    """In the dark theme figures have no light background, and black text is inverted."""
    look = """() => {
      const img = document.querySelector("div.cell_output img[src$='.svg']"), style = getComputedStyle(img);
      return [style.backgroundColor, style.filter, getComputedStyle(img.parentElement).backgroundColor];
    }"""
    figure = re.search(r'_images/([\w-]+\.svg)"', read(CHAPTER))
    assert figure
    drawn = (HTML / "_images" / figure[1]).read_text(encoding="utf-8")
    assert not re.search(r'id="patch_[12]">\s*<path d="[^"]*"\s+style="fill: #ffffff', drawn)
    with visit(CHAPTER, color_scheme="dark") as page:
        clear = "rgba(0, 0, 0, 0)"
        assert page.evaluate(look) == [clear, "invert(0.92) hue-rotate(180deg)", clear]


@pytest.mark.browser
@pytest.mark.parametrize("width", all_but([360, 1440], lambda width: width == 360))
def test_figures_have_the_same_scale_and_fill_the_column(visit, width):
    """The scale, in pixels per point of the figure, is the same for all, and the widest figures fill the column."""
    look = """all => all.map(img => [img.getBoundingClientRect().width, img.getAttribute("width"),
      img.closest("figure").clientWidth])"""
    with visit("book/attention/masks.html") as page:
        page.set_viewport_size({"width": width, "height": 900})
        sizes = page.locator("div.cell_output img[src$='.svg']").evaluate_all(look)
    scales = [wide / float(points) for wide, points, _ in sizes]
    assert max(scales) / min(scales) < 1.02
    assert max(wide / column for wide, _, column in sizes) > 0.9


@pytest.mark.browser
def test_figure_text_grows_less_than_the_figure(browser):
    """The text of a figure is legible on a phone, and not too large on a wide screen."""
    figure = re.search(r'_images/([\w-]+\.svg)"', read(CHAPTER))
    assert figure
    tick = "document.querySelector('[id^=xtick_] [id^=text_]').getBoundingClientRect().height"
    heights = []
    for width in (328, 736):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto((HTML / "_images" / figure[1]).as_uri())
        page.evaluate("document.documentElement.setAttribute('width', '100%')")
        page.evaluate("document.documentElement.removeAttribute('height')")
        heights.append(page.evaluate(tick))
        page.close()
    assert 7 < heights[0] < heights[1] < 1.9 * heights[0]


@pytest.mark.browser
def test_figures_load_lazily_with_reserved_space(browser, site):
    page = browser.new_page(viewport={"width": 360, "height": 740})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site}/{CHAPTER}")
    page.wait_for_load_state("load")
    figures = page.locator("div.cell_output img")
    assert sum("_images/" in url for url in asked) < figures.count()
    page.get_by_role("radio", name="Just read").check()
    page.evaluate("for (const fold of document.querySelectorAll('details.fold')) fold.open = true")
    before = figures.last.bounding_box()["height"]
    with page.expect_request("**/_images/*.svg"):
        figures.last.scroll_into_view_if_needed()
    figures.last.evaluate("(figure) => figure.decode()")
    assert figures.last.bounding_box()["height"] == pytest.approx(before, abs=2)
    page.close()


@pytest.mark.browser
def test_search_index_loads_only_for_a_search(browser, site):
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site}/{CHAPTER}")
    page.wait_for_load_state("load")
    page.wait_for_function(STARTED)
    assert not any("search-index" in url or "lunr" in url for url in asked)
    page.keyboard.press("Control+k")
    page.keyboard.type("entropy")
    page.keyboard.press("Enter")
    page.locator("#search-results li").first.wait_for()
    assert any("search-index" in url for url in asked)
    page.close()


@pytest.mark.browser
def test_menus_open_on_tap_and_click(visit):
    hidden = "document.querySelector('#pst-primary-sidebar').classList.contains('pst-sidebar-hidden')"
    with visit(CHAPTER, has_touch=True) as page:
        for name, width in (("primary", 360), ("secondary", 360), ("primary", 768), ("secondary", 1024)):
            page.set_viewport_size({"width": width, "height": 740})
            page.locator(f".{name}-toggle:visible").last.tap()
            dialog = page.locator(f"#pst-{name}-sidebar-modal")
            assert dialog.is_visible()
            assert dialog.locator("a:visible").count() > 3
            page.keyboard.press("Escape")
            dialog.wait_for(state="hidden")
        page.set_viewport_size({"width": 1440, "height": 900})
        for wanted in (True, False):
            page.locator(".primary-toggle:visible").last.click()
            assert page.evaluate(hidden) is wanted


@pytest.mark.browser
def test_print_uses_the_light_theme_and_shows_print_remarks(visit):
    with visit(CHAPTER, color_scheme="dark") as page:
        said = page.get_by_text("On paper nothing moves")
        assert not said.is_visible()
        page.emulate_media(media="print")
        page.wait_for_function("document.documentElement.dataset.theme === 'light'")
        assert said.is_visible()
        bar = "getComputedStyle(document.querySelector('.explorer')).printColorAdjust"
        assert page.evaluate(bar) == "exact"
        page.emulate_media(media="screen")
        page.wait_for_function("document.documentElement.dataset.theme === 'dark'")


# Elements that a page break in print would split, and elements that are wider than the paper.
TORN = """() => [...document.querySelectorAll(
  '.bd-article :is(h1, h2, h3, div.math, div.highlight, .guess > *, .explorer, figure, tr)')]
  .filter((e) => e.checkVisibility() && getComputedStyle(e).breakInside !== 'avoid'
    && getComputedStyle(e.parentElement).breakInside !== 'avoid').map((e) => e.outerHTML.slice(0, 80))"""
TOO_WIDE = """() => [...document.querySelectorAll('.bd-article :is(svg, img, pre, table, .g-pad)')]
  .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)
  .map((e) => e.outerHTML.slice(0, 80))"""
PAPER = {"width": 660, "height": 1000}  # an A4 page inside its margins, in CSS pixels


@pytest.mark.browser
@pytest.mark.parametrize("path", [CHAPTER, "book/attention/masks.html"])
def test_print_breaks_no_blocks_and_hides_menus(visit, path):
    with visit(path, color_scheme="dark") as page:
        page.emulate_media(media="print")
        page.wait_for_function("document.documentElement.dataset.theme === 'light'")
        page.set_viewport_size(PAPER)
        assert page.evaluate(TORN) == []
        assert page.evaluate(TOO_WIDE) == []
        gone = ".bd-sidebar-primary:visible, .bd-sidebar-secondary:visible, .bd-header-article:visible, .g-bar:visible"
        assert page.locator(gone).count() == 0
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ink = page.evaluate("getComputedStyle(document.querySelector('.bd-article section > p')).color")
        assert max(map(int, re.findall(r"\d+", ink)[:3])) < 80
        letters = page.evaluate(
            "parseFloat(getComputedStyle(document.querySelector('.bd-article section > p')).fontSize)"
        )
        assert 11 <= letters <= 14


@pytest.mark.browser
def test_print_shows_addresses_of_links(visit):
    after = "e => getComputedStyle(e, '::after').content"
    with visit("book/run.html") as page:
        page.emulate_media(media="print")
        link = page.locator(".bd-article a.external[href*='nbgrader']").first
        assert "https://nbgrader.readthedocs.io" in link.evaluate(after)
    with visit("book/attention/masks.html") as page:
        page.emulate_media(media="print")
        assert page.locator(".bd-article a.external[href*='arxiv']").first.evaluate(after) in {"none", "normal"}


@pytest.mark.browser
def test_the_state_of_an_explorer_is_in_the_address(visit):
    width = "document.querySelector('[data-explorer], .explorer').explorer.model.get('width')"
    with visit(f"{CHAPTER}#explore=scaling&width=1024&scaling=1%2Fd&n_keys=many") as page:
        assert page.get_by_label("Width dₖ").get_attribute("aria-valuetext") == "1024"
        assert page.locator(".explorer select").input_value() == "1/d"
        assert page.evaluate("document.querySelector('.explorer').getBoundingClientRect().top") < 400
        page.get_by_label("Width dₖ").press("ArrowLeft")
        page.wait_for_function("location.hash.includes('width=512')")
        shared = page.evaluate("location.hash")
    with visit(CHAPTER + shared) as page:
        assert page.evaluate(width) == 512
    with visit(f"{CHAPTER}#explore=scaling&width=100000000&seed=0.5") as page:
        assert page.evaluate(width) < 5000


@pytest.mark.browser
def test_controls_stay_visible_beside_the_figure_on_a_phone(visit):
    top = "e => e.getBoundingClientRect().top"
    with visit(CHAPTER) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        page.locator(".explorer details").scroll_into_view_if_needed()
        controls = page.locator(".explorer .x-controls")
        box = page.locator(".explorer details").bounding_box()
        assert box
        assert 0 <= controls.evaluate(top) < 80
        assert box["y"] + box["height"] <= 740


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 360, 390])
def test_first_formula_fits_a_phone(browser, site, width):
    """Tested with the widest serif font that a reader is likely to have."""
    page = browser.new_page(viewport={"width": width, "height": 740})
    page.goto(f"{site}/book/intro.html")
    page.add_style_tag(content=wide_serif("STIX Two Text"))
    page.evaluate("document.fonts.ready")
    formula = "document.querySelector('.h-formula')"
    page.wait_for_function(f"{formula}.scrollWidth <= {formula}.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(f"parseFloat(getComputedStyle({formula}).fontSize)") > 11
    page.close()


@pytest.mark.browser
def test_wide_formulas_are_reduced_on_a_phone(browser, site):
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(f"{site}/{CHAPTER}")
    page.wait_for_load_state("load")
    formulas = "[...document.querySelectorAll('mjx-container[display]')]"
    page.wait_for_function(f"{formulas}.some((one) => one.style.fontSize.endsWith('px'))")
    assert page.evaluate(f"{formulas}.filter((one) => one.scrollWidth > one.clientWidth).length") == 0
    assert page.evaluate(f"Math.min(...{formulas}.map((one) => parseFloat(getComputedStyle(one).fontSize)))") > 11
    page.close()


@pytest.mark.browser
def test_tables_of_sentences_are_not_cut_off(visit):
    wider = "all => all.map(table => table.scrollWidth - table.parentElement.clientWidth)"
    with visit("book/notation.html") as page:
        page.set_viewport_size({"width": 1440, "height": 900})
        assert max(page.locator("table.sentences").evaluate_all(wider)) <= 1


@pytest.mark.browser
def test_code_wraps_on_a_phone(visit):
    cut = "all => all.filter(pre => pre.scrollWidth > pre.clientWidth + 1).length"
    with visit(CHAPTER) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.locator(".bd-article div.cell pre").evaluate_all(cut) == 0


@pytest.mark.browser
def test_search_text_does_not_overlap_the_icon(visit):
    with visit("search.html") as page:
        form = page.locator("form.bd-search:visible").last
        icon, field = form.locator("i, svg").first.bounding_box(), form.locator("input").bounding_box()
        assert icon
        assert field
        padding = form.locator("input").evaluate("input => parseFloat(getComputedStyle(input).paddingLeft)")
        assert field["x"] + padding >= icon["x"] + icon["width"]
