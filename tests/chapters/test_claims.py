"""Tests of the page of claims: every chapter has one table, every row links to its evidence, the page has all rows."""

import re
from pathlib import Path

import pytest
from sample_book import chapter

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
TABLE = """## Claims you will meet

| what is said | what holds |
|---|---|
| It is linear | [no](#is-it-linear): quadratic |
| It extends | [half](#does-it): by practice [1] |
"""
SOURCE = "## Sources\n\n[1] Doe, Roe, *On Examples*, 2017, [arXiv:1706.00001](https://arxiv.org/abs/1706.00001)."


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    import claims

    return claims


# --- the book's own -------------------------------------------------------------------------------------------------


def test_every_chapter_has_a_table_of_claims_on_the_page(claims):
    from chapters import chapters

    written = claims.tables(ROOT)
    assert len(chapters(ROOT)) >= 11
    for path in chapters(ROOT).values():
        rows = claims.claims_of(path)
        assert len(rows) >= 10, path
        for row in rows:
            assert written.count(claims.outside_chapter(row, path, ROOT)) == 1, row


def test_every_claim_links_to_a_section_of_its_chapter(claims):
    from chapters import chapters, markdown_cells

    for path in chapters(ROOT).values():
        headings = {
            line.lstrip("# ") for text in markdown_cells(path) for line in text.splitlines() if line.startswith("##")
        }
        slugs = {re.sub(r"[^\w -]", "", re.sub(r"\$.*?\$", "", h).lower()).replace(" ", "-") for h in headings}
        for row in claims.claims_of(path):
            to = re.findall(r"\]\(#([^)]*)\)", row)
            assert to, f"{row} of {path.name} has no link to its evidence"
            assert set(to) <= slugs, row


def test_claims_page_has_the_mark_and_correct_counts(claims):
    page = (ROOT / f"{claims.PAGE}.md").read_text(encoding="utf-8")
    assert page.count(claims.MARK) == 1
    assert claims.COLUMNS not in page
    numbers = [int(n) for n in re.findall(r"^\| [^|]+ \| (\d+) \|$", page, re.MULTILINE)]
    assert sum(numbers) == int(re.search(r"(\d+) statements and pieces of code", page)[1])
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text())["parts"]
    assert {"file": claims.PAGE} in [page for part in contents for page in part["chapters"]]


# --- how it is read -------------------------------------------------------------------------------------------------


def test_claims_of_returns_the_rows(claims, tmp_path):
    assert len(claims.claims_of(chapter(tmp_path / "one.ipynb", TABLE))) == 2


def test_outside_chapter_resolves_links_and_citations(claims, tmp_path):
    path = chapter(tmp_path / "book/one.ipynb", TABLE, SOURCE)
    one, two = (claims.outside_chapter(row, path, tmp_path) for row in claims.claims_of(path))
    assert one == "| It is linear | [no](/book/one.ipynb#is-it-linear): quadratic |"
    assert two == (
        "| It extends | [half](/book/one.ipynb#does-it): by practice "
        "([Doe et al. 2017](https://arxiv.org/abs/1706.00001)) |"
    )


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        ([SOURCE], "must have one table"),
        ([TABLE, TABLE], "must have one table"),
        ([TABLE.replace("what holds", "what the runs say")], "must have the columns"),
        ([TABLE.replace(" | [no]", " [no]")], "must have two cells"),
        ([TABLE.replace("quadratic", "{glue:text}`order`")], "must read the same outside"),
        ([TABLE.replace("quadratic", "see {doc}`masks`")], "must read the same outside"),
    ],
)
def test_claims_of_invalid_table_raises(claims, tmp_path, cells, rule):
    with pytest.raises(ValueError, match=rf"one\.ipynb.*{rule}"):
        claims.claims_of(chapter(tmp_path / "one.ipynb", *cells))
