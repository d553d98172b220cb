"""Tests of the chapters' sources: entries are complete, cited and consistent, and one page lists them all."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from sample_book import chapter, contents

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
ENTRY = "[1] Doe, Roe, *On Examples*, 2017, [arXiv:1706.00001](https://arxiv.org/abs/1706.00001)."
LATER = (
    "[2] Ångström et al., *More of Them*, 2nd edition, 1981, [doi:10.1000/1](https://doi.org/10.1000/1); with a remark."
)


@pytest.fixture
def sources(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import sources

    return sources


# --- the book's own -------------------------------------------------------------------------------------------------

PAGES = [page for part in yaml.safe_load((ROOT / "_toc.yml").read_text())["parts"] for page in part["chapters"]]
CHAPTERS = [ROOT / f"{page['file']}.ipynb" for page in PAGES if page.get("title")]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_source_is_cited_and_every_citation_has_a_source(sources, path):
    assert sources.cited_numbers(path) == set(sources.sources_of(path))


def test_each_address_has_one_title_and_each_title_one_address(sources):
    by_address, by_title = defaultdict(set), defaultdict(set)
    for path in CHAPTERS:
        for source in sources.sources_of(path).values():
            by_address[source.address].add(str(source))
            by_title[source.title.casefold()].add(source.address)
    assert {address: said for address, said in by_address.items() if len(said) > 1} == {}
    assert {title: where for title, where in by_title.items() if len(where) > 1} == {}


def test_arxiv_numbers_are_valid_and_agree_with_the_year(sources):
    for source in sources.chapters_by_source(ROOT):
        if found := re.fullmatch(r"arXiv:(\d\d)(\d\d)\.\d{4,5}", source.label):
            year, month = 2000 + int(found[1]), int(found[2])
            assert 1 <= month <= 12, source
            assert year <= int(source.year) <= year + 5, source


def test_page_lists_every_source_once_in_alphabetical_order(sources):
    lines = sources.markdown_list(ROOT).splitlines()
    assert len(lines) == len({source.address for path in CHAPTERS for source in sources.sources_of(path).values()}) > 40
    names = [source.sort_key for source in sources.chapters_by_source(ROOT)]
    assert names == sorted(names)
    (most,) = [line for line in lines if "*Attention Is All You Need*" in line]
    assert "[Masks](/book/attention/masks.ipynb)" in most
    assert "[Positions and RoPE](/book/attention/positions.ipynb)" in most
    page = (ROOT / f"{sources.PAGE}.md").read_text()
    assert page.count(sources.MARK) == 1
    assert "arXiv" not in page, "the list must be generated, not copied"
    assert {"file": sources.PAGE} in PAGES


# --- how it is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listing",
    [
        f"## Sources\n\n{ENTRY} {LATER}",
        f"## Sources\n\n* {ENTRY}\n* {LATER}",
        f"## Sources\n\n{ENTRY}\n\n{LATER}",
    ],
)
def test_sources_of_reads_paragraphs_and_lists(sources, tmp_path, listing):
    path = chapter(tmp_path / "one.ipynb", "As [2] says, citing [1, figure 2].", listing)
    one, two = sources.sources_of(path).values()
    assert (one.authors, one.title, one.edition, one.year) == ("Doe, Roe", "On Examples", "", "2017")
    assert (two.authors, two.edition, two.year) == ("Ångström et al.", " 2nd edition,", "1981")
    assert two.address == "https://doi.org/10.1000/1"
    assert sources.cited_numbers(path) == {1, 2}
    assert two.sort_key < one.sort_key, "accents must not affect the order"


@pytest.mark.parametrize(
    ("listing", "rule"),
    [
        (ENTRY.replace("Doe, Roe, ", ""), "must read"),
        (ENTRY.replace("*On Examples*, ", ""), "must read"),
        (ENTRY.replace(" 2017,", ""), "must read"),
        (ENTRY.replace("[arXiv:1706.00001](https://arxiv.org/abs/1706.00001)", "arXiv:1706.00001"), "must read"),
        (ENTRY.replace("abs/1706.00001", "abs/1706.00002"), "must lead to its own page"),
        (f"{ENTRY} {LATER.replace('[2]', '[3]')}", "must count from 1, got 3 after 1"),
        (f"{ENTRY} {ENTRY}", "must count from 1, got 1 after 1"),
        ("See the papers. " + ENTRY, "must begin with an entry"),
        ("", "must begin with an entry"),
    ],
)
def test_sources_of_incomplete_entry_raises(sources, tmp_path, listing, rule):
    with pytest.raises(ValueError, match=rule):
        sources.sources_of(chapter(tmp_path / "one.ipynb", f"## Sources\n\n{listing}"))


@pytest.mark.parametrize("cells", [["Text."], [f"## Sources\n\n{ENTRY}"] * 2])
def test_sources_of_requires_exactly_one_list(sources, tmp_path, cells):
    with pytest.raises(ValueError, match=r"one\.ipynb must have one list"):
        sources.sources_of(chapter(tmp_path / "one.ipynb", *cells))


def test_cited_numbers_ignores_formulas_code_and_links(sources, tmp_path):
    text = "$x[1]$, `y[2]`, $$\n[3]\n$$ [4](page.md), [a, b], [0.5], [7][8] and one: [5, 6]."
    assert sources.cited_numbers(chapter(tmp_path / "one.ipynb", text)) == {5, 6, 8}


def test_markdown_list_merges_chapters_with_the_same_source(sources, tmp_path):
    names = ("first", "second")
    for name in names:
        chapter(tmp_path / f"book/{name}.ipynb", f"## Sources\n\n{ENTRY}")
    (tmp_path / "book/notes.md").write_text("# Notes")
    contents(tmp_path, *names)
    assert (
        sources.markdown_list(tmp_path) == f"* {ENTRY[4:]} In [First](/book/first.ipynb), [Second](/book/second.ipynb)."
    )
